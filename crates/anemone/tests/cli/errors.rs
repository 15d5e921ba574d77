use crate::support::{Copy, anemone, anemone_with, command};

#[test]
fn bad_arguments_name_the_flag() {
    let usage: [(&[&str], &[&str]); 27] = [
        (&["run", "--ctx", "0"], &["--ctx", "'0'", "1.."]),
        (&["run", "--ctx", "-5"], &["--ctx", "-5"]),
        (&["run", "--ctx", "99999999999999999999999"], &["--ctx"]),
        (&["run", "--threads", "0"], &["--threads", "1..=512"]),
        (&["run", "--threads", "100000"], &["--threads", "1..=512"]),
        (&["run", "--top-p", "7"], &["--top-p", "from 0 to 1"]),
        (&["run", "--min-p", "NaN"], &["--min-p", "from 0 to 1"]),
        (&["run", "--temperature", "-1"], &["--temperature", "from 0 to 100"]),
        (&["run", "--top-k", "-1"], &["--top-k", "whole number, 0 or more"]),
        (&["run", "-n", "99999999999999999999"], &["--max-new-tokens", "the number is too large"]),
        (&["run", "--repetition-penalty", "0"], &["--repetition-penalty", "from 0.001"]),
        (&["run", "--frequency-penalty", "3"], &["--frequency-penalty", "from -2 to 2"]),
        (&["run", "--seed", "x"], &["--seed"]),
        (&["bench", "--seed", "-1"], &["--seed", "-1"]),
        (&["run", "--greedy", "--temperature", "1"], &["--greedy", "--temperature"]),
        (&["run", "--prompt", "a", "--stdin"], &["--prompt", "--stdin"]),
        (&["run", "--engine", "gpu"], &["--engine", "cpu, coreml, emulator"]),
        (&["run", "--frobnicate"], &["--frobnicate", "--help"]),
        (&["forward"], &["--tokens <IDS>", "--text"]),
        (&["perplexity", "--file", "a", "--window", "1"], &["--window", "2.."]),
        (&["serve", "--cors-origin", "example.org"], &["--cors-origin", "a scheme and a host"]),
        (&["serve", "--log-bodies"], &["--log-requests"]),
        (&["serve", "--idle-unload", "0"], &["--idle-unload", "1.."]),
        (&["serve", "--max-memory", "lots"], &["--max-memory", "500M or 4G"]),
        (&["serve", "--max-memory", "-5"], &["--max-memory", "500M or 4G"]),
        (&["serve", "--prefix-cache-memory", "-5"], &["--prefix-cache-memory", "500M or 4G"]),
        (&["dance"], &["dance", "--help"]),
    ];
    for (args, fragments) in usage {
        anemone(args).fails(2, fragments);
    }
}

#[test]
fn bad_requests_name_the_flag_and_the_remedy() {
    let cases: [(&[&str], &[&str]); 30] = [
        (&["run", "--ctx", "99999999"], &["99999999", "2048", "lower --ctx"]),
        (&["run", "--engine", "coreml"], &["--engine coreml", "use --engine cpu"]),
        (&["run", "--engine", "emulator"], &["--engine emulator", "built-in", "anemone convert --out"]),
        (&["run", "--stop", ""], &["--stop", "leave it out"]),
        (&["run", "--file", "/no/such/file"], &["--file /no/such/file", "check the path"]),
        (&["run", "-p", "once upon a time", "--ctx", "3"], &["5 tokens", "context holds 3", "--ctx"]),
        (&["run", "-p", "a", "--revision", "v1"], &["--revision v1", "built-in", "leave it out"]),
        (
            &["run", "-p", "a", "-m", "o/n@v2", "--revision", "v1"],
            &["--revision v1", "already", "leave it out"],
        ),
        (&["run", "-p", "a", "-m", ".", "--revision", "v1"], &["--revision v1", "a path", "leave it out"]),
        (
            &["serve", "--port", "0", "--max-memory", "1M"],
            &["--max-memory 1.0 MiB", "'laya-demo'", "raise it"],
        ),
        (
            &["serve", "--port", "0", "--max-memory", "300M", "--prefix-cache-memory", "299M"],
            &["'stories-lfm2'", "caches of 32768 tokens", "prefix cache 299.0 MiB", "lower --max-tokens"],
        ),
        (&["serve", "--port", "0", "--ctx", "9999"], &["error: --ctx 9999", "'stories-lfm2'", "2048"]),
        (&["serve", "--port", "0", "--prefix-cache", "Cargo.toml"], &["error: --prefix-cache Cargo.toml"]),
        (&["serve", "--port", "0", "--alias", "x"], &["--alias x", "ALIAS=NAME"]),
        (&["serve", "--port", "0", "--alias", "x=y"], &["--alias x=y", "laya-demo, stories-lfm2"]),
        (
            &["serve", "--port", "0", "--alias", "laya-demo=stories-lfm2"],
            &["--alias laya-demo=stories-lfm2", "already", "another"],
        ),
        (&["forward", "--text", "once upon", "--ctx", "1"], &["--text: 3 tokens do not", "raise --ctx"]),
        (&["convert", "--out", "/", "--force"], &["--out /", "not a bundle", "another place"]),
        (&["perplexity", "--file", "Cargo.toml", "--separator", "\\q"], &["--separator", "\\\\"]),
        (&["forward", "--tokens", "99999999"], &["--tokens", "99999999", "0 to 2047"]),
        (&["forward", "--tokens", "1,-2"], &["--tokens", "\"-2\"", "1,5,9"]),
        (&["forward", "--tokens", ""], &["--tokens", "1,5,9"]),
        (&["forward", "--text", "", "--no-special"], &["--text", "at least one"]),
        (
            &["forward", "--tokens", "1", "--greedy", "99999999"],
            &["100000000 tokens, 99999999 of --greedy", "2048", "ask for fewer"],
        ),
        (&["forward", "--tokens", "1", "--out", "/no/such/dir/x.safetensors"], &["--out", "create it first"]),
        (&["inspect", "--ctx", "4096"], &["--ctx 4096", "2048", "lower it"]),
        (&["bench", "--pp", "0", "--tg", "0"], &["--pp, --tg, --vf and --batch", "above 0"]),
        (&["bench", "--pp", "512", "--depth", "99999999"], &["--depth 99999999", "2048"]),
        (&["perplexity", "--file", "/no/such/file"], &["--file /no/such/file", "check the path"]),
        (&["man", "--out", "/dev/null/x"], &["--out /dev/null/x", "check the path"]),
    ];
    for (args, fragments) in cases {
        anemone(args).fails(1, fragments);
    }
    anemone_with(b"", &["run", "--stdin"]).ok();
    let long = "once upon ".repeat(3000);
    anemone_with(long.as_bytes(), &["run", "--stdin"])
        .fails(1, &["9001 tokens", "limit is 2048", "shorten it"]);
    let hopeless = vec![b'a'; 2 << 20];
    anemone_with(&hopeless, &["run", "--stdin"])
        .fails(1, &["more than 524288 tokens", "holds 2048", "a part"]);
    anemone_with(b"ab\xff", &["run", "--stdin"]).fails(1, &["--stdin", "not UTF-8 at byte 2", "UTF-8"]);
}

