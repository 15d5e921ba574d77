//! Mixture of experts: each token visits its few experts, in order of expert, whatever the size of the pass.

use anemone_kernels::{Context, Input, Output, round_to_bf16, silu_mul};

use crate::layer::{Pass, multiply};
use crate::model::MoeWeights;
use crate::scratch::{Activations, Scratch, sized};

pub(crate) fn forward(context: &Context, w: &MoeWeights, s: &mut Scratch, pass: Pass<'_>) {
    let Pass { tokens, hidden, .. } = pass;
    let experts = w.experts.len();
    let mut scores = vec![0.0f32; tokens * experts];
    // A router is hardly ever coded; the experts round what each of them reads.
    let x = if w.router.weight.is_coded() {
        s.act.ready(context, tokens * hidden, tokens)
    } else {
        s.act.input(tokens * hidden)
    };
    multiply(context, &mut s.observer, x, tokens, vec![(&w.router, &mut scores)]);
    let mut chosen = vec![Vec::new(); experts];
    for (t, scores) in scores.chunks_exact(experts).enumerate() {
        for (e, weight) in choose(scores, w) {
            chosen[e].push((t, weight));
        }
    }
    sized(&mut s.y, tokens * hidden).fill(0.0);
    let mut act = Activations::like(&s.act);
    let mut out = Vec::new();
    for (expert, uses) in w.experts.iter().zip(&chosen) {
        if uses.is_empty() {
            continue;
        }
        let (count, inner) = (uses.len(), uses.len() * expert.width);
        gather(s.act.input(tokens * hidden), uses, hidden, act.output(count * hidden));
        let (gate, up) = (sized(&mut s.gate, inner), sized(&mut s.up, inner));
        let maps = vec![(&expert.gate, &mut *gate), (&expert.up, &mut *up)];
        multiply(context, &mut s.observer, act.ready(context, count * hidden, count), count, maps);
        silu_mul(context, gate, up, act.output(inner));
        let out = sized(&mut out, count * hidden);
        let x = act.ready(context, inner, count);
        multiply(context, &mut s.observer, x, count, vec![(&expert.down, &mut *out)]);
        for ((t, weight), out) in uses.iter().zip(out.chunks_exact(hidden)) {
            for (y, o) in s.y[t * hidden..(t + 1) * hidden].iter_mut().zip(out) {
                *y += weight * o;
            }
        }
    }
}

/// The experts of one token with their weights. Scores are sigmoids; the bias only chooses.
fn choose(logits: &[f32], w: &MoeWeights) -> Vec<(usize, f32)> {
    let scores: Vec<f32> = logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
    let rank = |e: usize| scores[e] + w.bias.as_ref().map_or(0.0, |b| b[e]);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)));
    order.truncate(w.top_k);
    let sum: f32 = order.iter().map(|&e| scores[e]).sum();
    let divisor = if w.normalise { sum + 1e-6 } else { 1.0 };
    order.into_iter().map(|e| (e, scores[e] / divisor * w.scale)).collect()
}

/// Copies the rows of the tokens that use an expert.
fn gather(from: Input<'_>, uses: &[(usize, f32)], hidden: usize, to: Output<'_>) {
    let row = |t: usize| t * hidden..(t + 1) * hidden;
    match (from, to) {
        (Input::F32(x) | Input::Rounded(x, _), Output::F32(out)) => {
            for (out, (t, _)) in out.chunks_exact_mut(hidden).zip(uses) {
                out.copy_from_slice(&x[row(*t)]);
            }
        }
        (Input::Bf16(x), Output::Bf16(out)) => {
            for (out, (t, _)) in out.chunks_exact_mut(hidden).zip(uses) {
                out.copy_from_slice(&x[row(*t)]);
            }
        }
        (Input::F32(x) | Input::Rounded(x, _), Output::Bf16(out)) => {
            for (out, (t, _)) in out.chunks_exact_mut(hidden).zip(uses) {
                round_to_bf16(&x[row(*t)], out);
            }
        }
        (Input::Bf16(_), Output::F32(_)) => unreachable!("both sides follow the same arithmetic"),
    }
}
