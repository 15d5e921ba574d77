//! `decide --input`: tables in, tables with answers out.

use std::fs::File;
use std::path::Path;

use anemone_table::{Format, Reader, Writer};
use serde_json::{Map, Value};

use crate::support::{anemone, command, shared};

const ASKED: &str = r#"{"mood": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "cross"]},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"cards": "lost or stolen", "other": ""}},
    "lost": {"type": "noul", "instructions": "The user's intent is report lost card."}}"#;

const LOST: &str = r#"{"lost": {"type": "noul", "instructions": "The user's intent is report lost card."}}"#;

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// The same table in another format.
fn convert(from: &str, to: &str) {
    let format = |path: &str| Format::of_path(Path::new(path)).unwrap();
    let mut reader = Reader::open(File::open(from).unwrap(), format(from), "state", 100).unwrap();
    let mut writer = Writer::new(File::create(to).unwrap(), format(to), reader.schema().clone()).unwrap();
    while let Some(rows) = reader.next_rows().unwrap() {
        writer.write(&rows.batch).unwrap();
    }
    writer.finish().unwrap();
}

fn lines(path: &str) -> Vec<Map<String, Value>> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The rows of a table in any format.
fn rows(path: &str) -> Vec<Map<String, Value>> {
    let copy = format!("{path}.read.jsonl");
    convert(path, &copy);
    lines(&copy)
}

/// A line of `--batch` with what its answers are as columns.
fn answered(line: &str, result: &str) -> Map<String, Value> {
    let mut row: Map<String, Value> = serde_json::from_str(line).unwrap();
    let result: Value = serde_json::from_str(result).unwrap();
    for (id, answer) in result["answers"].as_object().unwrap() {
        row.insert(id.clone(), answer[answer["type"].as_str().unwrap()].clone());
        for key in ["confidence", "answer_confidence", "probabilities"] {
            row.extend(answer.get(key).map(|value| (format!("{id}.{key}"), value.clone())));
        }
        row.insert(format!("{id}.act_probability"), answer["action"]["act_probability"].clone());
    }
    for key in ["input_tokens", "state_tokens", "state_tokens_dropped"] {
        row.insert(format!("usage.{key}"), result["usage"][key].clone());
    }
    row.insert("error".to_owned(), Value::Null);
    row
}

/// A JSON value as a CSV cell that is read as JSON, where it is.
fn as_text(value: &Value) -> Value {
    match value {
        Value::Null | Value::String(_) => value.clone(),
        other => other.to_string().into(),
    }
}

#[test]
fn every_format_gives_the_answers_of_batch() {
    let dir = Dir::new();
    let text = r#"{"id": 7, "state": "i lost my card, please send a new one", "tags": ["a", "ü\n"], "x": 0.5}
{"id": 8, "state": "where is, \"my\" parcel", "tags": null, "x": null}
{"id": null, "state": "{\"not\": \"an object\"}", "tags": [], "x": 1e300}
"#;
    let input = dir.file("in.jsonl", text);
    let batch = anemone(&["decide", "-q", "--batch", &input, "-Q", ASKED]).ok().stdout;
    let expected: Vec<Map<String, Value>> =
        text.lines().zip(batch.lines()).map(|(line, result)| answered(line, result)).collect();
    assert_eq!(expected.len(), 3);
    let decide = |from: &str, to: &str| {
        anemone(&["decide", "-q", "--batch-size", "2", "-i", from, "-o", to, "-Q", ASKED]).ok();
    };
    let texts: Vec<Map<String, Value>> = (expected.iter())
        .map(|row| row.iter().map(|(key, value)| (key.clone(), as_text(value))).collect())
        .collect();
    for format in ["jsonl", "parquet", "csv", "tsv"] {
        let out = dir.path(&format!("out.{format}"));
        decide(&input, &out);
        let typed = matches!(format, "jsonl" | "parquet");
        assert_eq!(rows(&out), if typed { expected.clone() } else { texts.clone() }, "{format}");
        // The other way: the table in that format, its answers as JSONL.
        let (table, out) = (dir.path(&format!("in.{format}")), dir.path(&format!("out.{format}.jsonl")));
        if format != "jsonl" {
            convert(&input, &table);
        }
        decide(&table, &out);
        let columns = |row: &Map<String, Value>| {
            let as_read = |(key, value): (&String, &Value)| match key.as_str() {
                "id" | "tags" | "x" if !typed => (key.clone(), as_text(value)),
                _ => (key.clone(), value.clone()),
            };
            row.iter().map(as_read).collect::<Map<String, Value>>()
        };
        assert_eq!(lines(&out), expected.iter().map(columns).collect::<Vec<_>>(), "{format}");
    }
    // Answers of the first run of the same name are in the way.
    let (again, out) = (dir.path("out.parquet"), dir.path("again.csv"));
    anemone(&["decide", "-q", "-i", &again, "-o", &out, "-Q", ASKED])
        .fails(1, &["out.parquet", "column `mood`", "there already", "rename"]);
}

