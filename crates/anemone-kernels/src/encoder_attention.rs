//! Attention in both directions over whole sequences, as encoders use it.
//!
//! Sequences of different lengths stand one after another without padding. Each (sequence, head, block of queries) is a task:
//! it transposes the keys its queries may see, so that scores are vectors over keys, and leaves out what lies beyond the radius.

#![allow(unsafe_code, reason = "vector loads from checked ranges; threads write disjoint heads and tokens")]

use crate::Context;
use crate::attention::softmax_terms;
use crate::simd::{Isa, Shared, dispatch};

/// Queries a task handles in a window, where every further one adds a key.
const NEAR_QUERIES: usize = 48;
/// Queries a task handles that see everything.
const QUERIES: usize = 96;
/// Queries whose sums are kept in registers together, at most.
const GROUP: usize = 6;
/// Keys of a panel; keys are padded to whole ones.
const PANEL: usize = 64;

/// Heads of fused projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderAttentionShape {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub dim: usize,
    /// A query sees keys at most this far away, on either side; all when absent.
    pub radius: Option<usize>,
}

/// A sequence among the tokens of a call.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// First token.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
    /// `[len, len]`, query by key: the pairs allowed; the radius then plays no part. All within the radius when absent.
    pub allowed: Option<&'a [bool]>,
}

struct Job<'a> {
    qkv: &'a [f32],
    shape: EncoderAttentionShape,
    scale: f32,
    out: Shared<f32>,
}

/// Floats of scratch [`encoder_attention`] needs for sequences of at most `len` tokens.
pub fn encoder_scratch_len(context: &Context, shape: EncoderAttentionShape, len: usize) -> usize {
    context.pool().threads() * (2 * shape.dim + GROUP) * len.next_multiple_of(PANEL)
}

