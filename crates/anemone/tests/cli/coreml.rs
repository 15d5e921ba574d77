//! Core ML as it is simulated, from the command line: every fault's error, and what is run meanwhile.

use std::path::Path;

use serde_json::Value;

use crate::support::{Ran, command};

const RUN: [&str; 7] = ["run", "--json", "--greedy", "-n", "24", "-p", "once upon a time"];

/// The binary with a cache of its own.
fn run(dir: &Path, args: &[&str]) -> Ran {
    let output = command(args).env("XDG_CACHE_HOME", dir.join("cache")).env("HOME", dir).output().unwrap();
    Ran::new(output)
}

fn bundle(dir: &Path) -> String {
    let bundle = dir.join("stories.bundle").to_str().unwrap().to_owned();
    run(dir, &["convert", "-q", "--out", &bundle, "--ctx", "128", "--prefill", "16", "--no-plan"]).ok();
    bundle
}

#[test]
fn a_bundle_runs_by_core_ml_or_says_why_it_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let bundle = bundle(dir);
    assert!(Path::new(&bundle).join("canary.safetensors").is_file());
    let on = |more: &[&str]| run(dir, &[&RUN[..], &["--bundle", &bundle], more].concat());
    let emulated = on(&["--engine", "emulator"]).json();
    let simulated = on(&["--engine", "coreml", "--simulate", "none"]).json();
    assert_eq!(simulated["text"], emulated["text"]);
    assert_eq!(
        (&simulated["engine"], &simulated["arithmetic"]),
        (&"coreml (simulated)".into(), &"cpu_and_ne".into())
    );
    let functions = simulated["core_ml"]["functions"].as_array().unwrap();
    assert!(
        functions.iter().any(|f| f["function"] == "prefill_16" && f["plan"]["ane_share"] == 1.0),
        "{functions:?}"
    );
    let fails = |faults: &str, more: &[&str], words: &[&str]| {
        let faulty = on(&[&["--engine", "coreml", "--simulate", faults], more].concat());
        assert_eq!((faulty.code, faulty.stderr.lines().count()), (Some(1), 1), "{faulty:?}");
        assert!(words.iter().all(|word| faulty.stderr.contains(word)), "{}", faulty.stderr);
    };
    fails("nan=40", &[], &["not to be trusted", "NaN", "--engine cpu"]);
    fails("wrong-outputs", &[], &["not to be trusted", "cosine"]);
    fails("execution=30", &[], &["Neural Engine could not run", "-14"]);
    fails("memory-pressure", &[], &["not enough memory"]);
    fails("on-cpu", &["--require", "ane"], &["--require", "is on the cpu"]);
    fails(
        "none",
        &["--require", "ane", "--compute-units", "cpu_only"],
        &["--require", "cpu_only", "leave one"],
    );
    // Without the demand it runs, and says where.
    let away = on(&["--engine", "coreml", "--simulate", "on-cpu"]).ok();
    assert!(away.stderr.contains("operations are not on the Neural Engine, the first is"), "{}", away.stderr);
    // What was compiled before does not hide it.
    fails("compile-fails", &[], &["no reason given"]);
    fails("silent-fallback", &["--max-ratio", "0.7"], &["--max-ratio", "of its time on the processor alone"]);
    fails("none", &["--max-ratio", "0.7", "--compute-units", "cpu_only"], &["--max-ratio", "leave one"]);
    let measured = on(&["--engine", "coreml", "--simulate", "none", "--max-ratio", "0.7"]).json();
    assert!(measured["core_ml"]["functions"][0]["ratio_to_cpu_only"].is_f64(), "{measured}");
    std::fs::remove_file(Path::new(&bundle).join("canary.safetensors")).unwrap();
    // A warning that nothing is tried comes first.
    let bare = on(&["-q", "--engine", "coreml", "--simulate", "none", "--max-ratio", "0.7"]);
    bare.fails(1, &["--max-ratio", "no recorded call", "--no-canary"]);
    if cfg!(not(target_vendor = "apple")) {
        on(&["--engine", "coreml"]).fails(1, &["--engine coreml", "Macs only", "--engine cpu"]);
    }
}

