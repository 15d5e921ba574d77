//! What the server says about itself.

use serde_json::{Value, json};

use super::Writer;

/// An error of laya's routes.
pub(super) fn detail() -> Value {
    json!({
        "type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"], "additionalProperties": false,
    })
}

pub(super) fn model(writer: &mut Writer) -> Value {
    writer.components.name("Model", |_| {
        json!({
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "object": {"const": "model"},
                "created": {"type": "integer"},
                "owned_by": {"type": "string"},
                "loaded": {"type": "boolean", "description": "Whether it is in memory."},
                "default": {"type": "boolean", "description": "Whether it answers where no model is named."},
                "kind": {"enum": ["language", "decision"]},
                "aliases": {"type": "array", "items": {"type": "string"}, "description": "Other names it goes by."},
                "max_model_len": {"type": "integer", "description": "Most tokens a language model holds."},
            },
            "required": ["id", "object", "created", "owned_by", "loaded", "default", "kind", "aliases"],
        })
    })
}

pub(super) fn models(writer: &mut Writer) -> Value {
    json!({
        "type": "object",
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": model(writer)},
            "models": {
                "description": "The decision models as Jev's clients look for them.",
                "type": "array",
                "items": object(
                    &json!({
                        "name": {"type": "string"}, "description": {"type": "string"}, "release_date": {"type": "string"},
                    }),
                    &[],
                ),
            },
        },
        "required": ["object", "data", "models"],
    })
}

pub(super) fn health(_: &mut Writer) -> Value {
    json!({
        "type": "object",
        "properties": {
            "status": {"const": "ok"},
            "loaded": {"type": "array", "items": {"type": "string"}},
            "revisions": {"type": "object"},
            "device": {"type": "string"},
            "device_is_preference": {"type": "boolean"},
            "checkpoint_devices": {"type": "object", "additionalProperties": {"type": "string"}},
            "cpu_fallbacks": {"type": "object"},
            "idle_unload_seconds": {"type": "integer"},
            "idle_seconds": {"type": "integer"},
            "failed": failed(),
        },
        "required": ["status"],
    })
}

pub(super) fn ready(_: &mut Writer) -> Value {
    json!({"type": "object", "properties": {"status": {"const": "ready"}, "failed": failed()}, "required": ["status"]})
}

fn failed() -> Value {
    json!({
        "description": "Models that could not be loaded when they were last asked for, and why; absent where there are none.",
        "type": "object",
        "additionalProperties": {"type": "string"},
    })
}

/// What is not known is absent, a rate of nothing null.
pub(super) fn figures(_: &mut Writer) -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    let seconds = json!({"type": "number", "minimum": 0});
    let rate = json!({"type": ["number", "null"], "minimum": 0});
    let phase = object(&json!({"tokens": count, "seconds": seconds, "tokens_per_second": rate}), &[]);
    let model = object(
        &json!({
            "loaded": {"type": "boolean"},
            "sequences": object(&json!({"running": count, "waiting": count, "finished": count, "failed": count}), &[]),
            "prefill": phase,
            "decode": phase,
            "cached_tokens": count,
            "cache_hits": count,
            "speculation": object(&json!({"drafted_tokens": count, "accepted_tokens": count, "acceptance": rate}), &[]),
            "prefix_cache": object(&json!({"blocks": count, "bytes": count}), &[]),
            "last_request": object(
                &json!({
                    "prompt_tokens": count, "cached_tokens": count, "completion_tokens": count,
                    "prefill_seconds": seconds, "decode_seconds": seconds,
                }),
                &[],
            ),
        }),
        &["prefix_cache", "last_request"],
    );
    object(
        &json!({
            "process": object(
                &json!({"uptime_seconds": seconds, "resident_memory_bytes": count}),
                &["resident_memory_bytes"],
            ),
            "models": {"type": "object", "additionalProperties": model},
            "decisions": object(&json!({"requests": count, "waiting": count, "seconds": seconds}), &[]),
            "energy_joules": {"type": "object", "additionalProperties": seconds},
            "energy_joules_per_token": {"type": "object", "additionalProperties": seconds},
        }),
        &["energy_joules", "energy_joules_per_token"],
    )
}

/// An object of these fields and no others, all but some of them required.
fn object(properties: &Value, optional: &[&str]) -> Value {
    let keys = properties.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let required: Vec<&str> = keys.filter(|key| !optional.contains(key)).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

pub(super) fn description(_: &mut Writer) -> Value {
    json!({
        "type": "object",
        "properties": {"openapi": {"type": "string"}, "info": {"type": "object"}, "paths": {"type": "object"}},
        "required": ["openapi", "info", "paths"],
    })
}
