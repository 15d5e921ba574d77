//! `/tokenize` and `/detokenize`.

use super::chat::{MESSAGES, TOOLS};
use super::generation::{MODEL, TOKENS};
use crate::shape::{Field, Shape, closed};

/// The request of `/tokenize`.
pub(crate) const TOKENIZE: Shape = closed(&[&[
    MODEL,
    Field::optional("prompt", Shape::Text, "A text; either this or 'messages' must be given."),
    Field::optional("messages", MESSAGES, "A conversation, which is written with the model's template."),
    TOOLS,
    Field::optional(
        "add_special_tokens",
        Shape::Flag,
        "Whether a prompt has the tokens around it that the model has seen there; true where it is not said.",
    ),
]]);

/// The request of `/detokenize`.
pub(crate) const DETOKENIZE: Shape =
    closed(&[&[MODEL, Field::required("tokens", TOKENS, "Ids, which must be in the model's vocabulary.")]]);
