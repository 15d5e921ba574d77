//! Dense products of many tokens with weights laid out for them, and what follows on their results.
//!
//! A matrix is cut into panels of 64 output channels, each stored in the order a product reads it. Every output is a running
//! sum over the inner dimension, in blocks that depend on the matrix alone: as in the rest of the crate a token's result
//! does not depend on its company. It is not the order of [`crate::matmul()`], so the two agree up to rounding only.

#![allow(unsafe_code, reason = "raw loads from panels; threads write disjoint parts")]
#![allow(
    clippy::large_stack_arrays,
    reason = "352 KiB, a fifth of the smallest stack this runs on; kernels do not allocate"
)]

mod finish;
pub(crate) mod lane;
mod panels;

use std::mem::MaybeUninit;

use anemone_tensor::DType;
use half::{bf16, f16};

use crate::activation::Activation;
use crate::convert::Output;
use crate::matmul::Input;
use crate::simd::pairs::{Pairs, dispatch_pairs};
use crate::simd::{Element, Isa, dispatch};
use crate::{Context, Level};
use finish::{Block, Place, gate_tile, plain_tile};
use lane::{Lane, Paired, ROWS, Wide, tile, with_rows};
pub(crate) use panels::PANEL;
pub use panels::{PanelPlan, Panels, RowOrder};

/// Inner elements whose weights are widened together.
const BLOCK: usize = 1152;
/// Tokens a task has at least, where there are as many.
const FEWEST: usize = 48;
/// Tokens a task has at most when its sums go over several blocks.
const MOST: usize = 252;

