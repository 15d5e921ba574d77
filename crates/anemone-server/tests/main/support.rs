use std::io::Write as _;
use std::path::{Path, PathBuf};

use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::LayaOptions;
use anemone_decide::{Decider, Router, Routes, Value};
use anemone_server::{App, Options};
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use tower::ServiceExt as _;

/// A path beside the crate's own.
pub(crate) fn beside(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Says that a test needs files that are not here.
pub(crate) fn skipped(what: &str) {
    // Not `eprintln!`, which the test runner swallows.
    let _ = writeln!(std::io::stderr(), "skipped: {what} is not present");
}

/// Models by name, at places beside `base`.
pub(crate) fn models(base: PathBuf, named: &[(&str, &str)]) -> Router {
    let mut routes = Routes::empty();
    for (name, at) in named {
        routes.insert(name, *at).unwrap();
    }
    if named.len() == 1 {
        routes.set_default(named[0].0).unwrap();
    }
    let load = move |_: &str, at: &str| {
        let checkpoint = DecisionCheckpoint::open(&base.join(at))?;
        Decider::load(&checkpoint, LayaOptions { threads: 2, reduced: false })
    };
    Router::new(routes, named.len().max(1), load).unwrap()
}

/// The demo model of the repository under the name `demo`.
pub(crate) fn demo(options: Options) -> App {
    App::new(models(beside("../anemone/assets"), &[("demo", "laya-demo")]), Vec::new(), options).unwrap()
}

/// What a request was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        Value::parse(&self.text).unwrap()
    }

    pub(crate) fn detail(&self) -> String {
        self.json().get("detail").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Sends a request without a socket.
pub(crate) async fn send(
    app: &App,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Body,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = app.routes().oneshot(request.body(body).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes: Bytes = to_bytes(body, usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    Answer { status: parts.status, headers: parts.headers, text }
}

pub(crate) async fn post(app: &App, path: &str, body: impl Into<Body>) -> Answer {
    send(app, "POST", path, &[], body.into()).await
}

/// A runtime as the server's.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
