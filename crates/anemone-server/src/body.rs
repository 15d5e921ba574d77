//! Bodies of requests: bounded in bytes and in time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anemone_decide::Value;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONNECTION, CONTENT_LENGTH};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Frame, SizeHint};

use crate::refusal::Refusal;

/// Bytes of a body at most.
pub(crate) const LIMIT: usize = 2 << 20;

/// Reads a body.
pub(crate) async fn bytes(headers: &HeaderMap, body: Body, patience: Duration) -> Result<Bytes, Refusal> {
    let large = || Refusal::too_large("request body too large");
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > LIMIT as u64) {
        return Err(large());
    }
    let read = tokio::time::timeout(patience, Limited::new(body, LIMIT).collect()).await;
    let read =
        read.map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "request body was not received in time"))?;
    let whole = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            large()
        } else {
            Refusal::malformed("request body could not be read")
        }
    })?;
    Ok(whole.to_bytes())
}

/// A body that says whether it was read to its end.
struct Watched {
    inner: Body,
    ended: Arc<AtomicBool>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if frame.is_none() || self.inner.is_end_stream() {
            self.ended.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Says in an answer to a request whose body was not read that the connection ends with it, since the rest of the body is in the way.
pub(crate) async fn close_unread(request: Request, next: Next) -> Response {
    let ended = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let watched = Arc::clone(&ended);
    let request = request.map(|inner| Body::new(Watched { inner, ended: watched }));
    let mut response = next.run(request).await;
    if !ended.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The JSON of a body.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, Refusal> {
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
