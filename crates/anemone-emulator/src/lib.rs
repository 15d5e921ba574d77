//! Runs functions of Core ML packages anywhere, by interpretation, in the arithmetic of a [`Profile`].
//!
//! [`Emulator`] is an [`anemone_mil::Executor`]. A function is planned once: constants are resolved, compressed weights expanded,
//! the last use of every value found. Weights that feed products stay as they are stored in the mapped file and are shared by
//! all functions of a package.

mod accumulate;
mod constants;
mod emulator;
mod error;
mod plan;
mod profile;
mod ranges;
mod site;
mod value;

mod ops;

pub use emulator::{Emulator, Observed, Tap};
pub use error::Error;
pub use profile::{Limits, Profile};
pub use ranges::{Range, Ranges};
