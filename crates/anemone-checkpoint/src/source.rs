use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anemone_tensor::Bytes;
use serde_json::{Map, Value};

use crate::Error;
use crate::text::impostor;

/// Largest `config.json` and other small JSON file.
pub(crate) const CONFIG_LIMIT: u64 = 16 << 20;
/// Largest `tokenizer.json`.
pub(crate) const TOKENIZER_LIMIT: u64 = 256 << 20;

/// Where the files of a snapshot come from.
#[derive(Debug)]
pub(crate) enum Source {
    Dir(PathBuf),
    Memory { name: String, files: Vec<(String, Bytes)> },
}

impl Source {
    /// Names of the regular-looking files at the top, sorted. Names that are not UTF-8 are left out.
    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = match self {
            Self::Dir(dir) => {
                let io = |source| Error::Io { action: "list", path: dir.clone(), source };
                let mut names = Vec::new();
                for entry in fs::read_dir(dir).map_err(io)? {
                    names.extend(entry.map_err(io)?.file_name().into_string());
                }
                names
            }
            Self::Memory { files, .. } => files.iter().map(|(name, _)| name.clone()).collect(),
        };
        names.sort_unstable();
        Ok(names)
    }

    /// The snapshot as messages call it.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Dir(dir) => dir.display().to_string(),
            Self::Memory { name, .. } => name.clone(),
        }
    }

    /// A file as messages call it.
    pub(crate) fn file_label(&self, file: &str) -> String {
        match self {
            Self::Dir(dir) => dir.join(file).display().to_string(),
            Self::Memory { name, .. } => format!("{name}/{file}"),
        }
    }

    /// Size of a file; `None` when there is none of that name.
    pub(crate) fn size(&self, file: &str) -> Result<Option<u64>, Error> {
        match self {
            Self::Dir(dir) => self.metadata(&dir.join(file), file),
            Self::Memory { .. } => Ok(self.memory(file).map(|bytes| bytes.len() as u64)),
        }
    }

    /// The whole file, at most `limit` bytes; `None` when there is none of that name.
    pub(crate) fn read(&self, file: &str, limit: u64) -> Result<Option<Bytes>, Error> {
        let Some(found) = self.size(file)? else { return Ok(None) };
        let too_large = |found| Error::TooLarge { file: self.file_label(file), found, limit };
        if found > limit {
            return Err(too_large(found));
        }
        let bytes = match self {
            Self::Dir(dir) => {
                let path = dir.join(file);
                let mut bytes = Vec::new();
                let opened = File::open(&path).and_then(|f| f.take(limit + 1).read_to_end(&mut bytes));
                opened.map_err(|source| Error::Io { action: "read", path, source })?;
                if bytes.len() as u64 > limit {
                    return Err(too_large(bytes.len() as u64));
                }
                Some(Bytes::from(bytes))
            }
            Self::Memory { .. } => self.memory(file).cloned(),
        };
        if let Some(bytes) = &bytes {
            self.check_kind(file, bytes)?;
        }
        Ok(bytes)
    }

    /// The whole file, mapped; the file must exist.
    pub(crate) fn map(&self, file: &str) -> Result<Bytes, Error> {
        let missing = || Error::MissingShard { dir: self.label(), shard: file.to_owned(), tensor: None };
        let bytes = match self {
            Self::Dir(dir) => {
                self.size(file)?.ok_or_else(missing)?;
                let path = dir.join(file);
                let mapped = File::open(&path).and_then(|f| Bytes::map(&f));
                mapped.map_err(|source| Error::Io { action: "map", path, source })?
            }
            Self::Memory { .. } => self.memory(file).cloned().ok_or_else(missing)?,
        };
        self.check_kind(file, &bytes)?;
        Ok(bytes)
    }

    /// A small JSON file that must be an object; `None` when there is none of that name.
    pub(crate) fn object(&self, file: &str) -> Result<Option<Map<String, Value>>, Error> {
        let Some(bytes) = self.read(file, CONFIG_LIMIT)? else { return Ok(None) };
        let label = self.file_label(file);
        let value = serde_json::from_slice(&bytes).map_err(|source| Error::Json {
            file: label.clone(),
            line: source.line(),
            column: source.column(),
            source,
        })?;
        match value {
            Value::Object(map) => Ok(Some(map)),
            other => Err(Error::NotAnObject { file: label, found: kind(&other) }),
        }
    }

    /// A UTF-8 text file; `None` when there is none of that name.
    pub(crate) fn text(&self, file: &str) -> Result<Option<String>, Error> {
        let Some(bytes) = self.read(file, CONFIG_LIMIT)? else { return Ok(None) };
        match String::from_utf8(bytes.to_vec()) {
            Ok(text) => Ok(Some(text)),
            Err(error) => {
                Err(Error::NotUtf8 { file: self.file_label(file), offset: error.utf8_error().valid_up_to() })
            }
        }
    }

    fn memory(&self, file: &str) -> Option<&Bytes> {
        match self {
            Self::Dir(_) => None,
            Self::Memory { files, .. } => files.iter().find(|(name, _)| name == file).map(|(_, bytes)| bytes),
        }
    }

    fn metadata(&self, path: &Path, file: &str) -> Result<Option<u64>, Error> {
        let not_a_file = |found| Err(Error::NotAFile { file: self.file_label(file), found });
        match fs::metadata(path) {
            Ok(meta) if meta.is_file() => Ok(Some(meta.len())),
            Ok(meta) if meta.is_dir() => not_a_file("a directory"),
            Ok(_) => not_a_file("a device or pipe"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if path.symlink_metadata().is_ok() {
                    not_a_file("a dangling link")
                } else {
                    Ok(None)
                }
            }
            Err(source) => Err(Error::Io { action: "read", path: path.to_owned(), source }),
        }
    }

    fn check_kind(&self, file: &str, bytes: &[u8]) -> Result<(), Error> {
        match impostor(bytes) {
            Some((found, remedy)) => Err(Error::Impostor { file: self.file_label(file), found, remedy }),
            None => Ok(()),
        }
    }
}

/// The kind of a JSON value, with its article.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
