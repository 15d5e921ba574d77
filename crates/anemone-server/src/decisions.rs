//! `/v1/decisions`: the same decisions in the shape of OpenAI's API.

use std::time::Instant;

use anemone_decide::{Decision, Decisions, Error, Hints, Kind, Question, Request, Router, Value, round4};
use axum::extract;
use axum::response::Response;

use crate::app::App;
use crate::refusal::{Refusal, json};
use crate::systemone::{self, Checked};

const MAX_QUESTIONS: usize = 400;
/// Fields of a request; all but the first three change nothing.
const FIELDS: [&str; 6] =
    ["model", "input", "questions", "prompt_cache_key", "prompt_cache_options", "safety_identifier"];
const CHOICES: std::ops::RangeInclusive<usize> = 2..=255;

pub(crate) async fn create(app: &App, request: extract::Request) -> Checked<Response> {
    let (permit, body) = app.admit(request).await?;
    let Some(fields) = body.as_map() else {
        return Err(Refusal::malformed("the request body must be an object"));
    };
    if let Some((name, _)) = fields.iter().find(|(name, _)| !FIELDS.contains(&name.as_str())) {
        return Err(wrong(name, "is no field of this request; leave it out"));
    }
    for key in ["prompt_cache_key", "safety_identifier"] {
        if body.get(key).is_some_and(|value| *value != Value::Null && value.as_str().is_none()) {
            return Err(missing(key, "a string"));
        }
    }
    let cache = body.get("prompt_cache_options");
    if cache.is_some_and(|value| *value != Value::Null && value.as_map().is_none()) {
        return Err(missing("prompt_cache_options", "an object"));
    }
    let name = body.get("model").and_then(Value::as_str).ok_or_else(|| missing("model", "a string"))?;
    let state = state(body.get("input").ok_or_else(|| missing("input", "a string or a list"))?)?;
    systemone::size(&state).map_err(|refusal| refusal.about("input"))?;
    let asked = body.get("questions").and_then(Value::as_list).unwrap_or_default();
    let questions = questions(asked)?;
    let names: Vec<Value> = asked.iter().map(|q| q.get("name").cloned().unwrap_or(Value::Null)).collect();
    let hints = Hints {
        model: systemone::model(app, &Value::text(name)).map_err(|r| r.about("model"))?,
        ..Hints::default()
    };
    let work = move |models: &mut Router, _: crate::worker::Wanted<'_>| {
        let start = Instant::now();
        let route = models.routes().route(&state, &questions, &hints)?;
        let decided = models.model(&route.model)?.decide(&state, &questions, &Request::default())?;
        let result = result(&route.model, &names, &questions, &decided);
        Ok((result, start.elapsed().as_secs_f64() * 1e3))
    };
    let answered: Result<_, Error> = app.worker().run(permit, work).await?;
    let (result, ms) = answered.map_err(|error| Refusal::of(&error))?;
    Ok(systemone::timed(json(&result), ms))
}

fn missing(key: &str, expected: &str) -> Refusal {
    wrong(key, &format!("must be {expected}"))
}

fn wrong(key: &str, problem: &str) -> Refusal {
    Refusal::malformed(format!("'{key}' {problem}")).about(key)
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(entries.map(|(key, value)| (key.to_owned(), value)).into())
}

fn field<'a>(value: &'a Value, key: &str, at: &str) -> Checked<&'a str> {
    value.get(key).and_then(Value::as_str).ok_or_else(|| missing(&format!("{at}.{key}"), "a string"))
}

/// The state of an input: a text, or a list of turns, calls and outputs. One user message alone is its content.
fn state(input: &Value) -> Checked<Value> {
    let items = match input {
        Value::Text(_) => return Ok(input.clone()),
        Value::List(items) if !items.is_empty() => items,
        _ => return Err(missing("input", "a string or a list of items, not empty")),
    };
    let (mut turns, mut calls) = (Vec::with_capacity(items.len()), Vec::new());
    for (i, item) in items.iter().enumerate() {
        let at = format!("input[{i}]");
        let kind = match item.get("type") {
            None if item.get("role").is_some() => "message",
            _ => field(item, "type", &at)?,
        };
        let named = |key: &str| field(item, key, &at).map(Value::text);
        let turn = match kind {
            "message" => message(item, &at)?,
            "function_call" | "custom_tool_call" => {
                calls.push(field(item, "call_id", &at)?);
                let arguments = if kind == "function_call" { "arguments" } else { "input" };
                map([("type", Value::text(kind)), ("name", named("name")?), (arguments, named(arguments)?)])
            }
            "function_call_output" | "custom_tool_call_output" => {
                let call = field(item, "call_id", &at)?;
                if !calls.contains(&call) {
                    let problem = format!("is '{call}', which no call before it has");
                    return Err(wrong(&format!("{at}.call_id"), &problem));
                }
                let output = content(item.get("output"), &format!("{at}.output"), &["input_text"])?;
                map([("type", Value::text(kind)), ("output", output)])
            }
            other => {
                return Err(wrong(&format!("{at}.type"), &format!("is '{other}', which is not supported")));
            }
        };
        turns.push(turn);
    }
    if let [turn] = &turns[..]
        && turn.get("role").and_then(Value::as_str) == Some("user")
    {
        return Ok(turn.get("content").cloned().unwrap_or(Value::Null));
    }
    Ok(Value::List(turns))
}

