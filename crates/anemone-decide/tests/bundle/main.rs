//! Converted decision models on the emulator against the native engine.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod packing;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anemone_ane::{LayaOptions, LocalAttention, OPTION_SLOTS, WeightRecord, lower_laya};
use anemone_bundle::{DECISION_FILES, DecisionBundle, DecisionOptions, Role, Source, Writer};
use anemone_checkpoint::DecisionCheckpoint;
use anemone_decide::{Decider, Decisions, Question, Request, Value};
use anemone_emulator::{Emulator, Profile};
use anemone_mil::{DataType, Executable, Executor, ExecutorError, Program, Signature, write_package};
use anemone_models::Laya;

fn shared(path: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path);
    if !dir.exists() {
        // Not `eprintln!`, which the test runner swallows.
        let _ = writeln!(std::io::stderr(), "skipped: shared/{path} is not present");
        return None;
    }
    Some(dir)
}

fn options(tile: Option<usize>) -> LayaOptions {
    let local = tile.map_or(LocalAttention::Dense, LocalAttention::Tiled);
    LayaOptions { lengths: Vec::new(), spec_version: 9, local, precision: DataType::Float16, pack: false }
}

fn lower(
    dir: &Path,
    lengths: &[usize],
    tile: Option<usize>,
    precision: DataType,
    pack: bool,
) -> (Program, Vec<Option<WeightRecord>>) {
    let checkpoint = DecisionCheckpoint::open(dir).unwrap();
    let weights = checkpoint.weights();
    let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights).unwrap();
    let options = LayaOptions { lengths: lengths.to_vec(), precision, pack, ..options(tile) };
    lower_laya(&laya, &|w| w.load(&*weights), &options).unwrap()
}

/// Converts a checkpoint as the command does.
fn convert(dir: &Path, out: &Path, lengths: &[usize], tile: Option<usize>, pack: bool) -> DecisionBundle {
    let checkpoint = DecisionCheckpoint::open(dir).unwrap();
    let weights = checkpoint.weights();
    let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights).unwrap();
    let (program, records) = lower(dir, lengths, tile, DataType::Float16, pack);
    let mut writer = Writer::create(out, false).unwrap();
    writer.add(writer.package("body.mlpackage", Role::Body, &program, records).unwrap());
    for (name, weight) in laya.host_weights() {
        let tensor = weight.load(&*weights).unwrap();
        writer.add_host_tensor(writer.host_tensor(name, &weight.name, &tensor).unwrap());
    }
    for (kept, name) in DECISION_FILES {
        writer.file(kept, &checkpoint.file(name).unwrap().unwrap()).unwrap();
    }
    let options = LayaOptions { lengths: lengths.to_vec(), pack, ..options(tile) };
    let functions = options.functions();
    let tensors = laya.weights().into_iter().map(|w| (w.name.clone(), w.shape.to_vec())).collect();
    let source = Source { name: "fixture".into(), model_type: "laya".into(), sha256: BTreeMap::new() };
    let options = DecisionOptions { tile, option_slots: OPTION_SLOTS, spec_version: 9 };
    writer.finish_decision(source, options, functions, tensors, "a test").unwrap();
    DecisionBundle::open(out).unwrap()
}

fn native(checkpoint: &DecisionCheckpoint) -> Decider {
    Decider::load(checkpoint, anemone_cpu::LayaOptions { threads: 2, reduced: false }).unwrap()
}

fn emulated(bundle: &DecisionBundle, profile: Profile) -> Decider {
    Decider::open(bundle.clone(), Box::new(Emulator::new(profile, 2))).unwrap()
}

fn questions() -> Vec<Question> {
    let text = r#"{
        "topic": {"type": "choice", "instructions": "What is it about?", "criteria": ["money", "a parcel", "weather", "nothing"]},
        "mood": {"type": "score", "instructions": "How angry is the sender?", "criteria": ["calm", "annoyed", "furious"]},
        "late": {"type": "noul", "instructions": "Is something late?"}}"#;
    Question::parse_all(&Value::parse(text).unwrap()).unwrap()
}

