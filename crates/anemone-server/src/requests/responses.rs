//! `/v1/responses`.

use super::generation::{
    EFFORT, METADATA, MODEL, NAME, RETENTION, SCHEMA, STREAM, TEMPERATURE, TIER, TOP_P, VERBOSITY, unused,
};
use crate::shape::{Field, MOST, Shape, Tagged, closed, open};

const TEXT_PART: &[Field] = &[Field::required("text", Shape::Text, "")];

const PART: Shape = Shape::Tagged(Tagged {
    tag: "type",
    default: None,
    variants: &[
        ("input_text", TEXT_PART),
        ("output_text", TEXT_PART),
        ("reasoning_text", TEXT_PART),
        ("summary_text", TEXT_PART),
        ("text", TEXT_PART),
        ("refusal", &[Field::required("refusal", Shape::Text, "")]),
    ],
    otherwise: Some("which this model cannot read; give text"),
});

const PARTS: Shape = Shape::List(&PART, 0, usize::MAX, "a list of parts");
const CONTENT: Shape =
    Shape::Named("ResponseContent", &Shape::Either(&[Shape::Text, PARTS], "a string or a list of parts"));

const ITEM: Shape = Shape::Named(
    "ResponseItem",
    &Shape::Tagged(Tagged {
        tag: "type",
        default: Some("message"),
        variants: &[
            (
                "message",
                &[
                    Field::required("role", Shape::Words(&["system", "developer", "user", "assistant"]), ""),
                    Field::optional("content", CONTENT, ""),
                ],
            ),
            (
                "reasoning",
                &[
                    Field::optional("content", CONTENT, ""),
                    Field::optional("summary", CONTENT, "Read where there is no content."),
                ],
            ),
            (
                "function_call",
                &[
                    Field::required("call_id", Shape::Text, ""),
                    Field::required("name", Shape::Text, ""),
                    Field::required("arguments", Shape::Text, "JSON."),
                ],
            ),
            (
                "function_call_output",
                &[Field::required("call_id", Shape::Text, ""), Field::optional("output", CONTENT, "")],
            ),
        ],
        otherwise: Some(
            "which is not supported; use 'message', 'reasoning', 'function_call' or 'function_call_output'",
        ),
    }),
);

const TOOL: Shape = open(
    &[&[
        Field::required("type", Shape::Words(&["function"]), ""),
        Field::required("name", NAME, "No two functions have the same."),
        Field::optional("description", Shape::Text, ""),
        Field::optional("parameters", SCHEMA, "The JSON Schema of its arguments."),
        unused("strict", Shape::Flag),
    ]],
    "an object with type and name",
);

const CHOSEN: Shape = open(
    &[&[Field::required("type", Shape::Words(&["function"]), ""), Field::required("name", Shape::Text, "")]],
    "an object with type and name",
);

const FORMAT: Shape = Shape::Tagged(Tagged {
    tag: "type",
    default: None,
    variants: &[
        ("text", &[]),
        ("json_object", &[]),
        (
            "json_schema",
            &[
                Field::optional("name", Shape::Text, ""),
                Field::optional("description", Shape::Text, ""),
                Field::required("schema", SCHEMA, ""),
                unused("strict", Shape::Flag),
            ],
        ),
    ],
    otherwise: None,
});

const INCLUDE: Shape = Shape::Words(&[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]);

const KEPT: &str = "is not supported, since nothing is kept here; send the whole conversation as 'input'";
const OUT: &str = "is not supported; leave it out";

/// The request.
pub(crate) const REQUEST: Shape = closed(&[&[
    MODEL,
    Field::required(
        "input",
        Shape::Either(
            &[Shape::Text, Shape::List(&ITEM, 1, usize::MAX, "a list of items, not empty")],
            "a string or a list of items, not empty",
        ),
        "The conversation.",
    ),
    Field::optional("instructions", Shape::Text, "A message of the system before the conversation."),
    TEMPERATURE,
    TOP_P,
    Field::optional("max_output_tokens", Shape::Integer(1, MOST), "Most tokens of the answer."),
    STREAM,
    Field::optional(
        "tools",
        Shape::List(&TOOL, 0, usize::MAX, "a list of functions"),
        "Functions the model may call; calls keep to their parameters.",
    ),
    Field::optional(
        "tool_choice",
        Shape::Either(
            &[Shape::Words(&["none", "auto", "required"]), CHOSEN],
            "'none', 'auto', 'required' or {\"type\": \"function\", \"name\": …}",
        ),
        "Whether functions are called; only those of 'tools' can be.",
    ),
    Field::optional("parallel_tool_calls", Shape::Flag, "Whether an answer may have several calls."),
    Field::optional(
        "text",
        open(
            &[&[Field::optional("format", FORMAT, ""), unused("verbosity", VERBOSITY)]],
            "an object with a format",
        ),
        "The form of the answer, which it keeps to; schemas that cannot be kept to are refused.",
    ),
    Field::optional("metadata", METADATA, "Given back with the response."),
    unused("include", Shape::List(&INCLUDE, 0, usize::MAX, "a list of what OpenAI's API can include")),
    unused("max_tool_calls", Shape::Integer(1, MOST)),
    unused("prompt_cache_key", Shape::Text),
    unused("prompt_cache_retention", RETENTION),
    unused(
        "reasoning",
        open(
            &[&[
                unused("effort", EFFORT),
                unused("summary", Shape::Words(&["auto", "concise", "detailed"])),
                unused("generate_summary", Shape::Words(&["auto", "concise", "detailed"])),
            ]],
            "an object like {\"effort\": \"low\"}",
        ),
    ),
    unused("safety_identifier", Shape::Text),
    unused("service_tier", TIER),
    unused("store", Shape::Flag),
    unused(
        "stream_options",
        open(
            &[&[unused("include_obfuscation", Shape::Flag)]],
            "an object like {\"include_obfuscation\": false}",
        ),
    ),
    unused("top_logprobs", Shape::Integer(0, 20)),
    unused("truncation", Shape::Words(&["disabled"])),
    unused("user", Shape::Text),
    Field::optional("background", Shape::Is(false), "Work behind the scenes is not supported."),
    Field::refused("previous_response_id", KEPT),
    Field::refused("conversation", KEPT),
    Field::refused("prompt", OUT),
    Field::refused("context_management", OUT),
    Field::refused("moderation", OUT),
]]);
