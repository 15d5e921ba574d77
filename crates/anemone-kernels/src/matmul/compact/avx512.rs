//! Groups of 64 compact weights to two vectors of 32 bf16.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_loadu_si256,
    _mm256_set1_epi16, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_broadcast_i64x4, _mm512_dpbf16_ps,
    _mm512_inserti64x4, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_srlv_epi16, _mm512_storeu_si512, _mm512_unpackhi_epi8, _mm512_unpacklo_epi8,
};
use std::mem::MaybeUninit;

use half::bf16;

use super::{GROUP, GROUP_BYTES, Patch};
use crate::simd::Isa;
use crate::simd::avx512::Avx512;

/// Bytes prefetched ahead.
const AHEAD: usize = 1 << 10;

/// # Safety
/// The machine has AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn table_of(table: &[u8; 16]) -> __m512i {
    // SAFETY: sixteen bytes are there; no alignment is asked for.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())) }
}

/// The first and second 32 weights of a group.
///
/// # Safety
/// The machine has AVX-512 F and BW; `group` is valid for a group's bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn group(group: *const u8, table: __m512i) -> [__m512i; 2] {
    // SAFETY: loads stay inside the group, at any alignment.
    unsafe {
        let codes = _mm512_broadcast_i64x4(_mm256_loadu_si256(group.add(GROUP).cast()));
        let shift = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
        let codes = _mm512_and_si512(_mm512_srlv_epi16(codes, shift), _mm512_set1_epi8(0xf));
        let (low, high) = (_mm512_loadu_si512(group.cast()), _mm512_shuffle_epi8(table, codes));
        [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)]
    }
}

/// Writes all of `out`: the weights of whole groups.
///
/// # Safety
/// The machine has AVX-512 F and BW; `data` holds a group for each 64 elements of `out`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn expand(data: &[u8], table: &[u8; 16], out: &mut [MaybeUninit<u16>], ahead: &[u8]) {
    // SAFETY: the caller's contract; stores stay inside 64 elements; a prefetch may point anywhere.
    unsafe {
        let table = table_of(table);
        let groups = data.chunks_exact(GROUP_BYTES).zip(out.chunks_exact_mut(GROUP));
        for (i, (data, out)) in groups.enumerate() {
            if i * 64 < ahead.len() {
                _mm_prefetch::<_MM_HINT_T0>(ahead.as_ptr().add(i * 64).cast());
            }
            let [low, high] = group(data.as_ptr(), table);
            _mm512_storeu_si512(out.as_mut_ptr().cast(), low);
            _mm512_storeu_si512(out.as_mut_ptr().add(32).cast(), high);
        }
    }
}

/// Adds the products of whole groups of a row, in order.
///
/// # Safety
/// The machine has AVX-512 F, BW and BF16; `x` is valid for a value of each weight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn add(mut total: __m512, data: &[u8], table: __m512i, mut x: *const bf16) -> __m512 {
    // SAFETY: loads stay inside a group and its 64 values; a prefetch may point anywhere.
    unsafe {
        for data in data.chunks_exact(GROUP_BYTES) {
            // The rows that follow lie behind these.
            _mm_prefetch::<_MM_HINT_T0>(data.as_ptr().wrapping_add(AHEAD).cast());
            _mm_prefetch::<_MM_HINT_T0>(data.as_ptr().wrapping_add(AHEAD + 64).cast());
            total = add_words(total, group(data.as_ptr(), table), x);
            x = x.add(GROUP);
        }
    }
    total
}

/// # Safety
/// The machine has AVX-512 F and BF16; `x` is valid for 64 values.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn add_words(total: __m512, [low, high]: [__m512i; 2], x: *const bf16) -> __m512 {
    let operand = |v: __m512i| -> __m512bh {
        // SAFETY: both are 512 plain bits.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(v) }
    };
    // SAFETY: the caller's contract.
    unsafe {
        let total = _mm512_dpbf16_ps(total, operand(low), operand(_mm512_loadu_si512(x.cast())));
        _mm512_dpbf16_ps(total, operand(high), operand(_mm512_loadu_si512(x.add(32).cast())))
    }
}

/// The products of a group with its patches.
///
/// # Safety
/// As [`add`], for one group.
#[cold]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn add_patched(
    total: __m512,
    data: &[u8],
    table: __m512i,
    x: *const bf16,
    patches: &[Patch],
) -> __m512 {
    let mut words = [0u16; GROUP];
    // SAFETY: the words are a group's, and so are the values.
    unsafe {
        let [low, high] = group(data.as_ptr(), table);
        _mm512_storeu_si512(words.as_mut_ptr().cast(), low);
        _mm512_storeu_si512(words.as_mut_ptr().add(32).cast(), high);
        for patch in patches {
            patch.apply(&mut words[patch.col as usize % GROUP]);
        }
        let [low, high] = [0, 32].map(|i| _mm512_loadu_si512(words.as_ptr().add(i).cast()));
        add_words(total, [low, high], x)
    }
}

/// The products of consecutive rows, at most four, and a token: the sums the tiles make of the same rows expanded, to the bit.
///
/// # Safety
/// The machine has AVX-512 F, BW, VL and BF16; `rows` holds a row of `x.len()` weights, a multiple of 64, for each of `out`, and
/// `starts` one more than that.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn dot(
    rows: &[u8],
    table: &[u8; 16],
    (patches, starts): (&[Patch], &[u32]),
    x: &[bf16],
    out: &mut [f32],
) {
    let row_bytes = x.len() / GROUP * GROUP_BYTES;
    debug_assert_eq!(rows.len(), row_bytes * out.len());
    // SAFETY: the caller's contract; the columns of patches are below the length of a row.
    unsafe {
        let table = table_of(table);
        let mut sums = [_mm512_setzero_ps(); 4];
        // One row after the other, so that memory is read in order; only the sums of the lanes are shared.
        let all = rows.chunks_exact(row_bytes).zip(starts.windows(2));
        for ((data, starts), sum) in all.zip(&mut sums) {
            let patches = &patches[starts[0] as usize..starts[1] as usize];
            let (mut total, mut from) = (_mm512_setzero_ps(), 0);
            for patches in patches.chunk_by(|a, b| a.col as usize / GROUP == b.col as usize / GROUP) {
                let at = patches[0].col as usize / GROUP;
                let (before, group) = (from * GROUP_BYTES..at * GROUP_BYTES, &data[at * GROUP_BYTES..]);
                total = add(total, &data[before], table, x.as_ptr().add(from * GROUP));
                total = add_patched(total, &group[..GROUP_BYTES], table, x.as_ptr().add(at * GROUP), patches);
                from = at + 1;
            }
            *sum = add(total, &data[from * GROUP_BYTES..], table, x.as_ptr().add(from * GROUP));
        }
        out.copy_from_slice(&Avx512::sum4(sums)[..out.len()]);
    }
}
