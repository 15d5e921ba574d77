//! Dense products `y = x · Wᵀ`, computed straight on the stored weights.
//!
//! An output is one vector accumulator over the inner dimension, in order, then one fixed reduction of its lanes. The number
//! of tokens, the tile a row falls in and the thread that runs it change nothing, so prefill, decode and verification of
//! drafts agree bit for bit.

#![allow(unsafe_code, reason = "raw loads from weight rows; threads write disjoint columns of the outputs")]
#![allow(
    clippy::large_stack_arrays,
    reason = "256 KiB, an eighth of the smallest stack this runs on; kernels do not allocate"
)]

mod bf16_dot;
mod compact;
mod f32_dot;
mod palette;
mod tile;

use anemone_tensor::{DType, Palettized, Tensor};
use half::bf16;

use crate::coded::{self, Coded, Rounded};
use crate::simd::Shared;
use crate::{Context, Level};
pub(crate) use bf16_dot::round_stored;
pub use compact::{Compact, CompactPlan};
use palette::Palette;
pub use palette::Woven;
use tile::{Rows, TILE_ROWS};

/// Multiply-adds a task has at least.
const MIN_TASK: usize = 32 << 10;

/// A weight matrix `[rows, cols]`, row-major, in a floating type or as indices into tables.
#[derive(Debug, Clone, Copy)]
pub struct MatrixView<'a> {
    dtype: DType,
    bytes: &'a [u8],
    rows: usize,
    cols: usize,
    sequential: bool,
    compact: Option<&'a Compact>,
    palette: Option<Palette<'a>>,
    coded: Option<&'a Coded>,
}

impl<'a> MatrixView<'a> {
    /// Views a tensor of floats as `[rows, cols]`; `None` when it is not a matrix of floats.
    pub fn new(tensor: &'a Tensor) -> Option<Self> {
        let &[rows, cols] = &**tensor.shape() else { return None };
        Self::from_bytes(tensor.dtype(), tensor.bytes(), rows, cols)
    }

    /// Views raw little-endian bytes; `None` when their length is not `rows * cols` elements of a floating type.
    pub fn from_bytes(dtype: DType, bytes: &'a [u8], rows: usize, cols: usize) -> Option<Self> {
        let len = rows.checked_mul(cols)?.checked_mul(dtype.size())?;
        (dtype.is_float() && bytes.len() == len).then_some(Self {
            dtype,
            bytes,
            rows,
            cols,
            sequential: false,
            compact: None,
            palette: None,
            coded: None,
        })
    }

    /// Views a palettized matrix, whose entries are read as f16; only products take it. `None` when its rows are longer than 65,536.
    pub fn palettized(matrix: &'a Palettized) -> Option<Self> {
        Self::of_palette(Palette::Plain(matrix))
    }

    /// [`MatrixView::palettized`] of a matrix whose indices stand in the order of a single token.
    pub fn woven(matrix: &'a Woven) -> Option<Self> {
        Self::of_palette(Palette::Woven(matrix))
    }

    fn of_palette(palette: Palette<'a>) -> Option<Self> {
        let (rows, cols) = (palette.matrix().rows(), palette.matrix().cols());
        let view = Self {
            dtype: DType::F16,
            bytes: &[],
            rows,
            cols,
            sequential: false,
            compact: None,
            palette: Some(palette),
            coded: None,
        };
        (cols <= palette::BUFFER).then_some(view)
    }

    /// Views a matrix in coded blocks. Products with [`Input::Rounded`] read the codes, others expand them, exactly. `None` when its rows
    /// are longer than 65,536.
    pub fn coded(matrix: &'a Coded) -> Option<Self> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        (cols <= coded::BUFFER).then_some(Self {
            dtype: DType::F32,
            bytes: &[],
            rows,
            cols,
            sequential: false,
            compact: None,
            palette: None,
            coded: Some(matrix),
        })
    }

    /// Reads a compact form of the same matrix instead, where that gives the same result: always if nothing was rounded to make
    /// it, and for bf16 products.
    #[must_use]
    pub fn with_compact(self, compact: &'a Compact) -> Self {
        Self { compact: Some(compact), ..self }
    }

    /// Whether a single token is best computed from one stream read in order.
    ///
    /// So it is for memory in 2 MiB pages. In a mapped file with its small pages several streams hide what each page border
    /// costs. Either way the result is the same.
    #[must_use]
    pub fn with_sequential(self, sequential: bool) -> Self {
        Self { sequential, ..self }
    }

    pub(crate) fn as_coded(&self) -> Option<&'a Coded> {
        self.coded
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }
}

/// Activations `[tokens, cols]`; their type chooses the arithmetic.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Products and sums in f32, on any level.
    F32(&'a [f32]),
    /// bf16 products summed in f32; only on levels where [`crate::Level::has_bf16_products`]. Wider weights are rounded to bf16.
    Bf16(&'a [bf16]),
    /// f32, and the same rounded to 8 bits for the weights that are coded.
    Rounded(&'a [f32], &'a Rounded),
}

impl Input<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(x) | Self::Rounded(x, _) => x.len(),
            Self::Bf16(x) => x.len(),
        }
    }
}

/// One product of a call: `out [tokens, rows] = x [tokens, cols] · weightᵀ`, plus `bias [rows]` if there is one.
#[derive(Debug)]
pub struct Product<'a> {
    /// The weight matrix.
    pub weight: MatrixView<'a>,
    /// Added to every token.
    pub bias: Option<&'a [f32]>,
    /// Where the result goes.
    pub out: &'a mut [f32],
}

