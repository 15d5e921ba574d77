//! Indices in the order in which a single token meets them: four rows in turn, as one stream, and no shuffle but the lookup.
//!
//! A segment is woven if its width is a multiple of its chunk and each four rows share a table. Rows beyond a multiple of four
//! stay as they are, and so do other segments. A chunk of a row holds, in words of 16 bits:
//! * four bits: 128 indices; word `j` has those of elements `j`, `32 + j`, `64 + j` and `96 + j`, from the low end;
//! * six bits: 256 indices; the low four bits as above, twice, then word `j` the upper two of elements `j`, `32 + j`, … `224 + j`;
//! * eight bits: 64 indices, eight at a time: elements 0–7, 32–39, 8–15, 40–47, …

use std::mem::MaybeUninit;

use anemone_tensor::{Bytes, Palettized, Segment};

use super::ENTRIES;

/// Rows that take turns.
pub(super) const TURNS: usize = 4;

/// A palettized matrix as a single token reads it best.
#[derive(Debug, Clone)]
pub struct Woven {
    matrix: Palettized,
}

impl Woven {
    /// Rearranges the indices of a matrix into memory that `place` finds: it is given the length and a function that fills it.
    /// `None` when it finds none.
    pub fn new(
        matrix: &Palettized,
        mut place: impl FnMut(usize, &mut dyn FnMut(&mut [u8])) -> Option<Bytes>,
    ) -> Option<Self> {
        let mut segments = matrix.segments();
        let matrix = matrix.map_indices(|indices| {
            let segment = segments.next().expect("one for each");
            place(indices.len(), &mut |out| weave(segment, out))
        });
        Some(Self { matrix: matrix? })
    }

    /// The matrix; the indices of woven segments are not in the order the type says.
    pub(in crate::matmul) fn matrix(&self) -> &Palettized {
        &self.matrix
    }
}

/// Elements of a chunk; `None` when the format is not woven.
pub(super) fn chunk(bits: u32) -> Option<usize> {
    match bits {
        4 => Some(128),
        6 => Some(256),
        8 => Some(64),
        _ => None,
    }
}

/// Whether a segment of a [`Woven`] matrix is.
pub(super) fn is_woven(segment: &Segment) -> bool {
    let shares = segment.group().is_multiple_of(TURNS) || segment.group() >= segment.rows();
    shares && chunk(segment.bits()).is_some_and(|chunk| segment.cols().is_multiple_of(chunk))
}

/// Rows of a woven segment that take turns.
pub(super) fn turning(segment: &Segment) -> usize {
    segment.rows() / TURNS * TURNS
}

fn weave(segment: &Segment, out: &mut [u8]) {
    let source = segment.indices();
    let (bits, cols) = (segment.bits() as usize, segment.cols());
    let whole = turning(segment) * cols * bits / 8;
    let Some(chunk) = chunk(segment.bits()).filter(|_| is_woven(segment)) else {
        return out.copy_from_slice(source);
    };
    out[whole..].copy_from_slice(&source[whole..]);
    let (row_bytes, chunk_bytes) = (cols * bits / 8, chunk * bits / 8);
    let block = TURNS * row_bytes;
    let blocks = out[..whole].chunks_exact_mut(block).zip(source[..whole].chunks_exact(block));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8);
    let share = (whole / block).div_ceil(threads).max(64);
    let mut blocks: Vec<_> = blocks.collect();
    std::thread::scope(|scope| {
        for blocks in blocks.chunks_mut(share) {
            scope.spawn(move || {
                for (out, source) in blocks {
                    for (i, out) in out.chunks_exact_mut(chunk_bytes).enumerate() {
                        let (turn, c) = (i % TURNS, i / TURNS);
                        let source = &source[turn * row_bytes + c * chunk_bytes..][..chunk_bytes];
                        match bits {
                            4 => nibbles(source, out),
                            6 => sixes(source, out),
                            _ => octets(source, out),
                        }
                    }
                }
            });
        }
    });
}

fn nibbles(source: &[u8], out: &mut [u8]) {
    let mut index = [0u8; 128];
    for (pair, byte) in index.as_chunks_mut::<2>().0.iter_mut().zip(source) {
        *pair = [byte & 0xf, byte >> 4];
    }
    words(&index, 4, out);
}

fn sixes(source: &[u8], out: &mut [u8]) {
    let (mut low, mut high) = ([0u8; 256], [0u8; 256]);
    let fours = low.as_chunks_mut::<4>().0.iter_mut().zip(high.as_chunks_mut::<4>().0);
    for ((low, high), bytes) in fours.zip(source.as_chunks::<3>().0) {
        let held = u32::from(bytes[0]) | u32::from(bytes[1]) << 8 | u32::from(bytes[2]) << 16;
        for i in 0..4 {
            let index = (held >> (6 * i)) as u8 & 0x3f;
            (low[i], high[i]) = (index & 0xf, index >> 4);
        }
    }
    words(&low[..128], 4, &mut out[..64]);
    words(&low[128..], 4, &mut out[64..128]);
    words(&high, 2, &mut out[128..]);
}

/// Word `j` gets the fields `j`, `32 + j`, … one above the other.
fn words(fields: &[u8], bits: usize, out: &mut [u8]) {
    let mut words = [0u16; 32];
    for (i, fields) in fields.chunks_exact(32).enumerate() {
        for (word, field) in words.iter_mut().zip(fields) {
            *word |= u16::from(*field) << (bits * i);
        }
    }
    for (out, word) in out.as_chunks_mut::<2>().0.iter_mut().zip(words) {
        *out = word.to_le_bytes();
    }
}

/// Changes the order of 64 bytes; twice leaves it as it was.
fn octets(source: &[u8], out: &mut [u8]) {
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        out.copy_from_slice(&source[(i / 2 + i % 2 * 4) * 8..][..8]);
    }
}

/// Writes the elements of a chunk.
pub(super) fn expand(stored: &[u8], bits: usize, table: &[u16; ENTRIES], out: &mut [MaybeUninit<u16>]) {
    let word = |at: usize| u16::from_le_bytes([stored[2 * at], stored[2 * at + 1]]);
    match bits {
        4 => {
            for (i, out) in out.iter_mut().enumerate() {
                out.write(table[usize::from(word(i % 32) >> (i / 32 * 4) & 0xf)]);
            }
        }
        6 => {
            for (i, out) in out.iter_mut().enumerate() {
                let low = word(i / 128 * 32 + i % 32) >> (i / 32 % 4 * 4) & 0xf;
                let high = word(64 + i % 32) >> (i / 32 * 2) & 0x3;
                out.write(table[usize::from(low | high << 4)]);
            }
        }
        _ => {
            for (i, out) in out.iter_mut().enumerate() {
                let octet = i / 8 % 4 * 2 + i / 32;
                out.write(table[usize::from(stored[octet * 8 + i % 8])]);
            }
        }
    }
}
