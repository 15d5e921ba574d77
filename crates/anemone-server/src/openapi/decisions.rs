//! `/v1/decisions`. Its checks are `decisions`; schemathesis holds this to them.

use serde_json::{Value, json};

use super::{Facts, Writer};
use crate::shape::Components;

fn part(kind: &str, key: &str, schema: Value) -> Value {
    let mut properties = json!({"type": {"const": kind}});
    properties[key] = schema;
    json!({"type": "object", "properties": properties, "required": ["type", key]})
}

/// A text or parts of it.
fn content(parts: &[&str]) -> Value {
    let text = || json!({"type": "string"});
    let each: Vec<Value> = parts
        .iter()
        .map(|kind| match *kind {
            "input_json" => part(kind, "data", json!({"type": ["object", "array"]})),
            "refusal" => part(kind, "refusal", text()),
            kind => part(kind, "text", text()),
        })
        .collect();
    json!({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"anyOf": each}}]})
}

fn message(roles: &[&str], parts: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": {"type": {"const": "message"}, "role": {"enum": roles}, "content": content(parts)},
        "required": ["role", "content"],
    })
}

fn call(kind: &str, input: &str) -> Value {
    let text = json!({"type": "string"});
    let mut properties = json!({"type": {"const": kind}, "call_id": text, "name": text});
    properties[input] = text;
    json!({"type": "object", "properties": properties, "required": ["type", "call_id", "name", input]})
}

fn output(kind: &str) -> Value {
    json!({
        "type": "object",
        "properties": {
            "type": {"const": kind},
            "call_id": {"type": "string", "description": "That of a call before it."},
            "output": content(&["input_text"]),
        },
        "required": ["type", "call_id", "output"],
    })
}

fn question(components: &mut Components) -> Value {
    components.name("DecisionQuestion", |_| {
        let mut instructions = content(&["input_text", "input_json"]);
        instructions["description"] = "What is asked; not blank.".into();
        let described = json!({"type": ["string", "null"]});
        let kinds = [
            ("predicate", None),
            (
                "choice",
                Some((
                    "choices",
                    json!({
                        "type": "array", "minItems": 2, "maxItems": 255,
                        "description": "Each value once; 512 choices and levels of all questions together.",
                        "items": {
                            "type": "object",
                            "properties": {"value": {"type": ["string", "boolean"]}, "description": described},
                            "required": ["value"],
                        },
                    }),
                )),
            ),
            (
                "score",
                Some((
                    "levels",
                    json!({
                        "type": "array", "minItems": 1, "description": "The lowest first.",
                        "items": {
                            "type": "object",
                            "properties": {"label": {"type": "string"}, "description": described},
                            "required": ["label"],
                        },
                    }),
                )),
            ),
        ];
        let each: Vec<Value> = kinds
            .into_iter()
            .map(|(kind, own)| {
                let mut properties = json!({
                    "type": {"const": kind},
                    "name": {"type": ["string", "null"]},
                    "instructions": instructions,
                });
                let mut required = vec!["type", "instructions"];
                if let Some((key, schema)) = own {
                    properties[key] = schema;
                    required.push(key);
                }
                json!({"type": "object", "properties": properties, "required": required})
            })
            .collect();
        json!({"anyOf": each})
    })
}

pub(super) fn request(components: &mut Components, _: Facts<'_>) -> Value {
    let item = components.name("DecisionInput", |_| {
        json!({"anyOf": [
            message(&["user"], &["input_text", "input_json"]),
            message(&["developer", "system"], &["input_text"]),
            message(&["assistant"], &["output_text", "refusal"]),
            call("function_call", "arguments"),
            call("custom_tool_call", "input"),
            output("function_call_output"),
            output("custom_tool_call_output"),
        ]})
    });
    let unused = "Taken as OpenAI takes it; changes nothing here.";
    json!({
        "type": "object",
        "properties": {
            "model": {
                "type": "string",
                "pattern": "^\\s*([^./\\\\~\\s][^/\\\\]*)?$",
                "description": "A decision model of this server; for names of other services' models the server chooses.",
            },
            "input": {
                "description": "What is asked about; 50 000 characters at most.",
                "anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": item}],
            },
            "questions": {"type": "array", "minItems": 1, "maxItems": 400, "items": question(components)},
            "prompt_cache_key": {"type": ["string", "null"], "description": unused},
            "prompt_cache_options": {"type": ["object", "null"], "description": unused},
            "safety_identifier": {"type": ["string", "null"], "description": unused},
        },
        "required": ["model", "input", "questions"],
        "additionalProperties": false,
    })
}

pub(super) fn reply(_: &mut Writer) -> Value {
    let share = json!({"type": "number", "minimum": 0, "maximum": 1});
    let name = json!({"type": ["string", "null"]});
    let value = json!({"type": ["string", "boolean"]});
    let count = json!({"type": "integer", "minimum": 0});
    let object = |properties: Value| {
        let required: Vec<&String> =
            properties.as_object().map(|map| map.keys().collect()).unwrap_or_default();
        json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
    };
    let answers = [
        object(json!({"type": {"const": "predicate"}, "name": name, "probability": share})),
        object(json!({
            "type": {"const": "choice"}, "name": name, "choice": value, "confidence": share,
            "probabilities": {"type": "array", "items": object(json!({"value": value, "probability": share}))},
        })),
        object(json!({
            "type": {"const": "score"}, "name": name, "score": {"type": "number"}, "confidence": share,
            "probabilities": {
                "type": "array",
                "items": object(json!({"value": count, "label": {"type": "string"}, "probability": share})),
            },
        })),
    ];
    object(json!({
        "model": {"type": "string"},
        "answers": {"type": "array", "items": {"anyOf": answers}},
        "usage": object(json!({
            "input_tokens": count,
            "input_tokens_details": object(json!({"cache_write_tokens": count, "cached_tokens": count})),
            "output_tokens": count,
            "output_tokens_details": object(json!({"reasoning_tokens": count})),
            "total_tokens": count,
        })),
    }))
}
