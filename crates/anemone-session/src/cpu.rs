//! The native engine as a session sees it.

use std::sync::Arc;

use anemone_cpu::LogitsOf;

use crate::{Block, BlockFormat, Engine, EngineError, Part, Tap, Together, Traced};

impl Engine for anemone_cpu::Engine {
    fn vocab_size(&self) -> usize {
        self.model().stack().vocab_size
    }

    fn context_len(&self) -> usize {
        self.context_len()
    }

    fn position(&self) -> usize {
        self.position()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.feed(tokens, LogitsOf::Last).map_err(EngineError::new)
    }

    fn feed_all(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.feed(tokens, LogitsOf::All).map_err(EngineError::new)
    }

    fn nearest(&self, position: usize) -> usize {
        self.nearest(position)
    }

    fn most_drafts(&self) -> usize {
        self.options().rewind
    }

    fn rewind(&mut self, position: usize) -> Result<(), EngineError> {
        self.rewind(position).map_err(EngineError::new)
    }

    fn reset(&mut self) {
        self.reset();
    }

    fn block_format(&self) -> Option<BlockFormat> {
        let (bytes, needed) = (self.block_bytes(), self.blocks_needed());
        Some(BlockFormat { text: self.block_format(), bytes, needed })
    }

    fn export(&self, index: usize) -> Option<Block> {
        let anemone_cpu::Block { bytes, complete } = self.export(index)?;
        Some(Block { bytes, complete })
    }

    fn import(&mut self, blocks: &[Arc<Block>]) -> Result<(), EngineError> {
        let blocks: Vec<(&[u8], bool)> = blocks.iter().map(|b| (&*b.bytes, b.complete)).collect();
        self.import(&blocks).map_err(EngineError::new)
    }
}

impl Traced for anemone_cpu::Engine {
    fn feed_traced(&mut self, tokens: &[u32], tap: Tap<'_>) -> Result<&[f32], EngineError> {
        self.feed_tapped(tokens, LogitsOf::All, tap).map_err(EngineError::new)
    }
}

impl Together for anemone_cpu::Engine {
    fn sibling(&self) -> Option<Self> {
        Some(self.sibling())
    }

    fn copy_from(&mut self, other: &Self) -> Result<(), EngineError> {
        self.restore(&other.snapshot()).map_err(EngineError::new)
    }

    fn feed_together(
        parts: &mut [Part<'_, Self>],
        visit: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Vec<Result<(), EngineError>> {
        let mut own: Vec<anemone_cpu::Part<'_>> = parts
            .iter_mut()
            .map(|part| {
                let want = match part.rows {
                    0 => LogitsOf::None,
                    1 => LogitsOf::Last,
                    _ => LogitsOf::All,
                };
                anemone_cpu::Part { engine: part.engine, tokens: part.tokens, want }
            })
            .collect();
        let results = anemone_cpu::feed_together(&mut own, visit);
        results.into_iter().map(|result| result.map_err(EngineError::new)).collect()
    }
}