fn message(item: &Value, at: &str) -> Checked<Value> {
    let role = field(item, "role", at)?;
    let parts: &[&str] = match role {
        "user" => &["input_text", "input_json"],
        "developer" | "system" => &["input_text"],
        "assistant" => &["output_text", "refusal"],
        other => {
            let problem = format!("is '{other}'; use user, developer, system or assistant");
            return Err(wrong(&format!("{at}.role"), &problem));
        }
    };
    let content = content(item.get("content"), &format!("{at}.content"), parts)?;
    Ok(map([("role", Value::text(role)), ("content", content)]))
}

/// Text or parts of it; several parts of text are its paragraphs, and a part of JSON alone is the value itself.
fn content(value: Option<&Value>, at: &str, allowed: &[&str]) -> Checked<Value> {
    let parts = match value {
        Some(Value::Text(text)) => return Ok(Value::text(text)),
        Some(Value::List(parts)) if !parts.is_empty() => parts,
        _ => return Err(missing(at, "a string or a list of parts, not empty")),
    };
    let mut read = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let kind = field(part, "type", &at)?;
        if kind == "input_image" {
            return Err(wrong(&at, "is an image, which these models cannot read; describe it in words"));
        }
        if !allowed.contains(&kind) {
            let problem = format!("is '{kind}'; use {}", allowed.join(" or "));
            return Err(wrong(&format!("{at}.type"), &problem));
        }
        read.push(match kind {
            "input_json" => match part.get("data") {
                Some(data @ (Value::Map(_) | Value::List(_))) => data.clone(),
                _ => return Err(missing(&format!("{at}.data"), "an object or a list of objects")),
            },
            "refusal" => Value::text(field(part, "refusal", &at)?),
            _ => Value::text(field(part, "text", &at)?),
        });
    }
    if read.len() == 1 {
        return Ok(read.remove(0));
    }
    let paragraphs: Vec<_> = read.iter().map(Value::rendered).collect();
    Ok(Value::text(paragraphs.join("\n")))
}

fn questions(questions: &[Value]) -> Checked<Vec<Question>> {
    if questions.is_empty() {
        return Err(missing("questions", "a list of questions, not empty"));
    }
    if questions.len() > MAX_QUESTIONS {
        let detail = format!("too many questions ({} > {MAX_QUESTIONS})", questions.len());
        return Err(Refusal::too_large(detail).about("questions"));
    }
    let mut total = 0;
    let each = questions.iter().enumerate().map(|(i, question)| {
        let at = format!("questions[{i}]");
        total += ["choices", "levels"]
            .iter()
            .filter_map(|key| Some(question.get(key)?.as_list()?.len()))
            .sum::<usize>();
        systemone::options_in_all(total).map_err(|refusal| refusal.about("questions"))?;
        parse(question, &at)
    });
    each.collect()
}

