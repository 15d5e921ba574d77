use anemone_session::{GenerateOptions, Grammar, Job, Message, ToolChoice, Tools};
use serde_json::{Map, Value, json};

use super::Answer;
use super::items::Events;
use super::reply::Echoed;
use crate::language::Language;
use crate::openai::choice::Choice;
use crate::openai::fields::Fields;
use crate::openai::generation::Usage;
use crate::openai::prompt::{Prompt, Wishes};
use crate::openai::refusal::{ApiError, Checked};
use crate::openai::{now, unique};

/// The response to make, the job that makes it, and whether it is streamed.
pub(super) fn read(mut fields: Fields, language: Language) -> Checked<(Answer, Job, bool)> {
    let instructions = fields.text("instructions");
    let mut messages: Vec<Message> = instructions.iter().map(Message::system).collect();
    messages.extend(input(fields.value("input")));
    let defaults = language.defaults();
    let mut sampling = defaults.sampling.clone();
    sampling.temperature = fields.number("temperature").unwrap_or(sampling.temperature);
    sampling.top_p = fields.number("top_p").unwrap_or(sampling.top_p);
    let most = fields.count("max_output_tokens");
    let options =
        GenerateOptions { sampling, max_new_tokens: most.or(defaults.max_new_tokens), ..defaults.clone() };
    let streamed = fields.flag("stream").unwrap_or(false);
    let given = fields.list("tools").unwrap_or_default();
    let (tools, declared) = tools(&given)?;
    let chosen = fields.value("tool_choice");
    let choice = ToolChoice::from_json(chosen.as_ref().unwrap_or(&Value::Null))
        .map_err(|error| ApiError::session(&error, "tool_choice"))?;
    let parallel = fields.flag("parallel_tool_calls").unwrap_or(true);
    let text = fields.value("text");
    let answer = text.as_ref().and_then(form);
    let echoed = Echoed {
        instructions,
        max_output_tokens: most,
        metadata: fields.take("metadata")?.unwrap_or_default(),
        parallel_tool_calls: parallel,
        temperature: options.sampling.temperature,
        text: text.unwrap_or_else(|| json!({"format": {"type": "text"}})),
        tool_choice: chosen.unwrap_or_else(|| "auto".into()),
        tools: given,
        top_p: options.sampling.top_p,
    };
    let wishes = Wishes { tools, declared, choice, parallel, answer, kwargs: Map::new() };
    // Items are not the messages they become.
    let prompt = Prompt::render(&language, &messages, wishes).map_err(|error| {
        let is_message = error.param.as_deref().is_some_and(|param| param.starts_with("messages"));
        ApiError { param: if is_message { Some("input".to_owned()) } else { error.param }, ..error }
    })?;
    let job = prompt.job(&language, vec![options]);
    let answer = Answer {
        language,
        id: unique("resp_"),
        created: now(),
        echoed,
        choice: Choice::new(prompt.output),
        usage: Usage::default(),
        items: Vec::new(),
        events: Events::default(),
    };
    Ok((answer, job, streamed))
}

/// The form an answer must have.
fn form(text: &Value) -> Option<Grammar> {
    let format = text.get("format")?;
    match format["type"].as_str()? {
        "json_object" => Some(Grammar::JsonObject),
        "json_schema" => Some(Grammar::JsonSchema(format["schema"].clone())),
        _ => None,
    }
}

/// Tools in the shape templates know.
fn tools(list: &[Value]) -> Checked<(Vec<Value>, Tools)> {
    let tools: Vec<Value> = list
        .iter()
        .map(|tool| {
            let part = |key: &str| tool.get(key).cloned().unwrap_or(Value::Null);
            let function = json!({"name": part("name"), "description": part("description"), "parameters": part("parameters")});
            json!({"type": "function", "function": function})
        })
        .collect();
    let declared = Tools::from_json(&tools).map_err(|error| ApiError::session(&error, "tools"))?;
    Ok((tools, declared))
}

fn input(value: Option<Value>) -> Vec<Message> {
    let items = match value {
        Some(Value::String(text)) => return vec![Message::user(text)],
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    let mut messages: Vec<Message> = Vec::new();
    for item in &items {
        let string = |key: &str| item[key].as_str().unwrap_or_default();
        match item["type"].as_str().unwrap_or("message") {
            "reasoning" => {
                let given = item.get("content").filter(|content| !content.is_null());
                let text = content(given.or(item.get("summary")));
                let turn = assistant(&mut messages);
                turn.reasoning_content = (!text.is_empty()).then_some(text);
            }
            "function_call" => {
                let function = json!({"name": string("name"), "arguments": string("arguments")});
                let call = json!({"id": string("call_id"), "type": "function", "function": function});
                assistant(&mut messages).tool_calls.get_or_insert_default().push(call);
            }
            "function_call_output" => {
                let mut result = Message::tool(content(item.get("output")));
                result.extra.insert("tool_call_id".into(), string("call_id").into());
                messages.push(result);
            }
            _ => {
                let role = match string("role") {
                    "developer" => "system",
                    role => role,
                };
                let message = Message::new(role, content(item.get("content")));
                // Reasoning and calls of the same turn are items of their own before it.
                match messages.last_mut().filter(|last| role == "assistant" && last.content.is_none()) {
                    Some(last) if last.role == "assistant" => last.content = message.content,
                    _ => messages.push(message),
                }
            }
        }
    }
    messages
}

/// The assistant's turn that items go into: the last message, or a new one.
fn assistant(messages: &mut Vec<Message>) -> &mut Message {
    if messages.last().is_none_or(|last| last.role != "assistant") {
        messages.push(Message { role: "assistant".into(), ..Message::default() });
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// A text, or parts of it.
fn content(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text").or(part.get("refusal"))?.as_str()).collect()
        }
        _ => String::new(),
    }
}
