//! Blocks in a directory: one file for each, written beside its place and renamed, so that processes may share it.
//!
//! A file is `magic, version, flags, key, tokens, payload bytes, SHA-256` of all the rest, then the tokens and the payload.
//! Nothing in it is believed before its length is the one expected and the hash fits.

mod file;

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::{Block, Key};
use file::Found;

/// How files of ours end; before that is the key in hexadecimal.
const ENDING: &str = ".anemone-prefix";
/// How files end that are being written.
const UNFINISHED: &str = ".anemone-prefix-part";
/// After so long a file that is being written was left behind.
const LEFT_BEHIND: Duration = Duration::from_hours(1);
/// Blocks written between two looks at what other processes have written.
const LOOK_EVERY: u64 = 16;

/// Blocks in a directory under a budget; the file used longest ago goes first.
pub(super) struct Disk {
    dir: PathBuf,
    budget: u64,
    /// Bytes of our files as last seen, with what was written since.
    bytes: AtomicU64,
    written: AtomicU64,
    warned: AtomicBool,
    /// Writing failed once and is not tried again.
    read_only: AtomicBool,
}

/// A file of ours with what decides when it goes.
struct Entry {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

impl Disk {
    /// Opens a directory, making it if needed; an error when nothing can be written there.
    pub(super) fn open(dir: &Path, budget: u64) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(dir)?;
        let disk = Self {
            dir: dir.to_path_buf(),
            budget,
            bytes: AtomicU64::new(0),
            written: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
        };
        let probe = disk.unfinished(&Key([0; 32]));
        new_file(&probe)?;
        fs::remove_file(&probe)?;
        #[cfg(unix)]
        if std::os::unix::fs::PermissionsExt::mode(&fs::metadata(dir)?.permissions()) & 0o022 != 0 {
            let why = "other users can write to it, and could put in what they like; chmod 700 it";
            disk.warn(&format!("{}: {why}", dir.display()));
        }
        disk.make_room(0);
        Ok(disk)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether there is room for a chain up to the block `index`.
    pub(super) fn fits(&self, index: usize, bytes: usize) -> bool {
        let chain = file::length(bytes).saturating_mul(index as u64 + 1);
        chain <= self.budget && !self.read_only.load(Ordering::Relaxed)
    }

    /// The block of a key, when there is a whole one with these tokens and so many bytes.
    pub(super) fn read(&self, key: &Key, tokens: &[u32], bytes: usize) -> Option<Block> {
        let path = self.path(key);
        match file::read(&path, key, tokens, bytes) {
            Ok(Found::Block(block)) => return Some(block),
            Ok(Found::Nothing) => {}
            Ok(Found::Foreign) => {
                self.warn(&format!("{}: not a file of this cache; it is not used", path.display()));
            }
            Ok(Found::Damaged(what)) => {
                self.warn(&format!("{}: {what}; it is not used and was removed", path.display()));
                let _ = fs::remove_file(&path);
            }
            Err(error) => self.warn(&format!("{}: {error}; it is not used", path.display())),
        }
        None
    }

    /// Whether there is a file for a key, and then whether its block is complete; of its content only the head is looked at.
    pub(super) fn complete(&self, key: &Key, bytes: usize) -> Option<bool> {
        match file::head(&self.path(key)).ok()?? {
            // Left alone, and nothing is written in its place.
            Err(()) => Some(true),
            Ok((header, length)) => {
                let fits = header.key == *key && length == file::length(bytes);
                fits.then_some(header.complete)
            }
        }
    }

    /// Writes a block as used at `time`, where there is room for its chain; a failure is a warning and the last try.
    pub(super) fn write(&self, key: &Key, tokens: &[u32], (index, time): (usize, SystemTime), block: &Block) {
        let foreign = || matches!(file::head(&self.path(key)), Ok(Some(Err(()))));
        if !self.fits(index, block.bytes.len()) || foreign() {
            return;
        }
        let length = file::length(block.bytes.len());
        let written = self.written.fetch_add(1, Ordering::Relaxed) + 1;
        let full = self.bytes.load(Ordering::Relaxed).saturating_add(length) > self.budget;
        if full || written.is_multiple_of(LOOK_EVERY) {
            self.make_room(length);
        }
        let unfinished = self.unfinished(key);
        let outcome = new_file(&unfinished).and_then(|mut file| {
            file::write(&mut file, key, tokens, block)?;
            file.set_modified(time)?;
            drop(file);
            fs::rename(&unfinished, self.path(key))
        });
        if let Err(error) = outcome {
            let _ = fs::remove_file(&unfinished);
            if !self.read_only.swap(true, Ordering::Relaxed) {
                let dir = self.dir.display();
                tracing::warn!(
                    "{dir}: {error}; nothing more is kept there. Make room, or name another --prefix-cache"
                );
            }
            return;
        }
        self.bytes.fetch_add(length, Ordering::Relaxed);
    }

    /// Marks a file as used at `time`.
    pub(super) fn touch(&self, key: &Key, time: SystemTime) {
        let path = self.path(key);
        if fs::symlink_metadata(&path).is_ok_and(|m| m.is_file()) {
            // It may be gone by now, or another user's; then others go first.
            let _ = OpenOptions::new().append(true).open(path).and_then(|file| file.set_modified(time));
        }
    }

    /// Removes the files used longest ago until `incoming` bytes more stay in the budget.
    fn make_room(&self, incoming: u64) {
        let mut entries = self.entries();
        let mut bytes = entries.iter().map(|e| e.bytes).sum::<u64>();
        entries.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        for entry in entries {
            if bytes.saturating_add(incoming) <= self.budget {
                break;
            }
            // Another process may have been faster.
            if fs::remove_file(&entry.path).is_ok() || !entry.path.exists() {
                bytes -= entry.bytes;
            }
        }
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The files of ours; those that somebody stopped writing long ago are removed.
    fn entries(&self) -> Vec<Entry> {
        let Ok(files) = fs::read_dir(&self.dir) else { return Vec::new() };
        let mut entries = Vec::new();
        for file in files.filter_map(Result::ok) {
            let name = file.file_name();
            let Some(name) = name.to_str() else { continue };
            let Some(metadata) = file.metadata().ok().filter(fs::Metadata::is_file) else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if is_ours(name, ENDING) {
                entries.push(Entry { used, bytes: metadata.len(), path: file.path() });
            } else if name.ends_with(UNFINISHED)
                && SystemTime::now().duration_since(used).is_ok_and(|age| age > LEFT_BEHIND)
            {
                let _ = fs::remove_file(file.path());
            }
        }
        entries
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.dir.join(format!("{}{ENDING}", key.hex()))
    }

    /// A name that no other process or thread writes to.
    fn unfinished(&self, key: &Key) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!("{}.{}.{count}{UNFINISHED}", &key.hex()[..16], std::process::id()))
    }

    /// Warns the first time; what follows is only for those who look.
    fn warn(&self, message: &str) {
        if self.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!("prefix cache: {message}");
        } else {
            tracing::warn!("prefix cache: {message}");
        }
    }
}

fn is_ours(name: &str, ending: &str) -> bool {
    let key = name.strip_suffix(ending);
    key.is_some_and(|key| key.len() == 64 && key.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// A new file that only this user can read.
fn new_file(path: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests;
