//! Tool calls of every form, generated and cut everywhere, and streams of nonsense.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use anemone_session::{Answer, CallMarks, CallSyntax, Delta, OutputOptions, OutputParser, ToolFormat, Tools};
use serde_json::{Map, Value, json};

const CALLS: usize = 500;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

const PIECES: [&str; 30] = [
    "a", "Zürich", " ", "'", "\"", "\\", "\n", "\t", "日本", "🙂", "e\u{301}", "(", ")", "[", "]", "{", "}",
    ", ", "=", ": ", "f(x=1)", "'''", "\"\"\"", "<", "</", "think>", "|>", "\\n", "\u{1}", "0",
];

fn text(random: &mut Random) -> String {
    (0..random.below(7)).map(|_| random.pick(&PIECES)).collect()
}

fn value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth > 2 { 5 } else { 8 }) {
        0 => json!(random.below(100_000) as i64 - 50_000),
        1 => json!((random.below(4000) as f64 - 2000.0) / 16.0),
        2 => json!(random.one_in(2)),
        3 => Value::Null,
        4 | 5 => text(random).into(),
        6 => (0..random.below(4)).map(|_| value(random, depth + 1)).collect(),
        _ => {
            let entries =
                (0..random.below(4)).map(|i| (format!("{}{i}", text(random)), value(random, depth + 1)));
            Value::Object(entries.collect())
        }
    }
}

fn calls(random: &mut Random) -> Vec<(String, Map<String, Value>)> {
    const NAMES: [&str; 6] = ["f", "get_weather", "Calendar.create_event", "a.b.c", "mcp__x-y", "größe"];
    const KEYS: [&str; 8] = ["x", "from", "class", "start_date", "y2", "naïve", "lambda", "None_"];
    let one = |random: &mut Random| {
        let arguments =
            (0..random.below(4)).map(|_| (random.pick(&KEYS).to_owned(), value(random, 0))).collect();
        (random.pick(&NAMES).to_owned(), arguments)
    };
    // Each its own name, so that each parameter has one type.
    (0..=random.below(3))
        .map(|at| {
            let (name, arguments) = one(random);
            (format!("{name}{at}"), arguments)
        })
        .collect()
}

/// A value in Python's spelling or JSON's, quotes and escapes and space at random.
fn python(random: &mut Random, value: &Value, out: &mut String) {
    let space = |random: &mut Random, out: &mut String| out.push_str(random.pick(&["", "", " ", "\n  "]));
    match value {
        Value::String(text) => {
            let mark = random.pick(&["'", "\"", "'''", "\"\"\""]);
            out.push_str(mark);
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '\'' | '"' if mark.starts_with(c) => out.extend(['\\', c]),
                    '\n' if mark.len() == 1 || random.one_in(2) => out.push_str("\\n"),
                    '\u{1}' => out.push_str("\\x01"),
                    c if !c.is_ascii() && random.one_in(3) => {
                        out.extend(["\\U", &format!("{:08x}", c as u32)]);
                    }
                    c => out.push(c),
                }
            }
            out.push_str(mark);
        }
        Value::Bool(true) => out.push_str(random.pick(&["True", "true"])),
        Value::Bool(false) => out.push_str(random.pick(&["False", "false"])),
        Value::Null => out.push_str(random.pick(&["None", "null"])),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                space(random, out);
                python(random, item, out);
                space(random, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (at, (key, item)) in map.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                space(random, out);
                python(random, &Value::from(key.as_str()), out);
                space(random, out);
                out.push(':');
                space(random, out);
                python(random, item, out);
            }
            out.push('}');
        }
    }
}

fn pythonic(random: &mut Random, calls: &[(String, Map<String, Value>)]) -> String {
    let mut out = "<|tool_call_start|>[".to_owned();
    for (at, (name, arguments)) in calls.iter().enumerate() {
        out.push_str(if at > 0 { random.pick(&[", ", ",", " ,\n"]) } else { "" });
        out.push_str(name);
        out.push('(');
        for (at, (key, value)) in arguments.iter().enumerate() {
            out.push_str(if at > 0 { random.pick(&[", ", ",", " , "]) } else { "" });
            out.push_str(key);
            out.push_str(random.pick(&["=", "=", " = "]));
            python(random, value, &mut out);
        }
        out.push(')');
    }
    out + "]<|tool_call_end|>"
}