/// What becomes of a product's result `[tokens, rows]`.
#[derive(Debug)]
pub enum Then<'a> {
    /// It is written: `[tokens, rows]`.
    Store(&'a mut [f32]),
    /// It is added to what is there: `[tokens, rows]`.
    Add(&'a mut [f32]),
    /// A function of it is written, in the type of the product's input: `[tokens, rows]`.
    Activate(Activation, Output<'a>),
    /// A function of its first half is multiplied by its second: `[tokens, rows / 2]`, in the type of the product's input. The panels
    /// were made in [`RowOrder::Gated`].
    Gate(Activation, Output<'a>),
}

/// A product `x [tokens, cols] · weightᵀ`, plus `bias [rows]` if there is one.
#[derive(Debug)]
pub struct PackedProduct<'a> {
    /// The weight matrix.
    pub weight: &'a Panels,
    /// Added to every token.
    pub bias: Option<&'a [f32]>,
    /// What becomes of the result.
    pub then: Then<'a>,
}

/// What a task computes: columns of one panel for a range of tokens.
struct Task<'a, E> {
    weight: &'a Panels,
    bias: Option<&'a [f32]>,
    place: Place<E>,
    panel: usize,
    first: usize,
    end: usize,
}

/// Computes a product; the input's type is the one the panels were made for.
///
/// Panics when a length or a type does not match.
pub fn matmul_packed(context: &Context, x: Input<'_>, tokens: usize, product: PackedProduct<'_>) {
    let PackedProduct { weight, bias, then } = product;
    assert_eq!(x.len(), tokens * weight.cols(), "input length");
    let (len, width) = match &then {
        Then::Store(out) | Then::Add(out) => (out.len(), weight.rows()),
        Then::Activate(_, out) => (out.len(), weight.rows()),
        Then::Gate(_, out) => (out.len(), weight.rows() / 2),
    };
    assert_eq!(len, tokens * width, "output length");
    assert!(bias.is_none_or(|b| b.len() == weight.rows()), "bias length");
    assert_eq!(matches!(x, Input::Bf16(_)), weight.is_paired(), "panels for this type of input");
    assert_eq!(
        matches!(then, Then::Gate(..)),
        weight.order() == RowOrder::Gated,
        "order of the panels' rows"
    );
    match x {
        Input::F32(x) | Input::Rounded(x, _) => {
            run(context, weight, bias, tokens, Place::wide(then), &|level, task| {
                dispatch!(level, widened::<I>(task: &Task<'_, f32>, x: &[f32]));
            });
        }
        Input::Bf16(x) => run(context, weight, bias, tokens, Place::paired(then), &|level, task| {
            dispatch_pairs!(level, paired::<M>(task: &Task<'_, bf16>, x: &[bf16]));
        }),
    }
}

/// Divides a product into tasks: panels, for all tokens if that makes enough of them, since every task reads its panel anew.
fn run<E: Copy + Send>(
    context: &Context,
    weight: &Panels,
    bias: Option<&[f32]>,
    tokens: usize,
    place: Place<E>,
    work: &(dyn Fn(Level, &Task<'_, E>) + Sync),
) {
    let panels = weight.panels();
    // A few tasks for each thread, so that a slowed core can be helped.
    let wanted = (4 * context.pool().threads()).div_ceil(panels.max(1));
    let most = if weight.cols() > BLOCK { MOST } else { usize::MAX };
    let share = tokens.div_ceil(wanted).clamp(FEWEST, most);
    let parts = tokens.div_ceil(share);
    let share = tokens.div_ceil(parts.max(1)).next_multiple_of(ROWS);
    context.pool().run(panels * parts, &|_, index| {
        let (part, panel) = (index / panels, index % panels);
        let (first, end) = (part * share, ((part + 1) * share).min(tokens));
        if first < end {
            work(context.level(), &Task { weight, bias, place, panel, first, end });
        }
    });
}

/// # Safety
/// Instruction set as [`Isa`]; the task lies in its product.
#[inline(always)]
unsafe fn widened<I: Isa>(task: &Task<'_, f32>, x: &[f32]) {
    // SAFETY: the panels' elements are of the type named.
    unsafe {
        match task.weight.dtype() {
            DType::F16 => blocks::<I, f16>(task, x),
            DType::BF16 => blocks::<I, bf16>(task, x),
            _ => blocks::<I, f32>(task, x),
        }
    }
}

/// # Safety
/// As [`widened`]; the panels hold elements of `E`.
#[inline(always)]
#[allow(clippy::cast_ptr_alignment, reason = "panels start at multiples of 64 bytes")]
unsafe fn blocks<I: Isa, E: Element>(task: &Task<'_, f32>, x: &[f32]) {
    let cols = task.weight.cols();
    let panel = task.weight.panel(task.panel).as_ptr().cast::<E>();
    let mut buffer = [const { MaybeUninit::<Line>::uninit() }; BLOCK * PANEL / 16];
    let mut partial = [const { MaybeUninit::<Line>::uninit() }; MOST * PANEL / 16];
    for k in (0..cols).step_by(BLOCK) {
        let depth = (cols - k).min(BLOCK);
        // SAFETY: the panel has `cols` steps of `PANEL` elements, the buffer room for `BLOCK`; a block is widened whole before it is read.
        unsafe {
            let source = panel.add(k * PANEL);
            let wide = if size_of::<E>() == 4 {
                source.cast::<f32>()
            } else {
                let wide = buffer.as_mut_ptr().cast::<f32>();
                for i in (0..depth * PANEL).step_by(I::LANES) {
                    I::store(wide.add(i), E::load::<I>(source.add(i)));
                }
                wide.cast_const()
            };
            let block =
                Block { is_first: k == 0, is_last: k + depth == cols, partial: partial.as_mut_ptr().cast() };
            columns::<Wide<I>>(task, x.as_ptr().add(k), depth, wide, &block);
        }
    }
}

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[allow(dead_code, reason = "room only")] [f32; 16]);

/// # Safety
/// As [`Pairs`]; the task lies in its product.
#[inline(always)]
#[allow(clippy::cast_ptr_alignment, reason = "panels start at multiples of 64 bytes")]
unsafe fn paired<M: Pairs>(task: &Task<'_, bf16>, x: &[bf16]) {
    let panel = task.weight.panel(task.panel).as_ptr().cast::<bf16>();
    let block = Block { is_first: true, is_last: true, partial: std::ptr::null_mut() };
    // SAFETY: the caller's contract; the only block needs no partial sums.
    unsafe { columns::<Paired<M>>(task, x.as_ptr(), task.weight.cols(), panel, &block) }
}

/// All columns of a task's panel, over a block of the inner dimension.
///
/// # Safety
/// As [`Lane`]; `x` is the first element of the block in the first token, `panel` the block's first step.
#[inline(always)]
unsafe fn columns<L: Lane>(
    task: &Task<'_, L::Element>,
    x: *const L::Element,
    depth: usize,
    panel: *const L::Element,
    block: &Block,
) {
    // SAFETY: the caller's contract. The sums of a tile take most of the registers there are.
    unsafe {
        if L::I::LANES == 8 {
            vectors::<L, 2>(task, x, depth, panel, block);
        } else {
            vectors::<L, 4>(task, x, depth, panel, block);
        }
    }
}

/// # Safety
/// As [`columns`]; `V` vectors are 16 columns or a panel.
#[inline(always)]
unsafe fn vectors<L: Lane, const V: usize>(
    task: &Task<'_, L::Element>,
    x: *const L::Element,
    depth: usize,
    panel: *const L::Element,
    block: &Block,
) {
    let (cols, gated) = (task.weight.cols(), task.weight.order() == RowOrder::Gated);
    let (width, stride) = (V * L::I::LANES, PANEL * L::DEPTH);
    let used = if gated { PANEL } else { (task.weight.rows() - task.panel * PANEL).min(PANEL) };
    let count = task.end - task.first;
    let groups = count.div_ceil(ROWS).max(1);
    // The next task's panel comes nearer meanwhile, where it will be read in one go.
    let is_read_at_once = !task.weight.is_paired() && task.panel + 1 < task.weight.panels();
    let next = if is_read_at_once { task.weight.panel(task.panel + 1) } else { &[] };
    let ahead = next.len().div_ceil(groups);
    // Halves of a gate are 16 columns apart; where that is a whole tile, two tiles make a result.
    let split = gated && width == 16;
    for column in (0..used).step_by(if split { 2 * width } else { width }) {
        let mut t = task.first;
        for group in 0..groups {
            // Groups differ by one token at most: a lone last token would cost as much as three.
            let n = count / groups + usize::from(group < count % groups);
            if column == 0 && block.is_last {
                for line in (group * ahead..((group + 1) * ahead).min(next.len())).step_by(64) {
                    L::I::prefetch(&raw const next[line]);
                }
            }
            // SAFETY: tokens `t..t + n` and the panel's columns exist; the task's part of the output is its own.
            unsafe {
                let (x, panel) = (x.add(t * cols), panel.add(column * L::DEPTH));
                with_rows!(n, R => {
                    let sums = tile::<L, R, V>(x, cols, depth, panel, stride);
                    if split {
                        let gates = tile::<L, R, V>(x, cols, depth, panel.add(width * L::DEPTH), stride);
                        gate_tile::<L, R, V>(task, t, column, &sums, Some(&gates), block);
                    } else if gated {
                        gate_tile::<L, R, V>(task, t, column, &sums, None, block);
                    } else {
                        plain_tile::<L, R, V>(task, t, column, used - column, &sums, block);
                    }
                });
            }
            t += n;
        }
    }
}

#[cfg(test)]
mod tests;
