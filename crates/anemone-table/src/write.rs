//! Record batches as files.

use std::io::{self, BufWriter, Write};

use anemone_decide::Value;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{FieldRef, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use crate::cell::{cell, written};
use crate::{Error, Format, Result};

/// Bytes of a row group of Parquet, which are kept in memory until it is written.
const GROUP_BYTES: usize = 32 << 20;

/// A table being written.
pub struct Writer<W: Write + Send> {
    schema: SchemaRef,
    format: Format,
    inner: Inner<W>,
    rows: u64,
}

enum Inner<W: Write + Send> {
    Parquet(Box<ArrowWriter<W>>),
    Csv(Box<csv::Writer<W>>),
    Jsonl(BufWriter<W>),
}

impl<W: Write + Send> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("format", &self.format)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl<W: Write + Send> Writer<W> {
    /// Begins a table of these columns.
    ///
    /// Parquet is compressed by snappy. In CSV lists and objects are their JSON, and null is empty; JSONL spells every column in
    /// every line.
    pub fn new(output: W, format: Format, schema: SchemaRef) -> Result<Self> {
        let inner = match format {
            Format::Parquet => {
                let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
                let writer = ArrowWriter::try_new(output, schema.clone(), Some(properties));
                Inner::Parquet(Box::new(writer.map_err(unwritable)?))
            }
            Format::Csv | Format::Tsv => {
                let mut writer = csv::WriterBuilder::new().delimiter(format.delimiter()).from_writer(output);
                writer.write_record(schema.fields().iter().map(|field| field.name())).map_err(unwritten)?;
                Inner::Csv(Box::new(writer))
            }
            Format::Jsonl => Inner::Jsonl(BufWriter::new(output)),
        };
        Ok(Self { schema, format, inner, rows: 0 })
    }

    /// Appends rows of the table's columns.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let fields = self.schema.fields();
        let cells = || fields.iter().zip(batch.columns());
        let before = self.rows;
        let at = |row: usize| {
            move |problem: String| Error::row(format!("row {}", before + row as u64 + 1), problem)
        };
        match &mut self.inner {
            Inner::Parquet(writer) => {
                writer.write(batch).map_err(unwritable)?;
                if writer.in_progress_size() >= GROUP_BYTES {
                    writer.flush().map_err(unwritable)?;
                }
            }
            Inner::Csv(writer) => {
                for row in 0..batch.num_rows() {
                    let record: std::result::Result<Vec<_>, _> =
                        cells().map(|(field, column)| written(column, field, row)).collect();
                    let record = record.map_err(at(row))?;
                    let record = record.iter().map(|value| value.as_deref().unwrap_or_default());
                    writer.write_record(record).map_err(unwritten)?;
                }
            }
            Inner::Jsonl(writer) => {
                for row in 0..batch.num_rows() {
                    let entry = |(field, column): (&FieldRef, &ArrayRef)| {
                        Ok((field.name().clone(), cell(column, field, row)?))
                    };
                    let line: std::result::Result<_, String> = cells().map(entry).collect();
                    let line = line.map_err(at(row))?;
                    writeln!(writer, "{}", Value::Map(line).to_compact()).map_err(Error::Write)?;
                }
            }
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Bytes held in memory for the row group being written.
    pub fn held(&self) -> usize {
        match &self.inner {
            Inner::Parquet(writer) => writer.memory_size(),
            Inner::Csv(_) | Inner::Jsonl(_) => 0,
        }
    }

    /// Writes what is left; without it the file is not whole.
    pub fn finish(self) -> Result<()> {
        match self.inner {
            Inner::Parquet(writer) => writer.close().map(drop).map_err(unwritable),
            Inner::Csv(mut writer) => writer.flush().map_err(Error::Write),
            Inner::Jsonl(mut writer) => writer.flush().map_err(Error::Write),
        }
    }
}

fn unwritable(error: ParquetError) -> Error {
    let other = |problem: String| Error::Unwritable { format: Format::Parquet.title(), problem };
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => Error::Write(*error),
            Err(source) => other(source.to_string()),
        },
        error => other(error.to_string()),
    }
}

fn unwritten(error: csv::Error) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(source) => Error::Write(source),
        other => Error::Unwritable { format: Format::Csv.title(), problem: format!("{other:?}") },
    }
}

#[cfg(test)]
mod tests;
