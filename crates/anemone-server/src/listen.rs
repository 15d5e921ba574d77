use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::linger::Lingering;
use crate::{App, Error, Result};

/// Connections open at once; others wait to be accepted.
const CONNECTIONS: usize = 1024;
/// Time the head of a request may take, and a connection may wait for the next.
const HEAD: Duration = Duration::from_secs(30);

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Tcp(StdListener),
    /// A socket in the file system.
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

impl From<StdListener> for Listener {
    fn from(listener: StdListener) -> Self {
        Self::Tcp(listener)
    }
}

/// The same on a runtime.
enum Accepting {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl Accepting {
    fn new(listener: Listener) -> std::io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Self::Tcp(TcpListener::from_std(listener)?)
            }
            #[cfg(unix)]
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Self::Unix(UnixListener::from_std(listener)?)
            }
        })
    }

    async fn accept(&self) -> std::io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Box::new(stream)
            }
            #[cfg(unix)]
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Answers connections until `stop` is ready; then takes no new ones and waits up to `grace` for requests that have begun. Whether all
/// of them ended in time; the others end with the runtime.
///
/// It must run on a tokio runtime with time and I/O.
pub async fn serve(
    listener: impl Into<Listener>,
    app: &App,
    grace: Duration,
    stop: impl Future<Output = ()>,
) -> Result<bool> {
    let listener = Accepting::new(listener.into()).map_err(Error::Listen)?;
    let service = TowerToHyperService::new(app.routes());
    let (graceful, slots) = (GracefulShutdown::new(), Arc::new(Semaphore::new(CONNECTIONS)));
    let expiring = app.options().idle_unload.map(|unused| tokio::spawn(expire(app.clone(), unused)));
    let mut stop = std::pin::pin!(stop);
    loop {
        let (stream, slot) = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD);
        let connection =
            graceful.watch(http.serve_connection(TokioIo::new(Lingering::new(stream)), service.clone()));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(slot);
        });
    }
    app.stop();
    drop(listener);
    if let Some(expiring) = expiring {
        expiring.abort();
    }
    Ok(tokio::time::timeout(grace, graceful.shutdown()).await.is_ok())
}

async fn accept(
    listener: &Accepting,
    slots: &Arc<Semaphore>,
) -> (Box<dyn Connection>, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let slot = Arc::clone(slots).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok(stream) => return (stream, slot),
            Err(error) => {
                // Out of descriptors, most often; those of other connections come back.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Drops models that were not used for a while, again and again.
async fn expire(app: App, unused: Duration) {
    let mut clock =
        tokio::time::interval((unused / 4).clamp(Duration::from_millis(50), Duration::from_secs(10)));
    loop {
        clock.tick().await;
        let app = app.clone();
        let _ = tokio::task::spawn_blocking(move || app.pool().expire(unused)).await;
    }
}
