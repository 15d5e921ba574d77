//! Codebooks for weights.
//!
//! [`palettize`] replaces fp16 weights by codes of 1 to 8 bits that look into tables of fp16 numbers, one table for the whole
//! tensor or for each group of output channels; [`affine`] by integers with a scale for each output channel. What a weight's
//! error costs can differ from weight to weight ([`Importance`]). Tables of single numbers are optimal
//! ([`Method::Exact`]), within a stated distance of it ([`Method::Fast`]) or evenly spaced; those of vectors come of k-means.
//! [`palettize_with_feedback`] keeps a map's output near rather than its weights, by the moments of its input.
//!
//! Results do not depend on the number of threads. Nothing here reads or writes files or knows a model.

mod affine;
mod cuts;
mod distortion;
mod error;
mod factor;
mod feedback;
mod histogram;
mod scalar;
mod scheme;
mod tensor;
mod vector;

pub use affine::{Affine, affine, scaled};
pub use distortion::{Distortion, distortion};
pub use error::Error;
pub use factor::Factor;
pub use feedback::{Feedback, palettize_with_feedback};
pub use histogram::{Counter, Histogram, Importance};
pub use scalar::{Fitter, Table, nearest};
pub use scheme::{Method, Scheme};
pub use tensor::{Matrix, Palettized, decode, palettize};
