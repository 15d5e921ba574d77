//! GGUF: one file with metadata, tokenizer and tensors, read as the snapshot it was made from.
//!
//! [`GgufFile`] is the file as it stands. [`Checkpoint::from_gguf`](crate::Checkpoint::from_gguf) shows it with the names and keys
//! a Hugging Face snapshot has, so that nothing beyond this module knows the format.

mod config;
mod file;
mod metadata;
mod names;
mod tokenizer;
mod weights;
mod write;

use std::sync::Arc;

use anemone_tensor::Bytes;
use serde_json::Value;

pub use file::{GgufFile, GgufTensor, TensorType};
pub use metadata::{Metadata, MetadataValue};
pub use write::{GgufPlan, GgufValue, GgufWriter};

use crate::Error;
use weights::GgufWeights;

/// A GGUF file as the files and tensors of a snapshot.
pub(crate) struct Snapshot {
    pub(crate) files: Vec<(String, Bytes)>,
    pub(crate) weights: Arc<GgufWeights>,
}

/// Reads a GGUF file of a supported architecture.
pub(crate) fn snapshot(label: &str, bytes: &Bytes) -> Result<Snapshot, Error> {
    read(GgufFile::parse(label, bytes)?)
}

fn read(file: GgufFile) -> Result<Snapshot, Error> {
    let metadata = file.metadata();
    if let Some(parts) = metadata.count("split.count")?
        && parts > 1
    {
        return Err(metadata.wrong(
            "split.count",
            format!("is {parts}: the file is a part of a model; merge the parts into one file first"),
        ));
    }
    let names = names::map(&file)?;
    let config = config::read(&file, &names)?;
    let mut files = vec![("config.json".to_owned(), json(&Value::Object(config)))];
    if let Some((tokenizer, settings)) = tokenizer::read(&metadata)? {
        files.push(("tokenizer.json".to_owned(), json(&tokenizer)));
        files.push(("tokenizer_config.json".to_owned(), json(&settings)));
    }
    Ok(Snapshot { files, weights: Arc::new(GgufWeights::new(file, names)) })
}

fn json(value: &Value) -> Bytes {
    Bytes::from(value.to_string().into_bytes())
}

#[cfg(test)]
mod tests;
