//! Rows of Parquet files.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::ChunkReader;

use super::{BATCH_BYTES, Source};
use crate::{Error, Format, Result};

/// A Parquet file, whose pages are read when their rows are due.
pub(super) struct ParquetRows {
    schema: SchemaRef,
    rows: u64,
    given: u64,
    reader: ParquetRecordBatchReader,
}

impl ParquetRows {
    pub(super) fn open(file: impl ChunkReader + 'static, rows: usize) -> Result<Self> {
        guarded(|| {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
            let metadata = builder.metadata();
            let count = u64::try_from(metadata.file_metadata().num_rows())
                .map_err(|_| ParquetError::General("its number of rows is negative".to_owned()))?;
            let rows = rows.min(rows_within(metadata, BATCH_BYTES as u64)).max(1);
            let schema = builder.schema().clone();
            Ok(Self { schema, rows: count, given: 0, reader: builder.with_batch_size(rows).build()? })
        })
    }
}

impl Source for ParquetRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn rows(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let (given, rows) = (self.given, self.rows);
        let reader = &mut self.reader;
        let read = guarded(|| Ok(reader.next().transpose()?));
        let batch = read.map_err(|error| match error {
            Error::Damaged { format, problem } => {
                Error::Damaged { format, problem: format!("{problem} (after row {given} of {rows})") }
            }
            other => other,
        })?;
        self.given += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
        if batch.is_none() && self.given != rows {
            let problem = format!("it has {} rows and says it has {rows}", self.given);
            return Err(Error::Damaged { format: Format::Parquet.title(), problem });
        }
        Ok(batch.filter(|batch| batch.num_rows() > 0))
    }
}

/// Rows of mean size that `bytes` hold, by the row group with the longest.
fn rows_within(metadata: &ParquetMetaData, bytes: u64) -> usize {
    let mean = |group: &parquet::file::metadata::RowGroupMetaData| {
        let [size, rows] = [group.total_byte_size(), group.num_rows()].map(|n| u64::try_from(n).unwrap_or(0));
        size / rows.max(1)
    };
    let longest = metadata.row_groups().iter().map(mean).max().unwrap_or(0);
    (bytes / longest.max(1)) as usize
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread reads a Parquet file, where a panic becomes an error and needs no message of its own.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// What Parquet says of a file; the crate panics on some that are damaged.
fn guarded<T>(read: impl FnOnce() -> std::result::Result<T, ParquetError>) -> Result<T> {
    let damaged = |problem: String| Error::Damaged { format: Format::Parquet.title(), problem };
    let before = GUARDED.replace(true);
    let caught = catch_unwind(AssertUnwindSafe(read));
    GUARDED.set(before);
    match caught {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(ParquetError::External(source))) => match source.downcast::<std::io::Error>() {
            Ok(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(Error::Read(*error)),
            Ok(error) => Err(damaged(error.to_string())),
            Err(other) => Err(damaged(other.to_string())),
        },
        Ok(Err(error)) => Err(damaged(error.to_string())),
        Err(_) => Err(damaged("its parts contradict each other".to_owned())),
    }
}
