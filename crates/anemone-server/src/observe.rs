//! What is told of every request: its id, a line in the log, and counters.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tracing::{Instrument as _, Span, info, info_span};

use crate::app::App;

const ID: &str = "x-request-id";
/// The same where Jev's client looks for it.
const JEV_ID: &str = "x-typesafe-request-id";
/// Characters of an id that a client chooses.
const LONGEST_ID: usize = 128;

/// Gives a request its id and follows it to the end of its answer.
pub(crate) async fn follow(State(app): State<App>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = given(request.headers()).unwrap_or_else(fresh);
    let method = request.method().clone();
    let path = App::known_path(request.uri().path());
    // Paths of no route are a client's text, and a log is no place for it.
    let span = info_span!("request", id = id.to_str().unwrap_or_default(), %method, path);
    let mut response = next.run(request).instrument(span.clone()).await;
    if path.starts_with("/v1/systemone") || path == "/v1/models" {
        response.headers_mut().insert(JEV_ID, id.clone());
    }
    response.headers_mut().insert(ID, id);
    let status = response.status().as_u16();
    app.meters().answered(method.as_str(), path, status);
    response.map(|inner| Body::new(Followed { inner, span, start, status, bytes: 0, ended: false }))
}

/// The id a client gave, if it can be an id.
fn given(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(ID)?;
    let legal = |b: &u8| b.is_ascii_alphanumeric() || b"._-:+/=".contains(b);
    (!id.is_empty() && id.len() <= LONGEST_ID && id.as_bytes().iter().all(legal)).then(|| id.clone())
}

/// An id that no other request of this server has, nor one of another start, most likely.
fn fresh() -> HeaderValue {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static START: std::sync::LazyLock<u64> = std::sync::LazyLock::new(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_right(20)
    });
    let text = format!("req_{:016x}{:06x}", *START, NEXT.fetch_add(1, Ordering::Relaxed));
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("req"))
}

/// A body that tells the log how it ended.
struct Followed {
    inner: Body,
    span: Span,
    start: Instant,
    status: u16,
    bytes: u64,
    ended: bool,
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64),
            _ => self.ended = true,
        }
        self.ended |= self.inner.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let complete = self.ended || self.inner.is_end_stream();
        let Self { status, bytes, .. } = *self;
        let ms = self.start.elapsed().max(Duration::ZERO).as_secs_f64() * 1e3;
        let ms = (ms * 10.0).round() / 10.0;
        self.span.in_scope(|| info!(status, bytes, ms, complete, "answered"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_clients_are_kept_when_they_are_harmless() {
        let id = |value: &str| {
            let value = HeaderValue::from_str(value).unwrap();
            given(&HeaderMap::from_iter([(ID.parse().unwrap(), value)]))
        };
        assert_eq!(id("abc-1.2_3").unwrap(), "abc-1.2_3");
        for bad in ["", "a b", "a\"b", &"x".repeat(129)] {
            assert_eq!(id(bad), None, "{bad}");
        }
        assert_ne!(fresh(), fresh());
    }
}
