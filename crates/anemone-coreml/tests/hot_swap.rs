//! A generation that moves from the CPU engine to Core ML at any token, and back when that fails.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[path = "../../anemone-emulator/tests/support/mod.rs"]
#[allow(dead_code, reason = "fixtures are for other tests")]
mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use anemone_ane::{Options as Lowering, Pass};
use anemone_bundle::Bundle;
use anemone_checkpoint::Checkpoint;
use anemone_coreml::simulated::{Fault, Simulated};
use anemone_coreml::{CompiledModels, CoreMl, Options};
use anemone_cpu::{Layout, Model, Options as CpuOptions};
use anemone_emulator::{Emulator, Profile};
use anemone_session::{Engine, GraphEngine, HotSwap, Swap};

const PROMPT: [u32; 6] = [1, 300, 17, 44, 900, 5];
const TOKENS: usize = 64;

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../anemone/assets/stories-lfm2")
}

fn model() -> Arc<Model> {
    let checkpoint = Checkpoint::open(&assets()).unwrap();
    let weights = checkpoint.weights();
    let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
    Arc::new(Model::load(stack, &*weights, Layout::Mapped).unwrap())
}

fn cpu(model: &Arc<Model>) -> Box<dyn Engine> {
    let options = CpuOptions { threads: 2, context_len: Some(128), ..CpuOptions::default() };
    Box::new(anemone_cpu::Engine::new(Arc::clone(model), options).unwrap())
}

fn core_ml(bundle: &Bundle, dir: &Path, faults: &[Fault]) -> Box<dyn Engine> {
    let faults = faults.to_vec();
    let options = Options::new(CompiledModels::new(dir));
    let make = move || Ok(Simulated::new(Emulator::new("fp16".parse::<Profile>().unwrap(), 2), &faults));
    let executor = CoreMl::new(options, make).unwrap();
    Box::new(GraphEngine::new(bundle.clone(), Box::new(executor)).unwrap())
}

fn bundle(dir: &Path) -> Bundle {
    let passes = vec![Pass::Decode, Pass::Prefill(16)];
    let options = Lowering { ctx: 128, passes, layers_per_chunk: Some(6), ..Lowering::default() };
    support::convert(&assets(), &dir.join("m.bundle"), &options)
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32
}

/// Greedy tokens and the logits each was taken from.
fn text(engine: &mut dyn Engine) -> (Vec<u32>, Vec<Vec<f32>>) {
    let mut rows = vec![engine.feed(&PROMPT).unwrap().to_vec()];
    let mut tokens = vec![best(&rows[0])];
    while tokens.len() < TOKENS {
        rows.push(engine.feed(&[tokens[tokens.len() - 1]]).unwrap().to_vec());
        tokens.push(best(&rows[rows.len() - 1]));
    }
    (tokens, rows)
}

#[test]
fn between_two_cpu_engines_every_bit_stays() {
    let model = model();
    let (expected, rows) = text(&mut *cpu(&model));
    for at in 0..TOKENS {
        let (send, coming) = channel();
        let mut engine = HotSwap::new(cpu(&model), coming);
        let mut tokens = Vec::new();
        for step in 0..TOKENS {
            if step == at {
                send.send(Ok(cpu(&model))).unwrap();
            }
            let fed: &[u32] = if step == 0 { &PROMPT } else { &expected[step - 1..step] };
            let logits = engine.feed(fed).unwrap();
            assert!(logits.iter().zip(&rows[step]).all(|(a, b)| a.to_bits() == b.to_bits()), "{at} {step}");
            tokens.push(best(logits));
        }
        let held = if at == 0 { 0 } else { PROMPT.len() + at - 1 };
        assert_eq!((engine.swaps().get(), tokens), (vec![Swap::Moved { at: held }], expected.clone()));
    }
}

#[test]
fn on_the_emulator_a_token_differs_only_where_the_two_likeliest_are_closer_than_its_error() {
    let dir = tempfile::tempdir().unwrap();
    let (model, bundle) = (model(), bundle(dir.path()));
    let (expected, rows) = text(&mut *cpu(&model));
    for at in (0..TOKENS).step_by(3) {
        let (send, coming) = channel();
        let mut engine = HotSwap::new(cpu(&model), coming);
        for step in 0..TOKENS {
            if step == at {
                send.send(Ok(core_ml(&bundle, &dir.path().join("compiled"), &[]))).unwrap();
            }
            let fed: &[u32] = if step == 0 { &PROMPT } else { &expected[step - 1..step] };
            let logits = engine.feed(fed).unwrap();
            let error = logits.iter().zip(&rows[step]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let likeliest = rows[step][best(&rows[step]) as usize];
            let margin = likeliest - rows[step][best(logits) as usize];
            // Between two engines each may be off by the error.
            assert!(margin <= 2.0 * error, "{at} {step}: margin {margin}, error {error}");
            // Both round to few bits, in other places: the largest seen is 0.043.
            assert!(error < 0.1, "{at} {step}: {error}");
            assert_eq!(engine.is_second(), step >= at);
        }
        assert!(engine.is_second());
    }
}

#[test]
fn a_failure_in_the_middle_goes_back_without_a_word_too_many_or_too_few() {
    let dir = tempfile::tempdir().unwrap();
    let (model, bundle) = (model(), bundle(dir.path()));
    let (expected, rows) = text(&mut *cpu(&model));
    let per_token = bundle.manifest().packages.len() as u64;
    for (what, fault) in
        [("-14", Fault::Execution { after: 20 * per_token }), ("NaN", Fault::Nan { after: 20 * per_token })]
    {
        let (send, coming) = channel();
        send.send(Ok(core_ml(&bundle, &dir.path().join("compiled"), &[fault]))).unwrap();
        let mut engine = HotSwap::new(cpu(&model), coming);
        let mut back = None;
        for step in 0..TOKENS {
            let fed: &[u32] = if step == 0 { &PROMPT } else { &expected[step - 1..step] };
            let logits = engine.feed(fed).unwrap().to_vec();
            if !engine.is_second() {
                back.get_or_insert(step);
                // What the first engine computes anew it computes as it does alone.
                assert_eq!(best(&logits), expected[step], "{what} {step}");
                assert!(
                    logits.iter().zip(&rows[step]).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{what} {step}"
                );
            }
        }
        assert!(back.is_some_and(|step| (10..30).contains(&step)), "{what}: {back:?}");
        assert!(
            matches!(&engine.swaps().get()[..], [Swap::Moved { at: 0 }, Swap::Back { reason, .. }] if reason.contains(what))
        );
    }
}
