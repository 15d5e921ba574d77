use schemars::JsonSchema;
use serde::Serialize;

use crate::openai::replies::{PieceUsage, Usage};

/// An answered chat.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChatCompletion<'a> {
    pub(super) id: &'a str,
    #[schemars(extend("const" = "chat.completion"))]
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) choices: Vec<ChatChoice<'a>>,
    pub(super) usage: Usage,
    #[schemars(extend("const" = "default"))]
    pub(super) service_tier: &'static str,
}

/// One of the answers.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChatChoice<'a> {
    pub(super) index: usize,
    pub(super) message: ChatReply<'a>,
    pub(super) logprobs: Option<ChatLogprobs>,
    pub(super) finish_reason: Option<FinishReason>,
}

/// Why an answer ended: by itself or at a stop, cut off, or with calls.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishReason {
    Stop,
    Length,
    ToolCalls,
}

/// The message of an answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChatReply<'a> {
    #[schemars(extend("const" = "assistant"))]
    pub(super) role: &'static str,
    /// Null where there are calls and no text.
    pub(super) content: Option<&'a str>,
    pub(super) refusal: Option<&'static str>,
    /// What was thought before the answer.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) reasoning_content: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ToolCall<'a>>,
}

/// A call of a function.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ToolCall<'a> {
    pub(super) id: &'a str,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "function"))]
    pub(super) kind: &'static str,
    pub(super) function: Function<'a>,
}

/// What is called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Function<'a> {
    pub(super) name: &'a str,
    /// A JSON object as text; cut off where the answer was.
    pub(super) arguments: &'a str,
}

/// Log probabilities of the tokens of an answer, or of a piece of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChatLogprobs {
    pub(super) content: Vec<TokenLogprob>,
    pub(super) refusal: Option<Vec<TokenLogprob>>,
}

/// A token that was drawn.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct TokenLogprob {
    #[serde(flatten)]
    pub(crate) own: Alternative,
    /// The likeliest tokens of its place.
    pub(crate) top_logprobs: Vec<Alternative>,
}

/// A token and its log probability, -9999 at least.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Alternative {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

/// A piece of a chat that is streamed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChatChunk<'a> {
    pub(super) id: &'a str,
    #[schemars(extend("const" = "chat.completion.chunk"))]
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    /// None in the piece that tells the usage.
    pub(super) choices: Vec<ChunkChoice<'a>>,
    /// Where usage is asked for it has a place in each piece and is told with the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<PieceUsage>,
}

/// More of one of the answers.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChunkChoice<'a> {
    pub(super) index: usize,
    pub(super) delta: ChatDelta<'a>,
    pub(super) logprobs: Option<ChatLogprobs>,
    pub(super) finish_reason: Option<FinishReason>,
}

/// What is added to a message.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ChatDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_calls: Option<[CallDelta<'a>; 1]>,
}

/// What is added to a call; the first has its id and name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct CallDelta<'a> {
    pub(super) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    pub(super) function: FunctionDelta<'a>,
}

/// More of what is called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    pub(super) arguments: &'a str,
}
