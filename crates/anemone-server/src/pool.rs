//! The language models a server has, loaded when they are asked for.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anemone_session::Together;
use tokio::sync::watch;

use crate::deadline::Deadline;
use crate::language::{Ending, Language, LanguageModel, Meters};
use crate::openai::refusal::{ApiError, Checked};
use crate::residency::{Claim, Index, Leaving, Residency};
use crate::worker::Worker;
use crate::{Error, Result};

/// Time a model's thread has to end before what takes its place is loaded all the same.
const ENDING: Duration = Duration::from_secs(30);

/// Why a model could not be loaded.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

type Load = Box<dyn Fn(&Launch) -> std::result::Result<Language, LoadError> + Send + Sync>;

/// What a language model is started with; what it counts goes on where the last one of its name stopped.
#[derive(Debug, Default)]
pub struct Launch {
    meters: Arc<Meters>,
}

impl Launch {
    /// Starts a model's thread, which ends when the last handle is dropped and its work is done.
    pub fn start<E: Together + 'static>(&self, model: LanguageModel<E>) -> Result<Language> {
        Language::launch(model, &self.meters, true)
    }
}

/// A language model that can be loaded, and again after it had to go.
pub struct LanguageSource {
    name: String,
    aliases: Vec<String>,
    bytes: u64,
    running: Option<Language>,
    launch: Launch,
    load: Load,
}

impl fmt::Debug for LanguageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LanguageSource")
            .field("name", &self.name)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl LanguageSource {
    /// A model under a name, whose weights take so many bytes; `load` starts it.
    pub fn new(
        name: impl Into<String>,
        bytes: u64,
        load: impl Fn(&Launch) -> std::result::Result<Language, LoadError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            aliases: Vec::new(),
            bytes,
            running: None,
            launch: Launch::default(),
            load: Box::new(load),
        }
    }

    /// The name requests know it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Another name that requests may use.
    pub fn add_alias(&mut self, alias: impl Into<String>) {
        self.aliases.push(alias.into());
    }
}

/// A model that runs already, and that cannot be loaded again.
impl From<Language> for LanguageSource {
    fn from(language: Language) -> Self {
        let gone = |_: &Launch| Err("it was started once, and cannot be again".into());
        let launch = Launch { meters: Arc::clone(language.meters()) };
        Self { running: Some(language.clone()), launch, ..Self::new(language.name(), 0, gone) }
    }
}

/// A language model as lists show it.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) name: &'a str,
    pub(crate) aliases: &'a [String],
    /// Whether it is in memory.
    pub(crate) loaded: bool,
    /// Tokens of a sequence, once it was loaded.
    pub(crate) context_len: Option<usize>,
    pub(crate) meters: &'a Meters,
    /// What its prefix cache holds, where it has one.
    pub(crate) cache: Option<anemone_session::PrefixCacheUse>,
}

/// Told to all who wait for a model.
type LoadEnd = watch::Receiver<Option<Checked<Language>>>;

#[derive(Debug)]
struct Entry {
    source: LanguageSource,
    index: Index,
    /// How the load ends that goes on, so that there is one at a time.
    loading: Mutex<Option<LoadEnd>>,
    context_len: Mutex<Option<usize>>,
}

/// All models: language models here, decision models on their own thread, and what of them is in memory.
#[derive(Debug)]
pub(crate) struct Pool {
    entries: Vec<Entry>,
    residency: Arc<Residency>,
    worker: Worker,
}

impl Pool {
    /// A pool over a residency that knows the decision models already.
    pub(crate) fn new(
        sources: Vec<LanguageSource>,
        first: Index,
        residency: Arc<Residency>,
        worker: Worker,
    ) -> Self {
        let entry = |(i, mut source): (usize, LanguageSource)| {
            let running = source.running.take();
            let context_len = Mutex::new(running.as_ref().map(Language::context_len));
            residency.add_language(&source.name, source.bytes, running);
            Entry { source, index: first + i, loading: Mutex::new(None), context_len }
        };
        let entries = sources.into_iter().enumerate().map(entry).collect();
        Self { entries, residency, worker }
    }

    /// The language model of a name or alias, the first one without; loaded when it is not. A caller that goes or whose time is up
    /// does not end the load, which others may wait for.
    pub(crate) async fn language(
        self: &Arc<Self>,
        name: Option<&str>,
        deadline: Deadline,
    ) -> Checked<Language> {
        let named = |entry: &Entry| {
            name.is_none_or(|name| {
                entry.source.name == name || entry.source.aliases.iter().any(|alias| alias == name)
            })
        };
        let position = self.entries.iter().position(named).ok_or_else(|| self.unknown(name))?;
        let running = self.residency.running(self.entries[position].index);
        let language = if let Some(language) = running {
            language
        } else {
            let mut end = self.begin(position);
            let told = deadline.bound(end.wait_for(Option::is_some)).await?;
            told.ok().and_then(|told| told.clone()).ok_or_else(ApiError::failed)??
        };
        Ok(language.with_deadline(deadline))
    }

