//! `validate`: bundles of decision models against their checkpoints and against recorded references.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Ran, anemone, assets, shared};

#[test]
fn a_bundle_is_validated_against_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    anemone(&["convert", "-q", "--decision", "--out", &at("b"), "--length", "64", "--length", "96"]).ok();
    let bundle = at("b");
    let validate = |extra: &[&str]| anemone(&[&["validate", "-q", "--bundle", &bundle][..], extra].concat());
    let report = validate(&["--json"]).json();
    assert_eq!(
        (&report["passed"], &report["rows"], &report["validated"]),
        (&json!(true), &json!(32), &json!(32))
    );
    let error = report["max_probability_error"].as_f64().unwrap();
    assert!(error > 0.0 && error < 0.02, "{report}");
    assert_eq!(report["agreed"].as_u64().unwrap() + report["ties"].as_array().unwrap().len() as u64, 32);
    let shown = validate(&["--profile", "f32"]).ok().stdout;
    assert!(shown.contains("validated      32 of 32 rows") && shown.ends_with("passed\n"), "{shown}");
    // Nearer than fp16 comes.
    let strict = validate(&["--tolerance", "0.00001", "--json"]);
    assert_eq!(strict.code, Some(1));
    let strict: Value = serde_json::from_str(&strict.stdout).unwrap();
    assert!(strict["passed"] == false && !strict["failures"].as_array().unwrap().is_empty());

    let rows = at("rows.jsonl");
    let long = "where is my parcel ".repeat(40);
    let question = r#"{"type": "noul", "instructions": "Is something late?"}"#;
    let line = |state: &str| format!("{{\"state\": \"{state}\", \"question\": {question}}}\n");
    std::fs::write(&rows, line(&long)).unwrap();
    let none = validate(&["--batch", &rows, "--json"]);
    assert_eq!(none.code, Some(1), "nothing compared is no pass");
    std::fs::write(&rows, line(&long) + &line("hi")).unwrap();
    let report = validate(&["--batch", &rows, "--json"]).json();
    assert_eq!((&report["rows"], &report["validated"]), (&json!(2), &json!(1)));
    assert!(report["not_validated"][0].as_str().unwrap().contains("holds 96"), "{report}");
    std::fs::write(&rows, "{}\n").unwrap();
    validate(&["--batch", &rows]).fails(1, &["--batch", "line 1", "`state`"]);
    validate(&["--engine", "cpu"]).fails(1, &["--engine cpu", "emulator"]);
    validate(&["--tolerance", "0.6"]).fails(2, &["--tolerance", "below 0.5"]);
    anemone(&["verify", "-q", "--bundle", &bundle]).fails(1, &["a decision model", "`validate`"]);
    anemone(&["validate", "-q", "--bundle", assets().to_str().unwrap()])
        .fails(1, &["--bundle", "not a bundle"]);

    let other = at("other");
    if let Some(tiny) = shared("fixtures/laya-tiny/english") {
        validate(&["-m", tiny.to_str().unwrap()]).fails(1, &["not what the bundle was made from", "SHA-256"]);
        anemone(&["convert", "-q", "-m", tiny.to_str().unwrap(), "--out", &other]).ok();
        anemone(&["validate", "-q", "--bundle", &other]).fails(1, &["no reference", "--model"]);
        let report =
            anemone(&["validate", "-q", "--bundle", &other, "-m", tiny.to_str().unwrap(), "--json"]).json();
        assert_eq!(report["passed"], true);
    }
}

/// Changes a bundle's stored weights and gives the manifest the package's new hash, as a faulty conversion would.
fn plant(bundle: &Path, change: impl Fn(&mut [u8])) {
    let package = bundle.join("body.mlpackage");
    let weights = package.join("Data/com.apple.CoreML/weights/weight.bin");
    let mut bytes = std::fs::read(&weights).unwrap();
    change(&mut bytes);
    std::fs::write(&weights, bytes).unwrap();
    let path = bundle.join("manifest.json");
    let mut manifest: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    manifest["packages"][0]["hash"] = json!(anemone_bundle::package_hash(&package).unwrap());
    std::fs::write(&path, manifest.to_string()).unwrap();
}

