//! Models as data: the typed layer stack, and one file per `model_type` that reads `config.json` into it.
//!
//! A [`Stack`] holds names, shapes and options and no arithmetic. Engines and lowerings walk it; they know no model by name.

mod config;
mod error;
mod registry;
mod stack;
mod weights;

mod lfm2;
mod lfm2_moe;
mod lfm3;
mod parts;

pub use config::Config;
pub use error::Error;
pub use registry::{load, supported};
pub use stack::{Attention, Block, Ffn, Gated, Linear, Mixer, Moe, Norm, Rope, ShortConv, Stack};
pub use weights::{Part, WeightRef, check};