const STATES: [&str; 3] =
    ["hi", "where is my parcel", "the parcel is late again and i want my money back today"];

/// The emulator in f32 on another package than the one it is asked for.
struct Instead(Emulator, PathBuf);

impl Executor for Instead {
    fn signatures(&mut self, _: &Path) -> Result<BTreeMap<String, Signature>, ExecutorError> {
        self.0.signatures(&self.1)
    }

    fn load(&mut self, _: &Path, function: &str) -> Result<Box<dyn Executable>, ExecutorError> {
        self.0.load(&self.1, function)
    }
}

fn decided(decider: &mut Decider) -> Vec<Decisions> {
    let (states, questions) = (STATES.map(Value::text), questions());
    decider.decide_all(&states.each_ref()[..], &questions, &Request::default()).unwrap()
}

/// Largest differences of logits, of probabilities and of action probabilities.
fn furthest(ours: &[Decisions], theirs: &[Decisions]) -> (f64, f64, f64) {
    let (mut logits, mut p, mut act) = (0.0f64, 0.0f64, 0.0f64);
    for (a, b) in ours.iter().flat_map(|d| &d.0).zip(theirs.iter().flat_map(|d| &d.0)) {
        assert_eq!(a.prompt, b.prompt);
        let pairs = a.scores.logits.iter().zip(&b.scores.logits);
        logits = pairs.fold(logits, |m, (a, b)| m.max(f64::from((a - b).abs())));
        let pairs = a.answer.probabilities().iter().zip(b.answer.probabilities());
        p = pairs.fold(p, |m, (a, b)| m.max((a - b).abs()));
        act = act.max((a.answer.act_probability() - b.answer.act_probability()).abs());
    }
    (logits, p, act)
}

#[test]
fn bundles_answer_as_their_checkpoints_do() {
    for dir in ["fixtures/laya-tiny/english", "fixtures/laya-tiny/multilingual", "models/laya-demo"] {
        let Some(dir) = shared(dir) else { return };
        let expected = decided(&mut native(&DecisionCheckpoint::open(&dir).unwrap()));
        let longest = expected.iter().flat_map(|d| &d.0).map(|d| d.prompt.ids.len()).max().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        for (i, (lengths, tile)) in [(&[64, 96, 192][..], None), (&[192], Some(32))].into_iter().enumerate() {
            assert!(longest <= 192, "{longest}");
            let bundle = convert(&dir, &scratch.path().join(i.to_string()), lengths, tile, false);
            // The body with f32 constants: what is left is the order of sums, and that the host's part is right.
            let wide = scratch.path().join(format!("{i}.mlpackage"));
            write_package(&lower(&dir, lengths, tile, DataType::Float32, false).0, &wide).unwrap();
            let executor = Instead(Emulator::new(Profile::f32(), 2), wide);
            let mut exact = Decider::open(bundle.clone(), Box::new(executor)).unwrap();
            let (logits, p, act) = furthest(&decided(&mut exact), &expected);
            println!("{} {tile:?} wide: logits {logits:.1e}, p {p:.1e}, act {act:.1e}", dir.display());
            assert!(logits < 1e-4 && p < 1e-4 && act < 1e-4, "{logits} {p} {act}");
            // The body as it is stored: rotary tables lose 5e-4 relative to fp16.
            let (logits, p, act) = furthest(&decided(&mut emulated(&bundle, Profile::f32())), &expected);
            println!("{} {tile:?} f32: logits {logits:.1e}, p {p:.1e}, act {act:.1e}", dir.display());
            assert!(logits < 4e-3 && p < 1e-3 && act < 1e-3, "{logits} {p} {act}");
            // The bar of a conversion.
            let (logits, p, act) = furthest(&decided(&mut emulated(&bundle, Profile::fp16())), &expected);
            println!("{} {tile:?} fp16: logits {logits:.1e}, p {p:.1e}, act {act:.1e}", dir.display());
            assert!(p <= 0.02 && act <= 0.02, "{p} {act}");
            // The tensors come back as they were, so the native engine gives the same bits.
            assert_eq!(decided(&mut native(&bundle.checkpoint().unwrap())), expected);
        }
    }
}
