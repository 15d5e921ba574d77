//! Indices of four bits by shuffles within 16 bytes. Wider ones look their words up in memory, which is near.

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm_storeu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set1_epi8,
    _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
};
use std::mem::MaybeUninit;

use super::Planes;

/// Writes whole groups of 64 from the front; gives the number of elements.
///
/// # Safety
/// The machine has AVX2; `indices` holds one of four bits for each element of `out`.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn expand_nibbles(indices: &[u8], planes: &Planes, out: &mut [MaybeUninit<u16>]) -> usize {
    let whole = out.len() / 64;
    debug_assert!(indices.len() >= whole * 32);
    // SAFETY: tables hold sixteen entries; a group's 32 bytes and 64 elements are there.
    unsafe {
        let table = |plane: &[u8]| _mm256_broadcastsi128_si256(_mm_loadu_si128(plane.as_ptr().cast()));
        let (low, high) = (table(&planes.low), table(&planes.high));
        let nibble = _mm256_set1_epi8(0xf);
        for g in 0..whole {
            let stored = _mm256_loadu_si256(indices.as_ptr().add(g * 32).cast());
            let (even, odd) =
                (_mm256_and_si256(stored, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(stored), nibble));
            let out = out.as_mut_ptr().add(g * 64);
            // Lower lanes hold elements 0–31, upper ones 32–63.
            for (i, index) in
                [_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd)].into_iter().enumerate()
            {
                let (l, h) = (_mm256_shuffle_epi8(low, index), _mm256_shuffle_epi8(high, index));
                store(out.add(16 * i), _mm256_unpacklo_epi8(l, h));
                store(out.add(16 * i + 8), _mm256_unpackhi_epi8(l, h));
            }
        }
    }
    whole * 64
}

/// Writes the lower eight words at `out`, the upper ones 32 elements on.
///
/// # Safety
/// The machine has AVX2; both places are valid.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(out: *mut MaybeUninit<u16>, words: __m256i) {
    // SAFETY: the caller's contract.
    unsafe {
        _mm_storeu_si128(out.cast(), _mm256_castsi256_si128(words));
        _mm_storeu_si128(out.add(32).cast(), _mm256_extracti128_si256::<1>(words));
    }
}
