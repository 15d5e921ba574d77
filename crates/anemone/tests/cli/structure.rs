use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{Ran, anemone, anemone_with, read_json};

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn tools(&self) -> String {
        let tools = json!([
            {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
                "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                "required": ["city", "days"]}}},
            {"name": "now"}
        ]);
        self.write("tools.json", &tools.to_string())
    }
}

#[test]
fn an_answer_keeps_to_a_schema() {
    let files = Files::new();
    let schema = files.write(
        "bird.json",
        &json!({"type": "object", "properties": {"bird": {"enum": ["owl", "crow"]}, "n": {"type": "integer", "minimum": 1,
            "maximum": 9}}, "required": ["bird", "n"], "additionalProperties": false})
        .to_string(),
    );
    for extra in [&[][..], &["--chat"], &["--spec", "auto"]] {
        let args = ["run", "--prompt", "a bird", "--schema", &schema, "--seed", "4"];
        let value: Value = serde_json::from_str(&anemone(&[&args[..], extra].concat()).ok().stdout).unwrap();
        assert!(
            ["owl", "crow"].contains(&value["bird"].as_str().unwrap()) && value["n"].as_u64().unwrap() < 10
        );
    }
    let args = ["run", "--prompt", "a bird", "--schema", &schema, "--greedy", "--exact", "--json"];
    let plain = anemone(&args).json();
    let drafted = anemone(&[&args[..], &["--spec", "auto"]].concat()).json();
    assert_eq!(plain["token_ids"], drafted["token_ids"]);
    assert_eq!(plain["finish_reason"], "stop");
    assert!(drafted["speculation"]["accepted"].as_u64().unwrap() > 3, "{drafted}");
}

#[test]
fn an_answer_keeps_to_a_regex_and_a_grammar() {
    let text = anemone(&["run", "--prompt", "x", "--regex", "[a-c]{3}-[0-9]", "--seed", "1"]).ok().stdout;
    let (letters, digit) = text.trim_end().split_once('-').unwrap();
    assert!(letters.len() == 3 && letters.chars().all(|c| ('a'..='c').contains(&c)), "{text}");
    assert!(digit.len() == 1 && digit.parse::<u8>().is_ok(), "{text}");
    let files = Files::new();
    let grammar = files.write("g.lark", "start: \"yes\" | \"no\" \" \" WHY\nWHY: /[a-z]{1,5}/\n");
    let text = anemone(&["run", "--prompt", "x", "--grammar", &grammar, "--seed", "1"]).ok().stdout;
    assert!(text == "yes\n" || text.starts_with("no "), "{text}");
}

#[test]
fn tools_are_called_and_shown() {
    let files = Files::new();
    let tools = files.tools();
    let args =
        ["run", "--prompt", "weather?", "--tools", &tools, "--tool-choice", "get_weather", "--seed", "2"];
    let shown = anemone(&args).ok().stdout;
    assert!(shown.starts_with("→ get_weather(city: \"") && shown.ends_with(")\n"), "{shown}");
    let report = anemone(&[&args[..], &["--json"]].concat()).json();
    assert_eq!((&report["content"], &report["finish_reason"]), (&Value::Null, &"tool_calls".into()));
    let function = &report["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(function["name"], "get_weather");
    assert!(["Rome", "Oslo"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
    assert!(
        report["text"].as_str().unwrap().starts_with("<|tool_call_start|>[get_weather(city="),
        "{report}"
    );
    let none = anemone(&[
        "run",
        "--prompt",
        "weather?",
        "--tools",
        &tools,
        "--tool-choice",
        "none",
        "--json",
        "-n",
        "5",
    ]);
    assert_eq!(none.json()["tool_calls"], Value::Null);
}

#[test]
fn a_chat_goes_on_with_results() {
    let files = Files::new();
    let tools = files.tools();
    let saved = files.write("chat.json", "");
    let script = format!("/tool early\nweather?\n/tool 21 degrees\n/save {saved}\n");
    let args = ["chat", "--tools", &tools, "--tool-choice", "get_weather", "-n", "60", "--seed", "5"];
    let ran: Ran = anemone_with(script.as_bytes(), &args);
    assert!(ran.stderr.contains("error: /tool: no call waits for a result"), "{}", ran.stderr);
    assert_eq!(
        ran.stdout.lines().filter(|line| line.starts_with("→ get_weather(")).count(),
        2,
        "{}",
        ran.stdout
    );
    let messages = read_json(saved.as_ref());
    let roles: Vec<&str> = messages.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(messages[1]["content"], Value::Null);
    assert_eq!(messages[1]["tool_calls"][0]["function"]["name"], "get_weather");
    assert_eq!(messages[2]["content"], "21 degrees");
}

#[test]
fn what_cannot_be_used_is_named() {
    let files = Files::new();
    let tools = files.tools();
    let bad = files.write("bad.json", "{\"properties\": {\"a\": {\"not\": {\"type\": \"string\"}}}}");
    let text = files.write("text.json", "{");
    let run = |args: &[&str]| anemone(&[&["run", "--prompt", "x", "-n", "3"][..], args].concat());
    run(&["--schema", &bad]).fails(1, &["--schema: #/properties/a: ", "not"]);
    run(&["--schema", &text]).fails(1, &["--schema ", "text.json: not JSON"]);
    run(&["--schema", "nowhere.json"]).fails(1, &["--schema", "nowhere.json"]);
    run(&["--regex", "a("]).fails(1, &["--regex: "]);
    run(&["--grammar", &text]).fails(1, &["--grammar: "]);
    run(&["--tools", &text]).fails(1, &["--tools", "not JSON"]);
    run(&["--tools", &tools, "--tool-choice", "fly"])
        .fails(1, &["--tool-choice fly: no such tool", "get_weather, now"]);
    run(&["--tool-choice", "auto"]).fails(2, &["--tools"]);
    run(&["--schema", &bad, "--regex", "a"]).fails(2, &["--schema", "--regex"]);
    let unnamed = files.write("unnamed.json", "[{\"name\": \"f\"}, {}]");
    run(&["--tools", &unnamed]).fails(1, &["--tools", "tools[1].name is missing"]);
}

#[test]
fn reasoning_is_folded() {
    let args = ["run", "--chat", "--prompt", "x", "--regex", "<think>so it is</think>Yes[.]", "--seed", "1"];
    let ran = anemone(&args).ok();
    assert_eq!(ran.stdout, "Yes.\n");
    assert!(ran.stderr.starts_with("thought for ") && ran.stderr.lines().count() == 2, "{}", ran.stderr);
    assert_eq!(anemone(&[&["-q"], &args[..]].concat()).ok().stderr, "");
    assert_eq!(anemone(&[&args[..], &["--reasoning"]].concat()).ok().stdout, "so it is\n\nYes.\n");
    let report = anemone(&[&args[..], &["--json"]].concat()).json();
    assert_eq!((&report["reasoning_content"], &report["content"]), (&"so it is".into(), &"Yes.".into()));
    assert_eq!(report["text"], "<think>so it is</think>Yes.");
}
