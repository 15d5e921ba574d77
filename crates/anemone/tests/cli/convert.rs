//! `convert`, and running what it made.

use serde_json::Value;

use crate::support::anemone;

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
    convert(&["--ctx", "99999"]).fails(1, &["--ctx is 99999", "2048"]);
    convert(&["--ctx", "32", "--prefill", "64"]).fails(1, &["64 tokens", "--ctx 32"]);
    convert(&["--precision", "lut4"]).fails(1, &["--precision", "fp16"]);
    convert(&["--chunk", "0"]).fails(2, &["--chunk"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
