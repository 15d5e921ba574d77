//! f32 products on every level.

use std::marker::PhantomData;

use anemone_tensor::DType;
use half::{bf16, f16};

use super::tile::{Dot, Rows, each};
use crate::Level;
use crate::simd::{Element, Isa, dispatch};

pub(super) fn run(level: Level, rows: &Rows<'_>, x: &[f32]) {
    match rows.dtype {
        DType::F16 => dispatch!(level, all::<I, f16>(rows: &Rows<'_>, x: &[f32])),
        DType::BF16 => dispatch!(level, all::<I, bf16>(rows: &Rows<'_>, x: &[f32])),
        _ => dispatch!(level, all::<I, f32>(rows: &Rows<'_>, x: &[f32])),
    }
}

/// # Safety
/// As [`each`].
#[inline(always)]
unsafe fn all<I: Isa, W: Element>(rows: &Rows<'_>, x: &[f32]) {
    // SAFETY: the caller's contract. Narrow vectors need more rows at once to hide the latency of a sum.
    unsafe {
        if I::LANES == 16 {
            each::<F32Dot<I, W>, 2>(rows, x);
        } else {
            each::<F32Dot<I, W>, 4>(rows, x);
        }
    }
}

/// Weights of type `W` widened to f32.
#[derive(Clone, Copy)]
struct F32Dot<I, W>(PhantomData<(I, W)>);

// SAFETY: the methods are those of `Isa` and `Element`, under the same contract.
unsafe impl<I: Isa, W: Element> Dot for F32Dot<I, W> {
    type I = I;
    type Operand = I::V;
    type Weight = W;
    type Activation = f32;
    const STEP: usize = I::LANES;

    #[inline(always)]
    unsafe fn weight(p: *const W) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { W::load::<I>(p) }
    }
    #[inline(always)]
    unsafe fn weight_n(p: *const W, n: usize) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { W::load_n::<I>(p, n) }
    }
    #[inline(always)]
    unsafe fn activation(p: *const f32) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { I::load(p) }
    }
    #[inline(always)]
    unsafe fn activation_n(p: *const f32, n: usize) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { I::load_n(p, n) }
    }
    #[inline(always)]
    unsafe fn add(sum: I::V, w: I::V, x: I::V) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { I::fma(w, x, sum) }
    }
}
