//! Changes of element type.

#![allow(unsafe_code, reason = "vector loads and stores in caller-checked buffers")]

use anemone_tensor::DType;
use half::{bf16, f16};

use crate::Context;
use crate::matmul::MatrixView;
use crate::simd::{Element, Isa, Shared, dispatch};

/// Where a kernel's result goes, and in which type the next product wants it.
#[derive(Debug)]
pub enum Output<'a> {
    /// f32.
    F32(&'a mut [f32]),
    /// bf16, rounded to nearest even.
    Bf16(&'a mut [bf16]),
}

impl Output<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::Bf16(x) => x.len(),
        }
    }
}

/// An element kernels can write vectors of f32 to.
pub(crate) trait Sink: Copy + Send + 'static {
    /// # Safety
    /// `p` is valid for `n <= I::LANES` elements; instruction set as [`Isa`].
    unsafe fn put<I: Isa>(p: *mut Self, v: I::V, n: usize);
}

impl Sink for f32 {
    #[inline(always)]
    unsafe fn put<I: Isa>(p: *mut Self, v: I::V, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { if n == I::LANES { I::store(p, v) } else { I::store_n(p, v, n) } }
    }
}

impl Sink for bf16 {
    #[inline(always)]
    unsafe fn put<I: Isa>(p: *mut Self, v: I::V, n: usize) {
        let mut wide = [0.0f32; 16];
        // SAFETY: `wide` holds 16 >= LANES elements; `p` is valid for `n` by contract.
        unsafe {
            I::store(wide.as_mut_ptr(), v);
            let mut rounded = [0u16; 16];
            for (r, v) in rounded.iter_mut().zip(wide) {
                *r = round_bits(v);
            }
            if n == 16 {
                p.cast::<[u16; 16]>().write_unaligned(rounded);
            } else {
                std::ptr::copy_nonoverlapping(rounded.as_ptr().cast::<u8>(), p.cast::<u8>(), n * 2);
            }
        }
    }
}

/// The bf16 bits nearest to `v`, ties to even; NaN stays NaN.
#[inline(always)]
fn round_bits(v: f32) -> u16 {
    let bits = v.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    if v.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded }
}

/// Rounds `x` to bf16; lengths must be equal.
pub fn round_to_bf16(x: &[f32], out: &mut [bf16]) {
    assert_eq!(x.len(), out.len(), "lengths");
    for (o, v) in out.iter_mut().zip(x) {
        *o = bf16::from_bits(round_bits(*v));
    }
}

/// Widens the rows named of a matrix `[rows, cols]`: `out` is `[ids.len(), cols]`.
///
/// Panics when an id is not a row.
pub fn widen_rows(context: &Context, matrix: MatrixView<'_>, ids: &[u32], out: &mut [f32]) {
    let cols = matrix.cols();
    assert_eq!(out.len(), ids.len() * cols, "output length");
    assert!(ids.iter().all(|id| (*id as usize) < matrix.rows()), "rows of the matrix");
    let size = cols * matrix.dtype().size();
    let out = Shared::new(out);
    let per_task = 8_192_usize.div_ceil(cols.max(1));
    context.pool().run(ids.len().div_ceil(per_task), &|_, task| {
        let first = task * per_task;
        for (i, id) in (first..).zip(&ids[first..(first + per_task).min(ids.len())]) {
            // SAFETY: each row is one task's alone.
            let out = unsafe { out.slice(i * cols, cols) };
            if let Some(coded) = matrix.as_coded() {
                coded.expand_row(*id as usize, out);
                continue;
            }
            let bytes = &matrix.bytes()[*id as usize * size..][..size];
            let level = context.level();
            match matrix.dtype() {
                DType::F16 => dispatch!(level, widen::<I, f16>(bytes: &[u8], out: &mut [f32])),
                DType::BF16 => dispatch!(level, widen::<I, bf16>(bytes: &[u8], out: &mut [f32])),
                _ => dispatch!(level, widen::<I, f32>(bytes: &[u8], out: &mut [f32])),
            }
        }
    });
}

/// # Safety
/// Instruction set as [`Isa`]; `bytes` holds an `E` for each output, at any alignment.
#[inline(always)]
unsafe fn widen<I: Isa, E: Element>(bytes: &[u8], out: &mut [f32]) {
    let (p, len) = (bytes.as_ptr().cast::<E>(), out.len());
    for i in (0..len).step_by(I::LANES) {
        let n = (len - i).min(I::LANES);
        // SAFETY: `n` elements are left on both sides.
        unsafe {
            let v = if n == I::LANES { E::load::<I>(p.add(i)) } else { E::load_n::<I>(p.add(i), n) };
            f32::put::<I>(out.as_mut_ptr().add(i), v, n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn rounding_is_nearest_even() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let v = f32::from_bits(bits);
            let (ours, theirs) = (bf16::from_bits(round_bits(v)), bf16::from_f32(v));
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
        assert_eq!(round_bits(f32::from_bits(0x3f80_8000)), 0x3f80, "tie to even, down");
        assert_eq!(round_bits(f32::from_bits(0x3f81_8000)), 0x3f82, "tie to even, up");
    }

    #[test]
    fn rows_widen() {
        let (rows, cols) = (5, 37);
        let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 - 60.0) / 8.0).collect();
        let half: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let brain: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        let full: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let ids = [3, 0, 3, 4];
        // All values are exact in every type.
        let expected: Vec<f32> =
            ids.iter().flat_map(|id| &values[*id as usize * cols..][..cols]).copied().collect();
        for &level in Level::available() {
            for (dtype, bytes) in [(DType::F16, &half), (DType::BF16, &brain), (DType::F32, &full)] {
                let matrix = MatrixView::from_bytes(dtype, bytes, rows, cols).unwrap();
                let mut out = vec![f32::NAN; ids.len() * cols];
                widen_rows(&Context::with_level(2, level), matrix, &ids, &mut out);
                assert_eq!(out, expected, "{level:?} {dtype}");
            }
        }
    }
}
