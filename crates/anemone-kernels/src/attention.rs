//! Causal grouped-query attention over a block cache.
//!
//! Keys are cached in blocks of 16 positions, each `[dim, 16]`, so that a block's scores are one vector with no reduction;
//! values are rows. Blocks are aligned to absolute positions, also in a ring, so a query sees its keys in the same order and
//! grouping whatever the chunk it arrives in.

#![allow(unsafe_code, reason = "vector loads from cache blocks; threads write disjoint heads and tokens")]

mod cache;

pub use cache::{BLOCK, Cache, CacheElement};

use half::f16;

use crate::Context;
use crate::simd::{self, Element, Isa, Shared, dispatch};
use cache::Store;

/// Query rows (token and head pairs that share keys) a task handles.
const TASK_ROWS: usize = 8;
/// Multiply-adds below which handing work over costs more than doing it.
const MIN_PARALLEL: usize = 64 << 10;
/// Query rows whose sums are kept in registers together.
const GROUP: usize = 4;

/// Heads and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub dim: usize,
}

/// Floats of scratch [`attention`] needs for queries that see at most `keys` keys each in a pass of `tokens`.
pub fn scratch_len(context: &Context, keys: usize, tokens: usize) -> usize {
    context.pool().threads() * TASK_ROWS * (keys + tokens.min(TASK_ROWS) + 2 * BLOCK).next_multiple_of(BLOCK)
}

struct Job<'a, E> {
    q: &'a [f32],
    store: &'a Store<E>,
    shape: AttentionShape,
    start: usize,
    tokens: usize,
    window: Option<usize>,
    scale: f32,
    out: Shared<f32>,
}

