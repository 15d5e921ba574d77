//! `/v1/completions`.

use super::generation::{COMMON, MOST_CHOICES, MOST_TOP};
use crate::shape::{Field, Shape, closed};

const TOKENS: Shape =
    Shape::List(&Shape::Integer(0, u32::MAX as i64), 1, usize::MAX, "a list of token ids, not empty");

const PROMPTS: Shape = Shape::Either(
    &[
        Shape::Text,
        Shape::List(&Shape::Text, 1, MOST_CHOICES, "a list of strings, not empty"),
        TOKENS,
        Shape::List(&TOKENS, 1, MOST_CHOICES, "a list of lists of token ids, not empty"),
    ],
    "a string, a list of strings, a list of token ids or a list of such lists, not empty and of at most 128 prompts",
);

/// The request.
pub(crate) const REQUEST: Shape = closed(&[
    &[
        Field::required(
            "prompt",
            PROMPTS,
            "Texts or tokens to go on from; ids must be in the model's vocabulary.",
        ),
        Field::optional(
            "logprobs",
            Shape::Integer(0, MOST_TOP as i64),
            "So many of the likeliest tokens of each place.",
        ),
        Field::optional("echo", Shape::Flag, "Gives the prompt before its continuation."),
        Field::optional(
            "best_of",
            Shape::Integer(1, MOST_CHOICES as i64),
            "Continuations of which the 'n' likeliest are given; 'n' or more, and 'n' where 'stream' is true.",
        ),
        Field::refused("suffix", "is not supported by this model; leave it out"),
    ],
    COMMON,
]);
