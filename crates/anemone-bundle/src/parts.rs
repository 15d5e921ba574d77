//! What bundles of every kind hold: packages, host tensors, small files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use anemone_tensor::{Bytes, DType, Shape, Tensor};
use serde::de::DeserializeOwned;

use crate::compression::Compression;
use crate::decision::DECISION_FORMAT;
use crate::manifest::{FORMAT, HostTensor, PackageEntry, Piece};
use crate::{Error, content_hash, file_hash, package_hash};

/// The files of a bundle, as its manifest lists them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) packages: &'a [PackageEntry],
    pub(crate) host: &'a BTreeMap<String, HostTensor>,
    pub(crate) tensors: &'a BTreeMap<String, Vec<usize>>,
    pub(crate) weights: &'a BTreeMap<String, Vec<Piece>>,
    pub(crate) files: &'a BTreeMap<String, String>,
}

/// Reads `manifest.json` of a given format and version.
pub(crate) fn read_manifest<M: DeserializeOwned>(
    dir: &Path,
    format: &'static str,
    version: u64,
) -> Result<M, Error> {
    let not = |problem: String| Error::NotABundle { path: dir.to_path_buf(), problem };
    let path = dir.join("manifest.json");
    let text = fs::read(&path).map_err(|e| {
        not(format!("no manifest.json can be read ({e}); name a directory that `convert` wrote"))
    })?;
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|e| {
        not(format!("manifest.json is not JSON ({e}); copy the bundle again or convert the model again"))
    })?;
    let found = value["format"].as_str();
    if found != Some(format) {
        let what = match found {
            Some(DECISION_FORMAT) => "the bundle of a decision model; use it with `decide` or `validate`",
            Some(FORMAT) => "the bundle of a language model; use it with `run` or `verify`",
            Some("anemone-probe") => {
                "a part of a model, which `probe` wrote; `inspect` shows its model.mlpackage"
            }
            _ => "",
        };
        if !what.is_empty() {
            return Err(Error::Other { path: dir.to_path_buf(), what });
        }
        return Err(not(format!("manifest.json says format {}, expected \"{format}\"", value["format"])));
    }
    match value["format_version"].as_u64() {
        Some(found) if found == version => {}
        found => {
            let found = found.unwrap_or(0);
            return Err(Error::Version { path: dir.to_path_buf(), found, supported: version });
        }
    }
    serde_json::from_value(value)
        .map_err(|e| not(format!("manifest.json does not read: {e}; convert the model again")))
}

/// `format` of a directory's manifest; none where there is no manifest of any kind.
pub(crate) fn format_of(dir: &Path) -> Option<String> {
    let manifest = fs::read(dir.join("manifest.json")).ok()?;
    let value: serde_json::Value = serde_json::from_slice(&manifest).ok()?;
    value["format"].as_str().map(str::to_owned)
}

