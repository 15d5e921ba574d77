use std::path::PathBuf;

use anemone_session::EngineError;

/// Why nothing could be verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine or the reference failed.
    #[error("{during}: {source}")]
    Engine {
        /// What was being done.
        during: String,
        /// The engine's error.
        #[source]
        source: EngineError,
    },
    /// A file of recorded outputs cannot be used.
    #[error("{}: {problem}", path.display())]
    Golden {
        /// The file.
        path: PathBuf,
        /// Key and remedy.
        problem: String,
    },
    /// A recording is of another model.
    #[error("`{name}`: {problem}")]
    Recording {
        /// The recording.
        name: String,
        /// What does not fit, and the remedy.
        problem: String,
    },
    /// There was nothing to compare.
    #[error("nothing was compared: {0}")]
    Nothing(String),
}
