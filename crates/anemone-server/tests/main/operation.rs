//! How the server is operated: models that come and go, deadlines, whose requests are answered, and what it tells of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anemone_server::{App, Guard, Key, LanguageModel, LanguageSource, Machine, Memory, Options};
use anemone_session::BatchOptions;
use axum::body::Body;
use serde_json::{Value, json};

use crate::language::{CHAT, Panics, assets, defaults, engine, template, tokenizer, user};
use crate::support::{Answer, models, post, runtime, send};

/// A language model that counts how often it is loaded.
fn source(name: &str, bytes: u64, loads: &Arc<AtomicUsize>) -> LanguageSource {
    let (loads, own) = (Arc::clone(loads), name.to_owned());
    LanguageSource::new(name, bytes, move |launch| {
        loads.fetch_add(1, Ordering::Relaxed);
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

fn app(sources: Vec<LanguageSource>, options: Options) -> App {
    App::new(models(assets(), &[("demo", "laya-demo")]), sources, options).unwrap()
}

async fn get(app: &App, path: &str) -> Answer {
    send(app, "GET", path, &[], Body::empty()).await
}

async fn said(app: &App, model: &str) -> String {
    let answer = post(app, CHAT, user("Once", json!({"model": model, "max_tokens": 4}))).await;
    assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
    let answer: Value = serde_json::from_str(&answer.text).unwrap();
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

async fn loaded(app: &App) -> Vec<String> {
    let list: Value = serde_json::from_str(&get(app, "/v1/models").await.text).unwrap();
    let entries = list["data"].as_array().unwrap().iter();
    entries.filter(|m| m["loaded"] == true).map(|m| m["id"].as_str().unwrap().to_owned()).collect()
}

async fn decided(app: &App) -> u16 {
    let body = r#"{"state":"x","questions":{"q":{"type":"noul","instructions":"x"}}}"#;
    post(app, "/v1/systemone", body).await.status.as_u16()
}

#[test]
fn models_are_loaded_when_asked_for_and_those_used_longest_ago_go() {
    let loads = Arc::new(AtomicUsize::new(0));
    let memory = Memory { budget: 100, decisions: vec![("demo".into(), 30)] };
    let mut second = source("second", 60, &loads);
    second.add_alias("gpt-4o-mini");
    let sources = vec![source("first", 50, &loads), second];
    let app = app(sources, Options { memory: Some(memory), ..Options::default() });
    // 30 and 50 fit; 60 more do not.
    assert_eq!(app.preload().unwrap(), ["second"]);
    runtime().block_on(async {
        assert_eq!(loaded(&app).await, ["demo", "first"]);
        assert_eq!(said(&app, "first").await, said(&app, "first").await);
        assert_eq!(loads.load(Ordering::Relaxed), 1);
        assert_eq!(decided(&app).await, 200);
        // `first` was used before `demo`; without it there is room.
        let by_alias = said(&app, "gpt-4o-mini").await;
        assert_eq!(loaded(&app).await, ["demo", "second"]);
        assert_eq!(by_alias, said(&app, "second").await);
        let again = said(&app, "first").await;
        assert_eq!(loaded(&app).await, ["first"], "60 and 30 had to go for 50");
        assert_eq!(again, by_alias, "the same model");
        assert_eq!(decided(&app).await, 200);
        assert_eq!(
            (loaded(&app).await, loads.load(Ordering::Relaxed)),
            (vec!["demo".into(), "first".into()], 3)
        );
        let told = get(&app, "/metrics").await.text;
        assert!(told.contains("anemone_sequences_finished_total{model=\"first\"} 3"), "counts go on: {told}");
        assert!(told.contains("anemone_loaded{model=\"second\"} 0"), "{told}");
        let asked = get(&app, "/v1/models/gpt-4o-mini").await.text;
        assert!(
            asked.contains(r#""id":"second""#) && asked.contains(r#""aliases":["gpt-4o-mini"]"#),
            "{asked}"
        );
    });
}

#[test]
fn a_model_at_work_does_not_go_and_the_other_is_told_to_wait() {
    let loads = Arc::new(AtomicUsize::new(0));
    let memory = Memory { budget: 100, decisions: vec![("demo".into(), 80)] };
    let sources = vec![source("first", 60, &loads), source("second", 60, &loads)];
    let app = app(sources, Options { memory: Some(memory), ..Options::default() });
    runtime().block_on(async {
        let slow =
            user("Once", json!({"model": "first", "stream": true, "max_tokens": 400, "ignore_eos": true}));
        let request = axum::http::Request::builder().method("POST").uri(CHAT).body(slow).unwrap();
        let streaming = tower::ServiceExt::oneshot(app.routes(), request).await.unwrap();
        for _ in 0..2 {
            let answer = post(&app, CHAT, user("Once", json!({"model": "second"}))).await;
            assert_eq!(
                (answer.status.as_u16(), answer.header("retry-after")),
                (503, Some("1")),
                "{}",
                answer.text
            );
        }
        assert_eq!(decided(&app).await, 503);
        drop(streaming);
        for _ in 0..400 {
            let answer = post(&app, CHAT, user("Once", json!({"model": "second", "max_tokens": 1}))).await;
            if answer.status.as_u16() == 200 {
                assert_eq!(loaded(&app).await, ["second"]);
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the first model does not go");
    });
}

#[test]
fn models_nobody_uses_are_unloaded_and_come_back() {
    use crate::sockets::Running;
    let loads = Arc::new(AtomicUsize::new(0));
    let unload = Some(Duration::from_millis(300));
    let app = app(vec![source("first", 1, &loads)], Options { idle_unload: unload, ..Options::default() });
    app.preload().unwrap();
    let running = Running::new(app.clone());
    runtime().block_on(async {
        let text = said(&app, "first").await;
        for round in 2..4 {
            let start = std::time::Instant::now();
            while !loaded(&app).await.is_empty() {
                assert!(start.elapsed() < Duration::from_secs(20), "they stay");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!((said(&app, "first").await, loads.load(Ordering::Relaxed)), (text.clone(), round));
            assert_eq!(decided(&app).await, 200);
        }
        let health = get(&app, "/health").await.text;
        assert!(health.contains("\"idle_unload_seconds\":0,\"idle_seconds\":0"), "{health}");
    });
    drop(running);
}

#[test]
fn a_model_that_panics_is_loaded_again_and_one_that_cannot_be_is_told_of() {
    let loads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&loads);
    let bad = LanguageSource::new("bad", 1, move |launch| {
        if counted.fetch_add(1, Ordering::Relaxed) == 2 {
            return Err("the file is gone".into());
        }
        let tokenizer = tokenizer();
        let (template, defaults, batch) = (template(&tokenizer), defaults(), BatchOptions::default());
        let name = "bad".to_owned();
        Ok(launch.start(LanguageModel {
            name,
            engine: Panics,
            tokenizer,
            template,
            defaults,
            batch,
            max_context: 2048,
        })?)
    });
    let app = app(vec![bad], Options::default());
    runtime().block_on(async {
        for expected in 1..=2 {
            let answer = post(&app, CHAT, user("hi", json!({}))).await;
            assert_eq!((answer.status.as_u16(), loads.load(Ordering::Relaxed)), (500, expected));
            // Its thread is about to end.
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(get(&app, "/ready").await.status.as_u16(), 200);
        }
        let answer = post(&app, CHAT, user("hi", json!({}))).await;
        assert!(
            answer.status.as_u16() == 500 && answer.text.contains("'bad' cannot be loaded"),
            "{}",
            answer.text
        );
        for path in ["/ready", "/health"] {
            let answer = get(&app, path).await;
            assert_eq!(answer.status.as_u16(), 200, "{path}: the other model is well");
            assert!(answer.text.contains(r#""failed":{"bad":"the file is gone"}"#), "{}", answer.text);
        }
        assert_eq!(decided(&app).await, 200);
        // The file is back.
        post(&app, CHAT, user("hi", json!({}))).await;
        for path in ["/ready", "/health"] {
            assert!(!get(&app, path).await.text.contains("failed"), "{path}");
        }
    });
}

#[test]
fn a_server_none_of_whose_models_can_be_loaded_is_not_ready() {
    let load = |_: &_| Err("no such file: secret.bin".into());
    let sources = vec![LanguageSource::new("bad", 1, load)];
    let key = Some(Key::new("sesame").unwrap());
    let none = models(assets(), &[("gone", "no-such-directory")]);
    let app = App::new(none, sources, Options { key, ..Options::default() }).unwrap();
    runtime().block_on(async {
        let shown = [("authorization", "Bearer sesame")];
        let asks = async |method: &str, path: &str, body: Body| {
            send(&app, method, path, &shown, body).await.status.as_u16()
        };
        let question = r#"{"state":"x","questions":{"q":{"type":"noul","instructions":"x"}}}"#;
        assert_eq!(asks("POST", "/v1/systemone", Body::from(question)).await, 500);
        assert_eq!(asks("GET", "/ready", Body::empty()).await, 200, "the other was not tried yet");
        assert_eq!(asks("POST", CHAT, user("hi", json!({}))).await, 500);
        for path in ["/ready", "/health"] {
            let told = send(&app, "GET", path, &shown, Body::empty()).await;
            assert_eq!(told.status.as_u16(), 503, "{path}");
            let detail = told.detail();
            for part in ["'bad': no such file", "'gone': ", "tried again"] {
                assert!(detail.contains(part), "{part}: {detail}");
            }
            let hidden = get(&app, path).await;
            assert!(hidden.status.as_u16() == 503 && !hidden.text.contains("secret"), "{}", hidden.text);
        }
    });
}

#[test]
fn requests_that_take_too_long_are_broken_off() {
    let loads = Arc::new(AtomicUsize::new(0));
    let timeout = Some(Duration::from_millis(1));
    let app =
        app(vec![source("first", 1, &loads)], Options { request_timeout: timeout, ..Options::default() });
    runtime().block_on(async {
        let long = json!({"max_tokens": 400, "ignore_eos": true});
        let answer = post(&app, CHAT, user("Once", long)).await;
        assert_eq!(answer.status.as_u16(), 504, "{}", answer.text);
        assert!(answer.text.contains("--request-timeout"), "{}", answer.text);
        let streamed = json!({"max_tokens": 400, "ignore_eos": true, "stream": true});
        let answer = post(&app, CHAT, user("Once", streamed)).await;
        assert!(
            answer.text.contains("--request-timeout") && !answer.text.contains("[DONE]"),
            "{}",
            answer.text
        );
        let body = format!(
            r#"{{"states":[{}],"questions":{{"q":{{"type":"noul","instructions":"x"}}}}}}"#,
            vec!["\"where is my parcel\""; 64].join(",")
        );
        let answer = post(&app, "/v1/systemone/batch", body).await;
        assert_eq!(answer.status.as_u16(), 504, "{}", answer.text);
        // Nothing goes on for those who were told that it has ended.
        for _ in 0..400 {
            if get(&app, "/metrics").await.text.contains("anemone_sequences_running{model=\"first\"} 0") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the sequences go on");
    });
}

#[test]
fn only_known_names_and_pages_are_answered() {
    let guard = Guard { hosts: Some(Vec::new()), ..Guard::default() };
    let closed = app(Vec::new(), Options { guard: guard.clone(), ..Options::default() });
    let origins = vec!["https://app.example".to_owned()];
    let open = app(Vec::new(), Options { guard: Guard { origins, ..guard }, ..Options::default() });
    runtime().block_on(async {
        let asks = async |app: &App, path: &str, headers: &[(&str, &str)]| {
            send(app, "POST", path, headers, Body::from("{}")).await
        };
        let answer = asks(&closed, "/v1/systemone", &[("host", "evil.example")]).await;
        assert_eq!(answer.status.as_u16(), 403);
        assert!(answer.detail().contains("--allow-host"), "{}", answer.text);
        let answer =
            asks(&closed, CHAT, &[("host", "localhost:8000"), ("origin", "https://evil.example")]).await;
        let error: Value = serde_json::from_str(&answer.text).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains("--cors-origin"), "{error}");
        assert_eq!(answer.status.as_u16(), 403);
        let answer = asks(&closed, "/v1/messages", &[("host", "evil.example")]).await;
        let error: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!((error["type"].as_str(), answer.status.as_u16()), (Some("error"), 403));
        let page = [("host", "localhost"), ("origin", "https://app.example")];
        assert_eq!(asks(&closed, "/v1/systemone", &page).await.status.as_u16(), 403);
        let answer = asks(&open, "/v1/systemone", &page).await;
        assert_eq!(answer.status.as_u16(), 400, "it is read");
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
        let asked = [page[0], page[1], ("access-control-request-method", "POST")];
        let answer = send(&open, "OPTIONS", CHAT, &asked, Body::empty()).await;
        assert_eq!(answer.header("access-control-allow-methods"), Some("GET,HEAD,POST"));
        let answer = send(&closed, "OPTIONS", CHAT, &[("host", "localhost")], Body::empty()).await;
        assert_eq!((answer.status.as_u16(), answer.header("access-control-allow-origin")), (405, None));
    });
}

#[test]
fn every_answer_has_an_id_and_every_refusal_the_shape_of_its_clients() {
    let key = Some(Key::new("sesame").unwrap());
    let app = app(Vec::new(), Options { key, ..Options::default() });
    runtime().block_on(async {
        let own = send(&app, "GET", "/health", &[("x-request-id", "mine-1")], Body::empty()).await;
        assert_eq!(own.header("x-request-id"), Some("mine-1"));
        let made = send(&app, "GET", "/health", &[("x-request-id", "a b")], Body::empty()).await;
        assert!(made.header("x-request-id").unwrap().starts_with("req_"));
        for (method, path, status) in [
            ("GET", CHAT, 405),
            ("GET", "/tokenize", 405),
            ("POST", "/v1/embeddings", 404),
            ("GET", "/v1/models/x", 401),
        ] {
            let answer = send(&app, method, path, &[], Body::empty()).await;
            let error: Value = serde_json::from_str(&answer.text).unwrap();
            assert_eq!(
                (answer.status.as_u16(), error["error"]["message"].is_string()),
                (status, true),
                "{path}"
            );
        }
        let shown = [("authorization", "Bearer sesame")];
        let missing = send(&app, "GET", "/v1/models/x", &shown, Body::empty()).await;
        assert!(
            missing.status.as_u16() == 404 && missing.text.contains("model_not_found"),
            "{}",
            missing.text
        );
        let messages = send(&app, "GET", "/v1/messages", &[], Body::empty()).await;
        assert!(messages.status.as_u16() == 405 && messages.text.contains(r#""type":"error""#));
        for path in ["/metrics", "/metrics.json"] {
            assert_eq!(get(&app, path).await.status.as_u16(), 401, "{path}");
        }
        let told = send(&app, "GET", "/metrics", &shown, Body::empty()).await.text;
        let line = r#"anemone_http_answers_total{method="GET",path="/v1/chat/completions",status="405"} 1"#;
        assert!(told.contains(line), "{told}");
        assert!(told.contains(r#"path="other",status="404"} 1"#) && !told.contains("embeddings"), "{told}");
    });
}

#[test]
fn figures_are_told_as_json_and_energy_only_where_the_machine_tells() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let loads = Arc::new(AtomicUsize::new(0));
    let app_of = |machine| app(vec![source("first", 1, &loads)], Options { machine, ..Options::default() });
    let told =
        // It has taken 2.5 J when the server is started, and takes 1 J from each time it is asked to the next.
        Machine {
            resident: Some(|| Some(12345)),
            energy: Some(|| {
                let asked = ASKED.fetch_add(1, Ordering::Relaxed);
                vec![("package-0".to_owned(), 2.5 + asked as f64)]
            }),
        };
    let (plain, full) = (app_of(Machine::default()), app_of(told));
    runtime().block_on(async {
        let figures = async |app: &App| -> Value {
            serde_json::from_str(&get(app, "/metrics.json").await.text).unwrap()
        };
        let before = figures(&plain).await;
        assert!(
            before.get("energy_joules").is_none()
                && before.get("energy_joules_per_token").is_none()
                && before["process"].get("resident_memory_bytes").is_none()
        );
        assert_eq!(before["models"]["first"]["decode"]["tokens_per_second"], Value::Null);
        said(&full, "first").await;
        decided(&full).await;
        let after = figures(&full).await;
        assert_eq!(
            (&after["energy_joules"]["package-0"], &after["decisions"]["requests"]),
            (&json!(1.0), &json!(1))
        );
        assert_eq!(after["energy_joules_per_token"], json!({"package-0": 0.25}), "four tokens");
        assert_eq!(after["process"]["resident_memory_bytes"], 12345);
        let model = &after["models"]["first"];
        let last = &model["last_request"];
        assert_eq!((&model["sequences"]["finished"], &last["completion_tokens"]), (&json!(1), &json!(4)));
        assert_eq!(
            (&model["prefill"]["tokens"], &model["decode"]["tokens"]),
            (&last["prompt_tokens"], &json!(3))
        );
        assert!(model["decode"]["tokens_per_second"].as_f64().unwrap() > 0.0);
        let told = get(&full, "/metrics").await.text;
        for line in [
            "anemone_energy_joules_total{domain=\"package-0\"} 2.0",
            "anemone_energy_per_token_joules{domain=\"package-0\"} 0.5",
        ] {
            assert!(told.contains(line), "{line}: {told}");
        }
        assert!(!get(&plain, "/metrics").await.text.contains("energy"));
    });
}
