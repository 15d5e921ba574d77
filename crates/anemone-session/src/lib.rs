//! From text to tokens and back: templates, sampling, stop rules, generation.
//!
//! A session sees a model only through the [`Engine`] trait, which it implements for the native engine, and a model's files only
//! as bytes and JSON values: it knows neither checkpoints nor HTTP. The files of a [`PrefixCache`] are its own.
//!
//! ```
//! use anemone_session::{ChatTemplate, Message, RenderOptions, TemplateTokens};
//!
//! let template = ChatTemplate::fallback(TemplateTokens { bos: "<s>".into(), ..Default::default() })?;
//! let text = template.render(&[Message::user("Hi")], &RenderOptions::default())?;
//! assert_eq!(text, "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
//! # Ok::<(), anemone_session::Error>(())
//! ```

#![forbid(unsafe_code)]

mod batch;
mod clock;
mod constraint;
mod conversation;
mod cpu;
mod detokenizer;
mod engine;
mod error;
#[cfg(test)]
mod fake;
mod generate;
mod graph;
mod hot_swap;
mod message;
mod prefix;
mod sampler;
mod speculate;
mod stop;
mod template;
mod tokenizer;
mod tools;
mod traced;

pub use batch::{Batch, BatchOptions, Job, OnProgress, Part, Progress, SequenceId, Together};
pub use clock::Timestamp;
pub use constraint::{
    Constraint, ConstraintOptions, ConstraintVocabulary, Grammar, Guide, Reasoning, TokenMask,
};
pub use conversation::{Conversation, Turn};
pub use detokenizer::Detokenizer;
pub use engine::{Engine, EngineError};
pub use error::{Error, Result};
pub use generate::{
    Event, FinishReason, GenerateOptions, Generation, LengthLimit, Sequence, Step, StopCause, Timings, Usage,
    generate, run,
};
pub use graph::{GraphEngine, LayerStates};
pub use hot_swap::{Coming, HotSwap, Swap, Swaps};
pub use message::Message;
pub use prefix::{BLOCK_TOKENS, Block, BlockFormat, ModelId, PrefixCache, PrefixCacheUse};
pub use sampler::{Bars, History, Sampled, Sampler, SamplingParams, SamplingPreset};
pub use speculate::{Drafts, MOST_DRAFTS, PassCost, Propose, Speculation, SuffixIndex, ngram_simple};
pub use stop::{StopMatcher, Stopped};
pub use template::{ChatTemplate, RenderOptions, TemplateTokens};
pub use tokenizer::{SpecialToken, Tokenizer};
pub use tools::{
    Answer, CallMarks, CallSyntax, Delta, OutputOptions, OutputParser, Tool, ToolCall, ToolChoice,
    ToolFormat, Tools,
};
pub use traced::{EMBEDDING, FINAL_NORM, Tap, Traced};
