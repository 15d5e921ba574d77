//! bf16 weights in 12 bits without loss: the high bytes of a matrix, sign and upper exponent, are nearly always among sixteen.
//!
//! A group of 64 weights is 64 low bytes and 32 bytes of codes, in the order that interleaving low and high bytes within 16 bytes
//! makes straight again: weights 0–7, 32–39, 8–15, 40–47, … Byte `j` of the codes holds that of the `j`-th in its low half and of the
//! `32 + j`-th in its high half. High bytes without a code are patched in from a list.

#![allow(
    clippy::large_stack_arrays,
    reason = "128 KiB, a sixteenth of the smallest stack this runs on; kernels do not allocate"
)]

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::mem::MaybeUninit;

use anemone_tensor::{Bytes, DType, Tensor};
use half::{bf16, f16};

use super::tile::{Rows, TILE_ROWS};
use super::{Input, multiply};
use crate::Level;

const GROUP: usize = 64;
const GROUP_BYTES: usize = 96;
/// Elements of the buffer rows are expanded into.
const BUFFER: usize = 64 << 10;
/// With so many tokens or fewer, memory is what a product waits for; then blocks are small, and the next one is fetched meanwhile.
const FEW_TOKENS: usize = 64;
/// Elements of such a block.
const FEW_BUFFER: usize = 16 << 10;
/// Rows multiplied at once for a single token.
#[cfg(target_arch = "x86_64")]
const STREAMS: usize = 4;
/// Rows looked at to choose the sixteen.
const SAMPLE: usize = 64;

/// A weight matrix at 12 bits a weight.
#[derive(Debug)]
pub struct Compact {
    bytes: Bytes,
    /// High byte of each code.
    table: [u8; 16],
    /// Patches of each row: `starts[r]..starts[r + 1]`.
    starts: Vec<u32>,
    patches: Vec<Patch>,
    /// Whether the stored weights were bf16, so that nothing was rounded.
    lossless: bool,
    cols: usize,
}

#[derive(Debug, Clone, Copy)]
struct Patch {
    col: u32,
    high: u8,
}

impl Patch {
    fn apply(self, word: &mut u16) {
        *word = *word & 0xff | u16::from(self.high) << 8;
    }
}

/// How a matrix will be encoded; making one decides that it is worth it.
#[derive(Debug)]
pub struct CompactPlan<'a> {
    tensor: &'a Tensor,
    table: [u8; 16],
    rows: usize,
    cols: usize,
}

impl Compact {
    /// Plans to encode a matrix; wider weights will be rounded to bf16, as products of bf16 round them.
    ///
    /// `None` when its width is no multiple of 64 or beyond the kernel's buffer, or its exponents are spread too wide.
    pub fn plan(tensor: &Tensor) -> Option<CompactPlan<'_>> {
        let &[rows, cols] = &**tensor.shape() else { return None };
        let fits =
            cols > 0 && cols.is_multiple_of(GROUP) && cols <= BUFFER / TILE_ROWS && cols < u32::MAX as usize;
        if !tensor.dtype().is_float() || !fits {
            return None;
        }
        let mut counts = [(0u32, 0u8); 256];
        for (high, count) in counts.iter_mut().enumerate() {
            count.1 = high as u8;
        }
        let step = (rows / SAMPLE).max(1);
        let mut row = vec![0; cols];
        for r in (0..rows).step_by(step) {
            read_row(tensor, r, &mut row);
            for word in &row {
                counts[usize::from(word >> 8)].0 += 1;
            }
        }
        counts.sort_unstable_by_key(|(count, high)| (std::cmp::Reverse(*count), *high));
        let table: [u8; 16] = std::array::from_fn(|i| counts[i].1);
        // Each patch costs as much as some dozen weights. Every row is counted: the sample may have missed the odd ones.
        let mut left = rows * cols / 1000;
        let mut is_coded = [false; 256];
        for high in table {
            is_coded[usize::from(high)] = true;
        }
        for r in 0..rows {
            read_row(tensor, r, &mut row);
            let outside = row.iter().filter(|word| !is_coded[usize::from(**word >> 8)]).count();
            left = left.checked_sub(outside)?;
        }
        Some(CompactPlan { tensor, table, rows, cols })
    }

    pub(super) fn is_lossless(&self) -> bool {
        self.lossless
    }

    /// Bytes a pass reads.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.patches.len() * size_of::<Patch>() + self.starts.len() * 4
    }
}

