//! Blocks of a bundle's sequences: cache rows as the host holds them, or as states do.
//!
//! A block holds, cache by cache in the order of the plan, keys and values `[rows, width]` of its own positions, or of a layer
//! with a window of those that positions after the block can see, and the convolution window `[width, reach]` at its end, all as
//! f32. Rings and windows move on, so their part is put aside as soon as a pass has gone over the end of a block.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use anemone_ane::{CachePlan, StatePlan};
use anemone_mil::Array;

use super::{Chunk, GraphEngine, Pending, masks};
use crate::{BLOCK_TOKENS, Block, BlockFormat, EngineError};

/// Ends of blocks whose rings and windows are kept; the oldest goes first.
const BORDERS: usize = 32;

/// Parts of blocks that later passes overwrite, by the position of the block's end.
pub(super) type Borders = VecDeque<(usize, Vec<f32>)>;

/// Rows a cache with a window, or without one, puts into a block.
fn rows(window: Option<usize>) -> usize {
    window.map_or(BLOCK_TOKENS, |w| (w - 1).min(BLOCK_TOKENS))
}

/// Numbers of a cache in a block.
fn numbers(plan: &CachePlan) -> usize {
    match *plan {
        CachePlan::Attention { width, window, .. } => 2 * rows(window) * width,
        CachePlan::ShortConv { width, reach, .. } => width * reach,
    }
}

/// Whether later passes may overwrite what a block holds of it.
fn moves_on(plan: &CachePlan) -> bool {
    !matches!(plan, CachePlan::Attention { ring: false, .. })
}

/// Keys or values, with the distances of a row and of a channel.
type Grid<'a> = (&'a [f32], usize, usize);