/// Attends every query to the cached keys at or before its position, and within `window` keys of it (itself included).
///
/// `q` (after rope) and `out`: `[tokens, heads, dim]`. The keys of this pass must already be in the cache. `start` is the
/// position of the first query; `scratch` has at least [`scratch_len`] floats.
#[expect(clippy::too_many_arguments, reason = "one call of a kernel: inputs, geometry, output, scratch")]
pub fn attention(
    context: &Context,
    q: &[f32],
    cache: &Cache,
    start: usize,
    tokens: usize,
    window: Option<usize>,
    scale: f32,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let shape = cache.shape();
    assert!(q.len() == tokens * shape.heads * shape.dim && q.len() == out.len(), "lengths");
    assert!(window != Some(0), "a window holds at least the query itself");
    let keys = window.map_or(start + tokens, |w| w.min(start + tokens));
    assert!(scratch.len() >= scratch_len(context, keys, tokens), "scratch length");
    let first_key = window.map_or(0, |w| (start + 1).saturating_sub(w));
    assert!(
        cache.holds(first_key, start + tokens),
        "keys {first_key}..{} are not in the cache",
        start + tokens
    );
    let out = Shared::new(out);
    macro_rules! job {
        ($store:expr) => {
            Job { q, store: $store, shape, start, tokens, window, scale, out }
        };
    }
    let rows = tokens * (shape.heads / shape.kv_heads);
    let tiles = rows.div_ceil(TASK_ROWS);
    let per_thread = scratch.len() / context.pool().threads();
    let scratch = Shared::new(scratch);
    let level = context.level();
    let work = keys * tokens * shape.heads * shape.dim;
    let run = |task: &(dyn Fn(usize, usize, &mut [f32]) + Sync)| {
        let one = |thread: usize, index: usize| {
            // SAFETY: each thread runs one task at a time and has its own part.
            let scratch = unsafe { scratch.slice(thread * per_thread, per_thread) };
            task(index / tiles, index % tiles, scratch);
        };
        let tasks = shape.kv_heads * tiles;
        if work < MIN_PARALLEL { (0..tasks).for_each(|i| one(0, i)) } else { context.pool().run(tasks, &one) }
    };
    match cache.element() {
        CacheElement::F32 => {
            let job = &job!(cache.f32_store());
            run(&|head, tile, scratch| {
                dispatch!(level, rows_of_tile::<I, f32>(job: &Job<'_, f32>, head: usize, tile: usize, scratch: &mut [f32]));
            });
        }
        CacheElement::F16 => {
            let job = &job!(cache.f16_store());
            run(&|head, tile, scratch| {
                dispatch!(level, rows_of_tile::<I, f16>(job: &Job<'_, f16>, head: usize, tile: usize, scratch: &mut [f32]));
            });
        }
    }
}

/// Stores keys (after rope) and values of `tokens` tokens from position `start`; each `[tokens, kv_heads, dim]`.
///
/// Values beyond the f16 range are stored as its largest, so that a cached number is always finite.
pub fn write_cache(context: &Context, cache: &mut Cache, start: usize, tokens: usize, k: &[f32], v: &[f32]) {
    cache.write(context, start, tokens, k, v);
}

/// # Safety
/// Instruction set as [`Isa`].
#[inline(always)]
unsafe fn rows_of_tile<I: Isa, E: Element>(job: &Job<'_, E>, head: usize, tile: usize, scratch: &mut [f32]) {
    let group = job.shape.heads / job.shape.kv_heads;
    let end = ((tile + 1) * TASK_ROWS).min(job.tokens * group);
    let mut row = tile * TASK_ROWS;
    while row < end {
        // SAFETY: rows `row..row + R` are below `end`; the instruction set is the caller's to guarantee.
        unsafe {
            match end - row {
                1 => rows_at_once::<I, E, 1>(job, head, row, scratch),
                2 => rows_at_once::<I, E, 2>(job, head, row, scratch),
                3 => rows_at_once::<I, E, 3>(job, head, row, scratch),
                _ => rows_at_once::<I, E, GROUP>(job, head, row, scratch),
            }
        }
        row += GROUP;
    }
}

/// # Safety
/// Instruction set as [`Isa`]; `R` rows from `row` exist.
#[inline(always)]
unsafe fn rows_at_once<I: Isa, E: Element, const R: usize>(
    job: &Job<'_, E>,
    head: usize,
    row: usize,
    scratch: &mut [f32],
) {
    let AttentionShape { heads, kv_heads, dim } = job.shape;
    let group = heads / kv_heads;
    // Offset of a row's query and output, and the keys it sees.
    let offset: [usize; R] =
        std::array::from_fn(|r| ((row + r) / group * heads + head * group + (row + r) % group) * dim);
    let keys: [(usize, usize); R] = std::array::from_fn(|r| {
        let end = job.start + (row + r) / group + 1;
        (job.window.map_or(0, |w| end.saturating_sub(w)), end)
    });
    let first = keys[0].0 / BLOCK * BLOCK;
    let width = keys[R - 1].1.next_multiple_of(BLOCK) - first;
    let scores = &mut scratch[..R * width];
    let q: [&[f32]; R] = std::array::from_fn(|r| &job.q[offset[r]..offset[r] + dim]);
    // SAFETY: blocks come whole from the cache; `scores` has `width` floats for each row, whole blocks.
    unsafe {
        for at in (0..width).step_by(BLOCK) {
            let block = job.store.keys((first + at) / BLOCK, head).as_ptr();
            for lane in (0..BLOCK).step_by(I::LANES) {
                let mut acc = [I::splat(0.0); R];
                for d in 0..dim {
                    let k = E::load::<I>(block.add(d * BLOCK + lane));
                    for (a, q) in acc.iter_mut().zip(q) {
                        *a = I::fma(I::splat(*q.get_unchecked(d)), k, *a);
                    }
                }
                for (r, a) in acc.into_iter().enumerate() {
                    I::store(scores.as_mut_ptr().add(r * width + at + lane), I::mul(a, I::splat(job.scale)));
                }
            }
        }
        let mut inverse = [0.0f32; R];
        for (r, (from, to)) in keys.into_iter().enumerate() {
            inverse[r] =
                1.0 / softmax_terms::<I>(&mut scores[r * width..(r + 1) * width], from - first, to - first);
        }
        weigh_values::<I, E, R>(job, head, first, scores, inverse, offset);
    }
}

/// Turns scores into `e^(score − max)` inside `from..to` and zero outside, and returns their sum.
///
/// # Safety
/// Instruction set as [`Isa`]; the slice is whole blocks.
#[inline(always)]
unsafe fn softmax_terms<I: Isa>(scores: &mut [f32], from: usize, to: usize) -> f32 {
    scores[..from].fill(f32::NEG_INFINITY);
    scores[to..].fill(f32::NEG_INFINITY);
    let p = scores.as_mut_ptr();
    // SAFETY: whole vectors inside whole blocks.
    unsafe {
        let mut max = I::splat(f32::NEG_INFINITY);
        for i in (0..scores.len()).step_by(I::LANES) {
            max = I::max(max, I::load(p.add(i)));
        }
        let max = I::splat(I::max_lane(max));
        for i in (0..scores.len()).step_by(I::LANES) {
            I::store(p.add(i), simd::exp::<I>(I::sub(I::load(p.add(i)), max)));
        }
        // The clamped exponential of -inf is tiny, not zero.
        scores[..from].fill(0.0);
        scores[to..].fill(0.0);
        // Lane `i mod 16` sums positions equal modulo 16: leading and trailing zero blocks change no bit.
        let mut sums = [I::splat(0.0); 4];
        let vectors = BLOCK / I::LANES;
        for i in (0..scores.len()).step_by(BLOCK) {
            for (j, s) in sums[..vectors].iter_mut().enumerate() {
                *s = I::add(*s, I::load(p.add(i + j * I::LANES)));
            }
        }
        let mut total = I::sum(sums[0]);
        for s in &sums[1..vectors] {
            total += I::sum(*s);
        }
        total
    }
}

/// `out = Σ_key term · value / sum`, keys in order of position.
///
/// # Safety
/// Instruction set as [`Isa`]; `terms` is `R` rows of whole blocks from position `first`; `offset` lies inside `out` and
/// belongs to this task.
#[inline(always)]
unsafe fn weigh_values<I: Isa, E: Element, const R: usize>(
    job: &Job<'_, E>,
    head: usize,
    first: usize,
    terms: &[f32],
    inverse: [f32; R],
    offset: [usize; R],
) {
    const WIDE: usize = 2;
    let dim = job.shape.dim;
    let padded = job.store.value_width();
    let width = terms.len() / R;
    let mut d = 0;
    while d < dim {
        // The last vectors may reach into the padding of a row, never beyond it.
        let wide = ((padded - d) / I::LANES).min(WIDE);
        // SAFETY: value rows are `padded` long, a multiple of 16; `terms` rows are `width` long.
        unsafe {
            let mut acc = [[I::splat(0.0); WIDE]; R];
            for at in (0..width).step_by(BLOCK) {
                let values = job.store.values((first + at) / BLOCK, head).as_ptr();
                for i in 0..BLOCK {
                    let row = values.add(i * padded + d);
                    let mut v = [I::splat(0.0); WIDE];
                    for (w, v) in v[..wide].iter_mut().enumerate() {
                        *v = E::load::<I>(row.add(w * I::LANES));
                    }
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let p = I::splat(*terms.get_unchecked(r * width + at + i));
                        for (a, v) in acc.iter_mut().zip(v) {
                            *a = I::fma(p, v, *a);
                        }
                    }
                }
            }
            for r in 0..R {
                for (w, a) in acc[r][..wide].iter().enumerate() {
                    let at = d + w * I::LANES;
                    if at < dim {
                        let n = (dim - at).min(I::LANES);
                        let out = job.out.slice(offset[r] + at, n);
                        I::store_n(out.as_mut_ptr(), I::mul(*a, I::splat(inverse[r])), n);
                    }
                }
            }
        }
        d += wide * I::LANES;
    }
}

#[cfg(test)]
mod tests;
