//! Bundles with a wrong manifest or damaged packages: an error or the same answer, and never a panic, a hang or much memory.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anemone_ane::{CacheKind, CachePlan, Options, Pass};
use anemone_bundle::{Bundle, BundleWeights};
use anemone_emulator::{Emulator, Profile};
use anemone_mil::{Array, Executable, Executor, ExecutorError, Signature, States};
use anemone_session::{Engine, GraphEngine};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

use support::{convert, fixture};

const PROMPT: [u32; 6] = [1, 17, 40, 3, 99, 5];

/// The longest a bundle may take to be opened and run, on a machine that does other things.
const PATIENCE: Duration = Duration::from_mins(10);

fn options(cache: CacheKind) -> Options {
    Options {
        ctx: 40,
        passes: vec![Pass::Decode, Pass::Prefill(4), Pass::Verify(3)],
        cache,
        layers_per_chunk: Some(3),
        head_slices: Some(2),
        ..Options::default()
    }
}

/// An emulator that several engines use one after the other, so that packages are read once.
#[derive(Clone)]
struct SharedEmulator(Arc<Mutex<Emulator>>);

impl Executor for SharedEmulator {
    fn signatures(&mut self, package: &Path) -> Result<BTreeMap<String, Signature>, ExecutorError> {
        self.0.lock().unwrap().signatures(package)
    }

    fn load(&mut self, package: &Path, function: &str) -> Result<Box<dyn Executable>, ExecutorError> {
        self.0.lock().unwrap().load(package, function)
    }
}

/// Bits of the logits after the prompt, or the line of the error.
type Answer = Result<Vec<u32>, String>;

fn run(dir: &Path, executor: impl Executor + 'static) -> Answer {
    answer(Bundle::open(dir).map_err(|e| e.to_string())?, executor)
}

fn answer(bundle: Bundle, executor: impl Executor + 'static) -> Answer {
    let mut engine = GraphEngine::new(bundle, Box::new(executor)).map_err(|e| e.to_string())?;
    let mut logits = engine.feed(&PROMPT[..5]).map_err(|e| e.to_string())?.to_vec();
    logits.extend(engine.feed(&PROMPT[5..]).map_err(|e| e.to_string())?);
    Ok(logits.iter().map(|v| v.to_bits()).collect())
}

/// All tensors of the model as the native engine reads them.
fn tensors(bundle: &Bundle) -> Result<Vec<Vec<u8>>, String> {
    let config = bundle.file("config.json").map_err(|e| e.to_string())?.ok_or("no config.json")?;
    let config = serde_json::from_slice(&config).map_err(|e| e.to_string())?;
    let weights = BundleWeights::open(bundle).map_err(|e| e.to_string())?;
    let stack = anemone_models::load(&config, &weights).map_err(|e| e.to_string())?;
    let all = stack.weights().into_iter();
    all.map(|w| Ok(w.load(&weights).map_err(|e| e.to_string())?.bytes().to_vec())).collect()
}

/// KiB of address space used at most; 0 where the system does not say.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Runs every case on a thread of its own, and insists that each ends, without a panic and within 1 GiB.
fn insist<T: Send + 'static>(
    cases: Vec<(String, T)>,
    mut check: impl FnMut(&str, T) -> Result<(), String> + Send + 'static,
) {
    let before = peak_kib();
    let names: Vec<String> = cases.iter().map(|(name, _)| name.clone()).collect();
    let (send, results) = channel();
    let worker = std::thread::spawn(move || {
        for (name, case) in cases {
            let result = catch_unwind(AssertUnwindSafe(|| check(&name, case)));
            if send.send(result.unwrap_or_else(|_| Err("panicked".into()))).is_err() {
                return;
            }
        }
    });
    let mut failed = Vec::new();
    for name in names {
        match results.recv_timeout(PATIENCE) {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => failed.push(format!("{name}: {problem}")),
            Err(error) => panic!("{name}: did not end ({error}); failed before: {failed:#?}"),
        }
    }
    worker.join().unwrap();
    assert!(failed.is_empty(), "{} failed: {:#?}", failed.len(), &failed[..failed.len().min(40)]);
    let grown = peak_kib().saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} KiB more than before");
}

/// JSON pointers of every value, the root's own excepted.
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    let mut visit = |key: String, value: &Value| {
        let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        into.push(at.clone());
        places(value, &at, into);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| visit(key.clone(), value)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| visit(i.to_string(), value)),
        _ => {}
    }
}

/// One value of a manifest in the place of another, or none.
struct Change {
    at: String,
    value: Option<Value>,
}

impl Change {
    fn name(&self) -> String {
        let value = self.value.as_ref().map_or("removed".into(), |v| format!("= {v}"));
        format!("{} {}", self.at, &value[..value.len().min(60)])
    }

