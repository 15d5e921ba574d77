//! Anthropic's `/v1/messages` over language models.

pub(crate) mod reply;
mod request;

use anemone_session::Delta;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::app::App;
use crate::language::{Language, Update, Updates};
use crate::openai::choice::{Choice, End, Taken};
use crate::openai::generation::Usage;
use crate::openai::refusal::{ApiError, Checked, respond};
use crate::openai::stream::{self, Chunks, Piece};
use crate::reading::read;
use crate::requests::messages::{COUNT, REQUEST};
use reply::{
    Block, BlockDelta, ErrorBody, ErrorReply, Event, MessageUsage, Reply, Stop, StopReason, TokenCount,
};

pub(crate) async fn create(app: &App, request: Request) -> Response {
    answer(app, request).await.unwrap_or_else(|error| refuse(&error))
}

/// `/v1/messages/count_tokens`.
pub(crate) async fn count(app: &App, request: Request) -> Response {
    let counted = read(app, request, &COUNT, |mut fields, language| {
        Ok(TokenCount { input_tokens: request::conversation(&mut fields, &language)?.ids.len() })
    });
    counted.await.map_or_else(|error| refuse(&error), |count| respond(&count))
}

async fn answer(app: &App, request: Request) -> Checked<Response> {
    let (mut message, job, streamed) = read(app, request, &REQUEST, request::read).await?;
    let updates = message.language.submit(job).await.map_err(|r| ApiError::rejected(&r, "messages"))?;
    if streamed {
        return Ok(stream::respond(updates, 1, message));
    }
    message.collect(updates).await
}

/// An error in Anthropic's shape.
pub(crate) fn refuse(error: &ApiError) -> Response {
    let mut response = respond(&body(error));
    *response.status_mut() = error.status;
    let retry = error.clone().into_response().headers().get("retry-after").cloned();
    if let Some(retry) = retry {
        response.headers_mut().insert("retry-after", retry);
    }
    response
}

fn body(error: &ApiError) -> ErrorReply<'_> {
    ErrorReply { kind: "error", error: told(error) }
}

fn told(error: &ApiError) -> ErrorBody<'_> {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    ErrorBody { kind, message: &error.message }
}

/// A message on its way.
struct Message {
    language: Language,
    id: String,
    choice: Choice,
    usage: Usage,
    /// The kind of the block that is open in a stream, and how many were opened.
    open: Option<&'static str>,
    blocks: usize,
}

