//! A pass over some tokens: embedding, blocks, final norm, head.

use anemone_kernels::{Context, Product, matmul, rms_norm, rope_table, widen_rows};

use crate::layer::{self, Pass, Run};
use crate::model::Model;
use crate::scratch::{Scratch, sized};
use crate::state::State;

/// Receives the residual stream: a module path and `[tokens, hidden]` values.
pub(crate) type Tap<'a> = &'a mut dyn FnMut(&str, &[f32]);

/// Runs the blocks over the tokens of some sequences that fit one pass and advances their states; the stream is left in `s.x`.
///
/// Taps: `model.embed_tokens`, then each block's path with its raw output.
pub(crate) fn blocks(
    context: &Context,
    model: &Model,
    sequences: &mut [(&mut State, &[u32])],
    s: &mut Scratch,
    mut tap: Option<Tap<'_>>,
) {
    let hidden = model.stack.hidden_size;
    let (mut tokens, mut runs) = (Vec::new(), Vec::with_capacity(sequences.len()));
    let mut states: Vec<&mut State> = Vec::with_capacity(sequences.len());
    for (state, own) in sequences {
        runs.push(Run { start: state.position, first: tokens.len(), tokens: own.len() });
        tokens.extend_from_slice(own);
        states.push(state);
    }
    let pass = Pass { tokens: tokens.len(), hidden, runs: &runs };
    let n = tokens.len() * hidden;
    widen_rows(context, model.embedding(), &tokens, sized(&mut s.x, n));
    rotations(model, s, pass);
    if let Some(tap) = &mut tap {
        tap("model.embed_tokens", &s.x[..n]);
    }
    for (index, block) in model.blocks.iter().enumerate() {
        layer::block(context, (index, block), &mut states, s, pass);
        if let Some(tap) = &mut tap {
            tap(&block.path, &s.x[..n]);
        }
    }
    for (run, state) in runs.iter().zip(states) {
        state.position += run.tokens;
    }
}

/// Normalises tokens of the stream and multiplies them by the head into `[tokens, vocab_size]`.
pub(crate) fn head(
    context: &Context,
    model: &Model,
    s: &mut Scratch,
    tokens: impl ExactSizeIterator<Item = usize>,
    tap: Option<Tap<'_>>,
    logits: &mut [f32],
) {
    let (hidden, count) = (model.stack.hidden_size, tokens.len());
    // Nothing reads the last block's sum any more.
    let x = sized(&mut s.y, count * hidden);
    for (x, token) in x.chunks_exact_mut(hidden).zip(tokens) {
        x.copy_from_slice(&s.x[token * hidden..(token + 1) * hidden]);
    }
    let norm = &model.final_norm;
    if let Some(tap) = tap {
        let mut normed = vec![0.0; x.len()];
        rms_norm(context, x, &norm.weight, norm.eps, anemone_kernels::Output::F32(&mut normed));
        tap("model.embedding_norm", &normed);
    }
    rms_norm(context, x, &norm.weight, norm.eps, s.act.output(count * hidden));
    let weight = model.head.view();
    s.observer.show(&[model.head_name()], count, s.act.input(count * hidden));
    let x = s.act.ready(context, count * hidden, count);
    matmul(context, x, count, &mut [Product { weight, bias: None, out: logits }]);
}

fn rotations(model: &Model, s: &mut Scratch, pass: Pass<'_>) {
    s.cos.resize_with(model.ropes.len(), Vec::new);
    s.sin.resize_with(model.ropes.len(), Vec::new);
    for ((rope, cos), sin) in model.ropes.iter().zip(&mut s.cos).zip(&mut s.sin) {
        let width = rope.frequencies.len();
        let (cos, sin) = (sized(cos, pass.tokens * width), sized(sin, pass.tokens * width));
        for run in pass.runs {
            let at = run.of(width);
            rope_table(run.start, &rope.frequencies, &mut cos[at.clone()], &mut sin[at]);
        }
    }
}
