use std::fmt;
use std::str::FromStr;

use anemone_mil::DataType;

use crate::Error;

/// The arithmetic an emulator computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Profile {
    /// Everything is computed and kept in f32, whatever type the program declares.
    F32,
    /// Inputs and the result of every operation are rounded to fp16 where the program declares fp16; sums inside an operation
    /// are f32.
    #[default]
    Fp16,
}

impl Profile {
    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Fp16 => "fp16",
        }
    }

    /// Rounds values declared as `dtype` in place.
    pub fn round(self, dtype: DataType, values: &mut [f32]) {
        if self == Self::Fp16 && dtype == DataType::Float16 {
            for v in values {
                *v = to_fp16(*v);
            }
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        [Self::F32, Self::Fp16]
            .into_iter()
            .find(|p| p.name() == s)
            .ok_or_else(|| Error::Profile(s.to_string()))
    }
}

/// The nearest fp16 number, ties to even; beyond the largest it is infinity. Without branches, so that loops become vectors.
#[inline]
fn to_fp16(v: f32) -> f32 {
    const SIGN: u32 = 1 << 31;
    let (sign, bits) = (v.to_bits() & SIGN, v.to_bits() & !SIGN);
    let rounded = bits.wrapping_add(0xfff + ((bits >> 13) & 1)) & !0x1fff;
    // From 2^16 on there is no finite number.
    let normal = if rounded >= 0x4780_0000 { f32::INFINITY.to_bits() } else { rounded };
    // Below 2^-14 numbers are 2^-24 apart, as f32 numbers between a half and one are.
    let small = ((f32::from_bits(bits) + 0.5) - 0.5).to_bits();
    let finite = if bits < 0x3880_0000 { small } else { normal };
    // NaN keeps its bits.
    let result = if bits > f32::INFINITY.to_bits() { bits } else { finite };
    f32::from_bits(result | sign)
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
                    let (ours, expected) = (to_fp16(near), f16::from_f32(near).to_f32());
                    assert!(
                        ours.to_bits() == expected.to_bits() || (ours.is_nan() && expected.is_nan()),
                        "{near:e}: {ours:e}, expected {expected:e}"
                    );
                }
            }
        }
        assert_eq!(to_fp16(65519.99), 65504.0);
        assert_eq!(to_fp16(65520.0), f32::INFINITY);
        assert_eq!(to_fp16(f32::MIN), f32::NEG_INFINITY);
        assert_eq!(to_fp16(-1e-9).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn names_round_trip() {
        for p in [Profile::F32, Profile::Fp16] {
            assert_eq!(p.name().parse::<Profile>().unwrap(), p);
        }
        let error = "f64".parse::<Profile>().unwrap_err().to_string();
        assert_eq!(error, "profile `f64` is none of f32, fp16");
    }

    #[test]
    fn only_what_is_declared_half_is_rounded() {
        let mut v = [1.0001];
        Profile::F32.round(DataType::Float16, &mut v);
        Profile::Fp16.round(DataType::Float32, &mut v);
        assert_eq!(v, [1.0001]);
        Profile::Fp16.round(DataType::Float16, &mut v);
        assert_eq!(v, [1.0]);
    }
}
