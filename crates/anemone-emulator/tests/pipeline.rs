//! Converted checkpoints through the graph pipeline, against recorded outputs and the CPU engine.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anemone_ane::{Options, Pass, lower_chunk, lower_head, plan};
use anemone_bundle::{Bundle, BundleWeights, Role, Source, Writer};
use anemone_checkpoint::Checkpoint;
use anemone_cpu::{Arithmetic, Layout, LogitsOf, Model};
use anemone_emulator::{Emulator, Profile};
use anemone_session::{Engine, GraphEngine};
use anemone_tensor::{argmax, cosine, max_abs_diff};
use serde_json::Value;

const DENSE: [&str; 4] =
    ["lfm2-tiny-tied", "lfm2-tiny-untied-sharded", "lfm3-tiny", "lfm3-tiny-options-sharded"];

/// Logits of std 2. Only constants, which the program holds in fp16, differ from the reference.
const F32_TOLERANCE: f64 = 2e-3;
/// Every operation rounds to 11 bits; the least measured after a prompt is 0.99996.
const FP16_COSINE: f64 = 0.9999;
/// The same at any later step, where a flat row of logits may come up; the least measured is 0.99985.
const FP16_STEP_COSINE: f64 = 0.9997;

const PREFILL: usize = 8;
const DRAFTS: usize = 3;

fn fixture(name: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/lfm-tiny").join(name);
    if !dir.exists() {
        // Not `eprintln!`, which the test runner swallows.
        let _ = writeln!(std::io::stderr(), "skipped: shared/ not present (fixtures/lfm-tiny/{name})");
        return None;
    }
    Some(dir)
}

