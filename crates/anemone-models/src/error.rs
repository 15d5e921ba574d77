use anemone_tensor::{Shape, TensorError};

/// Why a checkpoint is not a model this crate can describe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key of a configuration file is absent, of the wrong type or out of range.
    #[error("{file}: `{key}` {problem}")]
    Config {
        /// The file, as named in the snapshot.
        file: &'static str,
        /// The key, with its path.
        key: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// The model is none of the supported ones.
    #[error("config.json: {found} is not supported; supported are {supported}")]
    Unsupported {
        /// What the config names.
        found: String,
        /// What would work.
        supported: String,
    },
    /// Tensors the config asks for are not in the checkpoint.
    #[error("the checkpoint lacks {}; download it again or check that config.json belongs to it", list(.0))]
    Missing(Vec<String>),
    /// Tensors have another shape than the config asks for.
    #[error(
        "tensor `{name}` has shape {found}, expected {expected} from config.json; take both from the same download of the model"
    )]
    Shape {
        /// Tensor name.
        name: String,
        /// Shape from the config.
        expected: Shape,
        /// Shape in the file.
        found: Shape,
    },
    /// A tensor is not of a floating type.
    #[error(
        "tensor `{name}` is {dtype}; supported are F32, F16 and BF16 (convert the checkpoint, or use its GGUF when that is supported)"
    )]
    DType {
        /// Tensor name.
        name: String,
        /// Type in the file.
        dtype: String,
    },
    /// Tensors are there that nothing in the config asks for.
    #[error("the checkpoint holds tensors its config.json does not describe: {}; it may be another architecture or carry unmerged adapters", list(.0))]
    Extra(Vec<String>),
    /// No tensor is the token embedding.
    #[error("no tensor ends in `embed_tokens.weight`; this is not a text model's checkpoint")]
    NoEmbedding,
    /// Several tensors could be the token embedding.
    #[error("several tensors could be the token embedding: {}; keep one model per checkpoint", list(.0))]
    AmbiguousEmbedding(Vec<String>),
    /// The output head is stored and tied, but not the embedding.
    #[error(
        "`{0}` differs from the embedding although config.json ties them; set `tie_word_embeddings` to false (lfm2: `tie_embedding`)"
    )]
    TiedHead(String),
    /// Reading the checkpoint failed.
    #[error(transparent)]
    Checkpoint(#[from] anemone_checkpoint::Error),
    /// A tensor could not be sliced.
    #[error("tensor `{name}`")]
    Tensor {
        /// Tensor name.
        name: String,
        /// What failed.
        #[source]
        source: TensorError,
    },
}

fn list(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names.iter().take(SHOWN).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}
