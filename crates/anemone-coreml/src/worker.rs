//! The one thread that Core ML's objects live on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::{Backend, Error, Failure, Result};

/// A backend with its loaded functions, which never leave their thread.
pub(crate) struct Host<B: Backend> {
    pub(crate) backend: B,
    /// Loaded functions by their number; those that were dropped are none.
    pub(crate) models: Vec<Option<B::Model>>,
}

type Job<B> = Box<dyn FnOnce(&mut Host<B>) + Send>;

/// A handle to the thread. It ends when the last handle is dropped and its work is done.
pub(crate) struct Worker<B: Backend> {
    jobs: Sender<Job<B>>,
    /// Whether a call did not come back; none is waited for any more.
    stuck: Arc<AtomicBool>,
}

impl<B: Backend> Clone for Worker<B> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone(), stuck: Arc::clone(&self.stuck) }
    }
}

impl<B: Backend + 'static> Worker<B> {
    /// Starts the thread, which makes the backend.
    pub(crate) fn start(
        make: impl FnOnce() -> std::result::Result<B, Failure> + Send + 'static,
    ) -> Result<Self> {
        let (jobs, queue) = channel::<Job<B>>();
        let (ready, made) = channel();
        let run = move || {
            let backend = match make() {
                Ok(backend) => backend,
                Err(failure) => {
                    let _ = ready.send(Err(failure));
                    return;
                }
            };
            let _ = ready.send(Ok(()));
            let mut host = Host { backend, models: Vec::new() };
            for job in queue {
                // A call that panics is answered by its dropped channel; what it was at may be broken, so nothing follows.
                if catch_unwind(AssertUnwindSafe(|| job(&mut host))).is_err() {
                    tracing::error!("the thread of Core ML panicked");
                    return;
                }
            }
        };
        let start = thread::Builder::new().name("core-ml".to_owned()).spawn(run);
        start.map_err(|source| Error::Io { path: "the thread of Core ML".into(), source })?;
        let made = made.recv().map_err(|_| Error::Ended)?;
        made.map_err(|failure| Error::Core { package: "Core ML".to_owned(), failure })?;
        Ok(Self { jobs, stuck: Arc::default() })
    }

    /// Runs a call on the thread and waits for it, at most `patience` where there is one.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        what: &str,
        patience: Option<Duration>,
        call: impl FnOnce(&mut Host<B>) -> T + Send + 'static,
    ) -> Result<T> {
        if self.stuck.load(Ordering::Relaxed) {
            return Err(Error::Ended);
        }
        let (reply, answer) = channel();
        let job = move |host: &mut Host<B>| {
            let _ = reply.send(call(host));
        };
        self.jobs.send(Box::new(job)).map_err(|_| Error::Ended)?;
        let Some(after) = patience else { return answer.recv().map_err(|_| Error::Ended) };
        answer.recv_timeout(after).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                self.stuck.store(true, Ordering::Relaxed);
                Error::Hang { what: what.to_owned(), after }
            }
            RecvTimeoutError::Disconnected => Error::Ended,
        })
    }

    /// Does something on the thread when its turn comes.
    pub(crate) fn post(&self, call: impl FnOnce(&mut Host<B>) + Send + 'static) {
        let _ = self.jobs.send(Box::new(call));
    }
}
