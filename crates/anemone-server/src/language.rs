//! Language models as the server has them: each on a thread of its own that runs its sequences together.

mod meters;
mod worker;

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use anemone_session::{
    BatchOptions, ChatTemplate, ConstraintVocabulary, GenerateOptions, Generation, Job, Together, Tokenizer,
    ToolFormat,
};
use tokio::sync::{mpsc, oneshot};

use crate::Result;
use crate::deadline::Deadline;
use crate::openai::refusal::ApiError;
pub(crate) use meters::Meters;
use worker::Command;

/// A language model to serve.
#[derive(Debug)]
pub struct LanguageModel<E> {
    /// The name requests know it by.
    pub name: String,
    /// An empty engine over it.
    pub engine: E,
    /// Text to tokens.
    pub tokenizer: Tokenizer,
    /// Messages to text.
    pub template: ChatTemplate,
    /// How to generate where a request does not say.
    pub defaults: GenerateOptions,
    /// Sequences at once.
    pub batch: BatchOptions,
    /// Most tokens a context of the model could hold, the engine's own perhaps being shorter.
    pub max_context: usize,
}

/// A language model that runs; a clone is the same one.
#[derive(Debug, Clone)]
pub struct Language {
    inner: Arc<Inner>,
    /// When what is submitted must have ended.
    deadline: Deadline,
    /// What a request has.
    _loan: Option<Loan>,
}

/// Keeps when a request gave a model back.
#[derive(Debug, Clone)]
struct Loan(Arc<Mutex<Instant>>);