fn convert(dir: &Path, out: &Path, ring: bool) -> Bundle {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let weights = checkpoint.weights();
    let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
    let passes = vec![Pass::Decode, Pass::Prefill(PREFILL), Pass::Verify(DRAFTS + 1)];
    let options = Options {
        ctx: 256,
        passes,
        ring,
        layers_per_chunk: Some(3),
        head_slices: Some(2),
        ..Options::default()
    };
    let plan = plan(&stack, &options).unwrap();
    let mut writer = Writer::create(out, false).unwrap();
    for (i, chunk) in plan.chunks.iter().enumerate() {
        let (program, records) = lower_chunk(&stack, &|w| w.load(&*weights), chunk, &options).unwrap();
        let name = format!("chunk_{i}.mlpackage");
        writer.add(writer.package(&name, Role::Chunk, &program, records).unwrap());
    }
    for (i, rows) in plan.head.iter().enumerate() {
        let (program, records) = lower_head(&stack, &|w| w.load(&*weights), rows.clone(), &options).unwrap();
        let name = format!("head_{i}.mlpackage");
        writer.add(writer.package(&name, Role::Head, &program, records).unwrap());
    }
    let embedding = stack.embedding.load(&*weights).unwrap();
    writer.add_host_tensor(writer.host_tensor("embedding", &stack.embedding.name, &embedding).unwrap());
    writer.file("config.json", &std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let source =
        Source { name: "fixture".into(), model_type: stack.model_type.clone(), sha256: BTreeMap::new() };
    let tensors = stack.weights().into_iter().map(|w| (w.name.clone(), w.shape.to_vec())).collect();
    writer.finish(source, &options, &plan, tensors, "a test").unwrap();
    Bundle::open(out).unwrap()
}

fn engine(bundle: &Bundle, profile: Profile) -> GraphEngine {
    GraphEngine::new(bundle.clone(), Box::new(Emulator::new(profile, 2))).unwrap()
}

/// The CPU engine, in f32, on the weights of the bundle.
fn cpu(dir: &Path, bundle: &Bundle) -> anemone_cpu::Engine {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let stored = BundleWeights::open(bundle).unwrap();
    let stack = anemone_models::load(checkpoint.config(), &stored).unwrap();
    let model = Arc::new(Model::load(stack, &stored, Layout::Mapped).unwrap());
    let options = anemone_cpu::Options {
        threads: 2,
        arithmetic: Arithmetic::Exact,
        context_len: Some(256),
        ..anemone_cpu::Options::default()
    };
    anemone_cpu::Engine::new(model, options).unwrap()
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn prompts(dir: &Path) -> Vec<Value> {
    let goldens: Value = serde_json::from_slice(&std::fs::read(dir.join("goldens.json")).unwrap()).unwrap();
    goldens["prompts"].as_array().unwrap().clone()
}

/// The order of keys in a sum depends on whether they are cached yet, so only the last bits may differ.
fn close(found: &[f32], expected: &[f32], profile: Profile, what: &str) {
    let (off, similar) = (max_abs_diff(found, expected), cosine(found, expected));
    assert!(profile != Profile::F32 || off <= 1e-4, "{what}: f32 is off by {off:e}");
    assert!(similar >= FP16_COSINE, "{what}: {profile} cosine {similar}");
    assert!(argmax(found) == argmax(expected) || margin(expected) <= 2.0 * off, "{what}: {profile}");
}

fn margin(logits: &[f32]) -> f64 {
    let best = argmax(logits).unwrap();
    let others = logits.iter().enumerate().filter(|(i, _)| *i != best);
    f64::from(logits[best] - others.map(|(_, v)| *v).fold(f32::NEG_INFINITY, f32::max))
}

#[test]
fn logits_and_greedy_ids_match_the_reference() {
    for name in DENSE {
        let Some(dir) = fixture(name) else { return };
        let place = tempfile::tempdir().unwrap();
        // The published type is bf16, which fp16 holds exactly; f32 weights lose bits in the conversion.
        let exact_weights = name.ends_with("sharded");
        for ring in [true, false] {
            let bundle = convert(&dir, &place.path().join(format!("{ring}.bundle")), ring);
            let mut cpu = cpu(&dir, &bundle);
            let (mut wide, mut half) = (engine(&bundle, Profile::F32), engine(&bundle, Profile::Fp16));
            for prompt in prompts(&dir) {
                let what = format!("{name} ring {ring} prompt {}", prompt["name"]);
                let (tokens, recorded) = (ids(&prompt["token_ids"]), floats(&prompt["last_logits"]));
                wide.reset();
                half.reset();
                cpu.reset();
                let mut expected = cpu.feed(&tokens, LogitsOf::Last).unwrap().to_vec();
                let mut logits = wide.feed(&tokens).unwrap().to_vec();
                let mut rounded = half.feed(&tokens).unwrap().to_vec();
                let off = max_abs_diff(&logits, &recorded);
                assert!(!exact_weights || off <= F32_TOLERANCE, "{what}: f32 is off by {off:e}");
                let similar = cosine(&rounded, if exact_weights { &recorded } else { &logits });
                assert!(similar >= FP16_COSINE, "{what}: fp16 cosine {similar}");
                let steps = if ring { 32 } else { 4 };
                for (step, id) in ids(&prompt["greedy_ids"]).into_iter().take(steps).enumerate() {
                    let what = format!("{what} step {step}");
                    let off = max_abs_diff(&logits, &expected);
                    assert!(off <= F32_TOLERANCE, "{what}: f32 is off by {off:e}");
                    let chosen = argmax(&logits);
                    assert!(!exact_weights || chosen == Some(id as usize), "{what}: f32 chose {chosen:?}");
                    let (similar, error) = (cosine(&rounded, &logits), max_abs_diff(&rounded, &logits));
                    assert!(similar >= FP16_STEP_COSINE, "{what}: fp16 cosine {similar}");
                    // Rounding may only decide where the best two are closer than it moves each of them.
                    let same = argmax(&rounded) == chosen;
                    assert!(same || margin(&logits) <= 2.0 * error, "{what}: margin {}", margin(&logits));
                    expected = cpu.feed(&[id], LogitsOf::Last).unwrap().to_vec();
                    logits = wide.feed(&[id]).unwrap().to_vec();
                    rounded = half.feed(&[id]).unwrap().to_vec();
                }
            }
        }
    }
}

#[test]
fn any_length_of_prompt_gives_the_logits_of_the_cpu_engine() {
    for name in DENSE {
        let Some(dir) = fixture(name) else { return };
        let place = tempfile::tempdir().unwrap();
        let bundle = convert(&dir, &place.path().join("bundle"), true);
        let mut cpu = cpu(&dir, &bundle);
        let mut graph = engine(&bundle, Profile::F32);
        let long = prompts(&dir).iter().map(|p| ids(&p["token_ids"])).max_by_key(Vec::len).unwrap();
        let full: Vec<u32> = long.iter().cycle().take(256).copied().collect();
        for n in [1, PREFILL - 1, PREFILL, PREFILL + 1, 3 * PREFILL + 5, 256] {
            cpu.reset();
            let expected = cpu.feed(&full[..n], LogitsOf::All).unwrap().to_vec();
            graph.reset();
            let vocab = graph.vocab_size();
            let last = graph.feed(&full[..n]).unwrap();
            let off = max_abs_diff(last, &expected[(n - 1) * vocab..]);
            assert!(off <= F32_TOLERANCE, "{name}: the last of {n} tokens is off by {off:e}");
            graph.reset();
            let off = max_abs_diff(graph.feed_all(&full[..n]).unwrap(), &expected);
            assert!(off <= F32_TOLERANCE, "{name}: {n} tokens are off by {off:e}");
        }
    }
}

#[test]
fn verifying_and_stepping_back_equals_decoding() {
    for name in DENSE {
        let Some(dir) = fixture(name) else { return };
        let place = tempfile::tempdir().unwrap();
        let bundle = convert(&dir, &place.path().join("bundle"), true);
        let tokens = prompts(&dir).iter().map(|p| ids(&p["token_ids"])).max_by_key(Vec::len).unwrap();
        for profile in [Profile::F32, Profile::Fp16] {
            let (mut plain, mut drafting) = (engine(&bundle, profile), engine(&bundle, profile));
            plain.feed(&tokens[..21]).unwrap();
            drafting.feed(&tokens[..21]).unwrap();
            let vocab = plain.vocab_size();
            let mut at = 21;
            for kept in [1, 4, 2, 3, 1] {
                // The right tokens, then wrong drafts, all in one pass.
                let mut drafts = tokens[at..at + kept].to_vec();
                drafts.resize(DRAFTS + 1, 5);
                let verified = drafting.feed_all(&drafts).unwrap().to_vec();
                for i in 0..kept {
                    let expected = plain.feed(&tokens[at + i..=at + i]).unwrap();
                    let found = &verified[i * vocab..(i + 1) * vocab];
                    close(found, expected, profile, &format!("{name} position {} of a verification", at + i));
                }
                at += kept;
                drafting.rewind(at).unwrap();
                let next = tokens[at..=at].to_vec();
                let after = drafting.feed(&next).unwrap().to_vec();
                close(&after, plain.feed(&next).unwrap(), profile, &format!("{name} position {at} after it"));
                at += 1;
            }
        }
    }
}
