use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anemone_decide::{Decider, Router, Routes, Tournament, Value};
use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::deadline::Deadline;
use crate::guard::{self, Guard};
use crate::key::Key;
use crate::language::Language;
use crate::metrics::{Machine, ServerMeters};
use crate::openai::refusal::{ApiError, Checked};
use crate::openai::{chat as chats, completions, responses, tokens};
use crate::pool::{LanguageSource, Pool};
use crate::refusal::{Refusal, json};
use crate::residency::Residency;
use crate::worker::Worker;
use crate::{
    Error, Result, anthropic, body, cors, decisions, fallback, metrics, models, observe, openapi, page,
    systemone, tokenizer_info,
};

/// The paths of all routes without parameters.
const PATHS: [&str; 18] = [
    "/",
    "/health",
    "/ready",
    "/metrics",
    "/metrics.json",
    "/openapi.json",
    "/v1/models",
    "/v1/decisions",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
    "/v1/systemone",
    "/v1/systemone/batch",
];

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
    /// Time a request may take once its body is there.
    pub request_timeout: Option<Duration>,
    /// Time after which a model nobody used is dropped from memory.
    pub idle_unload: Option<Duration>,
    /// What the weights of models in memory may take together; those used longest ago go where another one is needed.
    pub memory: Option<Memory>,
    /// Whose requests are answered.
    pub guard: Guard,
    /// What the machine tells, for `/metrics`.
    pub machine: Machine,
    /// Writes the bodies of requests to the log.
    pub log_bodies: bool,
}

/// A budget for weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of all together.
    pub budget: u64,
    /// Bytes of each decision model by its name; those of language models are told by their sources.
    pub decisions: Vec<(String, u64)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key: None,
            max_concurrent: 16,
            body_timeout: Duration::from_secs(10),
            jev_strict: false,
            tournament: None,
            request_timeout: None,
            idle_unload: None,
            memory: None,
            guard: Guard::default(),
            machine: Machine::default(),
            log_bodies: false,
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
    pool: Arc<Pool>,
    room: Arc<Semaphore>,
    meters: ServerMeters,
    started: Instant,
    created: u64,
    stopping: AtomicBool,
}

impl App {
    /// A server over decision models, which a thread of its own takes over, and language models, of which the first answers where a
    /// request names none. What is not loaded yet is when first asked.
    pub fn new(models: Router<Decider>, languages: Vec<LanguageSource>, options: Options) -> Result<Self> {
        let max = options.max_concurrent;
        if !(1..=Semaphore::MAX_PERMITS).contains(&max) {
            let problem = format!("is {max}, expected 1 or more");
            return Err(Error::Argument { name: "max_concurrent", problem });
        }
        let memory = options.memory.as_ref();
        let residency = Arc::new(Residency::new(memory.map(|memory| memory.budget)));
        let routes = models.routes().clone();
        let size =
            |name: &str| memory?.decisions.iter().find(|(known, _)| known == name).map(|(_, bytes)| *bytes);
        let loaded = models.loaded();
        for (name, _) in routes.models() {
            residency.add_decision(name, size(name).unwrap_or(0), loaded.contains(&name.as_str()));
        }
        let worker = Worker::start(models, Arc::clone(&residency), options.request_timeout)?;
        let first = routes.models().len();
        let pool = Arc::new(Pool::new(languages, first, residency, worker.clone()));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let meters = ServerMeters::default();
        meters.start(options.machine);
        Ok(Self(Arc::new(Inner {
            room: Arc::new(Semaphore::new(max)),
            routes,
            worker,
            pool,
            meters,
            started: Instant::now(),
            created: since.as_secs(),
            stopping: AtomicBool::new(false),
            options,
        })))
    }

    /// Loads the models that fit in memory together, the first ones first, so that a fault in one is seen now and not by a client.
    /// Gives the names of those that did not fit. Not to be called on a runtime.
    pub fn preload(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for (index, (name, _)) in self.0.routes.models().iter().enumerate() {
            if !self.0.pool.residency().has_room(index) {
                left.push(name.clone());
                continue;
            }
            let wanted = name.clone();
            let load = move |models: &mut Router<Decider>| models.model(&wanted).map(|_| ());
            let loaded = self.0.worker.run_blocking(load);
            let lost = || anemone_decide::Error::NoRoom { model: name.clone() };
            loaded
                .ok_or_else(lost)
                .and_then(|loaded| loaded)
                .map_err(|source| Error::Load { model: name.clone(), source: source.into() })?;
        }
        left.extend(self.0.pool.preload()?);
        Ok(left)
    }

    /// Its routes, as a service.
    pub fn routes(&self) -> axum::Router {
        let cors = cors::layer(&self.0.options.guard);
        axum::Router::new()
            .route("/health", get(health))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .route("/metrics.json", get(metrics_json))
            .route("/openapi.json", get(describe))
            .route("/v1/models", get(list))
            .route("/v1/models/{*id}", get(retrieve))
            .route("/v1/decisions", post(decide))
            .route("/v1/chat/completions", post(chat))
            .route("/v1/completions", post(complete))
            .route("/v1/messages", post(message))
            .route("/v1/messages/count_tokens", post(count_tokens))
            .route("/v1/responses", post(respond))
            .route("/tokenize", post(tokenize))
            .route("/detokenize", post(detokenize))
            .route("/tokenizer_info", get(tokenizer))
            .route("/v1/systemone", post(one))
            .route("/v1/systemone/batch", post(batch))
            .merge(page::routes())
            .method_not_allowed_fallback(fallback::method)
            .fallback(fallback::missing)
            .layer(tower::util::option_layer(cors))
            .layer(axum::middleware::from_fn_with_state(self.clone(), guard::check))
            .layer(axum::middleware::from_fn(body::close_unread))
            .layer(axum::middleware::from_fn_with_state(self.clone(), observe::follow))
            .with_state(self.clone())
    }

