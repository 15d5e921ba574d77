use crate::EngineError;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What can go wrong between text and tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `tokenizer.json` cannot be used.
    #[error("tokenizer.json: {reason}; download the file again or re-export it with the tokenizers library")]
    Tokenizer {
        /// What is wrong, with its place where known.
        reason: String,
        /// The parser's error.
        #[source]
        source: Option<Cause>,
    },
    /// A special token named by `tokenizer_config.json` is not in `tokenizer.json`.
    #[error(
        "tokenizer_config.json: {key} is {token:?}, which tokenizer.json does not hold; take both files from the same checkpoint"
    )]
    SpecialToken {
        /// Key of the configuration.
        key: &'static str,
        /// Its value.
        token: String,
    },
    /// The tokenizer could not encode or decode.
    #[error("the tokenizer failed to {action}; check that tokenizer.json belongs to this model")]
    Tokenize {
        /// `encode` or `decode`.
        action: &'static str,
        /// The tokenizer's error.
        #[source]
        source: Cause,
    },
    /// The chat template is not valid Jinja.
    #[error(
        "chat template, line {line}: {source}; repair chat_template.jinja or remove it to use the built-in template"
    )]
    TemplateSyntax {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// The engine's error.
        #[source]
        source: Box<minijinja::Error>,
    },
    /// The chat template failed on these messages.
    #[error(
        "chat template, line {line}: {source}; check the messages and tools against what the template expects"
    )]
    TemplateRender {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// The engine's error.
        #[source]
        source: Box<minijinja::Error>,
    },
    /// The template refused the conversation through `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRefused {
        /// The template's words.
        message: String,
    },
    /// The rendered conversation, or the template itself, is larger than is allowed.
    #[error("chat template: {what} is larger than {limit} bytes; shorten it")]
    TemplateSize {
        /// What is too large.
        what: &'static str,
        /// The largest size allowed.
        limit: usize,
    },
    /// A message cannot be rendered.
    #[error("messages[{index}].{key}: {problem}")]
    Message {
        /// Position of the message.
        index: usize,
        /// Key inside the message.
        key: String,
        /// What is wrong and what to write instead.
        problem: String,
    },
    /// A sampling parameter is outside its range.
    #[error("{field} is {value}, allowed is {allowed}; change {field}")]
    Sampling {
        /// Name of the parameter.
        field: &'static str,
        /// Its value.
        value: String,
        /// The range allowed.
        allowed: &'static str,
    },
    /// A logit is NaN or positive infinity.
    #[error(
        "the logit of token {id} is {value}; the engine's arithmetic overflowed, run it with a wider element type"
    )]
    BadLogit {
        /// Token.
        id: usize,
        /// Its logit.
        value: f32,
    },
    /// No token has a probability above zero.
    #[error("every one of {candidates} tokens has a logit of -inf; relax logit_bias or the grammar")]
    NoCandidate {
        /// Tokens looked at.
        candidates: usize,
    },
    /// A stop string or an option of the generation cannot be used.
    #[error("{option}: {problem}")]
    Options {
        /// Name of the option.
        option: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// More sequences wait than are allowed to.
    #[error("{waiting} sequences wait and {limit} may; try again later")]
    Busy {
        /// Sequences that wait.
        waiting: usize,
        /// Most that may.
        limit: usize,
    },
    /// A schema, a grammar or the tools cannot constrain an output.
    #[error("{what}: {problem}")]
    Grammar {
        /// `schema`, `regex`, `grammar`, `tools`, `tool_choice` or `constraint`.
        what: &'static str,
        /// What is wrong, with its place where known, and what to do.
        problem: String,
    },
    /// There is nothing to feed.
    #[error("the prompt is empty; give at least one token, or text that encodes to one")]
    EmptyPrompt,
    /// The prompt does not fit.
    #[error(
        "the prompt is {prompt} tokens and the context holds {context}; shorten it or raise --ctx to {prompt} or more"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens the engine can hold.
        context: usize,
    },
    /// The prompt holds a token the model has no row for.
    #[error(
        "prompt token {index} is id {id}, the model has {vocab} rows; use the tokenizer.json of this model"
    )]
    TokenOutOfRange {
        /// Position in the prompt.
        index: usize,
        /// Id found.
        id: u32,
        /// Rows of the model.
        vocab: usize,
    },
    /// The engine failed; whatever it held is forgotten.
    #[error("engine: {0}")]
    Engine(#[source] EngineError),
    /// A bundle does not hold what running it needs.
    #[error(
        "{problem}; the bundle is damaged or was changed: convert the model again, or see what differs with \
         `anemone inspect --verify-hash --model {bundle}`"
    )]
    Bundle {
        /// Its directory.
        bundle: String,
        /// Manifest key, or package, function and feature, with what is found and expected.
        problem: String,
    },
    /// The directory of a prefix cache cannot be used.
    #[error("--prefix-cache {dir}: {source}; name a directory that can be made and written to")]
    PrefixCache {
        /// The directory.
        dir: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The engine gave logits of an unexpected length.
    #[error(
        "the engine gave {found} logits where {expected} were due; this is a fault of the engine, report it"
    )]
    LogitsLength {
        /// Length due.
        expected: usize,
        /// Length given.
        found: usize,
    },
}
