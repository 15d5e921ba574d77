//! Answers that say no, as the wire contract spells them.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use anemone_decide::Value;

/// A status other than 200 with its reason, `{"detail": reason}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    /// 400: the body is not what the route takes.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 413: more than the server takes.
    pub(crate) fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// 422: a value that cannot be answered.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// What a failed decision means to the client: the request's own fault is told, anything else only logged.
    pub(crate) fn of(error: &anemone_decide::Error) -> Self {
        if error.is_request() {
            return Self::invalid(error.to_string());
        }
        tracing::error!(%error, "a decision failed");
        Self::failed()
    }

    /// 500.
    pub(crate) fn failed() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "inference failed")
    }

    /// 503, to be tried again.
    pub(crate) fn busy() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server busy, try again later")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json(&Value::Map(vec![("detail".to_owned(), Value::Text(self.detail))]));
        *response.status_mut() = self.status;
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// A body of compact JSON.
pub(crate) fn json(value: &Value) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], value.to_compact()).into_response()
}
