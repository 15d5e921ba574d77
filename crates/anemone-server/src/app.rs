use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anemone_decide::{Decider, Router, Routes, Tournament, Value};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::key::Key;
use crate::language::Language;
use crate::openai::refusal::{ApiError, Checked};
use crate::openai::{chat as chats, completions, responses, tokens};
use crate::refusal::{Refusal, json};
use crate::worker::Worker;
use crate::{Error, Result, anthropic, body, decisions, metrics, models, systemone};

/// How requests are let in and answered.
#[derive(Debug, Clone)]
pub struct Options {
    /// The key requests must show; none are needed without.
    pub key: Option<Key>,
    /// Requests read, waiting and answered at once; more are told to try again.
    pub max_concurrent: usize,
    /// Time a body may take to arrive.
    pub body_timeout: Duration,
    /// Answers with the fields of Jev's own service only, in its order.
    pub jev_strict: bool,
    /// Holds choices among more labels than a group in rounds, and lets them have up to 255.
    pub tournament: Option<Tournament>,
    /// Tells the memory of the process in bytes, for `/metrics`.
    pub resident: Option<fn() -> Option<u64>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key: None,
            max_concurrent: 16,
            body_timeout: Duration::from_secs(10),
            jev_strict: false,
            tournament: None,
            resident: None,
        }
    }
}

/// The server without its sockets; a clone is the same server.
#[derive(Debug, Clone)]
pub struct App(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: Options,
    routes: Routes,
    worker: Worker,
    languages: Vec<Language>,
    room: Arc<Semaphore>,
    started: u64,
}

impl App {
    /// A server over decision models, which a thread of its own takes over, and language models. Decision models that are not
    /// loaded yet are when first asked. The first language model answers where a request names none.
    pub fn new(models: Router<Decider>, languages: Vec<Language>, options: Options) -> Result<Self> {
        let max = options.max_concurrent;
        if !(1..=Semaphore::MAX_PERMITS).contains(&max) {
            let problem = format!("is {max}, expected 1 or more");
            return Err(Error::Argument { name: "max_concurrent", problem });
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self(Arc::new(Inner {
            room: Arc::new(Semaphore::new(max)),
            routes: models.routes().clone(),
            worker: Worker::start(models)?,
            languages,
            started: since.as_secs(),
            options,
        })))
    }

    /// Its routes, as a service.
    pub fn routes(&self) -> axum::Router {
        axum::Router::new()
            .route("/health", get(health))
            .route("/metrics", get(metrics))
            .route("/v1/models", get(list))
            .route("/v1/decisions", post(decide))
            .route("/v1/chat/completions", post(chat))
            .route("/v1/completions", post(complete))
            .route("/v1/messages", post(message))
            .route("/v1/responses", post(respond))
            .route("/tokenize", post(tokenize))
            .route("/detokenize", post(detokenize))
            .route("/v1/systemone", post(one))
            .route("/v1/systemone/batch", post(batch))
            .method_not_allowed_fallback(|| async {
                Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
            })
            .fallback(|| async { Refusal::new(StatusCode::NOT_FOUND, "Not Found") })
            .layer(axum::middleware::from_fn(body::close_unread))
            .with_state(self.clone())
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(crate) fn models(&self) -> &Routes {
        &self.0.routes
    }

    pub(crate) fn worker(&self) -> &Worker {
        &self.0.worker
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        self.0.options.key.as_ref().is_none_or(|key| key.is_shown(headers))
    }

    fn authorise(&self, headers: &HeaderMap) -> std::result::Result<(), Refusal> {
        if self.knows(headers) {
            return Ok(());
        }
        Err(Refusal::new(StatusCode::UNAUTHORIZED, "invalid or missing bearer token"))
    }

    /// The permit of a request to decision models that was let in, and its body.
    pub(crate) async fn admit(
        &self,
        request: Request,
    ) -> std::result::Result<(OwnedSemaphorePermit, Value), Refusal> {
        let (permit, bytes) = self.admit_bytes(request).await?;
        if self.models().models().is_empty() {
            let missing = "this server has no decision model; start it with one";
            return Err(Refusal::new(StatusCode::NOT_FOUND, missing));
        }
        Ok((permit, body::parse(&bytes)?))
    }

    /// The permit of a request that was let in, and the bytes of its body.
    pub(crate) async fn admit_bytes(
        &self,
        request: Request,
    ) -> std::result::Result<(OwnedSemaphorePermit, Bytes), Refusal> {
        self.authorise(request.headers())?;
        let permit = Arc::clone(&self.0.room).try_acquire_owned().map_err(|_| Refusal::busy())?;
        let (parts, content) = request.into_parts();
        let bytes = body::bytes(&parts.headers, content, self.options().body_timeout).await?;
        Ok((permit, bytes))
    }

    pub(crate) fn languages(&self) -> &[Language] {
        &self.0.languages
    }

    /// The language model of a name, the first one without.
    pub(crate) fn language(&self, name: Option<&str>) -> Checked<Language> {
        let found = match name {
            None => self.0.languages.first(),
            Some(name) => self.0.languages.iter().find(|language| language.name() == name),
        };
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = self.0.languages.iter().map(Language::name).collect();
            let message = match (name, names.is_empty()) {
                (_, true) => "this server has no language model; start it with one".to_owned(),
                (name, _) => {
                    format!(
                        "the model '{}' is not here; use {}",
                        name.unwrap_or_default(),
                        names.join(" or ")
                    )
                }
            };
            let missing = ApiError::new(StatusCode::NOT_FOUND, message).with_code("model_not_found");
            ApiError { param: Some("model".to_owned()), ..missing }
        })
    }
}

async fn health(State(app): State<App>, headers: HeaderMap) -> Response {
    if !app.languages().iter().all(Language::is_running) {
        let detail = "a language model's thread has ended; the server's log says why, restart it";
        return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
    }
    json(&models::health(&app.worker().loaded(), app.models(), app.knows(&headers)))
}

async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    match app.authorise(&headers) {
        Ok(()) => json(&models::list(&app.worker().loaded(), app.models(), app.languages(), app.0.started)),
        Err(refusal) => refusal.into_response(),
    }
}

async fn metrics(State(app): State<App>, headers: HeaderMap) -> Response {
    match app.authorise(&headers) {
        Ok(()) => metrics::text(app.languages(), app.options().resident.and_then(|resident| resident())),
        Err(refusal) => refusal.into_response(),
    }
}

async fn one(State(app): State<App>, request: Request) -> Response {
    systemone::one(&app, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn batch(State(app): State<App>, request: Request) -> Response {
    systemone::batch(&app, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn decide(State(app): State<App>, request: Request) -> Response {
    decisions::create(&app, request).await.unwrap_or_else(Refusal::into_openai)
}

async fn chat(State(app): State<App>, request: Request) -> Response {
    chats::create(&app, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn complete(State(app): State<App>, request: Request) -> Response {
    completions::create(&app, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn respond(State(app): State<App>, request: Request) -> Response {
    responses::create(&app, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn message(State(app): State<App>, request: Request) -> Response {
    anthropic::create(&app, request).await
}

async fn tokenize(State(app): State<App>, request: Request) -> Response {
    tokens::tokenize(&app, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn detokenize(State(app): State<App>, request: Request) -> Response {
    tokens::detokenize(&app, request).await.unwrap_or_else(IntoResponse::into_response)
}
