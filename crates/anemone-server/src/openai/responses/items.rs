use serde_json::{Value, json};

use crate::openai::unique;

/// An item of a response's output.
#[derive(Debug)]
pub(super) struct Item {
    id: String,
    kind: Kind,
    text: String,
    done: bool,
}

#[derive(Debug)]
enum Kind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl Item {
    fn new(prefix: &str, kind: Kind) -> Self {
        Self { id: unique(prefix), kind, text: String::new(), done: false }
    }

    pub(super) fn reasoning() -> Self {
        Self::new("rs_", Kind::Reasoning)
    }

    pub(super) fn message() -> Self {
        Self::new("msg_", Kind::Message)
    }

    pub(super) fn call(id: String, name: String) -> Self {
        Self::new("fc_", Kind::Call { id, name })
    }

    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.kind, Kind::Reasoning)
    }

    pub(super) fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Message)
    }

    pub(super) fn is_call(&self) -> bool {
        matches!(self.kind, Kind::Call { .. })
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Its text as a part of its content.
    fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": self.text}),
            _ => json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}),
        }
    }

    pub(super) fn json(&self) -> Value {
        let status = if self.done { "completed" } else { "in_progress" };
        let content = if self.text.is_empty() { Vec::new() } else { vec![self.part()] };
        match &self.kind {
            Kind::Reasoning => json!({
                "id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status,
            }),
            Kind::Message => json!({
                "id": self.id, "type": "message", "role": "assistant", "content": content, "status": status,
            }),
            Kind::Call { id, name } => json!({
                "id": self.id, "type": "function_call", "call_id": id, "name": name, "arguments": self.text,
                "status": status,
            }),
        }
    }

    /// The events of its beginning, as item `index` of the output.
    pub(super) fn opened(&self, index: usize) -> Vec<Value> {
        let added = json!({"type": "response.output_item.added", "output_index": index, "item": self.json()});
        if self.is_call() {
            return vec![added];
        }
        let part = json!({
            "type": "response.content_part.added", "item_id": self.id, "output_index": index, "content_index": 0,
            "part": self.part(),
        });
        vec![added, part]
    }

    /// Adds text; gives the event that tells so.
    pub(super) fn add(&mut self, index: usize, text: &str) -> Value {
        self.text.push_str(text);
        let mut event = json!({"item_id": self.id, "output_index": index, "delta": text});
        let kind = match self.kind {
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Message => "response.output_text.delta",
            Kind::Call { .. } => "response.function_call_arguments.delta",
        };
        event["type"] = kind.into();
        if !self.is_call() {
            event["content_index"] = 0.into();
        }
        if self.is_message() {
            event["logprobs"] = json!([]);
        }
        event
    }

    /// Completes it; gives the events that tell so.
    pub(super) fn finish(&mut self, index: usize) -> Vec<Value> {
        self.done = true;
        let item = json!({"type": "response.output_item.done", "output_index": index, "item": self.json()});
        if let Kind::Call { name, .. } = &self.kind {
            let arguments = json!({
                "type": "response.function_call_arguments.done", "item_id": self.id, "output_index": index,
                "arguments": self.text, "name": name,
            });
            return vec![arguments, item];
        }
        let kind =
            if self.is_reasoning() { "response.reasoning_text.done" } else { "response.output_text.done" };
        let mut text = json!({
            "type": kind, "item_id": self.id, "output_index": index, "content_index": 0, "text": self.text,
        });
        if self.is_message() {
            text["logprobs"] = json!([]);
        }
        let part = json!({
            "type": "response.content_part.done", "item_id": self.id, "output_index": index, "content_index": 0,
            "part": self.part(),
        });
        vec![text, part, item]
    }
}
