//! The AVX-512 BF16 instructions.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_si512,
    _mm512_mask_storeu_epi16, _mm512_maskz_loadu_epi16, _mm512_set1_epi32,
};

use half::bf16;

use super::Pairs;
use crate::simd::avx512::Avx512;

/// AVX-512 with the BF16 extension.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16;

fn mask(n: usize) -> u32 {
    ((1u64 << n) - 1) as u32
}

// SAFETY: the methods use AVX-512 F, BW and BF16, which the contract guarantees; masks keep partial accesses inside `n`.
unsafe impl Pairs for Avx512Bf16 {
    type I = Avx512;
    type P = __m512bh;

    #[inline(always)]
    unsafe fn load(p: *const bf16) -> __m512bh {
        // SAFETY: the caller's contract; both vector types are 512 plain bits.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const bf16, n: usize) -> __m512bh {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_maskz_loadu_epi16(mask(n), p.cast())) }
    }
    #[inline(always)]
    unsafe fn spread(p: *const bf16) -> __m512bh {
        // SAFETY: the caller's contract; both vector types are 512 plain bits.
        unsafe {
            std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(p.cast::<i32>().read_unaligned()))
        }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut bf16, v: __m512bh, n: usize) {
        // SAFETY: as above.
        unsafe { _mm512_mask_storeu_epi16(p.cast(), mask(n), std::mem::transmute::<__m512bh, __m512i>(v)) }
    }
    #[inline(always)]
    unsafe fn round(low: __m512, high: __m512) -> __m512bh {
        // SAFETY: arithmetic on vectors only.
        unsafe { _mm512_cvtne2ps_pbh(high, low) }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512, w: __m512bh, x: __m512bh) -> __m512 {
        // SAFETY: arithmetic on vectors only.
        unsafe { _mm512_dpbf16_ps(sum, w, x) }
    }
}
