//! Prompts, answers and refusals against those laya recorded.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::{LayaEngine, LayaModel, LayaOptions};
use anemone_decide::{
    Answer, Calibration, Decider, Gate, Limits, Question, Request, Temperatures, Value, Vocabulary, Windows,
};
use anemone_kernels::Level;
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

fn json(path: &Path) -> Value {
    Value::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

const OPTIONS: LayaOptions = LayaOptions { threads: 2, reduced: false };

fn decider(dir: &Path) -> Decider {
    Decider::load(&DecisionCheckpoint::open(dir).unwrap(), OPTIONS).unwrap()
}

fn decider_at(dir: &Path, level: Level) -> Decider {
    let checkpoint = DecisionCheckpoint::open(dir).unwrap();
    let weights = checkpoint.weights();
    let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights).unwrap();
    let model = Arc::new(LayaModel::load(laya, &*weights).unwrap());
    Decider::with_engine(&checkpoint, |_| Ok(Box::new(LayaEngine::with_level(model, OPTIONS, level))))
        .unwrap()
}

fn plain(value: &Value) -> serde_json::Map<String, serde_json::Value> {
    serde_json::from_str(&value.to_compact()).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_list().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn whole(value: &Value) -> Vec<usize> {
    value.as_list().unwrap().iter().map(|v| v.as_usize().unwrap()).collect()
}

fn request(case: &Value) -> Request {
    let argument = |key: &str| case.get("kwargs").and_then(|kwargs| kwargs.get(key));
    Request {
        max_len: argument("max_len").and_then(Value::as_usize),
        head_max_len: argument("head_max_len").and_then(Value::as_usize),
        language: argument("lang").and_then(Value::as_str).map(str::to_owned),
        gate: argument("min_confidence").map(|gate| Gate::parse(gate).unwrap()),
    }
}

/// Numbers of one value that differ from another's, which must be of the same form, keys in the same order.
fn differences(ours: &Value, theirs: &Value, path: &str, found: &mut Vec<(String, f64)>) {
    match (ours, theirs) {
        (Value::Map(a), Value::Map(b)) => {
            let keys = |m: &[(String, Value)]| m.iter().map(|(k, _)| k.clone()).collect::<Vec<_>>();
            assert_eq!(keys(a), keys(b), "{path}");
            for ((key, a), (_, b)) in a.iter().zip(b) {
                differences(a, b, &format!("{path}.{key}"), found);
            }
        }
        (Value::List(a), Value::List(b)) => {
            assert_eq!(a.len(), b.len(), "{path}");
            a.iter().zip(b).for_each(|(a, b)| differences(a, b, path, found));
        }
        (Value::Float(a), Value::Float(b)) => {
            if a.to_bits() != b.to_bits() {
                found.push((path.to_owned(), (a - b).abs()));
            }
        }
        _ => assert_eq!(ours, theirs, "{path}"),
    }
}

#[test]
fn every_case_of_the_tiny_checkpoints() {
    let Some(dir) = shared("fixtures/laya-tiny") else { return };
    let levels = Level::available();
    let found: Vec<Vec<(String, f64)>> = levels.iter().map(|level| every_case(&dir, *level)).collect();
    for (level, numbers) in levels.iter().zip(&found) {
        // Sums of another order move logits by some 2e-6, and so a probability that stands that near to the middle of two last digits.
        assert!(numbers.len() <= 6 && numbers.iter().all(|(_, d)| *d < 1.01e-4), "{level:?} {numbers:?}");
        for (path, _) in numbers {
            // The batch was recorded with padding, which moved its sums as well.
            let elsewhere = path.contains("/batch.")
                || found.iter().any(|numbers| numbers.iter().all(|(other, _)| other != path));
            assert!(elsewhere, "{path} is as recorded on no instruction set: that is no tie");
        }
    }
}

/// Numbers of the answers that differ from those recorded; everything else is compared here.
fn every_case(dir: &Path, level: Level) -> Vec<(String, f64)> {
    let goldens = json(&dir.join("goldens.json"));
    let (mut rows, mut answers, mut numbers) = (0, 0, Vec::new());
    for name in ["english", "multilingual"] {
        let original = json(&dir.join(name).join("rl_agent_config.json"));
        let mut decider = decider_at(&dir.join(name), level);
        for case in goldens.get(name).unwrap().as_list().unwrap() {
            let what = format!("{name}/{}", case.get("name").unwrap().as_str().unwrap());
            *decider.calibration_mut() = Calibration::of_config(&plain(&original)).unwrap();
            if let Some(languages) = case.get("lang_temperatures") {
                for (code, value) in languages.as_map().unwrap() {
                    let temperatures = Temperatures::read(&plain(value), "test").unwrap();
                    decider.calibration_mut().set_language(code, temperatures);
                }
            }
            if let Some(bins) = case.get("binning_map") {
                decider.calibration_mut().set_bins(&plain(bins), "test").unwrap();
            }
            let questions = Question::parse_all(case.get("questions").unwrap()).unwrap();
            if case.get("method").and_then(Value::as_str) == Some("predict_long") {
                let asked = |key: &str| case.get("kwargs").unwrap().get(key).and_then(Value::as_usize);
                let windows = Windows { window: asked("window"), stride: asked("stride") };
                let state = case.get("state").unwrap();
                let ours = decider.decide_long(state, &questions, windows, &Request::default()).unwrap().0;
                differences(&ours, case.get("result").unwrap(), &what, &mut numbers);
                answers += questions.len();
                continue;
            }
            let states: Vec<&Value> = match case.get("states") {
                Some(states) => states.as_list().unwrap().iter().collect(),
                None => vec![case.get("state").unwrap()],
            };
            let decided = decider.decide_all(&states, &questions, &request(case));
            if case.get("error").is_some() {
                assert!(decided.unwrap_err().is_request(), "{what}");
                continue;
            }
            let decided = decided.unwrap();
            let recorded = case.get("rows").and_then(Value::as_list).unwrap_or_default();
            for (decision, row) in decided.iter().flat_map(|d| &d.0).zip(recorded) {
                let ids: Vec<usize> = decision.prompt.ids.iter().map(|id| *id as usize).collect();
                assert_eq!(ids, whole(row.get("ids").unwrap()), "{what}");
                assert_eq!(decision.prompt.markers, whole(row.get("markers").unwrap()), "{what}");
                for (ours, theirs) in [
                    (&decision.scores.logits, floats(row.get("logits").unwrap())),
                    (&decision.scores.action_logits, floats(row.get("action_logits").unwrap())),
                ] {
                    assert_eq!(ours.len(), theirs.len(), "{what}");
                    for (a, b) in ours.iter().zip(theirs) {
                        // Sums of one order against another, in f32 on both sides.
                        assert!((f64::from(*a) - b).abs() < 2e-5, "{what}: {a} {b}");
                    }
                }
                rows += 1;
            }
            let expected = case.get("result").unwrap();
            let expected = expected.as_list().unwrap_or(std::slice::from_ref(expected));
            assert_eq!(decided.len(), expected.len(), "{what}");
            for (ours, theirs) in decided.iter().zip(expected) {
                answers += ours.0.len();
                differences(&ours.to_value(), theirs, &what, &mut numbers);
            }
        }
    }
    assert!(rows == 132 && answers == 180, "{rows} {answers}");
    numbers
}

#[test]
fn refusals() {
    let Some(dir) = shared("fixtures/laya-tiny") else { return };
    let mut decider = decider(&dir.join("english"));
    let cases = json(&dir.join("errors.json"));
    let cases = cases.as_list().or_else(|| cases.get("cases")?.as_list()).unwrap().to_vec();
    assert_eq!(cases.len(), 32);
    for case in &cases {
        let name = case.get("name").unwrap().as_str().unwrap();
        let questions = match case.get("question") {
            Some(question) => Value::Map(vec![("q".to_owned(), question.clone())]),
            None => case.get("questions").unwrap().clone(),
        };
        let text = Value::text("x");
        let state = case.get("state").unwrap_or(&text);
        let request = request(case);
        let result = Question::parse_all(&questions).and_then(|q| decider.decide(state, &q, &request));
        match case.get("error").unwrap() {
            Value::Null => assert!(result.is_ok(), "{name}: {:?}", result.err()),
            _ => assert!(result.unwrap_err().is_request(), "{name}"),
        }
    }
}

/// A row holds an option when it holds its marker.
#[test]
fn options_fit_to_the_last_marker() {
    let Some(dir) = shared("fixtures/laya-tiny/english") else { return };
    let mut decider = decider(&dir);
    let questions =
        Value::parse(r#"{"q": {"type": "choice", "instructions": "x", "criteria": ["a", "b"]}}"#).unwrap();
    let questions = Question::parse_all(&questions).unwrap();
    let state = Value::text("x");
    let prompts = decider.prompts(&state, &questions, &Request::default()).unwrap();
    let last = prompts[0].markers[1];
    let mut decide = |max_len: usize| {
        decider.decide(&state, &questions, &Request { max_len: Some(max_len), ..Request::default() })
    };
    assert_eq!(decide(last + 1).unwrap().0[0].prompt.ids.len(), last + 1);
    let error = decide(last).unwrap_err();
    assert!(error.is_request() && error.to_string().contains("1 of 2 options fit"), "{error}");
}

#[test]
fn the_shipped_model_answers_as_recorded() {
    let Some(dir) = shared("models/laya-demo") else { return };
    let mut decider = decider(&dir);
    let goldens = json(&dir.join("goldens.json"));
    let mut numbers = Vec::new();
    let cases = goldens.get("cases").unwrap().as_list().unwrap();
    for case in cases {
        let questions = Question::parse_all(case.get("questions").unwrap()).unwrap();
        let ours = decider.decide(case.get("state").unwrap(), &questions, &Request::default()).unwrap();
        for (decision, row) in ours.0.iter().zip(case.get("rows").unwrap().as_list().unwrap()) {
            let ids: Vec<usize> = decision.prompt.ids.iter().map(|id| *id as usize).collect();
            assert_eq!(ids, whole(row.get("ids").unwrap()));
        }
        let what = case.get("name").unwrap().as_str().unwrap();
        differences(&ours.to_value(), case.get("result").unwrap(), what, &mut numbers);
    }
    assert!(numbers.is_empty(), "{numbers:?}");
    assert!(cases.len() >= 20, "{}", cases.len());
}

/// What `rl_agent_config.json` of the published checkpoints says, and their special tokens.
const PUBLISHED: [(&str, &str, [usize; 2], &str, &str); 3] = [
    (
        "laya",
        "modernbert",
        [512, 192],
        r#"{"temperature": [1.6369030475616455, 1.2514300346374512, 1.983399510383606], "temperature_by_options":
            {"choice:2": 1.9063563346862793, "choice:3-5": 1.7601518630981445, "choice:6-10": 1.0000158548355103,
             "choice:11+": 0.10058280825614929, "score:3-5": 1.2514300346374512, "noul:2": 1.983399510383606}}"#,
        r#"{"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}"#,
    ),
    (
        "laya-multilingual",
        "mmbert",
        [1024, 256],
        r#"{"temperature": [1, 1, 1]}"#,
        r#"{"cls_token": "<bos>", "sep_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"}"#,
    ),
    (
        "laya-typed-decisions",
        "modernbert",
        [1024, 256],
        r#"{"temperature": [1.0148024559020996, 1.0374259948730469, 1.0575125217437744], "temperature_by_options":
            {"choice:2": 1.9063563346862793, "choice:3-5": 1.7601518630981445, "choice:6-10": 1.0000158548355103,
             "choice:11+": 0.10058280825614929, "score:3-5": 1.2514300346374512, "noul:2": 1.983399510383606}}"#,
        r#"{"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}"#,
    ),
];

