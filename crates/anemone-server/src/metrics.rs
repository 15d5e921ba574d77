//! `/metrics`: what the server and its models did, in the text format of Prometheus and `OpenMetrics`.

pub(crate) mod json;

use std::borrow::Cow;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::app::App;
use crate::openai::refusal::ApiError;

pub(crate) const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;

/// Parts of the machine with the joules they took.
pub type Joules = Vec<(String, f64)>;

/// What the machine tells of the server.
#[derive(Debug, Clone, Copy, Default)]
pub struct Machine {
    /// Memory of the process in bytes.
    pub resident: Option<fn() -> Option<u64>>,
    /// Joules the parts of the machine took since some moment in the past, by name; none where it does not tell.
    pub energy: Option<fn() -> Joules>,
}

/// What the server did besides its models.
#[derive(Debug, Default)]
pub(crate) struct ServerMeters {
    answered: Family<Labels, Counter>,
    /// Energy per part: the machine's own counts may begin anew.
    energy: Mutex<Vec<Part>>,
}

impl ServerMeters {
    /// Counts an answer; the method is one of those there are.
    pub(crate) fn answered(&self, method: &str, path: &'static str, status: u16) {
        const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
        let method = METHODS.into_iter().find(|known| *known == method).unwrap_or("other");
        let labels =
            vec![("method", method.to_owned()), ("path", path.to_owned()), ("status", status.to_string())];
        self.answered.get_or_create(&labels).inc();
    }

    /// Joules the machine's parts took since they were first asked, which is when the server was started. A count that went back began anew, and what it has since is added;
    /// what was between is not known.
    fn energy(&self, machine: Machine) -> Joules {
        let now = machine.energy.map(|energy| energy()).unwrap_or_default();
        let mut parts = self.energy.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|part| now.iter().any(|(here, _)| *here == part.name));
        for (name, joules) in now {
            match parts.iter_mut().find(|part| part.name == name) {
                Some(part) => {
                    part.taken += if joules < part.last { joules } else { joules - part.last };
                    part.last = joules;
                }
                None => parts.push(Part { name, last: joules, taken: 0.0 }),
            }
        }
        parts.iter().map(|part| (part.name.clone(), part.taken)).collect()
    }

    /// Begins to count.
    pub(crate) fn start(&self, machine: Machine) {
        self.energy(machine);
    }
}

/// Joules by part, and by part for each token the language models generated: all the machine took since the server was started, also
/// while it had nothing to do. None of it where the machine does not tell, and nothing for each token where there is none.
fn energies(app: &App) -> (Joules, Joules) {
    let joules = app.meters().energy(app.options().machine);
    let tokens: u64 = app.pool().shown().map(|model| model.meters.generated()).sum();
    let each =
        joules.iter().filter(|_| tokens > 0).map(|(part, joules)| (part.clone(), joules / tokens as f64));
    let each = each.collect();
    (joules, each)
}

/// A part of the machine that takes energy.
#[derive(Debug)]
struct Part {
    name: String,
    /// Its last count.
    last: f64,
    /// All since the first.
    taken: f64,
}

/// All that is measured.
pub(crate) fn text(app: &App) -> Response {
    let mut registry = Registry::with_prefix("anemone");
    let machine = app.options().machine;
    if let Some(bytes) = machine.resident.and_then(|resident| resident()) {
        gauge(&mut registry, "resident_memory", "Memory of the process", bytes);
    }
    let (energy, each) = energies(app);
    for (domain, joules) in energy {
        let label = (Cow::from("domain"), Cow::from(domain));
        let counter: Counter<f64, AtomicU64> = Counter::default();
        counter.inc_by(joules);
        let registry = registry.sub_registry_with_label(label);
        registry.register_with_unit("energy", "Energy a part of the machine took", Unit::Joules, counter);
    }
    for (domain, joules) in each {
        let gauge: Gauge<f64, AtomicU64> = Gauge::default();
        gauge.set(joules);
        let registry = registry.sub_registry_with_label((Cow::from("domain"), Cow::from(domain)));
        let help = "The same for each token generated, with what was taken when there was nothing to do";
        registry.register_with_unit("energy_per_token", help, Unit::Joules, gauge);
    }
    registry.register("http_answers", "Answers by route and status", app.meters().answered.clone());
    let decisions = app.worker().meters();
    registry.register("decision_requests", "Requests to decision models", decisions.requests.clone());
    registry.register(
        "decision_requests_waiting",
        "Requests to decision models that wait or are computed",
        decisions.waiting.clone(),
    );
    registry.register_with_unit(
        "decision",
        "Time decision models took",
        Unit::Seconds,
        decisions.seconds.clone(),
    );
    for model in app.pool().shown() {
        let label = (Cow::from("model"), Cow::from(model.name.to_owned()));
        let registry = registry.sub_registry_with_label(label);
        model.meters.register(registry);
        let loaded: Gauge = Gauge::default();
        loaded.set(i64::from(model.loaded));
        registry.register("loaded", "Whether the model is in memory", loaded);
        if let Some(cache) = model.cache {
            gauge(registry, "prefix_cache", "Memory of beginnings kept", cache.bytes as u64);
        }
    }
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => ([(CONTENT_TYPE, FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            ApiError::failed().into_response()
        }
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, bytes: u64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(bytes.cast_signed());
    registry.register_with_unit(name, help, Unit::Bytes, gauge);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_adds_up_over_counts_that_begin_anew_and_is_never_made_up() {
        let meters = ServerMeters::default();
        assert!(meters.energy(Machine::default()).is_empty());
        let told = |energy: fn() -> Joules| {
            meters.energy(Machine { energy: Some(energy), ..Machine::default() })[0].1
        };
        assert_eq!(told(|| vec![("package-0".to_owned(), 5.0)]), 0.0);
        assert_eq!(told(|| vec![("package-0".to_owned(), 9.0)]), 4.0);
        assert_eq!(told(|| vec![("package-0".to_owned(), 2.0)]), 6.0);
        assert_eq!(told(|| vec![("package-0".to_owned(), 3.0)]), 7.0);
        assert!(meters.energy(Machine::default()).is_empty());
    }
}
