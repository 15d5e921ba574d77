use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::openai::replies::{Ordered, PieceUsage, Usage};

/// Continuations of prompts.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Completion", deny_unknown_fields)]
pub(crate) struct Reply<'a> {
    pub(super) id: &'a str,
    #[schemars(extend("const" = "text_completion"))]
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    /// In the order of the prompts, those of one prompt together.
    pub(super) choices: Vec<TextChoice<'a>>,
    pub(super) usage: Usage,
}

/// A continuation, or a piece of one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct TextChoice<'a> {
    pub(super) index: usize,
    pub(super) text: &'a str,
    pub(super) logprobs: Option<TextLogprobs>,
    #[schemars(extend("enum" = ["stop", "length", null]))]
    pub(super) finish_reason: Option<&'static str>,
}

/// Log probabilities of tokens: lists of the same length.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct TextLogprobs {
    pub(super) tokens: Vec<String>,
    /// Null for a first token, which follows nothing.
    pub(super) token_logprobs: Vec<Option<f32>>,
    #[schemars(with = "Vec<Option<BTreeMap<String, f32>>>")]
    pub(super) top_logprobs: Vec<Option<Ordered<f32>>>,
    /// Where a token begins, in characters of the choice's text.
    pub(super) text_offset: Vec<usize>,
}

/// A piece of a completion that is streamed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CompletionChunk", deny_unknown_fields)]
pub(crate) struct Chunk<'a> {
    pub(super) id: &'a str,
    #[schemars(extend("const" = "text_completion"))]
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    /// None in the piece that tells the usage.
    pub(super) choices: Vec<TextChoice<'a>>,
    /// Where usage is asked for it has a place in each piece and is told with the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<PieceUsage>,
}
