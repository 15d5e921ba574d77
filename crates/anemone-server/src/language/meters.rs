use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anemone_session::Generation;
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
    completion: Counter,
    drafted: Counter,
    accepted: Counter,
    prefill: Seconds,
    decode: Seconds,
    first_token: Histogram,
    between_tokens: Histogram,
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
            completion: Counter::default(),
            drafted: Counter::default(),
            accepted: Counter::default(),
            prefill: Seconds::default(),
            decode: Seconds::default(),
            first_token: Histogram::new(exponential_buckets(0.005, 2.0, 14)),
            between_tokens: Histogram::new(exponential_buckets(0.000_5, 2.0, 14)),
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
            (&self.completion, usage.completion_tokens),
            (&self.drafted, drafts.drafted),
            (&self.accepted, drafts.accepted),
        ] {
            counter.inc_by(tokens as u64);
        }
        self.prefill.inc_by(timings.prefill_seconds);
        self.decode.inc_by(timings.decode_seconds);
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
