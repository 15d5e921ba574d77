//! Answers where no handler is reached, in the shape the route's clients read.

use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};

use crate::anthropic;
use crate::openai::refusal::ApiError;
use crate::refusal::Refusal;

/// 404 at a path that is none.
pub(crate) async fn missing(uri: Uri) -> Response {
    refuse(StatusCode::NOT_FOUND, "Not Found", uri.path())
}

/// 405 at a path that is one.
pub(crate) async fn method(method: Method, uri: Uri) -> Response {
    let detail = if is_openai(uri.path()) || uri.path().starts_with("/v1/messages") {
        format!("Method Not Allowed: {method} {}", uri.path())
    } else {
        "Method Not Allowed".to_owned()
    };
    refuse(StatusCode::METHOD_NOT_ALLOWED, detail, uri.path())
}

/// Whether OpenAI's clients ask here. They ask for models, too, but so do those of laya.
fn is_openai(path: &str) -> bool {
    const OTHERS: [&str; 3] = ["/v1/systemone", "/v1/models", "/v1/messages"];
    path.starts_with("/v1/") && !OTHERS.iter().any(|other| path.starts_with(other))
        || path.starts_with("/v1/models/")
        || matches!(path, "/tokenize" | "/detokenize" | "/tokenizer_info")
}

/// A refusal in the shape of the clients of a path.
pub(crate) fn refuse(status: StatusCode, detail: impl Into<String>, path: &str) -> Response {
    if path.starts_with("/v1/messages") {
        return anthropic::refuse(&ApiError::new(status, detail));
    }
    if is_openai(path) {
        return ApiError::new(status, detail).into_response();
    }
    Refusal::new(status, detail).into_response()
}
