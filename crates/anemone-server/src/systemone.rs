//! `/v1/systemone` and `/v1/systemone/batch`: the checks of a request, in the order clients may rely on.

use std::time::Instant;

use anemone_decide::{Error, Gate, Hints, Question, Request, Value};
use axum::extract;
use axum::http::HeaderValue;
use axum::response::Response;
use tokio::sync::OwnedSemaphorePermit;

use crate::answers::{Ask, total_usage};
use crate::app::{App, Options};
use crate::refusal::{Refusal, json};

pub(crate) const MAX_STATES: usize = 64;
pub(crate) const MAX_QUESTIONS: usize = 64;
pub(crate) const MAX_CHOICES: usize = 100;
/// Labels of a choice that is held in rounds.
pub(crate) const MAX_TOURNAMENT: usize = 255;
pub(crate) const MAX_LEVELS: usize = 32;
/// Options of all questions together.
const MAX_OPTIONS: usize = 512;
/// Code points of a state.
const MAX_STATE: usize = 50_000;
/// Tokens a caller may ask a row to have.
pub(crate) const MAX_LEN: usize = 8192;
/// Tokens read in one pass at most.
const PASS_TOKENS: usize = 131_072;
/// Tokens of a row where the caller does not say.
const ROW_TOKENS: usize = 512;
/// Arguments of the reference implementation that are of its caller's process.
const HOOKS: [&str; 5] = ["hooks", "hooks_raise", "hooks_timeout", "on_predict_end", "on_predict_start"];

pub(crate) type Checked<T> = Result<T, Refusal>;

pub(crate) async fn one(app: &App, request: extract::Request) -> Checked<Response> {
    let (permit, body) = app.admit(request).await?;
    let Some(questions) = body.get("questions") else {
        return Err(Refusal::malformed("request body must be an object with a 'questions' field"));
    };
    let state = body.get("state").unwrap_or(&Value::Null);
    fits(app, questions, std::slice::from_ref(state))?;
    refuse_hooks(&body)?;
    let ask = check(app, &body, questions, || Ok(()))?;
    let state = vec![state.clone()];
    answer(app, permit, ask, state, 1, |mut results| results.pop().unwrap_or(Value::Null)).await
}

pub(crate) async fn batch(app: &App, request: extract::Request) -> Checked<Response> {
    let (permit, body) = app.admit(request).await?;
    let (Some(states), Some(questions)) = (body.get("states"), body.get("questions")) else {
        let detail = "request body must be an object with 'states' and 'questions' fields";
        return Err(Refusal::malformed(detail));
    };
    let states = states.as_list().filter(|states| !states.is_empty());
    let Some(states) = states else { return Err(Refusal::malformed("'states' must be a non-empty list")) };
    if states.len() > MAX_STATES {
        let detail = format!("too many states in batch ({} > {MAX_STATES})", states.len());
        return Err(Refusal::too_large(detail));
    }
    fits(app, questions, states)?;
    refuse_hooks(&body)?;
    if given(&body, "diagnostics").is_some() {
        return Err(Refusal::invalid(
            "diagnostics is filled in place for an in-process caller and cannot be returned over HTTP; read the per-group report \
             from the CLI or a local Router",
        ));
    }
    let mut size = None;
    let ask = check(app, &body, questions, || {
        size = given(&body, "batch_size").map(batch_size).transpose()?;
        match given(&body, "sort_by_length") {
            None | Some(Value::Bool(_)) => Ok(()),
            Some(_) => Err(Refusal::invalid("sort_by_length must be a boolean")),
        }
    })?;
    let row = ask.request.max_len.unwrap_or(ROW_TOKENS);
    let fits = (PASS_TOKENS / (row * ask.questions.len().max(1))).max(1);
    let pass = size.map_or(fits, |size| fits.min(size));
    let finish = |results: Vec<Value>| {
        let total = total_usage(&results);
        let entries = [("results", Value::List(results)), ("total_usage", total)];
        Value::Map(entries.map(|(key, value)| (key.to_owned(), value)).into())
    };
    answer(app, permit, ask, states.to_vec(), pass, finish).await
}

