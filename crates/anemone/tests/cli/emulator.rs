//! Bundles behind the commands that run models, on the emulator.

use std::path::Path;

use anemone_tensor::{cosine, max_abs_diff};

use crate::support::{anemone, anemone_with, assets, ids, numbers};

/// A bundle of the built-in model in a directory that lives as long as the first.
pub(crate) fn bundle(options: &[&str]) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stories.bundle").to_str().unwrap().to_owned();
    anemone(&[&["convert", "-q", "--out", &path, "--ctx", "256"][..], options].concat()).ok();
    (dir, path)
}

fn floats(value: &serde_json::Value) -> Vec<f32> {
    numbers(value).into_iter().map(|v| v as f32).collect()
}

#[test]
fn the_emulator_tells_the_story_of_the_cpu_engine() {
    let (_dir, path) = bundle(&["--prefill", "16", "--spec-drafts", "4"]);
    let tell = |more: &[&str]| {
        let args = ["run", "-q", "--greedy", "-n", "60", "--chat", "-p", "tell me a story.", "--json"];
        anemone(&[&args[..], &["--bundle", &path], more].concat()).json()
    };
    let expected = tell(&["--engine", "cpu", "--exact"]);
    for (more, arithmetic) in
        [(&[][..], "fp16"), (&["--profile", "f32"][..], "f32"), (&["--exact"][..], "f32")]
    {
        let found = tell(&[&["--engine", "emulator"], more].concat());
        assert_eq!((&found["text"], &found["token_ids"]), (&expected["text"], &expected["token_ids"]));
        assert_eq!((&found["engine"], &found["arithmetic"]), (&"emulator".into(), &arithmetic.into()));
        assert_eq!(found["usage"], expected["usage"]);
    }
    assert_eq!(expected["engine"], "cpu");
}