#[cfg(target_os = "linux")]
#[test]
fn devices_are_not_replaced() {
    anemone(&["forward", "--tokens", "1", "--out", "/dev/full"])
        .fails(1, &["--out /dev/full", "not a regular file", "name a file"]);
}

#[test]
fn models_that_are_not_there() {
    let empty = tempfile::tempdir().unwrap();
    let with = |name: &str, bytes: &[u8]| {
        let path = empty.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let run = |model: &str| anemone(&["run", "-p", "a", "--model", model]);
    run("./no-such-dir").fails(1, &["--model ./no-such-dir", "no such file", "hub id"]);
    run(empty.path().to_str().unwrap()).fails(1, &["config.json", "is missing", "download"]);
    run(&with("m.gguf", b"GGUF"))
        .fails(1, &["m.gguf", "the version of 4 bytes where 0 are left", "download"]);
    run(&with("m.bin", b"\x80\x02")).fails(1, &["m.bin", "convert"]);
    std::fs::create_dir(empty.path().join("m.mlpackage")).unwrap();
    run(empty.path().join("m.mlpackage").to_str().unwrap())
        .fails(1, &["m.mlpackage", "pass the bundle", "checkpoint"]);
    anemone(&["run", "-p", "a", "--offline", "--model", "org/name"])
        .fails(1, &["org/name", "offline", "local model directory"]);
    anemone(&["run", "--model", "org/name"]).fails(1, &["no prompt", "--prompt TEXT"]);
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::OsStr::from_bytes(b"./mod\xffel");
        let output = command(&["run", "-p", "a", "--model"]).arg(path).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("error: --model ./mod") && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn hub_models_come_from_the_cache_or_not_at_all() {
    let cache = tempfile::tempdir().unwrap();
    let repo = cache.path().join("models--org--name");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let snapshot = repo.join("snapshots").join(commit);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::write(repo.join("refs/main"), commit).unwrap();
    for entry in std::fs::read_dir(crate::support::assets()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), snapshot.join(entry.file_name())).unwrap();
    }
    let run = |id: &str, offline: &str, endpoint: &str| {
        let mut command = command(&["run", "-m", id, "-p", "a", "-n", "2", "--json"]);
        command.env("HF_HUB_CACHE", cache.path()).env("HF_HUB_OFFLINE", offline).env("HF_ENDPOINT", endpoint);
        crate::support::Ran::new(command.output().unwrap())
    };
    assert_eq!(run("org/name", "1", "").json()["model"], "org/name");
    run("org/other", "1", "").fails(1, &["org/other", "offline"]);
    run("org/name@v2", "1", "").fails(1, &["v2", "offline"]);
    run("org/other", "", "ftp://x").fails(1, &["endpoint", "ftp://x"]);
    run("a--b/c", "", "").fails(1, &["a--b/c", "org/name"]);
}

