//! The crate on real tokenizer files and recorded outputs of the transformers library.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::path::PathBuf;

use anemone_session::{
    ChatTemplate, Detokenizer, Message, RenderOptions, TemplateTokens, Timestamp, Tokenizer,
};
use serde_json::{Map, Value, json};

fn shared() -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    if path.is_dir() {
        return Some(path);
    }
    // Not `eprintln!`, which the test runner swallows.
    let _ = writeln!(std::io::stderr(), "skipped: shared/ is not present");
    None
}

fn json_file(path: &str) -> Option<Value> {
    let bytes = std::fs::read(shared()?.join(path)).unwrap();
    Some(serde_json::from_slice(&bytes).unwrap())
}

fn load(folder: &str) -> Option<(Tokenizer, Option<ChatTemplate>)> {
    let folder = shared()?.join(folder);
    let bytes = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let config: Option<Map<String, Value>> = std::fs::read(folder.join("tokenizer_config.json"))
        .ok()
        .map(|bytes| serde_json::from_slice(&bytes).unwrap());
    let tokenizer = Tokenizer::from_bytes(&bytes, config.as_ref()).unwrap();
    let template = std::fs::read_to_string(folder.join("chat_template.jinja"))
        .ok()
        .map(|source| ChatTemplate::new(&source, TemplateTokens::from(&tokenizer)).unwrap());
    Some((tokenizer, template))
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer, skip_special);
    let mut text = String::new();
    for &id in ids {
        text.push_str(detokenizer.push(id).unwrap().unwrap_or_default());
    }
    text.push_str(detokenizer.flush().unwrap().unwrap_or_default());
    text
}

const FOLDERS: [(&str, &str); 2] =
    [("A", "fixtures/lfm-tiny/lfm2-tiny-tied"), ("B", "fixtures/lfm-tiny/lfm3-tiny")];

#[test]
fn text_goldens() {
    let Some(goldens) = json_file("fixtures/lfm-tiny/text_goldens.json") else { return };
    for (name, folder) in FOLDERS {
        let (tokenizer, _) = load(folder).unwrap();
        let cases = goldens[format!("tokenizer_{name}")].as_array().unwrap();
        assert_eq!(cases.len(), 46);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let with = ids(&case["ids"]);
            assert_eq!(tokenizer.encode(text, true).unwrap(), with, "{name} {text:?}");
            let without = ids(&case["ids_no_special"]);
            assert_eq!(tokenizer.encode(text, false).unwrap(), without, "{name} {text:?}");
            for (skip, key) in [(false, "decoded"), (true, "decoded_skip_special")] {
                let expected = case[key].as_str().unwrap();
                assert_eq!(tokenizer.decode(&without, skip).unwrap(), expected, "{name} {text:?}");
                assert_eq!(stream(&tokenizer, &without, skip), expected, "{name} {text:?}");
            }
        }
    }
}

#[test]
fn chat_goldens() {
    let Some(goldens) = json_file("fixtures/lfm-tiny/text_goldens.json") else { return };
    let cases = goldens["chat"].as_array().unwrap();
    assert_eq!(cases.len(), 12);
    for (name, folder) in FOLDERS {
        let (tokenizer, template) = load(folder).unwrap();
        let fallback = ChatTemplate::fallback(TemplateTokens::from(&tokenizer)).unwrap();
        for case in cases {
            let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
            let options = RenderOptions {
                tools: case["tools"].as_array().map(Vec::as_slice),
                add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
                kwargs: case["kwargs"].as_object().unwrap().clone(),
                now: None,
            };
            let text = template.as_ref().unwrap().render(&messages, &options).unwrap();
            assert_eq!(text, case["text"].as_str().unwrap(), "{}", case["name"]);
            let expected = ids(&case[format!("ids_{name}")]);
            assert_eq!(tokenizer.encode(&text, false).unwrap(), expected, "{}", case["name"]);
            // The built-in template means the same.
            assert_eq!(fallback.render(&messages, &options).unwrap(), text, "{}", case["name"]);
        }
    }
}

#[test]
fn special_tokens_and_stop_ids() {
    let Some((tokenizer, _)) = load("models/stories-lfm2") else { return };
    assert_eq!(tokenizer.bos().map(|t| (t.text.as_str(), t.id)), Some(("<|startoftext|>", 1)));
    assert_eq!(tokenizer.stop_ids(&[7]), [2, 7]);
    let (lfm3, _) = load("fixtures/lfm-tiny/lfm3-tiny").unwrap();
    assert_eq!(lfm3.stop_ids(&[]), [1002, 1007]);
    assert_eq!(lfm3.vocab_size(), 1018);
    assert_eq!(lfm3.decode(&[1018, 1087, u32::MAX], false).unwrap(), "");
}

