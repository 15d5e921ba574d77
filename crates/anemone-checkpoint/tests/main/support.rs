use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView, serialize};

/// The shared test data, when this checkout sits beside it.
pub(crate) fn shared() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    if dir.is_dir() {
        return Some(dir);
    }
    // Not `eprintln!`, which the test runner swallows.
    let _ = writeln!(std::io::stderr(), "skipped: shared/ is not present");
    None
}

/// A safetensors file with an f32 tensor of `n` elements under each name.
pub(crate) fn weights(tensors: &[(&str, usize)]) -> Vec<u8> {
    let data: Vec<(String, Vec<u8>)> = tensors
        .iter()
        .map(|&(name, n)| (name.to_owned(), (0..n).flat_map(|i| (i as f32 * 0.5).to_le_bytes()).collect()))
        .collect();
    let views = data.iter().map(|(name, bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes).unwrap())
    });
    serialize(views, None).unwrap()
}

/// A safetensors file of the given header and as many zero bytes of data.
pub(crate) fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

pub(crate) const CONFIG: &str = r#"{"model_type": "lfm2", "eos_token_id": [7, 2]}"#;

/// A directory that opens: one weight file, a config and a tokenizer.
pub(crate) fn good() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "config.json", CONFIG);
    put(dir.path(), "generation_config.json", r#"{"eos_token_id": 7, "temperature": 0.3}"#);
    put(dir.path(), "tokenizer.json", "{}");
    put(dir.path(), "model.safetensors", weights(&[("a", 4), ("b", 2)]));
    dir
}

pub(crate) fn put(dir: &Path, name: &str, content: impl AsRef<[u8]>) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}