/// Has the states answered, `pass` of them at a time.
async fn answer(
    app: &App,
    permit: OwnedSemaphorePermit,
    ask: Ask,
    states: Vec<Value>,
    pass: usize,
    finish: impl FnOnce(Vec<Value>) -> Value,
) -> Checked<Response> {
    let work = move |models: &mut anemone_decide::Router, wanted: crate::worker::Wanted<'_>| {
        let start = Instant::now();
        let mut results = Vec::with_capacity(states.len());
        for states in states.chunks(pass) {
            if !wanted() {
                break;
            }
            results.extend(ask.answer(models, states)?);
        }
        Ok((results, start.elapsed().as_secs_f64() * 1e3))
    };
    let answered: Result<_, Error> = app.worker().run(permit, work).await?;
    let (results, ms) = answered.map_err(|error| Refusal::of(&error))?;
    Ok(timed(json(&finish(results)), ms))
}

/// A response with the milliseconds its models took.
pub(crate) fn timed(mut response: Response, ms: f64) -> Response {
    for (name, text) in
        [("server-timing", format!("inference;dur={ms:.2}")), ("x-inference-time-ms", format!("{ms:.2}"))]
    {
        if let Ok(value) = HeaderValue::try_from(text) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// A field that is there and not null.
fn given<'a>(body: &'a Value, key: &str) -> Option<&'a Value> {
    body.get(key).filter(|value| **value != Value::Null)
}

/// Refuses states and questions that are none or too large.
fn fits(app: &App, questions: &Value, states: &[Value]) -> Checked<()> {
    for state in states {
        if *state == Value::Null {
            return Err(Refusal::malformed("'state' is required"));
        }
        let Some(definitions) = questions.as_map() else {
            return Err(Refusal::malformed("'questions' must be an object"));
        };
        count(definitions, app.options())?;
        size(state)?;
    }
    Ok(())
}

fn refuse_hooks(body: &Value) -> Checked<()> {
    let given: Vec<&str> = HOOKS.into_iter().filter(|hook| given(body, hook).is_some()).collect();
    if given.is_empty() {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "{} run inside the server process and cannot be sent to this endpoint; install them where laya-serve runs, or drop them",
        given.join(", ")
    )))
}

/// The controls of both routes and the questions; `own` is what one of the routes checks after the controls.
fn check(app: &App, body: &Value, questions: &Value, own: impl FnOnce() -> Checked<()>) -> Checked<Ask> {
    let named = given(body, "model");
    let model = named.map(|value| model(app, value)).transpose()?.flatten();
    let unknown = named.filter(|_| model.is_none()).and_then(Value::as_str).and_then(stray);
    let max_len = budget(body, "max_len")?;
    let head_max_len = budget(body, "head_max_len")?;
    let hints = Hints {
        model,
        task: text(body, "task", "the name of a task, or null")?,
        language: text(body, "lang", "a language code string such as \"de\", or null")?,
        guess: text(body, "lang_guess", "a language code string such as \"de\", or null")?,
    };
    let invalid = |error: Error| Refusal::invalid(error.to_string());
    let gate = given(body, "min_confidence").map(Gate::parse).transpose().map_err(invalid)?;
    own()?;
    let questions = Question::parse_all(questions).map_err(invalid)?;
    let request = Request { max_len, head_max_len, language: hints.language.clone(), gate };
    let Options { tournament, jev_strict, .. } = *app.options();
    Ok(Ask { questions, hints, request, tournament, jev_strict, unknown })
}

/// Refuses a state of too many code points.
pub(crate) fn size(state: &Value) -> Checked<()> {
    let size = state.rendered().chars().count();
    if size > MAX_STATE {
        return Err(Refusal::too_large(format!("state too large ({size} > {MAX_STATE} chars)")));
    }
    Ok(())
}

/// Refuses too many options of all questions together.
pub(crate) fn options_in_all(total: usize) -> Checked<()> {
    if total > MAX_OPTIONS {
        let detail = format!("too many answer options across questions ({total} > {MAX_OPTIONS})");
        return Err(Refusal::too_large(detail));
    }
    Ok(())
}

