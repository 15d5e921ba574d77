//! `--calibrate`, mixed bits and `palettize --measure`.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{Ran, anemone, read_json};

const STORIES: &str = "Once upon a time there was a little girl named Lily. She had a red ball and played with it every day. One day \
    the ball rolled into the woods, and Lily ran after it. She met a small dog who held the ball in his mouth. \"Can I have my \
    ball, please?\" she asked. The dog wagged his tail and gave it back. They played all day and became good friends. ";

const HELD_OUT: &str = "Tom and his mom went to the park. Tom saw a big tree and wanted to climb it. \"Be careful,\" said his mom. He \
    climbed up and up until he could see the whole town. Then he was scared and began to cry. His mom helped him down and gave \
    him a hug. Tom was happy again and they went home to eat cake.";

/// A bundle of a built-in model beside what it is calibrated with.
struct Made(tempfile::TempDir);

impl Made {
    fn new(flags: &[&str]) -> Self {
        let made = Self(tempfile::tempdir().unwrap());
        anemone(&[&["convert", "-q", "--out", &made.at("source")][..], flags].concat()).ok();
        made
    }

    fn language() -> Self {
        let made = Self::new(&["--ctx", "192", "--prefill", "16"]);
        std::fs::write(made.path("cal.txt"), STORIES.repeat(2)).unwrap();
        std::fs::write(made.path("held.jsonl"), json!({"text": HELD_OUT}).to_string()).unwrap();
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn palettize(&self, out: &str, flags: &[&str]) -> Ran {
        let flags: Vec<String> = flags
            .iter()
            .map(|f| {
                if f.contains('.') && !f.starts_with("--") && self.path(f).exists() {
                    self.at(f)
                } else {
                    (*f).into()
                }
            })
            .collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let (source, out) = (self.at("source"), self.at(out));
        anemone(&[&["palettize", "-q", "--json", "--bundle", &source, "--out", &out][..], &flags].concat())
    }
}

fn kl(report: &Value) -> f64 {
    report["measured"]["kl"].as_f64().unwrap()
}

#[test]
fn outputs_stay_nearer_with_feedback() {
    let made = Made::language();
    let measure = ["--precision", "lut4", "--measure", "held.jsonl"];
    let plain = made.palettize("plain", &measure).json();
    let flags = [&measure[..], &["--calibrate", "cal.txt"]].concat();
    let with = made.palettize("with", &flags).json();
    let without = made.palettize("without", &[&flags[..], &["--no-feedback"]].concat()).json();
    // Measured: 0.036 instead of 0.043 after only 200 tokens; the weights themselves are farther off for it.
    assert!(kl(&with) < 0.95 * kl(&plain), "{} {}", with["measured"], plain["measured"]);
    assert!(kl(&with) < kl(&without));
    let error = |report: &Value| report["compression"]["mean_rel_rmse"].as_f64().unwrap();
    assert!(error(&with) > error(&plain));
    let measured = &with["measured"];
    assert!(measured["cosine"].as_f64().unwrap() > 0.99 && measured["least_cosine"].as_f64().unwrap() > 0.5);
    assert!(
        measured["perplexity"].as_f64().unwrap() >= 0.9 * measured["reference_perplexity"].as_f64().unwrap()
    );

    let calibration = &read_json(&made.path("with").join("manifest.json"))["compression"]["calibration"];
    assert_eq!(calibration["feedback"], true);
    assert_eq!(calibration["sha256"].as_str().unwrap().len(), 64);
    assert!(calibration["tokens"].as_u64().unwrap() > 200);
    let record = &read_json(&made.path("without").join("manifest.json"))["compression"]["calibration"];
    assert_eq!(record["feedback"], false);
    // Neither threads nor a second run change anything.
    made.palettize("again", &[&flags[..], &["--threads", "1"]].concat()).ok();
    anemone(&[
        "convert",
        "-q",
        "--ctx",
        "192",
        "--prefill",
        "16",
        "--precision",
        "lut4",
        "--calibrate",
        &made.at("cal.txt"),
        "--out",
        &made.at("converted"),
    ])
    .ok();
    let hashes = |name: &str| -> Value {
        let manifest = read_json(&made.path(name).join("manifest.json"));
        manifest["packages"].as_array().unwrap().iter().map(|p| p["hash"].clone()).collect()
    };
    assert_eq!(hashes("with"), hashes("again"));
    // The checkpoint is bf16, a few of whose numbers fp16 has not; so only the record is the same.
    let record =
        |name: &str| read_json(&made.path(name).join("manifest.json"))["compression"]["calibration"].clone();
    assert_eq!(record("with"), record("converted"));
    assert!(hashes("with") != hashes("without"));
    anemone(&["verify", "-q", "--bundle", &made.at("with"), "--engine", "emulator", "--min-cos", "0.5"]).ok();
}

#[test]
fn mixed_bits_go_where_they_count() {
    let made = Made::language();
    // Each weight is tried alone, so a layer is enough.
    let common = ["--measure", "held.jsonl", "--palettize-only", "model.layers.2.*"];
    let plain = made.palettize("plain", &[&common[..], &["--precision", "lut4"]].concat()).json();
    let flags = ["--precision", "mixed", "--mixed", "4.3bits", "--calibrate", "cal.txt"];
    let mixed = made.palettize("mixed", &[&common[..], &flags].concat()).json();
    let (elements, bytes) = (&mixed["compression"]["elements"], &mixed["compression"]["bytes"]);
    let bits = 8.0 * bytes.as_f64().unwrap() / elements.as_f64().unwrap();
    assert!(bits <= 4.3 && bits > 4.2, "{bits}");
    let mut kinds: Vec<u64> =
        mixed["tensors"].as_array().unwrap().iter().map(|t| t["bits"].as_u64().unwrap()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert!(kinds.len() > 2, "{kinds:?}");
    // Measured: less than half; which weights gain most differs with the text.
    assert!(kl(&mixed) < 0.7 * kl(&plain), "{} {}", mixed["measured"], plain["measured"]);
    let goal = &read_json(&made.path("mixed").join("manifest.json"))["compression"]["calibration"]["goal"];
    assert_eq!(goal, "4.3 bits a weight");
}

#[test]
fn decision_models_are_calibrated_by_rows() {
    let made = Made::new(&["--decision", "--length", "64"]);
    let question = json!({"type": "choice", "instructions": "What is it about?", "criteria": ["a card", "a train", "the weather"]});
    let states = [
        "my card was stolen",
        "the train is late again",
        "will it rain tomorrow",
        "I lost my card",
        "no train today",
    ];
    let rows = |states: &[&str]| {
        let rows = states.iter().map(|state| json!({"state": state, "question": question}).to_string());
        rows.collect::<Vec<_>>().join("\n")
    };
    std::fs::write(made.path("cal.jsonl"), rows(&states)).unwrap();
    std::fs::write(made.path("held.jsonl"), rows(&["where is my new card", "it is cold and wet"])).unwrap();
    let flags = ["--precision", "lut3", "--measure", "held.jsonl"];
    let plain = made.palettize("plain", &flags).json();
    let with = made.palettize("with", &[&flags[..], &["--calibrate", "cal.jsonl"]].concat()).json();
    assert!(kl(&with) < kl(&plain), "{} {}", with["measured"], plain["measured"]);
    assert!(with["measured"]["max_probability_error"].as_f64().unwrap() < 0.5);
    let flags = ["--precision", "mixed", "--min-cos", "0.99", "--calibrate", "cal.jsonl"];
    made.palettize("mixed", &flags).fails(1, &["--min-cos 0.99", "is for language models", "--mixed"]);
    let flags = ["--precision", "lut3", "--calibrate", "cal.jsonl", "--calibrate-tokens", "9"];
    made.palettize("mixed", &flags).fails(1, &["--calibrate-tokens is for language models", "leave it out"]);
    assert!(!made.path("mixed").exists());
}

#[test]
fn what_makes_no_sense_is_named() {
    let made = Made::language();
    std::fs::write(made.path("empty.txt"), "").unwrap();
    std::fs::write(made.path("bad.jsonl"), "{\"text\": \"fine\"}\n{\"state\": 1}\n").unwrap();
    let lut = ["--precision", "lut4"];
    let mixed = ["--precision", "mixed", "--calibrate", "cal.txt", "--palettize-only", "*layers.2.*q_proj*"];
    std::fs::write(made.path("cut.jsonl"), "{\"text\": \"fine\"}\n{\"text\": \n").unwrap();
    let cases: [(Vec<&str>, i32, &[&str]); 15] = [
        (["--precision", "mixed"].into(), 1, &["--precision mixed", "--mixed 4.5bits"]),
        ([&mixed[..], &["--mixed", "many"]].concat(), 2, &["--mixed", "4.5bits"]),
        ([&mixed[..], &["--mixed", "1K"]].concat(), 1, &["1000 bytes are too few", "allow more"]),
        ([&mixed[..], &["--min-cos", "1.5"]].concat(), 2, &["--min-cos", "below 1"]),
        (
            [&lut[..], &["--calibrate", "cal.txt", "--mixed", "4bits"]].concat(),
            1,
            &["--mixed is for --precision mixed"],
        ),
        ([&lut[..], &["--no-feedback"]].concat(), 2, &["--calibrate"]),
        (
            [&lut[..], &["--calibrate", "absent.txt"]].concat(),
            1,
            &["error: --calibrate absent.txt: cannot open it"],
        ),
        (
            [&lut[..], &["--calibrate", "bad.jsonl"]].concat(),
            1,
            &["--calibrate", "bad.jsonl", "line 2", "text"],
        ),
        (
            [&lut[..], &["--calibrate", "cut.jsonl"]].concat(),
            1,
            &["cut.jsonl, line 2: not JSON at column 9", "\"text\""],
        ),
        (
            [&lut[..], &["--calibrate", "empty.txt"]].concat(),
            1,
            &["--calibrate", "empty.txt: there is no text"],
        ),
        ([&lut[..], &["--measure", "empty.txt"]].concat(), 1, &["--measure", "empty.txt: there is no text"]),
        (
            [&lut[..], &["--gate", "0.5", "--gate-input", "empty.txt"]].concat(),
            1,
            &["--gate-input", "empty.txt: there is no text"],
        ),
        ([&mixed[..], &["--mixed", "4bits", "--vector", "2"]].concat(), 1, &["--vector 2", "mixed"]),
        ([&lut[..], &["--measure", "absent.txt"]].concat(), 1, &["--measure absent.txt"]),
        (
            [&mixed[..], &["--mixed", "4bits", "--palettize-skip", "nope"]].concat(),
            1,
            &["--palettize-skip nope"],
        ),
    ];
    for (flags, code, expected) in cases {
        made.palettize("out", &flags).fails(code, expected);
        // What cannot be used is found before the work.
        assert!(!made.path("out").exists() && !made.path("out.rejected").exists(), "{flags:?}");
    }
    let source = made.at("source");
    for out in [source.clone(), made.at("source/within")] {
        anemone(&["palettize", "--bundle", &source, "--out", &out, "--precision", "lut4", "--force"])
            .fails(1, &["this is the bundle that is read", "another place"]);
    }
    anemone(&["verify", "--bundle", &source, "--engine", "emulator", "--text", &made.at("empty.txt")])
        .fails(1, &["--text", "there is no text"]);
    anemone(&["convert", "-q", "--out", &made.at("out"), "--calibrate", &made.at("cal.txt")])
        .fails(1, &["--calibrate is for --scales and for tables", "--precision lut6"]);
}
