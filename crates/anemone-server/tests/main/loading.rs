//! What others are told while a model is being loaded, and when models were used last.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use anemone_server::{App, LanguageModel, LanguageSource, Memory, Options};
use anemone_session::BatchOptions;
use axum::body::Body;
use serde_json::json;

use crate::language::{CHAT, assets, defaults, engine, template, tokenizer, user};
use crate::support::{Answer, models, post, send};

/// Holds loads up until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let open = self.1.wait_while(self.0.lock().unwrap(), |open| !*open);
        drop(open.unwrap());
    }
}

/// Opens the gate also when a test fails, or its runtime would wait for the load.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A model whose loads wait at a gate.
fn gated(name: &str, bytes: u64, gate: &Arc<Gate>, loads: &Arc<AtomicUsize>) -> LanguageSource {
    let (gate, loads, own) = (Arc::clone(gate), Arc::clone(loads), name.to_owned());
    LanguageSource::new(name, bytes, move |launch| {
        loads.fetch_add(1, Ordering::Relaxed);
        gate.pass();
        let tokenizer = tokenizer();
        let (template, defaults, batch) = (template(&tokenizer), defaults(), BatchOptions::default());
        let name = own.clone();
        Ok(launch.start(LanguageModel {
            name,
            engine: engine(),
            tokenizer,
            template,
            defaults,
            batch,
            max_context: 2048,
        })?)
    })
}

fn open_gate() -> Arc<Gate> {
    let gate = Arc::new(Gate::default());
    gate.open();
    gate
}

fn app(sources: Vec<LanguageSource>, options: Options) -> App {
    App::new(models(assets(), &[("demo", "laya-demo")]), sources, options).unwrap()
}

/// A runtime on which few may block.
fn narrow() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).max_blocking_threads(2).enable_all().build().unwrap()
}

async fn get(app: &App, path: &str) -> Answer {
    send(app, "GET", path, &[], Body::empty()).await
}

async fn said(app: &App, model: &str) -> u16 {
    post(app, CHAT, user("Once", json!({"model": model, "max_tokens": 1}))).await.status.as_u16()
}

#[test]
fn a_deadline_holds_while_a_model_is_loaded_and_the_load_goes_on() {
    let (gate, loads) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
    let request_timeout = Some(Duration::from_millis(30));
    let sources = vec![gated("slow", 1, &gate, &loads)];
    let app = app(sources, Options { request_timeout, ..Options::default() });
    let runtime = narrow();
    let opens = Opens(Arc::clone(&gate));
    runtime.block_on(async {
        let message = r#"{"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}"#;
        for (path, body) in [
            (CHAT, r#"{"messages": [{"role": "user", "content": "hi"}]}"#),
            ("/v1/completions", r#"{"prompt": "Once"}"#),
            ("/v1/responses", r#"{"input": "hi"}"#),
            ("/v1/messages", message),
            ("/tokenize", r#"{"prompt": "Once"}"#),
            ("/detokenize", r#"{"tokens": [1]}"#),
        ] {
            let answer = post(&app, path, body).await;
            assert_eq!(answer.status.as_u16(), 504, "{path} {}", answer.text);
            assert!(answer.text.contains("--request-timeout"), "{}", answer.text);
        }
        assert_eq!(get(&app, "/tokenizer_info").await.status.as_u16(), 504);
        assert!(
            get(&app, "/v1/models").await.text.contains(r#""loaded":true,"default":true,"kind":"language""#)
        );
        drop(opens);
        // The load that was begun for the first of them ends, and there was no other.
        loop {
            if get(&app, "/tokenizer_info").await.status.as_u16() == 200 {
                break;
            }
        }
        assert_eq!(loads.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn who_waits_for_a_model_is_counted_and_holds_nobody_else_up() {
    let (gate, loads) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
    let other = Arc::new(AtomicUsize::new(0));
    let sources = vec![gated("slow", 1, &gate, &loads), gated("quick", 1, &open_gate(), &other)];
    let app = app(sources, Options { max_concurrent: 5, ..Options::default() });
    let runtime = narrow();
    let opens = Opens(Arc::clone(&gate));
    runtime.block_on(async {
        let mut waiting: Vec<std::pin::Pin<Box<dyn Future<Output = Answer>>>> = Vec::new();
        for i in 0..5 {
            if i == 4 {
                // Four wait; the fifth place is for what needs another model, and threads are there for it.
                assert_eq!(said(&app, "quick").await, 200);
            }
            waiting.push(if i % 2 == 0 {
                Box::pin(get(&app, "/tokenizer_info"))
            } else {
                Box::pin(post(&app, "/tokenize", r#"{"prompt": "Once"}"#))
            });
            // It is let in when it is first looked at.
            let waits = tokio::time::timeout(Duration::from_millis(1), waiting.last_mut().unwrap()).await;
            assert!(waits.is_err(), "{waits:?}");
        }
        let refused = get(&app, "/tokenizer_info").await;
        assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (503, Some("1")));
        assert_eq!(get(&app, "/health").await.status.as_u16(), 200);
        drop(opens);
        for answer in waiting {
            let answer = answer.await;
            assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
        }
        assert_eq!(loads.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_model_counts_as_used_until_its_last_request_has_ended() {
    let loads = Arc::new(AtomicUsize::new(0));
    let sources =
        ["first", "second", "third"].map(|name| gated(name, 40, &open_gate(), &loads)).into_iter().collect();
    let memory = Memory { budget: 100, decisions: Vec::new() };
    let app = app(sources, Options { memory: Some(memory), ..Options::default() });
    narrow().block_on(async {
        let long =
            user("Once", json!({"model": "first", "stream": true, "max_tokens": 400, "ignore_eos": true}));
        let request = axum::http::Request::builder().method("POST").uri(CHAT).body(long).unwrap();
        let streaming = tower::ServiceExt::oneshot(app.routes(), request).await.unwrap();
        // Asked for after the first one, and answered before it.
        assert_eq!(said(&app, "second").await, 200);
        drop(streaming);
        assert_eq!(said(&app, "third").await, 200);
        let list = get(&app, "/v1/models").await.text;
        let is_loaded = |name: &str| {
            list.contains(&format!(r#"{{"id":"{name}","object":"model","#)) && {
                let entry = &list[list.find(&format!(r#""id":"{name}""#)).unwrap()..];
                entry[entry.find("\"loaded\":").unwrap()..].starts_with("\"loaded\":true")
            }
        };
        assert!(is_loaded("first") && !is_loaded("second") && is_loaded("third"), "{list}");
    });
}
