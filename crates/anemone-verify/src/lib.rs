//! Parity of an engine with a reference.
//!
//! A [`Recording`] is what a reference says about a sequence of tokens: logits, the residual stream, the tokens it goes on with.
//! It is taken from another engine or read from a file. [`verify`] runs the same tokens through every kind of pass an engine has
//! and gives a [`Report`].
//!
//! A token that differs is a tie when the reference holds the two for closer than the largest error of the logits over the
//! prompts; anything else fails.

#![forbid(unsafe_code)]

mod error;
mod golden;
mod html;
mod plot;
mod recording;
mod report;
mod tally;
mod verify;

pub use error::Error;
pub use golden::read_golden;
pub use html::html;
pub use recording::{Choice, Recording, Rows};
pub use report::{Divergence, LayerDrift, PassReport, Place, Report, Skipped};
pub use verify::{Options, verify};
