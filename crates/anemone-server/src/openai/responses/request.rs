use anemone_session::{GenerateOptions, Grammar, Job, Message, ToolChoice, Tools};
use serde_json::{Map, Value, json};

use super::Answer;
use crate::app::App;
use crate::openai::choice::Choice;
use crate::openai::fields::Fields;
use crate::openai::generation::Usage;
use crate::openai::prompt::{Prompt, Wishes};
use crate::openai::refusal::{ApiError, Checked};
use crate::openai::{now, unique};

/// The response to make, the job that makes it, and whether it is streamed.
pub(super) fn read(app: &App, bytes: &[u8]) -> Checked<(Answer, Job, bool)> {
    let mut fields = Fields::parse(bytes)?;
    let language = app.language(fields.take::<String>("model", "a string")?.as_deref())?;
    let instructions: Option<String> = fields.take("instructions", "a string")?;
    let mut messages: Vec<Message> = instructions.iter().map(Message::system).collect();
    messages.extend(input(fields.value("input"))?);
    let defaults = language.defaults();
    let mut sampling = defaults.sampling.clone();
    sampling.temperature = fields.number("temperature", 0.0..=2.0)?.unwrap_or(sampling.temperature);
    sampling.top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(sampling.top_p);
    let most = fields.count("max_output_tokens", 1..=usize::MAX)?;
    let options =
        GenerateOptions { sampling, max_new_tokens: most.or(defaults.max_new_tokens), ..defaults.clone() };
    let streamed = fields.flag("stream")?;
    let given = fields.value("tools");
    let (tools, declared) = tools(given.as_ref())?;
    let chosen = fields.value("tool_choice");
    let choice = ToolChoice::from_json(chosen.as_ref().unwrap_or(&Value::Null))
        .map_err(|error| ApiError::session(&error, "tool_choice"))?;
    let parallel = fields.take("parallel_tool_calls", "true or false")?.unwrap_or(true);
    let text = fields.value("text");
    let answer = text.as_ref().map_or(Ok(None), form)?;
    let metadata = fields.value("metadata");
    for key in ["previous_response_id", "conversation"] {
        fields.refuse(
            key,
            "is not supported, since nothing is kept here; send the whole conversation as 'input'",
        )?;
    }
    for key in ["prompt", "context_management"] {
        fields.refuse(key, "is not supported; leave it out")?;
    }
    if fields.flag("background")? {
        return Err(ApiError::field("background", "is not supported; leave it out"));
    }
    fields.ignore(&[
        "include",
        "max_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "top_logprobs",
        "truncation",
        "user",
    ]);
    fields.finish()?;
    let mut echoed = Map::new();
    echoed.insert("instructions".into(), json!(instructions));
    echoed.insert("max_output_tokens".into(), json!(most));
    echoed.insert("metadata".into(), metadata.unwrap_or_else(|| json!({})));
    echoed.insert("parallel_tool_calls".into(), parallel.into());
    echoed.insert("temperature".into(), options.sampling.temperature.into());
    echoed.insert("text".into(), text.unwrap_or_else(|| json!({"format": {"type": "text"}})));
    echoed.insert("tool_choice".into(), chosen.unwrap_or_else(|| "auto".into()));
    echoed.insert("tools".into(), given.unwrap_or_else(|| json!([])));
    echoed.insert("top_p".into(), options.sampling.top_p.into());
    let wishes = Wishes { tools, declared, choice, parallel, answer, kwargs: Map::new() };
    let prompt = Prompt::render(&language, &messages, wishes)?;
    let job = prompt.job(&language, vec![options]);
    let answer = Answer {
        language,
        id: unique("resp_"),
        created: now(),
        echoed,
        choice: Choice::new(prompt.output),
        usage: Usage::default(),
        items: Vec::new(),
        sent: 0,
    };
    Ok((answer, job, streamed))
}

/// The form an answer must have.
fn form(text: &Value) -> Checked<Option<Grammar>> {
    let Some(format) = text.get("format").filter(|format| !format.is_null()) else { return Ok(None) };
    let wrong = |problem: &str| Err(ApiError::field("text.format", problem));
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::JsonObject)),
        Some("json_schema") => match format.get("schema") {
            Some(schema) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
            None => wrong("has no schema; give it as 'schema'"),
        },
        _ => wrong("must have the type 'text', 'json_object' or 'json_schema'"),
    }
}

