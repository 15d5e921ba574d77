use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::language::Rejected;
use crate::refusal::Refusal;

/// A request that is not answered, in OpenAI's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
}

/// Why a request is not answered.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error", deny_unknown_fields)]
pub(crate) struct ErrorReply<'a> {
    error: ErrorBody<'a>,
}

/// What is wrong.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ErrorBody<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["invalid_request_error", "server_error"]))]
    kind: &'static str,
    /// The field of the request it is about, as `messages[0].content`.
    param: Option<&'a str>,
    #[schemars(extend("enum" = ["context_length_exceeded", "invalid_api_key", "model_not_found", null]))]
    code: Option<&'static str>,
}

/// Result of a route.
pub(crate) type Checked<T> = std::result::Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// 400: a field is wrong.
    pub(crate) fn field(param: impl Into<String>, problem: &str) -> Self {
        let param = param.into();
        Self {
            status: StatusCode::BAD_REQUEST,
            message: format!("'{param}' {problem}"),
            param: Some(param),
            code: None,
        }
    }

    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// 500: nothing the client could change.
    pub(crate) fn failed() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the model failed; the server's log says why")
    }

    /// 500: the model is not in memory and does not get there.
    pub(crate) fn unloadable(name: &str) -> Self {
        let message = format!(
            "the model '{name}' cannot be loaded; GET /ready and the server's log say why, and it is tried again when it is next asked for"
        );
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// 404: the model of this name is none for this route; those of `languages` are.
    pub(crate) fn decides<'a>(name: &str, languages: impl Iterator<Item = &'a str>) -> Self {
        let languages: Vec<&str> = languages.collect();
        let instead = if languages.is_empty() {
            "this server has no language model".to_owned()
        } else {
            format!("here, use {}", languages.join(" or "))
        };
        let message = format!(
            "the model '{name}' is a decision model, which POST /v1/systemone and /v1/decisions ask; {instead}"
        );
        let missing = Self::new(StatusCode::NOT_FOUND, message).with_code("model_not_found");
        Self { param: Some("model".to_owned()), ..missing }
    }

    /// 404: no model has this name.
    pub(crate) fn no_model(name: &str) -> Self {
        let message = format!("the model '{name}' is not here; GET /v1/models lists those that are");
        let missing = Self::new(StatusCode::NOT_FOUND, message).with_code("model_not_found");
        Self { param: Some("model".to_owned()), ..missing }
    }

    /// 504: it took longer than a request may.
    pub(crate) fn late() -> Self {
        let message = "the request took longer than this server allows; ask for fewer tokens, or raise --request-timeout";
        Self::new(StatusCode::GATEWAY_TIMEOUT, message)
    }

    /// 503: other models are at work and this one does not fit beside them.
    pub(crate) fn full() -> Self {
        let message =
            "other models are at work and this one does not fit in memory beside them, try again later";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// What an error of a session means to the client; `of` names the field prompts come from.
    pub(crate) fn session(error: &anemone_session::Error, of: &str) -> Self {
        use anemone_session::Error;
        let message = error.to_string();
        match error {
            Error::PromptTooLong { .. } => Self {
                param: Some(of.to_owned()),
                ..Self::new(StatusCode::BAD_REQUEST, message).with_code("context_length_exceeded")
            },
            Error::Busy { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, "server busy, try again later"),
            Error::Options { option, .. } => {
                Self { param: Some((*option).to_owned()), ..Self::new(StatusCode::BAD_REQUEST, message) }
            }
            Error::Sampling { field, .. } => {
                Self { param: Some((*field).to_owned()), ..Self::new(StatusCode::BAD_REQUEST, message) }
            }
            Error::Message { index, key, .. } => Self {
                param: Some(format!("messages[{index}].{key}")),
                ..Self::new(StatusCode::BAD_REQUEST, message)
            },
            Error::Grammar { what, .. } => {
                let param = match *what {
                    "schema" => Some("response_format".to_owned()),
                    // The form or the tools; which, is not known while they are followed.
                    "constraint" => None,
                    what => Some(what.to_owned()),
                };
                Self { param, ..Self::new(StatusCode::BAD_REQUEST, message) }
            }
            Error::EmptyPrompt
            | Error::TokenOutOfRange { .. }
            | Error::TemplateRefused { .. }
            | Error::TemplateRender { .. }
            | Error::TemplateSize { .. } => {
                Self { param: Some(of.to_owned()), ..Self::new(StatusCode::BAD_REQUEST, message) }
            }
            _ => {
                tracing::error!(%error, "a request failed");
                Self::failed()
            }
        }
    }

    /// Why a job was not taken.
    pub(crate) fn rejected(rejected: &Rejected, of: &str) -> Self {
        match rejected {
            Rejected::Error(error) => Self::session(error, of),
            Rejected::TooLong { prompt, context, most } => {
                let holds = format!("the prompt is {prompt} tokens and the context holds {context}");
                let message = if prompt > most {
                    format!("{holds}; shorten it, since the model can hold {most} at most")
                } else {
                    format!(
                        "{holds}; shorten it, or start the server with --ctx {prompt} or more, up to {most}"
                    )
                };
                Self {
                    param: Some(of.to_owned()),
                    ..Self::new(StatusCode::BAD_REQUEST, message).with_code("context_length_exceeded")
                }
            }
            Rejected::Stopped => Self::failed(),
            Rejected::Late => Self::late(),
        }
    }

    /// The object clients read.
    pub(crate) fn body(&self) -> ErrorReply<'_> {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let param = self.param.as_deref();
        ErrorReply { error: ErrorBody { message: &self.message, kind, param, code: self.code } }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let code = (refusal.status == StatusCode::UNAUTHORIZED).then_some("invalid_api_key");
        Self { code, param: refusal.param.clone(), ..Self::new(refusal.status, refusal.whole()) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = respond(&self.body());
        *response.status_mut() = self.status;
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// A body of compact JSON.
pub(crate) fn respond(value: &impl Serialize) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text(value)).into_response()
}

/// Compact JSON. Our answers have keys of text only, so nothing of them cannot be written.
pub(crate) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
