use std::fs;
use std::path::Path;

use anemone_checkpoint::{Checkpoint, Error};

use crate::support::{CONFIG, good, put, raw, weights};

const HEADER: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#;

fn shards(dir: &Path, index: &str) {
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    put(dir, "model-00001-of-00002.safetensors", weights(&[("a", 1)]));
    put(dir, "model-00002-of-00002.safetensors", weights(&[("b", 1)]));
    if !index.is_empty() {
        put(dir, "model.safetensors.index.json", index);
    }
}

fn weight_file(content: impl AsRef<[u8]> + 'static) -> Breakage {
    Box::new(move |dir| put(dir, "model.safetensors", &content))
}

fn other_file(name: &'static str, content: &'static str) -> Breakage {
    Box::new(move |dir| put(dir, name, content))
}

type Breakage = Box<dyn Fn(&Path)>;

#[allow(clippy::too_many_lines, reason = "one table")]
fn cases() -> Vec<(&'static str, Breakage, &'static [&'static str])> {
    let header = |header: &'static str, data: usize| weight_file(raw(header, data));
    let length = |length: u64| {
        let mut bytes = raw(HEADER, 12);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        weight_file(bytes)
    };
    let cut = |at: usize| {
        let mut bytes = raw(HEADER, 12);
        bytes.truncate(at);
        weight_file(bytes)
    };
    let whole = raw(HEADER, 12).len();
    vec![
        ("zero bytes", cut(0), &["model.safetensors: 0 bytes", "at byte 0; download it again"]),
        ("cut in the length", cut(5), &["5 bytes, but a safetensors file starts with 8 bytes"]),
        (
            "cut in the header",
            cut(40),
            &["header length at byte 0 is", "32 bytes follow", "download it again"],
        ),
        (
            "cut before the data",
            cut(8 + HEADER.len()),
            &["tensor `a` ends at byte", "truncated, download it again"],
        ),
        (
            "cut in the data",
            cut(whole - 1),
            &["tensor `b` ends at byte", "but the file has", "download it again"],
        ),
        (
            "header length 0",
            length(0),
            &["bad safetensors header at byte 8", "EOF", "download the file again"],
        ),
        (
            "header length huge",
            length(u64::MAX),
            &["is 18446744073709551615", "the file is truncated or not safetensors"],
        ),
        ("header length past the end", length(4096), &["header length at byte 0 is 4096"]),
        (
            "header length too small",
            length(20),
            &["bad safetensors header at byte 2", "download the file again"],
        ),
        (
            "header not JSON",
            header("not json at all", 0),
            &["bad safetensors header at byte", "expected ident"],
        ),
        (
            "header not UTF-8",
            weight_file([&8u64.to_le_bytes()[..], b"{\"\xff\":{}}"].concat()),
            &["bad safetensors header at byte"],
        ),
        ("header an array", header("[]", 0), &["expected an object of tensors"]),
        (
            "entry without shape",
            header(r#"{"w":{"dtype":"F32","data_offsets":[0,4]}}"#, 4),
            &["(tensor `w`)", "missing field `shape`"],
        ),
        (
            "negative dimension",
            header(r#"{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4),
            &["(tensor `w`)", "expected u64"],
        ),
        (
            "overlap",
            header(
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
                12,
            ),
            &["tensor `b`: data at byte", "overlaps `a`", "the header is corrupt, download the file again"],
        ),
        (
            "gap",
            header(
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#,
                12,
            ),
            &["tensor `b`: data at byte", "leaves a gap after `a`"],
        ),
        (
            "past the end",
            header(r#"{"a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}"#, 12),
            &["tensor `a` ends at byte", "but the file has"],
        ),
        (
            "reversed offsets",
            header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4),
            &["tensor `a`: data offsets [4, 0] run backwards"],
        ),
        (
            "shape and length disagree",
            header(r#"{"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,4]}}"#, 4),
            &["tensor `a`: shape [3] of BF16 needs 6 bytes, but data offsets [0, 4] hold 4"],
        ),
        (
            "shape overflows",
            header(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,4]}}"#, 4),
            &["tensor `a`: the number of elements of shape [4294967296, 4294967296, 2] overflows"],
        ),
        (
            "duplicate tensor",
            header(
                r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
                0,
            ),
            &["(tensor `a`)", "the name occurs twice"],
        ),
        (
            "trailing bytes",
            weight_file(raw(HEADER, 15)),
            &["3 bytes follow the last tensor, from byte", "download it again"],
        ),
        (
            "name with a newline",
            header(r#"{"a\nb":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4),
            &["tensor `a\\nb`"],
        ),
        (
            "LFS pointer",
            weight_file("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
            &["this is a Git LFS pointer", "run `git lfs pull`"],
        ),
        (
            "web page",
            weight_file("<!DOCTYPE html><html></html>"),
            &["this is a web page", "download the file again, with a token"],
        ),
        ("gated refusal", weight_file("Access to model a/b is restricted."), &["this is a hub's refusal"]),
        (
            "pickle under a wrong name",
            weight_file("PK\x03\x04 pickle"),
            &["this is a zip archive", "convert it to safetensors"],
        ),
        (
            "no weights",
            Box::new(|dir| fs::remove_file(dir.join("model.safetensors")).unwrap()),
            &["no safetensors weights", "`config.json`", "download `model.safetensors`"],
        ),
        (
            "PyTorch only",
            Box::new(|dir| fs::rename(dir.join("model.safetensors"), dir.join("pytorch_model.bin")).unwrap()),
            &["no safetensors weights", "convert the PyTorch files to safetensors"],
        ),
        (
            "GGUF only",
            Box::new(|dir| fs::rename(dir.join("model.safetensors"), dir.join("m.gguf")).unwrap()),
            &["no safetensors weights", "pass one of the GGUF files itself"],
        ),
        (
            "adapter only",
            Box::new(|dir| {
                fs::rename(dir.join("model.safetensors"), dir.join("adapter_model.safetensors")).unwrap();
            }),
            &["this is an adapter: merge it into its base model first"],
        ),
        (
            "two unnumbered files",
            Box::new(|dir| {
                fs::rename(dir.join("model.safetensors"), dir.join("x.safetensors")).unwrap();
                put(dir, "y.safetensors", weights(&[("c", 1)]));
            }),
            &[
                "cannot tell which files hold the weights: `x.safetensors`, `y.safetensors`",
                "name the file in the path",
            ],
        ),
        (
            "missing shard without index",
            Box::new(|dir| {
                shards(dir, "");
                fs::remove_file(dir.join("model-00001-of-00002.safetensors")).unwrap();
            }),
            &["shard `model-00001-of-00002.safetensors` is missing; download that file again"],
        ),
        (
            "missing shard with index",
            Box::new(|dir| {
                shards(
                    dir,
                    r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#,
                );
                fs::remove_file(dir.join("model-00002-of-00002.safetensors")).unwrap();
            }),
            &["shard `model-00002-of-00002.safetensors` is missing (tensor `b`); download that file again"],
        ),
        (
            "index names absent files",
            Box::new(|dir| {
                fs::remove_file(dir.join("model.safetensors")).unwrap();
                put(dir, "model.safetensors.index.json", r#"{"weight_map": {"a": "x.safetensors"}}"#);
            }),
            &["shard `x.safetensors` is missing; download that file again"],
        ),
        (
            "index promises too much",
            Box::new(|dir| {
                shards(
                    dir,
                    r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}}"#,
                );
            }),
            &[
                "index.json: tensor `c` is not in `model-00002-of-00002.safetensors`",
                "download the shard and the index again",
            ],
        ),
        (
            "index of absent shards beside one file",
            other_file(
                "model.safetensors.index.json",
                r#"{"weight_map": {"z": "model-00001-of-00002.safetensors"}}"#,
            ),
            &["shard `model-00001-of-00002.safetensors` is missing (tensor `z`)"],
        ),
        (
            "tensor in two shards",
            Box::new(|dir| {
                shards(dir, "");
                put(dir, "model-00002-of-00002.safetensors", weights(&[("a", 1)]));
            }),
            &[
                "tensor `a` is in both `model-00001-of-00002.safetensors` and `model-00002-of-00002.safetensors`",
                "remove the file left over",
            ],
        ),
        (
            "two sets of shards",
            Box::new(|dir| {
                shards(dir, "");
                put(dir, "model-00001-of-00003.safetensors", weights(&[("a", 1)]));
            }),
            &["cannot tell which files hold the weights", "keep one set of shards"],
        ),
        (
            "index not JSON",
            other_file("model.safetensors.index.json", "{"),
            &["index.json: EOF", "line 1 column 1", "download it again"],
        ),
        (
            "index without map",
            other_file("model.safetensors.index.json", "{}"),
            &["key `weight_map` is `absent or empty`, expected an object"],
        ),
        (
            "index leaves the directory",
            other_file("model.safetensors.index.json", r#"{"weight_map": {"a": "../../etc/passwd"}}"#),
            &["key `weight_map.a` is", "expected the name of a file in the same directory"],
        ),
        (
            "config missing",
            Box::new(|dir| fs::remove_file(dir.join("config.json")).unwrap()),
            &["`config.json` is missing; pass the directory that holds"],
        ),
        (
            "config not JSON",
            other_file("config.json", "{\n  \"a\": nope\n}"),
            &["config.json: expected", "at line 2 column", "correct the file there"],
        ),
        ("config empty", other_file("config.json", ""), &["config.json: EOF", "line 1 column 0"]),
        (
            "config an array",
            other_file("config.json", "[1]"),
            &["config.json: expected a JSON object at line 1, found an array"],
        ),
        (
            "config nested too deep",
            Box::new(|dir| put(dir, "config.json", "[".repeat(100_000))),
            &["recursion limit exceeded"],
        ),
        (
            "config an LFS pointer",
            other_file("config.json", "version https://git-lfs.github.com/spec/v1\n"),
            &["config.json: this is a Git LFS pointer"],
        ),
        (
            "config too large",
            Box::new(|dir| {
                fs::File::create(dir.join("config.json")).unwrap().set_len((16 << 20) + 1).unwrap();
            }),
            &["config.json: 16777217 bytes, and at most 16777216 are read"],
        ),
        (
            "config a directory",
            Box::new(|dir| {
                fs::remove_file(dir.join("config.json")).unwrap();
                fs::create_dir(dir.join("config.json")).unwrap();
            }),
            &["config.json: not a readable regular file (a directory)"],
        ),
        (
            "bad eos id",
            other_file("config.json", r#"{"eos_token_id": -1}"#),
            &["config.json: key `eos_token_id` is `-1`, expected a token id"],
        ),
        (
            "bad sampling default",
            other_file("generation_config.json", r#"{"top_p": 3}"#),
            &["generation_config.json: key `top_p` is `3`, expected a number in [0, 1]; correct or remove"],
        ),
        (
            "tokenizer config not JSON",
            other_file("tokenizer_config.json", "nope"),
            &["tokenizer_config.json: expected"],
        ),
        (
            "chat template not UTF-8",
            Box::new(|dir| put(dir, "chat_template.jinja", b"ab\xff")),
            &["chat_template.jinja: not UTF-8 at byte 2"],
        ),
        (
            "weights a directory",
            Box::new(|dir| {
                fs::remove_file(dir.join("model.safetensors")).unwrap();
                fs::create_dir(dir.join("model.safetensors")).unwrap();
            }),
            &["model.safetensors: not a readable regular file (a directory)"],
        ),
    ]
}

#[test]
fn every_broken_directory_is_named_with_its_remedy() {
    let cases = cases();
    assert!(cases.len() >= 25);
    for (case, breakage, fragments) in cases {
        let dir = good();
        Checkpoint::open(dir.path()).unwrap();
        breakage(dir.path());
        let error = Checkpoint::open(dir.path()).expect_err(case).to_string();
        for fragment in fragments {
            assert!(error.contains(fragment), "{case}: {fragment:?} not in {error:?}");
        }
        assert!(!error.contains('\n'), "{case}: {error:?} is not one line");
        assert!(error.len() < 800, "{case}: {} bytes", error.len());
    }
}

#[test]
fn paths_that_are_not_snapshots() {
    let dir = good();
    let open = |path: &Path| Checkpoint::open(path).unwrap_err().to_string();
    let at = |name: &str| dir.path().join(name);
    assert!(open(&at("nowhere")).contains("no such file or directory; pass a model directory, or a hub id"));
    put(dir.path(), "m.gguf", "GGUF");
    assert!(open(&at("m.gguf")).contains("m.gguf: the version of 4 bytes where 0 are left, at byte 4"));
    put(dir.path(), "pytorch_model.bin", "x");
    assert!(open(&at("pytorch_model.bin")).contains("convert the checkpoint to safetensors"));
    assert!(open(&at("tokenizer.json")).contains("not a model; pass a model directory"));
    assert!(open(tempfile::tempdir().unwrap().path()).contains("`config.json` is missing"));
    let bare = tempfile::tempdir().unwrap();
    put(bare.path(), "config.json", CONFIG);
    assert!(open(bare.path()).contains("no safetensors weights; found `config.json`"));
}

#[test]
fn a_tokenizer_is_missed_only_when_asked_for() {
    let dir = good();
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap().tokenizer_json().unwrap_err().to_string();
    assert!(error.contains("`tokenizer.json` is missing; download it from the model's page"), "{error}");
}

#[test]
fn unsupported_types_are_listed_and_refused_on_reading() {
    let dir = good();
    let header = r#"{"q":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},"n":{"dtype":"NEW","shape":[4],"data_offsets":[4,5]}}"#;
    put(dir.path(), "model.safetensors", raw(header, 5));
    let weights = Checkpoint::open(dir.path()).unwrap().weights();
    assert_eq!(weights.names(), ["n", "q"]);
    assert_eq!(weights.entry("q"), None);
    assert_eq!(weights.stored_dtype("q").as_deref(), Some("F8_E4M3"));
    let error = weights.tensor("q").unwrap_err();
    assert!(matches!(error, Error::UnsupportedDType { .. }));
    assert!(error.to_string().contains("tensor `q` has element type `F8_E4M3`"), "{error}");
    let absent = weights.tensor("zzz").unwrap_err().to_string();
    assert!(absent.contains("tensor `zzz` is not in"), "{absent}");
}

#[cfg(unix)]
#[test]
fn unix_oddities() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    let outer = tempfile::tempdir().unwrap();
    let odd = outer.path().join(OsStr::from_bytes(b"mod\xffel"));
    fs::rename(good().keep(), &odd).unwrap();
    put(&odd, "notes", "x");
    fs::rename(odd.join("notes"), odd.join(OsStr::from_bytes(b"\xfe.txt"))).unwrap();
    assert_eq!(Checkpoint::open(&odd).unwrap().weights().names(), ["a", "b"]);
    let file = odd.join(OsStr::from_bytes(b"\xfe.safetensors"));
    fs::copy(odd.join("model.safetensors"), &file).unwrap();
    assert!(Checkpoint::open(&file).unwrap_err().to_string().contains("the file's name is not UTF-8"));

    let dir = good();
    fs::remove_file(dir.path().join("config.json")).unwrap();
    symlink("gone.json", dir.path().join("config.json")).unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap_err().to_string().contains("(a dangling link)"));
    fs::remove_file(dir.path().join("config.json")).unwrap();
    symlink("/dev/zero", dir.path().join("config.json")).unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap_err().to_string().contains("(a device or pipe)"));

    let locked = good();
    let config = locked.path().join("config.json");
    fs::set_permissions(&config, fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser reads everything; everyone else must be told the file and the remedy.
    if fs::read(&config).is_err() {
        let error = Checkpoint::open(locked.path()).unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("check the permissions"), "{error}");
    }
}
