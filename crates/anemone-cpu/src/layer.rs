//! One block: mixer and feed-forward part, each added to the residual stream.

use anemone_kernels::{
    Context, Input, Product, add_assign, apply_rope, attention, gate_conv, gate_heads, matmul, rms_norm,
    rms_norm_in_place, scratch_len, short_conv, silu_mul, write_cache,
};

use crate::model::{
    AttentionWeights, Block, ConvWeights, FfnWeights, GatedWeights, LinearWeight, MixerWeights, NormWeight,
};
use crate::moe;
use crate::scratch::{Activations, Observer, Scratch, sized};
use crate::state::{LayerState, State};

/// What a pass computes: `tokens` tokens, `hidden` wide, which are the runs of some sequences one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    pub(crate) runs: &'a [Run],
}

/// Tokens of one sequence: `tokens` of them from position `start`, at `first` of the pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) start: usize,
    pub(crate) first: usize,
    pub(crate) tokens: usize,
}

impl Run {
    /// Where the values of the run lie in a buffer of `width` values a token.
    pub(crate) fn of(&self, width: usize) -> std::ops::Range<usize> {
        self.first * width..(self.first + self.tokens) * width
    }
}

/// Runs block `index` of the model; there is a state for every run.
pub(crate) fn block(
    context: &Context,
    (index, block): (usize, &Block),
    states: &mut [&mut State],
    s: &mut Scratch,
    pass: Pass<'_>,
) {
    let n = pass.tokens * pass.hidden;
    norm(context, &s.x[..n], &block.mixer_norm, &mut s.act);
    match &block.mixer {
        MixerWeights::Attention(weights) => attend(context, weights, (index, states), s, pass),
        MixerWeights::ShortConv(weights) => convolve(context, weights, (index, states), s, pass),
    }
    add_normed(context, block.post_mixer_norm.as_ref(), s, n);
    norm(context, &s.x[..n], &block.ffn_norm, &mut s.act);
    match &block.ffn {
        FfnWeights::Gated(weights) => gated(context, weights, s, pass),
        FfnWeights::Moe(weights) => moe::forward(context, weights, s, pass),
    }
    add_normed(context, block.post_ffn_norm.as_ref(), s, n);
}

fn norm(context: &Context, x: &[f32], norm: &NormWeight, act: &mut Activations) {
    rms_norm(context, x, &norm.weight, norm.eps, act.output(x.len()));
}

/// `x += norm(y)`, or `x += y` without a norm.
fn add_normed(context: &Context, norm: Option<&NormWeight>, s: &mut Scratch, n: usize) {
    if let Some(norm) = norm {
        rms_norm_in_place(context, &mut s.y[..n], &norm.weight, norm.eps);
    }
    add_assign(context, &mut s.x[..n], &s.y[..n]);
}

/// Multiplies one input by several maps, each into its own output.
pub(crate) fn multiply(
    context: &Context,
    observer: &mut Observer,
    x: Input<'_>,
    tokens: usize,
    maps: Vec<(&LinearWeight, &mut [f32])>,
) {
    if observer.0.is_some() {
        let names: Vec<&str> = maps.iter().map(|(map, _)| &*map.name).collect();
        observer.show(&names, tokens, x);
    }
    let mut products: Vec<Product<'_>> = maps.into_iter().map(|(map, out)| product(map, out)).collect();
    matmul(context, x, tokens, &mut products);
}

pub(crate) fn product<'a>(linear: &'a LinearWeight, out: &'a mut [f32]) -> Product<'a> {
    Product { weight: linear.weight.view(), bias: linear.bias.as_deref(), out }
}