#[test]
fn a_chat_on_the_emulator_computes_only_what_is_new() {
    let (dir, path) = bundle(&["--prefill", "16"]);
    let saved = dir.path().join("chat.json");
    let saved = saved.to_str().unwrap();
    let lines =
        format!("tell me a story about a cat.\n/save {saved}\nand a dog?\n/load {saved}\nand a bird?\n");
    let chat = |engine: &[&str]| -> Vec<serde_json::Value> {
        let args = ["chat", "-q", "--greedy", "-n", "12", "--json-lines", "--bundle", &path];
        let ran = anemone_with(lines.as_bytes(), &[&args[..], engine].concat()).ok();
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (emulated, native) = (chat(&["--engine", "emulator"]), chat(&["--exact"]));
    assert_eq!(emulated.len(), 3);
    for (found, expected) in emulated.iter().zip(&native) {
        assert_eq!(found["token_ids"], expected["token_ids"]);
    }
    let cached = |turn: &serde_json::Value| turn["usage"]["cached_tokens"].as_u64().unwrap();
    let first_prompt = emulated[0]["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(cached(&emulated[0]), 0);
    assert!(cached(&emulated[1]) >= first_prompt, "{}", emulated[1]);
    // Back in the history: the end of the first prompt is the nearest place that is kept.
    assert_eq!(cached(&emulated[2]), first_prompt, "{}", emulated[2]);
}

#[test]
fn forward_shows_the_same_inside_on_both_engines() {
    let (dir, path) = bundle(&["--prefill", "16", "--chunk", "3", "--head-chunks", "2"]);
    let out = dir.path().join("states.safetensors");
    let forward = |more: &[&str]| {
        let args =
            ["forward", "--text", "once upon a time, there was a little fox and a bear", "--json", "--taps"];
        anemone(&[&args[..], &["--greedy", "6", "--bundle", &path], more].concat()).json()
    };
    let expected = forward(&["--exact"]);
    for (profile, least) in [("f32", 0.999_999), ("fp16", 0.9999)] {
        let found = forward(&["--engine", "emulator", "--profile", profile, "--out", out.to_str().unwrap()]);
        assert_eq!(found["greedy_ids"], expected["greedy_ids"]);
        assert_eq!(found["argmax"], expected["argmax"]);
        let (a, b) = (floats(&found["last_logits"]), floats(&expected["last_logits"]));
        assert!(cosine(&a, &b) >= least && (profile != "f32" || max_abs_diff(&a, &b) < 2e-3));
        let (found, expected) =
            (found["layers"].as_object().unwrap(), expected["layers"].as_object().unwrap());
        assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
        for (path, values) in expected {
            let similar = cosine(&floats(&found[path]), &floats(values));
            assert!(similar >= least, "{profile} {path}: {similar}");
        }
        let bytes = std::fs::read(&out).unwrap();
        let states = anemone_checkpoint::parse_safetensors(bytes.into()).unwrap();
        assert_eq!(states.tensors().len(), 1 + 10);
    }
}

#[test]
fn perplexity_and_bench_run_on_the_emulator() {
    let (dir, path) = bundle(&["--prefill", "32"]);
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "once upon a time there was a fox. it lived in a forest with a bear.").unwrap();
    let perplexity = |more: &[&str]| {
        let args = ["perplexity", "-q", "--window", "64", "--json", "--bundle", &path, "--file"];
        anemone(&[&args[..], &[text.to_str().unwrap()], more].concat()).json()
    };
    let (found, expected) = (perplexity(&["--engine", "emulator"]), perplexity(&["--exact"]));
    let of = |report: &serde_json::Value| report["perplexity"].as_f64().unwrap();
    assert!((of(&found) / of(&expected) - 1.0).abs() < 5e-3, "{found} {expected}");
    assert_eq!((&found["engine"], &found["arithmetic"]), (&"emulator".into(), &"fp16".into()));
    let args =
        ["bench", "--bundle", &path, "--engine", "emulator", "--pp", "40", "--tg", "4", "--depth", "5"];
    let bench = anemone(&[&args[..], &["--repeat", "2", "--probe-mib", "0", "--json"]].concat()).json();
    assert_eq!(bench["engine"], "emulator");
    assert!(bench["pp"]["mean"].as_f64().unwrap() > 0.0 && bench["tg"]["mean"].as_f64().unwrap() > 0.0);
    assert!(bench["bytes_per_token"].as_u64().unwrap() > 7_000_000);
}

#[test]
fn what_a_bundle_or_an_engine_cannot_do_is_said_with_the_remedy() {
    let (_dir, path) = bundle(&["--prefill-only", "--prefill", "16"]);
    let run = |more: &[&str]| anemone(&[&["run", "-p", "once upon", "-n", "2"][..], more].concat());
    let emulator = ["--engine", "emulator"];
    run(&[&emulator[..], &["--bundle", &path]].concat())
        .fails(1, &["`decode`", "prefill_16", "--prefill-only"]);
    let bench = anemone(&["bench", "--bundle", &path, "--engine", "emulator", "--pp", "4", "--tg", "4"]);
    bench.fails(1, &["`decode`", "--prefill-only"]);
    // Logits of a prompt need no decoding.
    let forward =
        |more: &[&str]| anemone(&[&["forward", "--text", "once upon", "--json"][..], more].concat()).json();
    let found = forward(&["--bundle", &path, "--engine", "emulator"]);
    assert_eq!(ids(&found["argmax"]), ids(&forward(&["--exact"])["argmax"]));

    let (_dir, path) = bundle(&["--decode-only"]);
    let ran = run(&[&emulator[..], &["--bundle", &path, "--greedy"]].concat()).ok();
    assert!(ran.stderr.contains("token by token; convert without --decode-only"), "{}", ran.stderr);
    assert_eq!(ran.stdout, run(&["--exact", "--greedy"]).ok().stdout);

    let over = |more: &[&str]| run(&[&["--bundle", &path][..], more].concat());
    over(&["--engine", "emulator", "--ctx", "300"]).fails(1, &["--ctx 300", "converted for 256", "--ctx"]);
    let long = "once upon a time ".repeat(80);
    let ran = anemone(&["run", "-q", "--engine", "emulator", "--bundle", &path, "-p", &long]);
    ran.fails(1, &["the bundle holds 256", "shorten it or convert with --ctx"]);
    let ran = anemone(&["forward", "--engine", "emulator", "--bundle", &path, "--text", &long]);
    ran.fails(1, &["--text", "context of 256", "convert with a larger --ctx"]);
    over(&["-q", "--engine", "emulator", "--ctx", "1"]).fails(1, &["holds 1", "raise --ctx"]);
    over(&["--profile", "fp16"]).fails(1, &["--profile", "add --engine emulator"]);
    over(&["--engine", "emulator", "--profile", "fp16", "--exact"])
        .fails(1, &["--exact", "--profile", "leave one"]);
    over(&["--engine", "emulator", "--layout", "packed"]).fails(1, &["--layout", "--engine cpu"]);
    over(&["--engine", "emulator", "--chunk", "8"]).fails(1, &["--chunk", "leave it out"]);
    over(&["--engine", "coreml"]).fails(1, &["--engine coreml", "--engine emulator"]);
    over(&["--engine", "emulator", "--profile", "f64"])
        .fails(2, &["--profile", "`f64` is none of f32, fp16, m1, m4"]);
    over(&["--engine", "emulator", "--profile", "m4,-drop"])
        .fails(2, &["--profile", "`drop` is no effect", "product-drop"]);
    over(&["--engine", "emulator", "--profile", "no/such.toml"]).fails(2, &["--profile", "no/such.toml: "]);
    over(&["--engine", "emulator", "--profile", "m4", "--exact"])
        .fails(1, &["--exact", "--profile for m4", "leave one"]);
    over(&["--model", "x"]).fails(2, &["--bundle", "--model"]);
    let assets = assets();
    let assets = assets.to_str().unwrap();
    run(&["--bundle", assets]).fails(1, &["--bundle", "manifest.json"]);
    run(&["--engine", "emulator", "--model", assets]).fails(1, &["is none", "anemone convert", "--bundle"]);
    run(&["--engine", "emulator", "--model", "org/name"]).fails(1, &["org/name", "anemone convert"]);
    assert!(Path::new(&path).is_dir());
}
