//! A pass over a group of rows, one after the other without padding.

use anemone_kernels::{
    Activation, Context, Input, Output, PackedProduct, Rotation, Sequence, Then, activate, encoder_attention,
    encoder_scratch_len, layer_norm, matmul_packed, rope_table, widen_rows,
};
use anemone_models::MlpActivation;

use super::action::features;
use super::weights::{LayaModel, LayerPanels, LayerWeights, NormWeights, Packed};
use super::{Parallel, Row, Scores, Tap};
use crate::layer::multiply;
use crate::scratch::{Activations, Observer, gather, sized};

/// Buffers of a pass, grown to the largest one seen.
#[derive(Debug)]
pub(super) struct Forward {
    /// Residual stream `[tokens, hidden]`.
    x: Vec<f32>,
    /// Output of a part `[tokens, hidden]`.
    y: Vec<f32>,
    /// Input of the next product.
    act: Activations,
    qkv: Vec<f32>,
    /// Between the products of a feed-forward part.
    up: Activations,
    scratch: Vec<f32>,
    /// Tables of each rotation for positions in order, as far as they were needed.
    tables: Vec<(Vec<f32>, Vec<f32>)>,
    /// Those tables gathered for the tokens of the pass.
    turned: Vec<(Vec<f32>, Vec<f32>)>,
    pub(super) observer: Observer,
}

/// Pairs of a row's tokens that may see each other, where the kernel cannot work them out.
#[derive(Debug)]
struct Pairs {
    /// Within the radius of sliding layers, one entry for each radius in use.
    sliding: Vec<(usize, Vec<bool>)>,
    full: Vec<bool>,
}

/// The rows of a pass, and what their tokens may see.
#[derive(Clone, Copy)]
struct Group<'a> {
    rows: &'a [Row<'a>],
    /// One entry for each row, or none at all in the head.
    pairs: &'a [Option<Pairs>],
    /// The tokens of each row whose result is needed; all when there are no entries.
    wanted: &'a [Vec<usize>],
    tokens: usize,
}

impl Forward {
    pub(super) fn new(reduced: bool) -> Self {
        Self {
            x: Vec::new(),
            y: Vec::new(),
            act: Activations::new(reduced),
            qkv: Vec::new(),
            up: Activations::new(reduced),
            scratch: Vec::new(),
            tables: Vec::new(),
            turned: Vec::new(),
            observer: Observer::default(),
        }
    }

    pub(super) fn is_reduced(&self) -> bool {
        self.act.reduced
    }

