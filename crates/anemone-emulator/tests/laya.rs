//! Decision models: the lowering on the emulator against outputs laya's own channel-first body recorded.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anemone_ane::{LayaOptions, LocalAttention, lower_laya, multiply_adds};
use anemone_checkpoint::{DecisionCheckpoint, Weights, open_weights};
use anemone_emulator::{Emulator, Profile};
use anemone_mil::{Array, DataType, Executor as _, Program, States, write_package};
use anemone_models::Laya;
use anemone_tensor::{DType, Tensor, cosine, max_abs_diff};
use serde_json::json;

fn fixtures() -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/laya-tiny");
    if !dir.exists() {
        // Not `eprintln!`, which the test runner swallows.
        let _ = writeln!(std::io::stderr(), "skipped: shared/fixtures/laya-tiny is not present");
        return None;
    }
    Some(dir)
}

fn laya(dir: &Path) -> (DecisionCheckpoint, Laya) {
    let checkpoint = DecisionCheckpoint::open(dir).unwrap();
    let weights = checkpoint.weights();
    let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights).unwrap();
    (checkpoint, laya)
}

fn lower(dir: &Path, lengths: &[usize], local: LocalAttention, precision: DataType) -> Program {
    let (checkpoint, laya) = laya(dir);
    let weights = checkpoint.weights();
    let options = LayaOptions { lengths: lengths.to_vec(), spec_version: 9, local, precision, pack: false };
    lower_laya(&laya, &|w| w.load(&*weights), &options).unwrap().0
}

/// Recorded inputs and outputs of a row.
struct Recorded {
    tensors: std::sync::Arc<dyn Weights>,
}

impl Recorded {
    fn open(path: &Path) -> Self {
        Self { tensors: open_weights(path).unwrap() }
    }

    fn get(&self, name: &str) -> Array {
        let tensor: Tensor = self.tensors.tensor(name).unwrap();
        Array { shape: tensor.shape().to_vec(), data: tensor.to_f32().unwrap() }
    }
}

const INPUTS: [&str; 5] = ["embeddings", "full_mask", "local_mask", "type_vectors", "marker_map"];

fn run(program: &Program, function: &str, profile: Profile, inputs: &[(&str, &Array)]) -> Vec<Array> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("body.mlpackage");
    write_package(program, &path).unwrap();
    let mut executable = Emulator::new(profile, 2).load(&path, function).unwrap();
    executable.predict(inputs, &mut States::new()).unwrap()
}

#[test]
fn recorded_bodies() {
    let Some(dir) = fixtures() else { return };
    for (name, length) in [("english", 96), ("multilingual", 128)] {
        let recorded = Recorded::open(&dir.join(format!("bc1s_{name}_L{length}.safetensors")));
        let arrays = INPUTS.map(|name| recorded.get(name));
        let inputs: Vec<(&str, &Array)> = INPUTS.into_iter().zip(&arrays).collect();
        let (logits, cls) = (recorded.get("logits"), recorded.get("cls"));
        // Both a program of its own and one of several over the same weights.
        for (lengths, function) in
            [(vec![length], "main".to_owned()), (vec![64, length], format!("L{length}"))]
        {
            let program = lower(&dir.join(name), &lengths, LocalAttention::Dense, DataType::Float32);
            let exact = run(&program, &function, Profile::f32(), &inputs);
            // The reference is f32, too; sums differ by their order alone.
            assert!(max_abs_diff(&exact[0].data, &logits.data) < 1e-4, "{name}");
            assert!(max_abs_diff(&exact[1].data, &cls.data) < 1e-4, "{name}");
            let program = lower(&dir.join(name), &lengths, LocalAttention::Dense, DataType::Float16);
            let stored = run(&program, &function, Profile::f32(), &inputs);
            // Rotary tables and scales lose 5e-4 relative to fp16.
            assert!(max_abs_diff(&stored[0].data, &logits.data) < 2e-3, "{name}");
            let half = run(&program, &function, Profile::fp16(), &inputs);
            // Some hundred roundings of 5e-4 relative on values near 1, of which most cancel.
            assert!(max_abs_diff(&half[0].data, &logits.data) < 0.02, "{name}");
            assert!(cosine(&half[1].data, &cls.data) > 0.9999, "{name}");
        }
    }
}

/// A row's inputs: made-up embeddings, real masks, `valid` of `length` tokens.
fn inputs(laya: &Laya, length: usize, valid: usize) -> Vec<(&'static str, Array)> {
    let hidden = laya.encoder.hidden_size;
    let radius = laya.encoder.layers.iter().find_map(|l| l.attention.radius).unwrap();
    let values =
        |n: usize, seed: usize| (0..n).map(move |i| (((i + seed) * 7919 % 1013) as f32 / 506.5 - 1.0) * 0.05);
    let mask = |sees: &dyn Fn(usize, usize) -> bool| Array {
        shape: vec![1, length, 1, length],
        data: (0..length * length)
            .map(|i| if i / length < valid && sees(i / length, i % length) { 0.0 } else { -1e4 })
            .collect(),
    };
    let mut markers = Array::zeros(&[1, length, 1, 32]);
    for (slot, at) in [2, valid / 2, valid - 1].into_iter().enumerate() {
        markers.data[at * 32 + slot] = 1.0;
    }
    let embeddings = Array { shape: vec![1, hidden, 1, length], data: values(hidden * length, 1).collect() };
    let types = Array { shape: vec![1, hidden, 1, 1], data: values(hidden, 5).collect() };
    vec![
        ("embeddings", embeddings),
        ("full_mask", mask(&|_, _| true)),
        ("local_mask", mask(&|k, q| q >= valid || k.abs_diff(q) <= radius)),
        ("type_vectors", types),
        ("marker_map", markers),
    ]
}

