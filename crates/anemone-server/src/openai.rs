//! OpenAI's routes for language models.

pub(crate) mod chat;
pub(crate) mod choice;
pub(crate) mod completions;
pub(crate) mod fields;
pub(crate) mod generation;
pub(crate) mod prompt;
pub(crate) mod refusal;
pub(crate) mod replies;
pub(crate) mod responses;
pub(crate) mod stream;
pub(crate) mod tokens;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name nobody else has, with what it is a name of in front.
pub(crate) fn unique(prefix: &str) -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:08x}", random(), random() as u32)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
