//! What newcomers stumble over: errors that say what to do, and nothing that is passed over in silence.

use std::time::Duration;

use anemone_server::{App, Options};
use anemone_session::BatchOptions;
use axum::body::{Body, Bytes};
use serde_json::{Value, json};

use crate::language::{CHAT, app, user};
use crate::support::{Answer, demo, post, runtime, send};

fn told(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
    serde_json::from_str(&answer.text).unwrap()
}

/// The error of a request in OpenAI's shape.
async fn refused(app: &App, path: &str, body: impl Into<Body>, status: u16) -> Value {
    told(&post(app, path, body).await, status)["error"].clone()
}

fn says(error: &Value, parts: &[&str]) {
    let message = error["message"].as_str().unwrap();
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
}

#[test]
fn a_prompt_that_is_too_long_is_told_of_what_the_model_can_hold() {
    // The context is 512 tokens, and the model could hold 2048.
    let app = app(BatchOptions::default());
    runtime().block_on(async {
        let ids = |count: usize| json!({"prompt": vec![5; count]}).to_string();
        let error = refused(&app, "/v1/completions", ids(600), 400).await;
        says(&error, &["600 tokens", "holds 512", "--ctx 600 or more, up to 2048"]);
        assert_eq!((&error["code"], &error["param"]), (&"context_length_exceeded".into(), &"prompt".into()));
        let error = refused(&app, "/v1/completions", ids(3000), 400).await;
        says(&error, &["3000 tokens", "shorten it", "2048 at most"]);
        assert!(!error["message"].as_str().unwrap().contains("--ctx"), "{error}");
    });
}

#[test]
fn a_model_of_the_other_kind_is_told_of_with_its_routes() {
    let languages = app(BatchOptions::default());
    runtime().block_on(async {
        let chat = json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}]});
        for (path, body) in [(CHAT, chat), ("/v1/completions", json!({"model": "demo", "prompt": "x"}))] {
            let error = refused(&languages, path, body.to_string(), 404).await;
            says(&error, &["'demo' is a decision model", "/v1/systemone", "/v1/decisions", "use stories"]);
            assert_eq!((&error["code"], &error["param"]), (&"model_not_found".into(), &"model".into()));
        }
        let alone = demo(Options::default());
        says(&refused(&alone, CHAT, user("hi", json!({"model": "demo"})), 404).await, &["no language model"]);
    });
}

#[test]
fn a_decision_says_that_another_model_was_asked_for() {
    let app = demo(Options::default());
    runtime().block_on(async {
        let asked = async |name: &str| {
            let question = json!({"q": {"type": "noul", "instructions": "x"}});
            let body = json!({"state": "where is my parcel", "questions": question, "model": name});
            let answer = told(&post(&app, "/v1/systemone", body.to_string()).await, 200);
            answer["routing"]["reason"].as_str().unwrap().to_owned()
        };
        let reason = asked("nope").await;
        assert!(reason.ends_with("; there is no model 'nope' here"), "{reason}");
        // Clients of Jev's own service always name one of its models.
        for name in ["jev-latest", "jev-1", "convaiinnovations/laya", "demo"] {
            let reason = asked(name).await;
            assert!(!reason.contains("there is no model"), "{reason}");
        }
    });
}

#[test]
fn limits_of_bodies_are_told_with_what_to_do() {
    let slow = demo(Options { body_timeout: Duration::from_millis(20), ..Options::default() });
    runtime().block_on(async {
        let large = vec![b' '; (2 << 20) + 1];
        says(&refused(&slow, "/v1/completions", large.clone(), 413).await, &["2097152 bytes", "send less"]);
        let message = told(&post(&slow, "/v1/messages", large).await, 413);
        says(&message["error"], &["2097152 bytes"]);
        let never = || Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        says(&refused(&slow, CHAT, never(), 408).await, &["0.02 s", "--body-timeout"]);
        // Laya's routes have its words.
        assert_eq!(
            post(&slow, "/v1/systemone", never()).await.detail(),
            "request body was not received in time"
        );
    });
}

#[test]
fn keys_that_are_there_twice_are_refused() {
    let app = app(BatchOptions::default());
    runtime().block_on(async {
        let turn = r#"[{"role": "user", "content": "hi"}]"#;
        let twice = format!(r#"{{"messages": {turn}, "max_tokens": 1, "messages": {turn}}}"#);
        says(&refused(&app, CHAT, twice.clone(), 400).await, &["the key 'messages' is there twice"]);
        says(&told(&post(&app, "/v1/messages", twice).await, 400)["error"], &["the key 'messages'"]);
    });
}

#[test]
fn tokens_of_messages_are_counted() {
    let app = app(BatchOptions::default());
    runtime().block_on(async {
        const COUNT: &str = "/v1/messages/count_tokens";
        let conversation =
            json!({"system": "be brief", "messages": [{"role": "user", "content": "tell me a story"}]});
        let count = told(&post(&app, COUNT, conversation.to_string()).await, 200);
        let mut message = conversation.clone();
        message["max_tokens"] = 1.into();
        let answer = told(&post(&app, "/v1/messages", message.to_string()).await, 200);
        let usage = &answer["usage"];
        let read =
            usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(count, json!({"input_tokens": read}));
        for (method, body, status) in [("POST", "{}", 400), ("POST", "[", 400), ("GET", "", 405)] {
            let refused = told(&send(&app, method, COUNT, &[], Body::from(body)).await, status);
            assert_eq!(refused["type"], "error", "{refused}");
        }
        let refused = told(&post(&app, COUNT, message.to_string()).await, 400);
        says(&refused["error"], &["'max_tokens' is no field"]);
        let refused = told(&send(&app, "GET", "/v1/messages/nope", &[], Body::empty()).await, 404);
        assert_eq!(refused["error"]["type"], "not_found_error");
    });
}

#[test]
fn a_budget_of_thinking_is_refused_by_its_name() {
    let app = app(BatchOptions::default());
    runtime().block_on(async {
        let ask = |thinking: Value| {
            json!({"max_tokens": 4, "messages": [{"role": "user", "content": "hi"}], "thinking": thinking})
                .to_string()
        };
        let budget = ask(json!({"type": "enabled", "budget_tokens": 1024}));
        let error = told(&post(&app, "/v1/messages", budget).await, 400);
        says(&error["error"], &["'thinking.budget_tokens' is not supported", "leave it out"]);
        for thinking in [json!({"type": "enabled"}), json!({"type": "adaptive"}), json!({"type": "disabled"})]
        {
            told(&post(&app, "/v1/messages", ask(thinking)).await, 200);
        }
    });
}
