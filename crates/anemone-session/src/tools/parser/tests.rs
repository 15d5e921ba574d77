use serde_json::json;

use super::super::{Answer, CallSyntax};
use super::*;

fn tools() -> Tools {
    Tools::from_json(&[
        json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}}),
        json!({"name": "get_weather"}),
    ])
    .unwrap()
}

fn options() -> OutputOptions {
    OutputOptions { tools: tools(), ..OutputOptions::default() }
}

fn tags() -> OutputOptions {
    let format = ToolFormat { syntax: CallSyntax::Json, marks: CallMarks::Tags };
    OutputOptions { format, ..options() }
}

fn read(options: &OutputOptions, pieces: &[&str]) -> Answer {
    let mut parser = OutputParser::new(options.clone());
    let mut answer = Answer::default();
    for piece in pieces {
        for delta in parser.push(piece) {
            answer.push(&delta);
        }
    }
    for delta in parser.finish() {
        answer.push(&delta);
    }
    answer
}

/// Reasoning, content and calls in one line.
fn line(answer: &Answer) -> String {
    let calls: Vec<String> = answer.calls.iter().map(|c| format!("{}{}", c.name, c.arguments)).collect();
    format!("{}|{}|{}", answer.reasoning, answer.content, calls.join(" "))
}

/// The whole text at once, each cut in two, and character by character give the same.
fn everywhere(options: &OutputOptions, text: &str) -> String {
    let whole = read(options, &[text]);
    for (at, _) in text.char_indices() {
        assert_eq!(read(options, &[&text[..at], &text[at..]]), whole, "{text:?} cut at {at}");
    }
    let chars: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(read(options, &chars.iter().map(String::as_str).collect::<Vec<_>>()), whole, "{text:?}");
    line(&whole)
}

const S: &str = "<|tool_call_start|>";
const E: &str = "<|tool_call_end|>";

#[test]
fn reasoning_comes_first_and_is_not_searched() {
    for (text, expected) in [
        ("<think>hm</think>Hi", "hm|Hi|"),
        (" \n<think>\n a\n\n b \n</think>\n\nHi \n", "a\n\n b|Hi|"),
        ("<think></think>Hi", "|Hi|"),
        ("<think>never ends ", "never ends||"),
        (
            "<think>a <|tool_call_start|>[f()]<|tool_call_end|></think>b",
            "a <|tool_call_start|>[f()]<|tool_call_end|>|b|",
        ),
        ("Hi <think>x</think>", "|Hi <think>x</think>|"),
        ("<think>a</think></think>b", "a|</think>b|"),
        ("<thin>", "|<thin>|"),
        ("", "||"),
        (" \n", "| \n|"),
        ("<think>a</thin</think> b</think>", "a</thin|b</think>|"),
    ] {
        assert_eq!(everywhere(&options(), text), expected, "{text:?}");
    }
    let opened = OutputOptions { reasoning_open: true, ..options() };
    for (text, expected) in
        [("hm</think>\nHi", "hm|Hi|"), ("\n<think>hm</think>Hi", "hm|Hi|"), ("hm", "hm||"), ("<th", "<th||")]
    {
        assert_eq!(everywhere(&opened, text), expected, "{text:?}");
    }
    let off = OutputOptions { reasoning: false, ..options() };
    assert_eq!(everywhere(&off, "<think>a</think>b"), "|<think>a</think>b|");
    assert!(OutputOptions::opens_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!OutputOptions::opens_reasoning("<think>a</think>"));
}

