//! Activation functions of encoders.

#![allow(unsafe_code, reason = "threads write disjoint ranges")]

use half::bf16;

use crate::Context;
use crate::convert::{Output, Sink};
use crate::simd::{self, Isa, Shared, dispatch};

/// Elements a task covers.
const GRAIN: usize = 16 << 10;

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x · Φ(x)`, by the error function.
    Gelu,
    /// `max(x, 0)`.
    Relu,
}

/// `out = f(x)`, of one length.
pub fn activate(context: &Context, activation: Activation, x: &[f32], out: Output<'_>) {
    assert_eq!(x.len(), out.len(), "lengths");
    let n = x.len();
    let each = |part: &(dyn Fn(&[f32], usize) + Sync)| {
        context.pool().run(n.div_ceil(GRAIN), &|_, task| {
            let start = task * GRAIN;
            part(&x[start..n.min(start + GRAIN)], start);
        });
    };
    match out {
        Output::F32(out) => {
            let out = Shared::new(out);
            each(&|x, start| {
                // SAFETY: the parts do not meet.
                let out = unsafe { out.slice(start, x.len()) };
                dispatch!(context.level(), part::<I, f32>(activation: Activation, x: &[f32], out: &mut [f32]));
            });
        }
        Output::Bf16(out) => {
            let out = Shared::new(out);
            each(&|x, start| {
                // SAFETY: the parts do not meet.
                let out = unsafe { out.slice(start, x.len()) };
                dispatch!(context.level(), part::<I, bf16>(activation: Activation, x: &[f32], out: &mut [bf16]));
            });
        }
    }
}

/// An activation of a vector.
///
/// # Safety
/// Instruction set as [`Isa`].
#[inline(always)]
pub(crate) unsafe fn apply<I: Isa>(activation: Activation, v: I::V) -> I::V {
    // SAFETY: the caller's contract.
    unsafe {
        match activation {
            Activation::Gelu => gelu::<I>(v),
            Activation::Relu => I::max(v, I::splat(0.0)),
        }
    }
}

/// `max(v, 0) − |v| · erfc(|v| / √2) / 2`; erfc is e^−z² times a polynomial in `1 / (1 + 0.34 z)`, fitted to 1.5e-8.
///
/// # Safety
/// Instruction set as [`Isa`].
#[inline(always)]
unsafe fn gelu<I: Isa>(v: I::V) -> I::V {
    const TERMS: [f32; 6] = [1.084_139_8, -1.244_44, 1.204_676_9, -0.282_440_14, 0.304_014_62, 0.180_272_36];
    // SAFETY: arithmetic on vectors only; the caller guarantees the instruction set.
    unsafe {
        let zero = I::splat(0.0);
        let size = I::max(v, I::sub(zero, v));
        let z = I::mul(size, I::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = I::div(I::splat(1.0), I::fma(z, I::splat(0.34), I::splat(1.0)));
        let mut p = I::splat(-0.246_223_53);
        for c in TERMS {
            p = I::fma(p, t, I::splat(c));
        }
        let decay = simd::exp::<I>(I::sub(zero, I::mul(z, z)));
        let tail = I::mul(I::mul(p, t), I::mul(decay, I::splat(0.5)));
        I::sub(I::max(v, zero), I::mul(size, tail))
    }
}

/// # Safety
/// Instruction set as [`Isa`]; the slices have one length.
#[inline(always)]
unsafe fn part<I: Isa, S: Sink>(activation: Activation, x: &[f32], out: &mut [S]) {
    let n = x.len();
    for i in (0..n).step_by(I::LANES) {
        let m = (n - i).min(I::LANES);
        // SAFETY: `m` elements are left in both slices.
        unsafe {
            let p = x.as_ptr().add(i);
            let v = if m == I::LANES { I::load(p) } else { I::load_n(p, m) };
            S::put::<I>(out.as_mut_ptr().add(i), apply::<I>(activation, v), m);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    /// erf by its series, in f64, for |x| up to about 6.
    fn erf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn gelu_matches_f64() {
        let x: Vec<f32> = (-500..=500).map(|i| i as f32 * 0.01).collect();
        let expected: Vec<f64> = (x.iter())
            .map(|v| f64::from(*v) * (1.0 + erf(f64::from(*v) * std::f64::consts::FRAC_1_SQRT_2)) / 2.0)
            .collect();
        for &level in Level::available() {
            let context = Context::with_level(2, level);
            let (mut out, mut low) = (vec![0.0; x.len()], vec![bf16::ZERO; x.len()]);
            activate(&context, Activation::Gelu, &x, Output::F32(&mut out));
            activate(&context, Activation::Gelu, &x, Output::Bf16(&mut low));
            for i in 0..x.len() {
                // Half an ulp of the value, and a few of a tail that is at most 0.17.
                let bound = expected[i].abs() * 1.2e-7 + 6e-8;
                assert!((f64::from(out[i]) - expected[i]).abs() <= bound, "{level:?} {} {}", x[i], out[i]);
                assert_eq!(low[i].to_bits(), bf16::from_f32(out[i]).to_bits());
            }
            let mut far = [0.0; 5];
            activate(&context, Activation::Gelu, &[-1e30, -40.0, 40.0, 1e30, 0.0], Output::F32(&mut far));
            assert!(far[0].abs() < 1e-7 && far[1].abs() < 1e-35, "{far:?}");
            assert_eq!(far[2..], [40.0, 1e30, 0.0]);
        }
    }

    #[test]
    fn relu_keeps_what_is_positive() {
        let x = [1.0, -2.0, 0.0, -0.5, 9.0];
        let mut out = [f32::NAN; 5];
        activate(&Context::new(2), Activation::Relu, &x, Output::F32(&mut out));
        assert_eq!(out, x.map(|v: f32| v.max(0.0)));
    }
}