/// A question under the place it stands at, which messages call it by.
fn parse(question: &Value, at: &str) -> Checked<Question> {
    if question.get("name").is_some_and(|name| name.as_str().is_none() && *name != Value::Null) {
        return Err(missing(&format!("{at}.name"), "a string"));
    }
    let instructions =
        content(question.get("instructions"), &format!("{at}.instructions"), &["input_text", "input_json"])?;
    let (kind, options) = match field(question, "type", at)? {
        "predicate" => (Kind::Noul, None),
        "choice" => {
            let choices = list(question, "choices", at)?;
            if !CHOICES.contains(&choices.len()) {
                let problem = format!("has {} choices; give 2 to 255", choices.len());
                return Err(wrong(&format!("{at}.choices"), &problem));
            }
            (
                Kind::Choice,
                Some(
                    choices
                        .iter()
                        .enumerate()
                        .map(|(j, c)| choice(c, &format!("{at}.choices[{j}]")))
                        .collect::<Checked<Vec<_>>>()?,
                ),
            )
        }
        "score" => {
            let levels = list(question, "levels", at)?;
            (
                Kind::Score,
                Some(
                    levels
                        .iter()
                        .enumerate()
                        .map(|(j, l)| level(l, &format!("{at}.levels[{j}]")))
                        .collect::<Checked<Vec<_>>>()?,
                ),
            )
        }
        other => {
            let problem = format!("is '{other}'; use predicate, choice or score");
            return Err(wrong(&format!("{at}.type"), &problem));
        }
    };
    let mut definition = vec![("type", Value::text(kind.name())), ("instructions", instructions)];
    let mut described = Vec::new();
    if let Some(options) = options {
        let (labels, descriptions): (Vec<Value>, Vec<Option<String>>) = options.into_iter().unzip();
        definition.push(("criteria", Value::List(labels)));
        described = descriptions;
    }
    let definition = Value::Map(definition.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
    let mut question =
        Question::parse(at, &definition).map_err(|error| Refusal::malformed(error.to_string()).about(at))?;
    for (option, description) in question.options.iter_mut().zip(described) {
        if let Some(description) = description {
            option.push_str(": ");
            option.push_str(&description);
        }
    }
    Ok(question)
}

fn list<'a>(question: &'a Value, key: &str, at: &str) -> Checked<&'a [Value]> {
    let list = question.get(key).and_then(Value::as_list).filter(|list| !list.is_empty());
    list.ok_or_else(|| missing(&format!("{at}.{key}"), "a list, not empty"))
}

type Described = (Value, Option<String>);

fn description(value: &Value, at: &str) -> Checked<Option<String>> {
    match value.get("description") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(missing(&format!("{at}.description"), "a string")),
    }
}

fn choice(value: &Value, at: &str) -> Checked<Described> {
    match value.get("value") {
        Some(label @ (Value::Text(_) | Value::Bool(_))) => Ok((label.clone(), description(value, at)?)),
        _ => Err(missing(&format!("{at}.value"), "a string or a boolean")),
    }
}

fn level(value: &Value, at: &str) -> Checked<Described> {
    Ok((Value::text(field(value, "label", at)?), description(value, at)?))
}

fn result(model: &str, names: &[Value], questions: &[Question], decided: &Decisions) -> Value {
    let rows = names.iter().zip(questions).zip(&decided.0);
    let answers = rows.map(|((name, question), decision)| answer(name, question, decision)).collect();
    let usage = decided.usage();
    let tokens = usage.get("input_tokens").cloned().unwrap_or(Value::int(0));
    let none = || Value::int(0);
    let usage = map([
        ("input_tokens", tokens.clone()),
        ("input_tokens_details", map([("cache_write_tokens", none()), ("cached_tokens", none())])),
        ("output_tokens", none()),
        ("output_tokens_details", map([("reasoning_tokens", none())])),
        ("total_tokens", tokens),
    ]);
    map([("model", Value::text(model)), ("answers", Value::List(answers)), ("usage", usage)])
}

fn answer(name: &Value, question: &Question, decision: &Decision) -> Value {
    let p = decision.answer.probabilities();
    let best = (1..p.len()).fold(0, |best, i| if p[i] > p[best] { i } else { best });
    let confidence = round4(decision.answer.confidence());
    let each = |entry: &dyn Fn(usize, &Value) -> Value| {
        Value::List(question.labels.iter().enumerate().map(|(i, label)| entry(i, label)).collect())
    };
    match question.kind {
        Kind::Noul => {
            map([("type", Value::text("predicate")), ("name", name.clone()), ("probability", round4(p[1]))])
        }
        Kind::Choice => map([
            ("type", Value::text("choice")),
            ("name", name.clone()),
            ("choice", question.labels[best].clone()),
            ("confidence", confidence),
            (
                "probabilities",
                each(&|i, label| map([("value", label.clone()), ("probability", round4(p[i]))])),
            ),
        ]),
        Kind::Score => map([
            ("type", Value::text("score")),
            ("name", name.clone()),
            ("score", round4(p.iter().enumerate().map(|(i, p)| i as f64 * p).sum())),
            ("confidence", confidence),
            (
                "probabilities",
                each(&|i, label| {
                    let value = Value::int(i as i128);
                    map([("value", value), ("label", label.clone()), ("probability", round4(p[i]))])
                }),
            ),
        ]),
    }
}
