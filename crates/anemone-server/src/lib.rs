//! Models over HTTP: laya's routes, limits and messages over a [`Router`] of decision models, and OpenAI's over language models.
//!
//! [`App`] answers requests; one thread owns the decision models and runs one request after the other, and each language model
//! has a thread that runs its sequences together. [`serve`] accepts connections until it
//! is told to stop. Requests are bounded in size, in number and in time, so that no client can exhaust memory or hold the server.
//!
//! [`Router`]: anemone_decide::Router

mod answers;
mod anthropic;
mod app;
mod body;
mod cors;
mod deadline;
mod decisions;
mod error;
mod fallback;
mod guard;
mod key;
mod language;
mod linger;
mod listen;
mod metrics;
mod models;
mod observe;
mod openai;
mod openapi;
mod page;
mod pool;
mod reading;
mod refusal;
mod requests;
mod residency;
mod shape;
mod systemone;
mod tokenizer_info;
mod worker;

pub use app::{App, Memory, Options};
pub use error::{Error, Result};
pub use guard::Guard;
pub use key::Key;
pub use language::{Language, LanguageModel};
pub use listen::{Listener, serve};
pub use metrics::{Joules, Machine};
pub use openapi::{Facts, description};
pub use pool::{LanguageSource, Launch, LoadError};