#[test]
fn calls_between_marks() {
    for (text, expected) in [
        ("{S}[f(s='a', n=1)]{E}", r#"||f{"s":"a","n":1}"#),
        ("I look. \n{S}[f(s=1), g(x=None)]{E}\n", r#"|I look.|f{"s":"1"} g{"x":null}"#),
        ("{S}[f()]{E} and {S}[g()]{E} done\n", "|and done|f{} g{}"),
        ("{S}[f()]{E}{S}[g()]{E}", "||f{} g{}"),
        ("{S}[f()]{S}[g()]{E}", "||f{} g{}"),
        ("a\n{S}[f()]{E}\n\nb\n\n{S}[f()]{E} c", "|a\nb\n\nc|f{} f{}"),
        ("{S}f(s='x'){E}", r#"||f{"s":"x"}"#),
        ("{S}[f(s='x')]", r#"||f{"s":"x"}"#),
        ("{S}[f(s='x'), g(y=", r#"|g(y=|f{"s":"x"}"#),
        ("{S}[f(s='x')] It is sunny.{E} Yes.", r#"|It is sunny. Yes.|f{"s":"x"}"#),
        ("{S}[f(s='x')]\nIt is sunny. ", r#"|It is sunny.|f{"s":"x"}"#),
        ("{S}[f(s=), g(), h('x')]{E}", "|f(s=)\nh('x')|g{}"),
        ("{S}{\"name\": \"f\", \"arguments\": {\"s\": \"a\\nb\"}}{E}", "||f{\"s\":\"a\\nb\"}"),
        ("{S}[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]{E}", "||f{} g{}"),
        ("{S}<function=f>\n<parameter=s>\n1\n</parameter>\n</function>{E}", r#"||f{"s":"1"}"#),
        ("{S}[]{E}Hi", "|Hi|"),
        ("a {S}nothing here{E} b", "|a {S}nothing here{E} b|"),
        ("a {S}", "|a {S}|"),
        ("{S}[f(1)]{E}", "|{S}[f(1)]{E}|"),
        ("stray {E} mark", "|stray {E} mark|"),
        ("{S}[f(s='line\nbreak\u{1}')]{E}", "||f{\"s\":\"line\\nbreak\\u0001\"}"),
        ("{S}[f(s='ls 'a b' | wc')]{E}", r#"||f{"s":"ls 'a b' | wc"}"#),
        (
            "<think>x</think>\n\n{S}[get_weather(from='a', month=07)]{E}",
            r#"x||get_weather{"from":"a","month":7}"#,
        ),
        ("a <|tool_call_star", "|a <|tool_call_star|"),
    ] {
        let (text, expected) =
            (text.replace("{S}", S).replace("{E}", E), expected.replace("{S}", S).replace("{E}", E));
        assert_eq!(everywhere(&options(), &text), expected, "{text:?}");
    }
}

#[test]
fn tagged_calls() {
    for (text, expected) in [
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}\n</tool_call>", r#"||f{"s":"a"}"#),
        (
            "ok\n<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
            "|ok|f{} g{}",
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=s>\na < b\n</parameter>\n</function>\n</tool_call>",
            r#"||f{"s":"a < b"}"#,
        ),
        ("<tool_call>f(s='a')</tool_call>", r#"||f{"s":"a"}"#),
        ("<|tool_call_start|>[f()]<|tool_call_end|>", "||f{}"),
        ("The <tool_call> tag begins a call. ", "|The <tool_call> tag begins a call. |"),
    ] {
        assert_eq!(everywhere(&tags(), text), expected, "{text:?}");
    }
    // The other format does not know the tag.
    assert_eq!(
        everywhere(&options(), "<tool_call>{\"name\": \"f\"}</tool_call>"),
        "|<tool_call>{\"name\": \"f\"}</tool_call>|"
    );
}

/// What a limit cut off leaks no marks, and of a call it has what is complete.
#[test]
fn calls_that_were_cut_off() {
    let tagged = |text: &str| format!("{{\"name\": \"f\", \"arguments\": {text}");
    for (options, text, expected) in [
        (options(), format!("Hi{S}[f(s='x', t='y"), r#"|Hi|f{"s":"x""#),
        (options(), format!("{S}[f(s='x"), "||f{"),
        (options(), format!("{S}[f(s='x'), get_wea"), r#"||f{"s":"x"}"#),
        (options(), format!("{S}[f(s='x'), get_weather("), r#"||f{"s":"x"} get_weather{"#),
        (options(), format!("{S}[f(s='x')"), r#"||f{"s":"x"}"#),
        (options(), format!("{S}[f(s='x')]<|tool_"), r#"||f{"s":"x"}"#),
        (options(), format!("{S}["), "||"),
        (options(), format!("{S}[unknown(a=1"), "||"),
        (options(), "just text, cut".to_owned(), "|just text, cut|"),
        (options(), "<think>hm".to_owned(), "hm||"),
        (tags(), format!("<tool_call>{}", tagged("{\"s\": \"x")), r#"||f{"s": "x"#),
    ] {
        let mut parser = OutputParser::new(options);
        let mut answer = Answer::default();
        let deltas = [parser.push(&text), parser.finish_cut()].concat();
        for delta in &deltas {
            answer.push(delta);
        }
        assert_eq!(line(&answer), expected, "{text}");
        assert_eq!(parser.has_calls(), !answer.calls.is_empty());
    }
}

#[test]
fn bare_calls_only_if_they_are_all_there_is() {
    for (text, expected) in [
        ("[f(s='a')]", r#"||f{"s":"a"}"#),
        (" [f(s='a'), get_weather()]\n", r#"||f{"s":"a"} get_weather{}"#),
        ("[{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}]", r#"||f{"s":"a"}"#),
        ("{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}", r#"||f{"s":"a"}"#),
        ("<think>x</think>\n[f()]", "x||f{}"),
        ("[f(s='a')] then", "|[f(s='a')] then|"),
        ("Call [f(s='a')]", "|Call [f(s='a')]|"),
        ("[f](http://x)", "|[f](http://x)|"),
        ("[f (see)](http://x) ", "|[f (see)](http://x) |"),
        ("[f(s='a'), g()]", "|[f(s='a'), g()]|"),
        ("[f(s='a')", "|[f(s='a')|"),
        ("[f(s=)]", "|[f(s=)]|"),
        ("[]", "|[]|"),
        ("[1, 2, 3]\n", "|[1, 2, 3]\n|"),
        ("{\"name\": \"Ann\", \"age\": 3}", "|{\"name\": \"Ann\", \"age\": 3}|"),
        ("f(s='a')", "|f(s='a')|"),
        ("[f()]<|tool_call_start|>[f()]<|tool_call_end|>", "|[f()]|f{}"),
    ] {
        assert_eq!(everywhere(&options(), text), expected, "{text:?}");
    }
    let undeclared = OutputOptions::default();
    assert_eq!(everywhere(&undeclared, "[f(s='a')]"), "|[f(s='a')]|");
}

#[test]
fn without_calls_the_text_stays() {
    let none = OutputOptions { calls: false, ..options() };
    let text = format!("a {S}[f()]{E} \n");
    assert_eq!(everywhere(&none, &text), format!("|{text}|"));
    assert_eq!(everywhere(&none, "[f()]"), "|[f()]|");
}

#[test]
fn text_is_given_as_soon_as_it_can_be() {
    let mut parser = OutputParser::new(options());
    let content = |text: &str| vec![Delta::Content(text.into())];
    assert_eq!(parser.push("A li"), content("A li"));
    assert_eq!(parser.push("nk [f"), content("nk [f"));
    assert_eq!(parser.push("] < b"), content("] < b"));
    assert_eq!(parser.push(" <|tool"), []);
    assert_eq!(parser.push("s|> "), content(" <|tools|>"));
    assert_eq!(parser.push("<|tool_call_start|>[f(s='a')"), []);
    let call = [
        Delta::CallStart { index: 0, name: "f".into() },
        Delta::CallArguments { index: 0, fragment: "{\"s\":\"a\"}".into() },
        Delta::CallEnd { index: 0 },
    ];
    assert_eq!(parser.push("]"), call);
    assert!(parser.has_calls() && parser.finish().is_empty());
    let mut linked = OutputParser::new(options());
    assert_eq!(linked.push("[get"), []);
    assert_eq!(linked.push(" it"), content("[get it"));
    let mut thinking = OutputParser::new(OutputOptions { reasoning_open: true, ..options() });
    assert!(thinking.is_reasoning());
    assert_eq!(thinking.push("so "), [Delta::Reasoning("so".into())]);
    assert!(thinking.is_reasoning());
    assert_eq!(
        thinking.push("be it</think> y"),
        [Delta::Reasoning(" be it".into()), Delta::Content("y".into())]
    );
    assert!(!thinking.is_reasoning());
}
