use serde_json::{Map, Value, json};

use super::PresetName;

/// A model's configuration and tensors.
#[derive(Debug)]
pub(super) struct Preset {
    pub(super) config: Map<String, Value>,
    pub(super) tensors: Vec<Spec>,
    pub(super) vocab: u64,
    /// Id of the padding token; the other special tokens follow it.
    pub(super) first_special: u64,
    /// Id of byte 0 in the built-in tokenizer.
    pub(super) first_byte: u64,
    /// Whether the configuration is spelled as in 2025 (`torch_dtype`).
    pub(super) old_spelling: bool,
}

/// A tensor to make: name, shape, and the spread of its values around `mean`.
#[derive(Debug, PartialEq)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    pub(super) mean: f32,
    pub(super) std: f32,
}

impl Spec {
    pub(super) fn numel(&self) -> u64 {
        self.shape.iter().product()
    }
}

struct Dims {
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    ff: u64,
    kernel: u64,
    vocab: u64,
    layers: u64,
    full: &'static [u64],
    sliding: &'static [u64],
}

impl Preset {
    pub(super) fn new(name: PresetName) -> Self {
        match name {
            PresetName::Lfm2M350 => {
                let dims = lfm2(1024, 16, 16, 4608, 65536, &[2, 5, 8, 10, 12, 14]);
                let mut config = lfm2_config(&dims, 6656, true);
                config.insert("full_attn_idxs".into(), json!(dims.full));
                config.insert("rope_theta".into(), json!(1_000_000.0));
                config.insert("block_dim".into(), json!(dims.hidden));
                Self::lfm2(&dims, config, true)
            }
            PresetName::Lfm25M230 => {
                let dims = lfm2(1024, 14, 16, 2560, 65536, &[2, 4, 6, 8, 10, 12]);
                let mut config = lfm2_config(&dims, 2560, false);
                config.insert("layer_types".into(), dims.layer_types());
                config.insert(
                    "rope_parameters".into(),
                    json!({"rope_theta": 1_000_000.0, "rope_type": "default"}),
                );
                config.insert("tie_word_embeddings".into(), json!(true));
                Self::lfm2(&dims, config, false)
            }
            PresetName::Lfm2B12 => {
                let dims = lfm2(2048, 16, 32, 8192, 65536, &[2, 5, 8, 10, 12, 14]);
                let mut config = lfm2_config(&dims, 12288, true);
                config.insert("intermediate_size".into(), json!(12288));
                config.insert("layer_types".into(), dims.layer_types());
                config.insert("rope_theta".into(), json!(1_000_000.0));
                config.insert("tie_embedding".into(), json!(true));
                Self::lfm2(&dims, config, true)
            }
            PresetName::Tiny => {
                let dims = Dims { kv_heads: 2, head_dim: 16, ..lfm2(64, 4, 4, 128, 320, &[2]) };
                let mut config = lfm2_config(&dims, 192, true);
                config.insert("block_multiple_of".into(), json!(32));
                config.insert("layer_types".into(), dims.layer_types());
                config.insert("rope_theta".into(), json!(1_000_000.0));
                Self::lfm2(&dims, config, false)
            }
            PresetName::Lfm3B17 => Self::lfm3(),
        }
    }

    fn lfm2(dims: &Dims, config: Map<String, Value>, old_spelling: bool) -> Self {
        let tensors = tensors(dims, false);
        Self { config, tensors, vocab: dims.vocab, first_special: 0, first_byte: 16, old_spelling }
    }

    fn lfm3() -> Self {
        let dims = Dims {
            hidden: 2048,
            heads: 16,
            kv_heads: 4,
            head_dim: 128,
            ff: 7680,
            kernel: 7,
            vocab: 128_000,
            layers: 24,
            full: &[2, 6, 10, 14, 18, 22],
            sliding: &[4, 8, 12, 16, 20],
        };
        let config = json!({
            "architectures": ["Lfm3ForCausalLM"],
            "attention_bias": false,
            "attention_dropout": 0.0,
            "conv_L_cache": dims.kernel,
            "conv_bias": false,
            "head_dim": dims.head_dim,
            "hidden_size": dims.hidden,
            "initializer_range": 0.02,
            "intermediate_size": dims.ff,
            "layer_types": dims.layer_types(),
            "max_position_embeddings": 262_144,
            "model_type": "lfm3",
            "norm_eps": 1e-5,
            "num_attention_heads": dims.heads,
            "num_hidden_layers": dims.layers,
            "num_key_value_heads": dims.kv_heads,
            "rope_parameters": {
                "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1_000_000.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
            },
            "sliding_window": 256,
            "tie_word_embeddings": true,
            "use_attention_gate": true,
            "use_cache": true,
            "use_sandwich_norm": true,
            "vocab_size": dims.vocab,
        });
        let config = config.as_object().cloned().unwrap_or_default();
        let (vocab, tensors) = (dims.vocab, tensors(&dims, true));
        Self { config, tensors, vocab, first_special: 124_893, first_byte: 0, old_spelling: false }
    }
}

fn lfm2(hidden: u64, layers: u64, heads: u64, ff: u64, vocab: u64, full: &'static [u64]) -> Dims {
    Dims { hidden, heads, kv_heads: 8, head_dim: 64, ff, kernel: 3, vocab, layers, full, sliding: &[] }
}

