use anyhow::{Context, Result};

/// The signals that ask the server to end.
#[derive(Debug)]
pub(super) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    /// From now on the signals do not end the process by themselves. It must be called on a runtime.
    #[cfg(unix)]
    pub(super) fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    #[cfg(unix)]
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
        }
    }

    #[cfg(not(unix))]
    pub(super) fn listen() -> Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    pub(super) async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await.context("cannot listen for Ctrl-C");
    }
}