#[test]
fn tiles_change_no_answer() {
    let Some(dir) = fixtures() else { return };
    for name in ["english", "multilingual"] {
        let (_, laya) = laya(&dir.join(name));
        for (length, valid) in [(128, 128), (128, 50), (136, 101)] {
            let arrays = inputs(&laya, length, valid);
            let arrays: Vec<(&str, &Array)> = arrays.iter().map(|(name, array)| (*name, array)).collect();
            let out = |local| {
                run(
                    &lower(&dir.join(name), &[length], local, DataType::Float32),
                    "main",
                    Profile::f32(),
                    &arrays,
                )
            };
            let dense = out(LocalAttention::Dense);
            for tile in [16, 40, 64] {
                let tiled = out(LocalAttention::Tiled(tile));
                // The masked keys left out weighed e^-10000; what is summed is the same, in the same order.
                let (logits, cls) = (&tiled[0].data[..3], &tiled[1].data);
                assert!(max_abs_diff(logits, &dense[0].data[..3]) < 1e-5, "{name} {length} {valid} {tile}");
                assert!(max_abs_diff(cls, &dense[1].data) < 1e-5, "{name} {length} {valid} {tile}");
            }
        }
    }
}

/// Operations the channel-first body has by the counts measured on coremltools' own conversions.
fn expected(laya: &Laya) -> BTreeMap<&'static str, usize> {
    let (n, h) = (laya.encoder.layers.len(), laya.encoder.layers[0].attention.heads);
    let (m, g) = (laya.head.len(), laya.head[0].attention.heads);
    let biased = laya.encoder.final_norm.bias.is_some();
    let (encoder_norms, all) = (2 * n + 1, n * h + m * g);
    // One-piece splits and joins vanish.
    let split_heads = if g > 1 { 3 * m } else { 0 };
    let joins = if g > 1 { m } else { 0 };
    let mut counts = BTreeMap::from([
        ("layer_norm", encoder_norms + 2 * m + 1),
        ("mul", 8 * n * h + all + n + if biased { 0 } else { encoder_norms }),
        ("conv", 4 * n + 4 * m + 2),
        ("split", n * (1 + 3 + 2 * h + 1) + m + split_heads),
        ("sub", 2 * n * h),
        ("add", 2 * n * h + all + 2 * (n + m) + 1),
        ("concat", n * (2 * h + 1) + joins),
        ("transpose", all),
        ("softmax", all),
        ("einsum", 2 * all + 1),
        ("gelu", n + 1),
        ("batch_norm", 2 * m + 1 + if biased { encoder_norms } else { 0 }),
        ("relu", m),
        ("slice_by_index", 1),
    ]);
    counts.retain(|_, count| *count > 0);
    counts
}

#[test]
fn operations_are_those_of_the_published_body() {
    let Some(dir) = fixtures() else { return };
    for name in ["english", "multilingual"] {
        let (_, laya) = laya(&dir.join(name));
        let program = lower(&dir.join(name), &[64], LocalAttention::Dense, DataType::Float16);
        let counts: BTreeMap<&str, usize> = program.functions["main"].op_counts().into_iter().collect();
        assert_eq!(counts, expected(&laya), "{name}");
    }
}

#[test]
fn the_published_multilingual_shape() {
    let agent = json!({"encoder": "e", "head_layers": 2, "act_costs": {"escalate": 0.5}});
    let encoder = json!({"hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
        "num_attention_heads": 12, "vocab_size": 256_000});
    let laya = Laya::describe(agent.as_object().unwrap(), encoder.as_object().unwrap()).unwrap();
    let options = |local| LayaOptions {
        lengths: vec![96],
        spec_version: 9,
        local,
        precision: DataType::Float16,
        pack: false,
    };
    // Nothing is written, so the numbers do not matter.
    let load = |w: &anemone_models::WeightRef| {
        let bytes = vec![0; w.shape.numel() * 2];
        Ok(Tensor::new(DType::F16, w.shape.clone(), bytes.into()).unwrap())
    };
    let (program, _) = lower_laya(&laya, &load, &options(LocalAttention::Dense)).unwrap();
    let counts: BTreeMap<&str, usize> = program.functions["main"].op_counts().into_iter().collect();
    assert_eq!(counts, expected(&laya));
    assert_eq!(counts.values().sum::<usize>(), 6390);
    // Pairs of a tile of 128 queries and 256 keys against 1024 by 1024, at the ends fewer.
    let (linear, dense) = multiply_adds(&laya, 1024, LocalAttention::Dense);
    let (same, tiled) = multiply_adds(&laya, 1024, LocalAttention::Tiled(128));
    println!("at 1024 tokens: linear {linear}, attention dense {dense}, in tiles of 128 {tiled}");
    assert_eq!(linear, same);
    let (full, pairs) = (10 * 1024 * 1024, 1024 * 1024);
    assert_eq!(dense, 2 * 768 * (full + 14 * pairs));
    assert_eq!(tiled, 2 * 768 * (full + 14 * 128 * (6 * 256 + 2 * 192)));
}
