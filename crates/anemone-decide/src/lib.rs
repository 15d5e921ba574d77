//! Typed decisions: a state and questions about it to calibrated answers.
//!
//! A [`Question`] becomes one row of tokens ([`Vocabulary::prompt`]); a decision model gives one score for each of its options,
//! and the [`Calibration`] makes an answer of them. [`Decider`] joins the three, over
//! any [`Scorer`]. Prompts, answers and refusals are those of the
//! reference implementation, to the token and to the fourth decimal.

mod answer;
mod calibration;
mod decider;
mod error;
mod gate;
mod graph;
mod language;
mod long;
mod preset;
mod prompt;
mod question;
mod reference;
mod route;
mod router;
mod scorer;
mod shortlist;
mod swap;
mod tournament;
mod validate;
mod value;

pub use answer::{Answer, jev_confidence};
pub use calibration::{Calibration, Temperatures, primary_subtag};
pub use decider::{Decider, Decision, Decisions, Request};
pub use error::{Error, Result};
pub use gate::Gate;
pub use graph::GraphScorer;
pub use language::Detection;
pub use long::Windows;
pub use preset::Preset;
pub use prompt::{Limits, Prompt, StateTokens, Vocabulary};
pub use question::{Kind, Question};
pub use reference::{RecordedCase, RecordedRow, Reference};
pub use route::{Hints, Route, Routes};
pub use router::{Router, Use};
pub use scorer::Scorer;
pub use shortlist::Shortlist;
pub use swap::{Coming, Turns};
pub use tournament::Tournament;
pub use validate::{Bar, Expected, Failure, Rule, Validation};
pub use value::{ParseError, Value, round4};
