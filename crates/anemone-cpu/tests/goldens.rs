//! The engine against outputs recorded from transformers, and against itself where bits must not change.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anemone_checkpoint::{Checkpoint, open_weights};
use anemone_cpu::{Arithmetic, Engine, Layout, LogitsOf, Model, Options};
use anemone_kernels::Level;
use anemone_tensor::{argmax, compare, max_abs_diff};
use serde_json::Value;

const FIXTURES: [&str; 5] =
    ["lfm2-tiny-tied", "lfm2-tiny-untied-sharded", "lfm3-tiny", "lfm3-tiny-options-sharded", "lfm2-moe-tiny"];

/// The reference ran in f32; the same sums in another order differ by up to 2.6e-5 on logits of std 2 (its own splits do).
const TOLERANCE: f64 = 2e-4;

fn shared(path: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path);
    if !dir.exists() {
        // Not `eprintln!`, which the test runner swallows.
        let _ = writeln!(std::io::stderr(), "skipped: shared/{path} is not present");
        return None;
    }
    Some(dir)
}

struct Fixture {
    model: Arc<Model>,
    goldens: Value,
    dir: PathBuf,
}

fn fixture(name: &str) -> Option<Fixture> {
    let dir = shared(&format!("fixtures/lfm-tiny/{name}"))?;
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let weights = checkpoint.weights();
    let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
    let model = Arc::new(Model::load(stack, &*weights, Layout::Mapped).unwrap());
    let goldens = serde_json::from_slice(&std::fs::read(dir.join("goldens.json")).unwrap()).unwrap();
    Some(Fixture { model, goldens, dir })
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn options(arithmetic: Arithmetic) -> Options {
    Options { threads: 2, arithmetic, context_len: Some(256), chunk: 64, ..Options::default() }
}

fn close(a: &[f32], b: &[f32], what: &str) {
    let difference = max_abs_diff(a, b);
    assert!(difference <= TOLERANCE, "{what}: off by {difference:e}");
}

fn prompts(fixture: &Fixture) -> &Vec<Value> {
    fixture.goldens["prompts"].as_array().unwrap()
}

#[test]
fn logits_hidden_states_and_greedy_ids_match_the_reference() {
    for name in FIXTURES {
        let Some(fixture) = fixture(name) else { continue };
        let recorded = open_weights(&fixture.dir.join("goldens.safetensors")).unwrap();
        for &level in Level::available() {
            let mut engine =
                Engine::with_level(fixture.model.clone(), options(Arithmetic::Exact), level).unwrap();
            for prompt in prompts(&fixture) {
                let case = format!("{name} {} {level:?}", prompt["name"]);
                let tokens = ids(&prompt["token_ids"]);
                let mut layers: Vec<(String, Vec<f32>)> = Vec::new();
                engine.reset();
                let logits = engine
                    .feed_tapped(&tokens, LogitsOf::All, &mut |path, x| match layers
                        .iter_mut()
                        .find(|(p, _)| p == path)
                    {
                        Some((_, all)) => all.extend_from_slice(x),
                        None => layers.push((path.into(), x.to_vec())),
                    })
                    .unwrap();
                let vocab = fixture.model.stack().vocab_size;
                let rows: Vec<&[f32]> = logits.chunks_exact(vocab).collect();
                close(rows[rows.len() - 1], &floats(&prompt["last_logits"]), &case);
                let argmaxes: Vec<u32> = rows.iter().map(|r| argmax(r).unwrap() as u32).collect();
                assert_eq!(argmaxes, ids(&prompt["argmax_per_position"]), "{case}");
                let prompt_name = prompt["name"].as_str().unwrap();
                if let Ok(all) = recorded.tensor(&format!("{prompt_name}.logits")) {
                    close(logits, &all.to_f32().unwrap(), &format!("{case}, all positions"));
                }

                let hidden = fixture.model.stack().hidden_size;
                let last = |path: &str| {
                    let (_, all) = layers.iter().find(|(p, _)| p == path).unwrap();
                    all[all.len() - hidden..].to_vec()
                };
                let golden = &prompt["last_hidden"];
                close(&last("model.embed_tokens"), &floats(&golden["embed"]), &case);
                close(&last("model.embedding_norm"), &floats(&golden["final_norm"]), &case);
                for (i, layer) in golden["layers"].as_array().unwrap().iter().enumerate() {
                    close(&last(&format!("model.layers.{i}")), &floats(layer), &format!("{case}, layer {i}"));
                    if let Ok(all) = recorded.tensor(&format!("{prompt_name}.layer.{i}")) {
                        let ours = &layers.iter().find(|(p, _)| *p == format!("model.layers.{i}")).unwrap().1;
                        close(ours, &all.to_f32().unwrap(), &format!("{case}, layer {i}, all positions"));
                    }
                }

                engine.reset();
                let golden = ids(&prompt["greedy_ids"]);
                assert_eq!(greedy(&mut engine, &tokens, golden.len()), golden, "{case}");
            }
        }
    }
}

fn greedy(engine: &mut Engine, tokens: &[u32], count: usize) -> Vec<u32> {
    let mut next = argmax(engine.feed(tokens, LogitsOf::Last).unwrap()).unwrap() as u32;
    let mut out = vec![next];
    while out.len() < count {
        next = argmax(engine.feed(&[next], LogitsOf::Last).unwrap()).unwrap() as u32;
        out.push(next);
    }
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn any_split_of_a_prompt_gives_the_same_bits_and_the_reference_numbers() {
    for name in FIXTURES {
        let Some(fixture) = fixture(name) else { continue };
        for &level in Level::available() {
            for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
                for prompt in prompts(&fixture) {
                    let tokens = ids(&prompt["token_ids"]);
                    let run = |split: usize, chunk: usize| {
                        let options = Options { chunk, ..options(arithmetic) };
                        let mut engine = Engine::with_level(fixture.model.clone(), options, level).unwrap();
                        let mut last = Vec::new();
                        for part in tokens.chunks(split) {
                            last = engine.feed(part, LogitsOf::Last).unwrap().to_vec();
                        }
                        last
                    };
                    let whole = run(tokens.len(), 256);
                    if arithmetic == Arithmetic::Exact {
                        close(&whole, &floats(&prompt["last_logits"]), name);
                    }
                    for (split, chunk) in
                        [(1, 64), (3, 64), (tokens.len().div_ceil(2), 64), (tokens.len(), 7)]
                    {
                        assert_eq!(
                            bits(&run(split, chunk)),
                            bits(&whole),
                            "{name} {level:?} {arithmetic:?} {split}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_fast_mode_stays_near_the_reference() {
    for name in FIXTURES {
        let Some(fixture) = fixture(name) else { continue };
        for &level in Level::available() {
            let mut engine =
                Engine::with_level(fixture.model.clone(), options(Arithmetic::Fast), level).unwrap();
            for prompt in prompts(&fixture) {
                engine.reset();
                let logits = engine.feed(&ids(&prompt["token_ids"]), LogitsOf::Last).unwrap();
                let c = compare(&floats(&prompt["last_logits"]), logits);
                // bf16 keeps 8 bits: inputs of products are off by up to 2^-9, which adds up over 5 to 8 layers of random
                // weights with little redundancy (48 wide). Measured worst: 0.9990; a wrong tap or norm gives below 0.9.
                assert!(c.cosine > 0.998, "{name} {level:?} {}: cosine {}", prompt["name"], c.cosine);
            }
        }
    }
}

#[test]
fn rewinding_and_snapshots_restore_the_bits() {
    for name in FIXTURES {
        let Some(fixture) = fixture(name) else { continue };
        let prompt = prompts(&fixture).iter().find(|p| p["name"] == "tools").unwrap();
        let tokens = ids(&prompt["token_ids"]);
        for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
            let options = Options { chunk: 32, rewind: 20, ..options(arithmetic) };
            let mut engine = Engine::new(fixture.model.clone(), options).unwrap();
            engine.feed(&tokens[..40], LogitsOf::None).unwrap();
            let marked = engine.snapshot();
            let mut after = Vec::new();
            for &t in &tokens[40..120] {
                after.push(bits(engine.feed(&[t], LogitsOf::Last).unwrap()));
            }
            // Any of the latest 20 positions, then on with other tokens and back again.
            for back in [120, 119, 110, 101] {
                engine.rewind(back).unwrap();
                engine.feed(&[5], LogitsOf::None).unwrap();
                engine.rewind(back).unwrap();
                for (i, &t) in tokens[back..120].iter().enumerate() {
                    let logits = engine.feed(&[t], LogitsOf::Last).unwrap();
                    assert_eq!(bits(logits), after[back - 40 + i], "{name} {arithmetic:?} back to {back}");
                }
            }
            // Too far for the history, but 40 ended a call with several tokens.
            assert_eq!(engine.nearest(60), if engine.nearest(40) == 40 { 40 } else { 0 });
            let error = engine.rewind(60).unwrap_err().to_string();
            assert!(error.contains("cannot rewind from 120 to 60"), "{error}");
            if engine.nearest(40) == 40 {
                engine.rewind(40).unwrap();
                assert_eq!(bits(engine.feed(&[tokens[40]], LogitsOf::Last).unwrap()), after[0]);
            }
            engine.restore(&marked).unwrap();
            assert_eq!(engine.position(), 40);
            assert_eq!(bits(engine.feed(&[tokens[40]], LogitsOf::Last).unwrap()), after[0]);
            // A snapshot serves another engine of the same kind.
            let mut other = Engine::new(fixture.model.clone(), options).unwrap();
            other.restore(&marked).unwrap();
            assert_eq!(bits(other.feed(&[tokens[40]], LogitsOf::Last).unwrap()), after[0]);
            let exact = arithmetic == Arithmetic::Exact;
            let foreign =
                Options { arithmetic: if exact { Arithmetic::Fast } else { Arithmetic::Exact }, ..options };
            assert!(Engine::new(fixture.model.clone(), foreign).unwrap().restore(&marked).is_err());
        }
    }
}

#[test]
fn the_packed_layout_and_the_thread_count_change_no_bit() {
    for name in FIXTURES {
        let Some(dir) = shared(&format!("fixtures/lfm-tiny/{name}")) else { continue };
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let weights = checkpoint.weights();
        let run = |layout, threads| {
            let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
            let model = Arc::new(Model::load(stack, &*weights, layout).unwrap());
            let options = Options { threads, ..options(Arithmetic::Fast) };
            let mut engine = Engine::new(model, options).unwrap();
            bits(engine.feed(&[3, 500, 77, 20, 9], LogitsOf::All).unwrap())
        };
        let expected = run(Layout::Mapped, 2);
        assert_eq!(run(Layout::Packed, 2), expected, "{name}");
        assert_eq!(run(Layout::Mapped, 1), expected, "{name}");
        assert_eq!(run(Layout::Mapped, 5), expected, "{name}");
    }
}

#[test]
fn bad_calls_are_refused_by_name() {
    let Some(fixture) = fixture("lfm2-tiny-tied") else { return };
    let small = Options { context_len: Some(8), ..options(Arithmetic::Fast) };
    let mut engine = Engine::new(fixture.model.clone(), small).unwrap();
    let say = |r: Result<&[f32], anemone_cpu::Error>| r.unwrap_err().to_string();
    assert!(say(engine.feed(&[], LogitsOf::Last)).contains("at least one"));
    assert!(
        say(engine.feed(&[1, 5000], LogitsOf::Last))
            .contains("token id 5000 is outside the vocabulary of 1088")
    );
    assert!(say(engine.feed(&[1; 9], LogitsOf::Last)).contains("9 tokens do not fit the context of 8"));
    assert_eq!(engine.position(), 0);
    let long = Options { context_len: Some(1 << 40), ..options(Arithmetic::Fast) };
    let error = Engine::new(fixture.model, long).unwrap_err().to_string();
    assert!(error.contains("max_position_embeddings"), "{error}");
}
