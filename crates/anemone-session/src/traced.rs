use anemone_ane::Pass;

use crate::{Engine, EngineError};

/// Path of the embedding's output in a [`Tap`].
pub const EMBEDDING: &str = "model.embed_tokens";
/// Path of the final norm's output in a [`Tap`].
pub const FINAL_NORM: &str = "model.embedding_norm";

/// Receives the residual stream: a module path and `[tokens of this pass, hidden]` values.
pub type Tap<'a> = &'a mut dyn FnMut(&str, &[f32]);

/// An engine whose inside can be watched.
pub trait Traced: Engine {
    /// [`Engine::feed_all`] with the residual stream shown to `tap`, pass by pass: [`EMBEDDING`], each block's path where the
    /// engine can show it, [`FINAL_NORM`].
    fn feed_traced(&mut self, tokens: &[u32], tap: Tap<'_>) -> Result<&[f32], EngineError>;

    /// The kinds of pass it computes with; empty for an engine that takes any number of tokens.
    fn passes(&self) -> Vec<Pass> {
        Vec::new()
    }

    /// Computes everything with one kind of pass, padded where need be; `None` ends that.
    ///
    /// Errors when there is no such pass.
    fn restrict(&mut self, pass: Option<Pass>) -> Result<(), EngineError> {
        match pass {
            None => Ok(()),
            Some(pass) => Err(EngineError::new(format!("the engine has no pass `{}`", pass.name()))),
        }
    }
}