fn attend(
    context: &Context,
    w: &AttentionWeights,
    (index, states): (usize, &mut [&mut State]),
    s: &mut Scratch,
    pass: Pass<'_>,
) {
    let Pass { tokens, hidden, runs } = pass;
    let shape = w.shape;
    let (q_width, kv_width) = (shape.heads * shape.dim, shape.kv_heads * shape.dim);
    let (q_len, kv_len) = (tokens * q_width, tokens * kv_width);
    let (q, k, v) = (sized(&mut s.q, q_len), sized(&mut s.k, kv_len), sized(&mut s.v, kv_len));
    let mut maps = vec![(&w.q, q), (&w.k, k), (&w.v, v)];
    if let Some(gate) = &w.gate {
        maps.push((gate, sized(&mut s.gate, tokens * shape.heads)));
    }
    multiply(context, &mut s.observer, s.act.ready(context, tokens * hidden, tokens), tokens, maps);
    for (norm, x) in [(&w.q_norm, &mut s.q[..q_len]), (&w.k_norm, &mut s.k[..kv_len])] {
        if let Some(norm) = norm {
            rms_norm_in_place(context, x, &norm.weight, norm.eps);
        }
    }
    let table = tokens * shape.dim / 2;
    let (cos, sin) = (&s.cos[w.rope][..table], &s.sin[w.rope][..table]);
    apply_rope(context, &mut s.q[..q_len], tokens, shape.dim, cos, sin);
    apply_rope(context, &mut s.k[..kv_len], tokens, shape.dim, cos, sin);
    let attended = sized(&mut s.attended, q_len);
    let scale = 1.0 / (shape.dim as f32).sqrt();
    for (run, state) in runs.iter().zip(states) {
        let LayerState::Attention(cache, _) = &mut state.layers[index] else { unreachable!("{MADE_FOR}") };
        let (q, kv) = (run.of(q_width), run.of(kv_width));
        write_cache(context, cache, run.start, run.tokens, &s.k[kv.clone()], &s.v[kv]);
        let end = run.start + run.tokens;
        let keys = w.window.map_or(end, |window| window.min(end));
        let scores = sized(&mut s.scores, scratch_len(context, keys, run.tokens));
        let out = &mut attended[q.clone()];
        attention(context, &s.q[q], cache, run.start, run.tokens, w.window, scale, out, scores);
    }
    if w.gate.is_some() {
        gate_heads(attended, &s.gate[..tokens * shape.heads], shape.dim);
    }
    s.act.set(attended);
    let y = sized(&mut s.y, tokens * hidden);
    let x = s.act.ready(context, q_len, tokens);
    multiply(context, &mut s.observer, x, tokens, vec![(&w.o, y)]);
}

const MADE_FOR: &str = "a state is made from its model's layers";

fn convolve(
    context: &Context,
    w: &ConvWeights,
    (index, states): (usize, &mut [&mut State]),
    s: &mut Scratch,
    pass: Pass<'_>,
) {
    let Pass { tokens, hidden, runs } = pass;
    let n = tokens * hidden;
    let bcx = sized(&mut s.bcx, 3 * n);
    let x = s.act.ready(context, n, tokens);
    multiply(context, &mut s.observer, x, tokens, vec![(&w.in_proj, bcx)]);
    for (run, state) in runs.iter().zip(states) {
        let LayerState::ShortConv(history) = &mut state.layers[index] else { unreachable!("{MADE_FOR}") };
        let bcx = &s.bcx[run.of(3 * hidden)];
        let z = sized(&mut s.z, (w.reach + run.tokens) * hidden);
        let (window, own) = z.split_at_mut(w.reach * hidden);
        history.read(run.start, window);
        gate_conv(context, bcx, hidden, own);
        history.append(run.start, own);
        let out = s.act.part(n, run.of(hidden));
        short_conv(context, z, bcx, &w.taps, w.bias.as_deref(), hidden, out);
    }
    let y = sized(&mut s.y, n);
    let x = s.act.ready(context, n, tokens);
    multiply(context, &mut s.observer, x, tokens, vec![(&w.out_proj, y)]);
}

fn gated(context: &Context, w: &GatedWeights, s: &mut Scratch, pass: Pass<'_>) {
    let Pass { tokens, hidden, .. } = pass;
    let inner = tokens * w.width;
    let (gate, up) = (sized(&mut s.gate, inner), sized(&mut s.up, inner));
    multiply(
        context,
        &mut s.observer,
        s.act.ready(context, tokens * hidden, tokens),
        tokens,
        vec![(&w.gate, &mut *gate), (&w.up, &mut *up)],
    );
    silu_mul(context, gate, up, s.act.output(inner));
    let y = sized(&mut s.y, tokens * hidden);
    let x = s.act.ready(context, inner, tokens);
    multiply(context, &mut s.observer, x, tokens, vec![(&w.down, y)]);
}
