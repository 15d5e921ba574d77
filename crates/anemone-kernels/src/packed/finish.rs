//! What follows on a tile's sums: those of other blocks, the bias, and what becomes of the result.

use half::bf16;

use super::lane::{Lane, Sums};
use super::panels::{GATE, PANEL};
use super::{Task, Then};
use crate::activation::{self, Activation};
use crate::convert::Output;
use crate::simd::{Isa, Shared, load_up_to};

/// [`Then`] as tasks share it.
#[derive(Clone, Copy)]
pub(super) enum Place<E> {
    Store(Shared<f32>),
    Add(Shared<f32>),
    Activate(Activation, Shared<E>),
    Gate(Activation, Shared<E>),
}

impl<E> Place<E> {
    fn of(then: Then<'_>, shared: impl Fn(Output<'_>) -> Shared<E>) -> Self {
        match then {
            Then::Store(out) => Self::Store(Shared::new(out)),
            Then::Add(out) => Self::Add(Shared::new(out)),
            Then::Activate(activation, out) => Self::Activate(activation, shared(out)),
            Then::Gate(activation, out) => Self::Gate(activation, shared(out)),
        }
    }
}

impl Place<f32> {
    pub(super) fn wide(then: Then<'_>) -> Self {
        Self::of(then, |out| match out {
            Output::F32(out) => Shared::new(out),
            Output::Bf16(_) => panic!("the output's type is not the input's"),
        })
    }
}

impl Place<bf16> {
    pub(super) fn paired(then: Then<'_>) -> Self {
        Self::of(then, |out| match out {
            Output::Bf16(out) => Shared::new(out),
            Output::F32(_) => panic!("the output's type is not the input's"),
        })
    }
}

/// A block of the inner dimension, and the sums of those before it, `[tokens of the task, PANEL]`; null when there is only one.
pub(super) struct Block {
    pub(super) is_first: bool,
    pub(super) is_last: bool,
    pub(super) partial: *mut f32,
}

impl Block {
    /// The sum over all blocks so far of a token of the task and a column of the panel; kept for the next block unless this is the last.
    ///
    /// # Safety
    /// As [`Lane`]; the token and `LANES` columns exist.
    #[inline(always)]
    unsafe fn total<L: Lane>(&self, token: usize, column: usize, sum: Sums<L>) -> Sums<L> {
        if self.is_first && self.is_last {
            return sum;
        }
        // SAFETY: partial sums have room for the token's columns; those of the first block are written before they are read.
        unsafe {
            let place = self.partial.add(token * PANEL + column);
            let sum = if self.is_first { sum } else { L::I::add(L::I::load(place), sum) };
            if !self.is_last {
                L::I::store(place, sum);
            }
            sum
        }
    }
}

/// Finishes tokens `t..` and columns `column..` of the task's panel, of which `left` exist.
///
/// # Safety
/// As [`Lane`]; the task's part of the output is its own.
#[inline(always)]
pub(super) unsafe fn plain_tile<L: Lane, const R: usize, const V: usize>(
    task: &Task<'_, L::Element>,
    t: usize,
    column: usize,
    left: usize,
    sums: &[[Sums<L>; V]; R],
    block: &Block,
) {
    let (lanes, rows) = (L::I::LANES, task.weight.rows());
    for v in 0..V {
        let (column, n) = (column + v * lanes, left.saturating_sub(v * lanes).min(lanes));
        if n == 0 {
            return;
        }
        let row = task.panel * PANEL + column;
        // SAFETY: `n` rows exist from `row` on, in the bias and in every token's output, which are this task's.
        unsafe {
            let bias = task.bias.map(|bias| load_up_to::<L::I>(bias.as_ptr().add(row), n));
            for (r, sums) in sums.iter().enumerate() {
                let mut sum = block.total::<L>(t + r - task.first, column, sums[v]);
                if !block.is_last {
                    continue;
                }
                if let Some(bias) = bias {
                    sum = L::I::add(sum, bias);
                }
                let at = (t + r) * rows + row;
                match task.place {
                    Place::Store(out) => put::<L>(out.slice(at, n), sum),
                    Place::Add(out) => {
                        let out = out.slice(at, n);
                        let before = load_up_to::<L::I>(out.as_ptr(), n);
                        put::<L>(out, L::I::add(sum, before));
                    }
                    Place::Activate(activation, out) | Place::Gate(activation, out) => {
                        let result = activation::apply::<L::I>(activation, sum);
                        L::put(out.slice(at, n).as_mut_ptr(), result, n);
                    }
                }
            }
        }
    }
}

/// # Safety
/// As [`Lane`].
#[inline(always)]
unsafe fn put<L: Lane>(out: &mut [f32], v: Sums<L>) {
    // SAFETY: the slice holds as many elements.
    unsafe {
        if out.len() == L::I::LANES {
            L::I::store(out.as_mut_ptr(), v);
        } else {
            L::I::store_n(out.as_mut_ptr(), v, out.len());
        }
    }
}

/// Finishes gates of tokens `t..`: columns `column..` of the task's panel stand in the order of [`super::RowOrder::Gated`]; `gates` holds
/// the second halves where they are not in `sums` itself.
///
/// # Safety
/// As [`plain_tile`].
#[inline(always)]
pub(super) unsafe fn gate_tile<L: Lane, const R: usize, const V: usize>(
    task: &Task<'_, L::Element>,
    t: usize,
    column: usize,
    sums: &[[Sums<L>; V]; R],
    gates: Option<&[[Sums<L>; V]; R]>,
    block: &Block,
) {
    let (lanes, width) = (L::I::LANES, task.weight.rows() / 2);
    let Place::Gate(activation, out) = task.place else { unreachable!("gated panels are for gates") };
    for v in 0..V {
        let column = column + v * lanes;
        if column / GATE % 2 == 1 {
            continue;
        }
        let channel = task.panel * PANEL / 2 + column / (2 * GATE) * GATE + column % GATE;
        let n = width.saturating_sub(channel).min(lanes);
        if n == 0 {
            break;
        }
        // SAFETY: `n` channels exist from `channel` on in both halves and in every token's output, which are this task's.
        unsafe {
            let bias = task.bias.map(|bias| {
                let bias = bias.as_ptr().add(channel);
                (load_up_to::<L::I>(bias, n), load_up_to::<L::I>(bias.add(width), n))
            });
            for (r, sums) in sums.iter().enumerate() {
                let gate = gates.map_or_else(|| sums[(v + GATE / lanes) % V], |gates| gates[r][v]);
                let mut a = block.total::<L>(t + r - task.first, column, sums[v]);
                let mut g = block.total::<L>(t + r - task.first, column + GATE, gate);
                if !block.is_last {
                    continue;
                }
                if let Some((first, second)) = bias {
                    a = L::I::add(a, first);
                    g = L::I::add(g, second);
                }
                let result = L::I::mul(activation::apply::<L::I>(activation, a), g);
                L::put(out.slice((t + r) * width + channel, n).as_mut_ptr(), result, n);
            }
        }
    }
}
