use anemone_checkpoint::parse_safetensors;
use anemone_tensor::Bytes;
use serde_json::Value;

use crate::support::{anemone, distance, ids, numbers, read_json, shared};

/// Stated by the fixtures for an f32 implementation.
const TOLERANCE: f64 = 2e-4;

/// What reading a number back from JSON may change.
const ROUND_TRIP: f64 = 1e-12;

const FIXTURES: [&str; 5] =
    ["lfm2-tiny-tied", "lfm2-tiny-untied-sharded", "lfm3-tiny", "lfm3-tiny-options-sharded", "lfm2-moe-tiny"];

fn join(ids: &Value) -> String {
    let ids: Vec<String> = ids.as_array().unwrap().iter().map(ToString::to_string).collect();
    ids.join(",")
}

#[test]
fn every_fixture_tap_by_tap() {
    let Some(fixtures) = shared("fixtures/lfm-tiny") else { return };
    for fixture in FIXTURES {
        let dir = fixtures.join(fixture);
        let model = dir.to_str().unwrap();
        let goldens = read_json(&dir.join("goldens.json"));
        for prompt in goldens["prompts"].as_array().unwrap() {
            let name = format!("{fixture} {}", prompt["name"]);
            let tokens = join(&prompt["token_ids"]);
            let args = [
                "forward", "--model", model, "--tokens", &tokens, "--exact", "--taps", "--greedy", "32",
                "--json",
            ];
            let report = anemone(&args).json();
            assert_eq!(report["tokens"], prompt["token_ids"], "{name}");
            assert_eq!(report["argmax"], prompt["argmax_per_position"], "{name}");
            assert_eq!(report["greedy_ids"], prompt["greedy_ids"], "{name}");
            let check = |found: &Value, expected: &Value, what: &str| {
                let worst = distance(&numbers(found), &numbers(expected));
                assert!(worst < TOLERANCE, "{name} {what}: {worst}");
            };
            check(&report["last_logits"], &prompt["last_logits"], "logits");
            let layers = report["layers"].as_object().unwrap();
            let hidden = &prompt["last_hidden"];
            let expected = hidden["layers"].as_array().unwrap();
            assert_eq!(layers.len(), expected.len() + 2, "{name}");
            check(&layers["model.embed_tokens"], &hidden["embed"], "embedding");
            for (i, expected) in expected.iter().enumerate() {
                check(&layers[&format!("model.layers.{i}")], expected, &format!("layer {i}"));
            }
            check(&layers["model.embedding_norm"], &hidden["final_norm"], "final norm");
        }
    }
}

#[test]
fn files_hold_every_position() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.safetensors");
    // More tokens than one pass takes.
    let tokens: Vec<String> = (0..300).map(|i| (1 + i * 7 % 2000).to_string()).collect();
    let tokens = tokens.join(",");
    let args =
        ["forward", "--tokens", &tokens, "--exact", "--taps", "--json", "--out", path.to_str().unwrap()];
    let report = anemone(&args).json();
    let file = parse_safetensors(Bytes::from(std::fs::read(&path).unwrap())).unwrap();
    assert_eq!(file.tensors().len(), 1 + 10);
    let logits = file.tensor("logits").unwrap();
    assert_eq!(&logits.shape()[..], [300, 2048]);
    let rows = logits.to_f32().unwrap();
    let best: Vec<u64> = rows.chunks_exact(2048).map(|r| anemone_tensor::argmax(r).unwrap() as u64).collect();
    assert_eq!(ids(&report["argmax"]), best);
    let last = |values: &[f32], width: usize| -> Vec<f64> {
        values[values.len() - width..].iter().map(|v| f64::from(*v)).collect()
    };
    assert!(distance(&last(&rows, 2048), &numbers(&report["last_logits"])) < ROUND_TRIP);
    for (path, values) in report["layers"].as_object().unwrap() {
        let tensor = file.tensor(path).unwrap();
        assert_eq!(&tensor.shape()[..], [300, 192], "{path}");
        assert!(distance(&last(&tensor.to_f32().unwrap(), 192), &numbers(values)) < ROUND_TRIP, "{path}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a temporary file is left");
}

#[test]
fn all_positions_of_a_fixture() {
    let Some(fixtures) = shared("fixtures/lfm-tiny/lfm3-tiny") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.safetensors");
    let goldens = read_json(&fixtures.join("goldens.json"));
    let prompts = goldens["prompts"].as_array().unwrap();
    let prompt = prompts.iter().find(|p| p["name"] == "sentence").unwrap();
    let (model, tokens) = (fixtures.to_str().unwrap(), join(&prompt["token_ids"]));
    let args =
        ["forward", "-m", model, "--tokens", &tokens, "--exact", "--taps", "--out", path.to_str().unwrap()];
    assert_eq!(anemone(&args).ok().stdout, "");
    let read = |path: &std::path::Path| parse_safetensors(Bytes::from(std::fs::read(path).unwrap())).unwrap();
    let (ours, reference) = (read(&path), read(&fixtures.join("goldens.safetensors")));
    let values = |file: &anemone_checkpoint::SafetensorsFile, name: &str| -> Vec<f64> {
        file.tensor(name).unwrap().to_f32().unwrap().iter().map(|v| f64::from(*v)).collect()
    };
    let mut pairs = vec![
        ("logits".to_owned(), "sentence.logits".to_owned()),
        ("model.embed_tokens".to_owned(), "sentence.embed".to_owned()),
        ("model.embedding_norm".to_owned(), "sentence.final_norm".to_owned()),
    ];
    pairs.extend((0..8).map(|i| (format!("model.layers.{i}"), format!("sentence.layer.{i}"))));
    for (name, golden) in pairs {
        let worst = distance(&values(&ours, &name), &values(&reference, &golden));
        assert!(worst < TOLERANCE, "{name}: {worst}");
    }
}

#[test]
fn a_table_for_people() {
    let ran = anemone(&["forward", "--text", "once upon a", "--exact", "--greedy", "2"]).ok();
    assert!(ran.stdout.contains("4 tokens") && ran.stdout.contains("\" time\""), "{}", ran.stdout);
    let plain = anemone(&["forward", "--text", "once upon a", "--no-special"]).ok();
    assert!(plain.stdout.contains("3 tokens"), "{}", plain.stdout);
}
