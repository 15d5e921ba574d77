//! What each route takes.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod generation;
pub(crate) mod messages;
pub(crate) mod responses;
pub(crate) mod tokens;
