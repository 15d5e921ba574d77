//! Normalisation to mean zero and variance one.

#![allow(unsafe_code, reason = "vector loads and stores inside checked rows")]

use half::bf16;

use crate::Context;
use crate::convert::{Output, Sink};
use crate::simd::{Isa, Shared, dispatch, load_up_to};

/// Normalises each row: `(x − mean(x)) / sqrt(var(x) + eps) · w`, plus `b` if there is one; the variance is over the row.
///
/// `x` and `out`: `[rows, w.len()]`; `b`: `[w.len()]`. Mean and variance are taken in two passes.
pub fn layer_norm(context: &Context, x: &[f32], w: &[f32], b: Option<&[f32]>, eps: f32, out: Output<'_>) {
    let width = w.len();
    assert!(width > 0 && x.len().is_multiple_of(width) && x.len() == out.len(), "row lengths");
    assert!(b.is_none_or(|b| b.len() == width), "bias length");
    let rows = x.len() / width;
    let per_task = 8_192_usize.div_ceil(width).max(1);
    let each = |row: &(dyn Fn(usize) + Sync)| {
        context.pool().run(rows.div_ceil(per_task), &|_, task| {
            (task * per_task..((task + 1) * per_task).min(rows)).for_each(row);
        });
    };
    match out {
        Output::F32(out) => {
            let out = Shared::new(out);
            each(&|r| {
                let x = &x[r * width..(r + 1) * width];
                // SAFETY: each row is one task's alone.
                let out = unsafe { out.slice(r * width, width) };
                dispatch!(context.level(), normalise::<I, f32>(x: &[f32], w: &[f32], b: Option<&[f32]>, eps: f32, out: &mut [f32]));
            });
        }
        Output::Bf16(out) => {
            let out = Shared::new(out);
            each(&|r| {
                let x = &x[r * width..(r + 1) * width];
                // SAFETY: each row is one task's alone.
                let out = unsafe { out.slice(r * width, width) };
                dispatch!(context.level(), normalise::<I, bf16>(x: &[f32], w: &[f32], b: Option<&[f32]>, eps: f32, out: &mut [bf16]));
            });
        }
    }
}

/// # Safety
/// Instruction set as [`Isa`]; all slices have one length.
#[inline(always)]
unsafe fn normalise<I: Isa, S: Sink>(x: &[f32], w: &[f32], b: Option<&[f32]>, eps: f32, out: &mut [S]) {
    let n = x.len();
    let full = n / I::LANES * I::LANES;
    // SAFETY: all accesses are below `n`, in whole vectors below `full` and one partial vector after it.
    unsafe {
        let mut sum = I::splat(0.0);
        for i in (0..n).step_by(I::LANES) {
            // Rows follow one another; the next one comes nearer meanwhile.
            I::prefetch(x.as_ptr().wrapping_add(n + i).cast());
            sum = I::add(sum, load_up_to::<I>(x.as_ptr().add(i), (n - i).min(I::LANES)));
        }
        let mean = I::splat(I::sum(sum) / n as f32);
        let mut sum = I::splat(0.0);
        for i in (0..full).step_by(I::LANES) {
            let v = I::sub(I::load(x.as_ptr().add(i)), mean);
            sum = I::fma(v, v, sum);
        }
        let mut squares = I::sum(sum);
        if full < n {
            // The empty lanes would count as far from the mean.
            let mut rest = [0.0f32; 16];
            I::store(rest.as_mut_ptr(), I::sub(I::load_n(x.as_ptr().add(full), n - full), mean));
            squares += rest[..n - full].iter().map(|v| v * v).sum::<f32>();
        }
        let scale = I::splat(1.0 / (squares / n as f32 + eps).sqrt());
        for i in (0..n).step_by(I::LANES) {
            let m = (n - i).min(I::LANES);
            let v = I::mul(I::sub(load_up_to::<I>(x.as_ptr().add(i), m), mean), scale);
            let v = I::mul(v, load_up_to::<I>(w.as_ptr().add(i), m));
            let v = match b {
                Some(b) => I::add(v, load_up_to::<I>(b.as_ptr().add(i), m)),
                None => v,
            };
            S::put::<I>(out.as_mut_ptr().add(i), v, m);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn every_level_matches_f64() {
        for &level in Level::available() {
            let context = Context::with_level(2, level);
            for (rows, width) in [(1, 1), (3, 7), (5, 48), (2, 1025)] {
                // A mean far from zero: one pass over squares would lose the variance.
                let x: Vec<f32> =
                    (0..rows * width).map(|i| ((i * 37 + 11) % 101) as f32 / 25.0 + 30.0).collect();
                let w: Vec<f32> = (0..width).map(|i| 0.5 + (i % 13) as f32 / 13.0).collect();
                let b: Vec<f32> = (0..width).map(|i| (i % 5) as f32 - 2.0).collect();
                for bias in [None, Some(&b[..])] {
                    let (mut out, mut low) = (vec![0.0; rows * width], vec![bf16::ZERO; rows * width]);
                    layer_norm(&context, &x, &w, bias, 1e-5, Output::F32(&mut out));
                    layer_norm(&context, &x, &w, bias, 1e-5, Output::Bf16(&mut low));
                    for (r, row) in x.chunks_exact(width).enumerate() {
                        let wide = row.iter().map(|v| f64::from(*v));
                        let mean = wide.clone().sum::<f64>() / width as f64;
                        let var = wide.clone().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
                        for (i, v) in wide.enumerate() {
                            let plain = (v - mean) * f64::from(w[i]) / (var + 1e-5).sqrt();
                            let expected = plain + bias.map_or(0.0, |b| f64::from(b[i]));
                            let o = out[r * width + i];
                            // The mean carries a few roundings of 2e-6 (values near 32), the variance is about one.
                            assert!((f64::from(o) - expected).abs() <= 2e-5, "{level:?} {o} {expected}");
                            assert_eq!(low[r * width + i].to_bits(), bf16::from_f32(o).to_bits());
                        }
                    }
                }
            }
        }
    }
}