#[test]
fn states_of_any_type_read_as_their_json() {
    let dir = Dir::new();
    let text = r#"{"state": {"body": "i lost my card", "n": [1, 2.50, 12345678901234567890123, null]}}
{"state": 3.0}
{"state": [{"role": "user", "content": "hello"}]}
"#;
    let input = dir.file("in.jsonl", text);
    let (table, out) = (dir.path("in.parquet"), dir.path("out.jsonl"));
    convert(&input, &table);
    let batch = anemone(&["decide", "-q", "--batch", &input, "--preset", "triage"]).ok().stdout;
    anemone(&["decide", "-q", "-i", &table, "-o", &out, "--preset", "triage"]).ok();
    let expected: Vec<_> = text.lines().zip(batch.lines()).map(|(line, r)| answered(line, r)).collect();
    assert_eq!(lines(&out), expected);
}

#[test]
fn rows_without_a_state_or_an_answer_say_so() {
    let dir = Dir::new();
    let input = dir.file("in.csv", "n,body\n1,\n2,i lost my card\n");
    let out = dir.path("out.jsonl");
    let args =
        ["decide", "-i", &input, "--state-column", "body", "-o", &out, "-Q", LOST, "--min-confidence", "1"];
    let ran = anemone(&args).ok();
    assert!(ran.stderr.contains("1 rows have no state and were not asked about"), "{}", ran.stderr);
    let rows = lines(&out);
    assert_eq!(rows[0]["error"], "the state is null");
    assert_eq!(
        (&rows[0]["lost"], &rows[0]["usage.input_tokens"], &rows[0]["n"]),
        (&Value::Null, &Value::Null, &"1".into())
    );
    assert_eq!((&rows[1]["error"], &rows[1]["lost.abstention"]), (&Value::Null, &"abstained".into()));
    // A question that cannot be asked ends the run, or is told in every row.
    let tight =
        ["decide", "-q", "-i", &input, "--state-column", "body", "-o", &out, "-Q", LOST, "--max-len", "8"];
    anemone(&tight).fails(1, &["in.csv, row 2", "0 of 2 options fit 8 tokens"]);
    let ran = anemone(&[&tight[..], &["--keep-going"]].concat());
    assert_eq!(ran.code, Some(1));
    assert!(lines(&out)[1]["error"].as_str().unwrap().contains("0 of 2 options fit 8 tokens"));
}

#[test]
fn tables_of_several_models_name_the_model() {
    let Some(models) = shared("fixtures/laya-tiny") else { return };
    let dir = Dir::new();
    let input = dir.file("in.csv", "state\nThe invoice was billed twice last week.\nDie Rechnung wurde letzte Woche zweimal abgebucht und ich möchte mein Geld zurück.\n");
    let (out, model) =
        (dir.path("out.jsonl"), |name: &str| format!("{name}={}", models.join(name).display()));
    let (english, multilingual) = (model("english"), model("multilingual"));
    anemone(&["decide", "-q", "-m", &english, "-m", &multilingual, "-i", &input, "-o", &out, "-Q", LOST])
        .ok();
    let names: Vec<_> = lines(&out).into_iter().map(|row| row["routing.model"].clone()).collect();
    assert_eq!(names, ["english", "multilingual"]);
}

