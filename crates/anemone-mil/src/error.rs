use std::io;
use std::path::{Path, PathBuf};

use crate::{DataType, Type};

/// Why a program cannot be built, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation the table does not know.
    #[error("operation `{op}` (at `{at}`) is not supported")]
    UnknownOp {
        /// Operation type.
        op: String,
        /// Its first output.
        at: String,
    },
    /// An operation's inputs do not fit its definition.
    #[error("operation `{op}` at `{at}`: {problem}")]
    Op {
        /// Operation type.
        op: &'static str,
        /// Its name.
        at: String,
        /// What is wrong.
        problem: String,
    },
    /// The declared type of a result is not the inferred one.
    #[error("operation `{op}` at `{at}` declares {declared} where its inputs give {inferred}")]
    DeclaredType {
        /// Operation type.
        op: String,
        /// Its name.
        at: String,
        /// Type in the file.
        declared: Box<Type>,
        /// Type from inference.
        inferred: Box<Type>,
    },
    /// A name is not an identifier, is used twice or is not defined.
    #[error("name `{name}` {problem}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A function or program is not well formed.
    #[error("function `{function}`: {problem}")]
    Function {
        /// The function.
        function: String,
        /// What is wrong.
        problem: String,
    },
    /// The program needs a newer target.
    #[error("{what} needs specification version {needs}, the target is {target}")]
    Version {
        /// The feature.
        what: String,
        /// Version it came with.
        needs: i32,
        /// Version asked for.
        target: i32,
    },
    /// A package's structure is wrong.
    #[error("{}: {problem}", path.display())]
    Package {
        /// File in question.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The model file does not decode.
    #[error("{}: not a Core ML model file, or a damaged one; copy or convert it again", path.display())]
    Decode {
        /// File in question.
        path: PathBuf,
        /// What the decoder says.
        #[source]
        source: prost::DecodeError,
    },
    /// The weight file is damaged.
    #[error("weight file, offset {offset}: {problem}")]
    Blob {
        /// Offset of the record.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// A type cannot be stored in a weight file.
    #[error("type {0} cannot be stored in a weight file")]
    NotStorable(DataType),
    /// Reading or writing failed.
    #[error("{}{}", path.display(), remedy(source))]
    Io {
        /// File in question.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A weight's producer failed.
    #[error("weight `{name}`")]
    Weight {
        /// Its name.
        name: String,
        /// What it says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Puts the file's name before a fault of its content.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Blob { offset, problem } => Self::Package {
                path: path.into(),
                problem: format!("offset {offset}: {problem}; the file is damaged: copy or convert it again"),
            },
            other => other,
        }
    }
}

/// What helps against a failure of the system, to be put between the path and the cause; empty where nothing is known.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": make room or choose a place on another disk"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ": choose a place that you may read and write"
        }
        _ => "",
    }
}