#[test]
fn compressed_weights_have_a_record_of_their_own_and_bad_records_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (bundle, out) = (bundle(dir), dir.join("lut8.bundle").to_str().unwrap().to_owned());
    let palettize = |more: &[&str]| {
        run(dir, &[&["palettize", "-q", "--bundle", &bundle, "--precision", "lut8"], more].concat())
    };
    palettize(&["--out", &out]).ok();
    let on = |bundle: &str| {
        run(dir, &[&RUN[..], &["--bundle", bundle, "--engine", "coreml", "--simulate", "none"]].concat())
    };
    let ran = on(&out).ok();
    assert!(!ran.stderr.contains("no recorded call"), "{}", ran.stderr);
    let record = Path::new(&out).join("canary.safetensors");
    // The record of other weights does not count as none.
    std::fs::copy(Path::new(&bundle).join("canary.safetensors"), &record).unwrap();
    on(&out).fails(1, &["canary.safetensors was recorded for another bundle", "convert or palettize"]);
    std::fs::write(&record, b"short").unwrap();
    on(&out).fails(1, &["canary.safetensors is damaged", "remove the file"]);
    std::fs::remove_file(&record).unwrap();
    on(&out).ok();
    let bare = dir.join("bare.bundle");
    palettize(&["--out", bare.to_str().unwrap(), "--no-canary"]).ok();
    assert!(!bare.join("canary.safetensors").exists());
}

#[test]
fn the_cpu_engine_answers_until_core_ml_has_come_and_after_it_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let bundle = bundle(dir);
    let on = |more: &[&str]| run(dir, &[&RUN[..], &["--bundle", &bundle], more].concat());
    let text = on(&["--engine", "cpu"]).json()["text"].clone();
    let turns = |faults: &str| -> (Value, String) {
        let ran = on(&["--simulate", faults]).ok();
        let report = ran.json();
        (report["text"].clone(), report["core_ml"]["turns"].to_string())
    };
    // Far longer than the generation takes.
    assert_eq!(turns("slow-compile=60000"), (text.clone(), "[]".into()));
    let (told, story) = turns("compile-fails,slow-compile=0");
    assert!(told == text && (story == "[]" || story.contains("Core ML is not used")), "{story}");
    let (told, story) = turns("none");
    assert!(told == text, "{told} {story}");
}

#[test]
fn flags_of_core_ml_are_refused_where_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| run(dir.path(), &[&RUN[..], more].concat());
    run(&["--engine", "cpu", "--require", "ane"]).fails(1, &["--require", "is of Core ML"]);
    run(&["--engine", "emulator", "--simulate", "none"]).fails(1, &["--simulate", "is of Core ML"]);
    run(&["--engine", "coreml", "--simulate", "none"])
        .fails(1, &["--engine coreml runs bundles", "built-in"]);
    run(&["--compute-units", "gpu"]).fails(2, &["--compute-units", "cpu_and_ne"]);
    run(&["--max-ratio", "0"]).fails(2, &["--max-ratio", "above 0"]);
    run(&["--engine", "cpu", "--max-ratio", "0.8"]).fails(1, &["--max-ratio", "is of Core ML"]);
    run(&["--require", "ane=101"]).fails(2, &["--require", "from 0 to 100"]);
    run(&["--engine", "coreml", "--simulate", "gremlins"])
        .fails(2, &["--simulate", "'gremlins' is no fault"]);
    run(&["--simulate", "none", "--require", "ane"]).fails(1, &["--require", "auto", "--engine coreml"]);
    run(&["--engine", "coreml", "--simulate", "nan=x"]).fails(2, &["--simulate", "whole number"]);
    if cfg!(not(target_vendor = "apple")) {
        run(&["--require", "ane"]).fails(1, &["--require", "Macs only"]);
    }
}

