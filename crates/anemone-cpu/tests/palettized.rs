//! A model whose matrices are indices into tables.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anemone_checkpoint::{Entry, Error, Weights};
use anemone_cpu::{Arithmetic, Engine, Layout, LogitsOf, Model, Options};
use anemone_kernels::Level;
use anemone_tensor::{DType, Palettized, Segment, Shape, Tensor};
use half::f16;
use serde_json::{Value, json};

const VOCAB: usize = 320;
const HIDDEN: usize = 128;

/// Each matrix as indices, and everything in full; `hides` the indices.
#[derive(Debug, Clone)]
struct Stored {
    tensors: BTreeMap<String, Tensor>,
    matrices: BTreeMap<String, Palettized>,
    hides: bool,
}

impl Weights for Stored {
    fn entry(&self, name: &str) -> Option<Entry> {
        self.tensors.get(name).map(|t| Entry { dtype: t.dtype(), shape: t.shape().clone() })
    }

    fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let absent = || Error::NoTensor { name: name.into(), checkpoint: "test".into() };
        self.tensors.get(name).cloned().ok_or_else(absent)
    }

    fn palettized(&self, name: &str) -> Result<Option<Palettized>, Error> {
        Ok(self.matrices.get(name).filter(|_| !self.hides).cloned())
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }
}

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn value(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 31) as f32 - 0.5
    }
}

fn stored(bits: u32, group: usize) -> Stored {
    let mut noise = Noise(u64::from(bits));
    let mut all = Stored { tensors: BTreeMap::new(), matrices: BTreeMap::new(), hides: false };
    let mut matrix = |name: &str, rows: usize, cols: usize| {
        let indices: Vec<u8> = (0..rows * cols * bits as usize / 8).map(|_| noise.next() as u8).collect();
        let tables = (0..rows.div_ceil(group) << bits).map(|_| f16::from_f32(0.4 * noise.value())).collect();
        let segment = Segment::new((rows, cols), bits, group, tables, indices.into()).unwrap();
        let matrix = Palettized::new(vec![vec![segment]]).unwrap();
        let bytes: Vec<u8> = matrix.expand().iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = Tensor::new(DType::F16, Shape::from([rows, cols]), bytes.into()).unwrap();
        all.tensors.insert(name.to_string(), tensor);
        all.matrices.insert(name.to_string(), matrix);
    };
    matrix("model.embed_tokens.weight", VOCAB, HIDDEN);
    for i in 0..2 {
        let mut add = |name: &str, rows, cols| matrix(&format!("model.layers.{i}.{name}.weight"), rows, cols);
        add("feed_forward.w1", 256, HIDDEN);
        add("feed_forward.w3", 256, HIDDEN);
        add("feed_forward.w2", HIDDEN, 256);
        if i == 0 {
            add("conv.in_proj", 3 * HIDDEN, HIDDEN);
            add("conv.out_proj", HIDDEN, HIDDEN);
        } else {
            for (name, rows) in [("q_proj", HIDDEN), ("k_proj", 32), ("v_proj", 32), ("out_proj", HIDDEN)] {
                add(&format!("self_attn.{name}"), rows, HIDDEN);
            }
        }
    }
    let mut plain = |name: &str, shape: &[usize]| {
        let bytes: Vec<u8> =
            (0..shape.iter().product()).flat_map(|_| (1.0 + noise.value() / 4.0).to_le_bytes()).collect();
        let tensor = Tensor::new(DType::F32, Shape::from(shape), bytes.into()).unwrap();
        all.tensors.insert(name.to_string(), tensor);
    };
    plain("model.embedding_norm.weight", &[HIDDEN]);
    plain("model.layers.0.conv.conv.weight", &[HIDDEN, 1, 3]);
    for i in 0..2 {
        plain(&format!("model.layers.{i}.operator_norm.weight"), &[HIDDEN]);
        plain(&format!("model.layers.{i}.ffn_norm.weight"), &[HIDDEN]);
    }
    plain("model.layers.1.self_attn.q_layernorm.weight", &[32]);
    plain("model.layers.1.self_attn.k_layernorm.weight", &[32]);
    all
}

