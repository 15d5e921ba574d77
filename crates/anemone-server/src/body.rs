//! Bodies of requests: bounded in bytes and in time.

use std::time::Duration;

use anemone_decide::Value;
use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::refusal::Refusal;

/// Bytes of a body at most.
pub(crate) const LIMIT: usize = 2 << 20;

/// Reads a body of JSON.
pub(crate) async fn json(headers: &HeaderMap, body: Body, patience: Duration) -> Result<Value, Refusal> {
    let large = || Refusal::too_large("request body too large");
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > LIMIT as u64) {
        return Err(large());
    }
    let read = tokio::time::timeout(patience, Limited::new(body, LIMIT).collect()).await;
    let read =
        read.map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "request body was not received in time"))?;
    let bytes = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            large()
        } else {
            Refusal::malformed("request body could not be read")
        }
    })?;
    parse(&bytes.to_bytes())
}

fn parse(bytes: &[u8]) -> Result<Value, Refusal> {
    let invalid = || Refusal::malformed("request body must be valid JSON");
    let text =
        std::str::from_utf8(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)).map_err(|_| invalid())?;
    Value::parse(text).map_err(|error| {
        if error.is_unpaired_surrogate() {
            return Refusal::malformed(
                "request body contains an unpaired surrogate escape; those cannot be encoded as UTF-8",
            );
        }
        invalid()
    })
}