fn written(format: ToolFormat, calls: &[(String, Map<String, Value>)]) -> String {
    format.write(&calls.iter().map(|(name, arguments)| (name.as_str(), arguments)).collect::<Vec<_>>())
}

fn read(parser: &mut OutputParser, pieces: &[&str]) -> (Answer, Vec<Delta>) {
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    let mut answer = Answer::default();
    for delta in &deltas {
        answer.push(delta);
    }
    (answer, deltas)
}

/// Cuts a text in two everywhere, and into single characters; all must read alike.
fn everywhere(options: &OutputOptions, text: &str, expected: &Answer) {
    let read = |pieces: &[&str]| read(&mut OutputParser::new(options.clone()), pieces).0;
    assert_eq!(&normal(read(&[text])), expected, "{text}");
    let whole = read(&[text]);
    for (at, _) in text.char_indices() {
        assert_eq!(read(&[&text[..at], &text[at..]]), whole, "cut at {at}: {text}");
    }
    let chars: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(read(&chars.iter().map(String::as_str).collect::<Vec<_>>()), whole, "{text}");
}

/// Arguments in the one spelling of `serde_json`.
fn normal(mut answer: Answer) -> Answer {
    for call in &mut answer.calls {
        call.arguments = serde_json::from_str::<Value>(&call.arguments).unwrap().to_string();
    }
    answer
}

/// `CALLS` outputs in one form, with reasoning and prose at random.
fn form(
    seed: u64,
    format: ToolFormat,
    write: impl Fn(&mut Random, &[(String, Map<String, Value>)]) -> String,
) {
    let mut random = Random(seed);
    for _ in 0..CALLS {
        let calls = calls(&mut random);
        let reasoning = if random.one_in(3) { "so <|tool_call_start|>[x()]" } else { "" };
        let prose = if random.one_in(3) { "Let me see: 1 < 2." } else { "" };
        let after = if random.one_in(4) { "Done (really)." } else { "" };
        let mut text =
            if reasoning.is_empty() { String::new() } else { format!("<think>\n{reasoning}\n</think>\n\n") };
        text.push_str(prose);
        text.push_str(&write(&mut random, &calls));
        text.push_str(after);
        let expected = Answer {
            reasoning: reasoning.into(),
            content: [prose, after].concat(),
            calls: calls
                .iter()
                .map(|(name, arguments)| anemone_session::ToolCall {
                    name: name.clone(),
                    arguments: Value::Object(arguments.clone()).to_string(),
                })
                .collect(),
        };
        let options = OutputOptions { format, tools: declared(&calls), ..OutputOptions::default() };
        everywhere(&options, &text, &expected);
    }
}

/// Tools whose parameters have the types the calls give them.
fn declared(calls: &[(String, Map<String, Value>)]) -> Tools {
    let mut tools: Map<String, Value> = Map::new();
    for (name, arguments) in calls {
        let properties = tools.entry(name.clone()).or_insert_with(|| json!({}));
        for (key, value) in arguments {
            let kind = match value {
                Value::String(_) => "string",
                Value::Number(_) => "number",
                Value::Bool(_) => "boolean",
                Value::Null => "null",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            };
            properties[key] = json!({"type": kind});
        }
    }
    let tools: Vec<Value> = tools
        .into_iter()
        .map(|(name, properties)| {
            json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}})
        })
        .collect();
    Tools::from_json(&tools).unwrap()
}

#[test]
fn pythonic_calls() {
    form(1, ToolFormat::default(), pythonic);
}

#[test]
fn pythonic_calls_as_written_for_templates() {
    form(2, ToolFormat::default(), |_, calls| written(ToolFormat::default(), calls));
}

