//! bf16 products summed in f32, where the machine has an instruction for them. Wider weights are rounded on the way.

#![allow(
    clippy::large_stack_arrays,
    reason = "128 KiB, a sixteenth of the smallest stack this runs on; kernels do not allocate"
)]

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use anemone_tensor::DType;
use half::{bf16, f16};

use super::tile::{Dot, Rows, TILE_ROWS, each};
use crate::Level;
use crate::simd::pairs::{Pairs, dispatch_pairs};
use crate::simd::{Element, Isa};

/// Elements of the buffer that holds rounded weights, so that a row used by many tokens is rounded once.
const BUFFER: usize = 64 << 10;

pub(super) fn run(level: Level, rows: &Rows<'_>, x: &[bf16]) {
    dispatch_pairs!(level, run_on::<M>(rows: &Rows<'_>, x: &[bf16]));
}

/// Rounds stored floats to bf16; lengths must be equal.
pub(crate) fn round_stored(level: Level, dtype: DType, stored: &[u8], out: &mut [bf16]) {
    assert_eq!(stored.len(), out.len() * dtype.size(), "lengths");
    dispatch_pairs!(level, round_on::<M>(dtype: DType, stored: &[u8], out: &mut [bf16]));
}

/// # Safety
/// As [`Pairs`]; `stored` has as many elements of the type as `out`.
#[inline(always)]
#[allow(clippy::cast_ptr_alignment, reason = "loads allow any alignment")]
unsafe fn round_on<M: Pairs>(dtype: DType, stored: &[u8], out: &mut [bf16]) {
    let (n, to) = (out.len(), out.as_mut_ptr());
    // SAFETY: the caller's contract.
    unsafe {
        match dtype {
            DType::BF16 => std::ptr::copy_nonoverlapping(stored.as_ptr(), to.cast(), stored.len()),
            DType::F16 => round_all::<M, f16>(stored.as_ptr().cast(), n, to),
            _ => round_all::<M, f32>(stored.as_ptr().cast(), n, to),
        }
    }
}

/// # Safety
/// As [`each`].
#[inline(always)]
unsafe fn run_on<M: Pairs>(rows: &Rows<'_>, x: &[bf16]) {
    // SAFETY: the caller's contract; the element type is the rows' own.
    unsafe {
        match rows.dtype {
            DType::BF16 => streams::<M, Stored>(rows, x),
            DType::F16 => rounded::<M, f16>(rows, x),
            _ => rounded::<M, f32>(rows, x),
        }
    }
}

/// # Safety
/// As [`each`].
#[inline(always)]
unsafe fn streams<M: Pairs, W: Source>(rows: &Rows<'_>, x: &[bf16]) {
    // SAFETY: the caller's contract.
    unsafe {
        // One stream hides the latency of a sum where a vector is a whole cache line.
        if rows.sequential && M::I::LANES == 16 {
            each::<Bf16Dot<M, W>, 1>(rows, x);
        } else {
            each::<Bf16Dot<M, W>, 4>(rows, x);
        }
    }
}

/// Rounds rows to bf16 block by block when several tokens use them; the result is the same either way.
///
/// # Safety
/// As [`each`].
#[inline(always)]
unsafe fn rounded<M: Pairs, W: Element + Source<Weight = W>>(rows: &Rows<'_>, x: &[bf16]) {
    let per_block = BUFFER / rows.cols.max(1) / TILE_ROWS * TILE_ROWS;
    if rows.tokens < 3 || per_block == 0 {
        // SAFETY: the caller's contract.
        return unsafe { streams::<M, W>(rows, x) };
    }
    let mut buffer = [const { MaybeUninit::<bf16>::uninit() }; BUFFER];
    let row_bytes = rows.cols * size_of::<W>();
    let mut first = 0;
    while first < rows.count {
        let count = per_block.min(rows.count - first);
        let data = &rows.data[first * row_bytes..(first + count) * row_bytes];
        let n = count * rows.cols;
        // SAFETY: `data` holds `n` elements and the buffer at least as many; exactly the first `n` are read afterwards.
        let block = unsafe {
            round_all::<M, W>(data.as_ptr().cast(), n, buffer.as_mut_ptr().cast());
            std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), n * 2)
        };
        let block =
            Rows { data: block, dtype: DType::BF16, count, out_start: rows.out_start + first, ..*rows };
        // SAFETY: the block holds `count * cols` bf16.
        unsafe { streams::<M, Stored>(&block, x) };
        first += count;
    }
}