impl CompactPlan<'_> {
    /// Bytes of the encoded matrix.
    pub fn len(&self) -> usize {
        self.rows * row_bytes(self.cols)
    }

    /// Whether the matrix has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Encodes into memory that `place` finds: it is given the length and a function that fills it. `None` when it finds none.
    pub fn encode(
        self,
        place: impl FnOnce(usize, &mut dyn FnMut(&mut [u8])) -> Option<Bytes>,
    ) -> Option<Compact> {
        let mut codes = [u8::MAX; 256];
        for (code, high) in self.table.iter().enumerate() {
            codes[usize::from(*high)] = code as u8;
        }
        let mut parts: Vec<(Vec<u32>, Vec<Patch>)> = Vec::new();
        let bytes = place(self.len(), &mut |out| parts = self.fill(&codes, out))?;
        let (mut starts, mut patches) = (vec![0], Vec::new());
        for (counts, part) in parts {
            for count in counts {
                starts.push(starts.last().copied().unwrap_or(0) + count);
            }
            patches.extend(part);
        }
        let lossless = self.tensor.dtype() == DType::BF16;
        Some(Compact { bytes, table: self.table, starts, patches, lossless, cols: self.cols })
    }

    /// Encodes all rows on all cores; gives each part's patches, with their number in each row.
    fn fill(&self, codes: &[u8; 256], out: &mut [u8]) -> Vec<(Vec<u32>, Vec<Patch>)> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8);
        let share = self.rows.div_ceil(threads).max(16);
        std::thread::scope(|scope| {
            let parts = out.chunks_mut(share * row_bytes(self.cols)).enumerate();
            let parts = parts.map(|(i, out)| scope.spawn(move || self.fill_rows(codes, i * share, out)));
            let parts: Vec<_> = parts.collect();
            parts.into_iter().map(|part| part.join().expect("encoding does not panic")).collect()
        })
    }

    fn fill_rows(&self, codes: &[u8; 256], first: usize, out: &mut [u8]) -> (Vec<u32>, Vec<Patch>) {
        let (mut counts, mut patches) = (Vec::new(), Vec::new());
        let mut row = vec![0; self.cols];
        for (i, out) in out.chunks_exact_mut(row_bytes(self.cols)).enumerate() {
            read_row(self.tensor, first + i, &mut row);
            let before = patches.len();
            for (g, (words, out)) in
                row.chunks_exact(GROUP).zip(out.chunks_exact_mut(GROUP_BYTES)).enumerate()
            {
                let (mut lows, mut code) = ([0; GROUP], [0; GROUP]);
                let mut unknown = 0;
                for ((low, code), word) in lows.iter_mut().zip(&mut code).zip(words) {
                    *low = *word as u8;
                    *code = codes[usize::from(word >> 8)];
                    unknown |= *code;
                }
                if unknown & 0x80 != 0 {
                    for (j, code) in code.iter_mut().enumerate().filter(|(_, code)| **code == u8::MAX) {
                        patches.push(Patch { col: (g * GROUP + j) as u32, high: (words[j] >> 8) as u8 });
                        *code = 0;
                    }
                }
                out[..GROUP].copy_from_slice(&stored_order(&lows));
                let code = stored_order(&code);
                let (low, high) = code.split_at(GROUP / 2);
                for ((out, low), high) in out[GROUP..].iter_mut().zip(low).zip(high) {
                    *out = low | high << 4;
                }
            }
            counts.push((patches.len() - before) as u32);
        }
        (counts, patches)
    }
}

/// Position of a weight of a group among its stored bytes.
const fn position(weight: usize) -> usize {
    weight % 32 / 8 * 16 + weight / 32 * 8 + weight % 8
}

fn stored_order(bytes: &[u8; GROUP]) -> [u8; GROUP] {
    let mut stored = [0; GROUP];
    for (i, bytes) in bytes.chunks_exact(8).enumerate() {
        stored[position(i * 8)..][..8].copy_from_slice(bytes);
    }
    stored
}

fn row_bytes(cols: usize) -> usize {
    cols / GROUP * GROUP_BYTES
}

/// A row's bits as bf16.
fn read_row(tensor: &Tensor, row: usize, out: &mut [u16]) {
    let size = tensor.dtype().size();
    let bytes = &tensor.bytes()[row * out.len() * size..(row + 1) * out.len() * size];
    match tensor.dtype() {
        DType::BF16 => {
            for (out, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = u16::from_le_bytes(*b);
            }
        }
        DType::F16 => {
            for (out, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = bf16::from_f32(f16::from_le_bytes(*b).to_f32()).to_bits();
            }
        }
        _ => {
            for (out, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = bf16::from_f32(f32::from_le_bytes(*b)).to_bits();
            }
        }
    }
}

