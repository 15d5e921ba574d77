//! What the server says about itself and its models.

use anemone_decide::{Routes, Value};

use crate::language::Language;

fn map(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Map(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// `/health`; no more than that it is well for those who may not ask.
pub(crate) fn health(loaded: &[String], routes: &Routes, whole: bool) -> Value {
    let ok = ("status", Value::text("ok"));
    if !whole {
        return map([ok]);
    }
    let each = |value: &Value| Value::Map(loaded.iter().map(|name| (name.clone(), value.clone())).collect());
    let here = routes.models().iter().filter(|(name, _)| loaded.contains(name));
    let none = map([("count", Value::int(0)), ("last_reason", Value::Null)]);
    map([
        ok,
        ("loaded", Value::List(loaded.iter().map(Value::text).collect())),
        ("revisions", Value::Map(here.map(|(name, _)| (name.clone(), Value::Null)).collect())),
        ("device", Value::text("cpu")),
        ("device_is_preference", Value::Bool(loaded.is_empty())),
        ("checkpoint_devices", each(&Value::text("cpu"))),
        ("cpu_fallbacks", each(&none)),
    ])
}

/// `/v1/models`: OpenAI's list, with `loaded` and `default` besides.
pub(crate) fn list(loaded: &[String], routes: &Routes, languages: &[Language], started: u64) -> Value {
    let entry = |(name, _): &(String, String)| {
        map([
            ("id", Value::text(name)),
            ("object", Value::text("model")),
            ("created", Value::int(started)),
            ("owned_by", Value::text("anemone")),
            ("loaded", Value::Bool(loaded.contains(name))),
            ("default", Value::Bool(name == routes.default_model())),
        ])
    };
    let language = |(index, language): (usize, &Language)| {
        map([
            ("id", Value::text(language.name())),
            ("object", Value::text("model")),
            ("created", Value::int(started)),
            ("owned_by", Value::text("anemone")),
            ("loaded", Value::Bool(true)),
            ("default", Value::Bool(index == 0)),
            ("max_model_len", Value::int(language.context_len() as u64)),
        ])
    };
    let decisions = routes.models().iter().map(entry);
    let data = decisions.chain(languages.iter().enumerate().map(language)).collect();
    map([("object", Value::text("list")), ("data", Value::List(data))])
}
