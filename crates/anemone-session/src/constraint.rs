use crate::Result;

mod calls;
mod grammar;
mod guide;
mod mask;
mod matched;
mod vocabulary;

pub use grammar::Grammar;
pub use guide::{ConstraintOptions, Guide, Reasoning};
pub use mask::TokenMask;
pub use vocabulary::ConstraintVocabulary;

/// Which tokens may come next, token by token.
///
/// A constraint follows one sequence from where generation begins. Ids at or beyond the mask's length are never
/// allowed.
pub trait Constraint: Send {
    /// The tokens that may come next; `None` when all may (e.g. while the model reasons).
    ///
    /// Ids that end a text are allowed where the text may end.
    fn mask(&mut self) -> Result<Option<&TokenMask>>;

    /// Takes a token; errors, with the state unchanged, on one that was not allowed.
    fn accept(&mut self, token: u32) -> Result<()>;

    /// How many of these tokens, in order, could come next; nothing is taken.
    fn valid_prefix(&mut self, tokens: &[u32]) -> Result<usize>;

    /// Tokens that are the only ones that can come next, in order, possibly none; nothing is taken.
    fn forced(&mut self) -> Result<Vec<u32>>;

    /// Whether the text is complete, so that nothing but an end may follow.
    fn is_complete(&self) -> bool;
}