fn try_load(weights: &Stored, layout: Layout) -> Result<Model, anemone_cpu::Error> {
    let config = json!({
        "architectures": ["Lfm2ForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 2, "vocab_size": VOCAB,
        "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 256, "block_auto_adjust_ff_dim": false,
        "layer_types": ["conv", "full_attention"], "max_position_embeddings": 512, "tie_word_embeddings": true,
    });
    let Value::Object(config) = config else { unreachable!() };
    Model::load(anemone_models::load(&config, weights).unwrap(), weights, layout)
}

fn load(weights: &Stored, layout: Layout) -> Arc<Model> {
    Arc::new(try_load(weights, layout).unwrap())
}

/// The same numbers in full are the reference, which the goldens hold; not a bit may differ from it, in either order of the indices.
#[test]
fn logits_are_those_of_the_expanded_model() {
    let tokens: Vec<u32> = (0..40).map(|i| i * 7919 % VOCAB as u32).collect();
    for (bits, group) in [(4, 32), (6, 32), (8, 32), (4, 1 << 20), (2, 3)] {
        let weights = stored(bits, group);
        let full = load(&Stored { hides: true, ..weights.clone() }, Layout::Mapped);
        for &level in Level::available() {
            for arithmetic in [Arithmetic::Fast, Arithmetic::Exact] {
                let options = Options { arithmetic, threads: 2, ..Options::default() };
                let run = |model: &Arc<Model>| {
                    let mut engine = Engine::with_level(Arc::clone(model), options, level).unwrap();
                    let mut logits = engine.feed(&tokens[..30], LogitsOf::All).unwrap().to_vec();
                    for token in &tokens[30..] {
                        logits.extend_from_slice(engine.feed(&[*token], LogitsOf::Last).unwrap());
                    }
                    logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
                };
                let expected = run(&full);
                for layout in [Layout::Mapped, Layout::Packed] {
                    let model = load(&weights, layout);
                    assert!(
                        run(&model) == expected,
                        "{bits} bits, groups of {group}, {level:?}, {arithmetic:?}, {layout:?}"
                    );
                }
            }
        }
    }
}

/// What is shown of an input is what the map's products see, so its product with the weights is what the engine goes on with.
#[test]
fn inputs_of_maps_are_shown() {
    let weights = stored(8, 32);
    let options = Options { arithmetic: Arithmetic::Exact, threads: 2, ..Options::default() };
    let mut engine = Engine::new(load(&weights, Layout::Mapped), options).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&seen);
    engine.observe(Some(Box::new(move |names: &[&str], tokens: usize, x: &[f32]| {
        assert_eq!(tokens, 2);
        let names: Vec<String> = names.iter().map(|n| (*n).to_string()).collect();
        all.lock().unwrap().push((names, x.to_vec()));
    })));
    let logits = engine.feed(&[3, 5], LogitsOf::All).unwrap().to_vec();
    engine.observe(None);
    engine.feed(&[7], LogitsOf::Last).unwrap();
    let seen = seen.lock().unwrap();
    let mut names: Vec<&str> = seen.iter().flat_map(|(names, _)| names.iter().map(String::as_str)).collect();
    let (head, x) = seen.last().unwrap();
    assert_eq!(head[..], ["model.embed_tokens.weight"]);
    let table = weights.tensors[&head[0]].to_f32().unwrap();
    for (t, x) in x.chunks_exact(HIDDEN).enumerate() {
        for (row, logit) in table.chunks_exact(HIDDEN).zip(&logits[t * VOCAB..]) {
            let sum: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            // 128 products below 1 in f32.
            assert!((sum - f64::from(*logit)).abs() < 1e-4);
        }
    }
    names.sort_unstable();
    let matrices: Vec<&str> = weights.matrices.keys().map(String::as_str).collect();
    assert_eq!(names, matrices, "every matrix, once");
    let shared = |name: &str| seen.iter().find(|(names, _)| names.iter().any(|n| n.contains(name))).unwrap();
    assert_eq!(shared("q_proj").0.len(), 3, "one input for queries, keys and values");
    assert_eq!(shared("w2").1.len(), 2 * 256);
}

/// Indices and tables are all that is read, and no matrix is kept in full.
#[test]
fn a_token_reads_the_indices() {
    let weights = stored(4, 32);
    let read = load(&weights, Layout::Mapped).bytes_per_token();
    let matrices: usize = weights.matrices.values().map(Palettized::size).sum();
    assert_eq!(read as usize, matrices + 4 * 3 * HIDDEN);
    let full = load(&Stored { hides: true, ..weights }, Layout::Mapped).bytes_per_token();
    assert!(full as usize > 3 * matrices);
}

#[test]
fn an_entry_that_is_no_number_is_named() {
    let mut weights = stored(4, 32);
    let name = "model.layers.0.feed_forward.w1.weight";
    let entries = vec![f16::NAN; 8 << 4];
    let indices = weights.matrices[name].segments().next().unwrap().indices().clone();
    let bad = Segment::new((256, HIDDEN), 4, 32, entries, indices).unwrap();
    weights.matrices.insert(name.into(), Palettized::new(vec![vec![bad]]).unwrap());
    let mut engine = Engine::new(load(&weights, Layout::Mapped), Options::default()).unwrap();
    let error = engine.feed(&[1], LogitsOf::Last).unwrap_err().to_string();
    assert!(error.contains(name), "{error}");
}

#[test]
fn a_matrix_of_another_shape_is_refused() {
    let mut weights = stored(4, 32);
    let other = weights.matrices["model.layers.0.conv.out_proj.weight"].clone();
    weights.matrices.insert("model.layers.0.conv.in_proj.weight".into(), other);
    let error = try_load(&weights, Layout::Mapped).unwrap_err().to_string();
    assert!(error.contains("conv.in_proj") && error.contains("[384, 128]"), "{error}");
}