#[test]
fn compiled_models_are_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    run(dir, &["cache", "list"]).ok();
    let bundle = bundle(dir);
    let on = [&RUN[..], &["--bundle", &bundle, "--engine", "coreml", "--simulate", "none"]].concat();
    run(dir, &on).ok();
    let list = || run(dir, &["cache", "list", "--json"]).json();
    let before = list();
    let models = before["compiled_models"].as_array().unwrap();
    let packages = std::fs::read_dir(&bundle).unwrap().flatten();
    let packages = packages.filter(|e| e.path().extension().is_some_and(|x| x == "mlpackage")).count();
    assert!(models.len() == packages && models.iter().all(|m| m["bytes"].as_u64() > Some(0)), "{before}");
    let kept = run(dir, &["cache", "gc"]).ok();
    assert!(kept.stdout.starts_with("0 removed"), "{}", kept.stdout);
    assert_eq!(list()["compiled_models"].as_array().unwrap().len(), packages);
    let removed = run(dir, &["cache", "gc", "--all", "--json"]).json();
    assert_eq!(removed["removed"].as_array().unwrap().len(), packages);
    assert_eq!(list()["compiled_models"].as_array().unwrap().len(), 0);
    // They are made again.
    run(dir, &on).ok();
    std::fs::remove_dir_all(&bundle).unwrap();
    let orphans = run(dir, &["cache", "gc"]).ok();
    assert!(orphans.stdout.contains(&format!("{packages} removed")), "{}", orphans.stdout);
    run(dir, &["cache", "gc", "--all", "--unused", "3"]).fails(2, &["--all", "--unused"]);
}

#[test]
fn placements_are_predicted_with_their_sources() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let bundle = bundle(dir);
    let predicted = run(dir, &["inspect", "--placement", "--bundle", &bundle, "--json"]).json();
    let functions = predicted["functions"].as_array().unwrap();
    let named: Vec<&str> = functions.iter().map(|f| f["function"].as_str().unwrap()).collect();
    assert_eq!((predicted["chip"].as_str(), named), (Some("m4"), vec!["decode", "prefill_16", "main"]));
    for function in functions {
        // Nothing of it must leave, and all of it is declined, for it is as small as that; it is said so.
        let segments = function["segments"].as_array().unwrap();
        assert!(segments.len() == 1 && segments[0]["neural_engine"] == false, "{function}");
        let costs = [&segments[0]["planned_ms"], &function["planned_ms_on_cpu"]].map(|v| v.as_f64().unwrap());
        assert!((costs[0] / costs[1] - 1.0).abs() < 1e-9, "{function}");
        assert_eq!(function["away"].as_array().unwrap().len(), 0, "{function}");
        let warnings = function["warnings"].as_array().unwrap();
        assert!(
            warnings.len() == 1 && warnings[0]["rule"] == "small" && warnings[0]["source"].is_string(),
            "{function}"
        );
    }
    let text = run(dir, &["inspect", "--placement", "--bundle", &bundle, "--chip", "M2"]).ok().stdout;
    assert!(
        text.contains("nothing here was measured")
            && text.contains("segment cpu")
            && text.contains("inferred from another chip"),
        "{text}"
    );
    let never = dir.join("never.bundle");
    let dry = run(dir, &["convert", "--dry-run", "--json", "--out", never.to_str().unwrap()]).json();
    assert!(dry["limits"][0].as_str().unwrap().contains("so small that Core ML's planner"), "{dry}");
    let doctor = run(dir, &["doctor", "--model", &bundle]).ok().stdout;
    assert!(doctor.contains("compiled models") && doctor.contains("compiling it takes about"), "{doctor}");
    run(dir, &["inspect", "--placement"]).fails(1, &["--placement", "built-in", "anemone convert"]);
    run(dir, &["inspect", "--placement", "-m", "src"])
        .fails(1, &["--placement", "neither a bundle nor a package"]);
    run(dir, &["inspect", "--placement", "--bundle", &bundle, "--chip", "m99"])
        .fails(1, &["--chip", "m99", "m1, m2"]);
    run(dir, &["inspect", "--chip", "m1"]).fails(2, &["--placement"]);
}