    /// The route of a path, as logs and counters show it.
    pub(crate) fn known_path(path: &str) -> &'static str {
        if path.starts_with("/v1/models/") {
            return "/v1/models/{id}";
        }
        if path.starts_with("/page/") {
            return "/page/{file}";
        }
        PATHS.into_iter().find(|known| *known == path).unwrap_or("other")
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

    /// The permit of a request that shows the key where one is needed, if there is room.
    pub(crate) fn enter(&self, headers: &HeaderMap) -> std::result::Result<OwnedSemaphorePermit, Refusal> {
        self.authorise(headers)?;
        Arc::clone(&self.0.room).try_acquire_owned().map_err(|_| Refusal::busy())
    }

    /// When a request that begins now must have ended.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.0.options.request_timeout)
    }

    /// The permit of a request that was let in, and the bytes of its body.
    pub(crate) async fn admit_bytes(
        &self,
        request: Request,
    ) -> std::result::Result<(OwnedSemaphorePermit, Bytes), Refusal> {
        let permit = self.enter(request.headers())?;
        let (parts, content) = request.into_parts();
        let bytes = body::bytes(&parts.headers, content, self.options().body_timeout).await?;
        if self.options().log_bodies {
            tracing::info!(body = %String::from_utf8_lossy(&bytes), "asked");
        }
        Ok((permit, bytes))
    }

    /// The language model of a name, the first one without, which may have to be loaded.
    pub(crate) async fn language(&self, name: Option<&str>, deadline: Deadline) -> Checked<Language> {
        if let Some(name) = name.filter(|name| !self.is_language(name))
            && self.0.routes.find(name).is_ok()
        {
            return Err(ApiError::decides(name, self.pool().shown().map(|model| model.name)));
        }
        self.0.pool.language(name, deadline).await
    }

    /// Whether a language model has this name.
    pub(crate) fn is_language(&self, name: &str) -> bool {
        self.0.pool.shown().any(|model| model.name == name || model.aliases.iter().any(|alias| alias == name))
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }

    pub(crate) fn meters(&self) -> &ServerMeters {
        &self.0.meters
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// When it was started, in seconds of Unix time.
    pub(crate) fn started(&self) -> u64 {
        self.0.created
    }

    /// Says from now on that it takes no more requests.
    pub(crate) fn stop(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
    }

    /// What is said when no model can answer; those who may know are told which and why.
    fn broken(&self, headers: &HeaderMap) -> Option<Refusal> {
        let residency = self.0.pool.residency();
        if residency.has_whole() {
            return None;
        }
        let mut detail = "no model of this server can answer".to_owned();
        if self.knows(headers) {
            for (name, problem) in residency.broken() {
                let _ = write!(detail, "; '{name}': {problem}");
            }
        }
        detail += "; a model is tried again when a request asks for it";
        Some(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, detail))
    }
}

async fn health(State(app): State<App>, headers: HeaderMap) -> Response {
    if let Some(broken) = app.broken(&headers) {
        return broken.into_response();
    }
    json(&models::health(&app, app.knows(&headers)))
}

async fn ready(State(app): State<App>, headers: HeaderMap) -> Response {
    if app.0.stopping.load(Ordering::Relaxed) {
        return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is ending").into_response();
    }
    if let Some(broken) = app.broken(&headers) {
        return broken.into_response();
    }
    // As of /health, others learn no more than that it is.
    let failed = if app.knows(&headers) { models::failed(&app) } else { None };
    json(&models::map([("status", Value::text("ready"))].into_iter().chain(failed)))
}

async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    match app.authorise(&headers) {
        Ok(()) => json(&models::list(&app)),
        Err(refusal) => refusal.into_response(),
    }
}

async fn retrieve(State(app): State<App>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    if let Err(refusal) = app.authorise(&headers) {
        return ApiError::from(refusal).into_response();
    }
    match models::find(&app, &id) {
        Some(model) => json(&model),
        None => ApiError::no_model(&id).into_response(),
    }
}

async fn describe(State(app): State<App>, headers: HeaderMap) -> Response {
    if !app.knows(&headers) {
        // As laya's server: who has no key does not learn what there is.
        return Refusal::new(StatusCode::NOT_FOUND, "Not Found").into_response();
    }
    let languages: Vec<&str> = app.pool().shown().map(|model| model.name).collect();
    let options = app.options();
    openapi::answer(openapi::Facts {
        has_key: options.key.is_some(),
        has_tournaments: options.tournament.is_some(),
        languages: &languages,
    })
}

async fn metrics(State(app): State<App>, headers: HeaderMap) -> Response {
    match app.authorise(&headers) {
        Ok(()) => metrics::text(&app),
        Err(refusal) => refusal.into_response(),
    }
}

async fn metrics_json(State(app): State<App>, headers: HeaderMap) -> Response {
    match app.authorise(&headers) {
        Ok(()) => metrics::json::answer(&app),
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

async fn count_tokens(State(app): State<App>, request: Request) -> Response {
    anthropic::count(&app, request).await
}

async fn tokenize(State(app): State<App>, request: Request) -> Response {
    tokens::tokenize(&app, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn tokenizer(State(app): State<App>, headers: HeaderMap) -> Response {
    tokenizer_info::answer(&app, &headers).await.unwrap_or_else(IntoResponse::into_response)
}

async fn detokenize(State(app): State<App>, request: Request) -> Response {
    tokens::detokenize(&app, request).await.unwrap_or_else(IntoResponse::into_response)
}
