use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::file::properties::WriterProperties;
use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array,
    Float64Array, Int64Array, LargeStringArray, NullArray, StringArray, StringViewArray, StructArray,
    UInt64Array,
};
use arrow_schema::{DataType, Field};
use proptest::prelude::*;

use super::*;
use crate::Writer;

fn open(bytes: &[u8], format: Format, state: &str, rows: usize) -> Result<Reader> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    Reader::open(file, format, state, rows)
}

/// The states of all rows, as compact JSON.
fn states(bytes: &[u8], format: Format, state: &str) -> Result<Vec<String>> {
    let mut reader = open(bytes, format, state, 2)?;
    let mut all = Vec::new();
    while let Some(rows) = reader.next_rows()? {
        assert_eq!(rows.before, all.len() as u64);
        all.extend(rows.states.iter().map(Value::to_compact));
    }
    Ok(all)
}

fn fails(bytes: &[u8], format: Format, state: &str, fragments: &[&str]) {
    let error = states(bytes, format, state).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    for fragment in fragments {
        assert!(error.contains(fragment), "no {fragment:?} in {error}");
    }
}

fn parquet(columns: Vec<(&str, ArrayRef)>, properties: WriterProperties) -> Vec<u8> {
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn every_type_of_parquet_reads_as_its_json() {
    let mut tags = ListBuilder::new(StringBuilder::new());
    tags.append_value([Some("x"), None]);
    tags.append_null();
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    map.keys().append_value("k");
    map.values().append_value("v");
    map.append(true).unwrap();
    map.append(false).unwrap();
    let inner: Vec<(Arc<Field>, ArrayRef)> = vec![
        (Arc::new(Field::new("b", DataType::Int64, true)), Arc::new(Int64Array::from(vec![Some(1), None]))),
        (Arc::new(Field::new("a", DataType::Utf8, true)), Arc::new(StringArray::from(vec!["é\"", "y"]))),
    ];
    let dictionary: DictionaryArray<Int32Type> = [Some("red"), None].into_iter().collect();
    let columns: Vec<(&str, ArrayRef, [&str; 2])> = vec![
        ("utf8", Arc::new(StringArray::from(vec![Some("a"), None])), ["\"a\"", "null"]),
        (
            "large",
            Arc::new(LargeStringArray::from(vec![Some("{\"a\": 1}"), None])),
            [r#""{\"a\": 1}""#, "null"],
        ),
        (
            "view",
            Arc::new(StringViewArray::from(vec![Some("a longer text than fits a view"), None])),
            ["\"a longer text than fits a view\"", "null"],
        ),
        ("dictionary", Arc::new(dictionary), ["\"red\"", "null"]),
        ("null", Arc::new(NullArray::new(2)), ["null", "null"]),
        ("bool", Arc::new(BooleanArray::from(vec![true, false])), ["true", "false"]),
        ("u64", Arc::new(UInt64Array::from(vec![u64::MAX, 0])), ["18446744073709551615", "0"]),
        ("f32", Arc::new(Float32Array::from(vec![0.1, 1.0])), ["0.1", "1.0"]),
        ("f64", Arc::new(Float64Array::from(vec![0.1, 1e16])), ["0.1", "1e+16"]),
        ("date", Arc::new(Date32Array::from(vec![0, 1])), ["\"1970-01-01\"", "\"1970-01-02\""]),
        (
            "decimal",
            Arc::new(Decimal128Array::from(vec![1230, -5]).with_precision_and_scale(9, 2).unwrap()),
            ["\"12.30\"", "\"-0.05\""],
        ),
        ("list", Arc::new(tags.finish()), [r#"["x",null]"#, "null"]),
        ("map", Arc::new(map.finish()), [r#"{"k":"v"}"#, "null"]),
        ("struct", Arc::new(StructArray::from(inner)), [r#"{"b":1,"a":"é\""}"#, r#"{"b":null,"a":"y"}"#]),
    ];
    for compression in
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())]
    {
        let properties = WriterProperties::builder().set_compression(compression).build();
        let file = parquet(columns.iter().map(|(n, c, _)| (*n, Arc::clone(c))).collect(), properties);
        for (name, _, expected) in &columns {
            assert_eq!(states(&file, Format::Parquet, name).unwrap(), *expected, "{name}");
        }
    }
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![b"a".as_slice(), b"b"]));
    let file = parquet(vec![("raw", bytes)], WriterProperties::default());
    fails(&file, Format::Parquet, "raw", &["`raw`", "Binary", "give a column of texts"]);
}

/// A Parquet file of `groups` row groups of `rows` texts.
fn grouped(groups: usize, rows: usize, text: &str) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(rows))
        .set_dictionary_enabled(false)
        .build();
    let body: StringArray = (0..groups * rows).map(|i| Some(format!("{i} {text}"))).collect();
    parquet(vec![("body", Arc::new(body))], properties)
}

#[test]
fn row_groups_follow_one_another() {
    let all = states(&grouped(50, 3, "x"), Format::Parquet, "body").unwrap();
    assert_eq!(all, (0..150).map(|i| format!("\"{i} x\"")).collect::<Vec<_>>());
}

#[test]
fn a_truncated_parquet_is_no_parquet() {
    let file = grouped(5, 40, "some text");
    assert_eq!(states(&file, Format::Parquet, "body").unwrap().len(), 200);
    for end in (0..file.len()).step_by(37) {
        fails(&file[..end], Format::Parquet, "body", &["not a whole Parquet file"]);
    }
    fails(b"body\nx\n", Format::Parquet, "body", &["not a whole Parquet file", "name its format"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_damaged_parquet_is_an_error_or_a_table(at in any::<prop::sample::Index>(), byte in any::<u8>(), tail in any::<bool>()) {
        let mut file = grouped(2, 20, "some text");
        // The footer, where lengths and places stand, is hit as often as the rest.
        let from = if tail { file.len() - 500 } else { 0 };
        let place = from + at.index(file.len() - from);
        file[place] = byte;
        let _ = states(&file, Format::Parquet, "body");
    }
}

#[test]
fn csv_columns_are_texts_and_nothing_is_guessed() {
    let file = "\u{FEFF}id,body\r\n007,\"a, \"\"b\"\"\nc\"\r\n1.50,\r\n,true\r\n".as_bytes();
    assert_eq!(states(file, Format::Csv, "body").unwrap(), [r#""a, \"b\"\nc""#, "null", "\"true\""]);
    assert_eq!(states(file, Format::Csv, "id").unwrap(), ["\"007\"", "\"1.50\"", "null"]);
    assert_eq!(states(b"a\tb\nx y\t1\n", Format::Tsv, "a").unwrap(), ["\"x y\""]);
    assert_eq!(states(b"body\n", Format::Csv, "body").unwrap(), [""; 0]);
    fails(b"a,b\n1,2\n3\n", Format::Csv, "a", &["line 3", "1 values for 2 columns"]);
    fails(b"a,b\n1,2\n\"x\ny\",\xff\n", Format::Csv, "a", &["line 3", "value 2 is not UTF-8 at its byte 0"]);
    fails(b"a,\xff\n1,2\n", Format::Csv, "a", &["not UTF-8"]);
    fails(b"", Format::Csv, "a", &["must name the columns"]);
    fails(b"a,b,a\n", Format::Csv, "a", &["two columns are called `a`"]);
    fails(b"a,b\n1,2\n", Format::Csv, "body", &["no column `body`", "`a`, `b`"]);
    fails(b"a,b\n1,2\n3,\"x\n4,y\n", Format::Csv, "a", &["line 3", "quotation mark is open to the end"]);
    fails(b"a\n\"x", Format::Csv, "a", &["line 2", "quotation mark is open"]);
    fails(b"\xef\xbb\xbfa\n\"x\r\n", Format::Csv, "a", &["line 2", "quotation mark is open"]);
    fails(b"\"a,b\n1,2\n", Format::Csv, "a", &["its first line", "quotation mark is open"]);
    fails(b"\n\n", Format::Csv, "a", &["must name the columns"]);
    for closed in [&b"a\n\"x\n\""[..], b"a\n\"x\n\"\n", b"a\n\"x\n\"\r\n", b"a\n\"x\n\"\r"] {
        assert_eq!(states(closed, Format::Csv, "a").unwrap(), [r#""x\n""#]);
    }
    assert_eq!(states(b"a\nb\"c", Format::Csv, "a").unwrap(), [r#""b\"c""#]);
    let open = [b"a\n\"".as_slice(), &vec![b'x'; ROW_LIMIT + (1 << 20)]].concat();
    fails(&open, Format::Csv, "a", &["more than 16 MiB", "quotation mark"]);
}

#[test]
fn jsonl_states_are_exact() {
    let lines = r#"{"state": {"b": 1, "a": 123456789012345678901234567890}, "n": 1, "x": 1}

{"n": 2.5, "state": "text", "big": 9007199254740993}
{"state": null, "x": "y", "big": 0.5}
{"n": null}"#;
    let all = states(lines.as_bytes(), Format::Jsonl, "state").unwrap();
    assert_eq!(all, [r#"{"b":1,"a":123456789012345678901234567890}"#, "\"text\"", "null", "null"]);
    let reader = open(lines.as_bytes(), Format::Jsonl, "state", 9).unwrap();
    let kinds: Vec<String> =
        reader.schema().fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect();
    assert_eq!(kinds, ["state Utf8", "n Float64", "x Utf8", "big Utf8"]);
    assert_eq!(states(lines.as_bytes(), Format::Jsonl, "big").unwrap()[1..3], ["9007199254740993", "0.5"]);
    // As a state a number is what it is spelt.
    assert_eq!(states(lines.as_bytes(), Format::Jsonl, "n").unwrap(), ["1", "2.5", "null", "null"]);

    fails(b"{\"a\": 1}\n[1]\n", Format::Jsonl, "a", &["line 2", "a list, expected an object"]);
    fails(b"{\"a\": 1}\n\n{\"a\" 1}\n", Format::Jsonl, "a", &["line 3", "byte"]);
    fails(b"{\"a\": \"\xff\"}\n", Format::Jsonl, "a", &["line 1", "not UTF-8 at byte 7"]);
    fails(b"{\"a\": 1}\n", Format::Jsonl, "b", &["no column `b`", "`a`"]);
    fails(b"", Format::Jsonl, "b", &["no column `b`; the columns are none"]);
    let wide: Vec<String> = (0..=COLUMN_LIMIT).map(|i| format!("{{\"k{i}\": 1}}\n")).collect();
    fails(wide.concat().as_bytes(), Format::Jsonl, "k0", &["different keys", "one object"]);
    let long = format!("{{\"a\": \"{}\"}}", "x".repeat(ROW_LIMIT));
    fails(long.as_bytes(), Format::Jsonl, "a", &["line 1", "more than 16 MiB"]);
}

#[test]
fn a_huge_row_is_read_up_to_the_limit() {
    let text = "x".repeat(ROW_LIMIT - 100);
    let column: ArrayRef = Arc::new(StringArray::from(vec!["a", &text]));
    let file = parquet(vec![("body", column)], WriterProperties::default());
    assert_eq!(states(&file, Format::Parquet, "body").unwrap()[1].len(), text.len() + 2);
    assert_eq!(states(format!("body\n{text}\n").as_bytes(), Format::Csv, "body").unwrap().len(), 1);
    let column: ArrayRef = Arc::new(StringArray::from(vec!["a".to_owned(), "x".repeat(ROW_LIMIT + 1)]));
    let file = parquet(vec![("body", column)], WriterProperties::default());
    fails(&file, Format::Parquet, "body", &["row 2", "more than 16 MiB", "cut it"]);
}

/// A file that counts what is read of it.
struct Counted(Cursor<Vec<u8>>, Arc<AtomicU64>);

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl Seek for Counted {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.1.store(0, Ordering::Relaxed);
        self.0.seek(to)
    }
}

/// Batches are read when they are asked for, and end by rows or bytes: after each, no more of the file than it and one buffer has
/// been read, and no batch is larger than the bound and a row.
#[test]
fn a_batch_at_a_time_is_in_memory() {
    let row = 1 << 20;
    let lines: Vec<u8> =
        (0..100).flat_map(|_| format!("{{\"a\": \"{}\"}}\n", "x".repeat(row)).into_bytes()).collect();
    let table: Vec<u8> = b"a\n"
        .iter()
        .copied()
        .chain((0..100).flat_map(|_| format!("{}\n", "x".repeat(row)).into_bytes()))
        .collect();
    let counter = || Arc::new(AtomicU64::new(0));
    let (json_read, csv_read) = (counter(), counter());
    let json = Counted(Cursor::new(lines), Arc::clone(&json_read));
    let csv = Counted(Cursor::new(table), Arc::clone(&csv_read));
    let sources: [(Box<dyn Source>, Arc<AtomicU64>); 2] = [
        (Box::new(jsonl::JsonRows::open(json, "a", 4096).unwrap()), json_read),
        (Box::new(csv::CsvRows::open(csv, Format::Csv, 4096).unwrap()), csv_read),
    ];
    for (mut source, read) in sources {
        let mut given = 0;
        while let Some(batch) = source.next().unwrap() {
            given += batch.num_rows();
            let size = batch.get_array_memory_size();
            assert!(size <= 2 * (BATCH_BYTES + row), "{size}");
            assert!(read.load(Ordering::Relaxed) <= ((given + 1) * (row + 20)) as u64 + (1 << 17));
        }
        assert_eq!(given, 100);
    }
    // Parquet: as many rows as the bound holds at their mean size.
    let mut reader = open(&grouped(4, 25, &"x".repeat(row)), Format::Parquet, "a", 4096);
    assert!(reader.is_err(), "the column is `body`");
    reader = open(&grouped(4, 25, &"x".repeat(row)), Format::Parquet, "body", 4096);
    let mut reader = reader.unwrap();
    let mut given = 0;
    while let Some(rows) = reader.next_rows().unwrap() {
        assert!(rows.batch.num_rows() <= BATCH_BYTES / row, "{}", rows.batch.num_rows());
        given += rows.batch.num_rows();
    }
    assert_eq!(given, 100);
}

#[test]
fn what_jsonl_holds_reaches_every_format() {
    let lines =
        "{\"state\": {\"z\": [1, 2.50]}, \"ok\": true, \"none\": null}\n{\"state\": [1], \"ok\": null}\n";
    for format in Format::ALL {
        let mut reader = open(lines.as_bytes(), Format::Jsonl, "state", 1).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        let mut writer = Writer::new(&mut file, format, reader.schema().clone()).unwrap();
        while let Some(rows) = reader.next_rows().unwrap() {
            writer.write(&rows.batch).unwrap();
        }
        writer.finish().unwrap();
        file.rewind().unwrap();
        let mut again = Reader::open(file, format, "state", 10).unwrap();
        let rows = again.next_rows().unwrap().unwrap();
        let spelt: Vec<String> = rows.states.iter().map(|state| state.rendered().replace(' ', "")).collect();
        assert_eq!(spelt, [r#"{"z":[1,2.5]}"#, "[1]"], "{format:?}");
        assert!(again.schema().index_of("none").is_ok());
    }
}
