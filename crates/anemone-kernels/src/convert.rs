//! Changes of element type.

#![allow(unsafe_code, reason = "vector stores into caller-checked buffers")]

use anemone_tensor::DType;
use half::{bf16, f16};

use crate::simd::Isa;

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

/// Widens one row of stored floats to f32; `bytes` must hold `out.len()` elements of a floating `dtype`.
pub fn widen_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * dtype.size(), "row length");
    match dtype {
        DType::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        DType::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        DType::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        other => panic!("{other} is not a floating type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut out = [0.0; 2];
        widen_row(DType::F16, &[0x00, 0x3c, 0x00, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.0]);
        widen_row(DType::BF16, &[0x80, 0x3f, 0x00, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.0]);
    }
}
