//! What `/openapi.json` says of answers, held to answers.

use anemone_session::BatchOptions;
use axum::body::Body;
use serde_json::{Value, json};

use crate::language::app;
use crate::support::{Answer, post, runtime, send};

/// The description of the server.
pub(crate) struct Description(Value);

impl Description {
    pub(crate) async fn of(app: &anemone_server::App) -> Self {
        let answer = send(app, "GET", "/openapi.json", &[], Body::empty()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        Self(serde_json::from_str(&answer.text).unwrap())
    }

    /// A validator of the schema at a place.
    pub(crate) fn validator(&self, pointer: &str) -> jsonschema::Validator {
        assert!(self.0.pointer(pointer).is_some(), "nothing is described at {pointer}");
        let mut whole = self.0.clone();
        whole["$ref"] = format!("#{pointer}").replace('{', "%7B").replace('}', "%7D").into();
        jsonschema::validator_for(&whole).unwrap()
    }

    pub(crate) fn request(&self, path: &str) -> jsonschema::Validator {
        let path = path.replace('/', "~1");
        self.validator(&format!("/paths/{path}/post/requestBody/content/application~1json/schema"))
    }

    fn answer(&self, method: &str, path: &str, answer: &Answer) {
        let (path, status) = (path.replace('/', "~1"), answer.status.as_u16());
        let kind = answer.header("content-type").unwrap().replace('/', "~1");
        let place = format!("/paths/{path}/{method}/responses/{status}/content/{kind}");
        if kind == "text~1event-stream" {
            let validator = [
                format!("{place}/schema/properties/data"),
                format!("{place}/schema/properties/data/anyOf/1"),
            ]
            .iter()
            .map(|data| format!("{data}/contentSchema"))
            .find(|place| self.0.pointer(place).is_some())
            .map(|place| self.validator(&place))
            .unwrap();
            let mut told = 0;
            for data in answer.text.lines().filter_map(|line| line.strip_prefix("data: ")) {
                if data != "[DONE]" {
                    let event: Value = serde_json::from_str(data).unwrap();
                    validator.validate(&event).unwrap_or_else(|error| panic!("{path}: {error}: {event}"));
                    told += 1;
                }
            }
            assert!(told > 2, "{path}: {}", answer.text);
        } else {
            let value: Value = serde_json::from_str(&answer.text).unwrap();
            let validator = self.validator(&format!("{place}/schema"));
            validator.validate(&value).unwrap_or_else(|error| panic!("{path} {status}: {error}: {value}"));
        }
    }
}

/// Requests of every route that takes one, and the status of the answer.
fn requests() -> Vec<(&'static str, Value, u16)> {
    let chat = |more: Value| {
        let mut request = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9});
        for (key, value) in more.as_object().unwrap() {
            request[key] = value.clone();
        }
        request
    };
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let call = json!({"tools": [tool], "tool_choice": "required", "max_tokens": 60});
    let flat = json!({"type": "function", "name": "f", "parameters": parameters});
    let question = json!({"type": "choice", "instructions": "x", "criteria": ["a", "b"]});
    let score = json!({"type": "score", "instructions": "x", "criteria": ["a", "b"]});
    let all = json!({"a": question, "b": score, "c": {"type": "noul", "instructions": "x"}});
    let message = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9});
    let count = json!({"messages": message["messages"]});
    let uses = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "tool_choice": {"type": "any"},
        "tools": [{"name": "f", "input_schema": parameters}]});
    vec![
        ("/v1/chat/completions", chat(json!({})), 200),
        ("/v1/chat/completions", chat(json!({"logprobs": true, "top_logprobs": 2, "n": 2})), 200),
        ("/v1/chat/completions", chat(call), 200),
        ("/v1/chat/completions", chat(json!({"temperature": 9})), 400),
        ("/v1/chat/completions", chat(json!({"model": "gpt"})), 404),
        ("/v1/completions", json!({"prompt": "once", "echo": true, "logprobs": 2, "n": 2}), 200),
        ("/v1/completions", json!({}), 400),
        ("/v1/responses", json!({"input": "hi", "max_output_tokens": 5}), 200),
        ("/v1/responses", json!({"input": "hi", "tools": [flat], "tool_choice": "required"}), 200),
        ("/v1/responses", json!({"input": []}), 400),
        ("/v1/messages", message, 200),
        ("/v1/messages", uses, 200),
        ("/v1/messages", json!({"messages": []}), 400),
        ("/v1/messages/count_tokens", count, 200),
        ("/v1/messages/count_tokens", json!({"messages": []}), 400),
        ("/tokenize", json!({"prompt": "x"}), 200),
        ("/detokenize", json!({"tokens": [1, 2]}), 200),
        ("/detokenize", json!({"tokens": [99_999]}), 400),
        ("/v1/systemone", json!({"state": "x", "questions": all}), 200),
        ("/v1/systemone", json!({"state": "x", "questions": {}}), 200),
        ("/v1/systemone", json!({"state": "x", "questions": {"q": {}}}), 422),
        ("/v1/systemone/batch", json!({"states": ["x", [1]], "questions": all, "min_confidence": 0.9}), 200),
        ("/v1/systemone/batch", json!({"states": []}), 400),
        (
            "/v1/decisions",
            json!({"model": "m", "input": "x", "questions": [
                {"type": "predicate", "instructions": "x"},
                {"type": "choice", "instructions": "x", "choices": [{"value": "a"}, {"value": true}]},
                {"type": "score", "name": "s", "instructions": "x", "levels": [{"label": "a"}, {"label": "b"}]},
            ]}),
            200,
        ),
        ("/v1/decisions", json!({"model": "m", "input": "x", "questions": []}), 400),
    ]
}

fn asks_about_tokens(request: &Value) -> bool {
    request.get("tokens").is_some()
}

#[test]
fn answers_are_as_they_are_described() {
    runtime().block_on(async {
        let app = app(BatchOptions::default());
        let described = Description::of(&app).await;
        for (path, request, status) in requests() {
            // That a token or a model is not there, no schema tells.
            let ruled = status == 404 || asks_about_tokens(&request);
            let valid = described.request(path).is_valid(&request);
            assert_eq!(valid, status == 200 || ruled, "{path}: {request}");
            let answer = post(&app, path, request.to_string()).await;
            assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.text);
            described.answer("post", path, &answer);
            let is_streamed = !path.ends_with("count_tokens");
            if status == 200
                && is_streamed
                && ["/v1/chat", "/v1/comp", "/v1/resp", "/v1/mess"].contains(&&path[..8])
            {
                let mut streamed = request;
                streamed["stream"] = true.into();
                let answer = post(&app, path, streamed.to_string()).await;
                assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{path}");
                described.answer("post", path, &answer);
            }
        }
        for path in ["/health", "/ready", "/metrics.json", "/v1/models"] {
            described.answer("get", path, &send(&app, "GET", path, &[], Body::empty()).await);
        }
        for (id, status) in [("stories", 200), ("demo", 200), ("gpt", 404)] {
            let answer = send(&app, "GET", &format!("/v1/models/{id}"), &[], Body::empty()).await;
            assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
            described.answer("get", "/v1/models/{id}", &answer);
        }
    });
}
