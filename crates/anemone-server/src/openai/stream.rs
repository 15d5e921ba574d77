use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};

use super::refusal::{ApiError, Checked};
use crate::language::{Update, Updates};

/// Time without a word after which the client is told that the request is still worked on.
const QUIET: Duration = Duration::from_secs(10);

/// Makes the chunks of a streamed answer.
pub(crate) trait Chunks: Send + 'static {
    /// Whether events are named by the `type` of their data, and none says that it was the last.
    const NAMED: bool = false;

    /// What to send at the beginning.
    fn begin(&mut self) -> Vec<Value>;

    /// What to send for a step of a continuation; an error is sent and ends the stream.
    fn update(&mut self, number: usize, update: Update) -> Checked<Vec<Value>>;

    /// An error as the stream tells it.
    fn failed(&self, error: &ApiError) -> Value {
        error.body()
    }

    /// What to send when all continuations have ended.
    fn end(&mut self) -> Vec<Value>;
}

struct State<C> {
    updates: Updates,
    chunks: C,
    ready: VecDeque<Event>,
    left: usize,
    done: bool,
}

impl<C: Chunks> State<C> {
    fn queue(&mut self, chunks: Vec<Value>) {
        self.ready.extend(chunks.into_iter().map(|chunk| {
            let event = Event::default().data(chunk.to_string());
            match chunk.get("type").and_then(Value::as_str).filter(|_| C::NAMED) {
                Some(name) => event.event(name),
                None => event,
            }
        }));
    }

    fn finish(&mut self) {
        if !C::NAMED {
            self.ready.push_back(Event::default().data("[DONE]"));
        }
        self.done = true;
    }

    /// Takes the next step of the model.
    async fn advance(&mut self) {
        let Some((number, update)) = self.updates.recv().await else {
            let lost = self.chunks.failed(&ApiError::failed());
            self.queue(vec![lost]);
            self.done = true;
            return;
        };
        let last = matches!(update, Update::Finished(_));
        match self.chunks.update(number, update) {
            Ok(chunks) => self.queue(chunks),
            Err(error) => {
                let told = self.chunks.failed(&error);
                self.queue(vec![told]);
                self.done = true;
                return;
            }
        }
        self.left -= usize::from(last);
        if self.left == 0 {
            let end = self.chunks.end();
            self.queue(end);
            self.finish();
        }
    }
}

/// A chunk of OpenAI's streams; where usage is asked for, it has a place in each and is told with the last.
pub(crate) fn chunk(
    object: &str,
    (id, created): (&str, u64),
    model: &str,
    choices: &Value,
    include_usage: bool,
) -> Value {
    let mut chunk =
        json!({"id": id, "object": object, "created": created, "model": model, "choices": choices});
    if include_usage {
        chunk["usage"] = Value::Null;
    }
    chunk
}

/// Streams an answer as server-sent events; when the client goes, the model stops.
pub(crate) fn respond(updates: Updates, continuations: usize, mut chunks: impl Chunks) -> Response {
    let begin = chunks.begin();
    let mut state = State { updates, chunks, ready: VecDeque::new(), left: continuations, done: false };
    state.queue(begin);
    let events = stream::unfold(state, |mut state| async move {
        while state.ready.is_empty() && !state.done {
            state.advance().await;
        }
        let event = state.ready.pop_front()?;
        Some((Ok::<_, Infallible>(event), state))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(QUIET).text("working")).into_response()
}
