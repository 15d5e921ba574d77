//! The built `anemone` binary, run as a user runs it.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod calibrate;
mod chat;
mod convert;
mod coreml;
mod decide;
mod decision_bundle;
mod emulator;
mod errors;
mod forward;
mod gguf;
mod goldens;
mod hub;
mod inspect_decision;
mod palettize;
mod prefix;
mod probe;
mod reports;
mod run;
mod scales;
#[cfg(unix)]
mod serve;
#[cfg(target_os = "linux")]
mod serve_memory;
mod speculation;
mod streams;
mod structure;
mod support;
mod tables;
#[cfg(target_os = "linux")]
mod terminal;
mod validate;
mod verify;