#[test]
fn published_template_renders() {
    let Some((tokenizer, template)) = load("tokenizers/lfm2.5") else { return };
    let template = template.unwrap();
    let messages: Vec<Message> = serde_json::from_value(json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": "<think>tool</think> Checking. ", "tool_calls": [{"type": "function", "function": {"name": "get", "arguments": "{\"city\": \"Bern\", \"days\": [1, true, null]}"}}]},
        {"role": "tool", "content": "{\"t\": 21}"},
        {"role": "assistant", "content": "21.", "reasoning_content": "easy"},
        {"role": "user", "content": "Thanks"}
    ]))
    .unwrap();
    let tools = [json!({"name": "get", "parameters": {"type": "object"}})];
    let now = Some(Timestamp { unix_seconds: 951_782_400, offset_seconds: 0 });
    let options = RenderOptions { tools: Some(&tools), now, ..RenderOptions::default() };
    let text = template.render(&messages, &options).unwrap();
    assert_eq!(
        text,
        "<|startoftext|><|im_start|>system\nBe brief.\n\nToday's date: 2000-02-29\n\nList of tools: [{\"name\": \"get\", \"parameters\": {\"type\": \"object\"}}]<|im_end|>\n\
        <|im_start|>user\n<image>Weather?<|im_end|>\n\
        <|im_start|>assistant\n<|tool_call_start|>[get(city=\"Bern\", days=[1, True, None])]<|tool_call_end|>Checking.<|im_end|>\n\
        <|im_start|>tool\n{\"t\": 21}<|im_end|>\n\
        <|im_start|>assistant\n<think>easy</think>21.<|im_end|>\n\
        <|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = tokenizer.encode(&text, false).unwrap();
    assert_eq!(ids[..2], [1, 6]);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    assert_eq!(tokenizer.eos().map(|t| t.id), Some(7));
    assert_eq!(tokenizer.vocab_size(), 64_400);
}

#[test]
fn other_families_stream_as_they_decode() {
    for folder in ["tokenizers/modernbert", "tokenizers/mmbert"] {
        let Some((tokenizer, _)) = load(folder) else { return };
        let mut random = Random(11);
        for _ in 0..100 {
            let text = random.text();
            let ids = tokenizer.encode(&text, true).unwrap();
            for skip in [true, false] {
                assert_eq!(stream(&tokenizer, &ids, skip), tokenizer.decode(&ids, skip).unwrap(), "{text:?}");
            }
            let noise: Vec<u32> =
                (0..20).map(|_| random.below(tokenizer.vocab_size() as u64) as u32).collect();
            assert_eq!(
                stream(&tokenizer, &noise, true),
                tokenizer.decode(&noise, true).unwrap(),
                "{noise:?}"
            );
        }
    }
}

#[test]
fn ten_thousand_strings_round_trip() {
    let folders = ["tokenizers/lfm2.5", FOLDERS[0].1, FOLDERS[1].1, "models/stories-lfm2"];
    for (seed, folder) in folders.into_iter().enumerate() {
        let Some((tokenizer, _)) = load(folder) else { return };
        let mut random = Random(seed as u64 + 1);
        let strings = if folder == "tokenizers/lfm2.5" { 10_000 } else { 2_500 };
        for _ in 0..strings {
            let text = random.text();
            let ids = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
            assert_eq!(stream(&tokenizer, &ids, false), text);
            assert_eq!(stream(&tokenizer, &ids, true), tokenizer.decode(&ids, true).unwrap());
            // Ids in an order no encoder gives: broken characters, rows without a string.
            let noise: Vec<u32> =
                (0..8).map(|_| random.below(tokenizer.vocab_size() as u64 + 9) as u32).collect();
            assert_eq!(
                stream(&tokenizer, &noise, true),
                tokenizer.decode(&noise, true).unwrap(),
                "{noise:?}"
            );
        }
    }
}

/// A small generator with a fixed sequence (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Runs of one kind of character each: words, digits, spaces, controls, accents, CJK, emoji, anything.
    fn text(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..self.below(8) {
            let kind = self.below(12);
            for _ in 0..=self.below(6) {
                let (low, high) = match kind {
                    0 | 1 => (0x61, 0x7a),
                    2 => (0x30, 0x39),
                    3 => (0x20, 0x2f),
                    4 => (0x00, 0x1f),
                    5 => (0x7f, 0xff),
                    6 => (0x300, 0x36f),
                    7 => (0x4e00, 0x9fff),
                    8 => (0x1f300, 0x1faff),
                    9 => (0x2000, 0x206f),
                    10 => (0xac00, 0xd7a3),
                    _ => (0, 0x10ffff),
                };
                let code = low + self.below(high - low + 1);
                text.extend(char::from_u32(code as u32));
            }
            if self.below(4) == 0 {
                text.push_str(
                    ["<|im_end|>", "\r\n", "  ", "'ll", "<|im_", "\u{200d}", "\u{fffd}"]
                        [self.below(7) as usize],
                );
            }
        }
        text
    }
}
