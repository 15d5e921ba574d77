//! A single token against indices, which become words in registers alone.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_dpbf16_ps, _mm512_loadu_si512,
    _mm512_maskz_loadu_epi16, _mm512_maskz_mov_epi16, _mm512_setzero_ps,
};

use anemone_tensor::{DType, Segment};
use half::bf16;

use super::avx512::{Chunk, Few, GROUP, Lookup, Many, Nibbles, Sixes, has_shuffles};
use super::woven::TURNS;
use super::{Band, Table};
use crate::Level;
use crate::simd::Isa;
use crate::simd::avx512::Avx512;

/// Bytes prefetched ahead: the rows that follow lie behind these.
const AHEAD: usize = 4 << 10;
/// Segments of a band, at most.
const SEGMENTS: usize = 4;

/// Whether a band's rows can be multiplied without being expanded: each row begins with a byte, and each segment where a step does.
pub(super) fn is_direct(band: &[Segment]) -> bool {
    let (last, before) = band.split_last().expect("bands have segments");
    let whole = |s: &Segment| (s.cols() * s.bits() as usize).is_multiple_of(8);
    band.len() <= SEGMENTS
        && whole(last)
        && before.iter().all(|s| whole(s) && s.cols().is_multiple_of(GROUP / 2))
        && has_shuffles()
}

/// The products of rows `first..` of a band and a token: the sums the tiles make of the same rows expanded, to the bit.
///
/// # Safety
/// The machine has AVX-512 with VBMI and BF16; the band is [`is_direct`], has a row for each of `out`, and as many columns as `x`
/// values.
pub(super) unsafe fn dot(level: Level, band: Band<'_>, first: usize, x: &[bf16], out: &mut [f32]) {
    let mut tables = [const { Table::new() }; SEGMENTS];
    // Rows one after the other are one stream; two hide each other's latency where there is less to read.
    let few_bits = band.segments.iter().all(|s| s.bits() <= 4);
    let at_once = if few_bits { 2 } else { 1 };
    let (mut row, end) = (first, first + out.len());
    while row < end {
        // The rows up to the next change of a table.
        let next = |s: &Segment| (row / s.group() + 1) * s.group();
        let until = band.segments.iter().map(next).min().unwrap_or(end).min(end);
        for (table, segment) in tables.iter_mut().zip(band.segments) {
            table.fill(level, segment.table(row), DType::BF16);
        }
        while row < until {
            let turn = band.segments.iter().any(|s| band.turns(s, row)) && row.is_multiple_of(TURNS);
            let n = if turn && until - row >= TURNS { TURNS } else { at_once.min(until - row) };
            let out = &mut out[row - first..][..n];
            // SAFETY: the caller's contract.
            unsafe {
                match n {
                    1 => rows::<1>(band, &tables, row, x, out),
                    2 => rows::<2>(band, &tables, row, x, out),
                    _ => rows::<TURNS>(band, &tables, row, x, out),
                }
            }
            row += n;
        }
    }
}

/// # Safety
/// As [`dot`]; `R` rows from `row` on, of which each segment's have the table given. All rows that take turns, or one of them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16,avx2,fma,f16c")]
unsafe fn rows<const R: usize>(
    band: Band<'_>,
    tables: &[Table; SEGMENTS],
    row: usize,
    x: &[bf16],
    out: &mut [f32],
) {
    let mut sums = [_mm512_setzero_ps(); R];
    let mut x = x.as_ptr();
    for (segment, table) in band.segments.iter().zip(tables) {
        let (cols, bits) = (segment.cols(), segment.bits() as usize);
        let row_bytes = cols * bits / 8;
        // SAFETY: the rows' indices are there, and a value for each column.
        unsafe {
            if band.turns(segment, row) {
                let block = &segment.indices()[row / TURNS * TURNS * row_bytes..][..TURNS * row_bytes];
                let turn = row % TURNS;
                match bits {
                    4 => add_woven(&Nibbles::new(table), block, turn, x, &mut sums),
                    6 => add_woven(&Sixes::new(table), block, turn, x, &mut sums),
                    _ => add_woven(&Many::new(&table.planes), block, turn, x, &mut sums),
                }
            } else {
                let data = &segment.indices()[row * row_bytes..(row + R) * row_bytes];
                if bits == 8 {
                    add(&Many::new(&table.planes), data, cols, x, &mut sums);
                } else {
                    add(&Few::new(bits, &table.planes), data, cols, x, &mut sums);
                }
            }
            x = x.add(cols);
        }
    }
    let mut four = [_mm512_setzero_ps(); 4];
    four[..R].copy_from_slice(&sums);
    // SAFETY: arithmetic on vectors, in a function compiled for them.
    let sums = unsafe { Avx512::sum4(four) };
    out.copy_from_slice(&sums[..R]);
}

