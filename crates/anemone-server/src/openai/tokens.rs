//! Tokens as clients see them, and `/tokenize` and `/detokenize`.

use anemone_session::{Tokenizer, ToolChoice};
use axum::extract::Request;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;

use super::chat::reply::{Alternative, TokenLogprob};
use super::fields::Fields;
use super::generation;
use super::prompt::{self, Prompt, Wishes};
use super::refusal::{ApiError, Checked, respond};
use crate::app::App;
use crate::language::Language;
use crate::reading::read;
use crate::requests::tokens::{DETOKENIZE, TOKENIZE};

/// The tokens of a text or of a conversation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Tokens {
    count: usize,
    /// Most tokens the model holds.
    max_model_len: usize,
    tokens: Vec<u32>,
}

/// The text of tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Text {
    prompt: String,
}

/// The text of a token alone; what is no character by itself is U+FFFD.
pub(super) fn text(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.decode(&[id], false).unwrap_or_default()
}

/// An entry of a chat's `logprobs`.
pub(super) fn logprob(tokenizer: &Tokenizer, id: u32, logprob: f32, top: &[(u32, f32)]) -> TokenLogprob {
    let entry = |id: u32, logprob: f32| {
        let token = text(tokenizer, id);
        Alternative { bytes: token.as_bytes().to_vec(), token, logprob: finite(logprob) }
    };
    let top_logprobs = top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
    TokenLogprob { own: entry(id, logprob), top_logprobs }
}

/// JSON has no infinity; clients expect a number.
pub(super) fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

pub(crate) async fn tokenize(app: &App, request: Request) -> Checked<Response> {
    let work = |mut fields: Fields, language: Language| -> Checked<Response> {
        let text = fields.text("prompt");
        let conversation = fields.list("messages");
        let special = fields.flag("add_special_tokens");
        let ids = match (text, conversation) {
            (Some(text), None) => {
                let encoded = language.tokenizer().encode(&text, special.unwrap_or(true));
                encoded.map_err(|error| ApiError::session(&error, "prompt"))?
            }
            (None, Some(messages)) => {
                let messages = prompt::messages(messages)?;
                let (tools, declared) = prompt::tools(&mut fields)?;
                let wishes = Wishes { tools, declared, choice: ToolChoice::None, ..Wishes::default() };
                Prompt::render(&language, &messages, wishes)?.ids
            }
            _ => return Err(ApiError::field("prompt", "or 'messages' must be given, and not both")),
        };
        Ok(respond(&Tokens { count: ids.len(), max_model_len: language.context_len(), tokens: ids }))
    };
    read(app, request, &TOKENIZE, work).await
}

pub(crate) async fn detokenize(app: &App, request: Request) -> Checked<Response> {
    let work = |mut fields: Fields, language: Language| -> Checked<Response> {
        let ids = generation::tokens(&fields.list("tokens").unwrap_or_default());
        generation::in_vocabulary(&ids, &language, "tokens")?;
        let text = language.tokenizer().decode(&ids, false);
        let prompt = text.map_err(|error| ApiError::session(&error, "tokens"))?;
        Ok(respond(&Text { prompt }))
    };
    read(app, request, &DETOKENIZE, work).await
}