    /// Runs the encoder over checked rows; its normed output is left in the stream.
    fn encode(
        &mut self,
        context: &Context,
        model: &LayaModel,
        packed: &Packed,
        rows: &[Row<'_>],
        show: &mut dyn FnMut(&str, &[f32]),
    ) {
        let hidden = model.laya.encoder.hidden_size;
        let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
        let n = tokens * hidden;
        let pairs: Vec<Option<Pairs>> =
            rows.iter().map(|row| row.parallel.map(|p| Pairs::new(model, &p))).collect();
        let group = Group { rows, pairs: &pairs, wanted: &[], tokens };
        self.embed(context, model, rows, n);
        self.rotations(model, rows);
        show("embeddings", &self.x[..n]);
        for (layer, panels) in model.layers.iter().zip(&packed.layers) {
            self.attend(context, layer, panels, group);
            self.feed(context, layer, panels, tokens);
            show(&layer.path, &self.x[..n]);
        }
        self.norm_stream(context, &model.final_norm, n);
        show("encoder.final_norm", &self.x[..n]);
    }

    /// Appends the mean over its tokens of the encoder's output for each checked row.
    pub(super) fn pooled(
        &mut self,
        context: &Context,
        model: &LayaModel,
        packed: &Packed,
        rows: &[Row<'_>],
        means: &mut Vec<Vec<f32>>,
    ) {
        self.encode(context, model, packed, rows, &mut |_, _| {});
        let hidden = model.laya.encoder.hidden_size;
        let mut rest = &self.x[..];
        for row in rows {
            let (own, others) = rest.split_at(row.ids.len() * hidden);
            rest = others;
            let mut mean = vec![0.0; hidden];
            for x in own.chunks_exact(hidden) {
                mean.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
            }
            means.push(mean.into_iter().map(|sum| sum / row.ids.len() as f32).collect());
        }
    }

    /// Scores checked rows and appends them to `scores`.
    pub(super) fn group(
        &mut self,
        context: &Context,
        model: &LayaModel,
        packed: &Packed,
        rows: &[Row<'_>],
        mut tap: Option<Tap<'_>>,
        scores: &mut Vec<Scores>,
    ) {
        let hidden = model.laya.encoder.hidden_size;
        let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
        let n = tokens * hidden;
        let tapped = tap.is_some();
        let mut show = |stage: &str, x: &[f32]| {
            if let Some(tap) = &mut tap {
                tap(stage, x);
            }
        };
        self.encode(context, model, packed, rows, &mut show);
        let mut start = 0;
        for row in rows {
            let kind = &model.kinds[row.kind * hidden..(row.kind + 1) * hidden];
            for x in self.x[start * hidden..(start + row.ids.len()) * hidden].chunks_exact_mut(hidden) {
                x.iter_mut().zip(kind).for_each(|(x, k)| *x += k);
            }
            start += row.ids.len();
        }
        show("typed", &self.x[..n]);
        let (read, wanted) = read_tokens(rows);
        let group = Group { rows, pairs: &[], wanted: &[], tokens };
        for (i, (layer, panels)) in model.head.iter().zip(&packed.head).enumerate() {
            if i + 1 == model.head.len() && !tapped {
                // Nobody reads the other tokens of the last layer.
                self.mix(context, layer, panels, Group { wanted: &wanted, ..group });
                self.act.gather(&read, hidden);
                gather(&mut self.x, &read, hidden);
                self.leave(context, layer, panels, read.len());
                self.feed(context, layer, panels, read.len());
            } else {
                self.attend(context, layer, panels, group);
                self.feed(context, layer, panels, tokens);
            }
            show(&layer.path, &self.x[..n]);
        }
        if tapped || model.head.is_empty() {
            gather(&mut self.x, &read, hidden);
        }
        let first = scores.len();
        self.options(context, model, rows, scores);
        self.actions(context, model, rows, &mut scores[first..]);
    }

    fn embed(&mut self, context: &Context, model: &LayaModel, rows: &[Row<'_>], n: usize) {
        let y = sized(&mut self.y, n);
        let ids: Vec<u32> = rows.iter().flat_map(|row| row.ids).copied().collect();
        widen_rows(context, model.embedding.view(), &ids, y);
        let norm = &model.embedding_norm;
        let x = Output::F32(sized(&mut self.x, n));
        layer_norm(context, y, &norm.weight, norm.bias.as_deref(), norm.eps, x);
    }

    /// Replaces the stream by its norm.
    fn norm_stream(&mut self, context: &Context, norm: &NormWeights, n: usize) {
        let y = Output::F32(sized(&mut self.y, n));
        layer_norm(context, &self.x[..n], &norm.weight, norm.bias.as_deref(), norm.eps, y);
        std::mem::swap(&mut self.x, &mut self.y);
    }

    fn rotations(&mut self, model: &LayaModel, rows: &[Row<'_>]) {
        self.tables.resize_with(model.ropes.len(), Default::default);
        self.turned.resize_with(model.ropes.len(), Default::default);
        let longest = rows.iter().map(|row| positions(row).max().unwrap_or(0) + 1).max().unwrap_or(0);
        for ((rope, (cos, sin)), turned) in model.ropes.iter().zip(&mut self.tables).zip(&mut self.turned) {
            let half = rope.frequencies.len();
            if cos.len() < longest * half {
                cos.resize(longest * half, 0.0);
                sin.resize(longest * half, 0.0);
                rope_table(0, &rope.frequencies, cos, sin);
            }
            turned.0.clear();
            turned.1.clear();
            for p in rows.iter().flat_map(positions) {
                turned.0.extend_from_slice(&cos[p * half..(p + 1) * half]);
                turned.1.extend_from_slice(&sin[p * half..(p + 1) * half]);
            }
        }
    }

    /// Adds the attention part of a layer.
    fn attend(&mut self, context: &Context, layer: &LayerWeights, panels: &LayerPanels, group: Group<'_>) {
        self.mix(context, layer, panels, group);
        self.leave(context, layer, panels, group.tokens);
    }

    /// Attends; the result is left as the next product's input.
    fn mix(&mut self, context: &Context, layer: &LayerWeights, panels: &LayerPanels, group: Group<'_>) {
        let Group { rows, pairs, wanted, tokens } = group;
        let width = layer.shape.heads * layer.shape.dim;
        let n = tokens * width;
        match &layer.attention_norm {
            Some(norm) => norm_to(context, norm, &self.x[..n], &mut self.act),
            None => self.act.set(&self.x[..n]),
        }
        self.observer.show(&[&layer.qkv.name], tokens, self.act.input(n));
        let qkv = sized(&mut self.qkv, 3 * n);
        let then = Then::Store(qkv);
        let product = PackedProduct { weight: &panels.qkv, bias: layer.qkv.bias.as_deref(), then };
        matmul_packed(context, self.act.input(n), tokens, product);
        let qkv = &self.qkv[..3 * n];
        let rotation = layer.rope.map(|rope| {
            let (cos, sin) = &self.turned[rope];
            Rotation { cos, sin }
        });
        let mut start = 0;
        let sequences: Vec<Sequence<'_>> = (rows.iter().enumerate())
            .map(|(i, row)| {
                let allowed = pairs.get(i).and_then(Option::as_ref).map(|p| p.of(layer.shape.radius));
                start += row.ids.len();
                let wanted = wanted.get(i).map(Vec::as_slice);
                Sequence { start: start - row.ids.len(), len: row.ids.len(), allowed, wanted }
            })
            .collect();
        let need = encoder_scratch_len(context, layer.shape, sequences.iter().map(|s| s.len));
        let scratch = sized(&mut self.scratch, need);
        encoder_attention(context, qkv, rotation, &sequences, layer.shape, self.act.output(n), scratch);
    }

    /// Adds what was attended to the stream, through the layer's projection.
    fn leave(&mut self, context: &Context, layer: &LayerWeights, panels: &LayerPanels, tokens: usize) {
        let n = tokens * layer.shape.heads * layer.shape.dim;
        self.observer.show(&[&layer.out.name], tokens, self.act.input(n));
        let then = Then::Add(&mut self.x[..n]);
        let product = PackedProduct { weight: &panels.out, bias: layer.out.bias.as_deref(), then };
        matmul_packed(context, self.act.input(n), tokens, product);
    }

    /// Adds the feed-forward part of a layer.
    fn feed(&mut self, context: &Context, layer: &LayerWeights, panels: &LayerPanels, tokens: usize) {
        let n = tokens * layer.shape.heads * layer.shape.dim;
        norm_to(context, &layer.mlp_norm, &self.x[..n], &mut self.act);
        self.observer.show(&[&layer.up.name], tokens, self.act.input(n));
        let inner = tokens * layer.width;
        let out = self.up.output(inner);
        let then = match layer.activation {
            MlpActivation::GeluGated => Then::Gate(Activation::Gelu, out),
            MlpActivation::Relu => Then::Activate(Activation::Relu, out),
        };
        let product = PackedProduct { weight: &panels.up, bias: layer.up.bias.as_deref(), then };
        matmul_packed(context, self.act.input(n), tokens, product);
        self.observer.show(&[&layer.down.name], tokens, self.up.input(inner));
        let then = Then::Add(&mut self.x[..n]);
        let product = PackedProduct { weight: &panels.down, bias: layer.down.bias.as_deref(), then };
        matmul_packed(context, self.up.input(inner), tokens, product);
    }

    /// Scores the options at their markers, in f32 in either arithmetic. The stream holds the tokens of [`read_tokens`].
    fn options(&mut self, context: &Context, model: &LayaModel, rows: &[Row<'_>], scores: &mut Vec<Scores>) {
        let hidden = model.laya.encoder.hidden_size;
        let mut markers = Vec::new();
        let mut rest = &self.x[..];
        for row in rows {
            let (own, others) = rest.split_at((1 + row.markers.len()) * hidden);
            markers.extend_from_slice(&own[hidden..]);
            rest = others;
        }
        let count = markers.len() / hidden;
        let mut normed = vec![0.0; markers.len()];
        let norm = &model.scorer_norm;
        let out = Output::F32(&mut normed);
        layer_norm(context, &markers, &norm.weight, norm.bias.as_deref(), norm.eps, out);
        let inner = &mut markers;
        multiply(
            context,
            &mut self.observer,
            Input::F32(&normed),
            count,
            vec![(&model.scorer_dense, &mut *inner)],
        );
        activate(context, Activation::Gelu, inner, Output::F32(&mut normed));
        let mut logits = vec![0.0; count];
        multiply(
            context,
            &mut self.observer,
            Input::F32(&normed),
            count,
            vec![(&model.scorer_out, &mut logits)],
        );
        let mut rest = &logits[..];
        for row in rows {
            let (own, others) = rest.split_at(row.markers.len());
            rest = others;
            scores.push(Scores { logits: own.to_vec(), action_logits: Vec::new() });
        }
    }

    /// Scores the actions by each row's first token and its options' scores, in f32 in either arithmetic. The stream holds the
    /// tokens of [`read_tokens`].
    fn actions(&mut self, context: &Context, model: &LayaModel, rows: &[Row<'_>], scores: &mut [Scores]) {
        let hidden = model.laya.encoder.hidden_size;
        let (mut start, mut inputs) = (0, Vec::new());
        for (row, scores) in rows.iter().zip(&*scores) {
            inputs.extend_from_slice(&self.x[start * hidden..(start + 1) * hidden]);
            inputs.extend(features(&scores.logits));
            start += 1 + row.markers.len();
        }
        let logits = model.action.logits(context, &inputs, rows.len());
        let actions = model.laya.actions();
        for (scores, logits) in scores.iter_mut().zip(logits.chunks_exact(actions)) {
            scores.action_logits = logits.to_vec();
        }
    }
}

/// The tokens the last parts read, in order: each row's first and its markers; counted over all rows, and within each.
fn read_tokens(rows: &[Row<'_>]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let own = |row: &Row<'_>| std::iter::once(0).chain(row.markers.iter().copied()).collect();
    let wanted: Vec<Vec<usize>> = rows.iter().map(own).collect();
    let mut start = 0;
    let mut read = Vec::new();
    for (row, wanted) in rows.iter().zip(&wanted) {
        read.extend(wanted.iter().map(|token| start + token));
        start += row.ids.len();
    }
    (read, wanted)
}

fn norm_to(context: &Context, norm: &NormWeights, x: &[f32], act: &mut Activations) {
    layer_norm(context, x, &norm.weight, norm.bias.as_deref(), norm.eps, act.output(x.len()));
}

/// Position of each token of a row.
fn positions<'a>(row: &'a Row<'a>) -> impl Iterator<Item = usize> + 'a {
    (0..row.ids.len()).map(|i| row.parallel.map_or(i, |p| p.positions[i] as usize))
}

impl Pairs {
    fn new(model: &LayaModel, parallel: &Parallel<'_>) -> Self {
        let len = parallel.options.len();
        let together = |q: usize, k: usize| {
            let (a, b) = (parallel.options[q], parallel.options[k]);
            a == 0 || b == 0 || a == b
        };
        let pairs = |sees: &dyn Fn(usize, usize) -> bool| -> Vec<bool> {
            (0..len * len).map(|i| together(i / len, i % len) && sees(i / len, i % len)).collect()
        };
        let mut radii: Vec<usize> = model.layers.iter().filter_map(|l| l.shape.radius).collect();
        radii.sort_unstable();
        radii.dedup();
        let near =
            |r: usize| pairs(&|q, k| parallel.positions[q].abs_diff(parallel.positions[k]) as usize <= r);
        Self { sliding: radii.into_iter().map(|r| (r, near(r))).collect(), full: pairs(&|_, _| true) }
    }

    fn of(&self, radius: Option<usize>) -> &[bool] {
        let sliding = radius.and_then(|radius| self.sliding.iter().find(|(r, _)| *r == radius));
        sliding.map_or(&self.full, |(_, pairs)| pairs)
    }
}
