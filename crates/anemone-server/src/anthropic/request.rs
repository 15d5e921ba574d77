use anemone_session::{GenerateOptions, Grammar, Job, Message as Said, ToolChoice, Tools};
use serde_json::{Value, json};

use super::Message;
use crate::app::App;
use crate::openai::choice::Choice;
use crate::openai::fields::Fields;
use crate::openai::generation::Usage;
use crate::openai::prompt::{Prompt, Wishes};
use crate::openai::refusal::{ApiError, Checked};
use crate::openai::unique;

/// The message to make, the job that makes it, and whether it is streamed.
pub(super) fn read(app: &App, bytes: &[u8]) -> Checked<(Message, Job, bool)> {
    let mut fields = Fields::parse(bytes)?;
    let language = app.language(fields.take::<String>("model", "a string")?.as_deref())?;
    let mut messages = system(fields.value("system"))?;
    match fields.value("messages") {
        Some(Value::Array(turns)) if !turns.is_empty() => {
            for (index, turn) in turns.iter().enumerate() {
                messages.extend(said(turn, &format!("messages[{index}]"))?);
            }
        }
        _ => return Err(ApiError::field("messages", "must be a list of messages, not empty")),
    }
    let most = fields.count("max_tokens", 1..=usize::MAX)?;
    let most = most.ok_or_else(|| ApiError::field("max_tokens", "must be given: an integer, 1 or more"))?;
    let defaults = language.defaults();
    let mut sampling = defaults.sampling.clone();
    sampling.temperature = fields.number("temperature", 0.0..=1.0)?.unwrap_or(sampling.temperature);
    sampling.top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(sampling.top_p);
    sampling.top_k = fields.count("top_k", 0..=usize::MAX)?.unwrap_or(sampling.top_k);
    let options = GenerateOptions {
        sampling,
        max_new_tokens: Some(most),
        stop_strings: fields.take("stop_sequences", "a list of strings")?.unwrap_or_default(),
        ..defaults.clone()
    };
    let streamed = fields.flag("stream")?;
    let (tools, declared) = tools(&mut fields)?;
    let (choice, parallel) = choice(fields.value("tool_choice"))?;
    let answer = fields.value("output_config").as_ref().map_or(Ok(None), form)?;
    fields.ignore(&[
        "cache_control",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "thinking",
        "user_profile_id",
        "workspace_id",
    ]);
    fields.refuse("container", "is not supported; leave it out")?;
    fields.refuse("mcp_servers", "is not supported; leave it out")?;
    fields.finish()?;
    let wishes = Wishes { tools, declared, choice, parallel, answer, ..Wishes::default() };
    let prompt = Prompt::render(&language, &messages, wishes)?;
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

/// The form an answer must have.
fn form(config: &Value) -> Checked<Option<Grammar>> {
    let Some(format) = config.get("format").filter(|format| !format.is_null()) else { return Ok(None) };
    let is_schema = format.get("type").and_then(Value::as_str) == Some("json_schema");
    match format.get("schema").filter(|_| is_schema) {
        Some(schema) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
        None => Err(ApiError::field(
            "output_config.format",
            "must be {\"type\": \"json_schema\", \"schema\": {…}}",
        )),
    }
}

fn system(value: Option<Value>) -> Checked<Vec<Said>> {
    match value {
        None => Ok(Vec::new()),
        Some(value) => Ok(vec![Said::system(text(&value, "system")?)]),
    }
}

/// A text, or blocks of text, which are its paragraphs.
fn text(value: &Value, at: &str) -> Checked<String> {
    let wrong = |at: &str| ApiError::field(at, "must be a string, or a list of blocks of type 'text'");
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let texts = blocks.iter().enumerate().map(|(index, block)| {
                let is_text = block.get("type").and_then(Value::as_str) == Some("text");
                let text = block.get("text").and_then(Value::as_str).filter(|_| is_text);
                text.ok_or_else(|| wrong(&format!("{at}[{index}]")))
            });
            Ok(texts.collect::<Checked<Vec<&str>>>()?.join("\n"))
        }
        _ => Err(wrong(at)),
    }
}

