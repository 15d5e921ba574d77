use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::Failure;

/// Why a package does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Core ML failed.
    #[error("{package}: {failure}")]
    Core {
        /// The package.
        package: String,
        /// What it says.
        failure: Failure,
    },
    /// A file of a package or of a compiled model cannot be read or written.
    #[error("{path}: {source}; check the path, or name another directory with --compiled-models")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The package cannot be read.
    #[error(transparent)]
    Package(#[from] anemone_mil::Error),
    /// A package has no such function.
    #[error("{package} has no function '{function}'; it has {known}")]
    Function {
        /// The package.
        package: String,
        /// The function asked for.
        function: String,
        /// Those there are.
        known: String,
    },
    /// A function does not run where it must.
    #[error("function '{function}' does not meet --require: {problem}")]
    Placement {
        /// The function.
        function: String,
        /// What is where.
        problem: String,
    },
    /// A function takes as long as on the processor, or that cannot be told.
    #[error("function '{function}' does not meet --max-ratio: {problem}")]
    Ratio {
        /// The function.
        function: String,
        /// What it takes, or why it is not known.
        problem: String,
    },
    /// A call did not come back.
    #[error("Core ML did not come back from {what} in {} s, and this process does not ask it again; start anemone again, with --engine cpu if it keeps happening", .after.as_secs_f64())]
    Hang {
        /// What it was doing.
        what: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The thread of Core ML is gone.
    #[error("the thread of Core ML has ended; the log says why, start again")]
    Ended,
    /// A call's inputs are not those of the function.
    #[error("input '{input}' of function '{function}' {problem}")]
    Input {
        /// The function.
        function: String,
        /// The input.
        input: String,
        /// What is wrong.
        problem: String,
    },
    /// A recorded call does not fit its function.
    #[error(
        "{package}: the recorded call of function '{function}' {problem}; make the bundle again with convert or palettize, or remove canary.safetensors from it to run it untried"
    )]
    Recorded {
        /// The package.
        package: String,
        /// The function.
        function: String,
        /// What is wrong.
        problem: String,
    },
    /// A function gives other numbers than it must.
    #[error(
        "function '{function}' is not to be trusted on this machine: {problem}; use --engine cpu, and send the report of anemone selftest"
    )]
    Canary {
        /// The function.
        function: String,
        /// What was found, with the numbers.
        problem: String,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
