use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anemone_tensor::{Bytes, DType, Tensor};

use crate::manifest::{FORMAT, FORMAT_VERSION, Manifest};
use crate::{Error, file_hash, package_hash};

/// A bundle on disk.
#[derive(Debug, Clone)]
pub struct Bundle {
    dir: PathBuf,
    manifest: Manifest,
}

impl Bundle {
    /// Whether a directory looks like a bundle.
    pub fn is_bundle(dir: &Path) -> bool {
        dir.join("manifest.json").is_file()
    }

    /// Reads the manifest and checks that every file it names is there.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let not = |problem: String| Error::NotABundle { path: dir.to_path_buf(), problem };
        let path = dir.join("manifest.json");
        let text = fs::read(&path).map_err(|e| not(format!("no manifest.json can be read ({e})")))?;
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|e| not(format!("manifest.json is not JSON ({e})")))?;
        if value["format"].as_str() != Some(FORMAT) {
            return Err(not(format!("manifest.json says format {}, expected \"{FORMAT}\"", value["format"])));
        }
        match value["format_version"].as_u64() {
            Some(FORMAT_VERSION) => {}
            found => {
                let found = found.unwrap_or(0);
                return Err(Error::Version { path: dir.to_path_buf(), found, supported: FORMAT_VERSION });
            }
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|e| not(format!("manifest.json does not read: {e}")))?;
        let named = manifest.files.keys().chain(manifest.packages.iter().map(|p| &p.file));
        for name in named {
            let plain = Path::new(name).components().all(|c| matches!(c, std::path::Component::Normal(_)));
            if !plain || !dir.join(name).exists() {
                return Err(not(format!("manifest.json names `{name}`, which is not there")));
            }
        }
        Ok(Self { dir: dir.to_path_buf(), manifest })
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Path of a package or file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Reads a small file, `None` when the bundle has none of that name.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        if !self.manifest.files.contains_key(name) {
            return Ok(None);
        }
        let path = self.path(name);
        fs::read(&path).map(Some).map_err(|source| Error::Io { path, source })
    }

    /// A tensor the host reads itself, mapped.
    pub fn host_tensor(&self, name: &str) -> Result<Tensor, Error> {
        let not = |problem: String| Error::NotABundle { path: self.dir.clone(), problem };
        let entry =
            self.manifest.host.get(name).ok_or_else(|| not(format!("it has no host tensor `{name}`")))?;
        let path = self.path(&entry.file);
        let io = |source| Error::Io { path: path.clone(), source };
        let bytes = Bytes::map(&File::open(&path).map_err(io)?).map_err(io)?;
        if entry.dtype != DType::F16.name() {
            return Err(not(format!("host tensor `{name}` is {}, expected F16", entry.dtype)));
        }
        Tensor::new(DType::F16, &entry.shape[..], bytes)
            .map_err(|e| not(format!("host tensor `{name}`: {e}")))
    }

    /// Hashes every file and package and compares with the manifest.
    pub fn verify_hashes(&self) -> Result<(), Error> {
        let compare = |path: PathBuf, expected: &str, found: String| {
            if found == expected {
                Ok(())
            } else {
                Err(Error::Hash { path, expected: expected.into(), found })
            }
        };
        for (name, expected) in &self.manifest.files {
            compare(self.path(name), expected, file_hash(&self.path(name))?)?;
        }
        for package in &self.manifest.packages {
            let path = self.path(&package.file);
            compare(path.clone(), &package.hash, package_hash(&path)?)?;
        }
        Ok(())
    }
}
