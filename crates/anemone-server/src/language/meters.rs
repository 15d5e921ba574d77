use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anemone_session::{Generation, Timings, Usage};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

type Seconds = Counter<f64, AtomicU64>;

/// What a model has done since it was started.
#[derive(Debug)]
pub(crate) struct Meters {
    pub(crate) running: Gauge,
    pub(crate) waiting: Gauge,
    finished: Counter,
    failed: Counter,
    prompt: Counter,
    cached: Counter,
    hits: Counter,
    prefilled: Counter,
    decoded: Counter,
    completion: Counter,
    drafted: Counter,
    accepted: Counter,
    prefill: Seconds,
    decode: Seconds,
    first_token: Histogram,
    between_tokens: Histogram,
    last: Mutex<Option<(Usage, Timings)>>,
}

/// What a model has done up to now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) running: i64,
    pub(crate) waiting: i64,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    pub(crate) cached: u64,
    pub(crate) hits: u64,
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
    /// Tokens of prompts that were computed, and the time to first tokens.
    pub(crate) prefill: (u64, f64),
    /// Tokens after the first ones, and their time.
    pub(crate) decode: (u64, f64),
    /// The sequence that ended last.
    pub(crate) last: Option<(Usage, Timings)>,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            finished: Counter::default(),
            failed: Counter::default(),
            prompt: Counter::default(),
            cached: Counter::default(),
            hits: Counter::default(),
            prefilled: Counter::default(),
            decoded: Counter::default(),
            completion: Counter::default(),
            drafted: Counter::default(),
            accepted: Counter::default(),
            prefill: Seconds::default(),
            decode: Seconds::default(),
            first_token: Histogram::new(exponential_buckets(0.005, 2.0, 14)),
            between_tokens: Histogram::new(exponential_buckets(0.000_5, 2.0, 14)),
            last: Mutex::default(),
        }
    }
}

impl Meters {
    pub(super) fn finished(&self, generation: &Generation) {
        let (usage, timings, drafts) = (generation.usage, generation.timings, generation.drafts);
        self.finished.inc();
        for (counter, tokens) in [
            (&self.prompt, usage.prompt_tokens),
            (&self.cached, usage.cached_tokens),
            (&self.hits, usize::from(usage.cached_tokens > 0)),
            (&self.prefilled, timings.prefill_tokens),
            (&self.decoded, timings.decode_tokens),
            (&self.completion, usage.completion_tokens),
            (&self.drafted, drafts.drafted),
            (&self.accepted, drafts.accepted),
        ] {
            counter.inc_by(tokens as u64);
        }
        self.prefill.inc_by(timings.prefill_seconds);
        self.decode.inc_by(timings.decode_seconds);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((usage, timings));
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            running: self.running.get(),
            waiting: self.waiting.get(),
            finished: self.finished.get(),
            failed: self.failed.get(),
            cached: self.cached.get(),
            hits: self.hits.get(),
            drafted: self.drafted.get(),
            accepted: self.accepted.get(),
            prefill: (self.prefilled.get(), self.prefill.get()),
            decode: (self.decoded.get(), self.decode.get()),
            last: *self.last.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Tokens generated.
    pub(crate) fn generated(&self) -> u64 {
        self.completion.get()
    }

    pub(super) fn failed(&self) {
        self.failed.inc();
    }

    pub(super) fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    pub(super) fn next_token(&self, after: Duration) {
        self.between_tokens.observe(after.as_secs_f64());
    }

    /// Names them all.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("sequences_running", "Sequences that run", self.running.clone());
        registry.register("sequences_waiting", "Sequences that wait", self.waiting.clone());
        registry.register("sequences_finished", "Sequences that came to an end", self.finished.clone());
        registry.register("sequences_failed", "Sequences the model failed on", self.failed.clone());
        for (name, help, counter) in [
            ("prompt_tokens", "Tokens of prompts", &self.prompt),
            ("cached_tokens", "Tokens of prompts that were known from before", &self.cached),
            ("cache_hits", "Prompts of which a beginning was known from before", &self.hits),
            ("prefill_tokens", "Tokens of prompts that were computed", &self.prefilled),
            ("decode_tokens", "Tokens drawn after first ones", &self.decoded),
            ("completion_tokens", "Tokens generated", &self.completion),
            ("drafted_tokens", "Tokens guessed ahead", &self.drafted),
            ("accepted_tokens", "Tokens guessed ahead that were right", &self.accepted),
        ] {
            registry.register(name, help, counter.clone());
        }
        let seconds = |unit: &mut Registry, name: &str, help: &str, counter: &Seconds| {
            unit.register_with_unit(name, help, Unit::Seconds, counter.clone());
        };
        seconds(registry, "prefill", "Time to first tokens, summed over sequences", &self.prefill);
        seconds(registry, "decode", "Time after first tokens, summed over sequences", &self.decode);
        for (name, help, histogram) in [
            ("time_to_first_token", "From a request's arrival to its first token", &self.first_token),
            ("time_between_tokens", "From one token of a sequence to its next", &self.between_tokens),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
    }
}
