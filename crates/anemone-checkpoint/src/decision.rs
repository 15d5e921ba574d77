use std::path::Path;
use std::sync::Arc;

use anemone_tensor::Bytes;
use serde_json::{Map, Value};

use crate::checkpoint::{locate, name_of};
use crate::shards::{Found, Shards};
use crate::source::{Source, TOKENIZER_LIMIT};
use crate::{Error, FileInfo, Weights};

const AGENT: &str = "rl_agent_config.json";
const ENCODER: &str = "encoder/config.json";
const TOKENIZER: &str = "tokenizer/tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer/tokenizer_config.json";

/// A decision model's snapshot: `rl_agent_config.json`, `model.safetensors`, `encoder/config.json` and `tokenizer/`.
#[derive(Debug)]
pub struct DecisionCheckpoint {
    source: Source,
    name: String,
    agent_config: Map<String, Value>,
    encoder_config: Map<String, Value>,
    tokenizer_config: Map<String, Value>,
    weights: Arc<dyn Weights>,
    files: Vec<FileInfo>,
}

/// Where the tensors are.
enum Stored<'a> {
    /// In the snapshot: the file named, or all there are.
    Here(Option<&'a str>),
    Elsewhere(Arc<dyn Weights>),
}

impl DecisionCheckpoint {
    /// Whether a directory, or a file in it, belongs to a decision model.
    pub fn is_at(path: &Path) -> bool {
        let dir = if path.is_dir() { Some(path) } else { path.parent() };
        dir.is_some_and(|dir| dir.join(AGENT).is_file())
    }

    /// Opens a snapshot directory, or the one that holds the given `rl_agent_config.json` or safetensors file.
    ///
    /// Weights are mapped, so the files must not be changed while the checkpoint is in use.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if path.file_name().is_some_and(|name| name == AGENT)
            && let Some(dir) = path.parent()
        {
            return Self::open(if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
        }
        let (dir, only) = locate(path)?;
        let name = name_of(&dir);
        Self::read(Source::Dir(dir), name, Stored::Here(only.as_deref()))
    }

    /// A snapshot compiled into the program: file names and contents, as they would be in a directory.
    pub fn from_static(name: &str, files: &[(&'static str, &'static [u8])]) -> Result<Self, Error> {
        let files = files.iter().map(|&(file, bytes)| (file.to_owned(), Bytes::from_static(bytes))).collect();
        Self::from_bytes(name, files)
    }

    /// A snapshot held in memory: file names and contents, as they would be in a directory.
    pub fn from_bytes(name: &str, files: Vec<(String, Bytes)>) -> Result<Self, Error> {
        Self::read(Source::Memory { name: name.to_owned(), files }, name.to_owned(), Stored::Here(None))
    }

    /// A snapshot whose small files are held in memory and whose tensors come from elsewhere, as those of a converted model do.
    pub fn with_weights(
        name: &str,
        files: Vec<(String, Bytes)>,
        weights: Arc<dyn Weights>,
    ) -> Result<Self, Error> {
        let source = Source::Memory { name: name.to_owned(), files };
        Self::read(source, name.to_owned(), Stored::Elsewhere(weights))
    }

    fn read(source: Source, name: String, stored: Stored<'_>) -> Result<Self, Error> {
        let object = |file: &str, remedy| {
            source.object(file)?.ok_or_else(|| Error::MissingFile {
                dir: source.label(),
                file: file.to_owned(),
                remedy,
            })
        };
        let agent_config =
            object(AGENT, "pass the directory of a decision model, or download that file into it")?;
        let encoder_config = object(ENCODER, "download it from the model's page, with its folder")?;
        let tokenizer_config =
            object(TOKENIZER_CONFIG, "download it from the model's page, with its folder")?;
        let (weights, weight_files): (Arc<dyn Weights>, _) = match stored {
            Stored::Elsewhere(weights) => (weights, Vec::new()),
            Stored::Here(only) => {
                let Found { shards, files } = Shards::open(&source, only)?;
                (Arc::new(shards), files)
            }
        };
        let mut files = Vec::new();
        let small = [AGENT, ENCODER, TOKENIZER, TOKENIZER_CONFIG].map(str::to_owned);
        for file in small.iter().chain(&weight_files) {
            if let Some(bytes) = source.size(file)? {
                files.push(FileInfo { name: file.clone(), bytes });
            }
        }
        Ok(Self { source, name, agent_config, encoder_config, tokenizer_config, weights, files })
    }

    /// Name to show: `org/name` for a hub cache, else the directory's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The snapshot directory; `None` when the files are in memory.
    pub fn dir(&self) -> Option<&Path> {
        match &self.source {
            Source::Dir(dir) => Some(dir),
            Source::Memory { .. } => None,
        }
    }

    /// `rl_agent_config.json` as it stands, keys in file order.
    pub fn agent_config(&self) -> &Map<String, Value> {
        &self.agent_config
    }

    /// `encoder/config.json` as it stands, keys in file order.
    pub fn encoder_config(&self) -> &Map<String, Value> {
        &self.encoder_config
    }

    /// `tokenizer/tokenizer_config.json` as it stands.
    pub fn tokenizer_config(&self) -> &Map<String, Value> {
        &self.tokenizer_config
    }

    /// The bytes of `tokenizer/tokenizer.json`; errors when the snapshot has none.
    pub fn tokenizer_json(&self) -> Result<Bytes, Error> {
        self.source.read(TOKENIZER, TOKENIZER_LIMIT)?.ok_or_else(|| Error::MissingFile {
            dir: self.source.label(),
            file: TOKENIZER.to_owned(),
            remedy: "download it from the model's page, with its folder",
        })
    }

    /// The bytes of one of [`DecisionCheckpoint::files`] that is no weight file.
    pub fn file(&self, name: &str) -> Result<Option<Bytes>, Error> {
        self.source.read(name, TOKENIZER_LIMIT)
    }

    /// The tensors.
    pub fn weights(&self) -> Arc<dyn Weights> {
        Arc::clone(&self.weights)
    }

    /// The files in use, weights last.
    pub fn files(&self) -> &[FileInfo] {
        &self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let file = |name: &str, text: &str| (name.to_owned(), Bytes::from(text.as_bytes().to_vec()));
        let open =
            |files: Vec<(String, Bytes)>| DecisionCheckpoint::from_bytes("m", files).unwrap_err().to_string();
        let mut files = Vec::new();
        for name in [AGENT, ENCODER, TOKENIZER_CONFIG] {
            let error = open(files.clone());
            assert!(error.contains(name), "{error}");
            files.push(file(name, "{}"));
        }
        assert!(open(files).contains("safetensors"));
        assert!(open(vec![file(AGENT, "[]")]).contains("an array"));
    }
}
