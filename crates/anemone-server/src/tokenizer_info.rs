//! `/tokenizer_info`: what clients that make prompts of tokens themselves have to know of the first language model.

use anemone_session::SpecialToken;
use axum::http::HeaderMap;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;

use crate::app::App;
use crate::openai::refusal::{Checked, respond};

/// What is known of a model's tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct TokenizerInfo<'a> {
    model: &'a str,
    bos_token: Option<&'a str>,
    eos_token: Option<&'a str>,
    pad_token: Option<&'a str>,
    vocab_size: usize,
    /// Most tokens the model holds.
    model_max_length: usize,
    chat_template: &'a str,
}

/// The model may have to be loaded, so that a request is one of `--max-concurrent`.
pub(crate) async fn answer(app: &App, headers: &HeaderMap) -> Checked<Response> {
    let _permit = app.enter(headers)?;
    let language = app.language(None, app.deadline()).await?;
    let (tokenizer, template) = (language.tokenizer(), language.template());
    let text = |token: Option<&'_ SpecialToken>| token.map(|token| token.text.clone());
    let (bos, eos, pad) = (text(tokenizer.bos()), text(tokenizer.eos()), text(tokenizer.pad()));
    Ok(respond(&TokenizerInfo {
        model: language.name(),
        bos_token: bos.as_deref(),
        eos_token: eos.as_deref(),
        pad_token: pad.as_deref(),
        vocab_size: tokenizer.vocab_size(),
        model_max_length: language.context_len(),
        chat_template: template.source(),
    }))
}
