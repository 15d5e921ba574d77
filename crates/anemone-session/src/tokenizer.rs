use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::{Map, Value};
use tokenizers::models::bpe::BPE;
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

use crate::{Error, Result};

mod byte_level;
mod head;

pub(crate) use byte_level::TokenBytes;
use head::Head;

/// A special token: its text and its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialToken {
    /// Text of the token.
    pub text: String,
    /// Id of the token.
    pub id: u32,
}

/// Text to token ids and back, as `tokenizer.json` defines it.
///
/// Truncation and padding stored in the file are switched off. Decoding is the decoder of the file and nothing
/// else: `clean_up_tokenization_spaces` is not applied, so that a text comes back as it was encoded.
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    vocab_size: usize,
    special: Vec<u32>,
    byte_level: Option<TokenBytes>,
    byte_fallback: bool,
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    pad: Option<SpecialToken>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and the names of bos, eos and pad from `tokenizer_config.json` if there is one.
    pub fn from_bytes(tokenizer_json: &[u8], tokenizer_config: Option<&Map<String, Value>>) -> Result<Self> {
        let (head, inner) = both(tokenizer_json)?;
        let mut inner = inner?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| damaged("truncation cannot be switched off", Some(e)))?;
        for token in &head.added_tokens {
            let found = inner.token_to_id(&token.content);
            if found != Some(token.id) {
                let reason = format!(
                    "added token {:?} is listed with id {} but loads as {found:?}",
                    token.content, token.id
                );
                return Err(damaged(reason, None));
            }
        }
        let vocab_size = head.vocab_size;
        let mut special: Vec<u32> = (inner.get_added_tokens_decoder().into_iter())
            .filter(|(_, token)| token.special)
            .map(|(id, _)| id)
            .collect();
        special.sort_unstable();
        let byte_level = head.byte_level.then(|| TokenBytes::new(vocab_size, |id| inner.id_to_token(id)));
        let mut tokenizer = Self {
            inner: Arc::new(inner),
            vocab_size,
            special,
            byte_level,
            byte_fallback: head.byte_fallback,
            bos: None,
            eos: None,
            pad: None,
        };
        if let Some(config) = tokenizer_config {
            tokenizer.bos = tokenizer.named(config, "bos_token")?;
            tokenizer.eos = tokenizer.named(config, "eos_token")?;
            tokenizer.pad = tokenizer.named(config, "pad_token")?;
        }
        Ok(tokenizer)
    }

    /// Checks the form of `tokenizer.json` without building what encoding needs, which takes ten times as long.
    pub fn check(tokenizer_json: &[u8]) -> Result<()> {
        Head::parse(tokenizer_json).map(drop)
    }

    /// The ids of a text; `add_special_tokens` puts what the file says around it (usually bos in front).
    ///
    /// A special token written out in the text becomes its id, as in the reference.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encoding = (self.inner.encode_fast(text, add_special_tokens))
            .map_err(|source| Error::Tokenize { action: "encode", source })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of ids; ids without a string give nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        if let Some(table) = &self.byte_level {
            let mut bytes = Vec::new();
            for &id in ids {
                if !(skip_special && self.is_special(id)) {
                    bytes.extend_from_slice(table.get(id));
                }
            }
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        self.inner.decode(ids, skip_special).map_err(|source| Error::Tokenize { action: "decode", source })
    }

    /// The id of a token given by its string in the file.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The string of an id in the file (byte-level tokens in their printable spelling).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// One more than the largest id that has a string; a model may have more rows than that.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether the id is a special token, which `skip_special` leaves out.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }

    /// Ids of the special tokens, ascending.
    pub fn special_ids(&self) -> &[u32] {
        &self.special
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<&SpecialToken> {
        self.bos.as_ref()
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<&SpecialToken> {
        self.eos.as_ref()
    }

    /// The token that fills a batch.
    pub fn pad(&self) -> Option<&SpecialToken> {
        self.pad.as_ref()
    }

    /// Ids that end a generation, ascending: those configured, eos, and the tokens `<|im_end|>` and
    /// `<|endoftext|>` where the file holds them as special tokens.
    pub fn stop_ids(&self, configured: &[u32]) -> Vec<u32> {
        let by_name = ["<|im_end|>", "<|endoftext|>"]
            .into_iter()
            .filter_map(|name| self.token_to_id(name).filter(|&id| self.is_special(id)));
        let mut ids: Vec<u32> = configured.to_vec();
        ids.extend(self.eos.iter().map(|token| token.id));
        ids.extend(by_name);
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// What encodes text.
    pub(crate) fn text_only(&self) -> Arc<tokenizers::Tokenizer> {
        self.inner.clone()
    }

    pub(crate) fn token_bytes(&self) -> Option<&TokenBytes> {
        self.byte_level.as_ref()
    }

    pub(crate) fn has_byte_fallback(&self) -> bool {
        self.byte_fallback
    }

    fn named(&self, config: &Map<String, Value>, key: &'static str) -> Result<Option<SpecialToken>> {
        let value = match config.get(key) {
            Some(Value::Object(token)) => token.get("content"),
            other => other,
        };
        let Some(text) = value.and_then(Value::as_str) else { return Ok(None) };
        match self.token_to_id(text) {
            Some(id) => Ok(Some(SpecialToken { text: text.to_owned(), id })),
            None => Err(Error::SpecialToken { key, token: text.to_owned() }),
        }
    }
}

/// Checks the file and loads it: the check first, or both at once where that saves a noticeable wait.
///
/// A file that fails the check is reported as the check words it, whatever loading made of it.
fn both(tokenizer_json: &[u8]) -> Result<(Head, Result<tokenizers::Tokenizer>)> {
    const LARGE: usize = 1 << 20;
    if tokenizer_json.len() < LARGE {
        return Ok((Head::parse(tokenizer_json)?, load(tokenizer_json)));
    }
    std::thread::scope(|scope| {
        let head = scope.spawn(|| Head::parse(tokenizer_json));
        let inner = load(tokenizer_json);
        let head = head.join().map_err(|_| damaged("its check failed", None))??;
        Ok((head, inner))
    })
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("byte_level", &self.byte_level.is_some())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("pad", &self.pad)
            .finish_non_exhaustive()
    }
}

fn damaged(reason: impl Into<String>, source: Option<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Tokenizer { reason: reason.into(), source }
}

/// Loads a file whose model is BPE, naming that type: the crate's general way first makes three trees of the
/// whole vocabulary to find out which model it is.
fn byte_pairs(bytes: &[u8]) -> serde_json::Result<tokenizers::Tokenizer> {
    type BytePairs =
        TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;
    Ok(serde_json::from_slice::<BytePairs>(bytes)?.into())
}

/// Loads the file; the tokenizers crate asserts on some damaged files, which is an error here.
fn load(bytes: &[u8]) -> Result<tokenizers::Tokenizer> {
    match catch_unwind(AssertUnwindSafe(|| {
        byte_pairs(bytes).map_or_else(|_| tokenizers::Tokenizer::from_bytes(bytes), Ok)
    })) {
        Ok(Ok(tokenizer)) => Ok(tokenizer),
        Ok(Err(e)) => Err(damaged(format!("not supported: {e}"), Some(e))),
        Err(_) => Err(damaged("the tokenizers library gave up on it", None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 4, "pad_type_id": 0, "pad_token": "</s>"},
        "added_tokens": [{"id": 4, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3}, "merges": ["a b"]}}"#;

    fn config(json: &str) -> Map<String, Value> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_byte_pair_model_loads_alike_both_ways() {
        let read = |json: &str| (byte_pairs(json.as_bytes()), tokenizers::Tokenizer::from_bytes(json));
        for json in [SMALL.to_owned(), SMALL.replace(r#""type": "BPE", "#, "")] {
            let (typed, general) = read(&json);
            let text = |t: &tokenizers::Tokenizer| t.to_string(false).unwrap();
            assert_eq!(text(&typed.unwrap()), text(&general.unwrap()));
        }
        let words = SMALL.replace("\"BPE\"", "\"WordLevel\"");
        let words = words.replace(r#""merges": ["a b"]"#, r#""unk_token": "a""#);
        assert!(byte_pairs(words.as_bytes()).is_err());
        let words = Tokenizer::from_bytes(words.as_bytes(), None).unwrap();
        assert_eq!(words.encode("b</s>", false).unwrap(), [1, 4]);
    }

    #[test]
    fn stored_truncation_and_padding_are_off() {
        let t = Tokenizer::from_bytes(SMALL.as_bytes(), None).unwrap();
        assert_eq!(t.encode("ab a b</s>", false).unwrap(), [3, 2, 0, 2, 1, 4]);
        assert_eq!(t.decode(&[3, 2, 0, 4], false).unwrap(), "ab a</s>");
        assert_eq!(t.decode(&[3, 2, 0, 4], true).unwrap(), "ab a");
        assert_eq!((t.vocab_size(), t.special_ids()), (5, &[4][..]));
    }

    #[test]
    fn ids_without_a_string_decode_to_nothing() {
        let t = Tokenizer::from_bytes(SMALL.as_bytes(), None).unwrap();
        assert_eq!(t.decode(&[0, 5, u32::MAX, 1], true).unwrap(), "ab");
        assert_eq!(t.id_to_token(77), None);
    }

    #[test]
    fn named_tokens_come_from_the_config() {
        let c = config(r#"{"bos_token": null, "eos_token": {"content": "</s>", "lstrip": false}}"#);
        let t = Tokenizer::from_bytes(SMALL.as_bytes(), Some(&c)).unwrap();
        assert_eq!(t.eos(), Some(&SpecialToken { text: "</s>".into(), id: 4 }));
        assert_eq!((t.bos(), t.pad()), (None, None));
        assert_eq!(t.stop_ids(&[2, 4]), [2, 4]);
        let c = config(r#"{"pad_token": "<pad>"}"#);
        let e = Tokenizer::from_bytes(SMALL.as_bytes(), Some(&c)).unwrap_err().to_string();
        assert!(e.contains("pad_token is \"<pad>\""), "{e}");
    }

    #[test]
    fn damaged_files_are_errors() {
        let cases = [
            ("", "not JSON"),
            ("[]", "not a tokenizer"),
            (r#"{"version": "1.0"}"#, "model"),
            (
                r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}}"#,
                "gap",
            ),
            (r#"{"version": "9", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#, "version"),
            (
                r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a z"]}}"#,
                "supported",
            ),
            (
                r#"{"version": "1.0", "decoder": {"type": "New"}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#,
                "supported",
            ),
            (r#"{"version": "1.0", "decoder": {"type": , "model": {}"#, "not JSON"),
            (
                r#"{"version": "1.0", "added_tokens": [{"id": 7, "content": "x", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#,
                "listed with id 7",
            ),
        ];
        for (json, word) in cases {
            let e = Tokenizer::from_bytes(json.as_bytes(), None).unwrap_err().to_string();
            assert!(
                e.starts_with("tokenizer.json: ") && e.contains(word) && !e.contains('\n'),
                "{json}: {e}"
            );
        }
        assert!(Tokenizer::from_bytes(&[0xff; 64], None).is_err());
    }

    #[test]
    fn every_cut_of_a_file_is_an_error() {
        for end in 0..SMALL.len() - 1 {
            assert!(Tokenizer::from_bytes(&SMALL.as_bytes()[..end], None).is_err());
        }
    }

    #[test]
    fn altered_files_load_or_fail_but_never_panic() {
        let words: [&[u8]; 12] = [
            b"null",
            b"-1",
            b"4294967295",
            b"1e99",
            b"\"\"",
            b"[]",
            b"{}",
            b"true",
            b"ByteFallback",
            b"Sequence",
            b"\xff",
            b"]",
        ];
        let mut state = 1u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let mut loaded = 0;
        for _ in 0..4_000 {
            let mut bytes = SMALL.as_bytes().to_vec();
            for _ in 0..=below(2) {
                let at = below(bytes.len());
                match below(3) {
                    0 => bytes[at] = b"0\"{}[]:,a9"[below(10)],
                    1 => {
                        let end = (at + below(12)).min(bytes.len());
                        bytes.splice(at..end, words[below(12)].iter().copied());
                    }
                    _ => {
                        let end = (at + below(4)).min(bytes.len());
                        bytes.drain(at..end);
                    }
                }
            }
            if let Ok(t) = Tokenizer::from_bytes(&bytes, None) {
                loaded += 1;
                let _ = t.encode("ab a</s> é", true).map(|ids| t.decode(&ids, true));
            }
        }
        assert!(loaded > 100, "{loaded}");
    }
}
