//! The tokenizer of a file as `tokenizer.json` and `tokenizer_config.json`.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::metadata::Metadata;
use crate::Error;
use crate::text::quote;

/// How text is cut before merging, as Llama 3 and LFM2 do it.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As GPT-2 does it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const PRE: &str = "tokenizer.ggml.pre";

/// A token's kind, by its number in the format.
mod kind {
    pub(super) const UNKNOWN: i128 = 2;
    pub(super) const CONTROL: i128 = 3;
    pub(super) const USER: i128 = 4;
    pub(super) const UNUSED: i128 = 5;
}

/// The two files; `None` when the file has no tokenizer.
pub(super) fn read(metadata: &Metadata) -> Result<Option<(Value, Value)>, Error> {
    let model = match metadata.text("tokenizer.ggml.model")? {
        None | Some("none" | "no_vocab") => return Ok(None),
        Some(model) => model,
    };
    if model != "gpt2" {
        let problem = format!("is {}; only byte-level BPE (`gpt2`) is supported", quote(model));
        return Err(metadata.wrong("tokenizer.ggml.model", problem));
    }
    let tokens = metadata.texts(TOKENS)?.ok_or_else(|| metadata.wrong(TOKENS, "is missing"))?;
    let kinds = metadata.ints(TYPES)?.unwrap_or_else(|| vec![1; tokens.len()]);
    if kinds.len() != tokens.len() {
        let problem =
            format!("has {} entries, expected one for each of {} tokens", kinds.len(), tokens.len());
        return Err(metadata.wrong(TYPES, problem));
    }
    let mut vocab = Map::new();
    let mut added = Vec::new();
    for (id, (token, kind)) in tokens.iter().zip(&kinds).enumerate() {
        if *kind == kind::UNUSED {
            continue;
        }
        if vocab.insert((*token).to_owned(), json!(id)).is_some() {
            return Err(
                metadata.wrong(TOKENS, format!("holds {} twice, the second time as {id}", quote(token)))
            );
        }
        let special = matches!(*kind, kind::CONTROL | kind::UNKNOWN);
        if special || *kind == kind::USER {
            added.push(
                json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special}),
            );
        }
    }
    let merges = merges(metadata, &vocab)?;
    let special = |name: &str| -> Result<Option<(usize, &str)>, Error> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = metadata.count(&key)? else { return Ok(None) };
        let token = tokens
            .get(id)
            .ok_or_else(|| metadata.wrong(&key, format!("is {id}, and there are {} tokens", tokens.len())))?;
        Ok(Some((id, *token)))
    };
    let (bos, eos, pad) = (special("bos")?, special("eos")?, special("padding")?);
    let add_bos = metadata.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(true);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern(metadata)?}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "post_processor": bos.filter(|_| add_bos).map(|(id, token)| json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
        })),
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    });
    let mut settings = Map::new();
    for (name, token) in [("bos_token", bos), ("eos_token", eos), ("pad_token", pad)] {
        if let Some((_, token)) = token {
            settings.insert(name.to_owned(), json!(token));
        }
    }
    settings.insert("add_bos_token".to_owned(), json!(add_bos));
    if let Some(template) = metadata.text("tokenizer.chat_template")? {
        settings.insert("chat_template".to_owned(), json!(template));
    }
    Ok(Some((tokenizer, Value::Object(settings))))
}

fn pattern(metadata: &Metadata) -> Result<&'static str, Error> {
    match metadata.text(PRE)? {
        Some("lfm2" | "llama-bpe" | "llama3" | "llama-v3") | None => Ok(LLAMA3),
        Some("gpt-2" | "gpt2") => Ok(GPT2),
        Some(other) => {
            let problem = format!("is {}; supported are lfm2, llama-bpe and gpt-2", quote(other));
            Err(metadata.wrong(PRE, problem))
        }
    }
}

fn merges(metadata: &Metadata, vocab: &Map<String, Value>) -> Result<Vec<[String; 2]>, Error> {
    let stored = metadata.texts(MERGES)?.ok_or_else(|| metadata.wrong(MERGES, "is missing"))?;
    let mut seen = HashSet::new();
    let mut merges = Vec::with_capacity(stored.len());
    for (i, merge) in stored.into_iter().enumerate() {
        // Byte-level tokens have no spaces; the first one after the start parts the two.
        let cut = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let (left, right) = cut.map_or((merge, ""), |at| (&merge[..at], &merge[at + 1..]));
        let known = |token: &str| vocab.contains_key(token);
        if !known(left) || !known(right) || !known(&format!("{left}{right}")) {
            let problem = format!("holds {} as number {i}, of tokens that are not all there", quote(merge));
            return Err(metadata.wrong(MERGES, problem));
        }
        if seen.insert(merge) {
            merges.push([left.to_owned(), right.to_owned()]);
        }
    }
    Ok(merges)
}
