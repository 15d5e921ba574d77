use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::indexed_files;
use super::spec::is_commit;
use crate::Error;
use crate::select::{Selection, select};

/// One repository's folder in the shared cache.
#[derive(Debug)]
pub(super) struct RepoCache {
    root: PathBuf,
    repo: String,
    folder: PathBuf,
}

impl RepoCache {
    pub(super) fn new(root: &Path, repo: &str) -> Self {
        let folder = root.join(format!("models--{}", repo.replace('/', "--")));
        Self { root: root.to_owned(), repo: repo.to_owned(), folder }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn repo(&self) -> &str {
        &self.repo
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// The snapshot of a revision when its configuration and weights are there, else what is missing.
    ///
    /// Without a tokenizer it counts as complete only when nothing more can be fetched.
    pub(super) fn complete(&self, revision: &str, offline: bool) -> Result<Result<PathBuf, String>, Error> {
        let commit = if is_commit(revision) {
            revision.to_owned()
        } else {
            match fs::read_to_string(self.folder.join("refs").join(revision)) {
                Ok(commit) if is_commit(commit.trim()) => commit.trim().to_owned(),
                _ => return Ok(Err("nothing was downloaded yet".to_owned())),
            }
        };
        let snapshot = self.snapshot(&commit);
        if !snapshot.is_dir() {
            return Ok(Err("nothing was downloaded yet".to_owned()));
        }
        let has = |file: &str| snapshot.join(file).exists();
        if !has("config.json") && !has("rl_agent_config.json") {
            return Ok(Err("`config.json` is missing".to_owned()));
        }
        let mut names = Vec::new();
        let io = |source| Error::Io { action: "list", path: snapshot.clone(), source };
        for entry in fs::read_dir(&snapshot).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.path().exists() {
                names.extend(entry.file_name().into_string());
            }
        }
        let indexed = indexed_files(&snapshot)?;
        match select(&names, indexed.as_deref()) {
            Selection::Files(files) => {
                let absent = indexed.iter().flatten().find(|f| !names.contains(f));
                if let Some(absent) = absent.filter(|_| !files.iter().any(|f| f == crate::select::SINGLE)) {
                    return Ok(Err(format!("`{absent}` is missing")));
                }
            }
            Selection::MissingShard(shard) => return Ok(Err(format!("`{shard}` is missing"))),
            _ => return Ok(Err("the weights are missing".to_owned())),
        }
        if !offline && !has("tokenizer.json") && !has("tokenizer/tokenizer.json") {
            return Ok(Err("the tokenizer is missing".to_owned()));
        }
        Ok(Ok(snapshot))
    }

    /// Keeps other processes from the same blob until dropped.
    pub(super) fn lock(&self, etag: &str) -> Result<File, Error> {
        let path = self.folder.join("blobs").join(format!("{etag}.lock"));
        create_parent(&path)?;
        let opened = File::options().create(true).append(true).open(&path);
        let file = opened.map_err(|source| Error::Io { action: "create", path: path.clone(), source })?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(Error::HubBusy { path }),
            Err(fs::TryLockError::Error(source)) => Err(Error::Io { action: "lock", path, source }),
        }
    }

    /// Makes a snapshot's file point at its blob.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), Error> {
        let path = self.snapshot(commit).join(file);
        create_parent(&path)?;
        let _ = fs::remove_file(&path);
        let linked = link_blob(&self.blob(etag), file, etag, &path);
        linked.map_err(|source| Error::Io { action: "link", path, source })
    }

    /// Records the commit a branch or tag stands for.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        create_parent(&path)?;
        fs::write(&path, commit).map_err(|source| Error::Io { action: "write", path, source })
    }
}

#[cfg(unix)]
fn link_blob(_blob: &Path, file: &str, etag: &str, path: &Path) -> std::io::Result<()> {
    // From snapshots/<commit>/<file> up to the repository's folder.
    let mut target = PathBuf::from("../..");
    for _ in 0..file.matches('/').count() {
        target.push("..");
    }
    std::os::unix::fs::symlink(target.join("blobs").join(etag), path)
}

#[cfg(not(unix))]
fn link_blob(blob: &Path, _file: &str, _etag: &str, path: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, path).or_else(|_| fs::copy(blob, path).map(|_| ()))
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(|source| Error::Io { action: "rename", path: from.to_owned(), source })
}

pub(super) fn create_parent(path: &Path) -> Result<(), Error> {
    let Some(parent) = path.parent() else { return Ok(()) };
    fs::create_dir_all(parent).map_err(|source| Error::Io {
        action: "create",
        path: parent.to_owned(),
        source,
    })
}
