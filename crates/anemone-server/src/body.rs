//! Bodies of requests: bounded in bytes and in time.

use std::io::Read as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anemone_decide::Value;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Frame, SizeHint};

use crate::refusal::Refusal;

/// Bytes of a body at most.
pub(crate) const LIMIT: usize = 2 << 20;
/// Memory a compressed body may ask its reader for, as a power of two.
const WINDOW_LOG: u32 = 23;

/// Reads a body.
pub(crate) async fn bytes(headers: &HeaderMap, body: Body, patience: Duration) -> Result<Bytes, Refusal> {
    let compressed = is_compressed(headers)?;
    let large = too_large;
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > LIMIT as u64) {
        return Err(large());
    }
    let read = tokio::time::timeout(patience, Limited::new(body, LIMIT).collect()).await;
    let read = read.map_err(|_| {
        let seconds = patience.as_secs_f64();
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "request body was not received in time").with_remedy(
            format!("send it within {seconds} s, or start the server with a longer --body-timeout"),
        )
    })?;
    let whole = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            large()
        } else {
            Refusal::malformed("request body could not be read")
        }
    })?;
    let whole = whole.to_bytes();
    if is_form(headers, &whole) {
        let detail =
            "parts and images are not read; send a body of JSON, and say in words what an image shows";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    if compressed { inflate(&whole) } else { Ok(whole) }
}

fn too_large() -> Refusal {
    let remedy = format!("this server reads up to {LIMIT} bytes; send less in one request");
    Refusal::too_large("request body too large").with_remedy(remedy)
}

fn is(headers: &HeaderMap, name: HeaderName, matches: impl Fn(&str) -> bool) -> bool {
    headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|text| matches(text.trim()))
}

/// Whether the body is compressed; refuses ways that are not read.
fn is_compressed(headers: &HeaderMap) -> Result<bool, Refusal> {
    let zstd = is(headers, CONTENT_ENCODING, |coding| coding.eq_ignore_ascii_case("zstd"));
    let plain = is(headers, CONTENT_ENCODING, |coding| coding.eq_ignore_ascii_case("identity"));
    if zstd || plain || !headers.contains_key(CONTENT_ENCODING) {
        return Ok(zstd);
    }
    let detail = "this Content-Encoding is not read; send the body as it is, or zstd";
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
}

/// Whether the body is a form of parts, as images are sent with; JSON that is only called one is read.
fn is_form(headers: &HeaderMap, bytes: &[u8]) -> bool {
    let multipart = |kind: &str| kind.to_ascii_lowercase().starts_with("multipart/");
    bytes.starts_with(b"--") && is(headers, CONTENT_TYPE, multipart)
}

/// What zstd compressed, as long as it is no larger than a body may be.
fn inflate(bytes: &[u8]) -> Result<Bytes, Refusal> {
    let invalid = |_| Refusal::malformed("request body is not valid zstd");
    let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes).map_err(invalid)?;
    decoder.window_log_max(WINDOW_LOG).map_err(invalid)?;
    let mut whole = Vec::new();
    decoder.take(LIMIT as u64 + 1).read_to_end(&mut whole).map_err(invalid)?;
    if whole.len() > LIMIT {
        return Err(too_large());
    }
    Ok(whole.into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_bodies_are_read_within_the_limit() {
        let text = "a state that says the same again. ".repeat(2000);
        let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
        assert!(packed.len() < 2000);
        assert_eq!(inflate(&packed).unwrap(), text.as_bytes());
        let status = |bytes: &[u8]| inflate(bytes).unwrap_err().status;
        assert_eq!(status(&packed[..packed.len() - 3]), StatusCode::BAD_REQUEST);
        assert_eq!(status(b"{}"), StatusCode::BAD_REQUEST);
        let most = zstd::encode_all(&vec![b' '; LIMIT][..], 3).unwrap();
        assert_eq!(inflate(&most).unwrap().len(), LIMIT);
        // 1 GiB in some 30 kB: what is too large is not unpacked to its end.
        let bomb = zstd::encode_all(std::io::repeat(b' ').take(1 << 30), 3).unwrap();
        assert_eq!(status(&bomb), StatusCode::PAYLOAD_TOO_LARGE);
        // A window of 128 MiB, which would be allocated before the first byte is known.
        let wide = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x88, 0x01, 0x00, 0x00];
        assert_eq!(status(&wide), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn other_forms_of_bodies_are_refused() {
        let of = |name: HeaderName, value: &str| HeaderMap::from_iter([(name, value.parse().unwrap())]);
        let compressed =
            |value| is_compressed(&of(CONTENT_ENCODING, value)).map_err(|refusal| refusal.status);
        assert_eq!(compressed("ZSTD"), Ok(true));
        assert_eq!(compressed("identity"), Ok(false));
        assert_eq!(is_compressed(&HeaderMap::new()), Ok(false));
        for value in ["gzip", "zstd, br", "\u{e9}"] {
            assert_eq!(compressed(value), Err(StatusCode::UNSUPPORTED_MEDIA_TYPE), "{value}");
        }
        let multipart = of(CONTENT_TYPE, "Multipart/form-data; boundary=x");
        assert!(is_form(&multipart, b"--x\r\n") && !is_form(&multipart, b"{}"));
        assert!(!is_form(&of(CONTENT_TYPE, "application/json"), b"--x\r\n"));
    }
}
