//! f32 products on every level.

use anemone_tensor::DType;
use half::{bf16, f16};

use super::{Rows, sums, tiles};
use crate::Level;
use crate::simd::{Element, Isa, dispatch};

pub(super) fn run(level: Level, rows: &Rows<'_>, x: &[f32]) {
    match rows.dtype {
        DType::F16 => dispatch!(level, each::<I, f16>(rows: &Rows<'_>, x: &[f32])),
        DType::BF16 => dispatch!(level, each::<I, bf16>(rows: &Rows<'_>, x: &[f32])),
        _ => dispatch!(level, each::<I, f32>(rows: &Rows<'_>, x: &[f32])),
    }
}

/// # Safety
/// Instruction set as [`Isa`]; `rows.data` holds `count * cols` elements of `W`.
#[inline(always)]
unsafe fn each<I: Isa, W: Element>(rows: &Rows<'_>, x: &[f32]) {
    debug_assert_eq!(rows.data.len(), rows.count * rows.cols * size_of::<W>());
    // SAFETY: tiles stay inside `count` rows and `tokens` tokens.
    unsafe {
        if I::LANES == 16 {
            tiles!(rows, x, 2, tile<I, W>);
        } else {
            tiles!(rows, x, 4, tile<I, W>);
        }
    }
}

/// # Safety
/// As [`each`]; `r + R <= count`, `t + T <= tokens`.
#[inline(always)]
unsafe fn tile<I: Isa, W: Element, const R: usize, const T: usize>(
    rows: &Rows<'_>,
    x: &[f32],
    r: usize,
    stride: usize,
    t: usize,
) {
    let cols = rows.cols;
    // SAFETY: every pointer stays inside the rows and tokens named by the contract; loads allow any alignment.
    unsafe {
        let w = rows.data.as_ptr().cast::<W>().add(r * cols);
        let x = x.as_ptr().add(t * cols);
        let mut acc = [[I::splat(0.0); R]; T];
        let full = cols / I::LANES * I::LANES;
        let mut k = 0;
        while k < full {
            let mut wv = [I::splat(0.0); R];
            for (i, v) in wv.iter_mut().enumerate() {
                *v = W::load::<I>(w.add(i * stride * cols + k));
            }
            for (j, acc) in acc.iter_mut().enumerate() {
                let xv = I::load(x.add(j * cols + k));
                for (a, w) in acc.iter_mut().zip(wv) {
                    *a = I::fma(w, xv, *a);
                }
            }
            k += I::LANES;
        }
        if k < cols {
            let n = cols - k;
            for (j, acc) in acc.iter_mut().enumerate() {
                let xv = I::load_n(x.add(j * cols + k), n);
                for (i, a) in acc.iter_mut().enumerate() {
                    *a = I::fma(W::load_n::<I>(w.add(i * stride * cols + k), n), xv, *a);
                }
            }
        }
        for (j, acc) in acc.iter().enumerate() {
            rows.put::<R>(t + j, r, stride, &sums::<I, R>(acc));
        }
    }
}
