use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::openai::generation;
use crate::openai::replies::{CompletionDetails, PromptDetails};

/// A response, finished or on its way.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Response", deny_unknown_fields)]
pub(crate) struct Reply<'a> {
    pub(super) id: &'a str,
    #[schemars(extend("const" = "response"))]
    pub(super) object: &'static str,
    pub(super) created_at: u64,
    pub(super) status: Status,
    #[schemars(extend("const" = null))]
    pub(super) error: Option<()>,
    pub(super) incomplete_details: Option<Incomplete>,
    pub(super) model: &'a str,
    pub(super) output: Vec<OutputItem<'a>>,
    #[schemars(extend("const" = null))]
    pub(super) previous_response_id: Option<()>,
    #[schemars(extend("const" = false))]
    pub(super) store: bool,
    #[schemars(extend("const" = "disabled"))]
    pub(super) truncation: &'static str,
    /// Null until it has ended.
    pub(super) usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub(super) echoed: &'a Echoed,
}

/// What the request said, or what stands where it said nothing.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Echoed {
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<usize>,
    pub(super) metadata: Map<String, Value>,
    pub(super) parallel_tool_calls: bool,
    pub(super) temperature: f32,
    #[schemars(with = "Map<String, Value>")]
    pub(super) text: Value,
    #[schemars(extend("type" = ["string", "object"]))]
    pub(super) tool_choice: Value,
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub(super) tools: Vec<Value>,
    pub(super) top_p: f32,
}

/// How far a response, or an item of it, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// Why a response is not whole.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Incomplete {
    #[schemars(extend("const" = "max_output_tokens"))]
    pub(super) reason: &'static str,
}

/// Tokens of the input and the output.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: PromptDetails,
    output_tokens: usize,
    output_tokens_details: CompletionDetails,
    total_tokens: usize,
}

impl From<generation::Usage> for ResponseUsage {
    fn from(usage: generation::Usage) -> Self {
        Self {
            input_tokens: usage.prompt,
            input_tokens_details: PromptDetails { cached_tokens: usage.cached },
            output_tokens: usage.completion,
            output_tokens_details: CompletionDetails { reasoning_tokens: usage.reasoning },
            total_tokens: usage.prompt + usage.completion,
        }
    }
}

/// An item of the output.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(deny_unknown_fields)]
pub(crate) enum OutputItem<'a> {
    /// What was thought.
    Reasoning { id: &'a str, summary: [(); 0], content: Vec<OutputPart<'a>>, status: Status },
    /// What is said.
    Message {
        id: &'a str,
        #[schemars(extend("const" = "assistant"))]
        role: &'static str,
        content: Vec<OutputPart<'a>>,
        status: Status,
    },
    /// A call of a function; its arguments are a JSON object as text.
    FunctionCall { id: &'a str, call_id: &'a str, name: &'a str, arguments: &'a str, status: Status },
}

/// A part of an item.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(deny_unknown_fields)]
pub(crate) enum OutputPart<'a> {
    /// Of reasoning.
    ReasoningText { text: &'a str },
    /// Of a message.
    OutputText { text: &'a str, annotations: [(); 0], logprobs: [(); 0] },
}

/// An event of a stream with its number.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseEvent")]
pub(crate) struct Numbered<'a> {
    #[serde(flatten)]
    pub(super) event: Event<'a>,
    pub(super) sequence_number: u64,
}

/// What happens to a response that is streamed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "ResponseEventKind")]
pub(crate) enum Event<'a> {
    #[serde(rename = "response.created")]
    Created { response: Reply<'a> },
    #[serde(rename = "response.in_progress")]
    InProgress { response: Reply<'a> },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { output_index: usize, item: OutputItem<'a> },
    #[serde(rename = "response.content_part.added")]
    PartAdded { item_id: &'a str, output_index: usize, content_index: usize, part: OutputPart<'a> },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta { item_id: &'a str, output_index: usize, content_index: usize, delta: &'a str },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone { item_id: &'a str, output_index: usize, content_index: usize, text: &'a str },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        item_id: &'a str,
        output_index: usize,
        content_index: usize,
        delta: &'a str,
        logprobs: [(); 0],
    },
    #[serde(rename = "response.output_text.done")]
    TextDone { item_id: &'a str, output_index: usize, content_index: usize, text: &'a str, logprobs: [(); 0] },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { item_id: &'a str, output_index: usize, delta: &'a str },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone { item_id: &'a str, output_index: usize, arguments: &'a str, name: &'a str },
    #[serde(rename = "response.content_part.done")]
    PartDone { item_id: &'a str, output_index: usize, content_index: usize, part: OutputPart<'a> },
    #[serde(rename = "response.output_item.done")]
    ItemDone { output_index: usize, item: OutputItem<'a> },
    #[serde(rename = "response.completed")]
    Completed { response: Reply<'a> },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: Reply<'a> },
    #[serde(rename = "error")]
    Error { code: Option<&'static str>, message: &'a str, param: Option<&'a str> },
}