/// Where a checkpoint tensor's numbers lie in the weight file.
fn place(bundle: &Path, tensor: &str) -> std::ops::Range<usize> {
    let text = std::fs::read_to_string(bundle.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    let piece = &manifest["weights"][tensor][0];
    let n: u64 = piece["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).product();
    let record = piece["offset"].as_u64().unwrap() as usize;
    let bytes =
        std::fs::read(bundle.join("body.mlpackage/Data/com.apple.CoreML/weights/weight.bin")).unwrap();
    // The record says where its numbers begin.
    let at = u64::from_le_bytes(bytes[record + 16..record + 24].try_into().unwrap()) as usize;
    at..at + 2 * n as usize
}

/// The rules a report says are broken; it passes and ends with 0 when there are none.
fn broken(run: &Ran) -> Vec<String> {
    let report: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run:?}"));
    let rules = report["rules"].as_object().unwrap().iter();
    let broken: Vec<String> =
        rules.filter(|(_, kept)| **kept == false).map(|(name, _)| name.clone()).collect();
    assert_eq!(report["passed"], broken.is_empty(), "{report}");
    assert_eq!(run.code, Some(i32::from(!broken.is_empty())), "{report}");
    broken
}

/// A bundle of the built-in model.
fn convert(out: &Path) {
    let out = out.to_str().unwrap();
    anemone(&["convert", "-q", "--decision", "--out", out, "--length", "64", "--length", "128", "--pack"])
        .ok();
}

fn validate(bundle: &Path, extra: &[&str]) -> Ran {
    anemone(&[&["validate", "-q", "--bundle", bundle.to_str().unwrap(), "--json"][..], extra].concat())
}

#[test]
fn planted_weights_fail_by_their_rules() {
    let dir = tempfile::tempdir().unwrap();
    let reference = dir.path().join("reference.json");
    let reference = reference.to_str().unwrap();
    assert_eq!(anemone(&["validate", "-q", "--record", reference, "--json"]).json()["rows"], 32);
    let with = ["--reference", reference];
    let good = dir.path().join("good");
    convert(&good);
    for extra in [&["--pack"][..], &with, &[&with[..], &["--pack"]].concat()] {
        let report = validate(&good, extra).json();
        assert_eq!((&report["passed"], &report["validated"]), (&json!(true), &json!(32)), "{report}");
        assert_eq!(report["tie_margin"], 0.04);
    }
    // Half of the scorer's last weights gone: other answers, found against checkpoint and reference alike.
    let faulty = dir.path().join("faulty");
    convert(&faulty);
    let scorer = place(&faulty, "scorer.3.weight");
    plant(&faulty, |bytes| bytes[scorer.start..scorer.start + scorer.len() / 2].fill(0));
    for extra in [&["--repeats", "1"][..], &with] {
        let rules = broken(&validate(&faulty, extra));
        assert!(rules.contains(&"probability".to_owned()), "{rules:?}");
    }
    // An infinite weight.
    let infinite = dir.path().join("infinite");
    convert(&infinite);
    let dense = place(&infinite, "scorer.1.weight");
    plant(&infinite, |bytes| {
        bytes[dense.start..dense.start + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
    });
    assert_eq!(broken(&validate(&infinite, &with)), ["finite"]);
}

/// A rule, and a change of a reference that breaks it.
type Change = (&'static str, fn(&mut Value));

const CHANGES: [Change; 6] = [
    ("probability", |case| {
        case["logits"][0][0] = json!(case["logits"][0][0].as_f64().unwrap() + 0.7);
        case["answers"] = Value::Null;
    }),
    ("best_option", |case| {
        case["logits"][0] = json!([0.0, 0.0, 0.0, 0.0, 20.0]);
        case["answers"] = Value::Null;
    }),
    ("action", |case| {
        case["action_logits"][0].as_array_mut().unwrap().reverse();
        case["answers"] = Value::Null;
    }),
    ("tokens", |case| case["items"][0]["ids"][1] = json!(7)),
    ("usage", |case| case["items"][0]["usage"]["state_tokens"] = json!(0)),
    ("calibration", |case| case["answers"]["urgent"]["noul"] = json!(0.5)),
];

#[test]
fn a_reference_that_says_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (good, reference, other) = (dir.path().join("good"), at("reference.json"), at("other.json"));
    convert(&good);
    let batch = at("rows.jsonl");
    let questions = r#"{"intent": {"type": "choice", "instructions": "What is wanted?", "criteria": ["a", "b", "c", "d", "e"]},
        "urgent": {"type": "noul", "instructions": "It cannot wait."}}"#;
    let line = format!("{{\"state\": \"where is my parcel\", \"questions\": {questions}}}");
    std::fs::write(&batch, line.replace('\n', " ")).unwrap();
    anemone(&["validate", "-q", "--record", &reference, "--batch", &batch]).ok();
    let original: Value = serde_json::from_str(&std::fs::read_to_string(&reference).unwrap()).unwrap();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut value = original.clone();
        change(&mut value);
        std::fs::write(&other, value.to_string()).unwrap();
        validate(&good, &["--reference", &other])
    };
    assert!(broken(&changed(&|_| {})).is_empty());
    for (rule, change) in CHANGES {
        let rules = broken(&changed(&|value| change(&mut value["cases"][0])));
        assert!(rules.contains(&rule.to_owned()), "{rule}: {rules:?}");
    }
    // Another source, and files that are no reference.
    changed(&|v| v["source_weights_sha256"] = json!("00ff"))
        .fails(1, &["another model.safetensors", "00ff", "--record"]);
    changed(&|v| v["source_files_sha256"]["encoder/config.json"] = json!("00ff"))
        .fails(1, &["another encoder/config.json", "00ff"]);
    changed(&|v| v["cases"][0]["items"][0] = Value::Null).fails(1, &["cases[0].items[0].ids", "--record"]);
    std::fs::write(&other, "{").unwrap();
    validate(&good, &["--reference", &other]).fails(1, &["--reference", "not JSON"]);
    validate(&good, &["--reference", &at("none")]).fails(1, &["--reference", "cannot open"]);
    validate(&good, &["--reference", &reference, "--batch", "x"]).fails(2, &["--reference", "--batch"]);
    validate(&good, &["--record", &reference]).fails(2, &["--record", "--bundle"]);
    anemone(&["validate", "-q"]).fails(2, &["--bundle"]);
    anemone(&["validate", "-q", "--record", &other, "-m", good.to_str().unwrap()])
        .fails(1, &["--record", "a bundle"]);
}
