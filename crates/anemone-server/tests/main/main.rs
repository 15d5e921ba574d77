//! The server against recorded exchanges and against clients that mean it ill.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod decisions;
mod exchanges;
mod forms;
mod hostile;
mod language;
mod loading;
mod mutations;
mod openapi;
mod operation;
mod order;
mod page;
mod sockets;
mod stumbles;
mod support;
mod wire;
