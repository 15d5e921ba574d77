use std::io;

/// Why a table cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading failed.
    #[error("cannot read it")]
    Read(#[source] io::Error),
    /// Writing failed.
    #[error("cannot write it")]
    Write(#[source] io::Error),
    /// The bytes are not of the format.
    #[error("not a whole {format} file: {problem}; make it again, or name its format")]
    Damaged {
        /// Name of the format.
        format: &'static str,
        /// What is wrong, and where.
        problem: String,
    },
    /// A row or line cannot be read.
    #[error("{place}: {problem}")]
    Row {
        /// Which, counted from 1.
        place: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The file has no such column.
    #[error("no column `{name}`; the columns are {columns}")]
    NoColumn {
        /// The name.
        name: String,
        /// The names there are.
        columns: String,
    },
    /// Columns are too many, unnamed or named alike.
    #[error("{0}")]
    Columns(String),
    /// A column holds what no state can be read from.
    #[error(
        "column `{column}` is of type {found}, which is no state; give a column of texts, numbers, lists or structs"
    )]
    Type {
        /// The column.
        column: String,
        /// Its Arrow type.
        found: String,
    },
    /// An answer's column has a name that is taken.
    #[error("column `{0}` of the answers is there already; rename the question or that column")]
    Taken(String),
    /// The options of a question cannot be told apart by name.
    #[error(
        "question '{question}' has two options written `{option}`, which cannot both name a probability; rename one"
    )]
    Options {
        /// The question.
        question: String,
        /// The name of both.
        option: String,
    },
    /// Arrow or Parquet will not write the table.
    #[error("a table of these columns cannot be written as {format}: {problem}; choose another format")]
    Unwritable {
        /// Name of the format.
        format: &'static str,
        /// What it says.
        problem: String,
    },
}

impl Error {
    pub(crate) fn row(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Row { place: place.into(), problem: problem.into() }
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
