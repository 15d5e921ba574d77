//! `/v1/responses`: OpenAI's newer shape of a conversation. Nothing is kept between requests.

mod items;
mod request;

use anemone_session::Delta;
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::choice::{Choice, End, Taken};
use super::generation::Usage;
use super::refusal::{ApiError, Checked, respond};
use super::stream::{self, Chunks};
use crate::app::App;
use crate::language::{Language, Update, Updates};
use items::Item;

pub(crate) async fn create(app: &App, request: Request) -> Checked<Response> {
    let (permit, bytes) = app.admit_bytes(request).await?;
    let reader = app.clone();
    let read = tokio::task::spawn_blocking(move || request::read(&reader, &bytes));
    let (mut answer, job, streamed) = read.await.map_err(|_| ApiError::failed())??;
    drop(permit);
    let updates = answer.language.submit(job).await.map_err(|r| ApiError::rejected(&r, "input"))?;
    if streamed {
        return Ok(stream::respond(updates, 1, answer));
    }
    answer.collect(updates).await
}

/// A response on its way.
struct Answer {
    language: Language,
    id: String,
    created: u64,
    /// What the request said, as the response repeats it.
    echoed: Map<String, Value>,
    choice: Choice,
    usage: Usage,
    /// The output, the last item perhaps unfinished.
    items: Vec<Item>,
    /// Events sent.
    sent: u64,
}

impl Answer {
    fn status(&self) -> &'static str {
        match self.choice.end {
            None => "in_progress",
            Some(End::Length) => "incomplete",
            Some(_) => "completed",
        }
    }

    fn json(&self) -> Value {
        let cut = matches!(self.choice.end, Some(End::Length));
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": self.status(),
            "error": null,
            "incomplete_details": cut.then(|| json!({"reason": "max_output_tokens"})),
            "model": self.language.name(),
            "output": self.items.iter().map(Item::json).collect::<Vec<_>>(),
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
            "usage": self.choice.end.is_some().then(|| self.usage()),
        });
        for (key, value) in &self.echoed {
            response[key] = value.clone();
        }
        response
    }

    fn usage(&self) -> Value {
        json!({
            "input_tokens": self.usage.prompt,
            "input_tokens_details": {"cached_tokens": self.usage.cached},
            "output_tokens": self.usage.completion,
            "output_tokens_details": {"reasoning_tokens": self.usage.reasoning},
            "total_tokens": self.usage.prompt + self.usage.completion,
        })
    }

    /// Takes a step; gives the events that tell of it.
    fn take(&mut self, update: Update) -> Checked<Vec<Value>> {
        let (deltas, ended) = match self.choice.take(update, "call_")? {
            Taken::Nothing | Taken::Token { .. } => return Ok(Vec::new()),
            Taken::Deltas(deltas) => (deltas, false),
            Taken::Ended(deltas, generation) => {
                self.usage.add(&generation, true, self.choice.reasoning_tokens);
                (deltas, true)
            }
        };
        let mut events = Vec::new();
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.more(Item::is_reasoning, Item::reasoning, &text, &mut events),
                Delta::Content(text) => self.more(Item::is_message, Item::message, &text, &mut events),
                Delta::CallStart { index, name } => {
                    self.finish(&mut events);
                    let call = Item::call(self.choice.call_ids[index].clone(), name);
                    self.open(call, &mut events);
                }
                Delta::CallArguments { fragment, .. } => {
                    self.more(Item::is_call, || unreachable!("a call has begun"), &fragment, &mut events);
                }
                Delta::CallEnd { .. } => self.finish(&mut events),
                _ => {}
            }
        }
        if ended {
            self.finish(&mut events);
        }
        Ok(events)
    }

    /// Adds text to the last item, or to a new one when that is of another kind or complete.
    fn more(
        &mut self,
        is: fn(&Item) -> bool,
        new: impl FnOnce() -> Item,
        text: &str,
        events: &mut Vec<Value>,
    ) {
        if !self.items.last().is_some_and(|item| is(item) && !item.is_done()) {
            self.finish(events);
            self.open(new(), events);
        }
        let index = self.items.len() - 1;
        if let Some(item) = self.items.last_mut() {
            events.push(item.add(index, text));
        }
    }

    fn open(&mut self, item: Item, events: &mut Vec<Value>) {
        events.extend(item.opened(self.items.len()));
        self.items.push(item);
    }

    /// Completes the last item, if it is not yet.
    fn finish(&mut self, events: &mut Vec<Value>) {
        let Some(index) = self.items.len().checked_sub(1) else { return };
        if let Some(item) = self.items.last_mut().filter(|item| !item.is_done()) {
            events.extend(item.finish(index));
        }
    }

    async fn collect(&mut self, mut updates: Updates) -> Checked<Response> {
        while self.choice.end.is_none() {
            let (_, update) = updates.recv().await.ok_or_else(ApiError::failed)?;
            self.take(update)?;
        }
        Ok(respond(&self.json()))
    }

    fn number(&mut self, mut events: Vec<Value>) -> Vec<Value> {
        for event in &mut events {
            event["sequence_number"] = self.sent.into();
            self.sent += 1;
        }
        events
    }
}

impl Chunks for Answer {
    const NAMED: bool = true;

    fn begin(&mut self) -> Vec<Value> {
        let response = self.json();
        let events = ["response.created", "response.in_progress"];
        self.number(events.map(|kind| json!({"type": kind, "response": response})).into())
    }

    fn update(&mut self, _: usize, update: Update) -> Checked<Vec<Value>> {
        let events = self.take(update)?;
        Ok(self.number(events))
    }

    fn failed(&self, error: &ApiError) -> Value {
        json!({
            "type": "error", "code": error.code, "message": error.message, "param": error.param, "sequence_number": self.sent,
        })
    }

    fn end(&mut self) -> Vec<Value> {
        let kind = if self.status() == "incomplete" { "response.incomplete" } else { "response.completed" };
        let event = json!({"type": kind, "response": self.json()});
        self.number(vec![event])
    }
}
