//! CPU kernels: slices in, slices out, one file per kernel, the instruction set chosen once at run time.
//!
//! Every kernel gives the same bits for a token whatever the number of tokens in the call, so that chunking a prompt,
//! verifying drafts or restoring a prefix never changes a result. Each output of [`matmul()`] is one running vector sum over
//! the inner dimension followed by one fixed reduction; attention visits keys in blocks aligned to absolute positions.
//! Encoders, which always see many tokens, use [`matmul_packed`] on weights laid out for it instead.
//!
//! This crate knows no graphs, models or files, and allocates nothing while computing.

#![allow(
    clippy::inline_always,
    reason = "vector code must be compiled inside the function that enables its instructions"
)]

mod activation;
mod attention;
mod coded;
mod conv;
mod convert;
mod elementwise;
mod encoder_attention;
mod layer_norm;
mod level;
mod matmul;
mod norm;
mod packed;
mod pool;
mod rope;
mod simd;

pub use activation::{Activation, activate};
pub use attention::{AttentionShape, BLOCK, Cache, CacheElement, attention, scratch_len, write_cache};
pub use coded::{Coded, Rounded};
pub use conv::{gate_conv, short_conv};
pub use convert::{Output, round_to_bf16, widen_rows};
pub use elementwise::{add_assign, gate_heads, silu_mul};
pub use encoder_attention::{
    EncoderAttentionShape, Rotation, Sequence, encoder_attention, encoder_scratch_len,
};
pub use layer_norm::layer_norm;
pub use level::Level;
pub use matmul::{Compact, CompactPlan, Input, MatrixView, Product, Woven, matmul};
pub use norm::{rms_norm, rms_norm_in_place};
pub use packed::{PackedProduct, PanelPlan, Panels, RowOrder, Then, matmul_packed};
pub use pool::Pool;
pub use rope::{apply_rope, rope_table};

/// Where and how kernels run: a thread pool and an instruction set.
#[derive(Debug)]
pub struct Context {
    pool: Pool,
    level: Level,
}

impl Context {
    /// A context of `threads` threads (the caller's included) at the best instruction set present.
    pub fn new(threads: usize) -> Self {
        Self::with_level(threads, Level::best())
    }

    /// A context at a given instruction set, which [`Level::available`] must list.
    pub fn with_level(threads: usize, level: Level) -> Self {
        assert!(Level::available().contains(&level), "{level:?} is not available on this machine");
        Self { pool: Pool::new(threads), level }
    }

    /// The thread pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The instruction set in use.
    pub fn level(&self) -> Level {
        self.level
    }
}
