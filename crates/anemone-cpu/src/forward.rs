//! A pass over some tokens: embedding, blocks, final norm, head.

use anemone_kernels::{Context, MatrixView, Product, matmul, rms_norm, rope_table, widen_rows};

use crate::layer::{self, Pass};
use crate::model::Model;
use crate::scratch::{Scratch, sized};
use crate::state::State;

/// Receives the residual stream: a module path and `[tokens, hidden]` values.
pub(crate) type Tap<'a> = &'a mut dyn FnMut(&str, &[f32]);

/// Runs the blocks over tokens that fit one pass and advances the state; the stream is left in `s.x`.
///
/// Taps: `model.embed_tokens`, then each block's path with its raw output.
pub(crate) fn blocks(
    context: &Context,
    model: &Model,
    state: &mut State,
    s: &mut Scratch,
    tokens: &[u32],
    mut tap: Option<Tap<'_>>,
) {
    let hidden = model.stack.hidden_size;
    let pass = Pass { start: state.position, tokens: tokens.len(), hidden };
    let n = tokens.len() * hidden;
    let table = MatrixView::new(model.embedding()).expect("a checked matrix of floats");
    widen_rows(context, table, tokens, sized(&mut s.x, n));
    rotations(model, s, pass);
    if let Some(tap) = &mut tap {
        tap("model.embed_tokens", &s.x[..n]);
    }
    for (block, layer) in model.blocks.iter().zip(&mut state.layers) {
        layer::block(context, block, layer, s, pass);
        if let Some(tap) = &mut tap {
            tap(&block.path, &s.x[..n]);
        }
    }
    state.position += tokens.len();
}

/// Normalises rows `first..first + count` of the stream and multiplies them by the head into `[count, vocab_size]`.
pub(crate) fn head(
    context: &Context,
    model: &Model,
    s: &mut Scratch,
    first: usize,
    count: usize,
    tap: Option<Tap<'_>>,
    logits: &mut [f32],
) {
    let hidden = model.stack.hidden_size;
    let x = &s.x[first * hidden..(first + count) * hidden];
    let norm = &model.final_norm;
    if let Some(tap) = tap {
        let mut normed = vec![0.0; x.len()];
        rms_norm(context, x, &norm.weight, norm.eps, anemone_kernels::Output::F32(&mut normed));
        tap("model.embedding_norm", &normed);
    }
    rms_norm(context, x, &norm.weight, norm.eps, s.act.output(count * hidden));
    let weight = model.head.view();
    s.observer.show(&[model.head_name()], count, s.act.input(count * hidden));
    matmul(context, s.act.input(count * hidden), count, &mut [Product { weight, bias: None, out: logits }]);
}

fn rotations(model: &Model, s: &mut Scratch, pass: Pass) {
    s.cos.resize_with(model.ropes.len(), Vec::new);
    s.sin.resize_with(model.ropes.len(), Vec::new);
    for ((rope, cos), sin) in model.ropes.iter().zip(&mut s.cos).zip(&mut s.sin) {
        let n = pass.tokens * rope.frequencies.len();
        rope_table(pass.start, &rope.frequencies, sized(cos, n), sized(sin, n));
    }
}
