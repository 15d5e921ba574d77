use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::linger::Lingering;
use crate::{App, Error, Result};

/// Connections open at once; others wait to be accepted.
const CONNECTIONS: usize = 1024;
/// Time the head of a request may take, and a connection may wait for the next.
const HEAD: Duration = Duration::from_secs(30);
/// Time requests have to end after the server was told to stop.
const DRAIN: Duration = Duration::from_secs(30);

/// Answers connections until `stop` is ready; then takes no new ones and waits up to 30 seconds for requests that have begun.
///
/// It must run on a tokio runtime with time and I/O.
pub async fn serve(listener: StdListener, app: &App, stop: impl Future<Output = ()>) -> Result<()> {
    listener.set_nonblocking(true).map_err(Error::Listen)?;
    let listener = TcpListener::from_std(listener).map_err(Error::Listen)?;
    let service = TowerToHyperService::new(app.routes());
    let (graceful, slots) = (GracefulShutdown::new(), Arc::new(Semaphore::new(CONNECTIONS)));
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
    drop(listener);
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests that had begun did not end in {} seconds", DRAIN.as_secs());
    }
    Ok(())
}

async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let slot = Arc::clone(slots).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                return (stream, slot);
            }
            Err(error) => {
                // Out of descriptors, most often; those of other connections come back.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