    fn apply(self, manifest: &Value) -> Value {
        let mut changed = manifest.clone();
        let (parent, key) = self.at.rsplit_once('/').unwrap();
        match (self.value, changed.pointer_mut(parent).unwrap()) {
            (Some(value), _) => *changed.pointer_mut(&self.at).unwrap() = value,
            (None, Value::Object(map)) => drop(map.remove(&key.replace("~1", "/").replace("~0", "~"))),
            (None, Value::Array(list)) => drop(list.remove(key.parse().unwrap())),
            (None, _) => unreachable!("only those have parts"),
        }
        changed
    }
}

fn changes(manifest: &Value, at: &str) -> Vec<Change> {
    let original = manifest.pointer(at).unwrap();
    let mut values = vec![json!(0), json!(1), json!(u64::MAX), json!(-1), Value::Null, json!("x")];
    match original {
        Value::Array(list) => {
            values.push(json!([]));
            values.extend((0..list.len()).map(|i| {
                let mut twice = list.clone();
                twice.insert(i, list[i].clone());
                Value::Array(twice)
            }));
            values.extend((1..list.len()).map(|i| {
                let mut swapped = list.clone();
                swapped.swap(i - 1, i);
                Value::Array(swapped)
            }));
        }
        Value::Number(n) => {
            let n = n.as_u64().unwrap_or(0);
            values.extend([json!(n + 1), json!(n.wrapping_sub(1)), json!(2 * n), json!(1u64 << 40)]);
        }
        Value::Bool(b) => values.push(json!(!b)),
        Value::Object(_) => values.push(json!({})),
        // Numbers are all alike to a text.
        Value::String(_) => values = vec![json!(0), Value::Null, json!("x"), json!("../x"), json!("")],
        Value::Null => {}
    }
    let values = values.into_iter().filter(|v| v != original).map(Some).chain([None]);
    values.map(|value| Change { at: at.into(), value }).collect()
}

fn manifest(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("manifest.json")).unwrap()).unwrap()
}

/// Makes every change to every value under `parts` of the manifest.
fn changed_manifests_are_refused_or_mean_the_same(name: &str, cache: CacheKind, parts: &[&str]) {
    let Some(fixture) = fixture(name) else { return };
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("bundle");
    let bundle = convert(&fixture, &dir, &options(cache));
    let emulator = SharedEmulator(Arc::new(Mutex::new(Emulator::new(Profile::fp16(), 1))));
    let (sound, stored) = (run(&dir, emulator.clone()).unwrap(), tensors(&bundle).unwrap());
    let manifest = manifest(&dir);
    let mut all = Vec::new();
    places(&manifest, "", &mut all);
    all.retain(|at| parts.iter().any(|part| at.starts_with(part)) && !is_like_another(at));
    let cases: Vec<(String, Change)> =
        all.iter().flat_map(|at| changes(&manifest, at)).map(|change| (change.name(), change)).collect();
    assert!(cases.len() > 1000, "{} of {} places", cases.len(), all.len());
    insist(cases, move |name, change| {
        let of_weights =
            ["/weights", "/tensors", "/host", "/packages"].iter().any(|p| change.at.starts_with(p));
        let changed = change.apply(&manifest);
        fs::write(dir.join("manifest.json"), changed.to_string()).unwrap();
        let bundle = match Bundle::open(&dir) {
            Ok(bundle) => bundle,
            Err(error) => return one_line(&error.to_string()),
        };
        // Scales are known to the manifest alone.
        if of_weights && !name.contains("log2_scale") && tensors(&bundle).is_ok_and(|read| read != stored) {
            return Err("other weights".into());
        }
        match answer(bundle, emulator.clone()) {
            Ok(answer) if answer != sound => Err("another answer".into()),
            Ok(_) => Ok(()),
            Err(line) => one_line(&line),
        }
    });
}

/// Whether a place is of a layer or package like one that is not left out: layer 0 convolves and layer 2 attends.
fn is_like_another(at: &str) -> bool {
    let others = ["1", "3", "4", "5", "6", "7"];
    at.starts_with("/packages/1/functions")
        || others.iter().any(|n| at.contains(&format!("model.layers.{n}.")))
}

fn one_line(error: &str) -> Result<(), String> {
    let fine = !error.is_empty() && !error.contains('\n');
    if fine { Ok(()) } else { Err(format!("says {error:?}")) }
}

#[test]
fn a_changed_manifest_is_refused_or_means_the_same() {
    changed_manifests_are_refused_or_mean_the_same("lfm3-tiny", CacheKind::Io, &["/"]);
}

