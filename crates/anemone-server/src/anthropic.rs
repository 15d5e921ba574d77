//! Anthropic's `/v1/messages` over language models.

mod request;

use anemone_session::Delta;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use crate::app::App;
use crate::language::{Language, Update, Updates};
use crate::openai::choice::{Choice, End, Taken};
use crate::openai::generation::Usage;
use crate::openai::refusal::{ApiError, Checked, respond};
use crate::openai::stream::{self, Chunks};

pub(crate) async fn create(app: &App, request: Request) -> Response {
    answer(app, request).await.unwrap_or_else(|error| refuse(&error))
}

async fn answer(app: &App, request: Request) -> Checked<Response> {
    let (permit, bytes) = app.admit_bytes(request).await?;
    let reader = app.clone();
    let read = tokio::task::spawn_blocking(move || request::read(&reader, &bytes));
    let (mut message, job, streamed) = read.await.map_err(|_| ApiError::failed())??;
    drop(permit);
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

fn body(error: &ApiError) -> Value {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}})
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
    fn stop(&self) -> (Value, Value) {
        match &self.choice.end {
            Some(End::Length) => ("max_tokens".into(), Value::Null),
            Some(End::Calls) => ("tool_use".into(), Value::Null),
            Some(End::StopString(text)) => ("stop_sequence".into(), text.as_str().into()),
            Some(End::Stop) => ("end_turn".into(), Value::Null),
            None => (Value::Null, Value::Null),
        }
    }

    fn usage(&self) -> Value {
        json!({
            "input_tokens": self.usage.prompt - self.usage.cached,
            "cache_read_input_tokens": self.usage.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": self.usage.completion,
        })
    }

    fn json(&self, content: &[Value]) -> Value {
        let (reason, sequence) = self.stop();
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.language.name(),
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": self.usage(),
        })
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
            content.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": ""}));
        }
        if !answer.content.is_empty() {
            content.push(json!({"type": "text", "text": answer.content}));
        }
        for (call, id) in answer.calls.iter().zip(&self.choice.call_ids) {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            content.push(json!({"type": "tool_use", "id": id, "name": call.name, "input": input}));
        }
        Ok(respond(&self.json(&content)))
    }

    /// The events that close the open block, if any, and open one of another kind.
    fn turn_to(&mut self, kind: &'static str, block: &Value, events: &mut Vec<Value>) {
        if self.open == Some(kind) && kind != "tool_use" {
            return;
        }
        self.close(events);
        events.push(json!({"type": "content_block_start", "index": self.blocks, "content_block": block}));
        self.blocks += 1;
        self.open = Some(kind);
    }

    fn close(&mut self, events: &mut Vec<Value>) {
        if self.open.take().is_some() {
            events.push(json!({"type": "content_block_stop", "index": self.blocks - 1}));
        }
    }

    fn delta(&self, delta: &Value) -> Value {
        json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta})
    }
}

impl Chunks for Message {
    const NAMED: bool = true;

    fn begin(&mut self) -> Vec<Value> {
        vec![json!({"type": "message_start", "message": self.json(&[])}), json!({"type": "ping"})]
    }

    fn update(&mut self, _: usize, update: Update) -> Checked<Vec<Value>> {
        let mut events = Vec::new();
        for delta in self.take(update)? {
            match delta {
                Delta::Reasoning(text) => {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.turn_to("thinking", &block, &mut events);
                    events.push(self.delta(&json!({"type": "thinking_delta", "thinking": text})));
                }
                Delta::Content(text) => {
                    self.turn_to("text", &json!({"type": "text", "text": ""}), &mut events);
                    events.push(self.delta(&json!({"type": "text_delta", "text": text})));
                }
                Delta::CallStart { index, name } => {
                    let id = &self.choice.call_ids[index];
                    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.turn_to("tool_use", &block, &mut events);
                }
                Delta::CallArguments { fragment, .. } => {
                    events.push(self.delta(&json!({"type": "input_json_delta", "partial_json": fragment})));
                }
                Delta::CallEnd { .. } => self.close(&mut events),
                _ => {}
            }
        }
        Ok(events)
    }

    fn failed(&self, error: &ApiError) -> Value {
        body(error)
    }

    fn end(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        self.close(&mut events);
        let (reason, sequence) = self.stop();
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        events.push(json!({"type": "message_delta", "delta": delta, "usage": self.usage()}));
        events.push(json!({"type": "message_stop"}));
        events
    }
}
