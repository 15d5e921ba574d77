//! `/tokenizer_info`: what clients that make prompts of tokens themselves have to know of the first language model.

use anemone_session::SpecialToken;
use axum::response::Response;
use serde_json::json;

use crate::app::App;
use crate::openai::refusal::{ApiError, Checked, respond};

pub(crate) async fn answer(app: &App) -> Checked<Response> {
    let app = app.clone();
    // The model may have to be loaded.
    let work = move || {
        let language = app.language(None)?;
        let (tokenizer, template) = (language.tokenizer(), language.template());
        let text = |token: Option<&SpecialToken>| token.map(|token| token.text.clone());
        Ok(respond(&json!({
            "model": language.name(),
            "bos_token": text(tokenizer.bos()),
            "eos_token": text(tokenizer.eos()),
            "pad_token": text(tokenizer.pad()),
            "vocab_size": tokenizer.vocab_size(),
            "model_max_length": language.context_len(),
            "chat_template": template.source(),
        })))
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::failed())?
}