#[test]
fn rows_and_answers_of_the_published_checkpoints() {
    let (Some(goldens), Some(tokenizers)) = (shared("goldens/laya"), shared("tokenizers")) else { return };
    let (mut rows, mut compared, mut differ) = (0, 0, Vec::new());
    for (name, tokenizer, [max_len, head_max_len], config, tokens) in PUBLISHED {
        let tokenizer = std::fs::read(tokenizers.join(tokenizer).join("tokenizer.json")).unwrap();
        let vocabulary = Vocabulary::new(&tokenizer, &serde_json::from_str(tokens).unwrap()).unwrap();
        let calibration = Calibration::of_config(&serde_json::from_str(config).unwrap()).unwrap();
        let limits = Limits { max_len, head_max_len };
        for case in json(&goldens.join(format!("{name}.json"))).get("cases").unwrap().as_list().unwrap() {
            let what = format!("{name}/{}", case.get("name").unwrap().as_str().unwrap());
            let questions = Question::parse_all(case.get("questions").unwrap()).unwrap();
            let state = vocabulary.state(case.get("state").unwrap()).unwrap();
            let list = |key: &str| case.get(key).unwrap().as_list().unwrap();
            for (i, question) in questions.iter().enumerate() {
                let prompt = vocabulary.prompt(question, &state, limits).unwrap();
                let item = &list("items")[i];
                let ids: Vec<usize> = prompt.ids.iter().map(|id| *id as usize).collect();
                assert_eq!(ids, whole(item.get("ids").unwrap()), "{what}");
                assert_eq!(prompt.markers, whole(item.get("markers").unwrap()), "{what}");
                let floats =
                    |key: &str| floats(&list(key)[i]).into_iter().map(|v| v as f32).collect::<Vec<_>>();
                let (logits, actions) = (floats("logits"), floats("action_logits"));
                let ours = Answer::new(question, &logits, &actions, &calibration, None, None).to_value();
                let theirs = case.get("answers").unwrap().get(&question.id).unwrap();
                for (key, value) in theirs.as_map().unwrap() {
                    // The recording version had fewer fields, and other legends; what it has must be equal.
                    let ours = ours.get(key).unwrap_or_else(|| panic!("{what}: no {key}"));
                    differences(ours, value, &format!("{what}.{key}"), &mut differ);
                    compared += 1;
                }
                rows += 1;
            }
        }
    }
    println!("{rows} rows, {compared} fields, numbers that differ: {differ:?}");
    assert_eq!(rows, 576);
    assert!(compared > 2000, "{compared}");
    assert!(differ.is_empty(), "{differ:?}");
}
