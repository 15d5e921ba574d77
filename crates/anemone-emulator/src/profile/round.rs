//! Rounding to fp16.

use serde::Deserialize;

/// Where a number goes that lies half way between two of fp16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ties {
    /// To the one with an even last bit.
    Even,
    /// To the one further from zero.
    Away,
}

const SIGN: u32 = 1 << 31;

/// The nearest fp16 number, ties to even; beyond the largest it is infinity. Without branches, so that loops become vectors.
#[inline]
pub(super) fn to_even(v: f32) -> f32 {
    let (sign, bits) = (v.to_bits() & SIGN, v.to_bits() & !SIGN);
    let rounded = bits.wrapping_add(0xfff + ((bits >> 13) & 1)) & !0x1fff;
    // Below 2^-14 numbers are 2^-24 apart, as f32 numbers between a half and one are.
    let small = ((f32::from_bits(bits) + 0.5) - 0.5).to_bits();
    finish(bits, rounded, small, sign)
}

/// The nearest fp16 number, ties away from zero; beyond the largest it is infinity.
#[inline]
pub(super) fn away(v: f32) -> f32 {
    let (sign, bits) = (v.to_bits() & SIGN, v.to_bits() & !SIGN);
    let rounded = bits.wrapping_add(0x1000) & !0x1fff;
    let size = f32::from_bits(bits);
    let small = (size + 0.5) - 0.5;
    // What went down by half a step goes up instead.
    let tie = size - small == f32::powi(2.0, -25);
    let small = (small + if tie { f32::powi(2.0, -24) } else { 0.0 }).to_bits();
    finish(bits, rounded, small, sign)
}

#[inline]
fn finish(bits: u32, rounded: u32, small: u32, sign: u32) -> f32 {
    // From 2^16 on there is no finite number.
    let normal = if rounded >= 0x4780_0000 { f32::INFINITY.to_bits() } else { rounded };
    let finite = if bits < 0x3880_0000 { small } else { normal };
    // NaN keeps its bits.
    let result = if bits > f32::INFINITY.to_bits() { bits } else { finite };
    f32::from_bits(result | sign)
}

/// The nearest fp16 number of a sum that f64 holds exactly, so that nothing is rounded twice.
pub(crate) fn fp16_of(v: f64, ties: Ties) -> f32 {
    if !v.is_finite() || v == 0.0 {
        return v as f32;
    }
    let exponent = ((v.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let quantum = f64::powi(2.0, exponent.max(-14) - 10);
    let steps = v / quantum;
    let rounded = match ties {
        Ties::Even => steps.round_ties_even(),
        Ties::Away => steps.round(),
    } * quantum;
    if rounded.abs() >= 65536.0 { f32::INFINITY.copysign(v as f32) } else { rounded as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn rounding_is_that_of_half_for_every_neighbourhood() {
        for code in 0..=u16::MAX {
            let v = f16::from_bits(code).to_f32();
            for delta in -3i32..=3 {
                for shift in [0, 11, 12, 13] {
                    let near = f32::from_bits(v.to_bits().wrapping_add_signed(delta << shift));
                    let (ours, expected) = (to_even(near), f16::from_f32(near).to_f32());
                    assert!(
                        ours.to_bits() == expected.to_bits() || (ours.is_nan() && expected.is_nan()),
                        "{near:e}: {ours:e}, expected {expected:e}"
                    );
                    if near.is_nan() {
                        continue;
                    }
                    assert_eq!(fp16_of(f64::from(near), Ties::Even), expected, "{near:e}");
                    // Away from zero: the same but for ties, which f64 shows.
                    let expected = fp16_of(f64::from(near), Ties::Away);
                    assert_eq!(away(near).to_bits(), expected.to_bits(), "{near:e}");
                    let other = f16::from_f32(near).to_f32();
                    if expected != other {
                        let error = |v: f32| (f64::from(v) - f64::from(near)).abs();
                        let past = expected.is_infinite() || other.is_infinite();
                        assert!(past || (error(expected) == error(other) && expected.abs() > other.abs()));
                    }
                }
            }
        }
        assert_eq!(to_even(65519.99), 65504.0);
        assert_eq!(to_even(65520.0), f32::INFINITY);
        assert_eq!(to_even(f32::MIN), f32::NEG_INFINITY);
        assert_eq!(to_even(-1e-9).to_bits(), (-0.0f32).to_bits());
        assert_eq!((away(2049.0), away(-4098.0), away(2047.4)), (2050.0, -4100.0, 2047.0));
        assert_eq!(away(f32::powi(2.0, -25)), f32::powi(2.0, -24));
    }
}
