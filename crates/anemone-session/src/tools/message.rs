use serde_json::{Value, json};

use super::parser::Delta;
use crate::Message;

/// A call with the JSON text of its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The function's name.
    pub name: String,
    /// Its arguments: an object in JSON.
    pub arguments: String,
}

/// An answer put together from its deltas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// The reasoning, without marks.
    pub reasoning: String,
    /// The text.
    pub content: String,
    /// The calls, in order.
    pub calls: Vec<ToolCall>,
}

impl Answer {
    /// Adds a step.
    pub fn push(&mut self, delta: &Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning.push_str(text),
            Delta::Content(text) => self.content.push_str(text),
            Delta::CallStart { name, .. } => {
                self.calls.push(ToolCall { name: name.clone(), arguments: String::new() });
            }
            Delta::CallArguments { index, fragment } => {
                if let Some(call) = self.calls.get_mut(*index) {
                    call.arguments.push_str(fragment);
                }
            }
            Delta::CallEnd { .. } => {}
        }
    }

    /// The calls in `OpenAI`'s shape, with the ids `id` gives for their numbers.
    pub fn tool_calls(&self, id: impl Fn(usize) -> String) -> Vec<Value> {
        let shape = |(index, call): (usize, &ToolCall)| {
            json!({
                "id": id(index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        };
        self.calls.iter().enumerate().map(shape).collect()
    }

    /// The assistant's message; without text its content is null if there are calls.
    pub fn into_message(self, id: impl Fn(usize) -> String) -> Message {
        let calls = self.tool_calls(id);
        Message {
            role: "assistant".into(),
            content: (!self.content.is_empty() || calls.is_empty()).then_some(Value::String(self.content)),
            tool_calls: (!calls.is_empty()).then_some(calls),
            reasoning_content: (!self.reasoning.is_empty()).then_some(self.reasoning),
            ..Message::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_become_a_message() {
        let mut answer = Answer::default();
        for delta in [
            Delta::Reasoning("h".into()),
            Delta::Reasoning("m".into()),
            Delta::CallStart { index: 0, name: "f".into() },
            Delta::CallArguments { index: 0, fragment: "{\"a\":".into() },
            Delta::CallArguments { index: 0, fragment: "1}".into() },
            Delta::CallEnd { index: 0 },
        ] {
            answer.push(&delta);
        }
        let json = serde_json::to_string(&answer.into_message(|i| format!("call_{i}"))).unwrap();
        assert_eq!(
            json,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}],"reasoning_content":"hm"}"#
        );
        let empty = Answer::default().into_message(|_| String::new());
        assert_eq!((empty.content, empty.tool_calls), (Some("".into()), None));
    }
}