#[test]
fn a_changed_manifest_with_states_is_refused_or_means_the_same() {
    let parts = ["/options", "/plan", "/packages/0", "/host"];
    changed_manifests_are_refused_or_mean_the_same("lfm3-tiny", CacheKind::State, &parts);
}

#[test]
fn damaged_model_files_are_refused() {
    let Some(fixture) = fixture("lfm2-tiny-tied") else { return };
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("bundle");
    let bundle = convert(&fixture, &dir, &options(CacheKind::Io));
    let sound = run(&dir, Emulator::new(Profile::fp16(), 1)).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut below = move |n: usize| (random.next_u64() % n as u64) as usize;
    let mut cases = Vec::new();
    for package in bundle.manifest().packages.iter().step_by(2) {
        for file in [MODEL, MANIFEST, WEIGHTS] {
            let path = bundle.path(&package.file).join(file);
            let size = fs::metadata(&path).unwrap().len() as usize;
            let lengths = [0, 1, 63, 64, size / 2, size - 1].into_iter().chain((0..6).map(|_| below(size)));
            let lengths: Vec<Damage> = lengths.filter(|n| *n < size).map(Damage::Cut).collect();
            let flips = if file == WEIGHTS { 0 } else { 60 };
            let flips: Vec<Damage> = (0..flips).map(|_| Damage::Flip(below(size), 1 << below(8))).collect();
            let name = |damage: &Damage| format!("{}/{file} {damage:?}", package.file);
            cases.extend(lengths.into_iter().chain(flips).map(|d| (name(&d), (path.clone(), d))));
        }
    }
    insist(cases, move |name, (path, damage)| {
        let whole = fs::read(&path).unwrap();
        fs::write(&path, damage.apply(whole.clone())).unwrap();
        let answer = run(&dir, Emulator::new(Profile::fp16(), 1));
        // What the engine refuses, the emulator alone must survive too.
        let package = path.ancestors().find(|p| p.extension().is_some_and(|e| e == "mlpackage")).unwrap();
        run_alone(package);
        fs::write(&path, whole).unwrap();
        match answer {
            Ok(_) if name.contains(MODEL) || name.contains(WEIGHTS) => Err("is not noticed".into()),
            Ok(answer) if answer != sound => Err("another answer".into()),
            Err(line) if line.contains('\n') || !line.contains("again") || !line.contains("bundle") => {
                Err(format!("says {line:?}"))
            }
            _ => Ok(()),
        }
    });
}

const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";
const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";
const MANIFEST: &str = "Manifest.json";

#[derive(Debug)]
enum Damage {
    Cut(usize),
    Flip(usize, u8),
}

impl Damage {
    fn apply(self, mut bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Cut(n) => bytes.truncate(n),
            Self::Flip(at, bit) => bytes[at] ^= bit,
        }
        bytes
    }
}

/// Loads and runs every function of a package, if it lets us.
fn run_alone(package: &Path) {
    let mut emulator = Emulator::new(Profile::f32(), 1);
    let Ok(signatures) = emulator.signatures(package) else { return };
    for (name, signature) in signatures {
        let size: usize = signature.inputs.iter().map(|(_, ty)| ty.numel()).fold(0, usize::saturating_add);
        let Ok(mut function) = emulator.load(package, &name) else { continue };
        if size > 1 << 24 {
            continue;
        }
        let inputs: Vec<Array> = signature.inputs.iter().map(|(_, ty)| Array::zeros(&ty.shape)).collect();
        let inputs: Vec<(&str, &Array)> =
            signature.inputs.iter().map(|(name, _)| name.as_str()).zip(&inputs).collect();
        let _ = function.predict(&inputs, &mut States::new());
    }
}

#[test]
fn a_changed_config_is_refused() {
    let Some(fixture) = fixture("lfm2-tiny-tied") else { return };
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("bundle");
    convert(&fixture, &dir, &options(CacheKind::Io));
    // The host turns keys and queries by it, so that the packages could not tell.
    let config = fs::read_to_string(dir.join("config.json")).unwrap();
    let changed = config.replace("rope_theta\": 1", "rope_theta\": 2");
    assert_ne!(changed, config);
    fs::write(dir.join("config.json"), changed).unwrap();
    let line = run(&dir, Emulator::new(Profile::fp16(), 1)).unwrap_err();
    assert!(line.contains("config.json differs from the manifest (hash "), "{line}");
    assert!(line.ends_with("convert the model again"), "{line}");
}

