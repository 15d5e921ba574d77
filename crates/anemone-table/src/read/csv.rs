//! Rows of CSV files.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use csv::{ErrorKind, StringRecord};

use super::{BATCH_BYTES, ROW_LIMIT, Source, batch};
use crate::{Error, Format, Result};

/// A CSV file, whose columns are all texts, so that nothing is changed by a guess at its type.
pub(super) struct CsvRows<R> {
    schema: SchemaRef,
    format: Format,
    rows: usize,
    budget: Arc<AtomicUsize>,
    end: Arc<AtomicU64>,
    reader: csv::Reader<Budgeted<R>>,
}

/// What follows the file's last byte: the first ends its last row, and only a quotation mark left open takes in both.
const TAIL: &[u8] = b"\n\n";

/// A reader that fails when more is read than is allowed until the next row, and gives [`TAIL`] at its end.
struct Budgeted<R> {
    inner: R,
    left: Arc<AtomicUsize>,
    read: u64,
    /// Bytes of it all with the tail, once that was given.
    end: Arc<AtomicU64>,
}

impl<R: Read> Read for Budgeted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.end.load(Ordering::Relaxed) != u64::MAX {
            return Ok(0);
        }
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "row"));
        }
        let end = buffer.len().min(left);
        let read = self.inner.read(&mut buffer[..end])?;
        self.read += read as u64;
        if read == 0 && buffer.len() >= TAIL.len() {
            buffer[..TAIL.len()].copy_from_slice(TAIL);
            self.end.store(self.read + TAIL.len() as u64, Ordering::Relaxed);
            return Ok(TAIL.len());
        }
        self.left.store(left - read, Ordering::Relaxed);
        Ok(read)
    }
}

impl<R: Read + Send> CsvRows<R> {
    pub(super) fn open(inner: R, format: Format, rows: usize) -> Result<Self> {
        let budget = Arc::new(AtomicUsize::new(ROW_LIMIT));
        let end = Arc::new(AtomicU64::new(u64::MAX));
        let source = Budgeted { inner, left: Arc::clone(&budget), read: 0, end: Arc::clone(&end) };
        let mut reader = csv::ReaderBuilder::new().delimiter(format.delimiter()).from_reader(source);
        let headers = reader.headers().map_err(|error| problem(format, &error))?;
        let fields: Vec<Field> = headers.iter().map(|name| Field::new(name, DataType::Utf8, true)).collect();
        if fields.is_empty() {
            let problem = "it is empty; its first line must name the columns".to_owned();
            return Err(Error::Columns(problem));
        }
        if reader.position().byte() == end.load(Ordering::Relaxed) {
            return Err(open_quote("its first line".to_owned()));
        }
        Ok(Self { schema: Arc::new(Schema::new(fields)), format, rows, budget, end, reader })
    }
}

impl<R: Read + Send> Source for CsvRows<R> {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn rows(&self) -> Option<u64> {
        None
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut columns: Vec<StringBuilder> =
            self.schema.fields().iter().map(|_| StringBuilder::new()).collect();
        let (mut record, mut bytes, mut rows) = (StringRecord::new(), 0, 0);
        while rows < self.rows && bytes < BATCH_BYTES {
            self.budget.store(ROW_LIMIT, Ordering::Relaxed);
            let more = self.reader.read_record(&mut record).map_err(|error| problem(self.format, &error))?;
            if !more {
                break;
            }
            if self.reader.position().byte() == self.end.load(Ordering::Relaxed) {
                return Err(open_quote(place(record.position())));
            }
            rows += 1;
            bytes += record.as_slice().len();
            for (column, value) in columns.iter_mut().zip(&record) {
                column.append_option(Some(value).filter(|value| !value.is_empty()));
            }
        }
        if rows == 0 {
            return Ok(None);
        }
        let columns = columns.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef).collect();
        batch(&self.schema, columns).map(Some)
    }
}

fn place(position: Option<&csv::Position>) -> String {
    position.map_or("its first line".to_owned(), |at| format!("line {}", at.line()))
}

fn open_quote(line: String) -> Error {
    let problem = "a quotation mark is open to the end of the file; close it, write one within a value twice, or copy the file again";
    Error::row(line, problem)
}

fn problem(format: Format, error: &csv::Error) -> Error {
    let line = place(error.position());
    match error.kind() {
        ErrorKind::Io(source) if source.kind() == io::ErrorKind::FileTooLarge => {
            let problem =
                format!("a row of more than {} MiB; is a quotation mark left open?", ROW_LIMIT >> 20);
            Error::Damaged { format: format.title(), problem }
        }
        ErrorKind::Io(source) => Error::Read(io::Error::new(source.kind(), source.to_string())),
        ErrorKind::Utf8 { err, .. } => Error::row(
            line,
            format!(
                "value {} is not UTF-8 at its byte {}; save the file as UTF-8",
                err.field() + 1,
                err.valid_up_to()
            ),
        ),
        ErrorKind::UnequalLengths { expected_len, len, .. } => Error::row(
            line,
            format!(
                "{len} values for {expected_len} columns; put values with a separator or line break in quotation marks"
            ),
        ),
        _ => Error::row(line, error.to_string()),
    }
}
