//! Stacks to Core ML programs laid out for the Neural Engine.
//!
//! Activations are `[1, channels, 1, tokens]`; a linear map is a 1×1 convolution; attention keeps keys first so that only new keys
//! are transposed, and the query heads that share keys ride the token axis together; the softmax runs over the key axis; masks
//! are additive, finite and made by the host from absolute positions; rotary tables and embeddings are inputs. The short
//! convolution is multiply-adds over slices of a window. Caches are plain inputs and outputs, or keys and values are states.
//!
//! What the engine's arithmetic asks for beyond that is a named set of [`Rules`], each of which can be switched off. Every
//! function of a chunk (one token, a prefill length, a verification length) uses the same weights, stored once.
//!
//! Nothing here has run on a Neural Engine; the emulator and the package validator are the judges.

mod attention;
mod chunk;
mod conv;
mod error;
mod graph;
mod head;
mod laya;
mod options;
pub mod placement;
mod plan;
mod state;
mod weights;

pub use chunk::lower_chunk;
pub use error::Error;
pub use head::lower_head;
pub use laya::{
    LayaFunctions, LayaOptions, LayaPart, LocalAttention, OPTION_SLOTS, lower_laya, lower_laya_part,
    multiply_adds, rotary_tables, rotations,
};
pub use options::{CacheKind, MASKED, Options, Pass, Rules, Scales, Silu};
pub use plan::{CachePlan, ChunkPlan, Plan, StatePlan, is_placed, plan};
pub use weights::{Load, WeightRecord, beyond_fp16};
