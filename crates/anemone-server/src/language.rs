//! Language models as the server has them: each on a thread of its own that runs its sequences together.

mod meters;
mod worker;

use std::sync::{Arc, OnceLock, Weak};

use anemone_session::{
    BatchOptions, ChatTemplate, ConstraintVocabulary, GenerateOptions, Generation, Job, Together, Tokenizer,
    ToolFormat,
};
use tokio::sync::{mpsc, oneshot};

use crate::Result;
use crate::openai::refusal::ApiError;
use meters::Meters;
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
}

/// A language model that runs; a clone is the same one.
#[derive(Debug, Clone)]
pub struct Language(Arc<Inner>);

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
    max_sequences: usize,
    /// Gone when the thread is.
    thread: Weak<()>,
    room: usize,
    commands: std::sync::mpsc::Sender<Command>,
    meters: Arc<Meters>,
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
pub(crate) type Updates = mpsc::UnboundedReceiver<(usize, Update)>;

/// Why a job was not taken.
#[derive(Debug)]
pub(crate) enum Rejected {
    /// It cannot be run.
    Error(anemone_session::Error),
    /// The thread is gone.
    Stopped,
}

impl Language {
    /// Starts a model's thread, which ends when the last handle is dropped and its work is done.
    pub fn start<E: Together + 'static>(model: LanguageModel<E>) -> Result<Self> {
        let LanguageModel { name, engine, tokenizer, template, defaults, batch } = model;
        let (tokenizer, meters) = (Arc::new(tokenizer), Arc::new(Meters::default()));
        let context_len = engine.context_len();
        let max_sequences = batch.max_sequences;
        let together = if engine.sibling().is_none() { 1 } else { batch.max_sequences };
        let room = together.saturating_add(batch.max_waiting);
        let (commands, thread) = worker::start(engine, Arc::clone(&tokenizer), batch, Arc::clone(&meters))?;
        let format = ToolFormat::detect(template.source());
        Ok(Self(Arc::new(Inner {
            name,
            tokenizer,
            template,
            constraints: OnceLock::new(),
            format,
            defaults,
            context_len,
            max_sequences,
            thread,
            room,
            commands,
            meters,
        })))
    }

    /// The name requests know it by.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    pub(crate) fn template(&self) -> &ChatTemplate {
        &self.0.template
    }

    pub(crate) fn format(&self) -> ToolFormat {
        self.0.format
    }

    /// Whether the model may reason before it answers.
    pub(crate) fn reasons(&self) -> bool {
        self.0.template.source().contains("think")
    }

    /// What constraints are made from; laid out when first asked for, which takes a moment.
    pub(crate) fn constraints(&self) -> anemone_session::Result<&ConstraintVocabulary> {
        if let Some(known) = self.0.constraints.get() {
            return Ok(known);
        }
        let made = ConstraintVocabulary::new(&self.0.tokenizer, &self.0.defaults.stop_ids)?;
        Ok(self.0.constraints.get_or_init(|| made))
    }

    pub(crate) fn defaults(&self) -> &GenerateOptions {
        &self.0.defaults
    }

    pub(crate) fn context_len(&self) -> usize {
        self.0.context_len
    }

    /// Most continuations one prompt can have.
    pub(crate) fn max_sequences(&self) -> usize {
        self.0.max_sequences
    }

    /// Whether its thread is there; after a panic it is not.
    pub(crate) fn is_running(&self) -> bool {
        self.0.thread.strong_count() > 0
    }

    /// Sequences that may run and wait at once.
    pub(crate) fn room(&self) -> usize {
        self.0.room
    }

    pub(crate) fn meters(&self) -> &Meters {
        &self.0.meters
    }

    /// Hands a job over; its steps come until all its continuations have ended. Dropping the receiver cancels them.
    pub(crate) async fn submit(&self, job: Job) -> std::result::Result<Updates, Rejected> {
        let (events, updates) = mpsc::unbounded_channel();
        let (accepted, answer) = oneshot::channel();
        self.0.commands.send(Command { job, events, accepted }).map_err(|_| Rejected::Stopped)?;
        match answer.await {
            Ok(Ok(())) => Ok(updates),
            Ok(Err(error)) => Err(Rejected::Error(error)),
            Err(_) => Err(Rejected::Stopped),
        }
    }
}