fn count(definitions: &[(String, Value)], options: &Options) -> Checked<()> {
    if definitions.len() > MAX_QUESTIONS {
        let detail = format!("too many questions ({} > {MAX_QUESTIONS})", definitions.len());
        return Err(Refusal::too_large(detail));
    }
    let most = if options.tournament.is_some() { MAX_TOURNAMENT } else { MAX_CHOICES };
    let mut total = 0;
    for (id, definition) in definitions {
        let shown = || Value::text(id).quoted();
        let criteria = definition.get("criteria");
        let list = criteria.and_then(Value::as_list);
        match definition.get("type").and_then(Value::as_str) {
            Some("choice") => {
                let n = list.map(<[Value]>::len).or_else(|| Some(criteria?.as_map()?.len())).unwrap_or(0);
                if n > most {
                    let detail = format!("too many choice options for {} ({n} > {most})", shown());
                    return Err(Refusal::too_large(detail));
                }
                total += n;
            }
            Some("score") => {
                let levels = list.unwrap_or_default();
                let n = levels.len();
                if n > MAX_LEVELS {
                    let detail = format!("too many score levels for {} ({n} > {MAX_LEVELS})", shown());
                    return Err(Refusal::too_large(detail));
                }
                if let Some(index) = levels.iter().position(|level| *level == Value::Null) {
                    return Err(Refusal::invalid(Error::NullLevel { id: id.clone(), index }.to_string()));
                }
                total += n;
            }
            _ => {}
        }
    }
    options_in_all(total)
}

/// A name that is no model's, unless it is one of those by which clients of other services leave the choice to the server.
fn stray(name: &str) -> Option<String> {
    let name = name.trim();
    let leaves = name.is_empty() || name.starts_with("jev") || name == "convaiinnovations/laya";
    (!leaves).then(|| name.to_owned())
}

/// The model a caller pins; none for names that leave the choice to the server, as clients of other services send them.
pub(crate) fn model(app: &App, value: &Value) -> Checked<Option<String>> {
    let Some(name) = value.as_str() else {
        return Err(Refusal::invalid(format!("model must be a string or null, got {}", value.quoted())));
    };
    let published = match name.trim() {
        "convaiinnovations/laya" => return Ok(None),
        "convaiinnovations/laya-multilingual" => "multilingual",
        "convaiinnovations/laya-typed-decisions" => "typed-decisions",
        other => other,
    };
    let routes = app.models();
    match routes.find(published) {
        Ok((name, _)) => Ok(Some(name.clone())),
        Err(error) if published.contains(['/', '\\']) || published.starts_with(['.', '~']) => {
            Err(Refusal::invalid(format!("{error}, or omit model to let the router choose")))
        }
        Err(_) if app.is_language(published) => {
            let names: Vec<&str> = routes.models().iter().map(|(name, _)| name.as_str()).collect();
            Err(Refusal::invalid(format!(
                "model '{published}' is a language model, which cannot decide; use {}, or omit model to let the router choose",
                names.join(" or ")
            )))
        }
        Err(_) => Ok(None),
    }
}

fn budget(body: &Value, key: &str) -> Checked<Option<usize>> {
    match given(body, key) {
        None => Ok(None),
        Some(Value::Int(digits)) if digits == "0" || digits.starts_with('-') => {
            Err(Refusal::invalid(format!("{key} must be a positive integer")))
        }
        Some(Value::Int(digits)) => match digits.parse() {
            Ok(n) if n <= MAX_LEN => Ok(Some(n)),
            _ => Err(Refusal::invalid(format!("{key} exceeds server limit ({digits} > {MAX_LEN})"))),
        },
        Some(_) => Err(Refusal::invalid(format!("{key} must be an integer"))),
    }
}

fn text(body: &Value, key: &str, expected: &str) -> Checked<Option<String>> {
    match given(body, key) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Refusal::invalid(format!("{key} must be {expected}"))),
    }
}

fn batch_size(value: &Value) -> Checked<usize> {
    match value {
        Value::Int(digits) if digits == "0" || digits.starts_with('-') => {
            Err(Refusal::invalid(format!("batch_size must be a positive integer, got {digits}")))
        }
        // Any number beyond all states is as good as another.
        Value::Int(digits) => Ok(digits.parse().unwrap_or(usize::MAX)),
        _ => Err(Refusal::invalid("batch_size must be an integer")),
    }
}
