//! `/v1/messages` and `/v1/messages/count_tokens`.

use super::generation::{MODEL, NAME, SCHEMA, STREAM, STRINGS, TOP_K, TOP_P, unused};
use crate::shape::{ANY_OBJECT, Field, MOST, Shape, Tagged, closed, open};

const TEXT: &[Field] = &[Field::required("text", Shape::Text, "")];

const TEXT_BLOCK: Shape = Shape::Tagged(Tagged {
    tag: "type",
    default: None,
    variants: &[("text", TEXT)],
    otherwise: Some("which this model cannot read; give text"),
});

const TEXTS: Shape = Shape::Named(
    "MessageText",
    &Shape::Either(
        &[Shape::Text, Shape::List(&TEXT_BLOCK, 0, usize::MAX, "a list of blocks of text")],
        "a string, or a list of blocks of type 'text'",
    ),
);

const USER_BLOCK: Shape = Shape::Tagged(Tagged {
    tag: "type",
    default: None,
    variants: &[
        ("text", TEXT),
        (
            "tool_result",
            &[Field::required("tool_use_id", Shape::Text, ""), Field::optional("content", TEXTS, "")],
        ),
    ],
    otherwise: Some("which this model cannot read from the user"),
});

const ASSISTANT_BLOCK: Shape = Shape::Tagged(Tagged {
    tag: "type",
    default: None,
    variants: &[
        ("text", TEXT),
        ("thinking", &[Field::required("thinking", Shape::Text, "")]),
        ("redacted_thinking", &[]),
        (
            "tool_use",
            &[
                Field::required("id", Shape::Text, ""),
                Field::required("name", Shape::Text, ""),
                Field::required("input", ANY_OBJECT, ""),
            ],
        ),
    ],
    otherwise: Some("which this model cannot read from the assistant"),
});

const CONTENT: &str = "a string or a list of blocks, not empty";

const TURN: Shape = Shape::Named(
    "MessageTurn",
    &Shape::Tagged(Tagged {
        tag: "role",
        default: None,
        variants: &[
            (
                "user",
                &[Field::required(
                    "content",
                    Shape::Either(&[Shape::Text, Shape::List(&USER_BLOCK, 1, usize::MAX, CONTENT)], CONTENT),
                    "",
                )],
            ),
            (
                "assistant",
                &[Field::required(
                    "content",
                    Shape::Either(
                        &[Shape::Text, Shape::List(&ASSISTANT_BLOCK, 1, usize::MAX, CONTENT)],
                        CONTENT,
                    ),
                    "",
                )],
            ),
        ],
        otherwise: None,
    }),
);

const TOOL: Shape = open(
    &[&[
        Field::optional("type", Shape::Words(&["custom"]), "Tools that run on the server are not supported."),
        Field::required("name", NAME, "No two tools have the same."),
        Field::optional("description", Shape::Text, ""),
        Field::required("input_schema", SCHEMA, "The JSON Schema of its input."),
    ]],
    "an object with name and input_schema",
);

const SINGLE: &[Field] = &[Field::optional(
    "disable_parallel_tool_use",
    Shape::Flag,
    "Whether an answer has one use of a tool at most.",
)];

const CHOICE: Shape = Shape::Tagged(Tagged {
    tag: "type",
    default: None,
    variants: &[
        ("auto", SINGLE),
        ("any", SINGLE),
        ("none", &[]),
        ("tool", &[Field::required("name", Shape::Text, ""), SINGLE[0]]),
    ],
    otherwise: None,
});

const THINKING: Shape = Shape::Tagged(Tagged {
    tag: "type",
    default: None,
    variants: &[
        (
            "enabled",
            &[Field::refused(
                "budget_tokens",
                "is not supported, since 'max_tokens' bounds thinking and answer together; leave it out",
            )],
        ),
        ("disabled", &[]),
        ("adaptive", &[]),
        ("between_tools", &[]),
    ],
    otherwise: None,
});

const OUTPUT: Shape = open(
    &[&[
        Field::optional(
            "format",
            Shape::Tagged(Tagged {
                tag: "type",
                default: None,
                variants: &[("json_schema", &[Field::required("schema", SCHEMA, "")])],
                otherwise: None,
            }),
            "",
        ),
        unused("effort", Shape::Words(&["low", "medium", "high", "xhigh", "max"])),
    ]],
    "an object with a format",
);

const CACHE: Shape = open(
    &[&[
        Field::required("type", Shape::Words(&["ephemeral"]), ""),
        unused("ttl", Shape::Words(&["5m", "1h"])),
    ]],
    "an object like {\"type\": \"ephemeral\"}",
);

/// The fields that say what is answered.
const CONVERSATION: &[Field] = &[
    MODEL,
    Field::required(
        "messages",
        Shape::List(&TURN, 1, usize::MAX, "a list of messages, not empty"),
        "The conversation.",
    ),
    Field::optional("system", TEXTS, "What stands before the conversation."),
    Field::optional(
        "tools",
        Shape::List(&TOOL, 0, usize::MAX, "a list of tools"),
        "Tools the model may use; uses keep to their schemas.",
    ),
    Field::optional("tool_choice", CHOICE, "Whether tools are used; only those of 'tools' can be."),
    Field::optional(
        "output_config",
        OUTPUT,
        "The form of the answer, which it keeps to; schemas that cannot be kept to are refused.",
    ),
    unused("cache_control", CACHE),
    unused("thinking", THINKING),
];

/// The request.
pub(crate) const REQUEST: Shape = closed(&[
    CONVERSATION,
    &[
        Field::required("max_tokens", Shape::Integer(1, MOST), "Most tokens of the answer."),
        Field::optional(
            "temperature",
            Shape::Number(0.0, 1.0),
            "How far the draw is spread; 0 takes the likeliest token.",
        ),
        TOP_P,
        TOP_K,
        Field::optional("stop_sequences", STRINGS, "Ends the answer before one of these texts."),
        STREAM,
        unused("diagnostics", ANY_OBJECT),
        unused("inference_geo", Shape::Text),
        unused("metadata", open(&[&[unused("user_id", Shape::Text)]], "an object like {\"user_id\": \"…\"}")),
        unused("service_tier", Shape::Words(&["auto", "standard_only"])),
        unused("speed", Shape::Words(&["standard", "fast"])),
        unused("user_profile_id", Shape::Text),
        unused("workspace_id", Shape::Text),
        Field::refused("container", "is not supported; leave it out"),
        Field::refused("mcp_servers", "is not supported; leave it out"),
    ],
]);

/// The request of `/v1/messages/count_tokens`.
pub(crate) const COUNT: Shape = closed(&[CONVERSATION]);
