//! Rows of JSONL files.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Seek};
use std::sync::Arc;

use anemone_decide::Value;
use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, NullArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::{BATCH_BYTES, COLUMN_LIMIT, ROW_LIMIT, Source, batch};
use crate::cell::json_field;
use crate::{Error, Result};

/// What all values of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Null,
    Bool,
    /// Whole numbers of 64 bits.
    Int,
    /// Fractions.
    Float,
    /// Both, each of which an f64 holds.
    Number,
    Text,
    /// Anything, as its JSON.
    Json,
}

impl Kind {
    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Bool,
            Value::Int(digits) if digits.parse::<i64>().is_ok() => Self::Int,
            Value::Float(_) => Self::Float,
            Value::Text(_) => Self::Text,
            Value::Int(_) | Value::List(_) | Value::Map(_) => Self::Json,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::Null, kind) | (kind, Self::Null) => kind,
            (Self::Int | Self::Float | Self::Number, Self::Int | Self::Float | Self::Number) => Self::Number,
            _ => Self::Json,
        }
    }

    fn field(self, name: &str) -> Field {
        let kind = match self {
            Self::Null => DataType::Null,
            Self::Bool => DataType::Boolean,
            Self::Int => DataType::Int64,
            Self::Float | Self::Number => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::Json => return json_field(name),
        };
        Field::new(name, kind, true)
    }
}

/// A JSONL file, read twice.
pub(super) struct JsonRows<R> {
    schema: SchemaRef,
    kinds: Vec<Kind>,
    places: HashMap<String, usize>,
    count: u64,
    rows: usize,
    lines: Lines<R>,
}

impl<R: Read + Seek + Send> JsonRows<R> {
    pub(super) fn open(file: R, state: &str, rows: usize) -> Result<Self> {
        let mut lines = Lines::new(file);
        let mut columns = Columns::default();
        let mut count = 0;
        while let Some((_, entries)) = lines.next()? {
            count += 1;
            columns.see(&entries)?;
        }
        lines.rewind()?;
        // Numbers of both kinds are one column of f64, except where that would change what a state reads as.
        for (name, kind) in &mut columns.kinds {
            let mixed = *kind == Kind::Number && (name == state || !columns.exact[columns.places[name]]);
            *kind = if mixed { Kind::Json } else { *kind };
        }
        let fields: Vec<Field> = columns.kinds.iter().map(|(name, kind)| kind.field(name)).collect();
        let kinds = columns.kinds.iter().map(|(_, kind)| *kind).collect();
        Ok(Self { schema: Arc::new(Schema::new(fields)), kinds, places: columns.places, count, rows, lines })
    }
}

/// The columns seen so far.
#[derive(Default)]
struct Columns {
    kinds: Vec<(String, Kind)>,
    /// Whether all whole numbers are exact in f64.
    exact: Vec<bool>,
    places: HashMap<String, usize>,
}

impl Columns {
    fn see(&mut self, entries: &[(String, Value)]) -> Result<()> {
        for (name, value) in entries {
            let place = if let Some(place) = self.places.get(name) {
                *place
            } else {
                let place = self.kinds.len();
                if place == COLUMN_LIMIT {
                    let problem =
                        format!("more than {COLUMN_LIMIT} different keys; put them into one object");
                    return Err(Error::Columns(problem));
                }
                self.places.insert(name.clone(), place);
                self.kinds.push((name.clone(), Kind::Null));
                self.exact.push(true);
                place
            };
            let kind = &mut self.kinds[place].1;
            *kind = kind.and(Kind::of(value));
            self.exact[place] &= is_exact(value);
        }
        Ok(())
    }
}

fn is_exact(value: &Value) -> bool {
    let Value::Int(digits) = value else { return true };
    digits.parse::<i64>().is_ok_and(|n| n.unsigned_abs() <= 1 << 53)
}

impl<R: Read + Seek + Send> Source for JsonRows<R> {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn rows(&self) -> Option<u64> {
        Some(self.count)
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut columns: Vec<Column> = self.kinds.iter().map(|kind| Column::new(*kind)).collect();
        let (mut rows, mut bytes) = (0, 0);
        while rows < self.rows && bytes < BATCH_BYTES {
            let Some((length, entries)) = self.lines.next()? else { break };
            rows += 1;
            bytes += length;
            for (name, value) in entries {
                let column = self.places.get(&name).map(|place| &mut columns[*place]);
                if column.is_none_or(|column| !column.put(rows, value)) {
                    let problem = format!("`{name}` is not what it was; leave the file as it is meanwhile");
                    return Err(Error::row(format!("line {}", self.lines.number), problem));
                }
            }
            for column in &mut columns {
                column.fill(rows);
            }
        }
        if rows == 0 {
            return Ok(None);
        }
        batch(&self.schema, columns.into_iter().map(Column::finish).collect()).map(Some)
    }
}