#[test]
fn faults_of_a_table_are_named() {
    let dir = Dir::new();
    let csv = dir.file("in.csv", "id,body\n1,x\n");
    let parquet = dir.path("in.parquet");
    convert(&dir.file("in.jsonl", "{\"state\": \"x\"}\n"), &parquet);
    let whole = std::fs::read(&parquet).unwrap();
    let cut = dir.file("cut.parquet", &whole[..whole.len() - 9]);
    let broken = dir.file("broken.csv", b"state\nx\n\xff\n");
    let odd = dir.file("in.txt", "state\nx\n");
    let before = dir.names();
    let fails = |input: &str, output: &str, extra: &[&str], fragments: &[&str]| {
        let args = ["decide", "-q", "-Q", LOST, "-i", input, "-o", output];
        anemone(&[&args[..], extra].concat()).fails(1, fragments);
    };
    let out = dir.path("out.csv");
    fails(&csv, &out, &[], &["--input", "no column `state`", "`id`, `body`"]);
    fails(&cut, &out, &[], &["cut.parquet", "not a whole Parquet file", "make it again"]);
    fails(&broken, &out, &[], &["broken.csv", "line 3", "not UTF-8 at its byte 0"]);
    fails(&odd, &out, &[], &["in.txt", "--input-format", "parquet, csv, tsv, jsonl"]);
    fails(&csv, &dir.path("out"), &[], &["--output-format"]);
    fails(&csv, &csv, &["--state-column", "body"], &["this is the file that is read"]);
    fails(&dir.path("none.csv"), &out, &[], &["check the path"]);
    fails(dir.0.path().to_str().unwrap(), &out, &["--input-format", "csv"], &["not a regular file"]);
    fails(&csv, &dir.path("no/out.csv"), &["--state-column", "body"], &["does not exist; create it"]);
    anemone(&["decide", "-i", &csv, "-o", &out]).fails(1, &["no questions", "--preset"]);
    anemone(&["decide", "-i", &csv, "-Q", LOST]).fails(2, &["--output"]);
    anemone(&["decide", "-i", &csv, "-o", &out, "--batch", "-"]).fails(2, &["cannot be used with"]);
    anemone(&["decide", "-i", &odd, "-o", &out, "--input-format", "xls"]).fails(2, &["parquet, csv"]);
    assert_eq!(dir.names(), before, "nothing is left");
    anemone(&["decide", "-q", "-i", &odd, "-o", &out, "--input-format", "csv", "-Q", LOST]).ok();
}

