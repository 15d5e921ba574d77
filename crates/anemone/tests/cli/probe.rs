//! `probe`: parts of decision models as packages of their own.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{anemone, assets, shared};

fn manifest(dir: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("manifest.json")).unwrap()).unwrap()
}

#[test]
fn parts_are_written_with_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let probe = |kind: &str, extra: &[&str]| {
        let out = at(kind);
        anemone(&[&["probe", "-q", "--kind", kind, "--length", "64", "--output", &out][..], extra].concat())
    };
    let body = probe("body", &["--json"]).json();
    assert_eq!(manifest(&dir.path().join("body")), body);
    assert_eq!(body["shape"], json!({"batch": 1, "length": 64, "channels": 192, "options": 32}));
    assert_eq!(body["versions"], json!({"anemone": env!("CARGO_PKG_VERSION"), "specification": 9}));
    assert_eq!(
        body["functions"]["main"]["outputs"]["logits"],
        json!({"dtype": "fp16", "shape": [1, 1, 1, 32]})
    );
    // The very package a conversion makes, and the hashes it notes.
    anemone(&["convert", "-q", "--decision", "--length", "64", "--out", &at("bundle")]).ok();
    let bundle = manifest(&dir.path().join("bundle"));
    assert_eq!(body["source_files_sha256"], bundle["source"]["sha256"]);
    let files = body["package_files_sha256"].as_object().unwrap();
    assert_eq!(files.len(), 3);
    for (name, hash) in files {
        for package in ["body/model.mlpackage", "bundle/body.mlpackage"] {
            let found = anemone_bundle::file_sha256(&dir.path().join(package).join(name)).unwrap();
            assert_eq!(found, hash.as_str().unwrap(), "{package} {name}");
        }
    }
    let shown = probe("layer", &["--layer", "0"]).ok().stdout;
    assert!(shown.contains("input      full_mask [1, 64, 1, 64]"), "{shown}");
    probe("mlp", &[]).ok();
    let mlp = manifest(&dir.path().join("mlp"));
    assert_eq!((&mlp["kind"], &mlp["layer"]), (&json!("mlp"), &json!(1)));
    let inputs: Vec<&String> = mlp["functions"]["main"]["inputs"].as_object().unwrap().keys().collect();
    assert_eq!(inputs, ["hidden"]);
    // Packages that read back.
    for kind in ["mlp", "layer"] {
        anemone(&["inspect", "-q", "-m", &format!("{}/model.mlpackage", at(kind))]).ok();
    }
    // A part is a part of the weights.
    let bytes = |of: &Value| of["weight_bytes"].as_u64().unwrap();
    assert!(0 < bytes(&mlp) && bytes(&mlp) < bytes(&manifest(&dir.path().join("layer"))));
    assert!(bytes(&manifest(&dir.path().join("layer"))) < bytes(&body));
}

#[test]
fn nothing_is_written_over_and_mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let out = out.to_str().unwrap();
    let probe = |extra: &[&str]| anemone(&[&["probe", "-q", "--output", out][..], extra].concat());
    let body = ["--kind", "body", "--length", "64"];
    let layer = ["--kind", "layer", "--length", "64"];
    probe(&["--kind", "body", "--length", "16"]).fails(1, &["--length is 16", "32"]);
    probe(&[&body[..], &["--layer", "1"]].concat()).fails(1, &["--layer is of --kind mlp"]);
    probe(&[&layer[..], &["--layer", "99"]].concat()).fails(1, &["--layer is 99", "0 to 5"]);
    probe(&[&layer[..], &["--tile", "8"]].concat()).fails(1, &["--tile", "--attention tiled"]);
    probe(&["--kind", "head", "--length", "64"]).fails(2, &["--kind"]);
    probe(&[&body[..], &["-m", assets().to_str().unwrap()]].concat())
        .fails(1, &["--model", "language model"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    std::fs::create_dir(out).unwrap();
    probe(&body).fails(1, &["--output", "exists"]);
    assert_eq!(std::fs::read_dir(out).unwrap().count(), 0);
    std::fs::remove_dir(out).unwrap();
    if let Some(tiny) = shared("fixtures/laya-tiny/multilingual") {
        let tiled = ["--attention", "tiled", "--tile", "16", "-m", tiny.to_str().unwrap(), "--json"];
        let report = probe(&[&layer[..], &tiled].concat()).json();
        assert_eq!(report["tile"], 16);
    }
}

#[test]
fn other_directories_of_ours_are_named_for_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    anemone(&["probe", "--kind", "mlp", "--length", "32", "--output", &at("part")]).ok();
    let part = ["a part of a model", "`inspect`"];
    anemone(&["inspect", "--model", &at("part")]).fails(1, &part);
    anemone(&["run", "--model", &at("part"), "--prompt", "x"]).fails(1, &part);
    let decide = |model: &str| anemone(&["decide", "--model", model, "-s", "x", "--preset", "email"]);
    decide(&at("part")).fails(1, &part);
    anemone(&["convert", "-q", "--decision", "--out", &at("bundle"), "--length", "32"]).ok();
    anemone(&["run", "--model", &at("bundle"), "--prompt", "x"])
        .fails(1, &["is the bundle of a decision model; use it with `decide`"]);
    std::fs::write(dir.path().join("bundle/manifest.json"), "{").unwrap();
    decide(&at("bundle")).fails(1, &["manifest.json is not JSON", "copy the bundle again"]);
}
