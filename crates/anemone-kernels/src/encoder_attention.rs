//! Attention in both directions over whole sequences, as encoders use it.
//!
//! Sequences of different lengths stand one after another without padding. Keys and values are first laid out for tiles, in
//! panels of 64 keys; then each (sequence, head, block of queries) is a task that visits the panels its queries may see.

#![allow(unsafe_code, reason = "tiles over checked ranges; threads write disjoint panels, heads and tokens")]

use half::bf16;

use crate::Context;
use crate::convert::Output;
use crate::packed::PANEL;
use crate::packed::lane::{Lane, Paired, ROWS, Wide, tile, with_rows};
use crate::simd::pairs::{Pairs, dispatch_pairs};
use crate::simd::{self, Isa, Shared, dispatch, load_up_to};

/// Queries of a task: those of one panel see, with a radius of so many keys, three panels.
const QUERIES: usize = PANEL;

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
    /// Queries whose results are needed; what becomes of others is unspecified. All when absent.
    pub wanted: Option<&'a [usize]>,
}

impl Sequence<'_> {
    /// Whether any query of the panel from `first` on is wanted.
    fn wants(&self, first: usize) -> bool {
        self.wanted.is_none_or(|wanted| wanted.iter().any(|q| (first..first + PANEL).contains(q)))
    }
}

impl EncoderAttentionShape {
    /// Channels of a key in its panel.
    fn key_dim(self) -> usize {
        self.dim.next_multiple_of(2)
    }

    /// Channels of a value in its panel.
    fn value_dim(self) -> usize {
        self.dim.next_multiple_of(PANEL)
    }

    /// Elements of a panel's keys.
    fn keys_len(self) -> usize {
        PANEL * self.key_dim()
    }

    /// Elements of a panel's values.
    fn values_len(self) -> usize {
        PANEL * self.value_dim()
    }
}

/// How queries and keys are turned before they meet: `(a, b) → (a·cos − b·sin, b·cos + a·sin)` for the halves a, b of a head.
#[derive(Debug, Clone, Copy)]
pub struct Rotation<'a> {
    /// `[tokens, dim / 2]`.
    pub cos: &'a [f32],
    /// `[tokens, dim / 2]`.
    pub sin: &'a [f32],
}

/// A block of queries, or a panel of keys: its sequence and its first token there.
struct Part<'a> {
    sequence: Sequence<'a>,
    first: usize,
    /// Panels of all sequences before this one.
    before: usize,
}

impl Part<'_> {
    /// Place of the first panel of a head among all, `[sequence, head, panel]`.
    fn panels(&self, heads: usize, head: usize) -> usize {
        self.before * heads + head * self.sequence.len.div_ceil(PANEL)
    }
}

struct Job<'a, E> {
    qkv: &'a [f32],
    rotation: Option<Rotation<'a>>,
    shape: EncoderAttentionShape,
    parts: &'a [Part<'a>],
    /// `[panels, keys_len]`.
    keys: Shared<E>,
    /// `[panels, values_len]`.
    values: Shared<E>,
    /// `[threads, own]`.
    own: Shared<f32>,
    /// Floats of a thread's own scratch.
    own_len: usize,
    /// Keys of the longest sequence, in whole panels.
    longest: usize,
    out: Shared<E>,
}

/// Floats of scratch [`encoder_attention`] needs for sequences of these lengths.
pub fn encoder_scratch_len(
    context: &Context,
    shape: EncoderAttentionShape,
    lengths: impl Iterator<Item = usize>,
) -> usize {
    let (mut panels, mut longest) = (0, 0);
    for len in lengths {
        panels += len.div_ceil(PANEL);
        longest = longest.max(len.next_multiple_of(PANEL));
    }
    ALIGNMENT
        + panels * shape.heads * (shape.keys_len() + shape.values_len())
        + context.pool().threads() * own_len(shape, longest)
}

/// Floats of a cache line.
const ALIGNMENT: usize = 16;

