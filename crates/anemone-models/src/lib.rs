//! Models as data: the typed layer stack, and one file per `model_type` that reads `config.json` into it.
//!
//! A [`Stack`] holds names, shapes and options and no arithmetic. Engines and lowerings walk it; they know no model by name.

mod config;
mod encoder;
mod error;
mod registry;
mod stack;
mod weights;

mod laya;
mod lfm2;
mod lfm2_moe;
mod lfm3;
mod modernbert;
mod parts;

pub use config::Config;
pub use encoder::{Encoder, EncoderLayer, LayerNorm, Mlp, MlpActivation, SelfAttention};
pub use error::Error;
pub use laya::{ActionHead, Laya, QUESTION_KINDS, Scorer};
pub use registry::{load, supported};
pub use stack::{Attention, Block, Ffn, Gated, Linear, Mixer, Moe, Norm, Rope, ShortConv, Stack};
pub use weights::{Part, WeightRef, check};
