//! `convert` of decision models, and deciding with what it made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{anemone, assets, shared};

/// Every file below a directory, by path.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_path_buf(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn probabilities(result: &Value) -> Vec<f64> {
    let mut all: Vec<f64> = result["answers"]["intent"]["probabilities"]
        .as_object()
        .unwrap()
        .values()
        .map(|v| v.as_f64().unwrap())
        .collect();
    all.push(result["answers"]["abroad"]["noul"].as_f64().unwrap());
    all
}

#[test]
fn the_built_in_decision_model_as_a_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let convert = |name: &str| anemone(&["convert", "-q", "--decision", "--out", &at(name), "--json"]).json();
    let report = convert("a");
    let lengths: Vec<&Value> = report["functions"].as_array().unwrap().iter().map(|f| &f["length"]).collect();
    assert_eq!(lengths, [64, 96, 128]);
    assert!(report["bundle_bytes"].as_u64().unwrap() > report["weight_bytes"].as_u64().unwrap());
    convert("b");
    assert_eq!(files(&dir.path().join("a")), files(&dir.path().join("b")), "the same bytes twice");
    anemone(&["convert", "-q", "--decision", "--out", &at("a")]).fails(1, &["exists", "--force"]);

    let questions = r#"{"intent": {"type": "choice", "instructions": "What does the user want?",
        "criteria": ["travel notification", "report a lost card", "directions"]},
        "abroad": {"type": "noul", "instructions": "The user's intent is travel notification."}}"#;
    let decide = |extra: &[&str]| {
        let state = "please notify my bank that i am going to africa";
        anemone(&[&["decide", "-q", "--json", "-s", state, "-Q", questions][..], extra].concat())
    };
    let native = decide(&[]).json();
    let bundle = at("a");
    // The weights come back as they were.
    assert_eq!(decide(&["-m", &bundle]).json(), native);
    for (profile, bound) in [("f32", 1e-3), ("fp16", 0.02)] {
        let found = decide(&["-m", &bundle, "--engine", "emulator", "--profile", profile]).json();
        assert_eq!(found["usage"], native["usage"]);
        assert_eq!(found["answers"]["intent"]["choice"], native["answers"]["intent"]["choice"]);
        let pairs = probabilities(&found).into_iter().zip(probabilities(&native));
        // f32 keeps the fp16 of rotary tables; fp16 is the bar of a conversion.
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() <= bound), "{profile}: {pairs:?}");
    }
    decide(&["--engine", "emulator"]).fails(1, &["runs bundles", "convert --decision"]);
    decide(&["-m", &bundle, "--profile", "f32"]).fails(1, &["--profile", "--engine emulator"]);
    decide(&["-m", &bundle, "--engine", "emulator", "--bf16"]).fails(1, &["--bf16", "--engine cpu"]);
    let long = "where is my parcel ".repeat(60);
    let ask = |extra: &[&str]| {
        anemone(
            &[
                &[
                    "decide", "-q", "--json", "-m", &bundle, "--engine", "emulator", "-s", &long, "-Q",
                    questions,
                ],
                extra,
            ]
            .concat(),
        )
    };
    ask(&[]).fails(1, &["question 'intent'", "holds 128", "--length", "--max-len 128"]);
    assert_eq!(ask(&["--max-len", "128"]).json()["usage"]["truncated"], true);
    let many: Vec<String> = (0..33).map(|i| format!("\"{i}\"")).collect();
    let many =
        format!(r#"{{"q": {{"type": "choice", "instructions": "?", "criteria": [{}]}}}}"#, many.join(","));
    anemone(&["decide", "-q", "-m", &bundle, "--engine", "emulator", "-s", "x", "-Q", &many])
        .fails(1, &["question 'q'", "33 options", "hold 32"]);
    anemone(&["run", "-q", "-p", "x", "-m", &bundle]).fails(1, &["a decision model", "`decide`"]);

    // A changed byte is found before anything runs.
    let config = dir.path().join("b/rl_agent_config.json");
    let text = std::fs::read_to_string(&config).unwrap().replace("1.243", "1.343");
    std::fs::write(&config, text).unwrap();
    decide(&["-m", &at("b"), "--engine", "emulator"]).fails(1, &["rl_agent_config.json", "hash"]);
    let weights = dir.path().join("a/body.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    decide(&["-m", &bundle, "--engine", "emulator"]).fails(1, &["body.mlpackage", "hash"]);
    decide(&["-m", &bundle]).fails(1, &["body.mlpackage", "hash"]);
    decide(&["-m", &format!("x={bundle}"), "-m", &format!("y={bundle}")]).fails(1, &["hash"]);
}

#[test]
fn questions_share_rows() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let convert = |out: &str, extra: &[&str]| {
        let base =
            ["convert", "-q", "--decision", "--out", out, "--length", "64", "--length", "128", "--json"];
        anemone(&[&base[..], extra].concat()).json()
    };
    let (plain, packing) = (convert(&at("plain"), &[]), convert(&at("packing"), &["--pack"]));
    assert_eq!(packing["functions"][1]["packed"]["name"], "L128_packed");
    assert_eq!(plain["functions"][1]["packed"], Value::Null);
    // The weights are stored once; what is more is the program's text.
    assert_eq!(packing["weight_bytes"], plain["weight_bytes"]);
    let line = r#"{"state": "where is my parcel", "questions": {
        "topic": {"type": "choice", "instructions": "What is it about?", "criteria": ["a parcel", "money"]},
        "mood": {"type": "score", "instructions": "How angry is the sender?", "criteria": ["calm", "furious"]},
        "late": {"type": "noul", "instructions": "Is something late?"}}}"#;
    let lines = at("lines.jsonl");
    std::fs::write(&lines, format!("{}\n", line.replace('\n', " ")).repeat(2)).unwrap();
    let decide = |model: &str, extra: &[&str]| {
        let base = ["decide", "-q", "-m", model, "--batch", &lines, "--engine", "emulator", "--raw"];
        anemone(&[&base[..], extra].concat())
    };
    let rows = |extra: &[&str]| decide(&at("packing"), extra).ok().stdout;
    // Not a bit of a score differs.
    assert_eq!(rows(&["--profile", "f32", "--pack"]), rows(&["--profile", "f32"]));
    assert_eq!(rows(&["--pack"]), rows(&[]));
    decide(&at("plain"), &["--pack"]).fails(1, &["no functions for several questions", "convert", "--pack"]);
    anemone(&["decide", "-q", "--pack"]).fails(1, &["--pack", "without padding", "--engine emulator"]);
    anemone(&["convert", "-q", "--out", &at("c"), "--pack"]).fails(1, &["--pack is for decision models"]);
}

