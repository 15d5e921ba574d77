//! A model in a mapped file large enough to be moved to large pages while it decodes.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use anemone_checkpoint::{Entry, Error, Weights};
use anemone_cpu::{Engine, Layout, LogitsOf, Model, Options};
use anemone_tensor::{Bytes, DType, Shape, Tensor};
use serde_json::{Value, json};

/// Makes the embedding alone 72 MiB.
const VOCAB: usize = 288 << 10;
const HIDDEN: usize = 128;
/// Copying starts after 256 tokens and is spread over 64.
const TOKENS: usize = 336;

#[derive(Debug)]
struct Mapped(BTreeMap<String, Tensor>);

impl Weights for Mapped {
    fn entry(&self, name: &str) -> Option<Entry> {
        self.0.get(name).map(|t| Entry { dtype: t.dtype(), shape: t.shape().clone() })
    }

    fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let absent = || Error::NoTensor { name: name.into(), checkpoint: "mapped".into() };
        self.0.get(name).cloned().ok_or_else(absent)
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![
        ("model.embed_tokens.weight".to_string(), vec![VOCAB, HIDDEN]),
        ("model.embedding_norm.weight".to_string(), vec![HIDDEN]),
    ];
    for i in 0..2 {
        let mut add =
            |name: &str, shape: &[usize]| all.push((format!("model.layers.{i}.{name}"), shape.into()));
        add("operator_norm.weight", &[HIDDEN]);
        add("ffn_norm.weight", &[HIDDEN]);
        add("feed_forward.w1.weight", &[128, HIDDEN]);
        add("feed_forward.w3.weight", &[128, HIDDEN]);
        add("feed_forward.w2.weight", &[HIDDEN, 128]);
        if i == 0 {
            add("conv.in_proj.weight", &[3 * HIDDEN, HIDDEN]);
            add("conv.conv.weight", &[HIDDEN, 1, 3]);
            add("conv.out_proj.weight", &[HIDDEN, HIDDEN]);
            continue;
        }
        for (name, rows) in [("q_proj", HIDDEN), ("k_proj", 32), ("v_proj", 32), ("out_proj", HIDDEN)] {
            add(&format!("self_attn.{name}.weight"), &[rows, HIDDEN]);
        }
        add("self_attn.q_layernorm.weight", &[32]);
        add("self_attn.k_layernorm.weight", &[32]);
    }
    all
}

/// bf16 values from a counter, all in one file that is mapped and has lost its name.
fn weights() -> Mapped {
    let path = std::env::temp_dir().join(format!("anemone-promotion-{}", std::process::id()));
    let mut file = File::create(&path).unwrap();
    let (mut state, mut ranges, mut end) = (1u64, Vec::new(), 0);
    for (name, shape) in shapes() {
        let norm = name.ends_with("norm.weight");
        let bytes: Vec<u8> = (0..shape.iter().product::<usize>())
            .flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let uniform = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
                let value = if norm { 1.0 + 0.2 * uniform } else { 0.4 * uniform };
                ((value.to_bits() >> 16) as u16).to_le_bytes()
            })
            .collect();
        // As in a safetensors file, a tensor starts where the one before ended.
        file.write_all(&bytes).unwrap();
        ranges.push((name, shape, end..end + bytes.len()));
        end += bytes.len();
    }
    let map = Bytes::map(&File::open(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let tensor = |(name, shape, range): (String, Vec<usize>, _)| {
        let bytes = map.slice(range).unwrap();
        (name, Tensor::new(DType::BF16, Shape::from(shape.as_slice()), bytes).unwrap())
    };
    Mapped(ranges.into_iter().map(tensor).collect())
}

fn load(weights: &Mapped, layout: Layout) -> Arc<Model> {
    let config = json!({
        "architectures": ["Lfm2ForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 2, "vocab_size": VOCAB,
        "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 128, "block_auto_adjust_ff_dim": false,
        "layer_types": ["conv", "full_attention"], "max_position_embeddings": 512, "tie_word_embeddings": true,
    });
    let Value::Object(config) = config else { unreachable!() };
    let stack = anemone_models::load(&config, weights).unwrap();
    Arc::new(Model::load(stack, weights, layout).unwrap())
}

/// Where the weights lie may not change a bit, also not while they move.
#[test]
fn moving_the_weights_while_decoding_changes_nothing() {
    let weights = weights();
    let models = [Layout::Mapped, Layout::Auto].map(|layout| load(&weights, layout));
    let options = Options { threads: 2, context_len: Some(512), ..Options::default() };
    let mut engines = models.clone().map(|model| Engine::new(model, options).unwrap());
    let mut packed = Vec::new();
    for i in 0..TOKENS {
        let token = (i * 7919 % VOCAB) as u32;
        let [mapped, moving] =
            engines.each_mut().map(|engine| engine.feed(&[token], LogitsOf::Last).unwrap());
        assert!(mapped.iter().zip(moving).all(|(a, b)| a.to_bits() == b.to_bits()), "token {i}");
        packed.push(models[1].is_packed());
    }
    assert!(!packed[255], "short runs pay nothing");
    assert!(!models[0].is_packed() && !engines[0].settle(), "mapped stays mapped");
    // Machines without large pages, or without room, stay with the mapped files.
    let settled = Engine::new(load(&weights, Layout::Auto), options).unwrap().settle();
    assert_eq!(packed[TOKENS - 1], settled);
    assert!(!settled || packed[200..].is_sorted(), "{packed:?}");
}
