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
    let fresh = dir.join("fresh");
    fails("compile-fails", &["--compiled-models", fresh.to_str().unwrap()], &["no reason given"]);
    if cfg!(not(target_vendor = "apple")) {
        on(&["--engine", "coreml"]).fails(1, &["--engine coreml", "Macs only", "--engine cpu"]);
    }
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
        // One segment, all of it; a model as small as this one may be declined, and that is said.
        assert_eq!(function["segments"].as_array().unwrap().len(), 1, "{function}");
        assert_eq!(function["away"].as_array().unwrap().len(), 0, "{function}");
        let warnings = function["warnings"].as_array().unwrap();
        assert!(warnings.iter().all(|w| w["rule"] == "small" && w["source"].is_string()), "{function}");
    }
    let text = run(dir, &["inspect", "--placement", "--bundle", &bundle, "--chip", "M2"]).ok().stdout;
    assert!(
        text.contains("nothing here was measured") && text.contains("operations on the Neural Engine"),
        "{text}"
    );
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
    assert!(names.contains(&"tokens") && names.contains(&"perplexity"), "{names:?}");
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
