//! Typed decisions: a state and questions about it to calibrated answers.
//!
//! A [`Question`] becomes one row of tokens ([`Vocabulary::prompt`]); a decision model gives one score for each of its options,
//! and the [`Calibration`] makes an answer of them. [`Decider`] joins the three. Prompts, answers and refusals are those of the
//! reference implementation, to the token and to the fourth decimal.

mod answer;
mod calibration;
mod decider;
mod error;
mod gate;
mod language;
mod long;
mod prompt;
mod question;
mod value;

pub use answer::{Answer, jev_confidence};
pub use calibration::{Calibration, Temperatures, primary_subtag};
pub use decider::{Decider, Decision, Decisions, Request};
pub use error::{Error, Result};
pub use gate::Gate;
pub use language::Detection;
pub use long::Windows;
pub use prompt::{Limits, Prompt, StateTokens, Vocabulary};
pub use question::{Kind, Question};
pub use value::{ParseError, Value};
