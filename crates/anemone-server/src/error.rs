use std::io;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is one no client can send.
    #[error("the key {0}; use printable ASCII without spaces")]
    Key(&'static str),
    /// An option is out of range.
    #[error("{name} {problem}")]
    Argument {
        /// Its name.
        name: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// The thread of the models did not start.
    #[error("cannot start the thread of the models: {0}; end other programs or raise the limit of processes")]
    Thread(io::Error),
    /// A model could not be loaded.
    #[error("the model '{model}' cannot be loaded: {source}")]
    Load {
        /// Its name.
        model: String,
        /// What went wrong.
        source: crate::pool::LoadError,
    },
    /// The listening socket cannot be used.
    #[error("cannot listen: {0}")]
    Listen(io::Error),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
