//! `convert`, and running what it made.

use std::process::Stdio;

use serde_json::Value;

use crate::support::{Copy, anemone, command};

#[test]
fn a_bundle_of_the_built_in_model_tells_the_same_story() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("stories.bundle");
    let path = bundle.to_str().unwrap();
    let report =
        anemone(&["convert", "-q", "--out", path, "--ctx", "256", "--prefill", "16", "--json"]).json();
    assert_eq!(report["functions"], serde_json::json!(["decode", "prefill_16"]));
    assert!(report["bundle_bytes"].as_u64().unwrap() > report["weight_bytes"].as_u64().unwrap());
    let text = |model: &[&str]| -> Value {
        let mut args =
            vec!["run", "-q", "--exact", "--greedy", "-n", "40", "-p", "once upon a time", "--json"];
        args.extend(model);
        anemone(&args).json()["text"].clone()
    };
    // The weights are bf16, which fp16 holds exactly unless they are tiny.
    assert_eq!(text(&["--model", path]), text(&[]));
    let again = anemone(&["convert", "-q", "--out", path, "--ctx", "256"]);
    again.fails(1, &["exists", "--force"]);
}

#[test]
fn a_dry_run_writes_nothing_and_bad_plans_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("b");
    let out = out.to_str().unwrap();
    let plan = anemone(&[
        "convert",
        "-q",
        "--out",
        out,
        "--ctx",
        "128",
        "--spec-drafts",
        "4",
        "--dry-run",
        "--json",
    ])
    .json();
    assert_eq!(plan["functions"], serde_json::json!(["decode", "prefill_64", "verify_5"]));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let convert = |extra: &[&str]| anemone(&[&["convert", "-q", "--out", out][..], extra].concat());
    let states = convert(&["--ctx", "100", "--cache", "state", "--dry-run", "--json"]).json();
    let state = serde_json::json!({"name": "cache_0", "layers": [2, 5, 7], "channels": 384, "rows": 128, "ring": false});
    assert_eq!(states["states"], serde_json::json!([[state]]));
    let limits = plan["limits"].as_array().unwrap();
    assert!(
        limits.len() == 1 && limits[0].as_str().unwrap().contains("keep decoding on the CPU"),
        "{limits:?}"
    );
    convert(&["--ctx", "99999"]).fails(1, &["--ctx is 99999", "2048"]);
    convert(&["--ctx", "32", "--prefill", "64"]).fails(1, &["64 tokens", "--ctx 32"]);
    convert(&["--chunk", "0"]).fails(2, &["--chunk"]);
    convert(&["--chunk", "99"]).fails(1, &["--chunk is 99", "8 layers"]);
    convert(&["--ctx", "64", "--spec-drafts", "64"]).fails(1, &["--spec-drafts is 64", "--ctx 64"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_place_where_no_directory_can_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let below = file.join("b");
    let places = [below.to_str().unwrap(), "/proc/b"];
    for place in places.into_iter().take(if cfg!(target_os = "linux") { 2 } else { 1 }) {
        anemone(&["convert", "-q", "--out", place])
            .fails(1, &[&format!("--out {place}"), "no directory can be made at", "choose a place"]);
    }
}

#[test]
fn numbers_that_fp16_cannot_hold_are_named_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("b");
    let fails = |model: &Copy, fragments: &[&str]| {
        anemone(&["convert", "-q", "--model", model.path(), "--out", out.to_str().unwrap()])
            .fails(1, fragments);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{fragments:?}");
    };
    // 2^16 in bf16.
    let table = Copy::new().with("model.embed_tokens.weight", 200_000, 0x4780);
    fails(&table, &["element 200000 of `model.embed_tokens.weight`, 6.5536e4, is beyond fp16", "CPU engine"]);
    let layer = Copy::new().with("model.layers.3.feed_forward.w2.weight", 700, 0x4780);
    fails(&layer, &["element 700 of `model.layers.3.feed_forward.w2.weight`", "is beyond fp16"]);
    let nan = Copy::new().with_nan("model.layers.0.ffn_norm.weight");
    fails(&nan, &["element 0 of `model.layers.0.ffn_norm.weight`, NaN, is no number", "download or export"]);
}

