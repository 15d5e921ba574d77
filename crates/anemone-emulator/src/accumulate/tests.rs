//! The sums of vectors against the rules as they are written, term by term in exact integers.

use anemone_kernels::Context;
use anemone_tensor::DType;
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use super::Accumulator;
use crate::Profile;

/// What the rules say, for one sum of fp16 factors.
fn expected(profile: &Profile, a: &[f32], b: &[f32], bias: f32) -> f32 {
    let e = profile.data();
    // In units of 2^-48, the lowest bit of any product.
    let unit = |v: f64| (v * f64::powi(2.0, 48)) as i128;
    let exponent = |v: f32| (v.abs().log2().floor() as i32).max(-14);
    let steps = |v: i128| match &e.fixed_point {
        None => v,
        Some(f) => {
            let step = 1i128 << (48 - f.fraction_bits);
            (v.abs() + step / 2) / step * step * v.signum()
        }
    };
    let limit = e.overflow.as_ref().map(|o| unit(f64::from(o.limit)));
    let mut total = steps(unit(f64::from(bias)));
    let infinite = |total: i128| limit.is_some_and(|l| total.abs() >= l);
    let terms = a.len();
    for (a, b) in a.iter().zip(b) {
        if infinite(total) {
            break;
        }
        let p = f64::from(*a) * f64::from(*b);
        let dropped = e.product_drop.as_ref().is_some_and(|d| exponent(*a) + exponent(*b) <= d.exponent_sum);
        let small = e.small_products.as_ref().is_some_and(|s| p.abs() < f64::powi(2.0, s.below));
        let wide = e.wide_reduction.as_ref().filter(|w| terms > w.above);
        let wide = wide.is_some_and(|w| p.abs() < f64::powi(2.0, w.below));
        if p == 0.0 || dropped || small || wide {
            continue;
        }
        total += steps(unit(p));
    }
    if infinite(total) {
        return f32::INFINITY.copysign(total as f32);
    }
    let value = total as f64 / f64::powi(2.0, 48);
    match e.ties() {
        Some(ties) if e.fixed_point.is_some() => crate::profile::fp16_of(value, ties),
        _ => value as f32,
    }
}

/// Factors of magnitudes around 2^`exponent`, some of them zero or subnormal.
fn factors(random: &mut ChaCha8Rng, exponent: i32, count: usize) -> Vec<f32> {
    (0..count)
        .map(|_| {
            let bits = random.next_u32();
            let fraction = (bits & 0x3ff) as f32 / 1024.0 + 1.0;
            let power = exponent - (bits >> 10 & 7) as i32;
            let sign = if bits >> 13 & 1 == 1 { -1.0 } else { 1.0 };
            let zero = (bits >> 14).trailing_zeros() >= 5;
            f16::from_f32(if zero { 0.0 } else { sign * fraction * f32::powi(2.0, power) }).to_f32()
        })
        .collect()
}

#[test]
fn vectors_sum_as_the_rules_say() {
    let wide = "name = \"w\"\nabout = \"\"\n[wide-reduction]\nabove = 8\nbelow = -9\nsource = \"\"\n[fixed-point]\nfraction-bits = 12\nsource = \"\"\n";
    let profiles = [
        "m4",
        "m4,-product-drop",
        "m4,-overflow",
        "m4,-fixed-point",
        "m4,-fp16-rounding",
        "m4,-all,+product-drop",
        "m4,-all,+overflow",
        "m1",
    ]
    .map(|p| p.parse().unwrap())
    .into_iter()
    .chain([Profile::from_toml(wide).unwrap()]);
    let context = Context::new(2);
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for profile in profiles {
        let accumulator = Accumulator::new(&profile).unwrap();
        let exact = profile.data().fixed_point.is_some();
        // From products that are all dropped to sums that overflow half way, with products too large for vectors in between.
        for (x, w) in
            [(-9, -9), (-5, -7), (-2, -5), (0, 0), (3, 4), (6, 6), (9, 8), (14, -2), (-1, -14), (14, 1)]
        {
            for k in [1, 7, 8, 9, 40, 131] {
                let (rows, tokens) = (3, 5);
                let weight = factors(&mut random, w, rows * k);
                let input = factors(&mut random, x, tokens * k);
                let bias = factors(&mut random, (x + w).clamp(-14, 14), rows);
                let bytes: Vec<u8> = weight.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
                let (mut out, mut plain) = (vec![0.0; rows * tokens], vec![0.0; rows * tokens]);
                accumulator.weighted(
                    &context,
                    (DType::F16, &bytes),
                    [rows, k],
                    &input,
                    Some(&bias),
                    &mut out,
                );
                accumulator.product(&context, &weight, &input, k, &mut plain);
                for t in 0..tokens {
                    for r in 0..rows {
                        let (a, b) = (&weight[r * k..(r + 1) * k], &input[t * k..(t + 1) * k]);
                        for (found, bias) in [(out[t * rows + r], bias[r]), (plain[t * rows + r], 0.0)] {
                            let expected = expected(&profile, a, b, bias);
                            // Sums in f32 are off by a rounding for each term.
                            let size: f32 =
                                a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum::<f32>() + bias.abs();
                            let bound = if exact { 0.0 } else { size * k as f32 * f32::EPSILON };
                            let same = found == expected || (found - expected).abs() <= bound;
                            assert!(
                                same,
                                "{profile}, 2^{x} by 2^{w}, {k} terms: {found:e}, expected {expected:e}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_order_of_terms_does_not_show_where_nothing_overflows() {
    let context = Context::new(1);
    let mut random = ChaCha8Rng::seed_from_u64(6);
    for spec in ["m4", "m4,-fixed-point", "m1"] {
        let accumulator = Accumulator::new(&spec.parse().unwrap()).unwrap();
        let k = 77;
        let (a, b) = (factors(&mut random, -1, k), factors(&mut random, 2, k));
        let sum = |order: &[usize]| {
            let pick = |v: &[f32]| order.iter().map(|i| v[*i]).collect::<Vec<f32>>();
            let mut out = [0.0];
            accumulator.product(&context, &pick(&a), &pick(&b), k, &mut out);
            out[0].to_bits()
        };
        let mut order: Vec<usize> = (0..k).collect();
        let first = sum(&order);
        for turn in 1..k {
            order.rotate_left(turn);
            order.swap(turn, 0);
            assert_eq!(sum(&order), first, "{spec}");
        }
    }
}

#[test]
fn many_small_products_overflow_as_few_large_ones_do() {
    let accumulator = Accumulator::new(&"m4".parse().unwrap()).unwrap();
    // 585 products of 56 are 32760, and one more is beyond 32768; what comes after does not bring it back.
    let sum = |up: usize, down: usize| {
        let b: Vec<f32> = std::iter::repeat_n(8.0, up).chain(std::iter::repeat_n(-8.0, down)).collect();
        let (a, mut out) = (vec![7.0; b.len()], [0.0]);
        accumulator.product(&Context::new(1), &a, &b, b.len(), &mut out);
        out[0]
    };
    assert_eq!((sum(585, 0), sum(585, 585), sum(585, 1170)), (32768.0, 0.0, -32768.0));
    assert_eq!(
        (sum(586, 0), sum(586, 586), sum(0, 586), sum(585, 1171)),
        (f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY)
    );
}
