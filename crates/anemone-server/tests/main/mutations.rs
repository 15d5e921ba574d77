//! Requests of the language routes with parts exchanged for odd ones: whatever is answered, it is no failure of the server.

use serde_json::{Value, json};

use crate::language::app;
use crate::openapi::Description;
use crate::support::{post, runtime};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn odd(&mut self) -> Value {
        let odd = [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(1e308),
            json!(u64::MAX),
            json!(0.5),
            json!(""),
            json!("\u{0}"),
            json!("<think>"),
            json!("<|tool_call_start|>[f("),
            json!("x".repeat(3000)),
            json!([]),
            json!({}),
            json!([[]]),
            json!([null]),
            json!({"type": "object"}),
            json!({"$ref": "#"}),
            json!({"type": "string", "pattern": "(a*)*b"}),
            json!({"anyOf": []}),
        ];
        odd[self.below(odd.len())].clone()
    }

    /// Exchanges or removes a part, at any depth.
    fn mutate(&mut self, value: &mut Value) {
        let inner = match value {
            Value::Object(map) if !map.is_empty() => {
                let key = map.keys().nth(self.below(map.len())).cloned().unwrap_or_default();
                if self.below(6) == 0 {
                    map.remove(&key);
                    return;
                }
                map.get_mut(&key)
            }
            Value::Array(list) if !list.is_empty() => {
                let at = self.below(list.len());
                list.get_mut(at)
            }
            _ => None,
        };
        match inner.filter(|_| self.below(4) > 0) {
            Some(inner) => self.mutate(inner),
            None => *value = self.odd(),
        }
    }
}

/// Fields with rules that no schema can tell, which their descriptions do: functions of one name, forms that cannot be followed, ids
/// that are no tokens, fields that go together, roles in an order a template does not know.
const RULES: [&str; 10] = [
    "tools",
    "tool_choice",
    "best_of",
    "response_format",
    "logit_bias",
    "tokens",
    "prompt",
    "messages",
    "stream_options",
    "top_logprobs",
];

/// Requests with as many fields as they may have.
fn requests() -> Vec<(&'static str, Value)> {
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let function = json!({"name": "get", "description": "x", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    let call =
        json!({"id": "a", "type": "function", "function": {"name": "get", "arguments": "{\"city\": \"x\"}"}});
    let schema = json!({"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}});
    vec![
        (
            "/v1/chat/completions",
            json!({
                "model": "stories",
                "messages": [
                    {"role": "system", "content": "x"},
                    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                    {"role": "assistant", "content": null, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "a", "content": "sun"},
                ],
                "tools": tools, "tool_choice": "auto", "n": 2, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 3,
                "stop": ["x"], "logprobs": true, "top_logprobs": 2, "logit_bias": {"5": 1}, "presence_penalty": 0.1,
                "response_format": {"type": "json_schema", "json_schema": schema}, "stream": false,
            }),
        ),
        (
            "/v1/completions",
            json!({
                "model": "stories", "prompt": ["hi", "ho"], "max_tokens": 3, "n": 1, "best_of": 2, "echo": true, "logprobs": 2,
                "temperature": 0.3, "stream": false,
            }),
        ),
        (
            "/v1/messages",
            json!({
                "model": "stories", "max_tokens": 3, "system": [{"type": "text", "text": "x"}],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "x"}]},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "get", "input": {"city": "x"}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "sun"}]},
                ],
                "tools": [{"name": "get", "input_schema": parameters}], "tool_choice": {"type": "auto"},
                "stop_sequences": ["q"], "stream": false,
            }),
        ),
        (
            "/v1/responses",
            json!({
                "model": "stories",
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                    {"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "sun"},
                ],
                "max_output_tokens": 3, "tools": [{"type": "function", "name": "get", "parameters": parameters}],
                "text": {"format": {"type": "text"}}, "tool_choice": "auto", "stream": false,
            }),
        ),
        ("/tokenize", json!({"prompt": "x", "add_special_tokens": true})),
        ("/detokenize", json!({"tokens": [1, 2]})),
    ]
}

#[test]
fn odd_requests_are_answered_or_refused() {
    runtime().block_on(async {
        let app = app(anemone_session::BatchOptions::default());
        let described = Description::of(&app).await;
        let mut random = Random(5);
        let (mut taken, mut refused) = (0, 0);
        for (path, request) in requests() {
            let schema = described.request(path);
            assert!(schema.is_valid(&request), "{path}");
            let answer = post(&app, path, request.to_string()).await;
            assert_eq!(answer.status.as_u16(), 200, "{path}: {}", answer.text);
            for _ in 0..250 {
                let mut odd = request.clone();
                for _ in 0..=random.below(2) {
                    random.mutate(&mut odd);
                }
                // Nothing is learned from long answers.
                for key in
                    ["max_tokens", "max_output_tokens"].into_iter().filter(|key| request.get(key).is_some())
                {
                    if odd.is_object() && odd.get(key).and_then(Value::as_u64).is_none_or(|most| most > 9) {
                        odd[key] = 3.into();
                    }
                }
                let answer = post(&app, path, odd.to_string()).await;
                let status = answer.status.as_u16();
                assert!(status < 500, "{path}: {status} {}\n{odd}", answer.text);
                assert!(
                    status != 200 || schema.is_valid(&odd),
                    "{path} takes what it says it does not: {odd}"
                );
                if status == 200 {
                    taken += 1;
                } else {
                    refused += 1;
                    let body: Value = serde_json::from_str(&answer.text).unwrap();
                    let param = body["error"]["param"].as_str().unwrap_or_default();
                    let ruled = RULES.iter().any(|rule| param.starts_with(rule))
                        || answer.text.contains("context_length");
                    assert!(
                        ruled || status == 404 || !schema.is_valid(&odd),
                        "{path} refuses what it says it takes: {} {odd}",
                        answer.text
                    );
                    assert!(
                        body["error"]["message"].as_str().is_some_and(|m| !m.is_empty()),
                        "{path}: {}",
                        answer.text
                    );
                }
            }
        }
        assert!(taken > 100 && refused > 500, "{taken} {refused}");
    });
}
