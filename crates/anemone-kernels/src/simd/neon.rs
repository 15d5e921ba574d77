#![allow(clippy::wildcard_imports, reason = "the intrinsics of one instruction set")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "every method is covered by the contract of `Isa`")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::Isa;

/// NEON, part of every 64-bit Arm.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

// SAFETY: the methods use NEON only, which every aarch64 target has.
unsafe impl Isa for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(v: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(v) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> float32x4_t {
        let mut lanes = [0.0f32; 4];
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), lanes.as_mut_ptr().cast::<u8>(), n * 4);
            vld1q_f32(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> float32x4_t {
        let wide: float32x4_t;
        unsafe {
            let narrow = vld1_u16(p);
            // FCVTL is in the base instruction set; its intrinsic needs a type that is not stable yet.
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) narrow, options(pure, nomem, nostack, preserves_flags));
        }
        wide
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: float32x4_t, n: usize) {
        let mut lanes = [0.0f32; 4];
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr().cast::<u8>(), p.cast::<u8>(), n * 4);
        }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmaxq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vminq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn round(v: float32x4_t) -> float32x4_t {
        unsafe { vrndnq_f32(v) }
    }
    #[inline(always)]
    unsafe fn scale2(v: float32x4_t, n: float32x4_t) -> float32x4_t {
        unsafe {
            let bits = vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)));
            vmulq_f32(v, vreinterpretq_f32_s32(bits))
        }
    }
    #[inline(always)]
    unsafe fn sum4([a, b, c, d]: [float32x4_t; 4]) -> [f32; 4] {
        unsafe {
            let mut sums = [0.0f32; 4];
            vst1q_f32(sums.as_mut_ptr(), vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
            sums
        }
    }
    #[inline(always)]
    fn prefetch(p: *const u8) {
        // A prefetch never faults.
        unsafe {
            std::arch::asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }
    #[inline(always)]
    unsafe fn max_lane(v: float32x4_t) -> f32 {
        unsafe { vmaxvq_f32(v) }
    }
}
