use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anemone_tensor::Bytes;
use serde_json::{Map, Value};

use crate::generation::eos_ids;
use crate::select::{INDEX, SINGLE};
use crate::shards::{Found, Shards};
use crate::source::{Source, TOKENIZER_LIMIT};
use crate::{Error, GenerationConfig, Weights, gguf, tokenizer};

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";

/// A model snapshot: a directory as the hub lays it out, or the same files in memory.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    name: String,
    config: Map<String, Value>,
    generation: GenerationConfig,
    eos: Vec<u32>,
    tokenizer_config: Option<Map<String, Value>>,
    chat_template: Option<String>,
    weights: Arc<dyn Weights>,
    files: Vec<FileInfo>,
    weight_bytes: u64,
    /// The file everything was read from, if it is one.
    gguf: Option<PathBuf>,
}

/// A file the checkpoint is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// Name within the snapshot.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

impl Checkpoint {
    /// Opens a snapshot directory, the one that holds the given `config.json` or safetensors file, or a GGUF file.
    ///
    /// Naming a safetensors file that the directory's own rule would not choose makes it the weights.
    /// Weights are mapped, so the files must not be changed while the checkpoint is in use.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if is_gguf(path) {
            return Self::read_gguf(path);
        }
        let (dir, only) = locate(path)?;
        let name = name_of(&dir);
        Self::read(Source::Dir(dir), name, only.as_deref())
    }

    fn read_gguf(path: &Path) -> Result<Self, Error> {
        let mapped = fs::File::open(path).and_then(|file| Bytes::map(&file));
        let bytes = mapped.map_err(|source| Error::Io { action: "map", path: path.to_owned(), source })?;
        Ok(Self { gguf: Some(path.to_owned()), ..Self::from_gguf(&path.display().to_string(), &bytes)? })
    }

    /// A GGUF file in memory, which messages call `label`.
    pub fn from_gguf(label: &str, bytes: &Bytes) -> Result<Self, Error> {
        let size = bytes.len() as u64;
        let gguf::Snapshot { files, weights } = gguf::snapshot(label, bytes)?;
        let path = Path::new(label);
        let part = |part: Option<&std::ffi::OsStr>| part.map(|n| n.to_string_lossy().into_owned());
        let name = part(path.file_stem()).unwrap_or_default();
        let source = Source::Memory { name: label.to_owned(), files };
        let read = Self::with(source, name, weights, &[])?;
        let files = vec![FileInfo { name: part(path.file_name()).unwrap_or_default(), bytes: size }];
        Ok(Self { files, weight_bytes: size, ..read })
    }

    /// A snapshot compiled into the program: file names and contents, as they would be in a directory.
    pub fn from_static(name: &str, files: &[(&'static str, &'static [u8])]) -> Result<Self, Error> {
        let files = files.iter().map(|&(file, bytes)| (file.to_owned(), Bytes::from_static(bytes))).collect();
        Self::from_bytes(name, files)
    }

    /// A snapshot held in memory: file names and contents, as they would be in a directory.
    pub fn from_bytes(name: &str, files: Vec<(String, Bytes)>) -> Result<Self, Error> {
        Self::read(Source::Memory { name: name.to_owned(), files }, name.to_owned(), None)
    }

    /// A directory with a snapshot's small files, whose tensors lie elsewhere.
    pub fn with_weights(dir: &Path, weights: Arc<dyn Weights>) -> Result<Self, Error> {
        let source = Source::Dir(dir.to_path_buf());
        Self::with(source, name_of(dir), weights, &[])
    }

    /// A file of the snapshot by name, at most 256 MiB; `None` when there is none.
    pub fn file(&self, name: &str) -> Result<Option<Bytes>, Error> {
        self.source.read(name, TOKENIZER_LIMIT)
    }

    fn read(source: Source, name: String, only: Option<&str>) -> Result<Self, Error> {
        // A missing config is the better message for a directory that is no snapshot at all.
        if source.size(CONFIG)?.is_none() {
            return Err(missing_config(&source));
        }
        let Found { shards, files } = Shards::open(&source, only)?;
        Self::with(source, name, Arc::new(shards), &files)
    }

    fn with(
        source: Source,
        name: String,
        weights: Arc<dyn Weights>,
        weight_files: &[String],
    ) -> Result<Self, Error> {
        let config = source.object(CONFIG)?.ok_or_else(|| missing_config(&source))?;
        let generation_map = source.object(GENERATION)?.unwrap_or_default();
        let generation = GenerationConfig::read(&source.file_label(GENERATION), &generation_map)?;
        let mut eos = eos_ids(&source.file_label(CONFIG), &config)?;
        eos.extend(generation.eos_token_ids.iter().flatten());
        eos.sort_unstable();
        eos.dedup();
        let tokenizer_config = tokenizer::config(&source)?;
        let chat_template = tokenizer::chat_template(&source, tokenizer_config.as_ref())?;
        let (files, weight_bytes) = list_files(&source, weight_files)?;
        Ok(Self {
            source,
            name,
            config,
            generation,
            eos,
            tokenizer_config,
            chat_template,
            weights,
            files,
            weight_bytes,
            gguf: None,
        })
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

    /// The GGUF file it was read from; `None` when it is a snapshot of several files.
    pub fn gguf(&self) -> Option<&Path> {
        self.gguf.as_deref()
    }

    /// The directory or the file it was read from; `None` when the files are in memory.
    pub fn path(&self) -> Option<&Path> {
        self.gguf().or_else(|| self.dir())
    }

    /// `config.json` as it stands, keys in file order.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// `config.json` as messages call it, for errors about its keys.
    pub fn config_label(&self) -> String {
        self.source.file_label(CONFIG)
    }

    /// The tensors.
    pub fn weights(&self) -> Arc<dyn Weights> {
        Arc::clone(&self.weights)
    }

    /// `generation_config.json`; all `None` when there is no such file.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation
    }

    /// The bytes of `tokenizer.json`; errors when the snapshot has none.
    pub fn tokenizer_json(&self) -> Result<Bytes, Error> {
        self.source.read(TOKENIZER, TOKENIZER_LIMIT)?.ok_or_else(|| Error::MissingFile {
            dir: self.source.label(),
            file: TOKENIZER.to_owned(),
            remedy: "download it from the model's page, or pass token ids instead of text",
        })
    }

    /// `tokenizer_config.json`, with the bos, eos, pad and unk tokens that only `special_tokens_map.json` names.
    pub fn tokenizer_config(&self) -> Option<&Map<String, Value>> {
        self.tokenizer_config.as_ref()
    }

    /// The model's own Jinja chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Ids that end generation by `config.json` or `generation_config.json`, ascending.
    pub fn eos_token_ids(&self) -> Vec<u32> {
        self.eos.clone()
    }

    /// The files in use, weights last.
    pub fn files(&self) -> &[FileInfo] {
        &self.files
    }

    /// Size of all weight files in bytes.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }
}