impl Parts<'_> {
    /// Checks that every file the manifest names is there, in the bundle and of the size it says; reads none.
    pub(crate) fn check_files(&self) -> Result<(), Error> {
        let Self { files, packages, host, .. } = *self;
        for name in files.keys() {
            self.check_name(&format!("files.{name}"), name)?;
        }
        for (i, package) in packages.iter().enumerate() {
            let key = format!("packages[{i}].file");
            self.check_name(&key, &package.file)?;
            if packages.iter().take(i).any(|p| p.file == package.file) {
                return Err(self.wrong(&key, format!("is `{}` a second time", package.file)));
            }
            let path = self.weight_file(&package.file);
            let size = path.metadata().map_or(0, |meta| meta.len());
            if size != package.weight_bytes {
                let problem = format!(
                    "is {}, but {} has {size} bytes",
                    package.weight_bytes,
                    path.strip_prefix(self.dir).unwrap_or(&path).display()
                );
                return Err(self.wrong(&format!("packages[{i}].weight_bytes"), problem));
            }
        }
        for (name, entry) in host {
            let key = |part: &str| format!("host.{name}.{part}");
            if !files.contains_key(&entry.file) {
                let problem = format!("is `{}`, which is not among `files`", entry.file);
                return Err(self.wrong(&key("file"), problem));
            }
            if entry.dtype != DType::F16.name() {
                return Err(self.wrong(&key("dtype"), format!("is `{}`, expected `F16`", entry.dtype)));
            }
            let path = self.path(&entry.file);
            let size = path.metadata().map_err(|source| Error::Io { path, source })?.len();
            let elements = Shape::new(entry.shape.clone()).checked_numel();
            if elements.and_then(|n| n.checked_mul(DType::F16.size())).map(|n| n as u64) != Some(size) {
                let problem =
                    format!("is {:?} of {}, but {} has {size} bytes", entry.shape, entry.dtype, entry.file);
                return Err(self.wrong(&key("shape"), problem));
            }
        }
        Ok(())
    }

    /// Errors for a candidate that its gate has not passed.
    pub(crate) fn check_gate(&self, compression: Option<&Compression>) -> Result<(), Error> {
        let Some(gate) = compression.and_then(|c| c.gate.as_ref()).filter(|gate| !gate.passed) else {
            return Ok(());
        };
        let verdict = match gate.measured {
            Some(measured) => format!(
                "{} {measured:.6} where {} was asked for; its manifest.json lists what failed",
                gate.rule, gate.bar
            ),
            None => format!("its gate, {} {}, did not come to an end", gate.rule, gate.bar),
        };
        Err(Error::Rejected { path: self.dir.to_path_buf(), verdict })
    }

    fn check_name(&self, key: &str, name: &str) -> Result<(), Error> {
        let mut parts = Path::new(name).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(self.wrong(key, format!("names `{name}`, which is not directly in the bundle")));
        }
        if self.path(name).exists() {
            Ok(())
        } else {
            Err(self.wrong(key, format!("names `{name}`, which is not there")))
        }
    }

    /// An error at a key of the manifest.
    pub(crate) fn wrong(&self, key: &str, problem: String) -> Error {
        Error::Manifest { path: self.dir.join("manifest.json"), key: key.into(), problem }
    }

    /// Path of a package's weight file, which one without weights lacks.
    pub(crate) fn weight_file(&self, package: &str) -> PathBuf {
        self.path(package).join("Data/com.apple.CoreML/weights/weight.bin")
    }

    /// Path of a package or file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Reads a small file and compares it with its hash, `None` when the bundle has none of that name.
    pub(crate) fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let Some(expected) = self.files.get(name) else { return Ok(None) };
        let path = self.path(name);
        let bytes = fs::read(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let found = content_hash(&bytes);
        if found == *expected {
            return Ok(Some(bytes));
        }
        Err(Error::Hash { path, expected: expected.clone(), found })
    }

    /// A tensor the host reads itself, mapped.
    pub(crate) fn host_tensor(&self, name: &str) -> Result<Tensor, Error> {
        let key = format!("host.{name}");
        let entry = self.host.get(name).ok_or_else(|| self.wrong(&key, "is absent".into()))?;
        let path = self.path(&entry.file);
        let io = |source| Error::Io { path: path.clone(), source };
        let bytes = Bytes::map(&File::open(&path).map_err(io)?).map_err(io)?;
        Tensor::new(DType::F16, &entry.shape[..], bytes).map_err(|e| self.wrong(&key, format!("has {e}")))
    }

    /// Hashes every file and package and compares with the manifest.
    pub(crate) fn verify_hashes(&self) -> Result<(), Error> {
        let compare = |path: PathBuf, expected: &str, found: String| {
            if found == expected {
                Ok(())
            } else {
                Err(Error::Hash { path, expected: expected.into(), found })
            }
        };
        for (name, expected) in self.files {
            compare(self.path(name), expected, file_hash(&self.path(name))?)?;
        }
        for package in self.packages {
            let path = self.path(&package.file);
            compare(path.clone(), &package.hash, package_hash(&path)?)?;
        }
        Ok(())
    }
}
