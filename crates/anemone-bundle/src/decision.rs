use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anemone_ane::LayaFunctions;
use anemone_checkpoint::DecisionCheckpoint;
use anemone_mil::Calls;
use anemone_tensor::Bytes;
use serde::{Deserialize, Serialize};

use crate::compression::Compression;
use crate::manifest::{HostTensor, PackageEntry, Piece, Source};
use crate::parts::{Parts, format_of, read_manifest};
use crate::{BundleWeights, Error, canary};

/// `format` of the manifest of a decision model's bundle.
pub const DECISION_FORMAT: &str = "anemone-decision-bundle";
/// `format_version` of it written and read here.
pub const DECISION_FORMAT_VERSION: u64 = 1;

/// Small files of a bundle, and what they are in a checkpoint.
pub const DECISION_FILES: [(&str, &str); 4] = [
    ("rl_agent_config.json", "rl_agent_config.json"),
    ("encoder_config.json", "encoder/config.json"),
    ("tokenizer.json", "tokenizer/tokenizer.json"),
    ("tokenizer_config.json", "tokenizer/tokenizer_config.json"),
];

/// `manifest.json` of a decision model's bundle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionManifest {
    /// [`DECISION_FORMAT`].
    pub format: String,
    /// [`DECISION_FORMAT_VERSION`].
    pub format_version: u64,
    /// Version of the program that wrote it.
    pub written_by: String,
    /// What was converted.
    pub source: Source,
    /// Choices of the conversion.
    pub options: DecisionOptions,
    /// How its weights were compressed; absent when they are fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// The functions of the package, shortest first.
    pub functions: Vec<LayaFunctions>,
    /// The one package.
    pub packages: Vec<PackageEntry>,
    /// Tensors the host reads itself.
    pub host: BTreeMap<String, HostTensor>,
    /// Shape of each checkpoint tensor.
    pub tensors: BTreeMap<String, Vec<usize>>,
    /// Where each checkpoint tensor that is no host tensor is stored.
    pub weights: BTreeMap<String, Vec<Piece>>,
    /// Hash of every other file, by name; see [`crate::content_hash`].
    pub files: BTreeMap<String, String>,
}

/// Choices of a decision model's conversion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionOptions {
    /// Queries of a tile of layers with a window; absent when every query meets every key.
    pub tile: Option<usize>,
    /// Most options of a row.
    pub option_slots: usize,
    /// Specification version of the package.
    pub spec_version: i32,
}

/// A decision model's bundle on disk.
#[derive(Debug, Clone)]
pub struct DecisionBundle {
    dir: PathBuf,
    manifest: DecisionManifest,
}

impl DecisionBundle {
    /// Whether a directory has the manifest of one, of whatever version.
    pub fn is_at(dir: &Path) -> bool {
        format_of(dir).is_some_and(|format| format == DECISION_FORMAT)
    }

    /// Reads the manifest and checks that every file it names is there, in the bundle and of the size it says, and that its
    /// functions are one for each length; reads none of the files. A candidate that its gate has not passed is refused.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let bundle = Self::open_candidate(dir)?;
        bundle.parts().check_gate(bundle.manifest.compression.as_ref())?;
        Ok(bundle)
    }

    /// [`DecisionBundle::open`] of a candidate too, to judge it or to look at it.
    pub fn open_candidate(dir: &Path) -> Result<Self, Error> {
        let manifest: DecisionManifest = read_manifest(dir, DECISION_FORMAT, DECISION_FORMAT_VERSION)?;
        let bundle = Self { dir: dir.to_path_buf(), manifest };
        bundle.parts().check_files()?;
        bundle.check()?;
        Ok(bundle)
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |key: &str, problem: String| Err(self.parts().wrong(key, problem));
        let DecisionManifest { packages, functions, .. } = &self.manifest;
        let [package] = &packages[..] else {
            return wrong("packages", format!("has {} entries, expected one", packages.len()));
        };
        if functions.is_empty() {
            return wrong("functions", "is empty".into());
        }
        for (i, pair) in functions.windows(2).enumerate() {
            if pair[0].length >= pair[1].length {
                let (a, b) = (pair[0].length, pair[1].length);
                return wrong(
                    &format!("functions[{}].length", i + 1),
                    format!("is {b} after {a}, expected a larger one"),
                );
            }
        }
        for (i, function) in functions.iter().enumerate() {
            for (key, name) in [("name", Some(&function.name)), ("packed", function.packed.as_ref())] {
                if let Some(name) = name.filter(|name| !package.functions.contains_key(*name)) {
                    let problem = format!("is `{name}`, which packages[0] does not have");
                    return wrong(&format!("functions[{i}].{key}"), problem);
                }
            }
        }
        Ok(())
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its manifest.
    pub fn manifest(&self) -> &DecisionManifest {
        &self.manifest
    }

    /// The package.
    pub fn package(&self) -> PathBuf {
        self.dir.join(&self.manifest.packages[0].file)
    }

    /// Reads a small file and compares it with its hash, `None` when the bundle has none of that name.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        self.parts().file(name)
    }

    /// Recorded calls of its functions, as [`crate::Bundle::calls`] has them.
    pub fn calls(&self) -> Result<Option<Calls>, Error> {
        canary::read(&self.dir)
    }

    /// Puts recorded calls beside the manifest, in place of others.
    pub fn write_calls(&self, calls: &Calls) -> Result<(), Error> {
        canary::write(&self.dir, calls)
    }

    /// The checkpoint the bundle stands for: its small files, each compared with its hash, and its tensors as fp16.
    pub fn checkpoint(&self) -> Result<DecisionCheckpoint, Error> {
        let mut files = Vec::new();
        for (kept, name) in DECISION_FILES {
            let bytes = self.file(kept)?.ok_or_else(|| {
                let key = format!("files.{kept}");
                self.parts().wrong(&key, "is absent".into())
            })?;
            files.push((name.to_owned(), Bytes::from(bytes)));
        }
        let name = self.dir.file_name().unwrap_or(self.dir.as_os_str()).to_string_lossy();
        let weights = Arc::new(BundleWeights::open_decision(self)?);
        Ok(DecisionCheckpoint::with_weights(&name, files, weights)?)
    }

    /// [`DecisionBundle::checkpoint`] of a bundle whose packages and files all have their hashes, for engines that read its weights.
    pub fn verified_checkpoint(&self) -> Result<DecisionCheckpoint, Error> {
        self.verify_hashes()?;
        self.checkpoint()
    }

    /// Hashes every file and package and compares with the manifest.
    pub fn verify_hashes(&self) -> Result<(), Error> {
        self.parts().verify_hashes()
    }

    pub(crate) fn parts(&self) -> Parts<'_> {
        let DecisionManifest { files, packages, host, tensors, weights, .. } = &self.manifest;
        Parts { dir: &self.dir, packages, host, tensors, weights, files }
    }
}
