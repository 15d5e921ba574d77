//! The built `anemone` binary, run as a user runs it.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod chat;
mod errors;
mod forward;
mod goldens;
mod reports;
mod run;
mod streams;
mod support;
