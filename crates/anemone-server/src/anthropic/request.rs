use anemone_session::{GenerateOptions, Grammar, Job, Message as Said, ToolChoice, Tools};
use serde_json::{Value, json};

use super::Message;
use crate::language::Language;
use crate::openai::choice::Choice;
use crate::openai::fields::Fields;
use crate::openai::generation::{Usage, strings};
use crate::openai::prompt::{Prompt, Wishes};
use crate::openai::refusal::{ApiError, Checked};
use crate::openai::unique;

/// The message to make, the job that makes it, and whether it is streamed.
pub(super) fn read(mut fields: Fields, language: Language) -> Checked<(Message, Job, bool)> {
    let prompt = conversation(&mut fields, &language)?;
    let defaults = language.defaults();
    let mut sampling = defaults.sampling.clone();
    sampling.temperature = fields.number("temperature").unwrap_or(sampling.temperature);
    sampling.top_p = fields.number("top_p").unwrap_or(sampling.top_p);
    sampling.top_k = fields.count("top_k").unwrap_or(sampling.top_k);
    let options = GenerateOptions {
        sampling,
        max_new_tokens: fields.count("max_tokens"),
        stop_strings: strings(fields.list("stop_sequences").unwrap_or_default()),
        ..defaults.clone()
    };
    let streamed = fields.flag("stream").unwrap_or(false);
    let job = prompt.job(&language, vec![options]);
    let message = Message {
        language,
        id: unique("msg_"),
        choice: Choice::new(prompt.output),
        usage: Usage::default(),
        open: None,
        blocks: 0,
    };
    Ok((message, job, streamed))
}

/// The conversation as the model reads it.
pub(super) fn conversation(fields: &mut Fields, language: &Language) -> Checked<Prompt> {
    let system = fields.value("system");
    let mut messages: Vec<Said> = system.iter().map(|value| Said::system(text(value))).collect();
    for turn in fields.list("messages").unwrap_or_default() {
        said(&turn, &mut messages);
    }
    let (tools, declared) = tools(&fields.list("tools").unwrap_or_default())?;
    let (choice, parallel) = choice(fields.value("tool_choice"));
    let answer = fields.value("output_config").as_ref().and_then(form);
    let wishes = Wishes { tools, declared, choice, parallel, answer, ..Wishes::default() };
    Prompt::render(language, &messages, wishes)
}

/// The form an answer must have.
fn form(config: &Value) -> Option<Grammar> {
    Some(Grammar::JsonSchema(config.get("format")?.get("schema")?.clone()))
}

/// A text, or blocks of text, which are its paragraphs.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// Adds a turn as the messages of a template: results of tools are messages of their own.
fn said(turn: &Value, messages: &mut Vec<Said>) {
    let is_user = turn["role"] == "user";
    let blocks = match &turn["content"] {
        Value::Array(blocks) => blocks,
        content => {
            let role = if is_user { "user" } else { "assistant" };
            return messages.push(Said::new(role, text(content)));
        }
    };
    let (mut texts, mut reasoning, mut calls, mut results) = (Vec::new(), String::new(), Vec::new(), 0);
    for block in blocks {
        let string = |key: &str| block[key].as_str().unwrap_or_default();
        match string("type") {
            "text" => texts.push(string("text")),
            "thinking" => reasoning.push_str(string("thinking")),
            "tool_use" => {
                let function = json!({"name": string("name"), "arguments": block["input"].to_string()});
                calls.push(json!({"id": string("id"), "type": "function", "function": function}));
            }
            "tool_result" => {
                let mut result = Said::tool(block.get("content").map_or(String::new(), text));
                result.extra.insert("tool_call_id".to_owned(), string("tool_use_id").into());
                messages.push(result);
                results += 1;
            }
            _ => {}
        }
    }
    let text = texts.join("\n");
    if !is_user {
        let mut message = Said::assistant(text);
        message.tool_calls = (!calls.is_empty()).then_some(calls);
        message.reasoning_content = (!reasoning.is_empty()).then_some(reasoning);
        messages.push(message);
    } else if !text.is_empty() || results == 0 {
        messages.push(Said::user(text));
    }
}

/// Anthropic's tools in OpenAI's shape, which templates know.
fn tools(list: &[Value]) -> Checked<(Vec<Value>, Tools)> {
    let tools: Vec<Value> = list
        .iter()
        .map(|tool| {
            let part = |key: &str| tool.get(key).cloned().unwrap_or(Value::Null);
            let function =
                json!({"name": part("name"), "description": part("description"), "parameters": part("input_schema")});
            json!({"type": "function", "function": function})
        })
        .collect();
    let declared = Tools::from_json(&tools).map_err(|error| ApiError::session(&error, "tools"))?;
    Ok((tools, declared))
}

fn choice(value: Option<Value>) -> (ToolChoice, bool) {
    let Some(value) = value else { return (ToolChoice::Auto, true) };
    let single = value["disable_parallel_tool_use"].as_bool().unwrap_or(false);
    let choice = match value["type"].as_str() {
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => ToolChoice::Named(value["name"].as_str().unwrap_or_default().to_owned()),
        _ => ToolChoice::Auto,
    };
    (choice, !single)
}
