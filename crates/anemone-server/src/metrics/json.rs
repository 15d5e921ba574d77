//! `/metrics.json`: the same for people and scripts, with rates.

use axum::response::Response;
use serde_json::{Map, Value, json};

use super::energies;
use crate::app::App;
use crate::openai::refusal::respond;
use crate::pool::Shown;

/// All that is measured; what is not known is absent.
pub(crate) fn answer(app: &App) -> Response {
    let machine = app.options().machine;
    let mut process = json!({"uptime_seconds": app.uptime().as_secs_f64()});
    if let Some(bytes) = machine.resident.and_then(|resident| resident()) {
        process["resident_memory_bytes"] = bytes.into();
    }
    let models: Map<String, Value> =
        app.pool().shown().map(|shown| (shown.name.to_owned(), model(&shown))).collect();
    let decisions = app.worker().meters();
    let mut all = json!({
        "process": process,
        "models": models,
        "decisions": {
            "requests": decisions.requests.get(),
            "waiting": decisions.waiting.get(),
            "seconds": decisions.seconds.get(),
        },
    });
    let (energy, each) = energies(app);
    for (key, joules) in [("energy_joules", energy), ("energy_joules_per_token", each)] {
        if !joules.is_empty() {
            all[key] = joules.into_iter().map(|(part, joules)| (part, json!(joules))).collect();
        }
    }
    respond(&all)
}

fn model(shown: &Shown<'_>) -> Value {
    let told = shown.meters.snapshot();
    let phase = |(tokens, seconds): (u64, f64)| {
        let rate = if seconds > 0.0 { json!(tokens as f64 / seconds) } else { Value::Null };
        json!({"tokens": tokens, "seconds": seconds, "tokens_per_second": rate})
    };
    let acceptance =
        if told.drafted > 0 { json!(told.accepted as f64 / told.drafted as f64) } else { Value::Null };
    let mut value = json!({
        "loaded": shown.loaded,
        "sequences": {
            "running": told.running, "waiting": told.waiting, "finished": told.finished, "failed": told.failed,
        },
        // The first token of a sequence comes with its prompt; decoding begins after it.
        "prefill": phase(told.prefill),
        "decode": phase(told.decode),
        "cached_tokens": told.cached,
        "cache_hits": told.hits,
        "speculation": {
            "drafted_tokens": told.drafted, "accepted_tokens": told.accepted, "acceptance": acceptance,
        },
    });
    if let Some(cache) = shown.cache {
        value["prefix_cache"] = json!({"blocks": cache.blocks, "bytes": cache.bytes});
    }
    if let Some((usage, timings)) = told.last {
        value["last_request"] = json!({
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "prefill_seconds": timings.prefill_seconds,
            "decode_seconds": timings.decode_seconds,
        });
    }
    value
}
