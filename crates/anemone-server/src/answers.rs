//! Results as the routes give them.

use anemone_decide::{
    Decider, Error, Hints, Kind, Question, Request, Router, Tournament, Value, jev_confidence,
};
use std::fmt::Write as _;

/// A checked request about any states.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) questions: Vec<Question>,
    pub(crate) hints: Hints,
    pub(crate) request: Request,
    pub(crate) tournament: Option<Tournament>,
    pub(crate) jev_strict: bool,
    /// The name the caller asked for, where no model has it.
    pub(crate) unknown: Option<String>,
}

impl Ask {
    /// The result object of each state.
    pub(crate) fn answer(&self, models: &mut Router<Decider>, states: &[Value]) -> Result<Vec<Value>, Error> {
        let large = |t: Tournament| {
            self.questions.iter().any(|q| q.kind == Kind::Choice && q.options.len() > t.group_size)
        };
        let results = if let Some(tournament) = self.tournament.filter(|t| large(*t)) {
            states.iter().map(|state| self.hold(models, state, tournament)).collect::<Result<_, _>>()?
        } else {
            let states: Vec<&Value> = states.iter().collect();
            models.decide_all(&states, &self.questions, &self.hints, &self.request)?
        };
        let finish = if self.jev_strict { strict } else { extended };
        Ok(results.into_iter().map(|result| finish(self.explained(result))).collect())
    }

    /// A result whose reason says that another model was asked for.
    fn explained(&self, mut result: Value) -> Value {
        let reason = result.get_mut("routing").and_then(|routing| routing.get_mut("reason"));
        if let (Some(name), Some(Value::Text(reason))) = (&self.unknown, reason) {
            let _ = write!(reason, "; there is no model {} here", Value::text(name).quoted());
        }
        result
    }

    /// A result with `x_tournament` in the answers that took rounds.
    fn hold(
        &self,
        models: &mut Router<Decider>,
        state: &Value,
        tournament: Tournament,
    ) -> Result<Value, Error> {
        let route = models.routes().route(state, &self.questions, &self.hints)?;
        let decider = models.model(&route.model)?;
        let mut result = decider.decide_tournament(state, &self.questions, tournament, &self.request)?;
        let rounds = take(&mut result, "tournament");
        for (id, rounds) in rounds.as_ref().and_then(Value::as_map).unwrap_or_default() {
            if let Some(answer) = result.get_mut("answers").and_then(|answers| answers.get_mut(id)) {
                *answer = std::mem::replace(answer, Value::Null).with("x_tournament", rounds.clone());
            }
        }
        Ok(result.with("routing", route.to_value()))
    }
}

/// Removes a key.
fn take(value: &mut Value, key: &str) -> Option<Value> {
    let Value::Map(entries) = value else { return None };
    let at = entries.iter().position(|(name, _)| name == key)?;
    Some(entries.remove(at).1)
}

/// Every answer in its place, changed.
fn each(mut result: Value, change: impl Fn(Value) -> Value) -> Value {
    if let Some(Value::Map(answers)) = result.get_mut("answers") {
        for (_, answer) in answers {
            *answer = change(std::mem::replace(answer, Value::Null));
        }
    }
    result
}

/// With the confidence Jev's clients look for.
fn extended(result: Value) -> Value {
    each(result, |answer| match jev_confidence(&answer) {
        Some(confidence) => answer.with("x_jev_confidence", confidence),
        None => answer,
    })
}

/// With the fields of Jev's service only.
fn strict(result: Value) -> Value {
    let result = each(result, |answer| match answer.get("type").and_then(Value::as_str) {
        Some("choice") => pick(answer, &["type", "choice", "confidence", "probabilities"]),
        Some("score") => pick(answer, &["type", "score", "confidence", "probabilities", "legend"]),
        _ => pick(answer, &["type", "noul"]),
    });
    let mut result = pick(result, &["model", "answers", "usage"]);
    if let Some(usage) = result.get_mut("usage") {
        *usage = pick(std::mem::replace(usage, Value::Null), &["input_tokens", "output_tokens"]);
    }
    result
}

/// These keys of an object, in this order.
fn pick(mut value: Value, keys: &[&str]) -> Value {
    Value::Map(keys.iter().filter_map(|key| Some(((*key).to_owned(), take(&mut value, key)?))).collect())
}

/// Token counts of all results together.
pub(crate) fn total_usage(results: &[Value]) -> Value {
    let sum = |key: &str| {
        let counts = results.iter().filter_map(|result| result.get("usage")?.get(key)?.as_usize());
        (key.to_owned(), Value::int(counts.sum::<usize>() as i128))
    };
    Value::Map(vec![sum("input_tokens"), sum("output_tokens")])
}
