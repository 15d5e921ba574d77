//! Root-mean-square normalisation.

#![allow(unsafe_code, reason = "vector loads and stores inside checked rows")]

use half::bf16;

use crate::Context;
use crate::convert::{Output, Sink};
use crate::simd::{Isa, Shared, dispatch};

/// Normalises each row: `x · w / sqrt(mean(x²) + eps)`.
///
/// `x` and `out`: `[rows, w.len()]`. The sum of squares is one vector accumulator in order.
pub fn rms_norm(context: &Context, x: &[f32], w: &[f32], eps: f32, out: Output<'_>) {
    let width = w.len();
    assert!(width > 0 && x.len().is_multiple_of(width) && x.len() == out.len(), "row lengths");
    match out {
        Output::F32(out) => each_row(context, x, w, eps, out),
        Output::Bf16(out) => each_row::<bf16>(context, x, w, eps, out),
    }
}

/// [`rms_norm`] in place, for rows no longer needed as they were.
pub fn rms_norm_in_place(context: &Context, x: &mut [f32], w: &[f32], eps: f32) {
    let width = w.len();
    assert!(width > 0 && x.len().is_multiple_of(width), "row lengths");
    let rows = x.len() / width;
    let shared = Shared::new(x);
    run(context, rows, width, &|row_idx| {
        // SAFETY: each row is one task's alone.
        let x = unsafe { shared.slice(row_idx * width, width) };
        let out = x.as_mut_ptr();
        let x = x.as_ptr();
        dispatch!(context.level(), normalise::<I, f32>(x: *const f32, w: &[f32], eps: f32, out: *mut f32));
    });
}

fn each_row<S: Sink>(context: &Context, x: &[f32], w: &[f32], eps: f32, out: &mut [S]) {
    let width = w.len();
    let shared = Shared::new(out);
    run(context, x.len() / width, width, &|row_idx| {
        let x = x[row_idx * width..(row_idx + 1) * width].as_ptr();
        // SAFETY: each row is one task's alone.
        let out = unsafe { shared.slice(row_idx * width, width) }.as_mut_ptr();
        on_level(context, x, w, eps, out);
    });
}

fn on_level<S: Sink>(context: &Context, x: *const f32, w: &[f32], eps: f32, out: *mut S) {
    // The dispatcher's inner functions cannot name `S`, so the two sinks are told apart by size.
    if size_of::<S>() == 2 {
        let out = out.cast::<bf16>();
        dispatch!(context.level(), normalise::<I, bf16>(x: *const f32, w: &[f32], eps: f32, out: *mut bf16));
    } else {
        let out = out.cast::<f32>();
        dispatch!(context.level(), normalise::<I, f32>(x: *const f32, w: &[f32], eps: f32, out: *mut f32));
    }
}

/// Runs `row` over all rows, in parallel when there is enough to do.
fn run(context: &Context, rows: usize, width: usize, row: &(dyn Fn(usize) + Sync)) {
    let per_task = 32_768_usize.div_ceil(width).max(1);
    context.pool().run(rows.div_ceil(per_task), &|_, task| {
        for r in task * per_task..((task + 1) * per_task).min(rows) {
            row(r);
        }
    });
}

/// # Safety
/// Instruction set as [`Isa`]; `x` and `out` are valid for `w.len()` elements and may be the same row.
#[inline(always)]
unsafe fn normalise<I: Isa, S: Sink>(x: *const f32, w: &[f32], eps: f32, out: *mut S) {
    let n = w.len();
    let full = n / I::LANES * I::LANES;
    // SAFETY: all accesses are below `n`, in whole vectors below `full` and one partial vector after it.
    unsafe {
        let mut sum = I::splat(0.0);
        let mut i = 0;
        while i < full {
            let v = I::load(x.add(i));
            sum = I::fma(v, v, sum);
            i += I::LANES;
        }
        if i < n {
            let v = I::load_n(x.add(i), n - i);
            sum = I::fma(v, v, sum);
        }
        let scale = I::splat(1.0 / (I::sum(sum) / n as f32 + eps).sqrt());
        let mut i = 0;
        while i < full {
            let v = I::mul(I::mul(I::load(x.add(i)), scale), I::load(w.as_ptr().add(i)));
            S::put::<I>(out.add(i), v, I::LANES);
            i += I::LANES;
        }
        if i < n {
            let v = I::mul(I::mul(I::load_n(x.add(i), n - i), scale), I::load_n(w.as_ptr().add(i), n - i));
            S::put::<I>(out.add(i), v, n - i);
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
                let x: Vec<f32> =
                    (0..rows * width).map(|i| ((i * 37 + 11) % 101) as f32 / 25.0 - 2.0).collect();
                let w: Vec<f32> = (0..width).map(|i| 0.5 + (i % 13) as f32 / 13.0).collect();
                let (mut out, mut low) = (vec![0.0; rows * width], vec![bf16::ZERO; rows * width]);
                rms_norm(&context, &x, &w, 1e-5, Output::F32(&mut out));
                rms_norm(&context, &x, &w, 1e-5, Output::Bf16(&mut low));
                let mut in_place = x.clone();
                rms_norm_in_place(&context, &mut in_place, &w, 1e-5);
                assert_eq!(out, in_place);
                for r in 0..rows {
                    let row = &x[r * width..(r + 1) * width];
                    let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
                    for i in 0..width {
                        let expected = f64::from(row[i]) * f64::from(w[i]) / (mean + 1e-5).sqrt();
                        let o = out[r * width + i];
                        // A sum of n squares carries at most n/2 roundings of its own relative 6e-8 into the root.
                        assert!((f64::from(o) - expected).abs() <= expected.abs() * 3e-5 + 1e-7, "{level:?}");
                        assert_eq!(low[r * width + i].to_bits(), bf16::from_f32(o).to_bits());
                    }
                }
            }
        }
    }
}
