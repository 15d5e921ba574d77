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
    /// The field it is about; told where answers have OpenAI's shape.
    pub(crate) param: Option<String>,
    /// What there is to do about it where laya's words do not say so; told with the others' routes.
    pub(crate) remedy: Option<String>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), param: None, remedy: None }
    }

    /// The same about a field.
    pub(crate) fn about(self, field: impl Into<String>) -> Self {
        Self { param: Some(field.into()), ..self }
    }

    /// The same with what to do.
    pub(crate) fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The detail and what to do.
    pub(crate) fn whole(&self) -> String {
        self.remedy
            .as_ref()
            .map_or_else(|| self.detail.clone(), |remedy| format!("{}; {remedy}", self.detail))
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

    /// 504: it took longer than a request may.
    pub(crate) fn late() -> Self {
        let detail = "the request took longer than this server allows; ask for less at once, or raise --request-timeout";
        Self::new(StatusCode::GATEWAY_TIMEOUT, detail)
    }

    /// What a failed decision means to the client: the request's own fault is told, anything else only logged.
    pub(crate) fn of(error: &anemone_decide::Error) -> Self {
        if matches!(error, anemone_decide::Error::NoRoom { .. }) {
            return Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        }
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

    /// The same in the shape OpenAI's clients read; what a request got wrong is a 400 there.
    pub(crate) fn into_openai(self) -> Response {
        let status = if self.status == StatusCode::UNPROCESSABLE_ENTITY {
            StatusCode::BAD_REQUEST
        } else {
            self.status
        };
        let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let code =
            if status == StatusCode::UNAUTHORIZED { Value::text("invalid_api_key") } else { Value::Null };
        let entries = [
            ("message", Value::Text(self.whole())),
            ("type", Value::text(kind)),
            ("param", self.param.map_or(Value::Null, Value::Text)),
            ("code", code),
        ];
        let error = Value::Map(entries.map(|(key, value)| (key.to_owned(), value)).into());
        respond(status, &Value::Map(vec![("error".to_owned(), error)]))
    }

    /// 503, to be tried again.
    pub(crate) fn busy() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server busy, try again later")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        respond(self.status, &Value::Map(vec![("detail".to_owned(), Value::Text(self.detail))]))
    }
}

fn respond(status: StatusCode, body: &Value) -> Response {
    let mut response = json(body);
    *response.status_mut() = status;
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// A body of compact JSON.
pub(crate) fn json(value: &Value) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], value.to_compact()).into_response()
}
