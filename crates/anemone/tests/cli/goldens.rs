use crate::support::{anemone, data, distance, ids, numbers, read_json};

/// The recorded case of the demo model with a name.
fn case(name: &str) -> serde_json::Value {
    let goldens = read_json(&data("stories-lfm2/goldens.json"));
    let cases = goldens["cases"].as_array().unwrap();
    cases.iter().find(|c| c["name"] == name).unwrap().clone()
}

#[test]
fn recorded_continuations_are_reproduced() {
    for (name, chat) in [("raw", false), ("chat", true)] {
        let case = case(name);
        let expected = ids(&case["greedy_ids"]);
        let count = expected.len().to_string();
        let mut args = vec!["run", "--exact", "--greedy", "--json", "-n", &count];
        args.extend(["-p", case["prompt"].as_str().unwrap()]);
        if chat {
            args.push("--chat");
        }
        let report = anemone(&args).json();
        assert_eq!(ids(&report["prompt_token_ids"]), ids(&case["token_ids"]), "{name}");
        // The recording keeps the end-of-text token, a generation leaves it out.
        let ended = expected.last() == Some(&2);
        let body = if ended { &expected[..expected.len() - 1] } else { &expected[..] };
        assert_eq!(ids(&report["token_ids"]), body, "{name}");
        assert_eq!(report["text"], case["greedy_text"], "{name}");
        assert_eq!(report["finish_reason"], if ended { "stop" } else { "length" });
        assert_eq!(report["arithmetic"], "exact");
    }
}

#[test]
fn recorded_logits_are_reproduced() {
    let case = case("raw");
    let report =
        anemone(&["forward", "--exact", "--json", "--text", case["prompt"].as_str().unwrap()]).json();
    assert_eq!(ids(&report["tokens"]), ids(&case["token_ids"]));
    assert!(distance(&numbers(&report["last_logits"]), &numbers(&case["last_logits"])) < 2e-4);
}

/// `validation.txt` with a mark between its 60 stories; the three newlines between them occur inside one, too.
fn stories(mark: &str) -> String {
    const SPLIT_STORY: usize = 12;
    let text = std::fs::read_to_string(data("stories-lfm2/validation.txt")).unwrap();
    let mut parts: Vec<String> = text.trim_end().split("\n\n\n").map(str::to_owned).collect();
    let rest = parts.remove(SPLIT_STORY + 1);
    parts[SPLIT_STORY].push_str("\n\n\n");
    parts[SPLIT_STORY].push_str(&rest);
    assert_eq!(parts.len(), 60);
    parts.join(mark)
}

#[test]
fn recorded_perplexity_is_reproduced() {
    let expected = read_json(&data("stories-lfm2/goldens.json"))["perplexity"]["value"].as_f64().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stories.txt");
    std::fs::write(&file, stories("\t\n\t")).unwrap();
    let file = file.to_str().unwrap();
    let args = ["perplexity", "--file", file, "--separator", "\\t\\n\\t", "--append-eos", "2", "--json"];
    for (extra, bound) in [(&["--exact"][..], 1e-5), (&[][..], 0.01)] {
        let report = anemone(&[&args[..], extra].concat()).json();
        assert_eq!((report["tokens"].as_u64(), report["windows"].as_u64()), (Some(11_711), Some(60)));
        let found = report["perplexity"].as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < bound, "{found} {expected}");
        assert!((report["nll"].as_f64().unwrap().exp() - found).abs() < 1e-9);
    }
    let plain = data("stories-lfm2/validation.txt");
    let plain = anemone(&[
        "perplexity",
        "-f",
        plain.to_str().unwrap(),
        "--separator",
        "\\n\\n\\n",
        "--append-eos",
        "2",
        "--json",
    ])
    .json();
    assert_eq!(plain["tokens"], 11_711);
    assert!((plain["perplexity"].as_f64().unwrap() / expected - 1.0).abs() < 0.005, "{plain}");
}

#[test]
fn windows_cover_a_text_without_separator() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.txt");
    std::fs::write(&file, "once upon a time, there was a little fox").unwrap();
    let file = file.to_str().unwrap();
    let tokens = |extra: &[&str]| {
        let report = anemone(&[&["perplexity", "-f", file, "--json"], extra].concat()).json();
        (
            report["tokens"].as_u64().unwrap(),
            report["windows"].as_u64().unwrap(),
            report["dropped_tokens"].as_u64(),
        )
    };
    assert_eq!(tokens(&[]), (10, 1, Some(0)));
    assert_eq!(tokens(&["--window", "4"]), (10, 4, Some(0)));
    assert_eq!(tokens(&["--window", "4", "--no-bos"]), (7, 3, Some(0)));
    assert_eq!(tokens(&["--window", "4", "--separator", "|"]), (3, 1, Some(7)));
}
