use minijinja::Value as JinjaValue;
use serde_json::{Map, Value};

use crate::{Error, Message, Result, ToolFormat};

/// A message as templates expect it; with `write_calls`, tool calls become text of the content in that format.
pub(super) fn to_jinja(
    index: usize,
    message: &Message,
    write_calls: Option<ToolFormat>,
) -> Result<JinjaValue> {
    let error =
        |key: &str, problem: &str| Error::Message { index, key: key.to_owned(), problem: problem.to_owned() };
    if message.role.is_empty() {
        return Err(error("role", "is empty; write system, user, assistant or tool"));
    }
    let mut content = message.content.clone().unwrap_or_else(|| Value::String(String::new()));
    if !(content.is_string() || content.is_array()) {
        return Err(error("content", "is neither a string, a list of parts nor null; write one of these"));
    }
    // The older form of a single call.
    let single = message.extra.get("function_call").filter(|call| !call.is_null());
    let given = message.tool_calls.iter().flatten();
    let calls = (given.chain(single.filter(|_| message.tool_calls.is_none())).enumerate())
        .map(|(at, call)| parse_arguments(index, at, call))
        .collect::<Result<Vec<_>>>()?;
    let mut fields = Map::new();
    if let Some(format) = write_calls.filter(|_| !calls.is_empty()) {
        append_text(&mut content, &calls_as_text(format, &calls));
    }
    fields.insert("role".into(), message.role.clone().into());
    fields.insert("content".into(), content);
    if write_calls.is_none() && !calls.is_empty() {
        fields.insert("tool_calls".into(), Value::Array(calls));
    }
    if let Some(reasoning) = &message.reasoning_content {
        fields.insert("reasoning_content".into(), reasoning.clone().into());
    }
    for (key, value) in &message.extra {
        fields.entry(key.clone()).or_insert_with(|| value.clone());
    }
    mirror_reasoning(&mut fields);
    Ok(json_to_jinja(&Value::Object(fields)))
}

/// A JSON value as a template value, keys in order.
pub(super) fn json_to_jinja(value: &Value) -> JinjaValue {
    match value {
        Value::Null => JinjaValue::from(()),
        Value::Bool(b) => (*b).into(),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => i.into(),
            (None, Some(u)) => u.into(),
            (None, None) => n.as_f64().unwrap_or(f64::NAN).into(),
        },
        Value::String(s) => s.as_str().into(),
        Value::Array(items) => items.iter().map(json_to_jinja).collect(),
        Value::Object(map) => JinjaValue::from_pairs(map.iter().map(|(k, v)| (k.as_str(), json_to_jinja(v)))),
    }
}

/// A call with arguments that came as JSON text replaced by the object they are.
fn parse_arguments(index: usize, at: usize, call: &Value) -> Result<Value> {
    let mut call = call.clone();
    let key = format!("tool_calls[{at}].function.arguments");
    let error = |problem: String| Error::Message { index, key: key.clone(), problem };
    // Some clients leave out the wrapper and send the function alone.
    if call.get("function").is_none() && call.get("name").is_some() {
        let mut wrapped = Map::new();
        wrapped.insert("type".into(), "function".into());
        wrapped.insert("function".into(), call);
        call = Value::Object(wrapped);
    }
    let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
        return Err(Error::Message {
            index,
            key: format!("tool_calls[{at}].function"),
            problem: "is missing; write an object with name and arguments".into(),
        });
    };
    let parsed = match function.get("arguments") {
        Some(Value::Object(_)) => return Ok(call),
        None | Some(Value::Null) => Map::new(),
        Some(Value::String(text)) if text.trim().is_empty() => Map::new(),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map_err(|e| error(format!("is not an object in JSON ({e}); repair the text")))?,
        Some(_) => return Err(error("is neither an object nor JSON text of one; write one of these".into())),
    };
    function.insert("arguments".into(), Value::Object(parsed));
    Ok(call)
}

fn calls_as_text(format: ToolFormat, calls: &[Value]) -> String {
    let none = Map::new();
    let calls: Vec<(&str, &Map<String, Value>)> = calls
        .iter()
        .map(|call| {
            let function = &call["function"];
            let arguments = function["arguments"].as_object().unwrap_or(&none);
            (function["name"].as_str().unwrap_or_default(), arguments)
        })
        .collect();
    format.write(&calls)
}

fn append_text(content: &mut Value, text: &str) {
    match content {
        Value::String(s) => s.push_str(text),
        Value::Array(parts) => parts.push(serde_json::json!({"type": "text", "text": text})),
        _ => {}
    }
}

fn mirror_reasoning(fields: &mut Map<String, Value>) {
    let found = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|key| fields.get(*key).filter(|v| v.as_str().is_some_and(|s| !s.is_empty())).cloned());
    if let Some(reasoning) = found {
        for key in ["reasoning_content", "thinking"] {
            fields.entry(key).or_insert_with(|| reasoning.clone());
        }
    }
}
