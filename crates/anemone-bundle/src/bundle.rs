use std::path::{Path, PathBuf};

use anemone_mil::Calls;
use anemone_tensor::Tensor;

use crate::manifest::{FORMAT, FORMAT_VERSION, Manifest};
use crate::parts::{Parts, read_manifest};
use crate::{Error, canary};

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

    /// Reads the manifest and checks that every file it names is there, in the bundle and of the size it says; reads none.
    ///
    /// A candidate that its gate has not passed is refused.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let bundle = Self::open_candidate(dir)?;
        bundle.parts().check_gate(bundle.manifest.compression.as_ref())?;
        Ok(bundle)
    }

    /// [`Bundle::open`] of a candidate too, to judge it or to look at it.
    pub fn open_candidate(dir: &Path) -> Result<Self, Error> {
        let manifest: Manifest = read_manifest(dir, FORMAT, FORMAT_VERSION)?;
        let bundle = Self { dir: dir.to_path_buf(), manifest };
        bundle.parts().check_files()?;
        Ok(bundle)
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

    /// Reads a small file and compares it with its hash, `None` when the bundle has none of that name.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        self.parts().file(name)
    }

    /// A tensor the host reads itself, mapped.
    pub fn host_tensor(&self, name: &str) -> Result<Tensor, Error> {
        self.parts().host_tensor(name)
    }

    /// Recorded calls of its functions; `None` when there are none. Those of another bundle, or without what was given, are refused.
    pub fn calls(&self) -> Result<Option<Calls>, Error> {
        canary::read(&self.dir)
    }

    /// Puts recorded calls beside the manifest, in place of others.
    pub fn write_calls(&self, calls: &Calls) -> Result<(), Error> {
        canary::write(&self.dir, calls)
    }

    /// Hashes every file and package and compares with the manifest.
    pub fn verify_hashes(&self) -> Result<(), Error> {
        self.parts().verify_hashes()
    }

    pub(crate) fn parts(&self) -> Parts<'_> {
        let Manifest { files, packages, host, tensors, weights, .. } = &self.manifest;
        Parts { dir: &self.dir, packages, host, tensors, weights, files }
    }
}
