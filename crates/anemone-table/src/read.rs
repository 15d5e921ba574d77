//! Tables as record batches with their states.

mod csv;
mod jsonl;
mod parquet;

pub use self::parquet::is_guarded;

use std::fs::File;
use std::sync::Arc;

use anemone_decide::Value;
use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};

use crate::cell::{cell, is_state};
use crate::{Error, Format, Result};

/// Longest line, and longest text of a state, that is read.
pub(crate) const ROW_LIMIT: usize = 16 << 20;
/// Bytes after which a batch is closed whatever its rows.
const BATCH_BYTES: usize = 32 << 20;
/// Most columns of a table.
const COLUMN_LIMIT: usize = 10_000;

/// A few rows and the states in them.
#[derive(Debug)]
pub struct Rows {
    /// The rows as they are in the file.
    pub batch: RecordBatch,
    /// The state of each; `Null` where there is none.
    pub states: Vec<Value>,
    /// Number of rows before these.
    pub before: u64,
}

/// Rows of a file, as many at a time as fit the bounds.
trait Source: Send {
    fn schema(&self) -> &SchemaRef;

    /// Rows there are, where the file says so.
    fn rows(&self) -> Option<u64>;

    /// The next rows, at least one; none at the end.
    fn next(&mut self) -> Result<Option<RecordBatch>>;
}

/// A table being read, of which one column holds states.
pub struct Reader {
    source: Box<dyn Source>,
    state: usize,
    before: u64,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("schema", self.schema()).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a regular file of the format for batches of at most `rows` rows, fewer where rows are long.
    ///
    /// A JSONL file is read twice, once for its columns: those of one type of number, text or boolean have it, all others are JSON.
    /// Columns of CSV are texts, an empty one null.
    pub fn open(file: File, format: Format, state: &str, rows: usize) -> Result<Self> {
        let source: Box<dyn Source> = match format {
            Format::Parquet => Box::new(parquet::ParquetRows::open(file, rows)?),
            Format::Csv | Format::Tsv => Box::new(csv::CsvRows::open(file, format, rows)?),
            Format::Jsonl => Box::new(jsonl::JsonRows::open(file, state, rows)?),
        };
        Self::over(source, state)
    }

    fn over(source: Box<dyn Source>, state: &str) -> Result<Self> {
        let schema = source.schema();
        let count = schema.fields().len();
        if count > COLUMN_LIMIT {
            return Err(Error::Columns(format!("{count} columns; at most {COLUMN_LIMIT} are read")));
        }
        for (i, field) in schema.fields().iter().enumerate() {
            if schema.index_of(field.name()).is_ok_and(|first| first != i) {
                let problem = format!("two columns are called `{}`; rename one", field.name());
                return Err(Error::Columns(problem));
            }
        }
        let Ok(place) = schema.index_of(state) else {
            return Err(Error::NoColumn { name: state.to_owned(), columns: listed(schema) });
        };
        let kind = schema.field(place).data_type();
        if !is_state(kind) {
            return Err(Error::Type { column: state.to_owned(), found: kind.to_string() });
        }
        Ok(Self { source, state: place, before: 0 })
    }

    /// The columns of the file.
    pub fn schema(&self) -> &SchemaRef {
        self.source.schema()
    }

    /// Rows of the file, where that is known before the end.
    pub fn rows(&self) -> Option<u64> {
        self.source.rows()
    }

    /// The next rows; none at the end. Errors name the row or line.
    pub fn next_rows(&mut self) -> Result<Option<Rows>> {
        let Some(batch) = self.source.next()? else { return Ok(None) };
        let before = self.before;
        self.before += batch.num_rows() as u64;
        let (column, schema) = (batch.column(self.state), self.source.schema());
        let state = |row: usize| {
            let place = || format!("row {}", before + row as u64 + 1);
            let state = cell(column, schema.field(self.state), row);
            let state = state.map_err(|problem| Error::row(place(), problem))?;
            match &state {
                Value::Text(text) if text.len() > ROW_LIMIT => {
                    let problem = format!("a state of more than {} MiB; cut it", ROW_LIMIT >> 20);
                    Err(Error::row(place(), problem))
                }
                _ => Ok(state),
            }
        };
        let states = (0..batch.num_rows()).map(state).collect::<Result<_>>()?;
        Ok(Some(Rows { batch, states, before }))
    }
}

/// Names for a message, not all of a very wide table.
fn listed(schema: &Schema) -> String {
    let names: Vec<String> = schema.fields().iter().map(|field| format!("`{}`", field.name())).collect();
    match names.len() {
        0 => "none".to_owned(),
        1..=40 => names.join(", "),
        n => format!("{} and {} more", names[..40].join(", "), n - 40),
    }
}

/// A batch of columns made here, which therefore fit the schema.
fn batch(schema: &SchemaRef, columns: Vec<arrow_array::ArrayRef>) -> Result<RecordBatch> {
    let made = RecordBatch::try_new(Arc::clone(schema), columns);
    made.map_err(|error| Error::Columns(error.to_string()))
}

#[cfg(test)]
mod tests;