impl Message {
    fn stop(&self) -> Stop<'_> {
        let (stop_reason, stop_sequence) = match &self.choice.end {
            Some(End::Length) => (Some(StopReason::MaxTokens), None),
            Some(End::Calls) => (Some(StopReason::ToolUse), None),
            Some(End::StopString(text)) => (Some(StopReason::StopSequence), Some(text.as_str())),
            Some(End::Stop) => (Some(StopReason::EndTurn), None),
            None => (None, None),
        };
        Stop { stop_reason, stop_sequence }
    }

    fn usage(&self) -> MessageUsage {
        MessageUsage {
            input_tokens: self.usage.prompt - self.usage.cached,
            cache_read_input_tokens: self.usage.cached,
            cache_creation_input_tokens: 0,
            output_tokens: self.usage.completion,
        }
    }

    fn reply<'a>(&'a self, content: Vec<Block<'a>>) -> Reply<'a> {
        Reply {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: self.language.name(),
            content,
            stop: self.stop(),
            usage: self.usage(),
        }
    }

    fn take(&mut self, update: Update) -> Checked<Vec<Delta>> {
        Ok(match self.choice.take(update, "toolu_")? {
            Taken::Nothing | Taken::Token { .. } => Vec::new(),
            Taken::Deltas(deltas) => deltas,
            Taken::Ended(deltas, generation) => {
                self.usage.add(&generation, true, self.choice.reasoning_tokens);
                deltas
            }
        })
    }

    async fn collect(&mut self, mut updates: Updates) -> Checked<Response> {
        while self.choice.end.is_none() {
            let (_, update) = updates.recv().await.ok_or_else(ApiError::failed)?;
            self.take(update)?;
        }
        let answer = &self.choice.answer;
        let mut content = Vec::new();
        if !answer.reasoning.is_empty() {
            content.push(Block::Thinking { thinking: &answer.reasoning, signature: "" });
        }
        if !answer.content.is_empty() {
            content.push(Block::Text { text: &answer.content });
        }
        // The input of a use that was cut off is an object of what is complete.
        let is_whole = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
        let inputs: Vec<String> = answer
            .calls
            .iter()
            .map(|call| {
                if is_whole(&call.arguments) {
                    call.arguments.clone()
                } else {
                    format!("{}}}", call.arguments)
                }
            })
            .collect();
        for ((call, id), input) in answer.calls.iter().zip(&self.choice.call_ids).zip(&inputs) {
            let input = serde_json::from_str(input).unwrap_or(empty());
            content.push(Block::ToolUse { id, name: &call.name, input });
        }
        Ok(respond(&self.reply(content)))
    }

    /// The events that close the open block, if any, and open one of another kind.
    fn turn_to(&mut self, kind: &'static str, content_block: Block<'_>, events: &mut Vec<Piece>) {
        if self.open == Some(kind) && kind != "tool_use" {
            return;
        }
        self.close(events);
        events.push(Piece::typed(&Event::ContentBlockStart { index: self.blocks, content_block }));
        self.blocks += 1;
        self.open = Some(kind);
    }

    fn close(&mut self, events: &mut Vec<Piece>) {
        if self.open.take().is_some() {
            events.push(Piece::typed(&Event::ContentBlockStop { index: self.blocks - 1 }));
        }
    }

    fn delta(&self, delta: BlockDelta<'_>) -> Piece {
        Piece::typed(&Event::ContentBlockDelta { index: self.blocks - 1, delta })
    }
}

/// The input of a use before its parts come.
fn empty() -> &'static RawValue {
    serde_json::from_str("{}").unwrap_or(RawValue::NULL)
}

impl Chunks for Message {
    const DONE: bool = false;

    fn begin(&mut self) -> Vec<Piece> {
        let start = Event::MessageStart { message: self.reply(Vec::new()) };
        vec![Piece::typed(&start), Piece::typed(&Event::Ping)]
    }

    fn update(&mut self, _: usize, update: Update) -> Checked<Vec<Piece>> {
        let mut events = Vec::new();
        for delta in self.take(update)? {
            match delta {
                Delta::Reasoning(text) => {
                    let block = Block::Thinking { thinking: "", signature: "" };
                    self.turn_to("thinking", block, &mut events);
                    events.push(self.delta(BlockDelta::Thinking { thinking: &text }));
                }
                Delta::Content(text) => {
                    self.turn_to("text", Block::Text { text: "" }, &mut events);
                    events.push(self.delta(BlockDelta::Text { text: &text }));
                }
                Delta::CallStart { index, name } => {
                    let id = self.choice.call_ids[index].clone();
                    let block = Block::ToolUse { id: &id, name: &name, input: empty() };
                    self.turn_to("tool_use", block, &mut events);
                }
                Delta::CallArguments { fragment, .. } => {
                    events.push(self.delta(BlockDelta::InputJson { partial_json: &fragment }));
                }
                Delta::CallEnd { .. } => self.close(&mut events),
                _ => {}
            }
        }
        Ok(events)
    }

    fn failed(&self, error: &ApiError) -> Piece {
        Piece::typed(&Event::Error { error: told(error) })
    }

    fn end(&mut self) -> Vec<Piece> {
        let mut events = Vec::new();
        self.close(&mut events);
        events.push(Piece::typed(&Event::MessageDelta { delta: self.stop(), usage: self.usage() }));
        events.push(Piece::typed(&Event::MessageStop));
        events
    }
}