/// Adds the products of the rows `turn..turn + R` of a block whose rows take turns.
///
/// # Safety
/// The machine has AVX-512 with VBMI and BF16; `block` holds whole chunks of four rows, and `x` is valid for a value of each index.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
unsafe fn add_woven<C: Chunk<N>, const N: usize, const R: usize>(
    chunk: &C,
    block: &[u8],
    turn: usize,
    x: *const bf16,
    sums: &mut [__m512; R],
) {
    let (chunk, mut totals) = (*chunk, *sums);
    for c in 0..block.len() / (TURNS * C::BYTES) {
        // SAFETY: a chunk of each row is there, and its values.
        unsafe {
            let x = x.add(c * 32 * N);
            for (r, total) in totals.iter_mut().enumerate() {
                let p = block.as_ptr().add((c * TURNS + turn + r) * C::BYTES);
                for line in (0..C::BYTES).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(AHEAD + line).cast());
                }
                for (i, words) in chunk.words(p).into_iter().enumerate() {
                    *total = multiply(*total, words, _mm512_loadu_si512(x.add(32 * i).cast()));
                }
            }
        }
    }
    *sums = totals;
}

/// Adds the products of rows one below the other.
///
/// # Safety
/// The machine has AVX-512 with VBMI and BF16; `data` holds `R` rows of `cols` indices, and `x` is valid for `cols` values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512bf16")]
unsafe fn add<L: Lookup, const R: usize>(
    lookup: &L,
    data: &[u8],
    cols: usize,
    x: *const bf16,
    sums: &mut [__m512; R],
) {
    let (lookup, row_bytes, mut totals) = (*lookup, data.len() / R, *sums);
    let whole = cols / GROUP;
    for g in 0..whole {
        // SAFETY: a group of each row is there, and its values.
        unsafe {
            let x = x.add(g * GROUP);
            let (first, second) = (_mm512_loadu_si512(x.cast()), _mm512_loadu_si512(x.add(GROUP / 2).cast()));
            for (r, total) in totals.iter_mut().enumerate() {
                let p = data.as_ptr().add(r * row_bytes + g * lookup.bytes());
                _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(AHEAD).cast());
                let [a, b] = lookup.words(p, GROUP);
                *total = multiply(multiply(*total, a, first), b, second);
            }
        }
    }
    let left = cols % GROUP;
    if left > 0 {
        let masks = [left.min(32), left.saturating_sub(32)].map(|n| (u64::from(u32::MAX) >> (32 - n)) as u32);
        // SAFETY: what does not count is neither read nor multiplied.
        unsafe {
            let x = x.add(whole * GROUP);
            let first = _mm512_maskz_loadu_epi16(masks[0], x.cast());
            let second = _mm512_maskz_loadu_epi16(masks[1], x.wrapping_add(GROUP / 2).cast());
            for (r, total) in totals.iter_mut().enumerate() {
                let p = data.as_ptr().add(r * row_bytes + whole * lookup.bytes());
                let [a, b] = lookup.words(p, left);
                *total = multiply(*total, _mm512_maskz_mov_epi16(masks[0], a), first);
                if masks[1] > 0 {
                    *total = multiply(*total, _mm512_maskz_mov_epi16(masks[1], b), second);
                }
            }
        }
    }
    *sums = totals;
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply(total: __m512, w: __m512i, x: __m512i) -> __m512 {
    // SAFETY: all are 512 plain bits.
    let operand = |v| unsafe { std::mem::transmute::<__m512i, __m512bh>(v) };
    _mm512_dpbf16_ps(total, operand(w), operand(x))
}