#[cfg(unix)]
#[test]
fn names_that_are_not_utf8_work() {
    use std::os::unix::ffi::OsStrExt;
    let copy = Copy::new();
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join(std::ffi::OsStr::from_bytes(b"mod\xffel"));
    std::os::unix::fs::symlink(copy.path(), &link).unwrap();
    let output = command(&["run", "-p", "a", "-n", "2", "--greedy", "--model"]).arg(&link).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn damaged_configurations_name_the_key() {
    let run = |copy: &Copy| anemone(&["run", "-p", "one day", "-n", "4", "--greedy", "--model", copy.path()]);
    let config = |from: &str, to: &str| Copy::new().replace("config.json", from, to);
    run(&config("\"num_attention_heads\": 3", "\"num_attention_heads\": 0"))
        .fails(1, &["`num_attention_heads` is 0", "from 1 to"]);
    run(&config("\"hidden_size\": 192", "\"hidden_size\": \"big\""))
        .fails(1, &["`hidden_size`", "whole number"]);
    run(&config("\"vocab_size\": 2048", "\"vocab_size\": 2000"))
        .fails(1, &["embed_tokens.weight", "[2000, 192]"]);
    run(&config("\"Lfm2ForCausalLM\"", "\"LlamaForCausalLM\""))
        .fails(1, &["LlamaForCausalLM", "supported are"]);
    run(&config("{", "")).fails(1, &["config.json", "line ", "column ", "download"]);
    let many = "\"num_hidden_layers\": 9";
    run(&config("\"num_hidden_layers\": 8", many)).fails(1, &["layer"]);
    run(&Copy::new().replace("generation_config.json", "0.7", "-1"))
        .fails(1, &["generation_config.json", "`temperature`"]);
    let ran = run(&Copy::new().replace("generation_config.json", "    7\n", "    7777\n")).ok();
    assert!(ran.stderr.contains("eos_token_id 7777") && ran.stderr.contains("correct it"), "{}", ran.stderr);
    run(&Copy::new().replace("tokenizer.json", "{", "[")).fails(1, &["tokenizer.json", "download"]);
    run(&Copy::new().without("tokenizer.json")).fails(1, &["tokenizer.json", "is missing", "token ids"]);
    run(&Copy::new().without("model.safetensors")).fails(1, &["no safetensors weights"]);
    let copy = Copy::new().replace("chat_template.jinja", "endfor", "endfur");
    anemone(&["run", "--chat", "-p", "a", "--model", copy.path()])
        .fails(1, &["chat template, line", "repair"]);
}

#[test]
fn a_tokenizer_of_another_model_is_noticed() {
    // Rename the last entry's id beyond the model's rows.
    let text = std::fs::read_to_string(crate::support::assets().join("tokenizer.json")).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut extra = added[0].clone();
    extra["id"] = 2048.into();
    extra["content"] = "<|extra|>".into();
    added.push(extra);
    let copy = Copy::new();
    std::fs::write(copy.file("tokenizer.json"), tokenizer.to_string()).unwrap();
    anemone(&["run", "-p", "a<|extra|>", "--model", copy.path()])
        .fails(1, &["id 2048", "2048 rows", "tokenizer.json"]);
    anemone(&["forward", "--text", "<|extra|>", "--model", copy.path()])
        .fails(1, &["--text", "2048", "0 to 2047"]);
    // What it has no use for does no harm.
    anemone(&["run", "-p", "a", "-n", "2", "--model", copy.path()]).ok();
}

#[test]
fn damaged_weights_name_the_tensor() {
    let name = "model.layers.3.feed_forward.w2.weight";
    let copy = Copy::new().with_nan(name);
    let fragments = ["`model.layers.3.feed_forward.w2.weight`", "not finite at element 0", "download"];
    for args in [
        &["run", "-p", "one day"][..],
        &["forward", "--tokens", "1,2"],
        &["inspect", "--check"],
        &["perplexity", "--file", &copy.file("MODEL_CARD.md").display().to_string()],
        &["bench", "--pp", "8", "--tg", "0", "--probe-mib", "0"],
    ] {
        anemone(&[args, &["--model", copy.path()]].concat()).fails(1, &fragments);
    }
    let cut = Copy::new().weights(|bytes| bytes.truncate(5_000_000));
    anemone(&["inspect", "--model", cut.path()]).fails(1, &["truncated", "download"]);
    let header = Copy::new().weights(|bytes| bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes()));
    anemone(&["inspect", "--model", header.path()]).fails(1, &["header length", "byte 0"]);
    let empty = Copy::new().weights(Vec::clear);
    anemone(&["inspect", "--model", empty.path()]).fails(1, &["model.safetensors", "download"]);
}

#[test]
fn a_failed_forward_leaves_no_file() {
    let copy = Copy::new().with_nan("model.layers.0.feed_forward.w1.weight");
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.safetensors");
    let ran = anemone(&["forward", "--tokens", "1", "--model", copy.path(), "--out", out.to_str().unwrap()]);
    ran.fails(1, &["w1.weight"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
