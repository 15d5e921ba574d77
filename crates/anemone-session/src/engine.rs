use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::{Block, BlockFormat};

/// What a session needs from something that runs a model.
///
/// An engine holds one sequence of tokens and the state computed for it.
pub trait Engine: Send {
    /// Logits per position, which is the number of rows of the head.
    fn vocab_size(&self) -> usize;

    /// The most tokens the engine can hold.
    fn context_len(&self) -> usize;

    /// Tokens held now.
    fn position(&self) -> usize;

    /// Appends one or more tokens and gives the logits after the last one, `[vocab_size]`.
    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError>;

    /// Appends one or more tokens and gives the logits after each, `[tokens, vocab_size]` row-major.
    fn feed_all(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError>;

    /// The greatest position at or before `position` that [`Engine::rewind`] can step back to.
    ///
    /// An engine that can step back anywhere keeps the default.
    fn nearest(&self, position: usize) -> usize {
        position.min(self.position())
    }

    /// Most tokens of one [`Engine::feed_all`] that can be taken back whatever was fed, which bounds what can be drafted.
    fn most_drafts(&self) -> usize {
        usize::MAX
    }

    /// Forgets everything at and after `position`, which is at most the current one.
    ///
    /// Errors, with the state unchanged, when the position is too far back for the state that is kept.
    fn rewind(&mut self, position: usize) -> Result<(), EngineError>;

    /// Forgets everything.
    fn reset(&mut self);

    /// What its blocks are like; `None` for an engine that does not give its state away.
    fn block_format(&self) -> Option<BlockFormat> {
        None
    }

    /// What tokens `index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS` left behind, see [`BLOCK_TOKENS`](crate::BLOCK_TOKENS);
    /// `None` when they are not held, or no longer wholly known.
    fn export(&self, _index: usize) -> Option<Block> {
        None
    }

    /// Replaces everything held by the blocks of the first tokens, in order.
    ///
    /// They must be of this engine's [`BlockFormat`], and as many of the last ones complete as it says. An error changes nothing.
    fn import(&mut self, _blocks: &[Arc<Block>]) -> Result<(), EngineError> {
        Err(EngineError::new("the engine takes no blocks; feed the tokens again"))
    }
}

/// Any engine's error, shown as the engine words it.
#[derive(Debug)]
pub struct EngineError(Box<dyn StdError + Send + Sync>);

impl EngineError {
    /// Wraps an error, or a message.
    pub fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(error.into())
    }

    /// The engine's own error.
    pub fn get_ref(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for EngineError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_passes_through() {
        assert_eq!(EngineError::new("cache is full").to_string(), "cache is full");
        let error = EngineError::new(std::io::Error::other("disk"));
        assert_eq!(error.to_string(), "disk");
        assert!(error.get_ref().is::<std::io::Error>());
    }
}