/// Attends every query to the keys of its sequence that it may see.
///
/// `qkv`: `[tokens, 3, heads, dim]` (after rope); `out`: `[tokens, heads, dim]`. Sequences do not overlap and every query sees a
/// key. `scratch` has at least [`encoder_scratch_len`] floats.
pub fn encoder_attention(
    context: &Context,
    qkv: &[f32],
    sequences: &[Sequence<'_>],
    shape: EncoderAttentionShape,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let width = shape.heads * shape.dim;
    assert!(width > 0 && out.len().is_multiple_of(width) && qkv.len() == 3 * out.len(), "lengths");
    let tokens = out.len() / width;
    let (mut end, mut longest) = (0, 0);
    let mut blocks = Vec::new();
    for (i, s) in sequences.iter().enumerate() {
        assert!(s.start >= end && s.len <= tokens && s.start <= tokens - s.len, "sequences lie in order");
        assert!(s.allowed.is_none_or(|a| a.len() == s.len * s.len), "one entry for each pair");
        end = s.start + s.len;
        longest = longest.max(s.len);
        blocks.extend((0..s.len).step_by(queries(shape)).map(|q| (i, q)));
    }
    let per_thread = encoder_scratch_len(context, shape, longest) / context.pool().threads();
    assert!(scratch.len() >= per_thread * context.pool().threads(), "scratch length");
    let scratch = Shared::new(scratch);
    let job = &Job { qkv, shape, scale: 1.0 / (shape.dim as f32).sqrt(), out: Shared::new(out) };
    let level = context.level();
    context.pool().run(blocks.len() * shape.heads, &|thread, task| {
        // SAFETY: each thread runs one task at a time and has its own part.
        let scratch = unsafe { scratch.slice(thread * per_thread, per_thread) };
        let ((sequence, first), head) = (blocks[task / shape.heads], task % shape.heads);
        let sequence = &sequences[sequence];
        dispatch!(level, block::<I>(job: &Job<'_>, sequence: &Sequence<'_>, head: usize, first: usize, scratch: &mut [f32]));
    });
}

fn queries(shape: EncoderAttentionShape) -> usize {
    if shape.radius.is_some() { NEAR_QUERIES } else { QUERIES }
}

/// # Safety
/// Instruction set as [`Isa`]; the sequence and its head lie in the job's buffers; `scratch` is large enough for the sequence.
#[inline(always)]
unsafe fn block<I: Isa>(
    job: &Job<'_>,
    sequence: &Sequence<'_>,
    head: usize,
    first: usize,
    scratch: &mut [f32],
) {
    // SAFETY: the caller's contract. The sums of a group take most of the registers there are.
    unsafe {
        if I::LANES == 16 {
            block_of::<I, 6, 4>(job, sequence, head, first, scratch);
        } else {
            block_of::<I, 4, 2>(job, sequence, head, first, scratch);
        }
    }
}

/// [`block`] for groups of `R` queries and `V` vectors.
///
/// # Safety
/// As [`block`]; `R` is at most [`GROUP`], and `V` vectors divide a panel.
#[inline(always)]
unsafe fn block_of<I: Isa, const R: usize, const V: usize>(
    job: &Job<'_>,
    sequence: &Sequence<'_>,
    head: usize,
    first: usize,
    scratch: &mut [f32],
) {
    let EncoderAttentionShape { heads, dim, radius } = job.shape;
    let end = (first + queries(job.shape)).min(sequence.len);
    let radius = if sequence.allowed.is_some() { None } else { radius };
    let from = radius.map_or(0, |r| first.saturating_sub(r));
    let to = radius.map_or(sequence.len, |r| (end + r).min(sequence.len));
    let padded = (to - from).next_multiple_of(PANEL);
    let (keys, rest) = scratch.split_at_mut(dim * padded);
    let (values, scores) = rest.split_at_mut(dim * padded);
    let stride = 3 * heads * dim;
    let at = |token: usize, part: usize| (sequence.start + token) * stride + (part * heads + head) * dim;
    // Keys `[panel, dim, PANEL]`, values `[key, dim]`: both are then read in order.
    for (j, token) in (from..to).enumerate() {
        let panel = &mut keys[j / PANEL * PANEL * dim..];
        for (d, k) in job.qkv[at(token, 1)..][..dim].iter().enumerate() {
            panel[d * PANEL + j % PANEL] = *k;
        }
        values[j * dim..(j + 1) * dim].copy_from_slice(&job.qkv[at(token, 2)..][..dim]);
    }
    let used = (to - from) % PANEL;
    if used > 0 {
        let last = &mut keys[padded / PANEL * PANEL * dim - PANEL * dim..];
        for channel in last[..PANEL * dim].chunks_exact_mut(PANEL) {
            channel[used..].fill(0.0);
        }
    }
    for q in (first..end).step_by(R) {
        let n = (end - q).min(R);
        // The last group repeats its last query; only the first `n` results are kept.
        let queries: [&[f32]; R] = std::array::from_fn(|r| &job.qkv[at((q + r).min(end - 1), 0)..][..dim]);
        // SAFETY: `keys` and `values` have `padded` entries, `scores` as many for each query; panels are whole.
        unsafe {
            let scores = &mut scores[..R * padded];
            score::<I, R, V>(queries, keys, padded, job.scale, scores);
            let mut inverse = [0.0; R];
            for (r, scores) in scores.chunks_exact_mut(padded).enumerate() {
                let query = (q + r).min(end - 1);
                let low = radius.map_or(from, |x| query.saturating_sub(x).max(from));
                let high = radius.map_or(to, |x| (query + x + 1).min(to));
                if let Some(allowed) = sequence.allowed {
                    let allowed = &allowed[query * sequence.len..(query + 1) * sequence.len];
                    for (score, _) in scores.iter_mut().zip(allowed).filter(|(_, allowed)| !**allowed) {
                        *score = f32::NEG_INFINITY;
                    }
                }
                inverse[r] = 1.0 / softmax_terms::<I>(scores, low - from, high - from);
            }
            let offset = |r: usize| ((sequence.start + q + r) * heads + head) * dim;
            weigh::<I, R, V>(values, to - from, scores, dim, inverse, |r, d, v, m| {
                if r < n {
                    let out = job.out.slice(offset(r) + d, m);
                    I::store_n(out.as_mut_ptr(), v, m);
                }
            });
        }
    }
}

/// Scores of a group of queries with all keys.
///
/// # Safety
/// Instruction set as [`Isa`]; `keys` is `[padded / PANEL, dim, PANEL]`, `scores` `[R, padded]`; `V` vectors divide a panel.
#[inline(always)]
unsafe fn score<I: Isa, const R: usize, const V: usize>(
    queries: [&[f32]; R],
    keys: &[f32],
    padded: usize,
    scale: f32,
    scores: &mut [f32],
) {
    let dim = queries[0].len();
    // SAFETY: the caller's contract.
    unsafe {
        for j in (0..padded).step_by(V * I::LANES) {
            let panel = keys.as_ptr().add(j / PANEL * PANEL * dim + j % PANEL);
            let mut sums = [[I::splat(0.0); V]; R];
            for d in 0..dim {
                let k: [I::V; V] = std::array::from_fn(|v| I::load(panel.add(d * PANEL + v * I::LANES)));
                for (sums, q) in sums.iter_mut().zip(&queries) {
                    let q = I::splat(*q.get_unchecked(d));
                    for (sum, k) in sums.iter_mut().zip(k) {
                        *sum = I::fma(q, k, *sum);
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (v, sum) in sums.into_iter().enumerate() {
                    let out = scores.as_mut_ptr().add(r * padded + j + v * I::LANES);
                    I::store(out, I::mul(sum, I::splat(scale)));
                }
            }
        }
    }
}

/// Sums of values weighed by a group's terms: `put(query, channel, sums, lanes)`.
///
/// # Safety
/// Instruction set as [`Isa`]; `values` has `count` rows of `dim`; `terms` is `[R, padded]` with `count <= padded`.
#[inline(always)]
unsafe fn weigh<I: Isa, const R: usize, const V: usize>(
    values: &[f32],
    count: usize,
    terms: &[f32],
    dim: usize,
    inverse: [f32; R],
    mut put: impl FnMut(usize, usize, I::V, usize),
) {
    let padded = terms.len() / R;
    let mut d = 0;
    while d < dim {
        // SAFETY: channels `d..d + V * LANES` or the last few of each row, by the branch taken.
        unsafe {
            if dim - d >= V * I::LANES {
                let mut sums = [[I::splat(0.0); V]; R];
                for j in 0..count {
                    let row = values.as_ptr().add(j * dim + d);
                    let value: [I::V; V] = std::array::from_fn(|v| I::load(row.add(v * I::LANES)));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let p = I::splat(*terms.get_unchecked(r * padded + j));
                        for (sum, value) in sums.iter_mut().zip(value) {
                            *sum = I::fma(p, value, *sum);
                        }
                    }
                }
                for (r, sums) in sums.into_iter().enumerate() {
                    for (v, sum) in sums.into_iter().enumerate() {
                        put(r, d + v * I::LANES, I::mul(sum, I::splat(inverse[r])), I::LANES);
                    }
                }
                d += V * I::LANES;
            } else {
                let m = (dim - d).min(I::LANES);
                let mut sums = [I::splat(0.0); R];
                for j in 0..count {
                    let v = I::load_n(values.as_ptr().add(j * dim + d), m);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = I::fma(I::splat(*terms.get_unchecked(r * padded + j)), v, *sum);
                    }
                }
                for (r, sum) in sums.into_iter().enumerate() {
                    put(r, d, I::mul(sum, I::splat(inverse[r])), m);
                }
                d += m;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    fn expected(qkv: &[f32], s: &Sequence<'_>, shape: EncoderAttentionShape, out: &mut [f64]) {
        let EncoderAttentionShape { heads, dim, radius } = shape;
        let at = |t: usize, part: usize, h: usize| ((s.start + t) * 3 + part) * heads * dim + h * dim;
        for h in 0..heads {
            for q in 0..s.len {
                let sees = |k: usize| match s.allowed {
                    Some(allowed) => allowed[q * s.len + k],
                    None => radius.is_none_or(|r| q.abs_diff(k) <= r),
                };
                let score = |k: usize| {
                    let dot = |d| f64::from(qkv[at(q, 0, h) + d]) * f64::from(qkv[at(k, 1, h) + d]);
                    ((0..dim).map(dot).sum::<f64>() / (dim as f64).sqrt()).exp()
                };
                let terms: Vec<f64> = (0..s.len).map(|k| if sees(k) { score(k) } else { 0.0 }).collect();
                let sum: f64 = terms.iter().sum();
                for d in 0..dim {
                    let weighed: f64 =
                        terms.iter().enumerate().map(|(k, t)| t * f64::from(qkv[at(k, 2, h) + d])).sum();
                    out[((s.start + q) * heads + h) * dim + d] = weighed / sum;
                }
            }
        }
    }

    #[test]
    fn every_level_matches_f64() {
        for &level in Level::available() {
            let context = Context::with_level(2, level);
            for (heads, dim) in [(2, 8), (1, 64), (3, 20)] {
                for radius in [None, Some(0), Some(3), Some(64)] {
                    let lens = [1, 5, 70, 33, 131];
                    let tokens: usize = lens.iter().sum();
                    let qkv: Vec<f32> = (0..tokens * 3 * heads * dim)
                        .map(|i| ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0)
                        .collect();
                    let shape = EncoderAttentionShape { heads, dim, radius };
                    let pairs: Vec<bool> =
                        (0..33 * 33).map(|i| (i / 33 + i % 33) % 3 != 1 || i / 33 == i % 33).collect();
                    let mut start = 0;
                    let sequences = lens.map(|len| {
                        start += len;
                        let allowed = (len == 33).then_some(&pairs[..]);
                        Sequence { start: start - len, len, allowed }
                    });
                    let mut wide = vec![0.0; tokens * heads * dim];
                    for s in &sequences {
                        expected(&qkv, s, shape, &mut wide);
                    }
                    let mut out = vec![f32::NAN; wide.len()];
                    let mut scratch = vec![f32::NAN; encoder_scratch_len(&context, shape, 131)];
                    encoder_attention(&context, &qkv, &sequences, shape, &mut out, &mut scratch);
                    for (o, e) in out.iter().zip(&wide) {
                        // Sums of at most 131 terms below 1 with weights that add up to 1.
                        assert!((f64::from(*o) - e).abs() < 2e-6, "{level:?} {heads} {dim} {radius:?}");
                    }
                }
            }
        }
    }
}
