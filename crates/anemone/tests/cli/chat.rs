use serde_json::Value;

use crate::support::{anemone_with, read_json};

/// The number after a word of a statistics line.
fn after(line: &str, word: &str) -> u64 {
    let rest = line.split(word).nth(1).unwrap();
    rest.trim_start().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_scripted_chat() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat.json");
    let save = format!("/save {}\n", file.display());
    let script = "tell me a story about a cat.\n\ntell me a story about a dog.\n".to_owned()
        + &save
        + "/reset\ntell me a story about a cat.\n/quit\nnot read\n";
    let ran = anemone_with(script.as_bytes(), &["chat", "--greedy", "--exact", "-n", "20"]).ok();
    let answers: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(answers.len(), 3, "{}", ran.stdout);
    assert_eq!(answers[0], answers[2], "a reset chat begins anew");
    let turns: Vec<&str> = ran.stderr.lines().filter(|l| l.starts_with("prefill ")).collect();
    assert_eq!(turns.len(), 3, "{}", ran.stderr);
    let first = after(turns[0], "prefill");
    let held = after(turns[1], "(");
    // All of the first turn is held but the last token, which was never fed; the new message is about as long.
    assert_eq!(held, first + 19, "{}", turns[1]);
    let new = after(turns[1], "prefill");
    assert!(new > 10 && new <= first + 4, "{}", turns[1]);
    assert_eq!(after(turns[2], "prefill"), first, "{}", turns[2]);
    assert!(!turns[2].contains("held"), "{}", turns[2]);
    let saved = read_json(&file);
    let roles: Vec<&str> = saved.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(saved[1]["content"], answers[0]);
}

#[test]
fn saved_messages_are_taken_up_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a chat.json");
    let path = file.display();
    let args = ["chat", "--greedy", "--exact", "-n", "12", "--json-lines"];
    let whole = anemone_with(
        format!("tell me a story about a cat.\n/save {path}\ntell me more.\n").as_bytes(),
        &args,
    )
    .ok();
    let resumed = anemone_with(format!("/load {path}\ntell me more.\n").as_bytes(), &args).ok();
    let lines =
        |text: &str| -> Vec<Value> { text.lines().map(|l| serde_json::from_str(l).unwrap()).collect() };
    let (whole, resumed) = (lines(&whole.stdout), lines(&resumed.stdout));
    assert_eq!((whole.len(), resumed.len()), (2, 1));
    assert_eq!(whole[1]["token_ids"], resumed[0]["token_ids"]);
    assert_eq!(whole[1]["usage"]["prompt_tokens"], resumed[0]["usage"]["prompt_tokens"]);
    assert!(whole[1]["usage"]["cached_tokens"].as_u64().unwrap() > 20);
    assert_eq!(resumed[0]["usage"]["cached_tokens"], 0);
}

#[test]
fn a_system_message_is_kept_over_a_reset() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat.json");
    let script = format!("/system be kind\nhello\n/reset\n/save {}\n", file.display());
    anemone_with(script.as_bytes(), &["chat", "-n", "2", "--system", "be brief"]).ok();
    let saved = read_json(&file);
    assert_eq!(saved, serde_json::json!([{"role": "system", "content": "be kind"}]));
}

#[test]
fn a_full_context_is_told_and_survived() {
    let script = format!("{}\n/reset\nhello\n", "a very long message ".repeat(40));
    let ran = anemone_with(script.as_bytes(), &["chat", "--ctx", "64", "-n", "4"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let error = ran.stderr.lines().find(|l| l.starts_with("error: ")).unwrap();
    assert!(error.contains("/reset") && error.contains("--ctx") && error.contains("64"), "{error}");
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
}

#[test]
fn bad_commands_are_one_line_each() {
    let script = "/nope\n/save\n/load /no/such/file\n/help\n";
    let ran = anemone_with(script.as_bytes(), &["chat"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    let errors: Vec<&str> = ran.stderr.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 3, "{}", ran.stderr);
    assert!(
        errors[0].contains("/help")
            && errors[1].contains("/save FILE")
            && errors[2].contains("/load /no/such/file")
    );
    assert!(ran.stderr.contains("/reset  "), "{}", ran.stderr);
    anemone_with(b"caf\xe9\n", &["chat"]).fails(1, &["stdin", "UTF-8", "byte 3"]);
}
