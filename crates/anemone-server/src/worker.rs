//! The one thread that owns the decision models.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anemone_decide::{Decider, Router};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::pool::await_all;
use crate::refusal::Refusal;
use crate::residency::{Deciding, Residency};
use crate::{Error, Result};

type Job = Box<dyn FnOnce(&mut Router<Decider>) + Send>;

/// A handle to the thread. It ends when the last handle is dropped and its work is done.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    jobs: mpsc::Sender<Job>,
    loaded: Arc<Mutex<Vec<String>>>,
    residency: Arc<Residency>,
    meters: Arc<DecisionMeters>,
    timeout: Option<Duration>,
}

/// What decision models have done.
#[derive(Debug, Default)]
pub(crate) struct DecisionMeters {
    /// Pieces of work that wait or run.
    pub(crate) waiting: Gauge,
    /// Pieces of work that were done.
    pub(crate) requests: Counter,
    /// Time they took.
    pub(crate) seconds: Counter<f64, std::sync::atomic::AtomicU64>,
}

/// Whether anybody still waits for a piece of work.
pub(crate) type Wanted<'a> = &'a dyn Fn() -> bool;

/// Counts a piece of work as waiting until it is dropped.
struct Waiting(Arc<DecisionMeters>, #[expect(dead_code, reason = "counts until it is dropped")] Deciding);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.dec();
    }
}

impl Worker {
    /// Starts the thread. The residency knows the models already; work that takes longer than `timeout` is given up.
    pub(crate) fn start(
        mut models: Router<Decider>,
        residency: Arc<Residency>,
        timeout: Option<Duration>,
    ) -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let loaded = Arc::new(Mutex::new(names(&models)));
        let rooms = Arc::clone(&residency);
        models.before_load(move |name| {
            let Some(leaving) = rooms.claim_decision(name) else {
                return Err(anemone_decide::Error::NoRoom { model: name.to_owned() });
            };
            await_all(leaving.languages);
            Ok(leaving.decisions)
        });
        let worker = Self { jobs, loaded, residency, meters: Arc::default(), timeout };
        let settle = worker.settle();
        let run = move || {
            for job in queue {
                // What the job was to answer is dropped with it, which its caller sees; the models are whole between calls.
                if catch_unwind(AssertUnwindSafe(|| job(&mut models))).is_err() {
                    tracing::error!("a request made the models' thread panic");
                    settle(&mut models);
                }
            }
        };
        thread::Builder::new().name("models".to_owned()).spawn(run).map_err(Error::Thread)?;
        Ok(worker)
    }

    /// Names of the models in memory, the one used last the last.
    pub(crate) fn loaded(&self) -> Vec<String> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn meters(&self) -> &DecisionMeters {
        &self.meters
    }

    /// What `work` must do behind it, so that others see which models there are.
    fn settle(&self) -> impl Fn(&mut Router<Decider>) + Send + 'static {
        let (loaded, residency) = (Arc::clone(&self.loaded), Arc::clone(&self.residency));
        move |models| {
            let names = names(models);
            residency.settle_decisions(&names, &models.take_uses());
            *loaded.lock().unwrap_or_else(PoisonError::into_inner) = names;
        }
    }

    /// Runs work when its turn comes, unless its caller has gone by then. The permit is held as long as the work waits or runs,
    /// whether or not the caller stays.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        permit: OwnedSemaphorePermit,
        work: impl FnOnce(&mut Router<Decider>, Wanted<'_>) -> T + Send + 'static,
    ) -> std::result::Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let (settle, meters) = (self.settle(), Arc::clone(&self.meters));
        meters.waiting.inc();
        let waiting = Waiting(Arc::clone(&meters), self.residency.decide());
        let job = move |models: &mut Router<Decider>| {
            let _waiting = waiting;
            if reply.is_closed() {
                return;
            }
            let start = Instant::now();
            let value = work(models, &|| !reply.is_closed());
            meters.seconds.inc_by(start.elapsed().as_secs_f64());
            meters.requests.inc();
            settle(models);
            // Before the answer, or a client that asks again at once could find no room.
            drop(permit);
            let _ = reply.send(value);
        };
        self.jobs.send(Box::new(job)).map_err(|_| Refusal::failed())?;
        let answered = match self.timeout {
            None => answer.await,
            Some(timeout) => tokio::time::timeout(timeout, answer).await.map_err(|_| Refusal::late())?,
        };
        answered.map_err(|_| Refusal::failed())
    }

    /// Runs work when its turn comes and waits for it; none when it panicked. Not to be called where nothing may block.
    pub(crate) fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Router<Decider>) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = mpsc::channel();
        let settle = self.settle();
        let job = move |models: &mut Router<Decider>| {
            let value = work(models);
            settle(models);
            let _ = reply.send(value);
        };
        self.jobs.send(Box::new(job)).ok()?;
        answer.recv().ok()
    }

    /// Drops a model from memory and waits until it is gone.
    pub(crate) fn unload(&self, name: String) {
        self.run_blocking(move |models| models.unload(&name));
    }
}

fn names(models: &Router<Decider>) -> Vec<String> {
    models.loaded().into_iter().map(str::to_owned).collect()
}
