//! The routes of laya's server. Its checks are `systemone` and `anemone_decide`; schemathesis holds this to them.

use serde_json::{Value, json};

use super::{Facts, Writer};
use crate::shape::Components;
use crate::systemone::{MAX_CHOICES, MAX_LEN, MAX_LEVELS, MAX_QUESTIONS, MAX_STATES, MAX_TOURNAMENT};

/// What has something else than white space, as Rust counts it and not as expressions do.
const SAID: &str = "[^\\s\\u0085]|\\uFEFF";

/// Something that is asked: a text, or any JSON that says it.
fn instructions() -> Value {
    json!({
        "description": "What is asked: a text, or JSON that is written as text. Not blank.",
        "anyOf": [
            {"type": "string", "pattern": SAID},
            {"type": "array", "minItems": 1},
            {"type": "object", "minProperties": 1},
            {"type": ["boolean", "number"]},
        ],
    })
}

fn questions(components: &mut Components, facts: Facts<'_>) -> Value {
    let labels = if facts.has_tournaments { MAX_TOURNAMENT } else { MAX_CHOICES };
    let question = |kind: &str, criteria: Value, required: &[&str], labels: Value| {
        json!({
            "type": "object",
            "properties": {
                "type": {"const": kind},
                "instructions": instructions(),
                "criteria": criteria,
                "labels": labels,
                "option_order": {
                    "type": ["array", "null"],
                    "items": {"type": "integer", "minimum": 0},
                    "description": "The order in which options are shown to the model: each of their places once.",
                },
            },
            "required": required,
        })
    };
    let name = |kind: &str| format!("{}{}Question", kind[..1].to_uppercase(), &kind[1..]);
    let none = json!({"type": "null", "description": "For questions of type noul."});
    let choice = question(
        "choice",
        json!({
            "description": "The labels: a list of different ones, or an object of labels with what they mean.",
            "anyOf": [
                {
                    "type": "array", "minItems": 1, "maxItems": labels, "uniqueItems": true,
                    "items": {"type": ["string", "number", "boolean"]},
                },
                {"type": "object", "minProperties": 1, "maxProperties": labels},
            ],
        }),
        &["type", "instructions", "criteria"],
        none.clone(),
    );
    let score = question(
        "score",
        json!({
            "description": "The levels, the lowest first.",
            "type": "array", "minItems": 1, "maxItems": MAX_LEVELS, "items": {"not": {"type": "null"}},
        }),
        &["type", "instructions", "criteria"],
        none,
    );
    let truth = json!({"type": "string", "pattern": SAID});
    let noul = question(
        "noul",
        json!({
            "description": "What false and true mean.",
            "type": ["object", "null"],
            "properties": {"true": {}, "false": {}},
            "propertyNames": {"pattern": "^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE])$"},
        }),
        &["type", "instructions"],
        json!({
            "description": "Two different words for false and true.",
            "type": ["object", "null"],
            "properties": {"false": truth, "true": truth},
            "required": ["false", "true"],
            "additionalProperties": false,
        }),
    );
    let each: Vec<Value> = [("choice", choice), ("score", score), ("noul", noul)]
        .into_iter()
        .map(|(kind, schema)| components.name(&name(kind), |_| schema))
        .collect();
    components.name("Questions", |_| {
        json!({
            "description": "Questions by their ids, which are not blank; 512 options in all.",
            "type": "object",
            "maxProperties": MAX_QUESTIONS,
            "propertyNames": {"pattern": SAID},
            "additionalProperties": {"anyOf": each},
        })
    })
}

fn nullable(kind: &str, about: &str) -> Value {
    json!({"type": [kind, "null"], "description": about})
}

fn tokens(about: &str) -> Value {
    json!({"type": ["integer", "null"], "minimum": 1, "maximum": MAX_LEN, "description": about})
}

fn controls(components: &mut Components, facts: Facts<'_>) -> Value {
    let buckets: Vec<String> = ["choice", "score", "noul"]
        .iter()
        .flat_map(|kind| ["2", "3-5", "6-10", "11+"].map(|size| format!("{kind}:{size}")))
        .chain(["default".to_owned()])
        .collect();
    let bound = json!({"type": "number", "minimum": 0, "maximum": 1});
    let refused = |why: &str| json!({"type": "null", "description": why});
    let hook = "Runs in the caller's process and cannot be sent.";
    json!({
        "questions": questions(components, facts),
        "model": {
            "type": ["string", "null"],
            // No place and no name of another repository.
            "pattern": "^\\s*([^./\\\\~\\s][^/\\\\]*)?$",
            "description": "A decision model of this server; without a name, and for names of other services' models, the server chooses.",
        },
        "task": {"type": "null", "description": "The name of a task's model, where the server has one."},
        "lang": nullable("string", "The language of the state, as \"de\"."),
        "lang_guess": nullable("string", "The language of the state where its text does not say."),
        "max_len": tokens("Most tokens of a row; questions must fit in with their options."),
        "head_max_len": tokens("Most tokens of a question."),
        "min_confidence": {
            "description": "The least confidence of an answer that counts, or one by kind and number of options.",
            "anyOf": [
                bound,
                {
                    "type": "object", "minProperties": 1, "propertyNames": {"enum": buckets}, "additionalProperties": bound,
                },
                {"type": "null"},
            ],
        },
        "hooks": refused(hook),
        "hooks_raise": refused(hook),
        "hooks_timeout": refused(hook),
        "on_predict_end": refused(hook),
        "on_predict_start": refused(hook),
    })
}