/// Tools in the shape templates know.
fn tools(given: Option<&Value>) -> Checked<(Vec<Value>, Tools)> {
    let none = Vec::new();
    let list = match given {
        None => &none,
        Some(Value::Array(list)) => list,
        Some(_) => return Err(ApiError::field("tools", "must be a list of functions")),
    };
    let mut tools = Vec::with_capacity(list.len());
    for (index, tool) in list.iter().enumerate() {
        if tool.get("type").and_then(Value::as_str) != Some("function") {
            return Err(ApiError::field(format!("tools[{index}].type"), "must be 'function'"));
        }
        let part = |key: &str| tool.get(key).cloned().unwrap_or(Value::Null);
        let function = json!({"name": part("name"), "description": part("description"), "parameters": part("parameters")});
        tools.push(json!({"type": "function", "function": function}));
    }
    let declared = Tools::from_json(&tools).map_err(|error| ApiError::session(&error, "tools"))?;
    Ok((tools, declared))
}

fn input(value: Option<Value>) -> Checked<Vec<Message>> {
    let items = match value {
        Some(Value::String(text)) => return Ok(vec![Message::user(text)]),
        Some(Value::Array(items)) if !items.is_empty() => items,
        _ => return Err(ApiError::field("input", "must be a string or a list of items, not empty")),
    };
    let mut messages: Vec<Message> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let at = format!("input[{index}]");
        let string = |key: &str| {
            let value = item.get(key).and_then(Value::as_str);
            value.ok_or_else(|| ApiError::field(format!("{at}.{key}"), "must be a string"))
        };
        match item.get("type").and_then(Value::as_str).unwrap_or("message") {
            "message" => {
                let role = match string("role")? {
                    "developer" => "system",
                    role @ ("system" | "user" | "assistant") => role,
                    other => {
                        let problem = format!("is '{other}'; use system, developer, user or assistant");
                        return Err(ApiError::field(format!("{at}.role"), &problem));
                    }
                };
                let mut message = Message::user(content(item.get("content"), &format!("{at}.content"))?);
                role.clone_into(&mut message.role);
                // Reasoning and calls of the same turn are items of their own before it.
                match messages.last_mut().filter(|last| role == "assistant" && last.content.is_none()) {
                    Some(last) if last.role == "assistant" => last.content = message.content,
                    _ => messages.push(message),
                }
            }
            "reasoning" => {
                let text = content(item.get("content").or(item.get("summary")), &format!("{at}.content"))?;
                let turn = assistant(&mut messages);
                turn.reasoning_content = (!text.is_empty()).then_some(text);
            }
            "function_call" => {
                let function = json!({"name": string("name")?, "arguments": string("arguments")?});
                let call = json!({"id": string("call_id")?, "type": "function", "function": function});
                assistant(&mut messages).tool_calls.get_or_insert_default().push(call);
            }
            "function_call_output" => {
                let mut result = Message::user(content(item.get("output"), &format!("{at}.output"))?);
                "tool".clone_into(&mut result.role);
                result.extra.insert("tool_call_id".into(), string("call_id")?.into());
                messages.push(result);
            }
            other => {
                let problem = format!("is '{other}', which is not supported");
                return Err(ApiError::field(format!("{at}.type"), &problem));
            }
        }
    }
    Ok(messages)
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
fn content(value: Option<&Value>, at: &str) -> Checked<String> {
    let parts = match value {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(ApiError::field(at, "must be a string or a list of parts")),
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        let place = format!("{at}[{index}]");
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        let key = if kind == "refusal" { "refusal" } else { "text" };
        if !matches!(
            kind,
            "input_text" | "output_text" | "reasoning_text" | "summary_text" | "text" | "refusal"
        ) {
            return Err(ApiError::field(
                place,
                &format!("is of type '{kind}', which this model cannot read; give text"),
            ));
        }
        let own = part.get(key).and_then(Value::as_str);
        text.push_str(own.ok_or_else(|| ApiError::field(format!("{place}.{key}"), "must be a string"))?);
    }
    Ok(text)
}