/// Keys and values of one layer wherever they are.
struct Rows<'a> {
    width: usize,
    /// Cached rows, in a ring by position.
    rows: usize,
    cached: [Grid<'a>; 2],
    /// Those of the latest pass, and the position of its first row.
    new: Option<([Grid<'a>; 2], usize)>,
}

impl Rows<'_> {
    /// Appends keys, then values, of positions that are all held.
    fn append(&self, positions: &Range<usize>, out: &mut Vec<f32>) {
        for part in 0..2 {
            for position in positions.clone() {
                let ((data, row, channel), at) = match &self.new {
                    Some((new, first)) if position >= *first => (new[part], position - first),
                    _ => (self.cached[part], position % self.rows),
                };
                out.extend((0..self.width).map(|c| data[at * row + c * channel]));
            }
        }
    }
}

impl Chunk {
    /// A layer's place in the chunk's states: the state, and the first channel of its keys.
    fn state_of(&self, layer: usize, width: usize) -> Option<(&StatePlan, usize)> {
        let mut states = self.contract.plan.states.iter();
        let state = states.find(|s| s.layers.contains(&layer))?;
        let of = |layer: &usize| {
            self.contract.plan.caches.iter().find_map(|plan| match plan {
                CachePlan::Attention { layer: l, width, .. } if l == layer => Some(2 * width),
                _ => None,
            })
        };
        let before = state.layers.iter().take_while(|l| **l != layer).map(|l| of(l).unwrap_or(2 * width));
        Some((state, before.sum()))
    }
}

impl GraphEngine {
    fn plans(&self) -> impl Iterator<Item = (usize, &CachePlan)> {
        self.chunks.iter().enumerate().flat_map(|(i, c)| c.contract.plan.caches.iter().map(move |p| (i, p)))
    }

    /// Where keys and values of a layer are; `None` where there are none yet.
    fn rows_of(&self, chunk: usize, plan: &CachePlan) -> Option<Rows<'_>> {
        let CachePlan::Attention { layer, rows, width, .. } = *plan else { return None };
        if let Some((state, channel)) = self.chunks[chunk].state_of(layer, width) {
            let array = self.chunks[chunk].states.get(&state.name)?;
            let at = |channel: usize| (&array.data[channel * state.rows..], 1, state.rows);
            return Some(Rows {
                width,
                rows: state.rows,
                cached: [at(channel), at(channel + width)],
                new: None,
            });
        }
        let array = |name: String| Some(&*self.caches.get(&name)?.data);
        let cached = [(array(format!("k_{layer}"))?, width, 1), (array(format!("v_{layer}"))?, 1, rows)];
        let new = self.pending.as_ref().and_then(|pending| {
            let new = &pending.rows[chunk];
            let (k, v) = (new.get(&format!("k_{layer}_new"))?, new.get(&format!("v_{layer}_new"))?);
            Some(([(&*k.data, width, 1), (&*v.data, 1, v.shape[3])], self.committed))
        });
        Some(Rows { width, rows, cached, new })
    }

    /// Puts aside what blocks that end within the pending pass hold of rings and windows.
    pub(super) fn pass_borders(&mut self) {
        let Some(Pending { tokens, .. }) = self.pending else { return };
        let start = self.committed;
        for border in (start / BLOCK_TOKENS + 1)..=((start + tokens) / BLOCK_TOKENS) {
            let end = border * BLOCK_TOKENS;
            let Some(part) = self.moving_part(end) else { continue };
            self.borders.retain(|(at, _)| *at < end);
            if self.borders.len() == BORDERS {
                self.borders.pop_front();
            }
            self.borders.push_back((end, part));
        }
    }

    /// What a block that ends at `end`, in the pending pass, holds of rings and windows; `None` when it is gone.
    fn moving_part(&self, end: usize) -> Option<Vec<f32>> {
        let pending = self.pending.as_ref()?;
        let mut part = Vec::new();
        for (chunk, plan) in self.plans().filter(|(_, plan)| moves_on(plan)) {
            match plan {
                CachePlan::Attention { window, .. } => {
                    let in_state = !self.chunks[chunk].contract.plan.states.is_empty();
                    if in_state && masks::first_shown(plan, self.written) > end {
                        return None;
                    }
                    let positions = end - rows(*window)..end;
                    self.rows_of(chunk, plan)?.append(&positions, &mut part);
                }
                CachePlan::ShortConv { layer, width, reach } => {
                    let window = pending.rows[chunk].get(&format!("conv_{layer}_window"))?;
                    let (columns, at) = (window.shape[3], end - self.committed);
                    let channel = |c: usize| &window.data[c * columns + at..c * columns + at + reach];
                    part.extend((0..*width).flat_map(channel));
                }
            }
        }
        Some(part)
    }

    pub(super) fn format_of_blocks(&self) -> BlockFormat {
        let numbers: usize = self.plans().map(|(_, plan)| numbers(plan)).sum();
        let needed = self.plans().map(|(_, plan)| match plan {
            CachePlan::Attention { window: Some(w), .. } => (w - 1).div_ceil(BLOCK_TOKENS),
            _ => 1,
        });
        let text = format!("graph {} {BLOCK_TOKENS} {}", env!("CARGO_PKG_VERSION"), self.bundle_hash);
        BlockFormat { text, bytes: 4 * numbers, needed: needed.max().unwrap_or(1).max(1) }
    }

    pub(super) fn export_block(&self, index: usize) -> Option<Block> {
        let end = (index + 1) * BLOCK_TOKENS;
        let held = self.committed + self.pending.as_ref().map_or(0, |p| p.tokens);
        if end > held {
            return None;
        }
        let moving = self.borders.iter().find(|(at, _)| *at == end).map(|(_, part)| part.as_slice());
        let complete = moving.is_some() || self.plans().all(|(_, plan)| !moves_on(plan));
        let mut moving = moving.unwrap_or_default();
        let mut block: Vec<f32> = Vec::new();
        for (chunk, plan) in self.plans() {
            let n = numbers(plan);
            if !moves_on(plan) {
                let CachePlan::Attention { window, .. } = plan else { return None };
                let positions = end - rows(*window)..end;
                self.rows_of(chunk, plan)?.append(&positions, &mut block);
            } else if let Some((part, rest)) = moving.split_at_checked(n) {
                block.extend_from_slice(part);
                moving = rest;
            } else {
                block.resize(block.len() + n, 0.0);
            }
        }
        if !block.iter().all(|x| x.is_finite()) {
            return None;
        }
        Some(Block { bytes: block.into_iter().flat_map(f32::to_le_bytes).collect(), complete })
    }

    pub(super) fn import_blocks(&mut self, blocks: &[Arc<Block>]) -> Result<(), EngineError> {
        let format = self.format_of_blocks();
        let tokens = blocks.len() * BLOCK_TOKENS;
        let refuse = |problem: String| {
            Err(EngineError::new(format!(
                "{problem}; the blocks are another bundle's or damaged, so feed the tokens again"
            )))
        };
        if tokens > self.ctx {
            return refuse(format!(
                "{tokens} tokens of blocks do not fit the bundle's context of {}",
                self.ctx
            ));
        }
        if format.usable(blocks) != blocks.len() {
            return refuse("the last blocks do not hold all that comes next needs".into());
        }
        let mut parsed = Vec::with_capacity(blocks.len());
        for block in blocks {
            if block.bytes.len() != format.bytes {
                return refuse(format!("a block of {} bytes has {}", format.bytes, block.bytes.len()));
            }
            let numbers = block.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
            let numbers: Vec<f32> = numbers.collect();
            if !numbers.iter().all(|x| x.is_finite()) {
                return refuse("a block holds a value that is not finite".into());
            }
            parsed.push(numbers);
        }
        self.clear();
        let plans: Vec<(usize, CachePlan)> = self.plans().map(|(i, p)| (i, p.clone())).collect();
        let mut at = 0;
        for (chunk, plan) in plans {
            let n = numbers(&plan);
            let parts: Vec<&[f32]> = parsed.iter().map(|block| &block[at..at + n]).collect();
            self.import_cache(chunk, &plan, &parts);
            at += n;
        }
        self.committed = tokens;
        self.written =
            if self.chunks.iter().any(|c| !c.contract.plan.states.is_empty()) { tokens } else { 0 };
        self.marks.push_back((tokens, self.caches.save()));
        Ok(())
    }

    /// Puts a cache's parts of a chain of blocks in their places.
    fn import_cache(&mut self, chunk: usize, plan: &CachePlan, parts: &[&[f32]]) {
        match *plan {
            CachePlan::ShortConv { layer, .. } => {
                if let (Some(array), Some(window)) =
                    (self.caches.get_mut(&format!("conv_{layer}")), parts.last())
                {
                    array.data.copy_from_slice(window);
                }
            }
            CachePlan::Attention { layer, rows: cached, width, window, .. } => {
                let own = rows(window);
                let put = |set: &mut dyn FnMut(usize, usize, usize, f32)| {
                    for (i, part) in parts.iter().enumerate() {
                        let first = (i + 1) * BLOCK_TOKENS - own;
                        for (j, x) in part.iter().enumerate() {
                            let (half, in_half) = (j / (own * width), j % (own * width));
                            set(half, first + in_half / width, in_half % width, *x);
                        }
                    }
                };
                if let Some((state, channel)) = self.chunks[chunk].state_of(layer, width) {
                    let (name, channels, rows) = (state.name.clone(), state.channels, state.rows);
                    let states = &mut self.chunks[chunk].states;
                    let array = states.entry(name).or_insert_with(|| Array::zeros(&[1, channels, 1, rows]));
                    put(&mut |half, position, c, x| {
                        array.data[(channel + half * width + c) * rows + position % rows] = x;
                    });
                    return;
                }
                // In two turns, since both arrays lie in one map.
                for (half, name) in [(0, format!("k_{layer}")), (1, format!("v_{layer}"))] {
                    let Some(array) = self.caches.get_mut(&name) else { continue };
                    put(&mut |of, position, c, x| {
                        let row = position % cached;
                        if of == half {
                            array.data[if half == 0 { row * width + c } else { c * cached + row }] = x;
                        }
                    });
                }
            }
        }
    }
}
