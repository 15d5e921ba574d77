use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anemone_checkpoint::{Checkpoint, open_weights, scan_non_finite};
use anemone_tensor::{DType, Shape};
use serde_json::Value;

use crate::support::{good, put, shared, weights};

/// The fixture's own record: tensor names and shapes.
fn recorded(dir: &Path) -> (BTreeMap<String, Shape>, String) {
    let goldens: Value = serde_json::from_slice(&fs::read(dir.join("goldens.json")).unwrap()).unwrap();
    let shapes = goldens["tensor_names"].as_object().unwrap().iter().map(|(name, dims)| {
        let dims: Vec<usize> =
            dims.as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
        (name.clone(), Shape::new(dims))
    });
    (shapes.collect(), goldens["weight_dtype"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn every_fixture_holds_the_recorded_tensors() {
    let Some(shared) = shared() else { return };
    for (name, dtype, shards, eos) in [
        ("lfm2-moe-tiny", DType::F32, 1, 7),
        ("lfm2-tiny-tied", DType::F32, 1, 7),
        ("lfm2-tiny-untied-sharded", DType::BF16, 3, 7),
        ("lfm3-tiny", DType::F32, 1, 1007),
        ("lfm3-tiny-options-sharded", DType::BF16, 2, 1007),
    ] {
        let dir = shared.join("fixtures/lfm-tiny").join(name);
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let weights = checkpoint.weights();
        let (recorded, _) = recorded(&dir);
        assert_eq!(weights.names(), recorded.keys().cloned().collect::<Vec<_>>(), "{name}");
        for (tensor, shape) in &recorded {
            let entry = weights.entry(tensor).unwrap();
            let expected = if tensor.ends_with("expert_bias") { DType::F32 } else { dtype };
            assert_eq!((entry.dtype, &entry.shape), (expected, shape), "{name} {tensor}");
            let read = weights.tensor(tensor).unwrap();
            assert_eq!(read.shape(), shape);
            assert!(read.bytes().is_mapped(), "{name} {tensor} was copied");
            assert_eq!(scan_non_finite(&read), None);
        }
        assert_eq!(checkpoint.name(), name);
        assert_eq!(checkpoint.dir(), Some(dir.as_path()));
        assert_eq!(checkpoint.eos_token_ids(), [eos]);
        assert_eq!(checkpoint.generation_config().pad_token_id, Some(eos - 7));
        assert!(checkpoint.chat_template().unwrap().contains("<|im_start|>"));
        assert_eq!(checkpoint.tokenizer_config().unwrap()["eos_token"], "<|im_end|>");
        assert!(checkpoint.tokenizer_json().unwrap().starts_with(b"{"));
        let weight_files: Vec<_> =
            checkpoint.files().iter().filter(|file| file.name.ends_with(".safetensors")).collect();
        assert_eq!(weight_files.len(), shards);
        assert_eq!(weight_files.iter().map(|file| file.bytes).sum::<u64>(), checkpoint.weight_bytes());
    }
}

#[test]
fn the_shared_models_open_or_say_why_not() {
    let Some(shared) = shared() else { return };
    let stories = Checkpoint::open(&shared.join("models/stories-lfm2")).unwrap();
    assert!(stories.weights().entry("model.embed_tokens.weight").is_some());
    assert!(stories.chat_template().is_some());

    let laya = shared.join("models/laya-demo");
    let error = Checkpoint::open(&laya).unwrap_err().to_string();
    assert!(error.contains("`config.json` is missing; this is a decision model"), "{error}");
    assert!(!open_weights(&laya).unwrap().names().is_empty());
}

#[test]
fn data_is_what_the_reference_reader_sees() {
    let Some(shared) = shared() else { return };
    let path = shared.join("fixtures/lfm-tiny/lfm2-moe-tiny/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let weights = Checkpoint::open(&path).unwrap().weights();
    assert_eq!(weights.names().len(), reference.len());
    for (name, view) in reference.tensors() {
        assert_eq!(&**weights.tensor(&name).unwrap().bytes(), view.data(), "{name}");
    }
}

#[test]
fn a_directory_can_be_named_by_one_of_its_files() {
    let dir = good();
    put(dir.path(), "other.safetensors", weights(&[("c", 1)]));
    for file in ["", "config.json", "model.safetensors"] {
        let checkpoint = Checkpoint::open(&dir.path().join(file)).unwrap();
        assert_eq!(checkpoint.weights().names(), ["a", "b"], "{file}");
        assert_eq!(checkpoint.eos_token_ids(), [2, 7]);
    }
    let other = Checkpoint::open(&dir.path().join("other.safetensors")).unwrap();
    assert_eq!(other.weights().names(), ["c"]);
    assert_eq!(other.files().last().unwrap().name, "other.safetensors");
}

#[test]
fn memory_and_directory_are_the_same_checkpoint() {
    let dir = good();
    let read = |name: &str| -> &'static [u8] { fs::read(dir.path().join(name)).unwrap().leak() };
    // One byte in front makes every float unaligned.
    let shifted: &'static [u8] = [&[0u8][..], read("model.safetensors")].concat().leak();
    let files = [("config.json", read("config.json")), ("model.safetensors", &shifted[1..])];
    let checkpoint = Checkpoint::from_static("demo", &files).unwrap();
    assert_eq!((checkpoint.name(), checkpoint.dir()), ("demo", None));
    assert_eq!(checkpoint.weights().tensor("a").unwrap().to_f32().unwrap(), [0.0, 0.5, 1.0, 1.5]);
    let error = checkpoint.tokenizer_json().unwrap_err().to_string();
    assert!(error.starts_with("demo: `tokenizer.json` is missing; download it"), "{error}");
}

#[test]
fn shards_are_right_where_the_index_is_not() {
    let dir = good();
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    put(dir.path(), "model-00001-of-00002.safetensors", weights(&[("a", 1), ("extra", 1)]));
    put(dir.path(), "model-00002-of-00002.safetensors", weights(&[("b", 1)]));
    let open = || Checkpoint::open(dir.path()).unwrap().weights().names();
    assert_eq!(open(), ["a", "b", "extra"], "no index is needed");
    // The places are swapped and `extra` is not mentioned.
    let swapped = r#"{"weight_map": {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}}"#;
    put(dir.path(), "model.safetensors.index.json", swapped);
    assert_eq!(open(), ["a", "b", "extra"]);
    // The index is of an older three-file upload, but every tensor it names is here.
    let stale = r#"{"weight_map": {"a": "model-00001-of-00003.safetensors", "b": "model-00003-of-00003.safetensors"}}"#;
    put(dir.path(), "model.safetensors.index.json", stale);
    assert_eq!(open(), ["a", "b", "extra"]);
    // Copies under other names are left alone.
    put(dir.path(), "consolidated.safetensors", weights(&[("a", 1)]));
    assert_eq!(open(), ["a", "b", "extra"]);
}