#[test]
fn a_tokenizer_that_is_broken_is_refused_and_one_that_is_absent_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("b");
    let convert = |model: &Copy| {
        anemone(&["convert", "--model", model.path(), "--out", out.to_str().unwrap(), "--decode-only"])
    };
    convert(&Copy::new().replace("tokenizer.json", "{", "[")).fails(1, &["tokenizer.json", "download"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let ran = convert(&Copy::new().without("tokenizer.json"));
    assert!(ran.code == Some(0) && ran.stderr.contains("no tokenizer.json"), "{ran:?}");
    anemone(&["forward", "-q", "--bundle", out.to_str().unwrap(), "--tokens", "1,5"]).ok();
}

#[test]
fn two_conversions_are_byte_identical_and_inspect_verifies_them() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    for name in ["a", "b"] {
        anemone(&[
            "convert",
            "-q",
            "--out",
            &place(name),
            "--ctx",
            "64",
            "--prefill",
            "8",
            "--spec-drafts",
            "3",
        ])
        .ok();
    }
    let bytes = |name: &str, file: &str| std::fs::read(dir.path().join(name).join(file)).unwrap();
    // The manifest holds a hash of everything else.
    assert_eq!(bytes("a", "manifest.json"), bytes("b", "manifest.json"));
    let report = anemone(&["inspect", "--bundle", &place("a"), "--verify-hash", "--json"]).json();
    let bundle = &report["bundle"];
    assert_eq!((&report["model_type"], &bundle["hashes_verified"]), (&"lfm2".into(), &true.into()));
    let chunk = &bundle["packages"][0];
    let names: Vec<_> =
        chunk["functions"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["decode", "prefill_8", "verify_4"]);
    assert_eq!(chunk["weight_bytes"], chunk["shared_weight_bytes"], "every function uses every weight");
    let decode = &chunk["functions"][0];
    assert_eq!((&decode["inputs"][0]["name"], &decode["op_counts"]["conv"]), (&"hidden".into(), &46.into()));

    let package = format!("{}/head_0.mlpackage", place("a"));
    let alone = anemone(&["inspect", "--model", &package, "--json"]).json();
    assert_eq!(alone["packages"][0], bundle["packages"][1]);
    let mil = anemone(&["inspect", "--model", &package, "--mil"]).ok().stdout;
    assert!(mil.contains("func decode(hidden: tensor<fp16, [1, 192, 1, 1]>)"), "{mil}");

    // One flipped bit in the middle of the weights.
    let weights = dir.path().join("b/chunk_0.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
    let mut damaged = std::fs::read(&weights).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&weights, damaged).unwrap();
    anemone(&["inspect", "--model", &place("b"), "--verify-hash"])
        .fails(1, &["chunk_0.mlpackage differs from the manifest", "convert the model again"]);
    let table = dir.path().join("a/embedding.f16");
    let mut damaged = std::fs::read(&table).unwrap();
    damaged[1000] ^= 1;
    std::fs::write(&table, damaged).unwrap();
    anemone(&["inspect", "--model", &place("a"), "--verify-hash"])
        .fails(1, &["embedding.f16 differs from the manifest", "convert the model again"]);
    anemone(&["inspect", "--model", &package, "--verify-hash"])
        .fails(1, &["--verify-hash", "pass the bundle"]);
    anemone(&["inspect", "--mil"]).fails(1, &["--mil", "the built-in model is not", "convert"]);
    anemone(&["inspect", "--mil", "--model", "/no/such"]).fails(1, &["/no/such is not a bundle"]);
}

#[test]
fn a_killed_conversion_leaves_nothing_that_loads() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("killed");
    let path = out.to_str().unwrap();
    let mut killed = 0;
    for round in 0..10u64 {
        let _ = std::fs::remove_dir_all(&out);
        let mut child = command(&["convert", "-q", "--out", path, "--prefill", "32", "--prefill", "64"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // From before the first file to about the end.
        std::thread::sleep(std::time::Duration::from_millis(3 + round * 37 % 97));
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            continue;
        }
        if out.exists() {
            // Killed between the rename and its end: all of it is there.
            anemone(&["inspect", "--bundle", path, "--verify-hash"]).ok();
            continue;
        }
        killed += 1;
        anemone(&["inspect", "--model", path]).fails(1, &["no such file"]);
    }
    assert!(killed > 0, "every conversion ended before it was killed");
    // The next one clears up and succeeds.
    let _ = std::fs::remove_dir_all(&out);
    anemone(&["convert", "-q", "--out", path]).ok();
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["killed"]);
}
