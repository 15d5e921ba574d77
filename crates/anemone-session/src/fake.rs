use std::sync::Arc;

use crate::{BLOCK_TOKENS, Block, BlockFormat, Engine, EngineError, Part, Together, Tokenizer};

/// Rows of [`FakeEngine`]: the letters of [`tokenizer`] and two rows without a string.
pub(crate) const VOCAB: usize = 34;

/// One call an engine received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Feed(Vec<u32>),
    Rewind(usize),
    Reset,
    Import(usize),
}

/// An engine whose logits are a hash of all tokens it holds, or a script.
#[derive(Debug)]
pub(crate) struct FakeEngine {
    pub(crate) calls: Vec<Call>,
    pub(crate) held: Vec<u32>,
    /// Likely token after a given number of held tokens; the hash decides elsewhere.
    pub(crate) script: Vec<Option<u32>>,
    /// How far back a rewind may go.
    pub(crate) most_rewind: usize,
    /// Positions that can be gone back to are multiples of this.
    pub(crate) rewind_step: usize,
    /// Fails instead of holding this many tokens.
    pub(crate) fail_at: Option<usize>,
    /// Has no siblings.
    pub(crate) single: bool,
    /// Ends its sequences can be taken up at: every how many blocks; 0 gives no blocks away.
    pub(crate) complete_every: usize,
    context: usize,
    logits: Vec<f32>,
}

impl FakeEngine {
    pub(crate) fn new(context: usize) -> Self {
        Self {
            calls: Vec::new(),
            held: Vec::new(),
            script: Vec::new(),
            most_rewind: usize::MAX,
            rewind_step: 1,
            fail_at: None,
            single: false,
            complete_every: 1,
            context,
            logits: Vec::new(),
        }
    }

    /// Generates the given tokens after a prompt of `prompt` tokens.
    pub(crate) fn scripted(context: usize, prompt: usize, tokens: &[u32]) -> Self {
        let mut engine = Self::new(context);
        engine.script = vec![None; prompt];
        engine.script.extend(tokens.iter().copied().map(Some));
        engine
    }

    fn append(&mut self, token: u32) {
        self.held.push(token);
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for &id in &self.held {
            hash = (hash ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3);
        }
        for row in 0..VOCAB {
            hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.logits.push((hash >> 40) as f32 / (1 << 24) as f32 + if row >= 32 { 5.0 } else { 0.0 });
        }
        if let Some(Some(id)) = self.script.get(self.held.len()) {
            let last = self.logits.len() - VOCAB;
            self.logits[last + *id as usize] = 100.0;
        }
    }
}

impl Engine for FakeEngine {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_len(&self) -> usize {
        self.context
    }

    fn position(&self) -> usize {
        self.held.len()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.feed_all(tokens)?;
        Ok(&self.logits[self.logits.len() - VOCAB..])
    }

    fn feed_all(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.calls.push(Call::Feed(tokens.to_vec()));
        self.logits.clear();
        for &token in tokens {
            if self.held.len() >= self.context || self.fail_at == Some(self.held.len() + 1) {
                return Err(EngineError::new("the fake cache is full"));
            }
            self.append(token);
        }
        Ok(&self.logits)
    }

    fn nearest(&self, position: usize) -> usize {
        position / self.rewind_step * self.rewind_step
    }

    fn rewind(&mut self, position: usize) -> Result<(), EngineError> {
        self.calls.push(Call::Rewind(position));
        if self.held.len() - position > self.most_rewind {
            return Err(EngineError::new("too far back"));
        }
        self.held.truncate(position);
        Ok(())
    }

    fn reset(&mut self) {
        self.calls.push(Call::Reset);
        self.held.clear();
    }

    fn block_format(&self) -> Option<BlockFormat> {
        let format = BlockFormat { text: "fake".into(), bytes: 4 * BLOCK_TOKENS, needed: 1 };
        (self.complete_every > 0).then_some(format)
    }

    fn export(&self, index: usize) -> Option<Block> {
        let tokens = self.held.get(index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS)?;
        let complete = (index + 1).is_multiple_of(self.complete_every);
        Some(Block { bytes: tokens.iter().flat_map(|token| token.to_le_bytes()).collect(), complete })
    }

    fn import(&mut self, blocks: &[Arc<Block>]) -> Result<(), EngineError> {
        self.calls.push(Call::Import(blocks.len()));
        let bytes = blocks.iter().flat_map(|block| block.bytes.as_chunks().0);
        self.held = bytes.map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok(())
    }
}

impl Together for FakeEngine {
    fn sibling(&self) -> Option<Self> {
        let mut sibling = Self::new(self.context);
        (sibling.script, sibling.fail_at) = (self.script.clone(), self.fail_at);
        (!self.single).then_some(sibling)
    }

    fn copy_from(&mut self, other: &Self) -> Result<(), EngineError> {
        self.held.clone_from(&other.held);
        Ok(())
    }

    fn feed_together(
        parts: &mut [Part<'_, Self>],
        visit: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Vec<Result<(), EngineError>> {
        let feed = |(index, part): (usize, &mut Part<'_, Self>)| {
            let first = part.tokens.len() - part.rows;
            let logits = part.engine.feed_all(part.tokens)?;
            for (token, row) in logits.chunks_exact(VOCAB).enumerate().skip(first) {
                visit(index, token, row);
            }
            Ok(())
        };
        parts.iter_mut().enumerate().map(feed).collect()
    }
}

/// Byte-level, 32 tokens: a special `</s>` (0), letters a to z (1 to 26), space, newline, and é in two bytes.
pub(crate) fn tokenizer() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    vocab.insert("</s>".into(), 0.into());
    for (i, c) in ('a'..='z').enumerate() {
        vocab.insert(c.into(), (i + 1).into());
    }
    for (id, c) in [(27, "Ġ"), (28, "Ċ"), (29, "Ã"), (30, "©"), (31, "!")] {
        vocab.insert(c.into(), id.into());
    }
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "</s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [0], "tokens": ["</s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    });
    Tokenizer::from_bytes(json.to_string().as_bytes(), None).expect("the file above is good")
}
