use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::damaged;
use crate::Result;

/// Ids may be sparse, but not so sparse that a table by id is a way to exhaust memory.
const MAX_GAP: usize = 1 << 16;

/// What is read of `tokenizer.json` before the tokenizers crate sees it.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) vocab_size: usize,
    pub(super) added_tokens: Vec<AddedToken>,
    /// The decoder is byte-level and nothing more.
    pub(super) byte_level: bool,
    /// Some step of the decoder joins `<0xNN>` tokens.
    pub(super) byte_fallback: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
}

// The untyped parts are parsed here only because the tokenizers crate asserts that they are well-formed JSON.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default, rename = "normalizer")]
    _normalizer: Value,
    #[serde(default, rename = "pre_tokenizer")]
    _pre_tokenizer: Value,
    #[serde(default, rename = "post_processor")]
    _post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    vocab: Vocab,
}

struct Vocab {
    entries: usize,
    size: usize,
}

impl Head {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let file: File = serde_json::from_slice(bytes).map_err(|e| {
            let what = if e.is_data() { "not a tokenizer" } else { "not JSON" };
            damaged(format!("{what}: {e}"), Some(e.into()))
        })?;
        let added_end = file.added_tokens.iter().map(|token| token.id as usize + 1).max().unwrap_or(0);
        let vocab_size = file.model.vocab.size.max(added_end);
        let entries = file.model.vocab.entries + file.added_tokens.len();
        if vocab_size > entries.saturating_mul(4).saturating_add(MAX_GAP) {
            let last = vocab_size - 1;
            return Err(damaged(
                format!("a gap in the ids: the largest is {last}, with {entries} entries"),
                None,
            ));
        }
        Ok(Self {
            vocab_size,
            byte_level: is_byte_level(&file.decoder),
            byte_fallback: has_byte_fallback(&file.decoder),
            added_tokens: file.added_tokens,
        })
    }
}

fn is_byte_level(decoder: &Value) -> bool {
    match kind(decoder) {
        Some("ByteLevel") => true,
        Some("Sequence") => matches!(steps(decoder), [only] if is_byte_level(only)),
        _ => false,
    }
}

fn has_byte_fallback(decoder: &Value) -> bool {
    kind(decoder) == Some("ByteFallback") || steps(decoder).iter().any(has_byte_fallback)
}

fn kind(decoder: &Value) -> Option<&str> {
    decoder.get("type")?.as_str()
}

fn steps(decoder: &Value) -> &[Value] {
    decoder.get("decoders").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Extent;

        impl<'de> Visitor<'de> for Extent {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tokens to ids or a list of tokens")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut vocab = Vocab { entries: 0, size: 0 };
                while let Some((_, id)) = map.next_entry::<IgnoredAny, u32>()? {
                    vocab.entries += 1;
                    vocab.size = vocab.size.max(id as usize + 1);
                }
                Ok(vocab)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocab, A::Error> {
                let mut entries = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    entries += 1;
                }
                Ok(Vocab { entries, size: entries })
            }
        }

        deserializer.deserialize_any(Extent)
    }
}
