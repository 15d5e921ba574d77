use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;

use super::refusal::{ApiError, Checked};
use crate::language::{Update, Updates};

/// Time without a word after which the client is told that the request is still worked on.
const QUIET: Duration = Duration::from_secs(10);

/// A piece of a streamed answer, ready to be sent.
#[derive(Debug)]
pub(crate) struct Piece(Event);

impl Piece {
    /// A piece without a name.
    pub(crate) fn new(data: &impl Serialize) -> Self {
        Self(Event::default().data(super::refusal::text(data)))
    }

    /// A piece that is named by its `type`, its first key.
    pub(crate) fn typed(data: &impl Serialize) -> Self {
        let text = super::refusal::text(data);
        let name = text.strip_prefix("{\"type\":\"").and_then(|rest| rest.split('"').next());
        let event = Event::default().event(name.unwrap_or("message"));
        Self(event.data(text))
    }
}

/// Makes the pieces of a streamed answer.
pub(crate) trait Chunks: Send + 'static {
    /// Whether the stream's end is told by a last word instead of an event.
    const DONE: bool = true;

    /// What to send at the beginning.
    fn begin(&mut self) -> Vec<Piece>;

    /// What to send for a step of a continuation; an error is sent and ends the stream.
    fn update(&mut self, number: usize, update: Update) -> Checked<Vec<Piece>>;

    /// An error as the stream tells it.
    fn failed(&self, error: &ApiError) -> Piece {
        Piece::new(&error.body())
    }

    /// What to send when all continuations have ended.
    fn end(&mut self) -> Vec<Piece>;
}

struct State<C> {
    updates: Updates,
    chunks: C,
    ready: VecDeque<Event>,
    left: usize,
    done: bool,
}

impl<C: Chunks> State<C> {
    fn queue(&mut self, pieces: Vec<Piece>) {
        self.ready.extend(pieces.into_iter().map(|piece| piece.0));
    }

    fn finish(&mut self) {
        if C::DONE {
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