/// Computes `rows`, whose data is not looked at, from the compact rows `rows.out_start..`.
pub(super) fn run(level: Level, rows: &Rows<'_>, compact: &Compact, x: Input<'_>) {
    #[cfg(target_arch = "x86_64")]
    if let (1, Level::Avx512Bf16, Input::Bf16(token)) = (rows.tokens, level, x) {
        // A single token reads each weight once: nothing is written back between memory and product.
        let (end, row_bytes) = (rows.out_start + rows.count, row_bytes(compact.cols));
        for r in (rows.out_start..end).step_by(STREAMS) {
            let count = STREAMS.min(end - r);
            let data = &compact.bytes[r * row_bytes..(r + count) * row_bytes];
            let patches = (&compact.patches[..], &compact.starts[r..=r + count]);
            // SAFETY: the level is there, the input has a value for each of a row's weights, and the rows are this task's.
            unsafe { avx512::dot(data, &compact.table, patches, token, rows.out.slice(r, count)) };
        }
        return;
    }
    expanded(level, rows, compact, x);
}

/// Expands block by block, for products that use a weight several times.
fn expanded(level: Level, rows: &Rows<'_>, compact: &Compact, x: Input<'_>) {
    let cols = compact.cols;
    let few = rows.tokens <= FEW_TOKENS;
    let most = if few { FEW_BUFFER } else { BUFFER };
    let per_block = (most / cols / TILE_ROWS * TILE_ROWS).max(TILE_ROWS);
    let mut buffer = [const { MaybeUninit::<u16>::uninit() }; BUFFER];
    let mut first = 0;
    while first < rows.count {
        let count = per_block.min(rows.count - first);
        let start = rows.out_start + first;
        let data = &compact.bytes[start * row_bytes(cols)..(start + count) * row_bytes(cols)];
        let target = &mut buffer[..count * cols];
        first += count;
        let next = start + count;
        let after = next + per_block.min(rows.count - first);
        let ahead = &compact.bytes[next * row_bytes(cols)..after * row_bytes(cols)];
        // Expanding takes the longer the fewer tokens there are to multiply by.
        let share = if few { ahead.len() / 3 * 2 / (rows.tokens / 8 + 1) / 64 * 64 } else { 0 };
        let (now, meanwhile) = ahead.split_at(share);
        expand(level, data, &compact.table, target, now);
        // SAFETY: `expand` has written every element.
        let words = unsafe { &mut *(std::ptr::from_mut(target) as *mut [u16]) };
        for r in 0..count {
            let (from, to) = (compact.starts[start + r] as usize, compact.starts[start + r + 1] as usize);
            for patch in &compact.patches[from..to] {
                patch.apply(&mut words[r * cols + patch.col as usize]);
            }
        }
        // SAFETY: words are plain bytes.
        let data = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 2) };
        let ahead = if few { meanwhile } else { &[] };
        let block =
            Rows { data, dtype: DType::BF16, count, sequential: false, out_start: start, ahead, ..*rows };
        multiply(level, &block, x);
    }
}

/// Writes all of `out`: the weights of whole groups; `ahead` is wanted soon.
fn expand(level: Level, data: &[u8], table: &[u8; 16], out: &mut [MaybeUninit<u16>], ahead: &[u8]) {
    assert_eq!(data.len() / GROUP_BYTES * GROUP, out.len(), "whole groups");
    #[cfg(target_arch = "x86_64")]
    if matches!(level, Level::Avx512 | Level::Avx512Bf16) {
        // SAFETY: a `Context` only holds levels the machine has; the lengths match.
        return unsafe { avx512::expand(data, table, out, ahead) };
    }
    let _ = (level, ahead);
    for (data, out) in data.chunks_exact(GROUP_BYTES).zip(out.chunks_exact_mut(GROUP)) {
        let (low, codes) = data.split_at(GROUP);
        for (weight, out) in out.iter_mut().enumerate() {
            let j = position(weight);
            let code = codes[j % 32] >> (j / 32 * 4) & 0xf;
            out.write(u16::from(low[j]) | u16::from(table[usize::from(code)]) << 8);
        }
    }
}