/// # Safety
/// As [`Dot`]; both pointers are valid for `n` elements.
#[inline(always)]
unsafe fn round_all<M: Pairs, W: Source<Weight = W>>(w: *const W, n: usize, out: *mut bf16) {
    let step = 2 * M::I::LANES;
    let mut i = 0;
    while i < n {
        let m = (n - i).min(step);
        // SAFETY: `m` elements are left on both sides.
        unsafe {
            let v = if m == step { W::operand::<M>(w.add(i)) } else { W::operand_n::<M>(w.add(i), m) };
            M::store_n(out.add(i), v, m);
        }
        i += m;
    }
}

/// Weights that become operands.
trait Source: Copy {
    type Weight: Copy;

    /// # Safety
    /// As [`Dot::weight`].
    unsafe fn operand<M: Pairs>(p: *const Self::Weight) -> M::P;
    /// # Safety
    /// As [`Dot::weight_n`].
    unsafe fn operand_n<M: Pairs>(p: *const Self::Weight, n: usize) -> M::P;
}

/// Weights that are bf16 already.
#[derive(Clone, Copy)]
struct Stored;

impl Source for Stored {
    type Weight = bf16;

    #[inline(always)]
    unsafe fn operand<M: Pairs>(p: *const bf16) -> M::P {
        // SAFETY: the caller's contract.
        unsafe { M::load(p) }
    }
    #[inline(always)]
    unsafe fn operand_n<M: Pairs>(p: *const bf16, n: usize) -> M::P {
        // SAFETY: the caller's contract.
        unsafe { M::load_n(p, n) }
    }
}

macro_rules! rounding {
    ($t:ty) => {
        impl Source for $t {
            type Weight = $t;

            #[inline(always)]
            unsafe fn operand<M: Pairs>(p: *const $t) -> M::P {
                // SAFETY: the caller's contract covers both halves.
                unsafe { M::round(<$t>::load::<M::I>(p), <$t>::load::<M::I>(p.add(M::I::LANES))) }
            }
            #[inline(always)]
            unsafe fn operand_n<M: Pairs>(p: *const $t, n: usize) -> M::P {
                let low = n.min(M::I::LANES);
                // SAFETY: `low` and the rest add up to `n`; a load of nothing touches nothing, so `p.add(low)` may be one past the end.
                unsafe { M::round(<$t>::load_n::<M::I>(p, low), <$t>::load_n::<M::I>(p.add(low), n - low)) }
            }
        }
    };
}
rounding!(f16);
rounding!(f32);

/// Weights of source `W` multiplied by the instruction `M`.
#[derive(Clone, Copy)]
struct Bf16Dot<M, W>(PhantomData<(M, W)>);

// SAFETY: the methods are those of `Pairs` and `Source`, under the same contract.
unsafe impl<M: Pairs, W: Source> Dot for Bf16Dot<M, W> {
    type I = M::I;
    type Operand = M::P;
    type Weight = W::Weight;
    type Activation = bf16;
    const STEP: usize = 2 * M::I::LANES;

    #[inline(always)]
    unsafe fn weight(p: *const W::Weight) -> M::P {
        // SAFETY: the caller's contract.
        unsafe { W::operand::<M>(p) }
    }
    #[inline(always)]
    unsafe fn weight_n(p: *const W::Weight, n: usize) -> M::P {
        // SAFETY: the caller's contract.
        unsafe { W::operand_n::<M>(p, n) }
    }
    #[inline(always)]
    unsafe fn activation(p: *const bf16) -> M::P {
        // SAFETY: the caller's contract.
        unsafe { M::load(p) }
    }
    #[inline(always)]
    unsafe fn activation_n(p: *const bf16, n: usize) -> M::P {
        // SAFETY: the caller's contract.
        unsafe { M::load_n(p, n) }
    }
    #[inline(always)]
    unsafe fn add(sum: <M::I as Isa>::V, w: M::P, x: M::P) -> <M::I as Isa>::V {
        // SAFETY: the caller's contract.
        unsafe { M::dot(sum, w, x) }
    }
}
