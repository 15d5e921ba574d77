//! `/v1/responses`: OpenAI's newer shape of a conversation. Nothing is kept between requests.

mod items;
pub(crate) mod reply;
mod request;

use anemone_session::Delta;
use axum::extract::Request;
use axum::response::Response;

use super::choice::{Choice, End, Taken};
use super::generation::Usage;
use super::refusal::{ApiError, Checked, respond};
use super::stream::{self, Chunks, Piece};
use crate::app::App;
use crate::language::{Language, Update, Updates};
use crate::reading::read;
use crate::requests::responses::REQUEST;
use items::{Events, Item};
use reply::{Echoed, Event, Incomplete, Reply, Status};

pub(crate) async fn create(app: &App, request: Request) -> Checked<Response> {
    let (mut answer, job, streamed) = read(app, request, &REQUEST, request::read).await?;
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
    echoed: Echoed,
    choice: Choice,
    usage: Usage,
    /// The output, the last item perhaps unfinished.
    items: Vec<Item>,
    events: Events,
}

impl Answer {
    fn status(&self) -> Status {
        match self.choice.end {
            None => Status::InProgress,
            Some(End::Length) => Status::Incomplete,
            Some(_) => Status::Completed,
        }
    }

    fn reply(&self) -> Reply<'_> {
        let cut = self.status() == Status::Incomplete;
        Reply {
            id: &self.id,
            object: "response",
            created_at: self.created,
            status: self.status(),
            error: None,
            incomplete_details: cut.then_some(Incomplete { reason: "max_output_tokens" }),
            model: self.language.name(),
            output: self.items.iter().map(Item::reply).collect(),
            previous_response_id: None,
            store: false,
            truncation: "disabled",
            usage: self.choice.end.is_some().then(|| self.usage.into()),
            echoed: &self.echoed,
        }
    }

    /// Takes a step; the events that tell of it are kept.
    fn take(&mut self, update: Update) -> Checked<()> {
        let (deltas, ended) = match self.choice.take(update, "call_")? {
            Taken::Nothing | Taken::Token { .. } => return Ok(()),
            Taken::Deltas(deltas) => (deltas, false),
            Taken::Ended(deltas, generation) => {
                self.usage.add(&generation, true, self.choice.reasoning_tokens);
                (deltas, true)
            }
        };
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.more(Item::is_reasoning, Item::reasoning, &text),
                Delta::Content(text) => self.more(Item::is_message, Item::message, &text),
                Delta::CallStart { index, name } => {
                    self.finish(false);
                    self.open(Item::call(self.choice.call_ids[index].clone(), name));
                }
                Delta::CallArguments { fragment, .. } => {
                    self.more(Item::is_call, || unreachable!("a call has begun"), &fragment);
                }
                Delta::CallEnd { .. } => self.finish(false),
                _ => {}
            }
        }
        if ended {
            self.finish(self.status() == Status::Incomplete);
        }
        Ok(())
    }

    /// Adds text to the last item, or to a new one when that is of another kind or complete.
    fn more(&mut self, is: fn(&Item) -> bool, new: impl FnOnce() -> Item, text: &str) {
        if !self.items.last().is_some_and(|item| is(item) && !item.is_done()) {
            self.finish(false);
            self.open(new());
        }
        let index = self.items.len() - 1;
        if let Some(item) = self.items.last_mut() {
            item.add(index, text, &mut self.events);
        }
    }

    fn open(&mut self, item: Item) {
        item.open(self.items.len(), &mut self.events);
        self.items.push(item);
    }

    /// Ends the last item, if it has not ended yet.
    fn finish(&mut self, cut: bool) {
        let Some(index) = self.items.len().checked_sub(1) else { return };
        if let Some(item) = self.items.last_mut().filter(|item| !item.is_done()) {
            item.finish(index, cut, &mut self.events);
        }
    }

    async fn collect(&mut self, mut updates: Updates) -> Checked<Response> {
        while self.choice.end.is_none() {
            let (_, update) = updates.recv().await.ok_or_else(ApiError::failed)?;
            self.take(update)?;
            self.events.take();
        }
        Ok(respond(&self.reply()))
    }

    /// Keeps an event about the whole.
    fn tell(&mut self, event: fn(Reply<'_>) -> Event<'_>) {
        let mut events = std::mem::take(&mut self.events);
        events.push(event(self.reply()));
        self.events = events;
    }
}

impl Chunks for Answer {
    const DONE: bool = false;

    fn begin(&mut self) -> Vec<Piece> {
        self.tell(|response| Event::Created { response });
        self.tell(|response| Event::InProgress { response });
        self.events.take()
    }

    fn update(&mut self, _: usize, update: Update) -> Checked<Vec<Piece>> {
        self.take(update)?;
        Ok(self.events.take())
    }

    fn failed(&self, error: &ApiError) -> Piece {
        let (message, param) = (error.message.as_str(), error.param.as_deref());
        self.events.piece(Event::Error { code: error.code, message, param })
    }

    fn end(&mut self) -> Vec<Piece> {
        match self.status() {
            Status::Incomplete => self.tell(|response| Event::Incomplete { response }),
            _ => self.tell(|response| Event::Completed { response }),
        }
        self.events.take()
    }
}
