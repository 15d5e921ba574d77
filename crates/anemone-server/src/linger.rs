//! A connection that is closed without taking its last words back.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use tokio::time::Sleep;

/// Time a client has to stop sending after its answer.
const TIME: Duration = Duration::from_secs(2);
/// Bytes that are read and dropped meanwhile.
const BYTES: usize = 8 << 20;
/// Time a client may take nothing of what is written to it; then its connection ends, and with it what is computed for it.
const STALL: Duration = Duration::from_secs(30);

/// A stream that, when it is shut down, still reads for a while what the client is sending.
///
/// A socket closed with unread bytes is reset, and a reset takes away the answer the client has not read: who sends too large a body
/// would see a broken connection and not the refusal. A client that stops reading is given up after a while: the answer it does not
/// take would be held for it.
#[derive(Debug)]
pub(crate) struct Lingering<S> {
    stream: S,
    end: Option<Pin<Box<Sleep>>>,
    left: usize,
    patience: Duration,
    /// When a write that waits for the client is given up.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Lingering<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, end: None, left: BYTES, patience: STALL, stalled: None }
    }

    /// Fails a write that has waited for the client for too long.
    fn written(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.written(cx, result)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, end, left, .. } = self.get_mut();
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
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.written(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn write(server: &mut Lingering<TcpStream>, chunk: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| Pin::new(&mut *server).poll_write(cx, chunk)).await
    }

    #[test]
    fn a_client_that_reads_slowly_is_waited_for_and_one_that_does_not_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let mut server = Lingering { patience: Duration::from_secs(1), ..Lingering::new(stream) };
            let chunk = vec![7; 1 << 20];
            // Far more than both sockets hold, taken in pieces over longer than the patience.
            let all = 24 << 20;
            let reading = async {
                let (mut buffer, mut left) = (vec![0; 1 << 20], all);
                while left > 0 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    client.readable().await.unwrap();
                    left -= client.try_read(&mut buffer).unwrap_or(0).min(left);
                }
            };
            let writing = async {
                let mut left = all;
                while left > 0 {
                    left -= write(&mut server, &chunk[..left.min(chunk.len())]).await.unwrap();
                }
            };
            tokio::join!(reading, writing);
            let stuck = async {
                loop {
                    if let Err(error) = write(&mut server, &chunk).await {
                        return error.kind();
                    }
                }
            };
            let kind = tokio::time::timeout(Duration::from_secs(20), stuck).await.unwrap();
            assert_eq!(kind, io::ErrorKind::TimedOut);
        });
    }
}