/// Only the weights of a directory (or one safetensors file), for snapshots whose configuration is not `config.json`.
pub fn open_weights(path: &Path) -> Result<Arc<dyn Weights>, Error> {
    let (dir, only) = locate(path)?;
    Ok(Arc::new(Shards::open(&Source::Dir(dir), only.as_deref())?.shards))
}

/// The directory a path means, and the one weight file it insists on.
pub(crate) fn locate(path: &Path) -> Result<(PathBuf, Option<String>), Error> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoSuchPath { path: path.to_owned() });
        }
        Err(source) => return Err(Error::Io { action: "open", path: path.to_owned(), source }),
    };
    if meta.is_dir() {
        return Ok((path.to_owned(), None));
    }
    let unsupported = |found, remedy| Err(Error::Unsupported { path: path.to_owned(), found, remedy });
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(file) = path.file_name().and_then(|name| name.to_str()) else {
        return unsupported("the file's name is not UTF-8", "pass the directory instead");
    };
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    match extension.as_str() {
        _ if file == CONFIG || file == INDEX || file == SINGLE => Ok((parent.to_owned(), None)),
        "safetensors" if file.contains("-of-") => Ok((parent.to_owned(), None)),
        "safetensors" => Ok((parent.to_owned(), Some(file.to_owned()))),
        "gguf" => {
            unsupported("a GGUF file, which only language models have here", "pass a snapshot directory")
        }
        "bin" | "pt" | "pth" => {
            unsupported("PyTorch pickles are not supported", "convert the checkpoint to safetensors")
        }
        _ => unsupported("not a model", "pass a model directory, its `config.json` or a safetensors file"),
    }
}

/// Whether a path is a file that says it is a GGUF, by its name or its first bytes.
fn is_gguf(path: &Path) -> bool {
    let named = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let begins = || {
        let mut magic = [0; 4];
        fs::File::open(path).and_then(|mut f| f.read_exact(&mut magic)).is_ok() && magic == *b"GGUF"
    };
    path.is_file() && (named || begins())
}

fn missing_config(source: &Source) -> Error {
    let has = |file: &str| source.names().is_ok_and(|names| names.iter().any(|n| n == file));
    let remedy = if has("rl_agent_config.json") {
        "this is a decision model (`rl_agent_config.json`), not a language model: use it with `decide`"
    } else if has("adapter_config.json") {
        "this is an adapter: merge it into its base model first"
    } else {
        "pass the directory that holds the model's `config.json`, or download that file into it"
    };
    Error::MissingFile { dir: source.label(), file: CONFIG.to_owned(), remedy }
}

/// `org/name` for `…/models--org--name/snapshots/commit`, else the directory's own name.
pub(crate) fn name_of(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let part = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let snapshots = dir.parent().filter(|p| part(p) == "snapshots").and_then(Path::parent);
    let repo = snapshots.map(part).and_then(|n| n.strip_prefix("models--").map(|n| n.replacen("--", "/", 1)));
    repo.unwrap_or_else(|| part(&dir))
}

fn list_files(source: &Source, weights: &[String]) -> Result<(Vec<FileInfo>, u64), Error> {
    const OTHERS: [&str; 7] = [
        CONFIG,
        GENERATION,
        TOKENIZER,
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        INDEX,
    ];
    let mut files = Vec::new();
    for name in OTHERS {
        if let Some(bytes) = source.size(name)? {
            files.push(FileInfo { name: name.to_owned(), bytes });
        }
    }
    let mut total = 0u64;
    for name in weights {
        let bytes = source.size(name)?.unwrap_or(0);
        total += bytes;
        files.push(FileInfo { name: name.clone(), bytes });
    }
    Ok((files, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_hub_layout_or_the_directory() {
        assert_eq!(name_of(Path::new("/c/models--Org--My--Model/snapshots/abc")), "Org/My--Model");
        assert_eq!(name_of(Path::new("/m/lfm")), "lfm");
    }
}
