use std::fs::File;
use std::sync::Arc;

use arrow_array::{BinaryArray, Int64Array, StringArray};
use arrow_schema::{DataType, Field, Schema};

use super::*;
use crate::Reader;
use crate::cell::json_field;

fn schema() -> SchemaRef {
    let number = Field::new("n", DataType::Int64, true);
    Arc::new(Schema::new(vec![
        Field::new("body, or \"text\"", DataType::Utf8, true),
        number,
        json_field("more"),
    ]))
}

fn batch(rows: usize) -> RecordBatch {
    let body: StringArray = (0..rows).map(|i| Some(format!("line {i}\n\"quoted\", ä"))).collect();
    let number: Int64Array = (0..rows).map(|i| (i % 2 == 0).then_some(i as i64)).collect();
    let more: StringArray =
        (0..rows).map(|i| (i != 1).then_some(r#"{"b":[1.0,12345678901234567890123],"a":null}"#)).collect();
    RecordBatch::try_new(schema(), vec![Arc::new(body), Arc::new(number), Arc::new(more)]).unwrap()
}

/// Everything of a file written, as JSONL and as the reader's types.
fn round(format: Format) -> (String, Vec<DataType>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut writer = Writer::new(File::create(&path).unwrap(), format, schema()).unwrap();
    writer.write(&batch(3)).unwrap();
    writer.write(&batch(1)).unwrap();
    writer.finish().unwrap();
    let mut reader = Reader::open(File::open(&path).unwrap(), format, "more", 2).unwrap();
    let kinds = reader.schema().fields().iter().map(|field| field.data_type().clone()).collect();
    let mut lines = Vec::new();
    let mut out = Writer::new(&mut lines, Format::Jsonl, reader.schema().clone()).unwrap();
    while let Some(rows) = reader.next_rows().unwrap() {
        out.write(&rows.batch).unwrap();
    }
    out.finish().unwrap();
    (String::from_utf8(lines).unwrap(), kinds)
}

#[test]
fn what_is_written_reads_as_it_was() {
    let row = |i: usize, n: &str, more: &str| {
        format!(r#"{{"body, or \"text\"":"line {i}\n\"quoted\", ä","n":{n},"more":{more}}}"#) + "\n"
    };
    let more = r#"{"b":[1.0,12345678901234567890123],"a":null}"#;
    let typed = row(0, "0", more) + &row(1, "null", "null") + &row(2, "2", more) + &row(0, "0", more);
    let (text, number) = (DataType::Utf8, DataType::Int64);
    assert_eq!(round(Format::Parquet), (typed.clone(), vec![text.clone(), number.clone(), text.clone()]));
    assert_eq!(round(Format::Jsonl), (typed, vec![text.clone(), number, text.clone()]));
    let spelt = r#""{\"b\":[1.0,12345678901234567890123],\"a\":null}""#;
    let texts =
        row(0, "\"0\"", spelt) + &row(1, "null", "null") + &row(2, "\"2\"", spelt) + &row(0, "\"0\"", spelt);
    for format in [Format::Csv, Format::Tsv] {
        assert_eq!(round(format), (texts.clone(), vec![text.clone(); 3]));
    }
}

/// Bytes and nothing else: what has been written goes nowhere.
struct Sink(u64);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_row_group_is_written_before_it_fills_the_memory() {
    let schema = Arc::new(Schema::new(vec![Field::new("b", DataType::Binary, true)]));
    let mut writer = Writer::new(Sink(0), Format::Parquet, schema.clone()).unwrap();
    // 160 MB that do not compress.
    let (mut seed, mut most) = (1u64, 0);
    for _ in 0..40 {
        let noise = |_| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        };
        let values: Vec<u8> = (0..4 << 20).map(noise).collect();
        let column: BinaryArray = values.chunks(1 << 16).map(Some).collect();
        writer.write(&RecordBatch::try_new(schema.clone(), vec![Arc::new(column)]).unwrap()).unwrap();
        most = most.max(writer.held());
    }
    assert!(most < GROUP_BYTES + (8 << 20), "{most}");
    writer.finish().unwrap();
}

struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_of_writing() {
    for format in Format::ALL {
        let written = Writer::new(Full, format, schema()).and_then(|mut writer| {
            writer.write(&batch(2000))?;
            writer.finish()
        });
        assert!(matches!(written, Err(Error::Write(_))), "{format:?}");
    }
}
