//! Typed decisions over HTTP: laya's routes, limits and messages over a [`Router`] of decision models.
//!
//! [`App`] answers requests; one thread owns the models and runs one request after the other. [`serve`] accepts connections until it
//! is told to stop. Requests are bounded in size, in number and in time, so that no client can exhaust memory or hold the server.
//!
//! [`Router`]: anemone_decide::Router

mod answers;
mod app;
mod body;
mod decisions;
mod error;
mod key;
mod linger;
mod listen;
mod models;
mod refusal;
mod systemone;
mod worker;

pub use app::{App, Options};
pub use error::{Error, Result};
pub use key::Key;
pub use listen::serve;