#[test]
fn plans_and_mistakes() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("b");
    let out = out.to_str().unwrap();
    let convert = |extra: &[&str]| anemone(&[&["convert", "-q", "--out", out][..], extra].concat());
    let plan = convert(&[
        "--decision",
        "--length",
        "512",
        "--attention",
        "tiled",
        "--tile",
        "64",
        "--dry-run",
        "--json",
    ])
    .json();
    let attention = &plan["functions"][0]["attention_multiply_adds"];
    // Two full layers and two of the head see 512 keys, four with a window up to 192.
    let full = 4 * 512 * 512;
    let tiles = 4 * 64 * (6 * 192 + 2 * 128);
    assert_eq!(
        *attention,
        json!({"dense": 2 * 192 * (full + 4 * 512 * 512), "tiled": 2 * 192 * (full + tiles)})
    );
    assert_eq!((&plan["tile"], &plan["out"]), (&json!(64), &Value::Null));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let shown = convert(&["--decision", "--dry-run"]).ok().stdout;
    assert!(shown.contains("L64: 64 tokens, ") && shown.contains("nothing was written"), "{shown}");

    convert(&["--decision", "--ctx", "2048"]).fails(1, &["--ctx is for language models"]);
    convert(&["--decision", "--silu", "exact"]).fails(1, &["--silu is for language models"]);
    convert(&["--length", "64"]).fails(1, &["--length is for decision models", "--decision"]);
    convert(&["-m", assets().to_str().unwrap(), "--decision"])
        .fails(1, &["--decision is for decision models"]);
    convert(&["--decision", "--tile", "64"]).fails(1, &["--tile", "--attention tiled"]);
    convert(&["--decision", "--length", "16"]).fails(1, &["--length is 16", "32"]);
    convert(&["--decision", "--length", "64", "--length", "64"]).fails(1, &["--length asks for 64 twice"]);
    convert(&["--decision", "--attention", "tiled", "--tile", "0"]).fails(1, &["--tile is 0"]);
    let Some(tiny) = shared("fixtures/laya-tiny/english") else { return };
    let copy = dir.path().join("parallel");
    for name in ["encoder", "tokenizer"] {
        std::fs::create_dir_all(copy.join(name)).unwrap();
    }
    for (name, bytes) in files(&tiny) {
        std::fs::write(copy.join(name), bytes).unwrap();
    }
    let config = copy.join("rl_agent_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replacen('{', r#"{"option_layout": "parallel","#, 1)).unwrap();
    convert(&["-m", copy.to_str().unwrap()]).fails(1, &["`option_layout` is `parallel`", "decide"]);
}