#[test]
fn json_calls() {
    for (seed, marks) in [(3, CallMarks::Special), (4, CallMarks::Tags)] {
        let format = ToolFormat { syntax: CallSyntax::Json, marks };
        form(seed, format, |_, calls| written(format, calls));
    }
}

#[test]
fn xml_calls() {
    for (seed, marks) in [(5, CallMarks::Special), (6, CallMarks::Tags)] {
        let format = ToolFormat { syntax: CallSyntax::Xml, marks };
        // A text's type must be known, since nothing in the form shows it.
        form(seed, format, |_, calls| written(format, calls));
    }
}

#[test]
fn nonsense_never_panics_and_every_delta_is_valid() {
    const FRAGMENTS: [&str; 42] = [
        "<|tool_call_start|>[f(#='#')]<|tool_call_end|>",
        "[g.h(#=[1, '#']), f()]<|tool_call_end|>",
        "<think>",
        "</think>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=#>",
        "</parameter>",
        "<function name=\"f\">",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        ",",
        "=",
        ":",
        "'",
        "\"",
        "\\",
        "\n",
        " ",
        "f(",
        "g.h(",
        "#='#'",
        "#=\"#\", ",
        "#",
        "{\"name\": \"f\", \"arguments\": {\"#\": \"#\"}}",
        "f(#=1), ",
        "🙂",
        "<|",
        "</",
        "[f(#='#')]",
        "'''",
        "1",
    ];
    let mut random = Random(7);
    let tools = Tools::from_json(&[json!({"name": "f"}), json!({"name": "g.h"})]).unwrap();
    let mut called = 0;
    for round in 0..10_000 {
        let marks = if round % 2 == 0 { CallMarks::Special } else { CallMarks::Tags };
        let options = OutputOptions {
            format: ToolFormat { syntax: CallSyntax::Pythonic, marks },
            tools: if random.one_in(3) { Tools::default() } else { tools.clone() },
            reasoning_open: random.one_in(5),
            ..OutputOptions::default()
        };
        let mut words = Vec::new();
        let mut text = String::new();
        for _ in 0..random.below(24) {
            let fragment = random.pick(&FRAGMENTS);
            for piece in fragment.split_inclusive('#') {
                text.push_str(piece.trim_end_matches('#'));
                if piece.ends_with('#') {
                    words.push(format!("w{}z", words.len()));
                    text.push_str(&words[words.len() - 1]);
                }
            }
        }
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = rest.char_indices().nth(1 + random.below(9)).map_or(rest.len(), |(at, _)| at);
            pieces.push(&rest[..end]);
            rest = &rest[end..];
        }
        let (answer, deltas) = read(&mut OutputParser::new(options.clone()), &pieces);
        check(&deltas, &text);
        assert_eq!(answer, read(&mut OutputParser::new(options), &[&text]).0, "{text}");
        let shown = format!("{answer:?}");
        for word in words {
            assert!(shown.contains(&word), "{word} is lost: {text}\n{shown}");
        }
        called += usize::from(!answer.calls.is_empty());
    }
    assert!(called > 1000, "{called}");
}

/// Deltas that say something, calls in order and one at a time, arguments that are objects.
fn check(deltas: &[Delta], text: &str) {
    let mut open: Option<(usize, String)> = None;
    let mut next = 0;
    for delta in deltas {
        match delta {
            Delta::Reasoning(t) | Delta::Content(t) => assert!(!t.is_empty() && open.is_none(), "{text}"),
            Delta::CallStart { index, name } => {
                assert!(*index == next && open.is_none() && !name.is_empty(), "{text}");
                open = Some((*index, String::new()));
                next += 1;
            }
            Delta::CallArguments { index, fragment } => {
                let (at, arguments) = open.as_mut().unwrap();
                assert_eq!(at, index);
                arguments.push_str(fragment);
            }
            Delta::CallEnd { index } => {
                let (at, arguments) = open.take().unwrap();
                assert_eq!(at, *index);
                let value: Value = serde_json::from_str(&arguments).unwrap_or_else(|e| panic!("{e}: {text}"));
                assert!(value.is_object(), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(open.is_none(), "{text}");
}
