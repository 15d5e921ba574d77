//! Products with matrices of indices into tables, straight from the indices: the sums are those of the matrix expanded, to the bit.
//!
//! Several tokens share rows that are expanded block by block into a buffer near the core. A single token meets them in
//! registers, where the machine has the shuffles for it.

#![allow(
    clippy::large_stack_arrays,
    reason = "128 KiB, a sixteenth of the smallest stack this runs on; kernels do not allocate"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod direct;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod tests;
mod woven;

use std::mem::MaybeUninit;

use anemone_tensor::{DType, Palettized, Segment};
use half::{bf16, f16};

use super::bf16_dot::round_stored;
use super::tile::{Rows, TILE_ROWS};
use super::{Input, multiply};
use crate::Level;
pub use woven::Woven;
use woven::{TURNS, is_woven, turning};

/// A palettized matrix in either order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Palette<'a> {
    Plain(&'a Palettized),
    Woven(&'a Woven),
}

impl Palette<'_> {
    pub(super) fn index_bytes(&self) -> usize {
        self.matrix().index_bytes()
    }

    pub(super) fn matrix(&self) -> &Palettized {
        match self {
            Self::Plain(matrix) => matrix,
            Self::Woven(woven) => woven.matrix(),
        }
    }
}

/// Rows of segments side by side.
#[derive(Clone, Copy)]
struct Band<'a> {
    segments: &'a [Segment],
    /// Whether those that can be are woven.
    is_woven: bool,
}

impl Band<'_> {
    /// Whether the segment's row is in an order of its own.
    fn turns(&self, segment: &Segment, row: usize) -> bool {
        self.is_woven && is_woven(segment) && row < turning(segment)
    }
}

/// Elements of the buffer rows are expanded into, and thus of the longest row.
pub(super) const BUFFER: usize = 64 << 10;
/// Entries of the largest table.
const ENTRIES: usize = 256;
/// Entries a table is repeated to when it is smaller, for shuffles that look at six bits of an index.
const REPEATED: usize = 64;

/// A table as products want it.
struct Table {
    /// bf16 or f16, repeated to [`REPEATED`].
    words: [u16; ENTRIES],
    planes: Planes,
}

/// The low and high bytes of a table's words.
#[repr(align(64))]
struct Planes {
    low: [u8; ENTRIES],
    high: [u8; ENTRIES],
}

impl Table {
    const fn new() -> Self {
        let planes = Planes { low: [0; ENTRIES], high: [0; ENTRIES] };
        Self { words: [0; ENTRIES], planes }
    }

    /// Takes over entries, rounded to bf16 if products are of bf16.
    fn fill(&mut self, level: Level, entries: &[f16], dtype: DType) {
        let n = entries.len();
        if dtype == DType::BF16 {
            let mut rounded = [bf16::ZERO; ENTRIES];
            // SAFETY: f16 are plain bytes, two each.
            let bytes = unsafe { std::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), 2 * n) };
            round_stored(level, DType::F16, bytes, &mut rounded[..n]);
            for (word, value) in self.words.iter_mut().zip(&rounded[..n]) {
                *word = value.to_bits();
            }
        } else {
            for (word, value) in self.words.iter_mut().zip(entries) {
                *word = value.to_bits();
            }
        }
        let mut filled = n;
        while filled < REPEATED {
            self.words.copy_within(..filled, filled);
            filled *= 2;
        }
        let Self { words, planes } = self;
        for (low, word) in planes.low.iter_mut().zip(&*words) {
            *low = *word as u8;
        }
        for (high, word) in planes.high.iter_mut().zip(&*words) {
            *high = (*word >> 8) as u8;
        }
    }
}

/// Computes `rows`, whose data is not looked at, from the rows `rows.out_start..` of the matrix.
pub(super) fn run(level: Level, rows: &Rows<'_>, palette: Palette<'_>, x: Input<'_>) {
    let (mut top, end) = (0, rows.out_start + rows.count);
    for segments in palette.matrix().bands() {
        let bottom = top + segments[0].rows();
        let (from, to) = (rows.out_start.max(top), end.min(bottom));
        if from < to {
            let part = Rows { count: to - from, out_start: from, ..*rows };
            let band = Band { segments, is_woven: matches!(palette, Palette::Woven(_)) };
            run_band(level, &part, band, from - top, x);
        }
        top = bottom;
    }
}

fn run_band(level: Level, rows: &Rows<'_>, band: Band<'_>, first: usize, x: Input<'_>) {
    #[cfg(target_arch = "x86_64")]
    if let (1, Level::Avx512Bf16, Input::Bf16(token)) = (rows.tokens, level, x)
        && direct::is_direct(band.segments)
    {
        // SAFETY: the instructions are there, the input has a value for each column, and the rows are this task's.
        return unsafe { direct::dot(level, band, first, token, rows.out.slice(rows.out_start, rows.count)) };
    }
    expanded(level, rows, band, first, x);
}

