//! What the server says about itself and its models.

use anemone_decide::{Routes, Value};

use crate::app::App;

pub(crate) fn map(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Map(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The models that failed with the reasons; none where there are none.
pub(crate) fn failed(app: &App) -> Option<(&'static str, Value)> {
    let broken = app.pool().residency().broken();
    let each = broken.into_iter().map(|(name, problem)| (name, Value::Text(problem))).collect::<Vec<_>>();
    (!each.is_empty()).then_some(("failed", Value::Map(each)))
}

/// `/health`; no more than that it is well for those who may not ask.
pub(crate) fn health(app: &App, whole: bool) -> Value {
    let ok = ("status", Value::text("ok"));
    if !whole {
        return map([ok]);
    }
    let loaded = app.worker().loaded();
    let each = |value: &Value| Value::Map(loaded.iter().map(|name| (name.clone(), value.clone())).collect());
    let here = app.models().models().iter().filter(|(name, _)| loaded.contains(name));
    let none = map([("count", Value::int(0)), ("last_reason", Value::Null)]);
    let mut fields = vec![
        ok,
        ("loaded", Value::List(loaded.iter().map(Value::text).collect())),
        ("revisions", Value::Map(here.map(|(name, _)| (name.clone(), Value::Null)).collect())),
        ("device", Value::text("cpu")),
        ("device_is_preference", Value::Bool(loaded.is_empty())),
        ("checkpoint_devices", each(&Value::text("cpu"))),
        ("cpu_fallbacks", each(&none)),
    ];
    if let Some(unload) = app.options().idle_unload {
        fields.push(("idle_unload_seconds", Value::int(unload.as_secs())));
        fields.push(("idle_seconds", Value::int(app.pool().residency().idle().as_secs())));
    }
    fields.extend(failed(app));
    map(fields)
}

/// `/v1/models`: OpenAI's list, with `kind`, `loaded`, `default` and `aliases` besides, and Jev's.
pub(crate) fn list(app: &App) -> Value {
    let data = entries(app).into_iter().map(|(_, entry)| entry).collect();
    map([("object", Value::text("list")), ("data", Value::List(data)), ("models", jev(app.models()))])
}

/// The decision models as Jev's clients look for them; any name that is no model's is one for the choice by language.
fn jev(routes: &Routes) -> Value {
    let entry = |name: &str, description: &str| {
        map([
            ("name", Value::text(name)),
            ("description", Value::text(description)),
            ("release_date", Value::text("")),
        ])
    };
    let each = routes.models().iter().map(|(name, _)| entry(name, "a decision model of this server"));
    let automatic = entry("jev-latest", "the decision model for the language of the text");
    let any = (!routes.models().is_empty()).then_some(automatic);
    Value::List(any.into_iter().chain(each).collect())
}

/// `/v1/models/{id}`: one entry, by name or alias.
pub(crate) fn find(app: &App, id: &str) -> Option<Value> {
    let known = entries(app).into_iter().find(|(names, _)| names.iter().any(|name| name == id));
    known.map(|(_, entry)| entry)
}

/// The names of each model, and how it is shown.
fn entries(app: &App) -> Vec<(Vec<String>, Value)> {
    let (routes, loaded) = (app.models(), app.worker().loaded());
    let entry = |kind: &str, names: Vec<String>, loaded: bool, default: bool, context: Option<usize>| {
        let aliases = names[1..].iter().map(Value::text).collect();
        let mut fields = vec![
            ("id", Value::text(&names[0])),
            ("object", Value::text("model")),
            ("created", Value::int(app.started())),
            ("owned_by", Value::text("anemone")),
            ("loaded", Value::Bool(loaded)),
            ("default", Value::Bool(default)),
            ("kind", Value::text(kind)),
            ("aliases", Value::List(aliases)),
        ];
        fields.extend(context.map(|length| ("max_model_len", Value::int(length as u64))));
        (names, map(fields))
    };
    let decisions = routes.models().iter().map(|(name, _)| {
        let aliases = routes.aliases(name).map(str::to_owned);
        let names = std::iter::once(name.clone()).chain(aliases).collect();
        entry("decision", names, loaded.contains(name), name == routes.default_model(), None)
    });
    let languages = app.pool().shown().enumerate().map(|(index, model)| {
        let names = std::iter::once(model.name.to_owned()).chain(model.aliases.iter().cloned()).collect();
        entry("language", names, model.loaded, index == 0, model.context_len)
    });
    decisions.chain(languages).collect()
}
