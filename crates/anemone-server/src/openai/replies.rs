//! Parts that answers of several routes have.

use schemars::JsonSchema;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

use super::generation;

/// Tokens of the prompts and of what was made.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

/// Tokens that were known from before.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: usize,
}

/// Tokens of reasoning.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct CompletionDetails {
    pub(crate) reasoning_tokens: usize,
}

impl From<generation::Usage> for Usage {
    fn from(usage: generation::Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt,
            completion_tokens: usage.completion,
            total_tokens: usage.prompt + usage.completion,
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached },
            completion_tokens_details: CompletionDetails { reasoning_tokens: usage.reasoning },
        }
    }
}

/// The usage in a piece of a stream that tells it with its last.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum PieceUsage {
    /// Not yet known.
    Later(()),
    /// Told.
    Now(Usage),
}

impl From<Option<generation::Usage>> for PieceUsage {
    fn from(usage: Option<generation::Usage>) -> Self {
        usage.map_or(Self::Later(()), |usage| Self::Now(usage.into()))
    }
}

/// JSON objects with the keys in the order they came; of equal keys the first counts.
#[derive(Debug)]
pub(crate) struct Ordered<T>(pub(crate) Vec<(String, T)>);

impl<T: Serialize> Serialize for Ordered<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (index, (key, value)) in self.0.iter().enumerate() {
            if self.0[..index].iter().all(|(earlier, _)| earlier != key) {
                map.serialize_entry(key, value)?;
            }
        }
        map.end()
    }
}
