//! Integration tests: real fixtures, broken directories, hostile bytes, a hub on a local socket.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "the helpers of tests are tests too")]

mod broken;
mod fixtures;
mod gguf;
#[cfg(feature = "hub")]
mod hub;
mod mutations;
mod support;