#[test]
fn a_wrong_manifest_is_named_by_its_key() {
    let Some(fixture) = fixture("lfm3-tiny") else { return };
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("bundle");
    convert(&fixture, &dir, &options(CacheKind::State));
    let sound = manifest(&dir);
    let emulator = SharedEmulator(Arc::new(Mutex::new(Emulator::new(Profile::fp16(), 1))));
    let swapped = |at: &str| {
        let mut list = sound.pointer(at).unwrap().as_array().unwrap().clone();
        list.reverse();
        Value::Array(list)
    };
    let outside = place.path().join("bundle/config.json");
    let cases = [
        ("/options/ctx", json!(0), "`options.ctx` is 0, expected 1 to"),
        ("/options/ctx", json!(100), "rows` is 64, expected 100 or more for layer"),
        ("/options/passes", json!([]), "`options.passes` is empty"),
        (
            "/options/passes",
            json!(["decode", {"prefill": 41}]),
            "41 tokens in `prefill_41`, expected 1 to 40",
        ),
        ("/options/passes", json!(["decode", "decode"]), "has `decode` twice"),
        ("/options/passes", json!(["decode", {"prefill": 5}]), "functions.prefill_5` is absent"),
        ("/options/cache", json!("io"), "rows` is 64, expected 40"),
        ("/plan/chunks/0/layers/end", json!(0), "`plan.chunks[0].layers` is 0..0, expected some of the"),
        ("/plan/chunks/1/layers/start", json!(2), "`plan.chunks[1].layers` is 2..6, expected some of the"),
        ("/plan/chunks/0/caches", json!([]), "`plan.chunks[0].caches` has 0 entries for 3 layers"),
        ("/plan/chunks/0/states", json!([]), "`plan.chunks[0].states` hold layers [], expected ["),
        ("/plan/chunks/0/states/0/rows", json!(0), "`plan.chunks[0].states[0]` has 0 rows"),
        ("/plan/chunks/0/states/0/channels", json!(8), "states[0].channels` is 8, expected"),
        ("/plan/head/0/end", json!(7), "`plan.head[1]` is"),
        ("/plan/head", swapped("/plan/head"), "`plan.head[0]` is"),
        ("/packages", swapped("/packages"), "`packages[2].functions.decode.inputs` has"),
        ("/packages/0/file", json!("../x"), "`packages[0].file` names `../x`, which is not directly in"),
        ("/packages/0/file", json!(outside), "which is not directly in the bundle"),
        ("/packages/0/file", json!(""), "`packages[0].file` names ``, which is not directly in"),
        ("/packages/0/file", json!("none"), "names `none`, which is not there"),
        ("/packages/1/file", json!("chunk_0.mlpackage"), "a second time"),
        ("/packages/0/weight_bytes", json!(u64::MAX), "weight_bytes` is 18446744073709551615, but chunk_0"),
        ("/host/embedding/file", json!("../../x"), "`host.embedding.file` is `../../x`, which is not among"),
        ("/host/embedding/dtype", json!("F32"), "`host.embedding.dtype` is `F32`, expected `F16`"),
        ("/host/embedding/shape/0", json!(3), "`host.embedding.shape` is [3, "),
        ("/host", json!({}), "`host.embedding` is absent"),
    ];
    for (at, value, expected) in cases {
        let change = Change { at: at.into(), value: Some(value) };
        let name = change.name();
        fs::write(dir.join("manifest.json"), change.apply(&sound).to_string()).unwrap();
        let line = run(&dir, emulator.clone()).unwrap_err();
        assert!(line.contains(expected), "{name}: {line}");
        assert!(line.contains("convert the model again") && !line.contains('\n'), "{name}: {line}");
    }
}

#[test]
fn a_package_that_is_not_the_manifests_is_named_by_function_and_feature() {
    let Some(fixture) = fixture("lfm3-tiny") else { return };
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("bundle");
    let bundle = convert(&fixture, &dir, &options(CacheKind::Io));
    let other = Options { ctx: 32, ..options(CacheKind::Io) };
    convert(&fixture, &place.path().join("other"), &other);
    let sees_all = |c: &CachePlan| matches!(c, CachePlan::Attention { window: None, .. });
    let chunk = bundle.manifest().plan.chunks.iter().position(|c| c.caches.iter().any(sees_all)).unwrap();
    let take = |file: &str| {
        fs::remove_dir_all(dir.join(file)).unwrap();
        fs::rename(place.path().join("other").join(file), dir.join(file)).unwrap();
        run(&dir, Emulator::new(Profile::fp16(), 1)).unwrap_err()
    };
    let file = format!("chunk_{chunk}.mlpackage");
    let line = take(&file);
    assert!(line.starts_with(&file) && line.contains(": function `decode` has input `"), "{line}");
    assert!(
        line.contains(", expected tensor<fp16, [1, 4") && line.contains("anemone inspect --verify-hash"),
        "{line}"
    );
}
