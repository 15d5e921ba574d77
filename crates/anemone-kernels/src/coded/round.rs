//! Activations rounded to 8 bits.

use anemone_tensor::BLOCK;

use super::{STEP, STEPS};
use crate::Context;
use crate::simd::{Isa, Shared, dispatch};

/// Tokens multiplied together at most.
pub(super) const MOST: usize = 12;
/// Words kept of a token's block: codes, scale, scale times the sum of codes, and negated sums of codes: of either half, of both.
const WORDS: usize = STEPS + 5;
/// Elements below which threads cost more than they save.
const WORTH: usize = 16 << 10;
/// Blocks of a task.
const SHARE: usize = 32;
/// A block whose largest element is smaller is of zeros: its scale would not be a normal number.
const SMALLEST: f32 = 1e-30;

/// Activations `[tokens, cols]` rounded to 127 steps either side of zero, in blocks of 32 along a token.
///
/// Tokens stand in groups of at most 12, whose words for the same columns are side by side.
#[derive(Debug, Default)]
pub struct Rounded {
    words: Vec<u32>,
    tokens: usize,
    cols: usize,
}

/// Tokens that are multiplied together.
pub(super) struct Group<'a> {
    words: &'a [u32],
    /// The first token.
    pub(super) first: usize,
    /// Tokens, at most [`MOST`].
    pub(super) count: usize,
}

/// What is kept of the tokens of a group for one block, each a word for every token.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Codes of steps in order.
    pub(super) codes: *const i32,
    /// Scales.
    pub(super) scales: *const f32,
    /// Scales times the sums of codes.
    pub(super) sums: *const f32,
    /// Negated sums of codes: of the first half, of the second, of both.
    pub(super) negated: [*const i32; 3],
}

impl Rounded {
    /// Whether columns can be rounded: whole blocks.
    pub fn takes(cols: usize) -> bool {
        cols > 0 && cols.is_multiple_of(BLOCK)
    }

    /// Tokens held.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Elements of a token.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Takes over `x [tokens, cols]`; columns must be whole blocks. A block with a value that is no number makes results that are none.
    ///
    /// Panics when lengths do not fit.
    pub fn fill(&mut self, context: &Context, x: &[f32], tokens: usize) {
        let cols = x.len() / tokens.max(1);
        assert!(tokens > 0 && x.len() == tokens * cols && Self::takes(cols), "whole blocks for every token");
        (self.tokens, self.cols) = (tokens, cols);
        let len = x.len() / BLOCK * WORDS;
        if self.words.len() < len {
            self.words.resize(len, 0);
        }
        let (blocks, groups) = (cols / BLOCK, tokens.div_ceil(MOST));
        let words = Shared::new(&mut self.words[..len]);
        let shares = if x.len() < WORTH { 1 } else { blocks.div_ceil(SHARE) };
        let share = blocks.div_ceil(shares);
        let work = |task: usize| {
            let (group, part) = (task / shares, task % shares);
            let (first, count) = extent(tokens, groups, group);
            let (start, end) = (part * share, ((part + 1) * share).min(blocks));
            if start < end {
                let at = (first * blocks + start * count) * WORDS;
                // SAFETY: the words of a group's blocks are written by one task alone.
                let words = unsafe { words.slice(at, (end - start) * count * WORDS) };
                let x = &x[first * cols + start * BLOCK..(first + count - 1) * cols + end * BLOCK];
                dispatch!(context.level(), round_all::<I>(x: &[f32], cols: usize, count: usize, words: &mut [u32]));
            }
        };
        if x.len() < WORTH {
            (0..groups * shares).for_each(work);
        } else {
            context.pool().run(groups * shares, &|_, task| work(task));
        }
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let (blocks, groups) = (self.cols / BLOCK, self.tokens.div_ceil(MOST));
        (0..groups).map(move |group| {
            let (first, count) = extent(self.tokens, groups, group);
            let start = first * blocks * WORDS;
            Group { words: &self.words[start..start + count * blocks * WORDS], first, count }
        })
    }
}

/// First token of a group and their number. Groups differ by one token at most: a lone last token would cost as much as several.
fn extent(tokens: usize, groups: usize, group: usize) -> (usize, usize) {
    let (base, rest) = (tokens / groups, tokens % groups);
    (group * base + group.min(rest), base + usize::from(group < rest))
}

impl Group<'_> {
    /// What is kept for block `b`.
    #[inline(always)]
    pub(super) fn part(&self, b: usize) -> Part {
        let words = self.words[b * self.count * WORDS..][..self.count * WORDS].as_ptr();
        let row = |i: usize| words.wrapping_add(i * self.count);
        Part {
            codes: row(0).cast(),
            scales: row(STEPS).cast(),
            sums: row(STEPS + 1).cast(),
            negated: [row(STEPS + 2).cast(), row(STEPS + 3).cast(), row(STEPS + 4).cast()],
        }
    }
}

/// Rounds blocks of a group of `count` tokens, which are `cols` elements apart.
///
/// # Safety
/// Instruction set as [`Isa`].
#[inline(always)]
unsafe fn round_all<I: Isa>(x: &[f32], cols: usize, count: usize, words: &mut [u32]) {
    for (b, words) in words.chunks_exact_mut(count * WORDS).enumerate() {
        for t in 0..count {
            round(&x[t * cols + b * BLOCK..][..BLOCK], words, t, count);
        }
    }
}

/// Rounds a block of token `t` of a group of `count`.
#[inline(always)]
fn round(x: &[f32], words: &mut [u32], t: usize, count: usize) {
    // As whole numbers, so that what is no number is the largest.
    let largest = x.iter().fold(0u32, |most, v| most.max(v.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest);
    let (scale, inverse) = if largest < SMALLEST { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) };
    let mut codes = [0i8; BLOCK];
    for (code, v) in codes.iter_mut().zip(x) {
        *code = (v * inverse).round_ties_even() as i8;
    }
    let sum = |codes: &[i8]| codes.iter().map(|c| i32::from(*c)).sum::<i32>();
    let (first, second) = (sum(&codes[..BLOCK / 2]), sum(&codes[BLOCK / 2..]));
    let mut put = |row: usize, word: u32| words[row * count + t] = word;
    for (step, four) in codes.as_chunks::<STEP>().0.iter().enumerate() {
        put(step, u32::from_le_bytes(four.map(i8::cast_unsigned)));
    }
    put(STEPS, scale.to_bits());
    put(STEPS + 1, (scale * (first + second) as f32).to_bits());
    put(STEPS + 2, (-first).cast_unsigned());
    put(STEPS + 3, (-second).cast_unsigned());
    put(STEPS + 4, (-first - second).cast_unsigned());
}