struct Task<'a> {
    weight: MatrixView<'a>,
    bias: Option<&'a [f32]>,
    out: Shared<f32>,
    /// First task number of this product.
    first: usize,
    rows_per_task: usize,
}

/// Computes several products of the same input in one parallel section.
///
/// Panics when a length does not match; shapes are the caller's to check at load.
pub fn matmul(context: &Context, x: Input<'_>, tokens: usize, products: &mut [Product<'_>]) {
    let mut count = 0;
    let threads = context.pool().threads();
    let tasks: Vec<Task<'_>> = products
        .iter_mut()
        .map(|p| {
            assert_eq!(x.len(), tokens * p.weight.cols, "input length");
            assert_eq!(p.out.len(), tokens * p.weight.rows, "output length");
            assert!(p.bias.is_none_or(|b| b.len() == p.weight.rows), "bias length");
            let rows_per_task = rows_per_task(p.weight, tokens, threads);
            let first = count;
            count += p.weight.rows.div_ceil(rows_per_task);
            Task { weight: p.weight, bias: p.bias, out: Shared::new(p.out), first, rows_per_task }
        })
        .collect();
    context.pool().run(count, &|_, index| {
        let task = tasks.iter().rfind(|t| t.first <= index).expect("the first task starts at 0");
        let start = (index - task.first) * task.rows_per_task;
        let end = (start + task.rows_per_task).min(task.weight.rows);
        run_rows(context, x, tokens, task, start, end);
    });
}

/// Rows a task covers: a multiple of the tile, or of a panel of coded rows, small enough for the second-level cache when it is used for many tokens.
fn rows_per_task(weight: MatrixView<'_>, tokens: usize, threads: usize) -> usize {
    let stored = match (weight.palette, weight.coded) {
        (Some(palette), _) => palette.index_bytes() / weight.rows,
        (_, Some(coded)) => coded.size() / weight.rows,
        _ => weight.cols * weight.dtype.size(),
    };
    let tile = if weight.coded.is_some() { coded::ROWS } else { TILE_ROWS };
    let row_bytes = stored.max(1);
    let bytes = if tokens == 1 { 256 << 10 } else { 128 << 10 };
    let cached = (bytes / row_bytes).max(tile);
    // A few tasks for each thread, so that a slowed core can be helped.
    let balanced = weight.rows.div_ceil(threads * 4);
    // Handing over less work than this costs more than doing it.
    let worth = MIN_TASK.div_ceil((weight.cols * tokens).max(1));
    cached.min(balanced).max(worth).next_multiple_of(tile)
}

fn run_rows(context: &Context, x: Input<'_>, tokens: usize, task: &Task<'_>, start: usize, end: usize) {
    let w = task.weight;
    let is_plain = w.palette.is_none() && w.coded.is_none();
    let row_bytes = if is_plain { w.cols * w.dtype.size() } else { 0 };
    let rows = Rows {
        data: &w.bytes[start * row_bytes..end * row_bytes],
        dtype: w.dtype,
        count: end - start,
        cols: w.cols,
        sequential: w.sequential,
        out: task.out,
        out_stride: w.rows,
        out_start: start,
        tokens,
        ahead: &[],
    };
    match (w.coded, w.palette, w.compact) {
        (Some(coded), ..) => coded_rows(context.level(), &rows, coded, x, end),
        (_, Some(palette), _) => palette::run(context.level(), &rows, palette, x),
        (.., Some(compact)) if compact.is_lossless() || matches!(x, Input::Bf16(_)) => {
            compact::run(context.level(), &rows, compact, x);
        }
        _ => multiply(context.level(), &rows, x),
    }
    if let Some(bias) = task.bias {
        for t in 0..tokens {
            // SAFETY: columns `start..end` of the output belong to this task alone.
            let out = unsafe { task.out.slice(t * w.rows + start, end - start) };
            for (o, b) in out.iter_mut().zip(&bias[start..end]) {
                *o += b;
            }
        }
    }
}

/// Rows of a coded matrix: by their codes where the input is rounded, else expanded block by block.
fn coded_rows(level: Level, rows: &Rows<'_>, matrix: &Coded, x: Input<'_>, end: usize) {
    if let Input::Rounded(_, x) = x {
        assert_eq!(x.tokens(), rows.tokens, "rounded tokens");
        return coded::run(level, matrix, x, (rows.out_start, end), rows.out);
    }
    expanded_rows(level, rows, matrix, x, end);
}

/// Kept apart for its buffer, which other products must not make room for.
#[inline(never)]
fn expanded_rows(level: Level, rows: &Rows<'_>, matrix: &Coded, x: Input<'_>, end: usize) {
    let mut buffer = [0.0f32; coded::BUFFER];
    let most = (coded::BUFFER / rows.cols).min(TILE_ROWS);
    let mut first = rows.out_start;
    while first < end {
        let count = most.min(end - first);
        let lines = &mut buffer[..count * rows.cols];
        for (row, line) in (first..).zip(lines.chunks_exact_mut(rows.cols)) {
            matrix.expand_row(row, line);
        }
        // SAFETY: numbers are plain bytes.
        let data = unsafe { std::slice::from_raw_parts(lines.as_ptr().cast::<u8>(), size_of_val(lines)) };
        let block = Rows { data, dtype: DType::F32, count, out_start: first, ..*rows };
        multiply(level, &block, x);
        first += count;
    }
}

fn multiply(level: Level, rows: &Rows<'_>, x: Input<'_>) {
    match x {
        Input::F32(x) | Input::Rounded(x, _) => f32_dot::run(level, rows, x),
        Input::Bf16(x) => bf16_dot::run(level, rows, x),
    }
}

#[cfg(test)]
mod tests;