#[test]
fn a_self_test_says_what_is_sound_and_what_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let out = dir.join("report");
    let out = out.to_str().unwrap();
    let sound = run(dir, &["selftest", "-q", "--simulate", "none", "--out", out]).ok();
    let report = || -> Value {
        serde_json::from_slice(&std::fs::read(Path::new(out).join("report.json")).unwrap()).unwrap()
    };
    let told = report();
    assert!(told["passed"] == true && told["simulated"] == true, "{}", sound.stdout);
    assert!(told["placements"].as_array().unwrap().len() == 3, "{told}");
    let names: Vec<&str> =
        told["findings"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert!(["tokens", "perplexity", "decisions"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(std::fs::read_to_string(Path::new(out).join("report.html")).unwrap().contains("passed"));
    let broken = run(dir, &["selftest", "-q", "--simulate", "wrong-outputs", "--out", out]);
    assert_eq!(broken.code, Some(1), "{broken:?}");
    assert!(
        broken.stdout.contains("FAIL") && broken.stdout.contains("not to be trusted"),
        "{}",
        broken.stdout
    );
    assert_eq!(report()["passed"], false);
    run(dir, &["selftest", "--simulate", "gremlins"]).fails(2, &["--simulate", "'gremlins' is no fault"]);
    if cfg!(not(target_vendor = "apple")) {
        run(dir, &["selftest", "--out", out]).fails(1, &["Macs only", "--simulate none"]);
    }
}

#[test]
fn decision_models_answer_by_core_ml_or_say_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let bundle = dir.join("laya.bundle");
    let bundle = bundle.to_str().unwrap();
    run(dir, &["convert", "-q", "--decision", "--out", bundle, "--length", "64", "--length", "96", "--pack"])
        .ok();
    assert!(Path::new(bundle).join("canary.safetensors").is_file());
    let decide = |more: &[&str]| run(dir, &[&["decide", "--json", "--model", bundle], more].concat());
    let emulated = decide(&["--engine", "emulator"]).json();
    let simulated = decide(&["--engine", "coreml", "--simulate", "none"]).ok();
    assert!(!simulated.stderr.contains("not on the Neural Engine"), "{}", simulated.stderr);
    assert_eq!(simulated.json(), emulated);
    let away = decide(&["--engine", "coreml", "--simulate", "on-cpu"]).ok();
    assert!(away.stderr.contains("operations are not on the Neural Engine, the first is"), "{}", away.stderr);
    let fails = |faults: &str, more: &[&str], words: &[&str]| {
        let fault = ["-q", "--engine", "coreml", "--simulate", faults];
        decide(&[&fault[..], more].concat()).fails(1, words);
    };
    fails("wrong-outputs", &[], &["not to be trusted", "cosine"]);
    fails("nan=0", &[], &["not to be trusted", "NaN"]);
    fails("unsteady", &[], &["not to be trusted", "for the same inputs"]);
    fails("compile-fails", &[], &["no reason given"]);
    fails("on-cpu", &["--require", "ane"], &["--require", "is on the cpu"]);
    fails("silent-fallback", &["--max-ratio", "0.7"], &["--max-ratio", "of its time on the processor alone"]);
    // Of auto, the CPU engine answers at once, and goes on where Core ML does not come.
    let native = decide(&["--engine", "cpu"]).json();
    let slow = decide(&["--simulate", "slow-compile=60000"]).ok();
    assert!(!slow.stderr.contains("taken over"), "{}", slow.stderr);
    assert_eq!(slow.json(), native);
    let broken = decide(&["--simulate", "wrong-outputs"]).ok();
    assert_eq!(broken.json(), native);
    decide(&["-q", "--engine", "cpu", "--max-ratio", "0.8"]).fails(1, &["--max-ratio", "is of Core ML"]);
    decide(&["-q", "--engine", "coreml", "--simulate", "none", "--bf16"])
        .fails(1, &["--bf16", "native engine"]);
    run(dir, &["decide", "-q", "--engine", "coreml", "--simulate", "none"])
        .fails(1, &["--engine coreml runs bundles", "anemone convert --decision"]);
    let validate = |more: &[&str]| {
        run(dir, &[&["validate", "-q", "--json", "--bundle", bundle, "--simulate"], more].concat())
    };
    let report = validate(&["none", "--engine", "coreml"]).json();
    assert_eq!((&report["engine"], &report["passed"]), (&"coreml (simulated)".into(), &true.into()));
    assert_eq!(validate(&["none"]).json()["engine"], "coreml (simulated)");
    if cfg!(not(target_vendor = "apple")) {
        for command in ["decide", "serve"] {
            run(dir, &[command, "-q", "--engine", "coreml", "--model", bundle])
                .fails(1, &["Macs only", "--engine cpu"]);
        }
        decide(&["--require", "ane"]).fails(1, &["--require", "Macs only"]);
    }
}