/// The keys all spellings of an LFM2 configuration share.
fn lfm2_config(dims: &Dims, ff: u64, adjust: bool) -> Map<String, Value> {
    let config = json!({
        "architectures": ["Lfm2ForCausalLM"],
        "block_auto_adjust_ff_dim": adjust,
        "block_ff_dim": ff,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
        "block_norm_eps": 1e-5,
        "block_use_swiglu": true,
        "conv_L_cache": dims.kernel,
        "conv_bias": false,
        "hidden_size": dims.hidden,
        "initializer_range": 0.02,
        "max_position_embeddings": 128_000,
        "model_type": "lfm2",
        "norm_eps": 1e-5,
        "num_attention_heads": dims.heads,
        "num_hidden_layers": dims.layers,
        "num_key_value_heads": dims.kv_heads,
        "use_cache": true,
        "vocab_size": dims.vocab,
    });
    config.as_object().cloned().unwrap_or_default()
}

impl Dims {
    fn layer_types(&self) -> Value {
        let kind = |i: u64| match i {
            i if self.full.contains(&i) => "full_attention",
            i if self.sliding.contains(&i) => "sliding_attention",
            _ => "conv",
        };
        (0..self.layers).map(kind).collect()
    }
}

/// All tensors in checkpoint order; `new` chooses the LFM3 names and extras.
fn tensors(dims: &Dims, new: bool) -> Vec<Spec> {
    let mut out = vec![linear("model.embed_tokens", dims.vocab, dims.hidden)];
    for i in 0..dims.layers {
        let path = |part: &str| format!("model.layers.{i}.{part}");
        let mut norms = vec!["operator_norm", "ffn_norm"];
        if new {
            norms.extend(["post_operator_norm", "post_ffn_norm"]);
        }
        out.extend(norms.iter().map(|norm_name| norm(&path(norm_name), dims.hidden)));
        if dims.full.contains(&i) || dims.sliding.contains(&i) {
            let (q, kv) = (dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim);
            let names =
                if new { ["o_proj", "q_norm", "k_norm"] } else { ["out_proj", "q_layernorm", "k_layernorm"] };
            let attention = |part: &str| path(&format!("self_attn.{part}"));
            out.push(linear(&attention("q_proj"), q, dims.hidden));
            out.push(linear(&attention("k_proj"), kv, dims.hidden));
            out.push(linear(&attention("v_proj"), kv, dims.hidden));
            out.push(linear(&attention(names[0]), dims.hidden, q));
            out.push(norm(&attention(names[1]), dims.head_dim));
            out.push(norm(&attention(names[2]), dims.head_dim));
            if new {
                out.push(linear(&attention("gate_proj"), dims.heads, dims.hidden));
            }
        } else {
            out.push(linear(&path("conv.in_proj"), 3 * dims.hidden, dims.hidden));
            let shape = vec![dims.hidden, 1, dims.kernel];
            let std = (dims.kernel as f32).sqrt().recip();
            out.push(Spec { name: path("conv.conv.weight"), shape, mean: 0.0, std });
            out.push(linear(&path("conv.out_proj"), dims.hidden, dims.hidden));
        }
        out.push(linear(&path("feed_forward.w1"), dims.ff, dims.hidden));
        out.push(linear(&path("feed_forward.w3"), dims.ff, dims.hidden));
        out.push(linear(&path("feed_forward.w2"), dims.hidden, dims.ff));
    }
    out.push(norm("model.embedding_norm", dims.hidden));
    out
}

/// Keeps the scale of a normed input, within the usual bounds of an initialisation.
fn linear(path: &str, outputs: u64, inputs: u64) -> Spec {
    let std = (inputs as f32).sqrt().recip().clamp(0.02, 0.125);
    Spec { name: format!("{path}.weight"), shape: vec![outputs, inputs], mean: 0.0, std }
}

fn norm(path: &str, size: u64) -> Spec {
    Spec { name: format!("{path}.weight"), shape: vec![size], mean: 1.0, std: 0.05 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_the_published_ones() {
        let count = |name| Preset::new(name).tensors.iter().map(Spec::numel).sum::<u64>();
        assert_eq!(count(PresetName::Lfm2M350), 354_483_968);
        assert_eq!(count(PresetName::Lfm25M230), 229_693_184);
        assert_eq!(count(PresetName::Lfm2B12), 1_170_340_608);
        assert_eq!(count(PresetName::Lfm3B17), 1_728_801_536);
    }

    #[test]
    fn adjusted_widths_follow_from_the_config() {
        for name in [PresetName::Lfm2M350, PresetName::Lfm2B12, PresetName::Tiny] {
            let preset = Preset::new(name);
            let key = |key: &str| preset.config[key].as_u64().unwrap();
            let width = (2 * key("block_ff_dim") / 3).next_multiple_of(key("block_multiple_of"));
            let w1 =
                preset.tensors.iter().find(|t| t.name.ends_with("layers.0.feed_forward.w1.weight")).unwrap();
            assert_eq!(w1.shape[0], width, "{name:?}");
        }
    }

    #[test]
    fn layer_kinds_match_the_tensors() {
        let preset = Preset::new(PresetName::Lfm3B17);
        let kinds = preset.config["layer_types"].as_array().unwrap();
        for (i, kind) in kinds.iter().enumerate() {
            let has = |part: &str| {
                preset.tensors.iter().any(|t| t.name == format!("model.layers.{i}.{part}.weight"))
            };
            assert_eq!(kind == "conv", has("conv.conv"));
            assert_eq!(kind != "conv", has("self_attn.gate_proj"));
        }
    }
}