    /// Has a model loaded by a thread of its own, unless that goes on already.
    fn begin(self: &Arc<Self>, position: usize) -> LoadEnd {
        let mut loading = self.entries[position].loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = &*loading {
            return end.clone();
        }
        let (tell, end) = watch::channel(None);
        *loading = Some(end.clone());
        let pool = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let entry = &pool.entries[position];
            let ended = catch_unwind(AssertUnwindSafe(|| pool.running(entry)));
            *entry.loading.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let _ = tell.send(Some(ended.unwrap_or_else(|_| Err(ApiError::unloadable(&entry.source.name)))));
        });
        end
    }

    fn unknown(&self, name: Option<&str>) -> ApiError {
        let names: Vec<&str> = self.entries.iter().map(|entry| entry.source.name.as_str()).collect();
        let message = match name.filter(|_| !names.is_empty()) {
            Some(name) => format!("the model '{name}' is not here; use {}", names.join(" or ")),
            None => "this server has no language model; start it with one".to_owned(),
        };
        let missing = ApiError::new(axum::http::StatusCode::NOT_FOUND, message).with_code("model_not_found");
        ApiError { param: Some("model".to_owned()), ..missing }
    }

    /// A model that runs, loaded when it is not: what one caller at a time may do.
    fn running(&self, entry: &Entry) -> Checked<Language> {
        let leaving = match self.residency.claim_language(entry.index) {
            Claim::Here(language) => return Ok(language),
            Claim::Room(leaving) => leaving,
            Claim::Full => return Err(ApiError::full()),
        };
        self.part(leaving);
        let name = entry.source.name.as_str();
        let start = Instant::now();
        match self.load(entry) {
            Ok(language) => {
                tracing::info!(model = name, seconds = start.elapsed().as_secs_f64(), "loaded");
                Ok(language)
            }
            Err(error) => {
                tracing::error!(model = name, %error, "a model could not be loaded");
                Err(ApiError::unloadable(name))
            }
        }
    }

    /// Loads a model that was claimed.
    fn load(&self, entry: &Entry) -> std::result::Result<Language, LoadError> {
        let language = Unsettled(&self.residency, Some(entry.index)).load(&entry.source)?;
        *entry.context_len.lock().unwrap_or_else(PoisonError::into_inner) = Some(language.context_len());
        Ok(language)
    }

    /// Waits until models that were told to go have gone.
    fn part(&self, leaving: Leaving) {
        for name in leaving.decisions {
            tracing::info!(model = name, "unloaded");
            self.worker.unload(name);
        }
        await_all(leaving.languages);
    }

    /// Loads every model that fits beside those before it; the names of those that did not fit.
    pub(crate) fn preload(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for entry in &self.entries {
            let name = &entry.source.name;
            if !self.residency.has_room(entry.index) {
                left.push(name.clone());
                continue;
            }
            if self.residency.running(entry.index).is_some() {
                continue;
            }
            self.residency.claim_language(entry.index);
            self.load(entry).map_err(|source| Error::Load { model: name.clone(), source })?;
        }
        Ok(left)
    }

    /// Has models go that were not used for a while, and waits until they have.
    pub(crate) fn expire(&self, unused: Duration) {
        self.part(self.residency.expire(unused));
    }

    pub(crate) fn residency(&self) -> &Residency {
        &self.residency
    }

    /// The language models in their order.
    pub(crate) fn shown(&self) -> impl Iterator<Item = Shown<'_>> {
        self.entries.iter().map(|entry| Shown {
            name: &entry.source.name,
            aliases: &entry.source.aliases,
            loaded: self.residency.is_present(entry.index),
            context_len: *entry.context_len.lock().unwrap_or_else(PoisonError::into_inner),
            meters: &entry.source.launch.meters,
            cache: self.residency.peek(entry.index, |language| {
                language.defaults().prefix_cache.as_ref().map(anemone_session::PrefixCache::in_use)
            }),
        })
    }
}

/// Waits until threads have ended.
pub(crate) fn await_all(endings: Vec<Ending>) {
    for ending in endings {
        tracing::info!(model = ending.name(), "unloaded");
        if !ending.wait(ENDING) {
            tracing::warn!(model = ending.name(), "a model takes long to go");
        }
    }
}

/// A claim that must be settled, also when loading panics.
struct Unsettled<'a>(&'a Residency, Option<Index>);

impl Unsettled<'_> {
    fn load(mut self, source: &LanguageSource) -> std::result::Result<Language, LoadError> {
        let loaded = (source.load)(&source.launch);
        if let Some(index) = self.1.take() {
            self.0.settle(index, loaded.as_ref().map(Language::clone).map_err(ToString::to_string));
        }
        loaded.map(|language| language.lent())
    }
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.1 {
            self.0.settle(index, Err("it failed in a way nobody foresaw".to_owned()));
        }
    }
}
