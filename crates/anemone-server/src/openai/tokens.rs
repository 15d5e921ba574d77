//! Tokens as clients see them, and `/tokenize` and `/detokenize`.

use anemone_session::{Tokenizer, ToolChoice};
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Value, json};

use super::fields::Fields;
use super::prompt::{self, Prompt, Wishes};
use super::refusal::{ApiError, Checked, respond};
use crate::app::App;

/// The text of a token alone; what is no character by itself is U+FFFD.
pub(super) fn text(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.decode(&[id], false).unwrap_or_default()
}

/// An entry of a chat's `logprobs`.
pub(super) fn logprob(tokenizer: &Tokenizer, id: u32, logprob: f32, top: &[(u32, f32)]) -> Value {
    let entry = |id: u32, logprob: f32| {
        let text = text(tokenizer, id);
        json!({"token": text, "logprob": finite(logprob), "bytes": text.as_bytes()})
    };
    let mut value = entry(id, logprob);
    value["top_logprobs"] = top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
    value
}

/// JSON has no infinity; clients expect a number.
pub(super) fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

pub(crate) async fn tokenize(app: &App, request: Request) -> Checked<Response> {
    let (_permit, bytes) = app.admit_bytes(request).await?;
    let app = app.clone();
    let work = move || -> Checked<Response> {
        let mut fields = Fields::parse(&bytes)?;
        let language = app.language(fields.take::<String>("model", "a string")?.as_deref())?;
        let text: Option<String> = fields.take("prompt", "a string")?;
        let conversation = fields.value("messages");
        let special: Option<bool> = fields.take("add_special_tokens", "true or false")?;
        let ids = match (text, conversation) {
            (Some(text), None) => {
                let encoded = language.tokenizer().encode(&text, special.unwrap_or(true));
                encoded.map_err(|error| ApiError::session(&error, "prompt"))?
            }
            (None, messages @ Some(_)) => {
                let messages = prompt::messages(messages)?;
                let (tools, declared) = prompt::tools(&mut fields)?;
                let wishes = Wishes { tools, declared, choice: ToolChoice::None, ..Wishes::default() };
                Prompt::render(&language, &messages, wishes)?.ids
            }
            _ => return Err(ApiError::field("prompt", "or 'messages' must be given, and not both")),
        };
        fields.finish()?;
        Ok(respond(&json!({
            "count": ids.len(), "max_model_len": language.context_len(), "tokens": ids,
        })))
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::failed())?
}

pub(crate) async fn detokenize(app: &App, request: Request) -> Checked<Response> {
    let (_permit, bytes) = app.admit_bytes(request).await?;
    let mut fields = Fields::parse(&bytes)?;
    let language = app.language(fields.take::<String>("model", "a string")?.as_deref())?;
    let expected = "a list of token ids";
    let ids: Vec<u32> = fields
        .take("tokens", expected)?
        .ok_or_else(|| ApiError::field("tokens", &format!("must be {expected}")))?;
    fields.finish()?;
    let vocab = language.tokenizer().vocab_size();
    if let Some(at) = ids.iter().position(|id| *id as usize >= vocab) {
        return Err(ApiError::field(
            format!("tokens[{at}]"),
            &format!("is no token; ids are 0 to {}", vocab - 1),
        ));
    }
    let text =
        language.tokenizer().decode(&ids, false).map_err(|error| ApiError::session(&error, "tokens"))?;
    Ok(respond(&json!({"prompt": text})))
}
