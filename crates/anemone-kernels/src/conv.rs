//! The gated short convolution, a causal depthwise filter over the last few tokens.

#![allow(unsafe_code, reason = "threads write disjoint tokens")]

use half::bf16;

use crate::Context;
use crate::convert::{Output, Sink};
use crate::simd::{Isa, Shared, dispatch};

/// `z = B · X` of the projected `[B | C | X]`.
///
/// `bcx`: `[tokens, 3 · width]`; `z`: `[tokens, width]`.
pub fn gate_conv(context: &Context, bcx: &[f32], width: usize, z: &mut [f32]) {
    assert!(width > 0 && bcx.len() == 3 * z.len() && z.len().is_multiple_of(width), "lengths");
    let tokens = z.len() / width;
    let shared = Shared::new(z);
    each_token(context, tokens, width, &|t| {
        let row = &bcx[t * 3 * width..(t + 1) * 3 * width];
        let (b, x) = (&row[..width], &row[2 * width..]);
        // SAFETY: each token is one task's alone.
        let z = unsafe { shared.slice(t * width, width) };
        dispatch!(context.level(), multiply::<I>(b: &[f32], x: &[f32], z: &mut [f32]));
    });
}

/// # Safety
/// Instruction set as [`Isa`].
#[inline(always)]
unsafe fn multiply<I: Isa>(b: &[f32], x: &[f32], z: &mut [f32]) {
    for ((z, b), x) in z.iter_mut().zip(b).zip(x) {
        *z = b * x;
    }
}

/// `out_t = C_t · (Σ_j taps_j · z_{t+j} + bias)`: tap `K - 1` meets the current token, tap 0 the oldest.
///
/// `z`: `[K - 1 + tokens, width]`, the window before this pass followed by its own rows; `bcx`: `[tokens, 3 · width]`;
/// `taps`: `[K, width]`; `bias`: `[width]`; `out`: `[tokens, width]`.
pub fn short_conv(
    context: &Context,
    z: &[f32],
    bcx: &[f32],
    taps: &[f32],
    bias: Option<&[f32]>,
    width: usize,
    out: Output<'_>,
) {
    let tokens = out.len() / width;
    assert!(width > 0 && taps.len().is_multiple_of(width) && out.len() == tokens * width, "lengths");
    let reach = taps.len() / width - 1;
    assert!(z.len() == (reach + tokens) * width && bcx.len() == 3 * tokens * width, "lengths");
    assert!(bias.is_none_or(|b| b.len() == width), "bias length");
    match out {
        Output::F32(out) => {
            let shared = Shared::new(out);
            each_token(context, tokens, width, &|t| {
                let z = &z[t * width..(t + reach + 1) * width];
                let c = &bcx[(3 * t + 1) * width..(3 * t + 2) * width];
                // SAFETY: each token is one task's alone.
                let out = unsafe { shared.slice(t * width, width) };
                dispatch!(context.level(), filter::<I, f32>(z: &[f32], c: &[f32], taps: &[f32], bias: Option<&[f32]>, out: &mut [f32]));
            });
        }
        Output::Bf16(out) => {
            let shared = Shared::new(out);
            each_token(context, tokens, width, &|t| {
                let z = &z[t * width..(t + reach + 1) * width];
                let c = &bcx[(3 * t + 1) * width..(3 * t + 2) * width];
                // SAFETY: each token is one task's alone.
                let out = unsafe { shared.slice(t * width, width) };
                dispatch!(context.level(), filter::<I, bf16>(z: &[f32], c: &[f32], taps: &[f32], bias: Option<&[f32]>, out: &mut [bf16]));
            });
        }
    }
}

fn each_token(context: &Context, tokens: usize, width: usize, token: &(dyn Fn(usize) + Sync)) {
    let per_task = 16_384_usize.div_ceil(width).max(1);
    context.pool().run(tokens.div_ceil(per_task), &|_, task| {
        (task * per_task..((task + 1) * per_task).min(tokens)).for_each(token);
    });
}

/// # Safety
/// Instruction set as [`Isa`]; `z` and `taps` have one length, a multiple of `out.len()`; `c` and `bias` have `out.len()`.
#[inline(always)]
unsafe fn filter<I: Isa, S: Sink>(z: &[f32], c: &[f32], taps: &[f32], bias: Option<&[f32]>, out: &mut [S]) {
    let width = out.len();
    let load = |s: &[f32], i: usize, n: usize| {
        let s = &s[i..i + n];
        // SAFETY: the slice has `n <= LANES` elements.
        unsafe { if n == I::LANES { I::load(s.as_ptr()) } else { I::load_n(s.as_ptr(), n) } }
    };
    let mut i = 0;
    while i < width {
        let n = (width - i).min(I::LANES);
        // SAFETY: arithmetic, and a store of `n` elements inside `out`.
        unsafe {
            let mut sum = I::splat(0.0);
            let mut at = i;
            while at < z.len() {
                sum = I::fma(load(taps, at, n), load(z, at, n), sum);
                at += width;
            }
            if let Some(bias) = bias {
                sum = I::add(sum, load(bias, i, n));
            }
            S::put::<I>(out.as_mut_ptr().add(i), I::mul(load(c, i, n), sum), n);
        }
        i += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn every_level_matches_the_definition() {
        for &level in Level::available() {
            let context = Context::with_level(2, level);
            for (tokens, width, k) in [(1, 5, 3), (4, 48, 7), (9, 33, 4)] {
                let v =
                    |n: usize, s: f64| -> Vec<f32> { (0..n).map(|i| (i as f64 * s).sin() as f32).collect() };
                let (bcx, taps, bias) = (v(tokens * 3 * width, 0.7), v(k * width, 0.3), v(width, 0.9));
                let mut z = v((k - 1 + tokens) * width, 1.1);
                gate_conv(&context, &bcx, width, &mut z[(k - 1) * width..]);
                for bias in [None, Some(&bias[..])] {
                    let (mut out, mut low) = (vec![0.0; tokens * width], vec![bf16::ZERO; tokens * width]);
                    short_conv(&context, &z, &bcx, &taps, bias, width, Output::F32(&mut out));
                    short_conv(&context, &z, &bcx, &taps, bias, width, Output::Bf16(&mut low));
                    for t in 0..tokens {
                        for c in 0..width {
                            let at = |x: &[f32], i: usize| f64::from(x[i]);
                            assert_eq!(
                                z[(k - 1 + t) * width + c],
                                bcx[t * 3 * width + c] * bcx[(t * 3 + 2) * width + c]
                            );
                            let mut y: f64 =
                                (0..k).map(|j| at(&taps, j * width + c) * at(&z, (t + j) * width + c)).sum();
                            y += bias.map_or(0.0, |b| at(b, c));
                            let expected = at(&bcx, (t * 3 + 1) * width + c) * y;
                            // k + 2 roundings of values below 8.
                            assert!((f64::from(out[t * width + c]) - expected).abs() < 5e-6, "{level:?}");
                            assert_eq!(
                                low[t * width + c].to_bits(),
                                bf16::from_f32(out[t * width + c]).to_bits()
                            );
                        }
                    }
                }
            }
        }
    }
}
