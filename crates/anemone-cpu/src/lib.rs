//! The native engine: a [`Stack`](anemone_models::Stack) and its weights to logits and hidden states, on any CPU.
//!
//! Two arithmetics. *Exact* computes in f32 from the stored weights and keeps an f32 cache: the reference path. *Fast* uses
//! bf16 products with f32 sums where the machine has them (f32 elsewhere) and an f16 cache. In both, a token's result has the
//! same bits however the sequence was split into calls, which is what makes speculation and prefix reuse exact.
//!
//! [`LayaEngine`] runs decision models: rows of tokens to one score for each option.
//!
//! The crate knows no text, no model by name and no files.

mod blocks;
mod engine;
mod error;
mod forward;
mod laya;
mod layer;
mod matrix;
mod model;
mod moe;
mod options;
mod promote;
mod scratch;
mod state;
mod together;

pub use blocks::Block;
pub use engine::{Engine, LogitsOf, state_bytes};
pub use error::Error;
pub use laya::{ActionReadout, LayaEngine, LayaModel, Options as LayaOptions, Parallel, Row, Scores};
pub use model::Model;
pub use options::{Arithmetic, Layout, Options};
pub use scratch::Observe;
pub use state::{BORDER, Snapshot};
pub use together::{Part, feed_together};
