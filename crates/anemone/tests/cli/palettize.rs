//! `convert --precision` and `palettize`, and running what they made.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{anemone, distance, numbers, read_json};

/// A bundle of a built-in model in a directory of its own.
struct Made {
    dir: tempfile::TempDir,
}

impl Made {
    fn new(flags: &[&str]) -> Self {
        let made = Self { dir: tempfile::tempdir().unwrap() };
        anemone(&[&["convert", "-q", "--out", &made.at("source")][..], flags].concat()).ok();
        made
    }

    fn language() -> Self {
        Self::new(&["--ctx", "192", "--prefill", "16"])
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn palettize(&self, out: &str, flags: &[&str]) -> crate::support::Ran {
        let (source, out) = (self.at("source"), self.at(out));
        anemone(&[&["palettize", "-q", "--json", "--bundle", &source, "--out", &out][..], flags].concat())
    }

    fn entries(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn package_hashes(bundle: &Path) -> Value {
    let manifest = read_json(&bundle.join("manifest.json"));
    manifest["packages"].as_array().unwrap().iter().map(|p| p["hash"].clone()).collect()
}

#[test]
fn a_checkpoint_and_its_bundle_give_the_same_tables() {
    let made = Made::language();
    let report = made.palettize("a", &["--precision", "lut6", "--group", "16", "--gate", "0.98"]).json();
    assert_eq!(report["passed"], true);
    let rows = report["tensors"].as_array().unwrap();
    // Eight layers of three feed-forward matrices, five of two for the convolution, three of four for attention; the head.
    assert_eq!(rows.len(), 8 * 3 + 5 * 2 + 3 * 4 + 1);
    for row in rows {
        assert_eq!((&row["bits"], &row["group"]), (&json!(6), &json!(16)), "{row}");
        let error = row["rel_rmse"].as_f64().unwrap();
        assert!(error > 0.01 && error < 0.03, "{row}");
        // Six bits a weight, and 64 entries of two bytes for each sixteen rows.
        let shape: Vec<u64> = row["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
        assert_eq!(row["bytes"], shape[0] * shape[1] * 6 / 8 + shape[0] / 16 * 64 * 2, "{row}");
    }
    let manifest = read_json(&made.path("a").join("manifest.json"));
    let compression = &manifest["compression"];
    assert_eq!(compression["precision"], "lut6");
    assert_eq!(compression["source_bundle"]["name"], "source");
    assert_eq!(compression["gate"]["passed"], true);
    assert!(compression["gate"]["measured"].as_f64().unwrap() >= 0.98);

    let flags = ["--ctx", "192", "--prefill", "16", "--precision", "lut6", "--group", "16", "--json"];
    let report = anemone(&[&["convert", "-q", "--out", &made.at("b")][..], &flags].concat()).json();
    assert_eq!(report["compression"]["weights"], rows.len());
    assert_eq!(package_hashes(&made.path("a")), package_hashes(&made.path("b")));
    assert!(package_hashes(&made.path("a")) != package_hashes(&made.path("source")));
    anemone(&["verify", "-q", "--bundle", &made.at("b"), "--engine", "emulator", "--min-cos", "0.98"]).ok();
    anemone(&["inspect", "-q", "--bundle", &made.at("b"), "--verify-hash"]).ok();
    assert_eq!(made.entries(), ["a", "b", "source"]);
}

#[test]
fn the_emulator_expands_what_the_native_engine_reads() {
    let made = Made::language();
    let tokens = "1,5,9,200,31,77,1020,3";
    let logits = |bundle: &str, flags: &[&str]| {
        let fixed = ["forward", "-q", "--json", "--tokens", tokens, "--bundle", bundle];
        numbers(&anemone(&[&fixed[..], flags].concat()).json()["last_logits"])
    };
    let plain = logits(&made.at("source"), &["--exact"]);
    let scale = plain.iter().fold(0f64, |m, v| m.max(v.abs()));
    // Without tables of single numbers the native engine reads the tied head as the host's fp16, so that it stays so here.
    let fp16_head = ["--palettize-skip", "model.embed_tokens.*"];
    for (i, form) in [
        &["--precision", "lut4"][..],
        &["--precision", "lut3", "--group", "0", "--palette", "exact"],
        &["--precision", "lut8", "--palette", "uniform"],
        &[&["--precision", "lut8", "--vector", "2"], &fp16_head[..]].concat(),
        &[&["--precision", "int4"], &fp16_head[..]].concat(),
        &[&["--precision", "int8"], &fp16_head[..]].concat(),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("form{i}");
        made.palettize(&name, form).ok();
        let native = logits(&made.at(&name), &["--exact"]);
        let emulated = logits(&made.at(&name), &["--engine", "emulator", "--profile", "f32"]);
        // Both are f32; only the order of sums differs. The weights' own error is a hundred times and more of that.
        let (same, lost) = (distance(&native, &emulated) / scale, distance(&native, &plain) / scale);
        assert!(same < 1e-4 && lost > 1e-3, "{form:?}: {same} {lost}");
    }
}

#[test]
fn a_candidate_that_fails_is_evidence_and_no_bundle() {
    let made = Made::language();
    let ran = made.palettize("out", &["--precision", "lut2", "--gate", "0.999"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["passed"], false);
    assert!(report["out"].as_str().unwrap().ends_with("out.rejected"));
    assert_eq!(made.entries(), ["out.rejected", "source"]);
    let gate = &read_json(&made.path("out.rejected").join("manifest.json"))["compression"]["gate"];
    assert_eq!(gate["passed"], false);
    assert!(gate["measured"].as_f64().unwrap() < 0.999 && !gate["failures"].as_array().unwrap().is_empty());
    let rejected = made.at("out.rejected");
    let refused = ["rejected candidate", "0.999 was asked for", "more bits"];
    for use_it in [
        &["run", "-p", "x", "--bundle", &rejected][..],
        &["run", "-p", "x", "--model", &rejected],
        &["run", "-p", "x", "--engine", "emulator", "--model", &rejected],
        &["verify", "--engine", "emulator", "--bundle", &rejected],
        &["palettize", "--precision", "lut8", "--bundle", &rejected, "--out", &made.at("x")],
    ] {
        anemone(use_it).fails(1, &refused);
    }
    // The next one takes its place, passes, and leaves nothing behind.
    made.palettize("out", &["--precision", "lut8", "--gate", "0.999"]).ok();
    assert_eq!(made.entries(), ["out", "source"]);
    anemone(&["verify", "-q", "--bundle", &made.at("out"), "--engine", "emulator"]).ok();
    made.palettize("out", &["--precision", "lut8", "--gate", "0.999"])
        .fails(1, &["--out", "exists", "--force"]);
    made.palettize("new", &["--precision", "lut8", "--gate", "1.5"])
        .fails(1, &["--gate 1.5", "from -1 to 1"]);
    // A text of one's own, and a checkpoint to compare with.
    let text = made.path("text");
    std::fs::write(&text, "once upon a time there was a little girl who liked to play in the park").unwrap();
    let flags =
        ["--precision", "int8", "--gate", "0.99", "--gate-input", text.to_str().unwrap(), "--profile", "f32"];
    let report = made.palettize("int8", &flags).json();
    assert_eq!((&report["gate"]["profile"], &report["passed"]), (&json!("f32"), &json!(true)));
}

#[test]
fn decision_models_are_palettized_too() {
    let made = Made::new(&["--decision", "--length", "64"]);
    let report = made.palettize("w8", &["--precision", "lut8", "--gate", "0.02"]).json();
    assert_eq!(report["passed"], true, "{}", report["gate"]);
    assert!(report["gate"]["measured"].as_f64().unwrap() <= 0.02);
    let tensors = report["tensors"].as_array().unwrap();
    let names: Vec<&str> = tensors.iter().map(|t| t["tensor"].as_str().unwrap()).collect();
    assert!(names.contains(&"encoder.layers.0.mlp.Wi.weight") && names.contains(&"scorer.1.weight"));
    assert!(!names.iter().any(|n| n.contains("norm") || n.contains("embed") || n.contains("act_head")));
    anemone(&["validate", "-q", "--bundle", &made.at("w8")]).ok();
    let convert = ["convert", "-q", "--decision", "--length", "64", "--precision", "lut8", "--out"];
    anemone(&[&convert[..], &[&made.at("c8")]].concat()).ok();
    assert_eq!(package_hashes(&made.path("w8")), package_hashes(&made.path("c8")));

    let ran = made.palettize("w1", &["--precision", "lut1", "--gate", "0.02"]);
    assert_eq!(ran.code, Some(1));
    let state = ["-s", "where is it", "-Q", r#"{"a": {"type": "noul", "instructions": "It is late."}}"#];
    let rejected = made.at("w1.rejected");
    for engine in ["cpu", "emulator"] {
        let flags = ["decide", "--engine", engine, "-m", &rejected];
        anemone(&[&flags[..], &state].concat()).fails(1, &["rejected candidate", "0.02 was asked for"]);
    }
    anemone(&["validate", "--bundle", &rejected]).fails(1, &["rejected candidate"]);
}

#[test]
fn selections_and_thresholds_choose_the_weights() {
    let made = Made::language();
    let tensors = |out: &str, flags: &[&str]| -> Vec<String> {
        let report = made.palettize(out, &[&["--precision", "lut8"], flags].concat()).json();
        let rows = report["tensors"].as_array().unwrap();
        rows.iter().map(|t| t["tensor"].as_str().unwrap().to_owned()).collect()
    };
    let found =
        tensors("a", &["--palettize-only", "model.layers.3.*", "--palettize-skip", "*.out_proj.weight"]);
    let path = |name: &str| format!("model.layers.3.{name}.weight");
    assert_eq!(found, ["conv.in_proj", "feed_forward.w1", "feed_forward.w3", "feed_forward.w2"].map(path));
    let large = tensors("b", &["--palettize-threshold", "100000"]);
    // The five inputs of convolutions, 576 × 192, and the head.
    assert!(
        large.len() == 6 && large.iter().all(|n| n.contains("in_proj") || n.contains("embed")),
        "{large:?}"
    );
    let manifest = read_json(&made.path("b").join("manifest.json"));
    assert_eq!(manifest["compression"]["threshold"], 100_000);
    let dense = &manifest["weights"]["model.layers.2.self_attn.k_proj.weight"][0];
    assert!(dense["dtype"] == "fp16" && dense.get("encoding").is_none(), "{dense}");
}

#[test]
fn what_makes_no_sense_is_named_and_leaves_nothing() {
    let made = Made::language();
    let bad = |flags: &[&str], code: i32, parts: &[&str]| made.palettize("x", flags).fails(code, parts);
    bad(&["--precision", "fp16"], 1, &["--precision fp16", "lut8"]);
    bad(&[], 2, &["--precision"]);
    bad(&["--precision", "lut5"], 2, &["--precision"]);
    bad(&["--precision", "int8", "--group", "8"], 1, &["--group is for tables", "int8"]);
    bad(&["--precision", "lut4", "--vector", "3"], 1, &["--vector 3", "1, 2 or 4"]);
    bad(&["--precision", "lut4", "--vector", "2", "--palette", "uniform"], 1, &["--vector 2", "k-means"]);
    bad(
        &["--precision", "lut4", "--group", "1000", "--palettize-only", "nothing.*"],
        1,
        &["--palettize-only nothing.*", "inspect"],
    );
    bad(&["--precision", "lut4", "--group", "-1"], 2, &["--group"]);
    bad(
        &["--precision", "lut4", "--palettize-threshold", "99999999"],
        1,
        &["no weight is compressed", "99999999"],
    );
    bad(&["--precision", "lut4", "--model", "x"], 1, &["--model", "--gate"]);
    bad(&["--precision", "lut4", "--gate-input", "x"], 2, &["--gate"]);
    bad(
        &["--precision", "lut4", "--gate", "0.9", "--gate-input", "none"],
        1,
        &["--gate-input none", "no such file"],
    );
    bad(
        &["--precision", "lut4", "--gate", "0.9", "--model", "./none"],
        1,
        &["--model ./none", "no such file"],
    );
    let convert = |flags: &[&str]| {
        anemone(&[&["convert", "-q", "--out", &made.at("x"), "--ctx", "64"][..], flags].concat())
    };
    convert(&["--group", "8"]).fails(1, &["--group is for tables", "fp16"]);
    convert(&["--palettize-skip", "*"]).fails(1, &["--palettize-skip"]);
    made.palettize("good", &["--precision", "lut8"]).ok();
    let twice = ["palettize", "--bundle", &made.at("good"), "--out", &made.at("x"), "--precision", "lut4"];
    anemone(&twice).fails(1, &["holds weights of precision lut8", "fp16 bundle"]);
    assert_eq!(made.entries(), ["good", "source"]);

    let weights = made.path("source").join("chunk_0.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
    let mut bytes = std::fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    bad(&["--precision", "lut8"], 1, &["chunk_0.mlpackage", "differs from the manifest"]);
    assert_eq!(made.entries(), ["good", "source"]);
}

#[test]
fn damaged_tables_are_told_and_not_run() {
    let made = Made::language();
    made.palettize("a", &["--precision", "lut4"]).ok();
    let path = made.path("a").join("manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let run = || anemone(&["run", "-q", "-n", "1", "-p", "x", "--bundle", &made.at("a")]);
    run().ok();
    for (from, to, parts) in [
        (r#""groups": 6,"#, r#""groups": 5,"#, &["chunk_0.mlpackage", "the record holds"][..]),
        (r#""bits": 4,"#, r#""bits": 77,"#, &["weights.", "impossible"]),
        (r#""dtype": "uint4","#, r#""dtype": "uint5","#, &["weights.", "uint5"]),
        (r#""vector": 1"#, r#""vector": 0"#, &["weights.", "impossible"]),
    ] {
        let at = text.rfind(r#""model.layers.0.conv.out_proj.weight""#).unwrap();
        let (head, tail) = text.split_at(at);
        assert!(tail.contains(from), "{from}");
        std::fs::write(&path, head.to_owned() + &tail.replacen(from, to, 1)).unwrap();
        run().fails(1, parts);
    }
}
