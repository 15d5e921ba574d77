use std::path::PathBuf;

/// Why a function cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The package does not read.
    #[error("package {}", path.display())]
    Package {
        /// The package.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: anemone_mil::Error,
    },
    /// The package has no such function.
    #[error("package {} has no function `{function}`; it has {present}", path.display())]
    NoFunction {
        /// The package.
        path: PathBuf,
        /// Function asked for.
        function: String,
        /// Functions there are.
        present: String,
    },
    /// An operation cannot be run as it is.
    #[error("operation `{op}` at `{at}`: {problem}")]
    Op {
        /// Operation type.
        op: String,
        /// Its first output.
        at: String,
        /// What is wrong, and the remedy where there is one.
        problem: String,
    },
    /// A constant cannot be used.
    #[error("constant `{name}`: {problem}")]
    Constant {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// An input is missing, unknown, misshapen or of another type.
    #[error("input `{name}` {problem}")]
    Input {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A state does not fit its declaration.
    #[error("state `{name}` {problem}")]
    State {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// The function would need more memory than is allowed.
    #[error("function `{function}` holds {elements} elements at once at `{at}`; the limit is {limit}")]
    Memory {
        /// The function.
        function: String,
        /// Where the most is held.
        at: String,
        /// Elements held.
        elements: usize,
        /// Elements allowed.
        limit: usize,
    },
    /// A profile is not known, does not read, or has no such effect.
    #[error("profile {0}")]
    Profile(String),
}