/// Rows whose text is much longer than the model reads.
#[test]
fn a_huge_row_is_answered() {
    let dir = Dir::new();
    let input = dir.file("in.csv", format!("state\n{}\nshort\n", "where is my card ".repeat(60_000)));
    let out = dir.path("out.jsonl");
    anemone(&["decide", "-q", "-i", &input, "-o", &out, "-Q", LOST]).ok();
    let rows = lines(&out);
    assert!(rows[0]["usage.state_tokens_dropped"].as_u64().unwrap() > 100_000);
    assert!(rows[1]["lost"].is_f64());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_nothing() {
    let dir = Dir::new();
    let input = dir
        .file("in.jsonl", format!("{{\"state\": \"x\", \"more\": \"{}\"}}\n", "y".repeat(200_000)).repeat(4));
    for format in ["parquet", "csv", "jsonl"] {
        let out = dir.path(&format!("out.{format}"));
        // Files may have 64 KiB, which the system tells by a signal unless it is not listened to.
        let limited = "ulimit -f 64; trap '' XFSZ; exec \"$@\"";
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", limited, "-", env!("CARGO_BIN_EXE_anemone"), "decide", "-q", "-i", &input]);
        let ran = shell.args(["-o", &out, "-Q", LOST, "--batch-size", "1"]).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        // Parquet compresses what is written here to nothing.
        if format == "parquet" {
            assert!(ran.status.success(), "{said}");
            continue;
        }
        assert_eq!(ran.status.code(), Some(1), "{said}");
        assert!(
            said.starts_with(&format!("error: --output {out}: cannot write it; check the free space")),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(dir.names(), ["in.jsonl", "out.parquet"]);
}

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_nothing() {
    let table = format!("state\n{}", "where is my card please\n".repeat(20_000));
    interrupted("-i", "in.csv", &table, "out.csv");
    let lines = "{\"state\": \"where is my card please\"}\n".repeat(20_000);
    interrupted("-b", "in.jsonl", &lines, "out.jsonl");
}

#[cfg(unix)]
fn interrupted(flag: &str, name: &str, text: &str, out: &str) {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let dir = Dir::new();
    let input = dir.file(name, text);
    let out = dir.path(out);
    let args = ["decide", flag, &input, "-o", &out, "-Q", LOST, "--batch-size", "4"];
    let mut child = command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Once its temporary file is there, the run has begun.
    let begun = || dir.names().iter().any(|name| name.starts_with(".anemone-"));
    for _ in 0..600 {
        if begun() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(begun() && child.try_wait().unwrap().is_none());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("interrupted; --output") && said.contains("is not written"), "{said}");
    assert_eq!(dir.names(), [name]);
}

#[test]
fn an_output_that_is_read_or_open_already_is_refused() {
    let dir = Dir::new();
    let lines = dir.file("in.jsonl", "{\"state\": \"x\"}\n");
    anemone(&["decide", "-b", &lines, "-o", &lines, "-Q", LOST])
        .fails(1, &["--output", "this is the file that is read"]);
    assert_eq!(std::fs::read_to_string(&lines).unwrap(), "{\"state\": \"x\"}\n");
    #[cfg(target_os = "linux")]
    {
        let out = dir.path("out.jsonl");
        let link = dir.path("link.jsonl");
        std::os::unix::fs::symlink("/proc/self/fd/1", &link).unwrap();
        let mut child = command(&["decide", "-i", &lines, "-o", &link, "-Q", LOST]);
        let ran = child.stdout(File::create(&out).unwrap()).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{said}");
        assert!(said.contains("stdout or stderr go there already; name another file"), "{said}");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}

/// The crate that reads Parquet panics on some damaged files; the user sees a line like any other.
#[test]
fn a_parquet_that_contradicts_itself_is_one_line() {
    let dir = Dir::new();
    let parquet = dir.path("in.parquet");
    convert(&dir.file("in.jsonl", "{\"state\": \"x\", \"n\": 1}\n".repeat(40)), &parquet);
    let whole = std::fs::read(&parquet).unwrap();
    let read = |bytes: &[u8]| {
        let mut reader =
            Reader::open(File::open(dir.file("bad.parquet", bytes)).unwrap(), Format::Parquet, "state", 9)?;
        while reader.next_rows()?.is_some() {}
        Ok(())
    };
    let mut found = 0;
    for place in 0..whole.len() {
        for byte in [0, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[place] = byte;
            let read: Result<(), anemone_table::Error> = read(&bytes);
            if found < 3 && read.is_err_and(|error| error.to_string().contains("contradict")) {
                found += 1;
                anemone(&["decide", "-i", &dir.path("bad.parquet"), "-o", &dir.path("out.csv"), "-Q", LOST])
                    .fails(1, &["bad.parquet: not a whole Parquet file", "make it again"]);
            }
        }
    }
    assert!(found > 0, "no damage made it panic: the guard may go");
}
