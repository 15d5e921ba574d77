use crate::support::{anemone, anemone_with, command, shared};

const COMMANDS: [&str; 12] = [
    "run",
    "chat",
    "forward",
    "inspect",
    "bench",
    "perplexity",
    "convert",
    "validate",
    "probe",
    "doctor",
    "completions",
    "man",
];

#[test]
fn help_shows_an_example() {
    for name in COMMANDS {
        let ran = anemone(&[name, "--help"]).ok();
        assert!(ran.stdout.contains(&format!("Example:\n  anemone {name}")), "{}", ran.stdout);
        assert_eq!(ran.stderr, "");
    }
    let top = anemone(&["--help"]).ok().stdout;
    assert!(COMMANDS.iter().all(|name| top.contains(&format!("\n  {name}"))), "{top}");
}

#[test]
fn the_version_names_the_instruction_set() {
    let version = anemone(&["--version"]).ok().stdout;
    let level = anemone_kernels::Level::best().name();
    assert_eq!(version, format!("anemone {} ({level})\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn inspect_shows_the_architecture() {
    let report = anemone(&["inspect", "--json", "--tensors", "--check"]).json();
    assert_eq!(report["model_type"], "lfm2");
    assert_eq!(report["parameters"], 3_791_232);
    let layers = report["layers"].as_array().unwrap();
    let kinds: Vec<&str> = layers.iter().map(|l| l["mixer"].as_str().unwrap()).collect();
    let (a, c) = ("attention", "short_conv");
    assert_eq!(kinds, [c, c, a, c, c, a, c, a]);
    assert_eq!((layers[2]["heads"].as_u64(), layers[2]["kv_heads"].as_u64()), (Some(3), Some(1)));
    assert_eq!(layers[0]["ffn_width"], 512);
    let tensors = report["tensors"].as_array().unwrap();
    let bytes: u64 = tensors.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 2 * 3_791_232);
    assert_eq!(report["dtypes"]["BF16"]["tensors"], tensors.len());
    assert_eq!(report["check"]["tensors"], tensors.len());
    assert_eq!(report["eos_token_ids"], serde_json::json!([2, 7]));
    assert_eq!(report["tokenizer"]["bos"]["id"], 1);
    let memory = &report["memory"];
    assert_eq!(memory["context"], 2048);
    assert!(memory["exact"]["cache_bytes"].as_u64() > memory["fast"]["cache_bytes"].as_u64());
    // Three layers, one key-value head of 64, f32 keys and values: at least that much.
    assert!(memory["exact"]["cache_bytes"].as_u64().unwrap() >= 2048 * 3 * 2 * 64 * 4);
    let text = anemone(&["inspect"]).ok().stdout;
    for part in
        ["stories-lfm2 (lfm2)", "3 heads / 1 kv of 64", "BF16: 75 tensors", "memory at a context of 2048"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn inspect_shows_windows_and_experts() {
    let Some(fixtures) = shared("fixtures/lfm-tiny") else { return };
    let inspect =
        |name: &str| anemone(&["inspect", "--json", "-m", fixtures.join(name).to_str().unwrap()]).json();
    let lfm3 = inspect("lfm3-tiny");
    let windows = lfm3["layers"].as_array().unwrap().iter().filter(|l| l["window"] == 8).count();
    assert!(windows > 0, "{lfm3}");
    let moe = inspect("lfm2-moe-tiny");
    let sparse =
        moe["layers"].as_array().unwrap().iter().filter(|l| l["experts"] == 8 && l["experts_per_token"] == 2);
    assert_eq!(sparse.count(), 3);
}

#[test]
fn bench_reports_rates_with_their_spread() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("bench.svg");
    let args = [
        "bench",
        "--pp",
        "32,8",
        "--tg",
        "4",
        "--repeat",
        "3",
        "--depth",
        "5",
        "--probe-mib",
        "8",
        "--threads",
        "2",
    ];
    let report = anemone(&[&args[..], &["--json", "--svg", svg.to_str().unwrap()]].concat()).json();
    let tests = report["tests"].as_array().unwrap();
    let names: Vec<&str> = tests.iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp32", "pp8", "tg4"]);
    for test in tests {
        let samples: Vec<f64> =
            test["samples"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        assert_eq!(samples.len(), 3);
        let mean = samples.iter().sum::<f64>() / 3.0;
        assert!((test["mean"].as_f64().unwrap() - mean).abs() < 1e-6 * mean && mean > 0.0);
    }
    assert_eq!(report["pp"]["mean"], tests[0]["mean"]);
    assert_eq!(report["tg"]["sd"], tests[2]["sd"]);
    assert_eq!(report["threads"], 2);
    // All matrices in bf16, and the filters of five layers in f32.
    let per_token = report["bytes_per_token"].as_u64().unwrap();
    assert!(per_token > 7_500_000 && per_token < 7_700_000, "{per_token}");
    let share = report["tg"]["mean"].as_f64().unwrap() * per_token as f64
        / 1e9
        / report["bandwidth_gbs"].as_f64().unwrap();
    assert!((report["bandwidth_share"].as_f64().unwrap() / share - 1.0).abs() < 1e-9);
    for key in ["load_seconds", "time_to_first_token_seconds"] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{key}");
    }
    #[cfg(target_os = "linux")]
    {
        let bytes = |key: &str| report[key].as_u64().unwrap();
        assert!(bytes("rss_bytes") > 1 << 20);
        assert!(bytes("rss_anon_bytes") + bytes("rss_file_bytes") <= bytes("rss_bytes") + (1 << 20));
    }
    assert!(std::fs::read_to_string(svg).unwrap().contains("tg4"));
    let table =
        anemone(&["bench", "--pp", "8", "--tg", "2", "--repeat", "1", "--probe-mib", "0"]).ok().stdout;
    assert!(table.contains("pp8 ") && table.contains("tg2 ") && table.contains(" ± "), "{table}");
}

#[test]
fn bench_of_decisions_keeps_the_body_apart() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("b");
    let bundle = bundle.to_str().unwrap();
    anemone(&["convert", "-q", "--decision", "--out", bundle, "--length", "64", "--length", "128", "--pack"])
        .ok();
    let count = ["bench", "-q", "--warmup", "1", "--calls", "4", "--json"];
    let bench = |extra: &[&str]| anemone(&[&count[..], extra].concat()).json();
    let native = bench(&["--decision"]);
    let emulated = bench(&["--bundle", bundle, "--engine", "emulator"]);
    let packed = bench(&["--bundle", bundle, "--engine", "emulator", "--profile", "f32", "--pack"]);
    assert_eq!((&native["engine"], &native["arithmetic"]), (&"cpu".into(), &"f32".into()));
    assert_eq!(packed["functions"], serde_json::json!(["L128_packed"]));
    assert_eq!(emulated["functions"].as_array().unwrap().len(), 2);
    let shown = anemone(&["decide", "-q", "--raw"]).json();
    let ids = |row: &serde_json::Value| row["ids"].as_array().unwrap().len();
    let tokens: Vec<usize> = shown["rows"].as_array().unwrap().iter().map(ids).collect();
    for report in [&native, &emulated, &packed] {
        assert_eq!(report["row_tokens"], serde_json::json!(tokens));
        assert_eq!(report["input_sha256"], native["input_sha256"]);
        assert_eq!((&report["warmup"], &report["calls"]), (&1.into(), &4.into()));
        for part in ["end_to_end", "body"] {
            let mut seconds: Vec<f64> =
                report[part]["seconds"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
            seconds.sort_by(f64::total_cmp);
            assert!(seconds.len() == 4 && seconds[0] > 0.0, "{report}");
            let near =
                |key: &str, v: f64| (report[part][key].as_f64().unwrap() - 1e3 * v).abs() < 1e-9 * v.max(1.0);
            assert!(near("p50_ms", seconds[1]) && near("p95_ms", seconds[3]), "{report}");
        }
    }
    // Another state is another input.
    let question = r#"{"q": {"type": "noul", "instructions": "Is it late?"}}"#;
    let other = bench(&["--decision", "--state", "hi", "--questions", question]);
    assert!(other["input_sha256"] != native["input_sha256"] && other["questions"] == 1);
    let table = anemone(&["bench", "-q", "--decision", "--calls", "2", "--warmup", "1"]).ok().stdout;
    assert!(table.contains("end to end") && table.contains("rows of tokens to scores"), "{table}");
    let bench = |extra: &[&str]| anemone(&[&["bench", "-q"][..], extra].concat());
    bench(&["--decision", "--pp", "8"]).fails(1, &["--pp is for language models"]);
    bench(&["--calls", "8"]).fails(1, &["--calls is for decision models", "--decision"]);
    bench(&["--decision", "--pack"]).fails(1, &["--pack", "without padding"]);
    bench(&["--decision", "--engine", "emulator"]).fails(1, &["--engine emulator runs bundles", "convert"]);
    bench(&["--bundle", bundle, "--engine", "emulator", "--bf16"]).fails(1, &["--bf16", "--engine cpu"]);
    bench(&["--decision", "--bf16", "--exact"]).fails(1, &["--exact", "--bf16"]);
}

#[test]
fn doctor_tests_the_arithmetic_and_sizes_models() {
    let report = anemone(&["doctor", "--json"]).json();
    assert_eq!(report["ok"], true);
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().any(|c| c["name"] == "self-test" && c["status"] == "ok"), "{report}");
    let assets = crate::support::assets();
    let text = anemone(&["doctor", "--model", assets.to_str().unwrap()]).ok().stdout;
    assert!(text.contains("stories-lfm2 (lfm2): weights 7.2 MiB"), "{text}");
    let missing = anemone(&["doctor", "--model", "./nope"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.stdout.contains("fail  model"), "{}", missing.stdout);
    let output =
        command(&["doctor"]).env("HF_ENDPOINT", "nonsense").env("HF_TOKEN", "hf_secret").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains("HF_ENDPOINT must begin") && text.contains("token set") && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let script = anemone(&["completions", shell]).ok().stdout;
        assert!(script.contains("perplexity") && script.contains("top-p"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man1");
    anemone(&["man", "--out", out.to_str().unwrap()]).ok();
    for name in COMMANDS {
        let page = std::fs::read_to_string(out.join(format!("anemone-{name}.1"))).unwrap();
        assert!(page.contains(&format!("anemone\\-{name} \\-")), "{name}");
    }
    assert!(anemone(&["man"]).ok().stdout.contains(".SH SUBCOMMANDS"));
}

#[test]
fn quiet_is_quiet_and_verbose_is_not() {
    assert_eq!(anemone(&["run", "-n", "2", "-q"]).ok().stderr, "");
    assert!(anemone(&["run", "-n", "2", "-v"]).ok().stderr.contains("loaded"));
    assert_eq!(anemone_with(b"hello\n", &["chat", "-n", "2", "-q"]).ok().stderr, "");
}
