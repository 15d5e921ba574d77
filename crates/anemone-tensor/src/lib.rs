//! Element types, shapes, tensors over owned or mapped bytes, and the metrics that compare them.
//!
//! This crate knows nothing of models, files' formats or arithmetic: it is the vocabulary the others share.

mod arena;
mod blocks;
mod bytes;
mod dtype;
mod encode;
mod fp16;
mod metrics;
mod palettized;
mod shape;
mod tensor;

pub use arena::Arena;
pub use blocks::{BLOCK, BlockError, BlockFormat, Blocks, Piece, six_bits};
pub use bytes::Bytes;
pub use dtype::DType;
pub use fp16::{BeyondFp16, append_fp16};
pub use metrics::{Comparison, argmax, compare, cosine, kl_divergence, max_abs_diff};
pub use palettized::{PALETTE_BITS, PaletteError, Palettized, Segment};
pub use shape::Shape;
pub use tensor::{Tensor, TensorError};
