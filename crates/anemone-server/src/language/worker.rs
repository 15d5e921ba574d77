use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use anemone_session::{
    Batch, BatchOptions, Event, Generation, Job, Progress, SequenceId, Together, Tokenizer,
};
use tokio::sync::{mpsc, oneshot};
use tracing::Span;

use super::Update;
use super::meters::Meters;
use crate::openai::refusal::ApiError;
use crate::{Error, Result};

/// A job, where its steps go, and where it is told whether it was taken.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) job: Job,
    pub(super) events: mpsc::UnboundedSender<(usize, Update)>,
    pub(super) accepted: oneshot::Sender<anemone_session::Result<()>>,
    /// What log lines about it belong to.
    pub(super) span: Span,
}

/// Starts the thread; the pointer is dead when the thread is.
pub(super) fn start<E: Together + 'static>(
    engine: E,
    tokenizer: Arc<Tokenizer>,
    options: BatchOptions,
    meters: Arc<Meters>,
) -> Result<(Sender<Command>, Weak<()>)> {
    let (commands, queue) = channel();
    let here = Arc::new(());
    let thread = Arc::downgrade(&here);
    let run = move || {
        let batch = Batch::new(engine, &tokenizer, options);
        Worker { batch, listeners: BTreeMap::new(), meters }.run(&queue);
        // A panic drops it as well.
        drop(here);
    };
    thread::Builder::new().name("language".to_owned()).spawn(run).map_err(Error::Thread)?;
    Ok((commands, thread))
}

/// Who hears of a sequence.
struct Listener {
    /// Which continuation of its job it is.
    number: usize,
    events: mpsc::UnboundedSender<(usize, Update)>,
    /// When it came, or its latest token.
    since: Instant,
    begun: bool,
    span: Span,
}

struct Worker<'t, E> {
    batch: Batch<'t, E>,
    listeners: BTreeMap<SequenceId, Listener>,
    meters: Arc<Meters>,
}

impl<E: Together> Worker<'_, E> {
    fn run(mut self, queue: &Receiver<Command>) {
        loop {
            if self.batch.is_idle() {
                let Ok(command) = queue.recv() else { return };
                self.take(command);
            }
            while let Ok(command) = queue.try_recv() {
                self.take(command);
            }
            for (id, listener) in &self.listeners {
                if listener.events.is_closed() {
                    self.batch.cancel(*id);
                }
            }
            let (listeners, meters) = (&mut self.listeners, &self.meters);
            self.batch.step(&mut |id, progress| tell(listeners, meters, id, progress));
            self.count();
        }
    }

    fn take(&mut self, command: Command) {
        let Command { job, events, accepted, span } = command;
        let taken = self.batch.submit(job).map(|ids| {
            for (number, id) in ids.into_iter().enumerate() {
                let (events, since, span) = (events.clone(), Instant::now(), span.clone());
                self.listeners.insert(id, Listener { number, events, since, begun: false, span });
            }
        });
        // Whoever asked may have gone; then the listeners are gone too, and the sequences are cancelled.
        let _ = accepted.send(taken);
    }

    fn count(&self) {
        self.meters.running.set(self.batch.running() as i64);
        self.meters.waiting.set(self.batch.waiting() as i64);
    }
}

/// Passes a step on; breaks the sequence off when nobody listens any more.
fn tell(
    listeners: &mut BTreeMap<SequenceId, Listener>,
    meters: &Meters,
    id: SequenceId,
    progress: Progress<'_>,
) -> ControlFlow<()> {
    let (update, last) = match progress {
        Progress::Event(Event::Prefill { .. }) => (Update::Prefill, false),
        Progress::Event(Event::PromptToken { id, logprob, top, .. }) => {
            (Update::PromptToken { id, logprob, top: top.to_vec() }, false)
        }
        Progress::Event(Event::Token { id, logprob, top }) => {
            (Update::Token { id, logprob, top: top.to_vec() }, false)
        }
        Progress::Event(Event::Text(text)) => (Update::Text(text.to_owned()), false),
        Progress::Event(_) => return ControlFlow::Continue(()),
        Progress::Finished(generation) => {
            meters.finished(&generation);
            if let Some(listener) = listeners.get(&id) {
                listener.span.in_scope(|| log(&generation));
            }
            (Update::Finished(Box::new(generation)), true)
        }
        Progress::Failed(error) => {
            tracing::error!(%error, "a sequence failed");
            meters.failed();
            (Update::Failed(ApiError::session(&error, "prompt")), true)
        }
    };
    let Some(listener) = listeners.get_mut(&id) else { return ControlFlow::Break(()) };
    if matches!(update, Update::Token { .. }) {
        let now = Instant::now();
        let measure = if listener.begun { Meters::next_token } else { Meters::first_token };
        measure(meters, now - listener.since);
        (listener.since, listener.begun) = (now, true);
    }
    let sent = listener.events.send((listener.number, update));
    if last {
        listeners.remove(&id);
    }
    if sent.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn log(generation: &Generation) {
    let (usage, timings, drafts) = (generation.usage, generation.timings, generation.drafts);
    tracing::info!(
        prompt_tokens = usage.prompt_tokens,
        cached_tokens = usage.cached_tokens,
        completion_tokens = usage.completion_tokens,
        accepted_tokens = drafts.accepted,
        prefill_seconds = timings.prefill_seconds,
        decode_seconds = timings.decode_seconds,
        "generated"
    );
}
