//! `/metrics`: what language models did, in the text format of Prometheus and `OpenMetrics`.

use std::borrow::Cow;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::language::Language;
use crate::openai::refusal::ApiError;

const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All that is measured; `resident` is the memory of the process, where it is known.
pub(crate) fn text(languages: &[Language], resident: Option<u64>) -> Response {
    let mut registry = Registry::with_prefix("anemone");
    if let Some(bytes) = resident {
        let gauge: Gauge = Gauge::default();
        gauge.set(bytes.cast_signed());
        registry.register_with_unit("resident_memory", "Memory of the process", Unit::Bytes, gauge);
    }
    for language in languages {
        let label = (Cow::from("model"), Cow::from(language.name().to_owned()));
        language.meters().register(registry.sub_registry_with_label(label));
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