/// A state: any JSON but null.
fn state() -> Value {
    json!({
        "description": "What is asked about: a text, or any other JSON; 50 000 characters at most.",
        "not": {"type": "null"},
    })
}

pub(super) fn request(components: &mut Components, facts: Facts<'_>) -> Value {
    let mut properties = controls(components, facts);
    properties["state"] = state();
    json!({"type": "object", "properties": properties, "required": ["state", "questions"]})
}

pub(super) fn batch_request(components: &mut Components, facts: Facts<'_>) -> Value {
    let mut properties = controls(components, facts);
    properties["states"] = json!({"type": "array", "items": state(), "minItems": 1, "maxItems": MAX_STATES});
    properties["batch_size"] = json!({"type": ["integer", "null"], "minimum": 1, "description": "States computed at once, at most."});
    properties["sort_by_length"] = nullable("boolean", "Changes nothing here.");
    properties["diagnostics"] =
        json!({"type": "null", "description": "Filled in place for a caller in the same process."});
    json!({"type": "object", "properties": properties, "required": ["states", "questions"]})
}

fn answers() -> Value {
    let share = json!({"type": "number", "minimum": 0, "maximum": 1});
    let shares = json!({"type": "object", "additionalProperties": share});
    let mut kinds = Vec::new();
    for (kind, own) in [
        ("noul", json!({"noul": share})),
        ("choice", json!({"choice": {"type": ["string", "number", "boolean"]}, "probabilities": shares})),
        (
            "score",
            json!({"score": {"type": "number"}, "legend": {"type": "object"}, "probabilities": shares}),
        ),
    ] {
        let own = own.as_object().cloned().unwrap_or_default();
        let mut required: Vec<&str> = vec!["type"];
        required.extend(own.keys().map(String::as_str));
        let mut properties = json!({
            "type": {"const": kind},
            "confidence": share,
            "answer_confidence": share,
            "action": {
                "type": "object", "properties": {"act_probability": share}, "required": ["act_probability"],
            },
            "x_jev_confidence": {"type": "number"},
            "x_tournament": {"type": "object"},
            "low_confidence": {"const": true},
            "abstention": {"enum": ["passed", "abstained", "unevaluated"]},
            "abstention_threshold": share,
        });
        for (key, value) in &own {
            properties[key] = value.clone();
        }
        kinds.push(json!({"type": "object", "properties": properties, "required": required}));
    }
    json!({"type": "object", "additionalProperties": {"anyOf": kinds}})
}

fn result() -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    json!({
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "answers": answers(),
            "usage": {
                "type": "object",
                "properties": {
                    "input_tokens": count, "output_tokens": {"const": 0}, "state_tokens": count,
                    "state_tokens_dropped": count, "truncated": {"type": "boolean"},
                    "truncated_questions": {"type": "array", "items": {"type": "string"}},
                    "options": {"type": "object"},
                },
                "required": ["input_tokens", "output_tokens"],
            },
            "routing": {
                "description": "Which model answered and why.",
                "type": "object",
                "properties": {
                    "model": {"type": "string"}, "repo": {"type": "string"}, "reason": {"type": "string"},
                },
                "required": ["model", "reason"],
            },
        },
        "required": ["model", "answers", "usage"],
    })
}

pub(super) fn reply(writer: &mut Writer) -> Value {
    writer.components.name("Decided", |_| result())
}

pub(super) fn batch_reply(writer: &mut Writer) -> Value {
    let each = reply(writer);
    let count = json!({"type": "integer", "minimum": 0});
    json!({
        "type": "object",
        "properties": {
            "results": {"type": "array", "items": each},
            "total_usage": {
                "type": "object",
                "properties": {"input_tokens": count, "output_tokens": count},
                "required": ["input_tokens", "output_tokens"],
            },
        },
        "required": ["results", "total_usage"],
    })
}
