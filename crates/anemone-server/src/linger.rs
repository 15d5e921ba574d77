//! A connection that is closed without taking its last words back.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Time a client has to stop sending after its answer.
const TIME: Duration = Duration::from_secs(2);
/// Bytes that are read and dropped meanwhile.
const BYTES: usize = 8 << 20;

/// A stream that, when it is shut down, still reads for a while what the client is sending.
///
/// A socket closed with unread bytes is reset, and a reset takes away the answer the client has not read: who sends too large a body
/// would see a broken connection and not the refusal.
#[derive(Debug)]
pub(crate) struct Lingering {
    stream: TcpStream,
    end: Option<Pin<Box<Sleep>>>,
    left: usize,
}

impl Lingering {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, end: None, left: BYTES }
    }
}

impl AsyncRead for Lingering {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, end, left } = self.get_mut();
        let end = if let Some(end) = end {
            end
        } else {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            end.insert(Box::pin(tokio::time::sleep(TIME)))
        };
        let mut bytes = [0; 8192];
        while *left > 0 {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    *left = left.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => break,
                Poll::Pending => return end.as_mut().poll(cx).map(Ok),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
