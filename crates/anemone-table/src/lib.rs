//! Tables of states in, tables with their answers out.
//!
//! A [`Reader`] gives a Parquet, CSV or JSONL file as Arrow record batches of few rows, each with the states in one of its columns;
//! [`Answers`] appends what was decided about them as columns; a [`Writer`] takes the batches as they come. Nothing holds more of a
//! table than a batch, and of a Parquet file its metadata and the row group being written.
//!
//! CSV and JSONL are read here and not through `arrow-csv` and `arrow-json`: those bound a batch by its rows only, and types guessed
//! for JSON would change what a state reads as (numbers beyond 64 bits, the keys an object does not have).

mod answers;
mod cell;
mod error;
mod format;
mod read;
mod write;

pub use answers::{Answers, Outcome};
pub use error::{Error, Result};
pub use format::Format;
pub use read::{Reader, Rows, is_guarded};
pub use write::Writer;
