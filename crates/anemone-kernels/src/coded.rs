//! Products with weights in coded blocks and activations rounded to 8 bits in blocks of 32.
//!
//! Rows stand in panels of 16, codes of four columns side by side for each row, so that one instruction multiplies four columns
//! of all of them. An output is a running sum over blocks, in order: the dot product of codes is an exact integer, which is
//! multiplied by the product of both scales and added with one rounding. Nothing else rounds, so every instruction set gives the
//! same bits, whatever the number of tokens.

#![allow(unsafe_code, reason = "raw loads from panels; threads write disjoint columns of the outputs")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod pack;
mod round;
mod scalar;

use anemone_tensor::{BLOCK, BlockFormat, Blocks, Bytes};

use crate::Level;
use crate::simd::Shared;
use round::Group;
pub use round::Rounded;

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;
/// Columns multiplied by one instruction.
const STEP: usize = 4;
/// Steps of a block.
const STEPS: usize = BLOCK / STEP;

/// Elements of the longest row that can be expanded.
pub(crate) const BUFFER: usize = 64 << 10;

/// How scales lie in a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scales {
    /// Of each block 16 f16.
    Plain,
    /// Of each block 16 f16, then 16 f16 that are taken away.
    Min,
    /// Of eight blocks 16 f16 each for scale and minimum, then of each block 16 bytes each that multiply them.
    SuperMin,
    /// Of eight blocks 16 f16 and as much room, then of each block 16 signed bytes for either half that multiply them.
    SuperHalf,
}

/// Blocks whose scales have a factor in common.
const SUPER: usize = 8;
/// Bytes of the scales of so many blocks.
const SUPER_BYTES: usize = 4 * ROWS + SUPER * 2 * ROWS;

const fn scales(format: BlockFormat) -> Scales {
    match format {
        BlockFormat::Q4_1 | BlockFormat::Q5_1 => Scales::Min,
        BlockFormat::Q4_K | BlockFormat::Q5_K => Scales::SuperMin,
        BlockFormat::Q6_K => Scales::SuperHalf,
        _ => Scales::Plain,
    }
}

/// Bytes of a panel's codes for one block.
const fn code_bytes(bits: u32) -> usize {
    ROWS * BLOCK * bits as usize / 8
}

/// A coded weight matrix `[rows, cols]` laid out for products.
#[derive(Debug)]
pub struct Coded {
    bytes: Bytes,
    layout: Layout,
}

/// Where what is in a panel.
#[derive(Debug, Clone, Copy)]
struct Layout {
    format: BlockFormat,
    rows: usize,
    cols: usize,
    /// Where the codes begin.
    codes: usize,
    /// Bytes of a panel.
    panel: usize,
}

impl Layout {
    fn new(blocks: &Blocks) -> Self {
        let (format, count) = (blocks.format(), blocks.cols() / BLOCK);
        let scales = match scales(format) {
            Scales::Plain => count * 2 * ROWS,
            Scales::Min => count * 4 * ROWS,
            Scales::SuperMin | Scales::SuperHalf => count / SUPER * SUPER_BYTES,
        };
        let codes = scales.next_multiple_of(64);
        let panel = codes + count * code_bytes(format.bits());
        Self { format, rows: blocks.rows(), cols: blocks.cols(), codes, panel }
    }

    fn panels(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    fn len(&self) -> usize {
        self.panels() * self.panel
    }
}

impl Coded {
    /// Whether products take a matrix: its rows are not too long to be expanded.
    pub fn takes(blocks: &Blocks) -> bool {
        blocks.cols() <= BUFFER
    }

    /// Bytes that [`Coded::new`] asks for.
    pub fn len_of(blocks: &Blocks) -> usize {
        Layout::new(blocks).len()
    }

    /// Lays a matrix out in memory that `place` finds: it is given the length and a function that fills it. `None` when it finds none.
    ///
    /// The memory must start at a multiple of 64 bytes.
    pub fn new(
        blocks: &Blocks,
        place: impl FnOnce(usize, &mut dyn FnMut(&mut [u8])) -> Option<Bytes>,
    ) -> Option<Self> {
        let layout = Layout::new(blocks);
        let bytes = place(layout.len(), &mut |out| pack::fill(blocks, &layout, out))?;
        assert_eq!(bytes.len(), layout.len(), "bytes asked for");
        assert_eq!(bytes.as_ptr().align_offset(64), 0, "panels start at multiples of 64 bytes");
        Some(Self { bytes, layout })
    }

    /// How elements are coded.
    pub fn format(&self) -> BlockFormat {
        self.layout.format
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.layout.cols
    }

    /// Bytes a product reads.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the elements of a row.
    ///
    /// Panics when there is no such row or `out` is not as long as one.
    pub fn expand_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.layout.rows && out.len() == self.layout.cols, "a row and its length");
        let at = row / ROWS * self.layout.panel;
        scalar::expand(&self.bytes[at..at + self.layout.panel], &self.layout, row % ROWS, out);
    }

    /// The first element, row by row, that is infinite or no number.
    pub fn find_non_finite(&self) -> Option<usize> {
        let mut out = vec![0.0; self.layout.cols];
        (0..self.layout.rows).find_map(|row| {
            self.expand_row(row, &mut out);
            out.iter().position(|v| !v.is_finite()).map(|at| row * self.layout.cols + at)
        })
    }
}

/// One panel and the part of the output it makes.
struct Panel<'a> {
    bytes: &'a [u8],
    layout: &'a Layout,
    /// The first of the panel's columns in the output of the first token.
    out: *mut f32,
    /// Elements from a token's output to the next one's.
    stride: usize,
    /// Columns there are, at most [`ROWS`].
    width: usize,
}

impl Panel<'_> {
    /// Writes the results of a token.
    ///
    /// # Safety
    /// The token is one of the product's.
    #[inline(always)]
    unsafe fn put(&self, token: usize, sums: &[f32; ROWS]) {
        // SAFETY: the panel's columns of a token's output are this task's alone.
        unsafe {
            let out = self.out.add(token * self.stride);
            std::ptr::copy_nonoverlapping(sums.as_ptr(), out, self.width);
        }
    }
}

/// Computes the panels of rows `start..end`, `start` being a multiple of [`ROWS`], of `out [tokens, rows]`.
pub(crate) fn run(level: Level, weight: &Coded, x: &Rounded, (start, end): (usize, usize), out: Shared<f32>) {
    let layout = &weight.layout;
    assert_eq!(x.cols(), layout.cols, "input width");
    for first in (start..end).step_by(ROWS) {
        let at = first / ROWS * layout.panel;
        let panel = Panel {
            bytes: &weight.bytes[at..at + layout.panel],
            layout,
            out: out.pointer(first),
            stride: layout.rows,
            width: ROWS.min(end - first),
        };
        for group in x.groups() {
            // SAFETY: the group's tokens have outputs, whose columns of this panel belong to this task.
            unsafe { dispatch(level, &panel, &group) };
        }
    }
}

/// # Safety
/// The tokens of the group have outputs, and the panel's columns of them are the caller's alone.
unsafe fn dispatch(level: Level, panel: &Panel<'_>, group: &Group<'_>) {
    // SAFETY: a `Context` only holds levels the machine has, and VNNI is asked for.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 if avx512::is_available() => avx512::run(panel, group),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 | Level::Avx512Bf16 => avx2::run(panel, group),
            _ => scalar::run(panel, group),
        }
    }
}

#[cfg(test)]
mod tests;