/// A thread's queries, and scores that become terms.
fn own_len(shape: EncoderAttentionShape, longest: usize) -> usize {
    (QUERIES * shape.dim + ROWS * longest).next_multiple_of(ALIGNMENT)
}

/// Attends every query to the keys of its sequence that it may see.
///
/// `qkv`: `[tokens, 3, heads, dim]`, of which a rotation turns queries and keys; `out`: `[tokens, heads, dim]`. An output of bf16 asks for products of bf16, which
/// the context's level must have; softmax and sums are in f32 all the same. Sequences lie in order, do not overlap, and every
/// query sees a key. `scratch` has at least [`encoder_scratch_len`] floats.
pub fn encoder_attention(
    context: &Context,
    qkv: &[f32],
    rotation: Option<Rotation<'_>>,
    sequences: &[Sequence<'_>],
    shape: EncoderAttentionShape,
    out: Output<'_>,
    scratch: &mut [f32],
) {
    let width = shape.heads * shape.dim;
    assert!(width > 0 && out.len().is_multiple_of(width) && qkv.len() == 3 * out.len(), "lengths");
    let tokens = out.len() / width;
    let turned = tokens * (shape.dim / 2);
    assert!(rotation.is_none_or(|r| r.cos.len() == turned && r.sin.len() == turned), "table lengths");
    assert!(rotation.is_none() || shape.dim.is_multiple_of(2), "halves of a head");
    let (mut end, mut longest) = (0, 0);
    let mut parts = Vec::new();
    for s in sequences {
        assert!(s.start >= end && s.len <= tokens && s.start <= tokens - s.len, "sequences lie in order");
        assert!(s.allowed.is_none_or(|a| a.len() == s.len * s.len), "one entry for each pair");
        end = s.start + s.len;
        longest = longest.max(s.len.next_multiple_of(PANEL));
        let before = parts.len();
        parts.extend((0..s.len).step_by(PANEL).map(|first| Part { sequence: *s, first, before }));
    }
    let need = encoder_scratch_len(context, shape, sequences.iter().map(|s| s.len));
    assert!(scratch.len() >= need, "scratch length");
    let skip = scratch.as_ptr().align_offset(4 * ALIGNMENT).min(ALIGNMENT);
    let panels = parts.len() * shape.heads;
    let (keys, rest) = scratch[skip..].split_at_mut(panels * shape.keys_len());
    let (values, own) = rest.split_at_mut(panels * shape.values_len());
    let own_len = own_len(shape, longest);
    let wanted: Vec<usize> = (0..parts.len()).filter(|p| parts[*p].sequence.wants(parts[*p].first)).collect();
    let (parts, own, level) = (&parts[..], Shared::new(own), context.level());
    match out {
        Output::F32(out) => {
            let (keys, values, out) = (Shared::new(keys), Shared::new(values), Shared::new(out));
            let job = &Job { qkv, rotation, shape, parts, keys, values, own, own_len, longest, out };
            context.pool().run(panels, &|_, task| {
                dispatch!(level, lay_out_wide::<I>(job: &Job<'_, f32>, task: usize));
            });
            context.pool().run(wanted.len() * shape.heads, &|thread, task| {
                let task = wanted[task / shape.heads] * shape.heads + task % shape.heads;
                dispatch!(level, attend_wide::<I>(job: &Job<'_, f32>, thread: usize, task: usize));
            });
        }
        Output::Bf16(out) => {
            // SAFETY: any bits are bf16; the floats are not read as such while this view lives.
            let (keys, values) = unsafe { (keys.align_to_mut::<bf16>().1, values.align_to_mut::<bf16>().1) };
            let (keys, values, out) = (Shared::new(keys), Shared::new(values), Shared::new(out));
            let job = &Job { qkv, rotation, shape, parts, keys, values, own, own_len, longest, out };
            context.pool().run(panels, &|_, task| {
                dispatch_pairs!(level, lay_out_paired::<M>(job: &Job<'_, bf16>, task: usize));
            });
            context.pool().run(wanted.len() * shape.heads, &|thread, task| {
                let task = wanted[task / shape.heads] * shape.heads + task % shape.heads;
                dispatch_pairs!(level, attend_paired::<M>(job: &Job<'_, bf16>, thread: usize, task: usize));
            });
        }
    }
}

/// # Safety
/// As [`lay_out`].
#[inline(always)]
unsafe fn lay_out_wide<I: Isa>(job: &Job<'_, f32>, task: usize) {
    // SAFETY: the caller's contract.
    unsafe { lay_out::<Wide<I>>(job, task) }
}

/// # Safety
/// As [`lay_out`].
#[inline(always)]
unsafe fn lay_out_paired<M: Pairs>(job: &Job<'_, bf16>, task: usize) {
    // SAFETY: the caller's contract.
    unsafe { lay_out::<Paired<M>>(job, task) }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn attend_wide<I: Isa>(job: &Job<'_, f32>, thread: usize, task: usize) {
    // SAFETY: the caller's contract. The sums of a tile take most of the registers there are.
    unsafe {
        if I::LANES == 8 {
            attend::<Wide<I>, 2>(job, thread, task);
        } else {
            attend::<Wide<I>, 4>(job, thread, task);
        }
    }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn attend_paired<M: Pairs>(job: &Job<'_, bf16>, thread: usize, task: usize) {
    // SAFETY: the caller's contract.
    unsafe { attend::<Paired<M>, 4>(job, thread, task) }
}

/// A token's query (0), key (1) or value (2) of a head.
fn at<'a, E>(job: &Job<'a, E>, token: usize, part: usize, head: usize) -> &'a [f32] {
    let EncoderAttentionShape { heads, dim, .. } = job.shape;
    &job.qkv[(token * 3 + part) * heads * dim + head * dim..][..dim]
}

/// Lays out one panel of a head: keys `[dim / DEPTH, PANEL, DEPTH]`, values `[PANEL / DEPTH, dim, DEPTH]`, zeros where there are none.
///
/// # Safety
/// As [`Lane`]; the task's panel is nobody else's.
#[inline(always)]
unsafe fn lay_out<L: Lane>(job: &Job<'_, L::Element>, task: usize) {
    let (part, head) = (&job.parts[task / job.shape.heads], task % job.shape.heads);
    let (dim, value_dim) = (job.shape.dim, job.shape.value_dim());
    let place = part.panels(job.shape.heads, head) + part.first / PANEL;
    let (keys_len, values_len) = (job.shape.keys_len(), job.shape.values_len());
    // SAFETY: the panel is this task's alone.
    let (keys, values) = unsafe {
        (job.keys.slice(place * keys_len, keys_len), job.values.slice(place * values_len, values_len))
    };
    let mut rows = [[L::Element::default(); CHUNK]; PANEL];
    for d in (0..dim).step_by(CHUNK) {
        // SAFETY: the caller's contract.
        unsafe { read::<L>(job, part, (1, head), d, &mut rows) };
        // Row by row: the stores are far apart, the loads are not.
        let steps = CHUNK.min(job.shape.key_dim() - d).div_ceil(L::DEPTH);
        let keys = &mut keys[d * PANEL..(d + steps * L::DEPTH) * PANEL];
        for (j, row) in rows.iter().enumerate() {
            for step in 0..steps {
                for e in 0..L::DEPTH {
                    keys[(step * PANEL + j) * L::DEPTH + e] = row[step * L::DEPTH + e];
                }
            }
        }
        // SAFETY: the caller's contract.
        unsafe { read::<L>(job, part, (2, head), d, &mut rows) };
        for (rows, values) in rows.chunks_exact(L::DEPTH).zip(values.chunks_exact_mut(value_dim * L::DEPTH)) {
            let values = values[d * L::DEPTH..(d + CHUNK) * L::DEPTH].chunks_exact_mut(L::DEPTH);
            for (c, value) in values.enumerate() {
                for (value, row) in value.iter_mut().zip(rows) {
                    *value = row[c];
                }
            }
        }
    }
}

/// Channels laid out together.
const CHUNK: usize = PANEL;

/// Reads channels `d..` of the keys (1) or values (2) of a head's panel; what is not there stays as it is, or is zero inside a row.
///
/// # Safety
/// As [`Lane`].
#[inline(always)]
unsafe fn read<L: Lane>(
    job: &Job<'_, L::Element>,
    part: &Part<'_>,
    (which, head): (usize, usize),
    d: usize,
    rows: &mut [[L::Element; CHUNK]; PANEL],
) {
    let n = (job.shape.dim - d).min(CHUNK);
    let count = (part.sequence.len - part.first).min(PANEL);
    for (j, row) in rows[..count].iter_mut().enumerate() {
        let token = part.sequence.start + part.first + j;
        let x = at(job, token, which, head);
        let rotation = job.rotation.filter(|_| which == 1);
        row[n..].fill(L::Element::default());
        // SAFETY: the row has room for `n` elements.
        unsafe {
            match rotation {
                Some(rotation) => turn::<L>(x, rotation, token, (d, d + n), 1.0, row.as_mut_ptr()),
                None => round::<L>(&x[d..d + n], 1.0, row.as_mut_ptr()),
            }
        };
    }
}

/// # Safety
/// As [`Lane`]; `out` is valid for as many elements.
#[inline(always)]
unsafe fn round<L: Lane>(x: &[f32], scale: f32, out: *mut L::Element) {
    let lanes = L::I::LANES;
    for i in (0..x.len()).step_by(lanes) {
        let n = (x.len() - i).min(lanes);
        // SAFETY: `n` elements are left on both sides.
        unsafe {
            let v = load_up_to::<L::I>(x.as_ptr().add(i), n);
            L::put(out.add(i), L::I::mul(v, L::I::splat(scale)), n);
        }
    }
}

/// Rounds channels `from..to` of a token's head after its rotation.
///
/// # Safety
/// As [`Lane`]; `out` is valid for as many elements.
#[inline(always)]
unsafe fn turn<L: Lane>(
    x: &[f32],
    rotation: Rotation<'_>,
    token: usize,
    (from, to): (usize, usize),
    scale: f32,
    out: *mut L::Element,
) {
    let (half, lanes) = (x.len() / 2, L::I::LANES);
    let cos = &rotation.cos[token * half..(token + 1) * half];
    let sin = &rotation.sin[token * half..(token + 1) * half];
    let mut i = from;
    while i < to {
        // A half at a time, since the other one is its partner.
        let (end, angle, partner) =
            if i < half { (to.min(half), i, i + half) } else { (to, i - half, i - half) };
        let n = (end - i).min(lanes);
        // SAFETY: `n` elements are left of the half, its partner, both tables and the output.
        unsafe {
            let own = load_up_to::<L::I>(x.as_ptr().add(i), n);
            let other = load_up_to::<L::I>(x.as_ptr().add(partner), n);
            let own = L::I::mul(own, load_up_to::<L::I>(cos.as_ptr().add(angle), n));
            let other = L::I::mul(other, load_up_to::<L::I>(sin.as_ptr().add(angle), n));
            let v = if i < half { L::I::sub(own, other) } else { L::I::add(own, other) };
            L::put(out.add(i - from), L::I::mul(v, L::I::splat(scale)), n);
        }
        i += n;
    }
}

/// Attends one block of queries of a head.
///
/// # Safety
/// As [`Lane`]; all panels are laid out, and the block's outputs are nobody else's; `V` vectors divide a panel.
#[inline(always)]
unsafe fn attend<L: Lane, const V: usize>(job: &Job<'_, L::Element>, thread: usize, task: usize) {
    let EncoderAttentionShape { heads, dim, radius } = job.shape;
    let (part, head) = (&job.parts[task / heads], task % heads);
    let sequence = &part.sequence;
    let end = (part.first + QUERIES).min(sequence.len);
    let radius = if sequence.allowed.is_some() { None } else { radius };
    // The panels in which the block's queries see anything.
    let from = radius.map_or(0, |r| part.first.saturating_sub(r) / PANEL);
    let to = radius.map_or(sequence.len, |r| (end + r).min(sequence.len)).div_ceil(PANEL);
    let keys = (to - from) * PANEL;
    let first = part.panels(heads, head) + from;
    let scale = 1.0 / (dim as f32).sqrt();
    // SAFETY: each thread runs one task at a time and has its own part; elements are no larger than floats, and panels are only read
    // now. Scores have room for `ROWS` rows of `longest >= keys`; each becomes a term at or before its place.
    unsafe {
        let own = job.own.slice(thread * job.own_len, job.own_len);
        let (scores, queries) = own.split_at_mut(ROWS * job.longest);
        let (scores, queries) = (scores.as_mut_ptr(), queries.as_mut_ptr().cast::<L::Element>());
        let per_row = keys * size_of::<f32>() / size_of::<L::Element>();
        for q in part.first..end {
            let (token, out) = (sequence.start + q, queries.add((q - part.first) * dim));
            match job.rotation {
                Some(rotation) => turn::<L>(at(job, token, 0, head), rotation, token, (0, dim), scale, out),
                None => round::<L>(at(job, token, 0, head), scale, out),
            }
        }
        let panels = job.keys.as_ptr().add(first * job.shape.keys_len());
        let values = job.values.as_ptr().add(first * job.shape.values_len());
        let (groups, count) = ((end - part.first).div_ceil(ROWS), end - part.first);
        let mut q = part.first;
        for group in 0..groups {
            let n = count / groups + usize::from(group < count % groups);
            with_rows!(n, R => {
                let x = queries.add((q - part.first) * dim);
                for p in 0..to - from {
                    let panel = panels.add(p * job.shape.keys_len());
                    for column in (0..PANEL).step_by(V * L::I::LANES) {
                        let sums = tile::<L, R, V>(x, dim, dim, panel.add(column * L::DEPTH), PANEL * L::DEPTH);
                        keep::<L, R, V>(&sums, scores.add(p * PANEL + column), keys);
                    }
                }
                let mut inverse = [0.0; R];
                for (r, inverse) in inverse.iter_mut().enumerate() {
                    let scores = std::slice::from_raw_parts_mut(scores.add(r * keys), keys);
                    hide(sequence, q + r, radius, from * PANEL, scores);
                    *inverse = 1.0 / soften::<L>(scores);
                }
                let out = ((sequence.start + q) * heads + head) * dim;
                // The keys that some query of the tile sees, from the first of a pair on.
                let low = radius.map_or(0, |r| q.saturating_sub(r).saturating_sub(from * PANEL) & !1);
                let high = radius.map_or(sequence.len, |r| (q + R + r).min(sequence.len)) - from * PANEL;
                let values = values.add(low * job.shape.value_dim());
                let terms = scores.cast::<L::Element>().add(low);
                weigh::<L, R, V>(job, out, (per_row, high - low), values, terms, inverse);
            });
            q += n;
        }
    }
}

/// Writes sums to rows `stride` apart.
///
/// # Safety
/// As [`Lane`]; every row has room for `V` vectors.
#[inline(always)]
unsafe fn keep<L: Lane, const R: usize, const V: usize>(
    sums: &[[<L::I as Isa>::V; V]; R],
    out: *mut f32,
    stride: usize,
) {
    for (r, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe {
                L::I::store(out.add(r * stride + v * L::I::LANES), *sum);
            };
        }
    }
}

/// Replaces by minus infinity the scores, of keys from `start` on, that a query does not see.
fn hide(sequence: &Sequence<'_>, query: usize, radius: Option<usize>, start: usize, scores: &mut [f32]) {
    let low = radius.map_or(start, |r| query.saturating_sub(r).max(start));
    let high = radius.map_or(sequence.len, |r| (query + r + 1).min(sequence.len));
    scores[..low - start].fill(f32::NEG_INFINITY);
    scores[high - start..].fill(f32::NEG_INFINITY);
    if let Some(allowed) = sequence.allowed {
        let allowed = &allowed[query * sequence.len..(query + 1) * sequence.len];
        for (score, _) in scores.iter_mut().zip(allowed).filter(|(_, allowed)| !**allowed) {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// Replaces scores by the terms `e^(score − max)`, one after the other from the same place on, and returns their sum. The term of
/// minus infinity is 1e-38, which weighs nothing.
///
/// # Safety
/// As [`Lane`]; `scores` is whole panels.
#[inline(always)]
unsafe fn soften<L: Lane>(scores: &mut [f32]) -> f32 {
    let (p, lanes) = (scores.as_mut_ptr(), L::I::LANES);
    let terms = p.cast::<L::Element>();
    // SAFETY: whole vectors inside whole panels, four at a time.
    unsafe {
        let mut max = [L::I::splat(f32::NEG_INFINITY); 4];
        for i in (0..scores.len()).step_by(4 * lanes) {
            for (v, max) in max.iter_mut().enumerate() {
                *max = L::I::max(*max, L::I::load(p.add(i + v * lanes)));
            }
        }
        // Loops rather than closures, which are not compiled for the instruction set.
        let max = L::I::max(L::I::max(max[0], max[1]), L::I::max(max[2], max[3]));
        let max = L::I::splat(L::I::max_lane(max));
        let mut sums = [L::I::splat(0.0); 4];
        for i in (0..scores.len()).step_by(4 * lanes) {
            for (v, sum) in sums.iter_mut().enumerate() {
                let term = simd::exp::<L::I>(L::I::sub(L::I::load(p.add(i + v * lanes)), max));
                *sum = L::I::add(*sum, term);
                L::put(terms.add(i + v * lanes), term, lanes);
            }
        }
        L::I::sum(L::I::add(L::I::add(sums[0], sums[1]), L::I::add(sums[2], sums[3])))
    }
}

/// Writes the sums of values weighed by the terms of a tile's queries, `out` being the place of the first one's head.
///
/// # Safety
/// As [`attend`]; `terms` is `R` rows `stride` apart, of which `keys` count, and so many values follow one another at `values`.
#[inline(always)]
unsafe fn weigh<L: Lane, const R: usize, const V: usize>(
    job: &Job<'_, L::Element>,
    out: usize,
    (stride, keys): (usize, usize),
    values: *const L::Element,
    terms: *const L::Element,
    inverse: [f32; R],
) {
    let EncoderAttentionShape { heads, dim, .. } = job.shape;
    let (value_dim, lanes) = (job.shape.value_dim(), L::I::LANES);
    for d in (0..dim).step_by(V * lanes) {
        // SAFETY: values have `value_dim` channels, whole tiles; `m` channels of each output are this task's.
        unsafe {
            let sums = tile::<L, R, V>(terms, stride, keys, values.add(d * L::DEPTH), value_dim * L::DEPTH);
            for (r, sums) in sums.into_iter().enumerate() {
                for (v, sum) in sums.into_iter().enumerate() {
                    let c = d + v * lanes;
                    if c < dim {
                        let m = (dim - c).min(lanes);
                        let out = job.out.slice(out + r * heads * dim + c, m);
                        L::put(out.as_mut_ptr(), L::I::mul(sum, L::I::splat(inverse[r])), m);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    /// Queries and keys turned, in f64.
    fn turned(qkv: &[f32], shape: EncoderAttentionShape, rotation: Rotation<'_>) -> Vec<f64> {
        let (dim, half) = (shape.dim, shape.dim / 2);
        let mut out: Vec<f64> = qkv.iter().map(|v| f64::from(*v)).collect();
        for (i, head) in out.chunks_exact_mut(dim).enumerate() {
            let (token, part) = (i / (3 * shape.heads), i / shape.heads % 3);
            for d in (0..half).filter(|_| part < 2) {
                let (cos, sin) = (rotation.cos[token * half + d], rotation.sin[token * half + d]);
                let (a, b, cos, sin) = (head[d], head[d + half], f64::from(cos), f64::from(sin));
                (head[d], head[d + half]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
        out
    }

    fn expected(qkv: &[f64], s: &Sequence<'_>, shape: EncoderAttentionShape, out: &mut [f64]) {
        let EncoderAttentionShape { heads, dim, radius } = shape;
        let at = |t: usize, part: usize, h: usize| ((s.start + t) * 3 + part) * heads * dim + h * dim;
        for h in 0..heads {
            for q in 0..s.len {
                let sees = |k: usize| match s.allowed {
                    Some(allowed) => allowed[q * s.len + k],
                    None => radius.is_none_or(|r| q.abs_diff(k) <= r),
                };
                let score = |k: usize| {
                    let dot = |d| qkv[at(q, 0, h) + d] * qkv[at(k, 1, h) + d];
                    ((0..dim).map(dot).sum::<f64>() / (dim as f64).sqrt()).exp()
                };
                let terms: Vec<f64> = (0..s.len).map(|k| if sees(k) { score(k) } else { 0.0 }).collect();
                let sum: f64 = terms.iter().sum();
                for d in 0..dim {
                    let weighed: f64 = terms.iter().enumerate().map(|(k, t)| t * qkv[at(k, 2, h) + d]).sum();
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
                        let wanted = (len == 131).then_some(&[1, 70, 127, 130][..]);
                        Sequence { start: start - len, len, allowed, wanted }
                    });
                    // A rotation on every other radius; none is what angles of zero are.
                    let angle = |i: usize| if radius.is_some_and(|r| r > 0) { i as f32 * 0.7 } else { 0.0 };
                    let (cos, sin): (Vec<f32>, Vec<f32>) =
                        (0..tokens * dim / 2).map(|i| (angle(i).cos(), angle(i).sin())).unzip();
                    let tables = Rotation { cos: &cos, sin: &sin };
                    let rotation = radius.is_some_and(|r| r > 0).then_some(tables);
                    let mut wide = vec![0.0; tokens * heads * dim];
                    let turned = turned(&qkv, shape, tables);
                    for s in &sequences {
                        expected(&turned, s, shape, &mut wide);
                    }
                    let mut out = vec![f32::NAN; wide.len()];
                    let need = encoder_scratch_len(&context, shape, lens.into_iter());
                    let mut scratch = vec![f32::NAN; need];
                    encoder_attention(
                        &context,
                        &qkv,
                        rotation,
                        &sequences,
                        shape,
                        Output::F32(&mut out),
                        &mut scratch,
                    );
                    let last = &sequences[4];
                    let is_wanted = |i: usize| {
                        let token = i / (heads * dim);
                        token < last.start || last.wanted.is_some_and(|w| w.contains(&(token - last.start)))
                    };
                    for (_, (o, e)) in out.iter().zip(&wide).enumerate().filter(|(i, _)| is_wanted(*i)) {
                        // Sums of at most 131 terms below 1 with weights that add up to 1.
                        assert!((f64::from(*o) - e).abs() < 2e-6, "{level:?} {heads} {dim} {radius:?}");
                    }
                    if !level.has_bf16_products() {
                        continue;
                    }
                    let mut out = vec![bf16::NAN; wide.len()];
                    scratch.fill(f32::NAN);
                    encoder_attention(
                        &context,
                        &qkv,
                        rotation,
                        &sequences,
                        shape,
                        Output::Bf16(&mut out),
                        &mut scratch,
                    );
                    for (_, (o, e)) in out.iter().zip(&wide).enumerate().filter(|(i, _)| is_wanted(*i)) {
                        // Queries, keys, terms, values and the result are each rounded to 8 bits, half an ulp of 2^-9: scores of
                        // size `sqrt(dim) / 3` then carry up to 2^-8 of that, and the average of values of size 1 the sum of all.
                        let bound = 0.004 * (3.0 + (dim as f64).sqrt() / 3.0);
                        assert!(
                            (f64::from(*o) - e).abs() < bound,
                            "{level:?} {heads} {dim} {radius:?} {o} {e}"
                        );
                    }
                }
            }
        }
    }
}