/// A turn as the messages of a template: results of tools are messages of their own.
fn said(turn: &Value, at: &str) -> Checked<Vec<Said>> {
    let role = turn.get("role").and_then(Value::as_str).unwrap_or_default();
    if !matches!(role, "user" | "assistant") {
        return Err(ApiError::field(format!("{at}.role"), "must be 'user' or 'assistant'"));
    }
    let at = format!("{at}.content");
    let blocks = match turn.get("content") {
        Some(Value::String(text)) => {
            return Ok(vec![if role == "user" { Said::user(text) } else { Said::assistant(text.as_str()) }]);
        }
        Some(Value::Array(blocks)) if !blocks.is_empty() => blocks,
        _ => return Err(ApiError::field(at, "must be a string or a list of blocks, not empty")),
    };
    let (mut texts, mut reasoning, mut calls, mut said) = (Vec::new(), String::new(), Vec::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{at}[{index}]");
        let string = |key: &str| {
            let value = block.get(key).and_then(Value::as_str);
            value.ok_or_else(|| ApiError::field(format!("{place}.{key}"), "must be a string"))
        };
        match (string("type")?, role) {
            ("text", _) => texts.push(string("text")?),
            ("thinking", "assistant") => reasoning.push_str(string("thinking")?),
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let arguments = block.get("input").unwrap_or(&Value::Null).to_string();
                let function = json!({"name": string("name")?, "arguments": arguments});
                calls.push(json!({"id": string("id")?, "type": "function", "function": function}));
            }
            ("tool_result", "user") => {
                let content = block
                    .get("content")
                    .map_or(Ok(String::new()), |c| text(c, &format!("{place}.content")))?;
                let mut result = Said::user(content);
                "tool".clone_into(&mut result.role);
                result.extra.insert("tool_call_id".to_owned(), string("tool_use_id")?.into());
                said.push(result);
            }
            (other, _) => {
                let problem = format!("is of type '{other}', which this model cannot read from the {role}");
                return Err(ApiError::field(place, &problem));
            }
        }
    }
    let text = texts.join("\n");
    if role == "assistant" {
        let mut message = Said::assistant(text);
        message.tool_calls = (!calls.is_empty()).then_some(calls);
        message.reasoning_content = (!reasoning.is_empty()).then_some(reasoning);
        said.push(message);
    } else if !text.is_empty() || said.is_empty() {
        said.push(Said::user(text));
    }
    Ok(said)
}

/// Anthropic's tools in OpenAI's shape, which templates know.
fn tools(fields: &mut Fields) -> Checked<(Vec<Value>, Tools)> {
    let list: Vec<Value> = fields.take("tools", "a list of tools")?.unwrap_or_default();
    let mut tools = Vec::with_capacity(list.len());
    for (index, tool) in list.into_iter().enumerate() {
        if tool.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "custom") {
            let at = format!("tools[{index}].type");
            return Err(ApiError::field(
                at,
                "must be 'custom'; tools that run on the server are not supported",
            ));
        }
        let part = |key: &str| tool.get(key).cloned().unwrap_or(Value::Null);
        let function = json!({"name": part("name"), "description": part("description"), "parameters": part("input_schema")});
        tools.push(json!({"type": "function", "function": function}));
    }
    let declared = Tools::from_json(&tools).map_err(|error| ApiError::session(&error, "tools"))?;
    Ok((tools, declared))
}

fn choice(value: Option<Value>) -> Checked<(ToolChoice, bool)> {
    let Some(value) = value else { return Ok((ToolChoice::Auto, true)) };
    let single = value.get("disable_parallel_tool_use").and_then(Value::as_bool).unwrap_or(false);
    let choice = match value.get("type").and_then(Value::as_str) {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => match value.get("name").and_then(Value::as_str) {
            Some(name) => ToolChoice::Named(name.to_owned()),
            None => return Err(ApiError::field("tool_choice.name", "must be a tool's name")),
        },
        _ => return Err(ApiError::field("tool_choice.type", "must be 'auto', 'any', 'tool' or 'none'")),
    };
    Ok((choice, !single))
}
