//! The Arm BF16 instructions; their intrinsics are not stable yet.

use std::arch::aarch64::{float32x4_t, uint16x8_t, vdupq_n_u32, vld1q_u16, vreinterpretq_u16_u32, vst1q_u16};
use std::arch::asm;

use half::bf16;

use super::Pairs;
use crate::simd::neon::Neon;

/// NEON with the BF16 extension.
#[derive(Clone, Copy)]
pub(crate) struct NeonBf16;

// SAFETY: the methods use NEON and BF16, which the contract guarantees; partial accesses go through a buffer.
unsafe impl Pairs for NeonBf16 {
    type I = Neon;
    type P = uint16x8_t;

    #[inline(always)]
    unsafe fn load(p: *const bf16) -> uint16x8_t {
        // SAFETY: the caller's contract.
        unsafe { vld1q_u16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const bf16, n: usize) -> uint16x8_t {
        let mut lanes = [0u16; 8];
        // SAFETY: `p` is valid for `n <= 8` elements.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), lanes.as_mut_ptr().cast::<u8>(), n * 2);
            vld1q_u16(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn spread(p: *const bf16) -> uint16x8_t {
        // SAFETY: the caller's contract.
        unsafe { vreinterpretq_u16_u32(vdupq_n_u32(p.cast::<u32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut bf16, v: uint16x8_t, n: usize) {
        let mut lanes = [0u16; 8];
        // SAFETY: `p` is valid for `n <= 8` elements.
        unsafe {
            vst1q_u16(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr().cast::<u8>(), p.cast::<u8>(), n * 2);
        }
    }
    #[inline(always)]
    unsafe fn round(low: float32x4_t, high: float32x4_t) -> uint16x8_t {
        let out: uint16x8_t;
        // SAFETY: two conversions between registers.
        unsafe {
            asm!(
                ".arch_extension bf16",
                "bfcvtn {out:v}.4h, {low:v}.4s",
                "bfcvtn2 {out:v}.8h, {high:v}.4s",
                out = out(vreg) out,
                low = in(vreg) low,
                high = in(vreg) high,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        out
    }
    #[inline(always)]
    unsafe fn dot(sum: float32x4_t, w: uint16x8_t, x: uint16x8_t) -> float32x4_t {
        let mut sum = sum;
        // SAFETY: arithmetic between registers.
        unsafe {
            asm!(
                ".arch_extension bf16",
                "bfdot {sum:v}.4s, {w:v}.8h, {x:v}.8h",
                sum = inout(vreg) sum,
                w = in(vreg) w,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }
}
