use crate::support::{anemone, anemone_with, assets};

#[test]
fn a_story_without_any_argument() {
    let ran = anemone(&["run", "--seed", "1", "-n", "40"]).ok();
    assert!(ran.stdout.starts_with("once ") && ran.stdout.ends_with('\n'), "{}", ran.stdout);
    assert!(ran.stdout.split_whitespace().count() > 15, "{}", ran.stdout);
    assert!(!ran.stdout.contains("<|"), "{}", ran.stdout);
    for part in ["prefill ", " tok/s · decode ", "/2048 (", "seed 1"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    assert_eq!(ran.stderr.lines().count(), 1);
}

#[test]
fn alone_it_tells_a_story_and_where_help_is() {
    let ran = anemone(&[]).ok();
    assert!(ran.stdout.starts_with("once ") && ran.stderr.contains("anemone --help"), "{ran:?}");
    anemone(&["-q"]).fails(2, &["subcommand", "--help"]);
}

#[test]
fn the_seed_decides_the_text() {
    let text = |seed| anemone(&["run", "--seed", seed, "-n", "40", "--temperature", "1"]).ok().stdout;
    assert_eq!(text("5"), text("5"));
    assert_ne!(text("5"), text("6"));
}

#[test]
fn json_tells_everything() {
    let report =
        anemone(&["run", "--prompt", "once upon a time", "--seed", "3", "-n", "12", "--json"]).json();
    let count = report["token_ids"].as_array().unwrap().len() as u64;
    assert!(count > 0 && count <= 12);
    assert_eq!(report["usage"]["prompt_tokens"], 5);
    assert_eq!(report["usage"]["completion_tokens"], count);
    assert_eq!(report["usage"]["total_tokens"], 5 + count);
    for key in [
        "load_seconds",
        "prefill_seconds",
        "prefill_tokens_per_second",
        "decode_seconds",
        "decode_tokens_per_second",
        "time_to_first_token_seconds",
    ] {
        assert!(report["timings"][key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert_eq!(report["model"], "stories-lfm2");
    assert_eq!(report["seed"], 3);
    assert_eq!((report["engine"].as_str(), report["arithmetic"].as_str()), (Some("cpu"), Some("fast")));
    assert!(["length", "stop"].contains(&report["finish_reason"].as_str().unwrap()));
}

#[test]
fn stop_strings_end_the_text_before_themselves() {
    let args =
        ["run", "--prompt", "once upon a time, there was a little fox", "--greedy", "--exact", "--json"];
    let whole = anemone(&[&args[..], &["-n", "40"]].concat()).json();
    let whole = whole["text"].as_str().unwrap();
    let cut = anemone(&[&args[..], &["-n", "40", "--stop", "zzz", "--stop", "one day"]].concat()).json();
    assert_eq!(cut["finish_reason"], "stop");
    assert_eq!(cut["stop"], "one day");
    assert_eq!(cut["text"].as_str().unwrap(), whole.split("one day").next().unwrap());
}

#[test]
fn prompts_come_from_stdin_and_files_alike() {
    let text = "once upon a time";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, format!("{text}\n")).unwrap();
    let rest = ["--greedy", "-n", "8", "-q"];
    let argument = anemone(&[&["run", "-p", text], &rest[..]].concat()).ok();
    let stdin = anemone_with(text.as_bytes(), &[&["run", "--stdin"], &rest[..]].concat()).ok();
    let from_file = anemone(&[&["run", "--file", file.to_str().unwrap()], &rest[..]].concat()).ok();
    assert_eq!(argument.stdout, stdin.stdout);
    assert_eq!(argument.stdout, from_file.stdout);
    assert_eq!(argument.stderr, "");
}

#[test]
fn a_directory_and_its_files_are_the_same_model() {
    let assets = assets();
    let built_in = anemone(&["run", "-p", "one day", "--greedy", "-n", "8", "-q"]).ok().stdout;
    for path in [assets.clone(), assets.join("config.json"), assets.join("model.safetensors")] {
        let path = path.to_str().unwrap();
        let text = anemone(&["run", "-m", path, "-p", "one day", "--greedy", "-n", "8", "-q"]).ok().stdout;
        assert_eq!(text, built_in, "{path}");
    }
}

#[test]
fn threads_and_layout_do_not_change_exact_text() {
    let args = ["run", "-p", "one day", "--greedy", "--exact", "-n", "16", "-q"];
    let one = anemone(&[&args[..], &["--threads", "1"]].concat()).ok().stdout;
    let two =
        anemone(&[&args[..], &["--threads", "2", "--layout", "packed", "--chunk", "2"]].concat()).ok().stdout;
    assert_eq!(one, two);
}

#[test]
fn special_tokens_and_the_end_of_text() {
    let args = ["run", "--chat", "-p", "tell me a story about a dog.", "--greedy", "--exact", "--json"];
    let plain = anemone(&args).json();
    assert_eq!((plain["finish_reason"].as_str(), plain["stop"].as_u64()), (Some("stop"), Some(2)));
    let more = anemone(&[&args[..], &["--ignore-eos", "--show-special", "-n", "120"]].concat()).json();
    assert_eq!(more["finish_reason"], "length");
    assert_eq!(more["token_ids"].as_array().unwrap().len(), 120);
    assert!(more["text"].as_str().unwrap().contains("<|endoftext|>"), "{}", more["text"]);
}

#[test]
fn a_full_context_ends_the_text() {
    let ran = anemone(&["run", "-p", "once upon a time", "--ctx", "16", "--greedy", "--ignore-eos"]).ok();
    assert!(ran.stderr.contains("ctx 16/16") && ran.stderr.contains("raise --ctx"), "{}", ran.stderr);
    let report = anemone(&["run", "-p", "one day", "-n", "0", "--json"]).json();
    assert_eq!((report["text"].as_str(), report["finish_reason"].as_str()), (Some(""), Some("length")));
}
