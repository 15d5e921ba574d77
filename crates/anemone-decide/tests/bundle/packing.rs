//! Several questions in a row against each in a row of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anemone_cpu::{Row, Scores};
use anemone_decide::{Decider, GraphScorer, Question, Request, Scorer, Value};
use anemone_emulator::{Emulator, Profile};
use anemone_mil::{Array, DataType, Executable, Executor, ExecutorError, Signature, States, write_package};

use crate::{convert, decided, emulated, furthest, lower, native, questions, shared};

/// The emulator on another package, if any, that notes every call and breaks what the packed functions give, if asked.
struct Watched {
    emulator: Emulator,
    instead: Option<PathBuf>,
    called: Arc<Mutex<Vec<String>>>,
    broken: bool,
}

struct WatchedFunction {
    inner: Box<dyn Executable>,
    name: String,
    called: Arc<Mutex<Vec<String>>>,
    broken: bool,
}

impl Watched {
    fn new(profile: Profile, instead: Option<&Path>) -> (Self, Arc<Mutex<Vec<String>>>) {
        let called = Arc::new(Mutex::new(Vec::new()));
        let emulator = Emulator::new(profile, 2);
        let instead = instead.map(Path::to_path_buf);
        (Self { emulator, instead, called: Arc::clone(&called), broken: false }, called)
    }
}

impl Executor for Watched {
    fn signatures(&mut self, package: &Path) -> Result<BTreeMap<String, Signature>, ExecutorError> {
        self.emulator.signatures(self.instead.as_deref().unwrap_or(package))
    }

    fn load(&mut self, package: &Path, function: &str) -> Result<Box<dyn Executable>, ExecutorError> {
        let inner = self.emulator.load(self.instead.as_deref().unwrap_or(package), function)?;
        let (name, called) = (function.to_owned(), Arc::clone(&self.called));
        Ok(Box::new(WatchedFunction { inner, name, called, broken: self.broken }))
    }
}

impl Executable for WatchedFunction {
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn predict(
        &mut self,
        inputs: &[(&str, &Array)],
        states: &mut States,
    ) -> Result<Vec<Array>, ExecutorError> {
        self.called.lock().unwrap().push(self.name.clone());
        let mut outputs = self.inner.predict(inputs, states)?;
        if self.broken && self.name.ends_with("_packed") {
            outputs[0].data[0] = f32::NAN;
        }
        Ok(outputs)
    }
}

/// Every recorded state with its questions that a function of `longest` tokens holds, at most 32 questions each.
fn recorded(dir: &Path, name: &str, decider: &Decider, longest: usize) -> Vec<(Value, Vec<Question>)> {
    let goldens = Value::parse(&std::fs::read_to_string(dir.join("goldens.json")).unwrap()).unwrap();
    let mut all = Vec::new();
    for case in goldens.get(name).unwrap().as_list().unwrap() {
        let (Some(questions), Some(state)) = (case.get("questions"), case.get("state")) else { continue };
        let Ok(questions) = Question::parse_all(questions) else { continue };
        let fits = |question: &Question| {
            let one = std::slice::from_ref(question);
            let prompts = decider.prompts(state, one, &Request::default());
            prompts.is_ok_and(|p| p[0].ids.len() <= longest && p[0].markers.len() <= 32)
        };
        let questions: Vec<Question> = questions.into_iter().filter(fits).take(32).collect();
        all.push((state.clone(), questions));
    }
    all
}

#[test]
fn packed_rows_score_as_rows_of_their_own() {
    let Some(dir) = shared("fixtures/laya-tiny") else { return };
    for name in ["english", "multilingual"] {
        let model = dir.join(name);
        let native = native(&anemone_checkpoint::DecisionCheckpoint::open(&model).unwrap());
        let asked = recorded(&dir, name, &native, 192);
        let rows: usize = asked.iter().map(|(_, questions)| questions.len()).sum();
        assert!(rows >= 40, "{name}: {rows} rows");
        let scratch = tempfile::tempdir().unwrap();
        for (i, tile) in [None, Some(32)].into_iter().enumerate() {
            let lengths = [64, 96, 192];
            let bundle = convert(&model, &scratch.path().join(i.to_string()), &lengths, tile, true);
            let wide = scratch.path().join(format!("{i}.mlpackage"));
            write_package(&lower(&model, &lengths, tile, DataType::Float32, true).0, &wide).unwrap();
            // With f32 constants and as it is stored.
            let exact = if tile.is_some() { (Profile::f32(), None) } else { (Profile::f32(), Some(&*wide)) };
            for (profile, instead) in [exact, (Profile::fp16(), None)] {
                let open = |pack: bool| {
                    let (executor, called) = Watched::new(profile.clone(), instead);
                    let mut decider = Decider::open(bundle.clone(), Box::new(executor)).unwrap();
                    if pack {
                        decider.pack().unwrap();
                    }
                    (decider, called)
                };
                let ((mut apart, one_each), (mut together, shared_rows)) = (open(false), open(true));
                let asked: Vec<(&Value, &[Question])> = asked.iter().map(|(s, q)| (s, &q[..])).collect();
                // A state at a time, and all of them at once.
                let expected: Vec<_> = asked
                    .iter()
                    .map(|(state, questions)| apart.decide(state, questions, &Request::default()).unwrap())
                    .collect();
                let found: Vec<_> = asked
                    .iter()
                    .map(|(state, questions)| together.decide(state, questions, &Request::default()).unwrap())
                    .collect();
                let each = std::mem::take(&mut *shared_rows.lock().unwrap());
                let all = together.decide_each(&asked, &Request::default()).unwrap();
                for (what, found) in [("each", &found), ("all", &all)] {
                    let (logits, p, act) = furthest(found, &expected);
                    println!(
                        "{name} {tile:?} {profile} {what}: logits {logits:.1e}, p {p:.1e}, act {act:.1e}"
                    );
                    if profile == Profile::f32() {
                        assert!(logits <= 1e-5 && p <= 1e-5 && act <= 1e-5, "{logits} {p} {act}");
                    }
                    assert!(p <= 0.02 && act <= 0.02, "{p} {act}");
                }
                let (one_each, shared_rows) = (one_each.lock().unwrap(), shared_rows.lock().unwrap());
                assert_eq!(one_each.len(), rows);
                assert!(one_each.iter().all(|name| !name.ends_with("_packed")));
                println!(
                    "{rows} rows, calls {} a state at a time, {} all at once",
                    each.len(),
                    shared_rows.len()
                );
                assert!(each.len() < rows && shared_rows.len() < each.len(), "fewer calls than rows");
                assert!(shared_rows.iter().filter(|name| name.ends_with("_packed")).count() > 4);
            }
        }
    }
}

