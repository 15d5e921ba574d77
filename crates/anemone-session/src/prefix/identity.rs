use anemone_checkpoint::Weights;
use anemone_models::Stack;
use sha2::{Digest, Sha256};

use super::{BLOCK_TOKENS, BlockFormat};
use crate::{EngineError, Result};

/// Bytes of a tensor that are hashed, in spans of [`SPAN`] spread over it.
const SAMPLE: usize = 64 << 10;
const SPAN: usize = 1 << 10;

/// Which model a sequence was computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId([u8; 32]);

impl ModelId {
    /// The identity of whatever these parts name together.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// The identity of a model by its description and weights: names, types, shapes, and of each tensor all bytes up to
    /// 64 KiB, or as many spread evenly over it.
    ///
    /// Models trained apart differ nearly everywhere. One that was edited by hand in a few elements of a large tensor may not be
    /// told apart.
    pub fn of_weights(stack: &Stack, weights: &dyn Weights) -> Result<Self, EngineError> {
        let mut hash = Sha256::new();
        hash.update(format!("{stack:?}"));
        for weight in stack.weights() {
            let tensor = weights.tensor(&weight.name).map_err(EngineError::new)?;
            hash.update(format!("\n{} {:?} {:?} ", weight.name, tensor.dtype(), tensor.shape()));
            let bytes: &[u8] = tensor.bytes();
            if bytes.len() <= SAMPLE {
                hash.update(bytes);
                continue;
            }
            let spans = SAMPLE / SPAN;
            for i in 0..spans {
                let at = (bytes.len() - SPAN) / (spans - 1) * i;
                hash.update(&bytes[at..at + SPAN]);
            }
        }
        Ok(Self(hash.finalize().into()))
    }
}

/// The name of a block: what it depends on, hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key(pub(super) [u8; 32]);

impl Key {
    pub(super) fn hex(&self) -> String {
        use std::fmt::Write as _;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// The keys of a sequence's whole blocks in order, each with the block's own tokens.
pub(super) struct Keys<'a> {
    above: Key,
    blocks: std::slice::ChunksExact<'a, u32>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(model: ModelId, format: &BlockFormat, tokens: &'a [u32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"anemone prefix 1\0");
        hash.update(model.0);
        hash.update((format.bytes as u64).to_le_bytes());
        hash.update((format.text.len() as u64).to_le_bytes());
        hash.update(&format.text);
        Self { above: Key(hash.finalize().into()), blocks: tokens.chunks_exact(BLOCK_TOKENS) }
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = (Key, &'a [u32]);

    fn next(&mut self) -> Option<Self::Item> {
        let tokens = self.blocks.next()?;
        let mut hash = Sha256::new();
        hash.update(self.above.0);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        self.above = Key(hash.finalize().into());
        Some((self.above, tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(model: &[u8], text: &str, tokens: &[u32]) -> Vec<Key> {
        let format = BlockFormat { text: text.into(), bytes: 4, needed: 1 };
        Keys::new(ModelId::of([model]), &format, tokens).map(|(key, _)| key).collect()
    }

    #[test]
    fn a_key_depends_on_all_that_came_before() {
        let tokens: Vec<u32> = (0..3 * BLOCK_TOKENS as u32 + 5).collect();
        let base = keys(b"m", "f", &tokens);
        assert_eq!(base.len(), 3);
        assert_eq!(base[..2], keys(b"m", "f", &tokens[..2 * BLOCK_TOKENS]));
        let mut other = tokens.clone();
        other[0] += 1;
        for changed in [keys(b"n", "f", &tokens), keys(b"m", "g", &tokens), keys(b"m", "f", &other)] {
            assert!(base.iter().zip(&changed).all(|(a, b)| a != b));
        }
        let mut later = tokens;
        later[BLOCK_TOKENS] += 1;
        let later = keys(b"m", "f", &later);
        assert!(later[0] == base[0] && later[1] != base[1] && later[2] != base[2]);
        assert_eq!(base[0].hex().len(), 64);
    }

    #[test]
    fn parts_of_an_identity_do_not_run_together() {
        assert_ne!(ModelId::of([&b"ab"[..], b"c"]), ModelId::of([&b"a"[..], b"bc"]));
        assert_eq!(ModelId::of([&b"ab"[..]]), ModelId::of([&b"ab"[..]]));
    }
}