impl Drop for Loan {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

#[derive(Debug)]
struct Inner {
    name: String,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    /// What constraints are made from, once one was asked for.
    constraints: OnceLock<ConstraintVocabulary>,
    format: ToolFormat,
    defaults: GenerateOptions,
    context_len: usize,
    max_context: usize,
    max_sequences: usize,
    /// Gone when the thread is.
    thread: Weak<()>,
    room: usize,
    commands: std::sync::mpsc::Sender<Command>,
    meters: Arc<Meters>,
    restartable: bool,
    /// When a request last gave it back.
    given_back: Arc<Mutex<Instant>>,
}

/// A model on its way out of memory.
#[derive(Debug)]
pub(crate) struct Ending {
    name: String,
    thread: Weak<()>,
}

impl Ending {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the thread to end; whether it did in time.
    pub(crate) fn wait(&self, most: Duration) -> bool {
        let start = Instant::now();
        while self.thread.strong_count() > 0 {
            if start.elapsed() > most {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// A step of a sequence that was submitted.
#[derive(Debug)]
pub(crate) enum Update {
    /// The prompt is being read.
    Prefill,
    /// A token of the prompt, where its log probability was asked for.
    PromptToken { id: u32, logprob: f32, top: Vec<(u32, f32)> },
    /// A token was drawn.
    Token { id: u32, logprob: f32, top: Vec<(u32, f32)> },
    /// Text is complete.
    Text(String),
    /// It ended.
    Finished(Box<Generation>),
    /// It could not go on.
    Failed(ApiError),
}

/// Steps of a job's continuations, by their number.
#[derive(Debug)]
pub(crate) struct Updates {
    receiver: mpsc::UnboundedReceiver<(usize, Update)>,
    deadline: Deadline,
}

/// Steps that were put together of others, which have their deadlines.
impl From<mpsc::UnboundedReceiver<(usize, Update)>> for Updates {
    fn from(receiver: mpsc::UnboundedReceiver<(usize, Update)>) -> Self {
        Self { receiver, deadline: Deadline::default() }
    }
}

impl Updates {
    /// The next step; a failure when the time is up, none when the thread is gone.
    pub(crate) async fn recv(&mut self) -> Option<(usize, Update)> {
        let next = self.deadline.bound(self.receiver.recv()).await;
        next.unwrap_or_else(|late| Some((0, Update::Failed(late))))
    }
}

/// Why a job was not taken.
#[derive(Debug)]
pub(crate) enum Rejected {
    /// It cannot be run.
    Error(anemone_session::Error),
    /// Its prompt does not fit.
    TooLong {
        /// Its tokens.
        prompt: usize,
        /// Tokens the model holds here.
        context: usize,
        /// Tokens it could hold.
        most: usize,
    },
    /// The thread is gone.
    Stopped,
    /// It was not looked at in time.
    Late,
}

impl Language {
    /// Starts a model's thread, which ends when the last handle is dropped and its work is done.
    pub fn start<E: Together + 'static>(model: LanguageModel<E>) -> Result<Self> {
        Self::launch(model, &Arc::default(), false)
    }

    pub(crate) fn launch<E: Together + 'static>(
        model: LanguageModel<E>,
        meters: &Arc<Meters>,
        restartable: bool,
    ) -> Result<Self> {
        let LanguageModel { name, engine, tokenizer, template, defaults, batch, max_context } = model;
        let (tokenizer, meters) = (Arc::new(tokenizer), Arc::clone(meters));
        let context_len = engine.context_len();
        let max_sequences = batch.max_sequences;
        let together = if engine.sibling().is_none() { 1 } else { batch.max_sequences };
        let room = together.saturating_add(batch.max_waiting);
        let (commands, thread) = worker::start(engine, Arc::clone(&tokenizer), batch, Arc::clone(&meters))?;
        let format = ToolFormat::detect(template.source());
        let inner = Inner {
            name,
            tokenizer,
            template,
            constraints: OnceLock::new(),
            format,
            defaults,
            context_len,
            max_context,
            max_sequences,
            thread,
            room,
            commands,
            meters,
            restartable,
            given_back: Arc::new(Mutex::new(Instant::now())),
        };
        Ok(Self { inner: Arc::new(inner), deadline: Deadline::default(), _loan: None })
    }

    /// The name requests know it by.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    pub(crate) fn template(&self) -> &ChatTemplate {
        &self.inner.template
    }

    pub(crate) fn format(&self) -> ToolFormat {
        self.inner.format
    }

    /// Whether the model may reason before it answers.
    pub(crate) fn reasons(&self) -> bool {
        self.inner.template.source().contains("think")
    }

    /// What constraints are made from; laid out when first asked for, which takes a moment.
    pub(crate) fn constraints(&self) -> anemone_session::Result<&ConstraintVocabulary> {
        if let Some(known) = self.inner.constraints.get() {
            return Ok(known);
        }
        let made = ConstraintVocabulary::new(&self.inner.tokenizer, &self.inner.defaults.stop_ids)?;
        Ok(self.inner.constraints.get_or_init(|| made))
    }

    pub(crate) fn defaults(&self) -> &GenerateOptions {
        &self.inner.defaults
    }

    pub(crate) fn context_len(&self) -> usize {
        self.inner.context_len
    }

    /// Most continuations one prompt can have.
    pub(crate) fn max_sequences(&self) -> usize {
        self.inner.max_sequences
    }

    /// Whether its thread is there; after a panic it is not.
    pub(crate) fn is_running(&self) -> bool {
        self.inner.thread.strong_count() > 0
    }

    /// Sequences that may run and wait at once.
    pub(crate) fn room(&self) -> usize {
        self.inner.room
    }

    pub(crate) fn meters(&self) -> &Arc<Meters> {
        &self.inner.meters
    }

    /// The same model for a request that must have ended by then.
    pub(crate) fn with_deadline(self, deadline: Deadline) -> Self {
        Self { deadline, ..self }
    }

    /// The same model for a request, which uses it until it drops it.
    pub(crate) fn lent(&self) -> Self {
        Self { _loan: Some(Loan(Arc::clone(&self.inner.given_back))), ..self.clone() }
    }

    /// When a request last gave it back; when it was started, where none did.
    pub(crate) fn given_back(&self) -> Instant {
        *self.inner.given_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no request has it.
    pub(crate) fn is_unused(&self) -> bool {
        Arc::strong_count(&self.inner) == 1
    }

    /// Whether it can be loaded again after it has ended.
    pub(crate) fn is_restartable(&self) -> bool {
        self.inner.restartable
    }

    /// Lets go of it; its thread ends when no request has it.
    pub(crate) fn end(self) -> Ending {
        Ending { name: self.inner.name.clone(), thread: Weak::clone(&self.inner.thread) }
    }

    /// Hands a job over; its steps come until all its continuations have ended. Dropping the receiver cancels them.
    pub(crate) async fn submit(&self, job: Job) -> std::result::Result<Updates, Rejected> {
        let (events, receiver) = mpsc::unbounded_channel();
        let (accepted, answer) = oneshot::channel();
        let command = Command { job, events, accepted, span: tracing::Span::current() };
        self.inner.commands.send(command).map_err(|_| Rejected::Stopped)?;
        // It may be at a long prompt of another.
        match self.deadline.bound(answer).await.map_err(|_| Rejected::Late)? {
            Ok(Ok(())) => Ok(Updates { receiver, deadline: self.deadline }),
            Ok(Err(anemone_session::Error::PromptTooLong { prompt, .. })) => Err(Rejected::TooLong {
                prompt,
                context: self.inner.context_len,
                most: self.inner.max_context,
            }),
            Ok(Err(error)) => Err(Rejected::Error(error)),
            Err(_) => Err(Rejected::Stopped),
        }
    }
}