fn bits(scores: &Scores) -> Vec<u32> {
    scores.logits.iter().chain(&scores.action_logits).map(|v| v.to_bits()).collect()
}

#[test]
fn a_question_never_moves_anothers_scores() {
    let Some(dir) = shared("fixtures/laya-tiny/english") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let bundle = convert(&dir, &scratch.path().join("b"), &[64], None, true);
    let checkpoint = bundle.checkpoint().unwrap();
    // A fixed sequence; no two rows alike.
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for profile in [Profile::f32(), Profile::fp16()] {
        let (executor, called) = Watched::new(profile.clone(), None);
        let mut scorer = GraphScorer::open(bundle.clone(), &checkpoint, Box::new(executor), 0).unwrap();
        scorer.pack().unwrap();
        let vocabulary = scorer.laya().encoder.vocab_size;
        for _ in 0..12 {
            let mut ids: Vec<Vec<u32>> =
                [20, 14, 9].map(|n| (0..n).map(|_| next(vocabulary) as u32).collect()).to_vec();
            let markers = [vec![3, 7, 12], vec![2, 5], vec![1, 8]];
            let mut kinds = [next(3), next(3), next(3)];
            let mut score = |ids: &[Vec<u32>], kinds: [usize; 3]| {
                let rows: Vec<Row<'_>> = (ids.iter().zip(&markers).zip(kinds))
                    .map(|((ids, markers), kind)| Row { ids, markers, kind, parallel: None })
                    .collect();
                scorer.score(&rows).unwrap()
            };
            let before = score(&ids, kinds);
            // Another text, another kind, and of the last another length.
            let changed = next(3);
            kinds[changed] = (kinds[changed] + 1) % 3;
            for id in &mut ids[changed] {
                *id = next(vocabulary) as u32;
            }
            if changed == 2 {
                ids[2].push(next(vocabulary) as u32);
            }
            let after = score(&ids, kinds);
            for i in 0..3 {
                let same = bits(&before[i]) == bits(&after[i]);
                assert_eq!(
                    same,
                    i != changed,
                    "{profile}: {changed} was changed, {i} gives {:?} and {:?}",
                    before[i],
                    after[i]
                );
            }
        }
        let called = called.lock().unwrap();
        assert!(called.len() == 24 && called.iter().all(|name| name == "L64_packed"), "{called:?}");
    }
}

#[test]
fn what_overflows_together_is_asked_alone() {
    let Some(dir) = shared("fixtures/laya-tiny/english") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let bundle = convert(&dir, &scratch.path().join("b"), &[192], None, true);
    let expected = decided(&mut emulated(&bundle, Profile::f32()));
    let (mut executor, called) = Watched::new(Profile::f32(), None);
    executor.broken = true;
    let mut decider = Decider::open(bundle, Box::new(executor)).unwrap();
    decider.pack().unwrap();
    assert_eq!(decided(&mut decider), expected);
    assert!(called.lock().unwrap().iter().any(|name| name.ends_with("_packed")));
}

#[test]
fn packing_is_refused_where_it_is_not() {
    let Some(dir) = shared("fixtures/laya-tiny/english") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let bundle = convert(&dir, &scratch.path().join("b"), &[64], None, false);
    let problem = emulated(&bundle, Profile::f32()).pack().unwrap_err().to_string();
    assert!(
        problem.contains("no functions for several questions") && problem.contains("convert"),
        "{problem}"
    );
    let mut native = native(&bundle.checkpoint().unwrap());
    let problem = native.pack().unwrap_err().to_string();
    assert!(problem.starts_with("--pack ") && problem.contains("without padding"), "{problem}");
    assert_eq!(native.decide(&Value::text("hi"), &questions(), &Request::default()).unwrap().0.len(), 3);
}
