//! Groups of 64 compact weights to two vectors of 32 bf16.

use std::arch::x86_64::{
    __m256i, __m512bh, __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_shuffle_epi8,
    _mm256_srli_epi16, _mm512_cvtepu8_epi16, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_or_si512,
    _mm512_setzero_ps, _mm512_slli_epi16, _mm512_storeu_si512,
};
use std::mem::MaybeUninit;

use half::bf16;

use super::{GROUP, GROUP_BYTES};
use crate::simd::Isa;
use crate::simd::avx512::Avx512;

/// Bytes prefetched ahead.
const AHEAD: usize = 1 << 10;

/// # Safety
/// The machine has AVX-512 F, BW and VL.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
unsafe fn table_of(table: &[u8; 16]) -> __m256i {
    // SAFETY: sixteen bytes are there; no alignment is asked for.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) }
}

/// The first and second 32 weights of a group.
///
/// # Safety
/// The machine has AVX-512 F, BW and VL; `group` is valid for a group's bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
unsafe fn group(group: *const u8, table: __m256i) -> [__m512i; 2] {
    // SAFETY: loads stay inside the group, at any alignment.
    unsafe {
        let codes = _mm256_loadu_si256(group.add(GROUP).cast());
        let half = _mm256_set1_epi8(0xf);
        let words = |low: *const u8, codes: __m256i| {
            let low = _mm512_cvtepu8_epi16(_mm256_loadu_si256(low.cast()));
            let high = _mm512_cvtepu8_epi16(_mm256_shuffle_epi8(table, codes));
            _mm512_or_si512(low, _mm512_slli_epi16::<8>(high))
        };
        [
            words(group, _mm256_and_si256(codes, half)),
            words(group.add(32), _mm256_and_si256(_mm256_srli_epi16::<4>(codes), half)),
        ]
    }
}

/// Writes all of `out`: the weights of whole groups.
///
/// # Safety
/// The machine has AVX-512 F, BW and VL; `data` holds a group for each 64 elements of `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
pub(super) unsafe fn expand(data: &[u8], table: &[u8; 16], out: &mut [MaybeUninit<u16>]) {
    // SAFETY: the caller's contract; stores stay inside 64 elements.
    unsafe {
        let table = table_of(table);
        for (data, out) in data.chunks_exact(GROUP_BYTES).zip(out.chunks_exact_mut(GROUP)) {
            let [low, high] = group(data.as_ptr(), table);
            _mm512_storeu_si512(out.as_mut_ptr().cast(), low);
            _mm512_storeu_si512(out.as_mut_ptr().add(32).cast(), high);
        }
    }
}

/// The products of `R` consecutive rows and a token: the sums the tiles make of the same rows expanded, to the bit.
///
/// # Safety
/// The machine has AVX-512 F, BW, VL and BF16; `rows` holds `R` rows of `x.len()` weights, a multiple of 64. `R` is at most 4.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn dot<const R: usize>(rows: &[u8], table: &[u8; 16], x: &[bf16], out: &mut [f32]) {
    let row_bytes = rows.len() / R;
    debug_assert_eq!(row_bytes / GROUP_BYTES * GROUP, x.len());
    let operand = |v: __m512i| -> __m512bh {
        // SAFETY: both are 512 plain bits.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(v) }
    };
    // SAFETY: the caller's contract; loads stay inside a group and its 64 values.
    unsafe {
        let table = table_of(table);
        let mut sums = [_mm512_setzero_ps(); 4];
        // One row after the other, so that memory is read in order; only the sums of the lanes are shared.
        for (data, sum) in rows.chunks_exact(row_bytes).zip(&mut sums) {
            let (mut total, mut x) = (_mm512_setzero_ps(), x.as_ptr());
            for data in data.chunks_exact(GROUP_BYTES) {
                // The rows that follow lie behind these; a prefetch may point anywhere.
                _mm_prefetch::<_MM_HINT_T0>(data.as_ptr().wrapping_add(AHEAD).cast());
                _mm_prefetch::<_MM_HINT_T0>(data.as_ptr().wrapping_add(AHEAD + 64).cast());
                let [low, high] = group(data.as_ptr(), table);
                total = _mm512_dpbf16_ps(total, operand(low), operand(_mm512_loadu_si512(x.cast())));
                total = _mm512_dpbf16_ps(total, operand(high), operand(_mm512_loadu_si512(x.add(32).cast())));
                x = x.add(GROUP);
            }
            *sum = total;
        }
        out.copy_from_slice(&Avx512::sum4(sums)[..R]);
    }
}
