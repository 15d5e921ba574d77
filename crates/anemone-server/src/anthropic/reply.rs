use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// An answered message.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Message", deny_unknown_fields)]
pub(crate) struct Reply<'a> {
    pub(super) id: &'a str,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "message"))]
    pub(super) kind: &'static str,
    #[schemars(extend("const" = "assistant"))]
    pub(super) role: &'static str,
    pub(super) model: &'a str,
    pub(super) content: Vec<Block<'a>>,
    #[serde(flatten)]
    pub(super) stop: Stop<'a>,
    pub(super) usage: MessageUsage,
}

/// Why a message ended; null while it has not.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Stop<'a> {
    pub(super) stop_reason: Option<StopReason>,
    /// The text that ended it, where one did.
    pub(super) stop_sequence: Option<&'a str>,
}

/// What ended a message.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
}

/// A block of a message.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageBlock", deny_unknown_fields)]
pub(crate) enum Block<'a> {
    Thinking {
        thinking: &'a str,
        #[schemars(extend("const" = ""))]
        signature: &'static str,
    },
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        #[schemars(with = "Map<String, Value>")]
        input: &'a RawValue,
    },
}

/// Tokens of the conversation and of the message.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct MessageUsage {
    pub(super) input_tokens: usize,
    pub(super) cache_read_input_tokens: usize,
    #[schemars(extend("const" = 0))]
    pub(super) cache_creation_input_tokens: usize,
    pub(super) output_tokens: usize,
}

/// Tokens a message would have before its answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageTokenCount", deny_unknown_fields)]
pub(crate) struct TokenCount {
    pub(super) input_tokens: usize,
}

/// What happens to a message that is streamed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageEvent")]
pub(crate) enum Event<'a> {
    MessageStart {
        message: Reply<'a>,
    },
    Ping,
    ContentBlockStart {
        index: usize,
        content_block: Block<'a>,
    },
    ContentBlockDelta {
        index: usize,
        delta: BlockDelta<'a>,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        delta: Stop<'a>,
        usage: MessageUsage,
    },
    MessageStop,
    /// It could not go on.
    Error {
        error: ErrorBody<'a>,
    },
}

/// What is added to a block.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "MessageBlockDelta")]
pub(crate) enum BlockDelta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

/// Why a request is not answered, in the shape of Anthropic's API.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageError", deny_unknown_fields)]
pub(crate) struct ErrorReply<'a> {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "error"))]
    pub(super) kind: &'static str,
    pub(super) error: ErrorBody<'a>,
}

/// What is wrong.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageErrorBody", deny_unknown_fields)]
pub(crate) struct ErrorBody<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) message: &'a str,
}
