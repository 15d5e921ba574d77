//! Small random models, made here.

#![allow(dead_code, reason = "each of the tests uses a part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use anemone_checkpoint::{Entry, Error, Weights};
use anemone_cpu::{Arithmetic, Layout, Model, Options};
use anemone_tensor::Tensor;
use serde_json::{Map, Value, json};

pub(crate) const VOCAB: usize = 40;
pub(crate) const HIDDEN: usize = 12;

/// A checkpoint in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(pub(crate) BTreeMap<String, Tensor>);

impl Weights for Memory {
    fn entry(&self, name: &str) -> Option<Entry> {
        self.0.get(name).map(|t| Entry { dtype: t.dtype(), shape: t.shape().clone() })
    }

    fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let absent = || Error::NoTensor { name: name.into(), checkpoint: "memory".into() };
        self.0.get(name).cloned().ok_or_else(absent)
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

impl Memory {
    /// Adds a tensor of values that depend on its name alone.
    pub(crate) fn add<const N: usize>(&mut self, name: &str, shape: [usize; N]) {
        let mut state = name.bytes().fold(7u64, |h, b| h.wrapping_mul(0x0100_0000_01b3) ^ u64::from(b));
        let n = shape.iter().product();
        // Norms are near one, the rest small enough that nothing saturates.
        let (centre, scale) = if name.ends_with("norm.weight") { (1.0, 0.2) } else { (0.0, 0.8) };
        let values: Vec<f32> = (0..n).map(|_| centre + scale * (uniform(&mut state) - 0.5)).collect();
        self.0.insert(name.into(), Tensor::from_f32(shape, &values).unwrap());
    }

    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        self.0[name].to_f32().unwrap()
    }

    pub(crate) fn renamed(&self, rename: impl Fn(&str) -> String) -> Self {
        Self(self.0.iter().map(|(name, tensor)| (rename(name), tensor.clone())).collect())
    }
}

pub(crate) fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1u64 << 24) as f32
}

pub(crate) fn below(state: &mut u64, n: usize) -> usize {
    ((uniform(state) * n as f32) as usize).min(n - 1)
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other}"),
    }
}

pub(crate) fn gated(weights: &mut Memory, module: &str, width: usize) {
    weights.add(&format!("{module}.w1.weight"), [width, HIDDEN]);
    weights.add(&format!("{module}.w3.weight"), [width, HIDDEN]);
    weights.add(&format!("{module}.w2.weight"), [HIDDEN, width]);
}

pub(crate) fn conv(weights: &mut Memory, layer: &str, taps: usize) {
    weights.add(&format!("{layer}.conv.in_proj.weight"), [3 * HIDDEN, HIDDEN]);
    weights.add(&format!("{layer}.conv.conv.weight"), [HIDDEN, 1, taps]);
    weights.add(&format!("{layer}.conv.out_proj.weight"), [HIDDEN, HIDDEN]);
}

/// Convolution, full and sliding attention, another convolution.
pub(crate) fn lfm3(taps: usize, window: usize) -> (Map<String, Value>, Memory) {
    let config = object(json!({
        "architectures": ["Lfm3ForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 4, "vocab_size": VOCAB,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 20,
        "layer_types": ["conv", "full_attention", "sliding_attention", "conv"], "sliding_window": window,
        "conv_L_cache": taps, "max_position_embeddings": 640,
    }));
    let mut weights = Memory::default();
    weights.add("model.embed_tokens.weight", [VOCAB, HIDDEN]);
    weights.add("model.embedding_norm.weight", [HIDDEN]);
    for i in 0..4 {
        let layer = format!("model.layers.{i}");
        for norm in ["operator_norm", "ffn_norm", "post_operator_norm", "post_ffn_norm"] {
            weights.add(&format!("{layer}.{norm}.weight"), [HIDDEN]);
        }
        gated(&mut weights, &format!("{layer}.feed_forward"), 20);
        if i == 0 || i == 3 {
            conv(&mut weights, &layer, taps);
            continue;
        }
        for (name, rows) in [("q_proj", 36), ("k_proj", 12), ("v_proj", 12), ("gate_proj", 6)] {
            weights.add(&format!("{layer}.self_attn.{name}.weight"), [rows, HIDDEN]);
        }
        weights.add(&format!("{layer}.self_attn.o_proj.weight"), [HIDDEN, 36]);
        weights.add(&format!("{layer}.self_attn.q_norm.weight"), [6]);
        weights.add(&format!("{layer}.self_attn.k_norm.weight"), [6]);
    }
    (config, weights)
}

pub(crate) const EXPERTS: usize = 5;
pub(crate) const EXPERT_WIDTH: usize = 7;

/// A dense layer, then a convolution and an attention layer with experts.
pub(crate) fn moe() -> (Map<String, Value>, Memory) {
    let config = object(json!({
        "architectures": ["Lfm2MoeForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 3, "vocab_size": VOCAB,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 20,
        "moe_intermediate_size": EXPERT_WIDTH, "num_experts": EXPERTS, "num_experts_per_tok": 2,
        "num_dense_layers": 1, "layer_types": ["conv", "conv", "full_attention"], "max_position_embeddings": 256,
    }));
    let mut weights = Memory::default();
    weights.add("model.embed_tokens.weight", [VOCAB, HIDDEN]);
    weights.add("model.embedding_norm.weight", [HIDDEN]);
    for i in 0..3 {
        let layer = format!("model.layers.{i}");
        weights.add(&format!("{layer}.operator_norm.weight"), [HIDDEN]);
        weights.add(&format!("{layer}.ffn_norm.weight"), [HIDDEN]);
        if i == 0 {
            gated(&mut weights, &format!("{layer}.feed_forward"), 20);
        } else {
            weights.add(&format!("{layer}.feed_forward.gate.weight"), [EXPERTS, HIDDEN]);
            weights.add(&format!("{layer}.feed_forward.expert_bias"), [EXPERTS]);
            for e in 0..EXPERTS {
                gated(&mut weights, &format!("{layer}.feed_forward.experts.{e}"), EXPERT_WIDTH);
            }
        }
        if i < 2 {
            conv(&mut weights, &layer, 3);
            continue;
        }
        for (name, rows) in [("q_proj", 12), ("k_proj", 4), ("v_proj", 4), ("out_proj", HIDDEN)] {
            weights.add(&format!("{layer}.self_attn.{name}.weight"), [rows, HIDDEN]);
        }
        weights.add(&format!("{layer}.self_attn.q_layernorm.weight"), [4]);
        weights.add(&format!("{layer}.self_attn.k_layernorm.weight"), [4]);
    }
    (config, weights)
}

pub(crate) fn load(config: &Map<String, Value>, weights: &Memory) -> Arc<Model> {
    let stack = anemone_models::load(config, weights).unwrap();
    Arc::new(Model::load(stack, weights, Layout::Mapped).unwrap())
}

pub(crate) fn options(arithmetic: Arithmetic, chunk: usize, rewind: usize) -> Options {
    Options { threads: 2, arithmetic, context_len: Some(256), chunk, rewind, ..Options::default() }
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}