/// Expands block by block: rows `first..` of the band.
fn expanded(level: Level, rows: &Rows<'_>, band: Band<'_>, first: usize, x: Input<'_>) {
    let (cols, dtype) = (rows.cols, if matches!(x, Input::Bf16(_)) { DType::BF16 } else { DType::F16 });
    let mut per_block = BUFFER / cols;
    if per_block >= TILE_ROWS {
        per_block = per_block / TILE_ROWS * TILE_ROWS;
    }
    let mut buffer = [const { MaybeUninit::<u16>::uninit() }; BUFFER];
    for done in (0..rows.count).step_by(per_block) {
        let count = per_block.min(rows.count - done);
        let target = &mut buffer[..count * cols];
        let mut left = 0;
        for segment in band.segments {
            let (mut table, mut held) = (Table::new(), usize::MAX);
            for (row, line) in (first + done..).zip(target.chunks_exact_mut(cols)) {
                let group = row / segment.group();
                if group != held {
                    table.fill(level, segment.table(row), dtype);
                    held = group;
                }
                expand(level, band, segment, row, &table, &mut line[left..left + segment.cols()]);
            }
            left += segment.cols();
        }
        // SAFETY: the segments of a band are as wide as the matrix, so every element is written; words are plain bytes.
        let data = unsafe { std::slice::from_raw_parts(target.as_ptr().cast::<u8>(), target.len() * 2) };
        let start = rows.out_start + done;
        let block = Rows { data, dtype, count, sequential: false, out_start: start, ..*rows };
        multiply(level, &block, x);
    }
}

/// Writes all of `out`: a row of a segment.
fn expand(
    level: Level,
    band: Band<'_>,
    segment: &Segment,
    row: usize,
    table: &Table,
    out: &mut [MaybeUninit<u16>],
) {
    let (bits, cols) = (segment.bits() as usize, segment.cols());
    if band.turns(segment, row) {
        let chunk = woven::chunk(segment.bits()).expect("a woven format");
        let chunk_bytes = chunk * bits / 8;
        let block = &segment.indices()[row / TURNS * TURNS * cols * bits / 8..];
        for (out, turns) in out.chunks_exact_mut(chunk).zip(block.chunks_exact(TURNS * chunk_bytes)) {
            let stored = &turns[row % TURNS * chunk_bytes..][..chunk_bytes];
            match level {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 | Level::Avx512Bf16 if avx512::has_shuffles() => {
                    // SAFETY: the machine has the instructions.
                    unsafe { avx512::expand_woven(stored, bits, table, out) }
                }
                _ => woven::expand(stored, bits, &table.words, out),
            }
        }
        return;
    }
    let at = row * cols * bits;
    let mut done = 0;
    if at.is_multiple_of(8) {
        done = vectors(level, &segment.indices()[at / 8..], bits, table, out);
    }
    let at = at + done * bits;
    // Nothing may be left, at the very end.
    let rest = segment.indices().get(at / 8..).unwrap_or(&[]);
    scalar(rest, at % 8, bits, &table.words, &mut out[done..]);
}

/// Writes elements from the front, in whole vectors, from indices that begin with a byte; gives their number.
fn vectors(level: Level, indices: &[u8], bits: usize, table: &Table, out: &mut [MaybeUninit<u16>]) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Avx512Bf16 if avx512::has_shuffles() => {
            // SAFETY: the machine has the instructions.
            unsafe { avx512::expand(indices, bits, &table.planes, out) }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 | Level::Avx512Bf16 if bits == 4 => {
            // SAFETY: the machine has the instructions.
            unsafe { avx2::expand_nibbles(indices, &table.planes, out) }
        }
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonBf16 => {
            // SAFETY: NEON is part of every aarch64 target.
            unsafe { neon::expand(indices, bits, &table.planes, out) }
        }
        _ => 0,
    }
}

/// Writes all of `out` from indices of `bits` bits that begin `skip` bits into the first byte.
fn scalar(indices: &[u8], skip: usize, bits: usize, words: &[u16; ENTRIES], out: &mut [MaybeUninit<u16>]) {
    if bits == 8 {
        for (out, index) in out.iter_mut().zip(indices) {
            out.write(words[usize::from(*index)]);
        }
        return;
    }
    let mut bytes = indices.iter();
    let mut next = || u32::from(bytes.next().copied().unwrap_or(0));
    let (mut held, mut count) = (next() >> skip, 8 - skip);
    for out in out {
        if count < bits {
            held |= next() << count;
            count += 8;
        }
        out.write(words[held as usize & ((1 << bits) - 1)]);
        held >>= bits;
        count -= bits;
    }
}
