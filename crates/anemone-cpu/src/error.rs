/// Why the engine cannot load or run a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The checkpoint's weights do not fit the stack.
    #[error(transparent)]
    Model(#[from] anemone_models::Error),
    /// The packed layout's memory could not be had.
    #[error("the packed layout needs a copy of the weights in memory, which failed; use the mapped layout")]
    Pack(#[source] std::io::Error),
    /// The memory for a decision model's weights as products read them could not be had.
    #[error("{mib} MiB for the weights as products read them could not be had; free some memory")]
    Memory {
        /// MiB asked for.
        mib: usize,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// No tokens were given.
    #[error("no tokens to run; give at least one")]
    NoTokens,
    /// Sequences of different engines were to run as one.
    #[error("the sequence is not a sibling of the first one; make all of them with Engine::sibling")]
    NotSiblings,
    /// A token id has no embedding row.
    #[error(
        "token id {id} is outside the vocabulary of {vocab_size} rows; the tokenizer may belong to another model"
    )]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// The context is full.
    #[error(
        "{needed} tokens do not fit the context of {context_len}; shorten the prompt or raise the context length (--ctx)"
    )]
    ContextFull {
        /// Tokens held and asked for together.
        needed: usize,
        /// The limit.
        context_len: usize,
    },
    /// The context asked for is longer than the model was made for.
    #[error("a context of {asked} is longer than the model's {max} (max_position_embeddings); lower --ctx")]
    ContextTooLong {
        /// Asked for.
        asked: usize,
        /// The model's limit.
        max: usize,
    },
    /// The caches of the asked context do not fit the memory.
    #[error(
        "a context of {context_len} needs {needed} MiB of cache and {available} MiB are free; lower --ctx"
    )]
    ContextMemory {
        /// Asked for.
        context_len: usize,
        /// MiB the caches would take.
        needed: u64,
        /// MiB the system says it has.
        available: u64,
    },
    /// Rewinding that far back would need state that is gone.
    #[error("cannot rewind from {from} to {to}; the nearest position that can be restored is {nearest}")]
    Rewind {
        /// Tokens held.
        from: usize,
        /// Position asked for.
        to: usize,
        /// Closest earlier position that works.
        nearest: usize,
    },
    /// A snapshot of another model or arithmetic.
    #[error("the snapshot belongs to another model or arithmetic; feed the tokens again")]
    ForeignSnapshot,
    /// A chain of blocks that the engine cannot go on from.
    #[error("{problem}; they belong to another model or arithmetic, or are damaged: feed the tokens again")]
    Block {
        /// What is wrong.
        problem: &'static str,
    },
    /// A weight holds NaN or infinity.
    #[error(
        "tensor `{name}` holds a value that is not finite at element {index}; the file is damaged or was saved by a diverged run: download, export or convert it again"
    )]
    NonFiniteWeight {
        /// Tensor name.
        name: String,
        /// First such element.
        index: usize,
    },
    /// The logits are not finite though all weights are.
    #[error(
        "the logits after token {position} are not finite although every weight is; the activations overflow: use the exact mode (--exact) and report the model"
    )]
    NonFiniteLogits {
        /// Position of the token.
        position: usize,
    },
    /// A row of a decision model cannot be run.
    #[error("row {row}: {problem}")]
    Row {
        /// Its place in the call.
        row: usize,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// A decision model's outputs are not finite.
    #[error(
        "row {row}: the outputs are not finite; the weights are damaged or the activations overflow: check the file, or use the exact mode (--exact)"
    )]
    NonFiniteScores {
        /// Its place in the call.
        row: usize,
    },
}
