//! `/v1/chat/completions`.

use super::generation::{COMMON, EFFORT, MOST_TOP, NAME, SCHEMA, VERBOSITY, unused};
use crate::shape::{ANY_OBJECT, Field, MOST, Shape, Tagged, closed, open};

const fn tagged(
    tag: &'static str,
    variants: &'static [(&'static str, &'static [Field])],
    otherwise: Option<&'static str>,
) -> Shape {
    Shape::Tagged(Tagged { tag, default: None, variants, otherwise })
}

const PARTS: Shape = tagged(
    "type",
    &[
        ("text", &[Field::required("text", Shape::Text, "")]),
        ("refusal", &[Field::required("refusal", Shape::Text, "")]),
    ],
    Some("which this model cannot read; give text"),
);

const CONTENT: Shape = Shape::Named(
    "ChatContent",
    &Shape::Either(
        &[Shape::Text, Shape::List(&PARTS, 0, usize::MAX, "a list of parts")],
        "a string, or a list of parts of type 'text'",
    ),
);

const FUNCTION_CALL: Shape = open(
    &[&[
        Field::required("name", Shape::Text, ""),
        Field::required(
            "arguments",
            Shape::Either(&[Shape::Text, ANY_OBJECT], "a string of JSON, or an object"),
            "JSON, as a string or as it is.",
        ),
    ]],
    "an object with name and arguments",
);

const CALL: Shape = open(
    &[&[
        Field::optional("id", Shape::Text, ""),
        Field::optional("type", Shape::Words(&["function"]), ""),
        Field::required("function", FUNCTION_CALL, ""),
    ]],
    "a call of a function",
);

const CALLS: Field = Field::optional(
    "tool_calls",
    Shape::List(&CALL, 0, usize::MAX, "a list of calls"),
    "Calls of functions.",
);
const REASONING: Field =
    Field::optional("reasoning_content", Shape::Text, "What was thought before the answer.");

const TEXT: &[Field] = &[Field::required("content", CONTENT, ""), REASONING, CALLS];

/// A message of a conversation.
const MESSAGE: Shape = Shape::Named(
    "ChatMessage",
    &tagged(
        "role",
        &[
            ("system", TEXT),
            ("developer", TEXT),
            ("user", TEXT),
            ("assistant", &[Field::optional("content", CONTENT, ""), REASONING, CALLS]),
            (
                "tool",
                &[
                    Field::required("content", CONTENT, "What a call came to."),
                    Field::optional("tool_call_id", Shape::Text, ""),
                    REASONING,
                    CALLS,
                ],
            ),
        ],
        None,
    ),
);

pub(crate) const MESSAGES: Shape = Shape::List(&MESSAGE, 1, usize::MAX, "a list of messages, not empty");

const FUNCTION: Shape = open(
    &[&[
        Field::required("name", NAME, "No two functions have the same."),
        Field::optional("description", Shape::Text, ""),
        Field::optional("parameters", SCHEMA, "The JSON Schema of its arguments."),
        unused("strict", Shape::Flag),
    ]],
    "an object with a name",
);

const TOOL: Shape = open(
    &[&[Field::required("type", Shape::Words(&["function"]), ""), Field::required("function", FUNCTION, "")]],
    "an object with type and function",
);

pub(crate) const TOOLS: Field = Field::optional(
    "tools",
    Shape::List(&TOOL, 0, usize::MAX, "a list of functions"),
    "Functions the model may call; calls keep to their parameters.",
);

const CHOSEN: Shape = tagged(
    "type",
    &[(
        "function",
        &[Field::required(
            "function",
            open(&[&[Field::required("name", Shape::Text, "")]], "an object with a name"),
            "",
        )],
    )],
    None,
);

const JSON_SCHEMA: Shape = open(
    &[&[
        Field::optional("name", Shape::Text, ""),
        Field::optional("description", Shape::Text, ""),
        Field::required("schema", SCHEMA, ""),
        unused("strict", Shape::Flag),
    ]],
    "an object with a schema",
);

const FORMAT: Shape = tagged(
    "type",
    &[
        ("text", &[]),
        ("json_object", &[]),
        ("json_schema", &[Field::required("json_schema", JSON_SCHEMA, "")]),
    ],
    None,
);

/// The request.
pub(crate) const REQUEST: Shape = closed(&[
    &[
        Field::required(
            "messages",
            MESSAGES,
            "The conversation; the template of the model may ask for an order of roles.",
        ),
        TOOLS,
        Field::optional(
            "tool_choice",
            Shape::Either(
                &[Shape::Words(&["none", "auto", "required"]), CHOSEN],
                "'none', 'auto', 'required' or {\"type\": \"function\", \"function\": {\"name\": …}}",
            ),
            "Whether functions are called; only those of 'tools' can be.",
        ),
        Field::optional("parallel_tool_calls", Shape::Flag, "Whether an answer may have several calls."),
        Field::optional(
            "response_format",
            FORMAT,
            "The form of the answer, which it keeps to; schemas that cannot be kept to are refused.",
        ),
        Field::optional("max_completion_tokens", Shape::Integer(0, MOST), "The newer name of 'max_tokens'."),
        Field::optional("logprobs", Shape::Flag, "Tells the log probabilities of the answer's tokens."),
        Field::optional(
            "top_logprobs",
            Shape::Integer(0, MOST_TOP as i64),
            "So many of the likeliest tokens of each place with theirs; only where 'logprobs' is true.",
        ),
        Field::optional("chat_template_kwargs", ANY_OBJECT, "Variables of the model's template."),
        Field::optional(
            "modalities",
            Shape::List(&Shape::Words(&["text"]), 1, 1, "[\"text\"]"),
            "Text is all there is.",
        ),
        unused(
            "prediction",
            tagged("type", &[("content", &[Field::required("content", CONTENT, "")])], None),
        ),
        unused("reasoning_effort", EFFORT),
        unused("verbosity", VERBOSITY),
        Field::refused("functions", "is not supported; use 'tools'"),
        Field::refused("function_call", "is not supported; use 'tool_choice'"),
        Field::refused("audio", "is not supported by this model; leave it out"),
        Field::refused("web_search_options", "is not supported by this model; leave it out"),
        Field::refused("moderation", "is not supported; leave it out"),
    ],
    COMMON,
]);