/// A column being filled.
enum Column {
    Null(usize),
    Bool(BooleanBuilder, usize),
    Int(Int64Builder, usize),
    Float(Float64Builder, usize),
    Text(StringBuilder, usize),
    Json(StringBuilder, usize),
}

impl Column {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Null => Self::Null(0),
            Kind::Bool => Self::Bool(BooleanBuilder::new(), 0),
            Kind::Int => Self::Int(Int64Builder::new(), 0),
            Kind::Float | Kind::Number => Self::Float(Float64Builder::new(), 0),
            Kind::Text => Self::Text(StringBuilder::new(), 0),
            Kind::Json => Self::Json(StringBuilder::new(), 0),
        }
    }

    /// Appends the value of row `row`, counted from 1, if it is of the column's type.
    fn put(&mut self, row: usize, value: Value) -> bool {
        if value == Value::Null {
            return true;
        }
        match (&mut *self, value) {
            (Self::Bool(column, _), Value::Bool(value)) => column.append_value(value),
            (Self::Int(column, _), Value::Int(digits)) => match digits.parse() {
                Ok(value) => column.append_value(value),
                Err(_) => return false,
            },
            (Self::Float(column, _), value) => match value.as_f64() {
                Some(value) => column.append_value(value),
                None => return false,
            },
            (Self::Text(column, _), Value::Text(value)) => column.append_value(value),
            (Self::Json(column, _), value) => column.append_value(value.to_compact()),
            _ => return false,
        }
        *self.filled() = row;
        true
    }

    /// Appends null if row `row` has no value yet.
    fn fill(&mut self, row: usize) {
        if *self.filled() == row {
            return;
        }
        *self.filled() = row;
        match self {
            Self::Null(_) => (),
            Self::Bool(column, _) => column.append_null(),
            Self::Int(column, _) => column.append_null(),
            Self::Float(column, _) => column.append_null(),
            Self::Text(column, _) | Self::Json(column, _) => column.append_null(),
        }
    }

    fn filled(&mut self) -> &mut usize {
        match self {
            Self::Null(n)
            | Self::Bool(_, n)
            | Self::Int(_, n)
            | Self::Float(_, n)
            | Self::Text(_, n)
            | Self::Json(_, n) => n,
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Null(n) => Arc::new(NullArray::new(n)),
            Self::Bool(mut column, _) => Arc::new(column.finish()),
            Self::Int(mut column, _) => Arc::new(column.finish()),
            Self::Float(mut column, _) => Arc::new(column.finish()),
            Self::Text(mut column, _) | Self::Json(mut column, _) => Arc::new(column.finish()),
        }
    }
}

/// Length of a line in bytes, and the entries of its object.
type Line = (usize, Vec<(String, Value)>);

/// The objects of a file, a line each; blank lines are passed over.
struct Lines<R> {
    reader: BufReader<R>,
    number: u64,
}

impl<R: Read + Seek> Lines<R> {
    fn new(file: R) -> Self {
        Self { reader: BufReader::with_capacity(1 << 16, file), number: 0 }
    }

    fn rewind(&mut self) -> Result<()> {
        self.number = 0;
        self.reader.rewind().map_err(Error::Read)
    }

    /// The next object.
    fn next(&mut self) -> Result<Option<Line>> {
        loop {
            let mut bytes = Vec::new();
            let read = self.reader.by_ref().take(ROW_LIMIT as u64 + 1).read_until(b'\n', &mut bytes);
            read.map_err(Error::Read)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            let place = || format!("line {}", self.number);
            if bytes.len() > ROW_LIMIT {
                let problem = format!("more than {} MiB; is it one JSON object a line?", ROW_LIMIT >> 20);
                return Err(Error::row(place(), problem));
            }
            let text = std::str::from_utf8(&bytes).map_err(|error| {
                let problem = format!("not UTF-8 at byte {}; save the file as UTF-8", error.valid_up_to());
                Error::row(place(), problem)
            })?;
            // Some editors mark the beginning of a file.
            let text = text.strip_prefix('\u{FEFF}').filter(|_| self.number == 1).unwrap_or(text).trim();
            if text.is_empty() {
                continue;
            }
            match Value::parse(text).map_err(|error| Error::row(place(), error.to_string()))? {
                Value::Map(entries) => return Ok(Some((bytes.len(), entries))),
                other => {
                    let problem = format!("{}, expected an object", other.kind());
                    return Err(Error::row(place(), problem));
                }
            }
        }
    }
}
