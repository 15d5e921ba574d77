use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::{put, put_json};

/// The special tokens in id order; all released models keep this order.
const SPECIALS: [&str; 14] = [
    "<|pad|>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<|fim_pre|>",
    "<|fim_mid|>",
    "<|fim_suf|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|tool_list_start|>",
    "<|tool_list_end|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_response_start|>",
    "<|tool_response_end|>",
];
const PAD: &str = SPECIALS[0];
const BOS: &str = SPECIALS[1];
const EOS: &str = SPECIALS[7];
/// The Llama-3 split, which these models use.
const SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];

/// The ids a configuration names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) bos: u64,
    pub(super) eos: u64,
    pub(super) pad: u64,
    /// Largest id of the tokenizer.
    pub(super) largest: Option<u64>,
}

/// Writes a byte-level tokenizer without merges: 256 bytes and the special tokens.
pub(super) fn write(dir: &Path, first_special: u64, first_byte: u64) -> Result<Ids> {
    let special = |i: usize| first_special + i as u64;
    let mut vocab = Map::new();
    vocab.extend(SPECIALS.iter().enumerate().map(|(i, token)| ((*token).to_owned(), special(i).into())));
    vocab.extend((0..=255).map(|byte| (byte_char(byte).to_string(), (first_byte + u64::from(byte)).into())));
    let added: Vec<Value> = SPECIALS.iter().enumerate().map(|(i, token)| added(special(i), token)).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special_piece(0), {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                special_piece(0), {"Sequence": {"id": "A", "type_id": 0}},
                special_piece(1), {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {BOS: {"id": BOS, "ids": [special(1)], "tokens": [BOS]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocab, "merges": [],
        },
    });
    put_json(&dir.join("tokenizer.json"), &tokenizer)?;
    let config = json!({
        "add_bos_token": true, "add_eos_token": false, "bos_token": BOS, "eos_token": EOS, "pad_token": PAD,
        "clean_up_tokenization_spaces": false, "tokenizer_class": "PreTrainedTokenizerFast",
    });
    put_json(&dir.join("tokenizer_config.json"), &config)?;
    put(&dir.join("chat_template.jinja"), include_str!("chat_template.jinja"))?;
    let largest = Some(special(SPECIALS.len() - 1).max(first_byte + 255));
    Ok(Ids { pad: special(0), bos: special(1), eos: special(7), largest })
}

/// Copies tokenizer files and finds the ids of the special tokens.
pub(super) fn copy(from: &Path, dir: &Path) -> Result<Ids> {
    for file in FILES {
        let source = from.join(file);
        if file == FILES[0] || source.exists() {
            fs::copy(&source, dir.join(file)).with_context(|| format!("cannot copy {}", source.display()))?;
        }
    }
    let path = from.join(FILES[0]);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let json: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let added = json["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let vocab = json["model"]["vocab"].as_object();
    let id = |token: &str| {
        let found =
            added.iter().find(|entry| entry["content"] == token).and_then(|entry| entry["id"].as_u64());
        let found = found.or_else(|| vocab.and_then(|vocab| vocab.get(token)?.as_u64()));
        found.with_context(|| {
            format!("{}: no token `{token}`; pass a tokenizer of this family", path.display())
        })
    };
    let ids = added.iter().filter_map(|entry| entry["id"].as_u64());
    let largest = ids.chain(vocab.into_iter().flat_map(Map::values).filter_map(Value::as_u64)).max();
    Ok(Ids { bos: id(BOS)?, eos: id(EOS)?, pad: id(PAD)?, largest })
}

fn added(id: u64, token: &str) -> Value {
    json!({
        "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

fn special_piece(type_id: u64) -> Value {
    json!({"SpecialToken": {"id": BOS, "type_id": type_id}})
}

/// The printable character that stands for a byte in byte-level vocabularies.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_their_usual_characters() {
        assert_eq!([b' ', b'\n', b'a', 0, 0xad, 0xff].map(byte_char), ['Ġ', 'Ċ', 'a', 'Ā', 'Ń', 'ÿ']);
        let all: std::collections::HashSet<char> = (0..=255).map(byte_char).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn a_copied_tokenizer_gives_its_own_ids() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let written = write(from.path(), 1000, 0).unwrap();
        assert_eq!(written, Ids { pad: 1000, bos: 1001, eos: 1007, largest: Some(1013) });
        assert_eq!(copy(from.path(), to.path()).unwrap(), written);
        assert!(to.path().join("chat_template.jinja").exists());
        put(&from.path().join("tokenizer.json"), "{}").unwrap();
        assert!(copy(from.path(), to.path()).unwrap_err().to_string().contains("no token"));
    }
}
