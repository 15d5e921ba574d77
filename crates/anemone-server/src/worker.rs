//! The one thread that owns the models.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use anemone_decide::{Decider, Router};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::{Error, Result};

type Job = Box<dyn FnOnce(&mut Router<Decider>) + Send>;

/// A handle to the thread. It ends when the last handle is dropped and its work is done.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    jobs: mpsc::Sender<Job>,
    loaded: Arc<Mutex<Vec<String>>>,
}

/// Whether anybody still waits for a piece of work.
pub(crate) type Wanted<'a> = &'a dyn Fn() -> bool;

impl Worker {
    pub(crate) fn start(mut models: Router<Decider>) -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let loaded = Arc::new(Mutex::new(names(&models)));
        let run = move || {
            for job in queue {
                // What the job was to answer is dropped with it, which its caller sees; the models are whole between calls.
                if catch_unwind(AssertUnwindSafe(|| job(&mut models))).is_err() {
                    tracing::error!("a request made the models' thread panic");
                }
            }
        };
        thread::Builder::new().name("models".to_owned()).spawn(run).map_err(Error::Thread)?;
        Ok(Self { jobs, loaded })
    }

    /// Names of the models in memory, the one used last the last.
    pub(crate) fn loaded(&self) -> Vec<String> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs work when its turn comes, unless its caller has gone by then; none when it panicked. The permit is held as long as the work
    /// waits or runs, whether or not the caller stays.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        permit: OwnedSemaphorePermit,
        work: impl FnOnce(&mut Router<Decider>, Wanted<'_>) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let loaded = Arc::clone(&self.loaded);
        let job = move |models: &mut Router<Decider>| {
            if reply.is_closed() {
                return;
            }
            let value = work(models, &|| !reply.is_closed());
            *loaded.lock().unwrap_or_else(PoisonError::into_inner) = names(models);
            // Before the answer, or a client that asks again at once could find no room.
            drop(permit);
            let _ = reply.send(value);
        };
        self.jobs.send(Box::new(job)).ok()?;
        answer.await.ok()
    }
}

fn names(models: &Router<Decider>) -> Vec<String> {
    models.loaded().into_iter().map(str::to_owned).collect()
}
