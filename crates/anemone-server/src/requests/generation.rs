//! Fields that several routes share.

use crate::shape::{ANY_OBJECT, Field, MOST, Shape, open};

/// Most continuations of a request, those of all its prompts together.
pub(crate) const MOST_CHOICES: usize = 128;
/// Most alternatives of a token; OpenAI has 5 for completions, evaluation harnesses ask for a few more.
pub(crate) const MOST_TOP: usize = 20;

/// The name of a language model.
pub(crate) const MODEL: Field = Field::optional(
    "model",
    Shape::Text,
    "A language model of this server; the first one where none is named.",
);

pub(crate) const STREAM: Field = Field::optional(
    "stream",
    Shape::Flag,
    "Whether the answer comes as server-sent events while it is written.",
);

pub(crate) const METADATA: Shape = Shape::Map(None, &Shape::Text, 16);
pub(crate) const TIER: Shape = Shape::Words(&["auto", "default", "flex", "scale", "priority", "fast"]);
pub(crate) const RETENTION: Shape = Shape::Words(&["in_memory", "24h"]);
pub(crate) const EFFORT: Shape = Shape::Words(&["none", "minimal", "low", "medium", "high", "xhigh", "max"]);
pub(crate) const VERBOSITY: Shape = Shape::Words(&["low", "medium", "high"]);

const UNUSED: &str = "Taken as other servers take it; changes nothing here.";

/// A field of a kind that is checked and changes nothing here.
pub(crate) const fn unused(name: &'static str, shape: Shape) -> Field {
    Field::optional(name, shape, UNUSED)
}

pub(crate) const TEMPERATURE: Field = Field::optional(
    "temperature",
    Shape::Number(0.0, 2.0),
    "How far the draw is spread; 0 takes the likeliest token. Where this and its like are not given, the model's own are used.",
);
pub(crate) const TOP_P: Field = Field::optional(
    "top_p",
    Shape::Number(0.0, 1.0),
    "Draws among the likeliest tokens that have this probability together.",
);
pub(crate) const TOP_K: Field = Field::optional(
    "top_k",
    Shape::Integer(0, MOST),
    "Draws among so many of the likeliest tokens; 0 for all.",
);

const TOKEN: Shape = Shape::Integer(0, u32::MAX as i64);
pub(crate) const TOKENS: Shape = Shape::List(&TOKEN, 0, usize::MAX, "a list of token ids");
const STOPS: Shape = Shape::List(&Shape::Filled, 0, usize::MAX, "a list of strings");
pub(crate) const STRINGS: Shape = STOPS;
const STREAM_OPTIONS: Shape = open(
    &[&[
        Field::optional(
            "include_usage",
            Shape::Flag,
            "Tells the tokens of prompt and answer with the last event.",
        ),
        unused("include_obfuscation", Shape::Flag),
    ]],
    "an object like {\"include_usage\": true}",
);

const fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

/// The fields of chats and completions alike.
pub(crate) const COMMON: &[Field] = &[
    MODEL,
    TEMPERATURE,
    TOP_P,
    Field::optional(
        "min_p",
        Shape::Number(0.0, 1.0),
        "Draws among the tokens that are at least this likely, the likeliest being 1.",
    ),
    TOP_K,
    Field::optional(
        "repetition_penalty",
        Shape::Number(0.001, 100.0),
        "Divides the scores of tokens that occurred; 1 changes nothing.",
    ),
    Field::optional(
        "frequency_penalty",
        Shape::Number(-2.0, 2.0),
        "Taken from the score of a token as often as it was drawn.",
    ),
    Field::optional(
        "presence_penalty",
        Shape::Number(-2.0, 2.0),
        "Taken from the score of a token that was drawn.",
    ),
    Field::optional(
        "seed",
        Shape::Integer(i64::MIN, i64::MAX),
        "Makes the draw the same each time; the choices of a request count on from it.",
    ),
    Field::optional(
        "logit_bias",
        Shape::Map(
            Some(&Shape::Of("0-9", is_digit, "a token id")),
            &Shape::Number(-100.0, 100.0),
            usize::MAX,
        ),
        "Added to the scores of tokens, by their ids, which must be in the model's vocabulary.",
    ),
    Field::optional(
        "stop",
        Shape::Either(&[Shape::Filled, STOPS], "a string or a list of strings, none empty"),
        "Ends the answer before one of these texts.",
    ),
    Field::optional(
        "stop_token_ids",
        TOKENS,
        "Ends the answer before one of these tokens, which must be in the model's vocabulary.",
    ),
    Field::optional("max_tokens", Shape::Integer(0, MOST), "Most tokens of the answer."),
    Field::optional("ignore_eos", Shape::Flag, "Goes on where the model would end."),
    Field::optional("min_tokens", Shape::Integer(0, MOST), "Tokens before which the model cannot end."),
    Field::optional(
        "n",
        Shape::Integer(1, MOST_CHOICES as i64),
        "Choices to make, at most as many as this server runs together.",
    ),
    STREAM,
    Field::optional("stream_options", STREAM_OPTIONS, "Only where 'stream' is true."),
    unused("user", Shape::Text),
    unused("metadata", METADATA),
    unused("store", Shape::Flag),
    unused("service_tier", TIER),
    unused("safety_identifier", Shape::Text),
    unused("prompt_cache_key", Shape::Text),
    unused("prompt_cache_retention", RETENTION),
];

/// A JSON Schema.
pub(crate) const SCHEMA: Shape = Shape::Named("JsonSchema", &ANY_OBJECT);

fn in_names(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ':')
}

/// The name of a function.
pub(crate) const NAME: Shape =
    Shape::Of(r"\p{L}\p{N}_./:\-", in_names, "a name of letters, digits and _ - . / :");
