//! Compiled models on disk: compiled once, at a path that stays, since Core ML keeps what it specialised for the Neural Engine by path.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use crate::{Error, Result};

/// Files up to this size are hashed whole.
const WHOLE: u64 = 4 << 20;
/// Bytes hashed of larger ones at their beginning, middle and end.
const SAMPLE: usize = 64 << 10;

/// What a directory is called while a model is compiled in it, and while one is removed.
const MAKING: &str = "making-";
const REMOVING: &str = "removing-";
/// Times a model is looked for that others remove.
const MOST_TRIES: usize = 16;

/// A directory of compiled models.
#[derive(Debug, Clone)]
pub struct CompiledModels {
    dir: PathBuf,
}

/// A compiled model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledModel {
    /// Its directory.
    pub path: PathBuf,
    /// The package it was made of, when it was.
    pub package: String,
    /// Bytes on disk.
    pub bytes: u64,
    /// Time since it was last loaded.
    pub unused: Duration,
}

/// A compiled model that nobody removes while this is held.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    _lock: Lock,
}

impl Held {
    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What a compiled model is found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// The key of a package: small files and the beginnings, middles and ends of large ones, with sizes and times of change.
    pub fn of(package: &Path) -> Result<Self> {
        let mut files = Vec::new();
        walk(package, &mut files)?;
        files.sort();
        let mut hash = Sha256::new();
        for path in files {
            let fail = |source| Error::Io { path: path.clone(), source };
            let name = path.strip_prefix(package).unwrap_or(&path).to_string_lossy().into_owned();
            let mut file = File::open(&path).map_err(fail)?;
            let meta = file.metadata().map_err(fail)?;
            let size = meta.len();
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            hash.update(size.to_le_bytes());
            if size <= WHOLE {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).map_err(fail)?;
                hash.update(&bytes);
                continue;
            }
            let changed = meta.modified().ok().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            hash.update(changed.unwrap_or_default().as_nanos().to_le_bytes());
            let mut sample = vec![0; SAMPLE];
            for at in [0, size / 2, size - SAMPLE as u64] {
                file.seek(SeekFrom::Start(at)).map_err(fail)?;
                file.read_exact(&mut sample).map_err(fail)?;
                hash.update(&sample);
            }
        }
        let first: [u8; 16] = std::array::from_fn({
            let digest = hash.finalize();
            move |i| digest[i]
        });
        Ok(Self(format!("{:032x}", u128::from_be_bytes(first))))
    }
}

impl CompiledModels {
    /// The models in a directory, which is made when the first one is put there.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The compiled model of a package, compiled by `compile` when it is not yet.
    ///
    /// Of two processes one compiles and the other waits. What is compiled appears under its path when it is complete, and stays there
    /// as long as what this gives is held.
    pub fn get(&self, package: &Path, compile: impl FnOnce(&Path) -> Result<()>) -> Result<Held> {
        let name = package.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let entry = self.dir.join(Key::of(package)?.0);
        let compiled = entry.join(format!("{name}.mlmodelc"));
        let mut compile = Some(compile);
        // Each time round another process may have removed it again.
        for _ in 0..MOST_TRIES {
            let Some(lock) = Lock::of(&entry)? else { continue };
            lock.shared()?;
            if compiled.is_dir() && lock.is_current() {
                // The time of the lock is that of the last use.
                let _ = lock.file.set_modified(SystemTime::now());
                return Ok(Held { path: compiled, _lock: lock });
            }
            lock.exclusive()?;
            if !lock.is_current() || compiled.is_dir() {
                continue;
            }
            let Some(compile) = compile.take() else { break };
            sweep(&entry, MAKING)?;
            let fail = |source| Error::Io { path: entry.clone(), source };
            let making = tempfile::Builder::new().prefix(MAKING).tempdir_in(&entry).map_err(fail)?;
            let target = making.path().join(format!("{name}.mlmodelc"));
            compile(&target)?;
            fs::write(entry.join("package"), package.to_string_lossy().as_bytes()).map_err(fail)?;
            fs::rename(&target, &compiled).map_err(fail)?;
        }
        let problem = "the compiled model is removed again and again by another process";
        Err(Error::Io { path: compiled, source: io::Error::other(problem) })
    }

    /// Forgets the compiled model of a package, as one that cannot be loaded; whether it did, for one that is held stays.
    pub fn forget(&self, package: &Path) -> Result<bool> {
        self.remove(&self.dir.join(Key::of(package)?.0))
    }

    /// Removes a model that nobody holds; whether it did.
    fn remove(&self, entry: &Path) -> Result<bool> {
        if !entry.is_dir() {
            return Ok(true);
        }
        let Some(lock) = Lock::of(entry)? else { return Ok(true) };
        if lock.file.try_lock().is_err() || !lock.is_current() {
            return Ok(false);
        }
        // Whoever waits for the lock finds that it is no more the one of the path.
        let gone = tempfile::Builder::new().prefix(REMOVING).tempdir_in(&self.dir);
        let gone = gone.map_err(|source| Error::Io { path: self.dir.clone(), source })?;
        let to = gone.path().join("model");
        fs::rename(entry, &to).map_err(|source| Error::Io { path: entry.to_path_buf(), source })?;
        remove(&to)?;
        Ok(true)
    }

    /// All models, those unused longest the first; none where the directory is not there.
    pub fn list(&self) -> Result<Vec<CompiledModel>> {
        let mut models = Vec::new();
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(models),
            Err(source) => return Err(Error::Io { path: self.dir.clone(), source }),
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_ours = entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit()));
            if !is_ours || !path.is_dir() {
                continue;
            }
            let used = fs::metadata(path.join("lock")).and_then(|meta| meta.modified());
            let unused =
                used.ok().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default();
            let package = fs::read_to_string(path.join("package")).unwrap_or_default();
            models.push(CompiledModel { bytes: size(&path), package, unused, path });
        }
        models.sort_by(|a, b| b.unused.cmp(&a.unused).then_with(|| a.path.cmp(&b.path)));
        Ok(models)
    }

    /// Removes models that were not loaded for so long, those whose package is no more, and what a failed compile left; gives them. One
    /// that is being compiled, or was loaded and is still held, stays.
    pub fn remove_unused(&self, unused: Duration) -> Result<Vec<CompiledModel>> {
        let mut removed = Vec::new();
        for model in self.list()? {
            let is_orphan = !model.package.is_empty() && !Path::new(&model.package).exists();
            let is_broken = model.package.is_empty();
            if model.unused < unused && !is_orphan && !is_broken {
                continue;
            }
            if self.remove(&model.path)? {
                removed.push(model);
            }
        }
        Ok(removed)
    }
}

/// The lock of a model's directory.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Opens that of a directory, which is made where it is not; none when it was removed meanwhile.
    fn of(entry: &Path) -> Result<Option<Self>> {
        let path = entry.join("lock");
        let opened = fs::create_dir_all(entry)
            .and_then(|()| File::options().create(true).truncate(false).write(true).open(&path));
        match opened {
            Ok(file) => Ok(Some(Self { path, file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { path, source }),
        }
    }

    fn shared(&self) -> Result<()> {
        self.file.lock_shared().map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// Waits until nobody else has it, giving up what it has of it first.
    fn exclusive(&self) -> Result<()> {
        let waited = self.file.unlock().and_then(|()| self.file.lock());
        waited.map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// Whether the file at the path is still this one.
    fn is_current(&self) -> bool {
        let (Ok(there), Ok(own)) = (fs::metadata(&self.path), self.file.metadata()) else { return false };
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            (there.dev(), there.ino()) == (own.dev(), own.ino())
        }
        #[cfg(not(unix))]
        {
            there.created().ok() == own.created().ok()
        }
    }
}

/// Removes what is left in a directory under names that begin so.
fn sweep(dir: &Path, prefix: &str) -> Result<()> {
    let entries = fs::read_dir(dir).map_err(|source| Error::Io { path: dir.to_path_buf(), source })?;
    let left = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    left.map(|entry| entry.path()).try_for_each(|path| remove(&path))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Io { path: path.to_path_buf(), source })
        }
        _ => Ok(()),
    }
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let fail = |source| Error::Io { path: dir.to_path_buf(), source };
    for entry in fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let kind = entry.file_type().map_err(fail)?;
        if kind.is_dir() {
            walk(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn size(dir: &Path) -> u64 {
    let mut files = Vec::new();
    let _ = walk(dir, &mut files);
    files.iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.len()).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn package(dir: &Path, weights: &[u8]) -> PathBuf {
        let package = dir.join("m.mlpackage");
        fs::create_dir_all(package.join("Data")).unwrap();
        fs::write(package.join("Manifest.json"), "{}").unwrap();
        fs::write(package.join("Data/weight.bin"), weights).unwrap();
        package
    }

    fn compile(target: &Path) -> Result<()> {
        let fail = |source| Error::Io { path: target.to_path_buf(), source };
        fs::create_dir(target).map_err(fail)?;
        fs::write(target.join("model.mil"), "compiled").map_err(fail)
    }

    #[test]
    fn a_package_is_compiled_once_and_again_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let models = CompiledModels::new(dir.path().join("cache"));
        assert!(models.list().unwrap().is_empty());
        let path = package(dir.path(), b"one");
        let count = AtomicUsize::new(0);
        let counted = |target: &Path| {
            count.fetch_add(1, Ordering::Relaxed);
            compile(target)
        };
        let get = || models.get(&path, counted).unwrap().path().to_path_buf();
        let first = get();
        assert!(first.ends_with("m.mlmodelc") && first.join("model.mil").is_file());
        assert_eq!((get(), count.load(Ordering::Relaxed)), (first.clone(), 1));
        package(dir.path(), b"two");
        let second = get();
        assert!(second != first && count.load(Ordering::Relaxed) == 2);
        assert!(models.forget(&path).unwrap());
        assert!(!second.exists());
        let listed = models.list().unwrap();
        assert_eq!((listed.len(), listed[0].package.as_str()), (1, path.to_str().unwrap()));
        assert!(models.remove_unused(Duration::from_hours(1)).unwrap().is_empty());
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(models.remove_unused(Duration::from_hours(1)).unwrap()[0].path, listed[0].path);
        assert!(!first.exists() && models.list().unwrap().is_empty());
    }

    #[test]
    fn a_compile_that_fails_leaves_nothing_that_looks_compiled() {
        let dir = tempfile::tempdir().unwrap();
        let models = CompiledModels::new(dir.path().join("cache"));
        let path = package(dir.path(), &vec![7; (WHOLE + 1) as usize]);
        let failing = |target: &Path| {
            fs::create_dir(target).unwrap();
            Err(Error::Ended)
        };
        assert!(models.get(&path, failing).is_err());
        let entry = &models.list().unwrap()[0].path;
        let left: Vec<_> = fs::read_dir(entry).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
        assert_eq!(models.remove_unused(Duration::from_hours(1)).unwrap().len(), 1);
        models.get(&path, compile).unwrap();
        assert!(models.remove_unused(Duration::from_hours(1)).unwrap().is_empty());
    }

    #[test]
    fn of_two_that_ask_at_once_one_compiles() {
        let dir = tempfile::tempdir().unwrap();
        let models = CompiledModels::new(dir.path().join("cache"));
        let (path, count) = (package(dir.path(), b"x"), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let slow = |target: &Path| {
                        count.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(30));
                        compile(target)
                    };
                    assert!(models.get(&path, slow).unwrap().path().is_dir());
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_is_held_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let models = CompiledModels::new(dir.path().join("cache"));
        let path = package(dir.path(), b"x");
        let held = models.get(&path, compile).unwrap();
        // Another one may hold it, too.
        drop(models.get(&path, |_| panic!("it is there")).unwrap());
        assert!(!models.forget(&path).unwrap());
        assert!(models.remove_unused(Duration::ZERO).unwrap().is_empty());
        assert!(held.path().is_dir());
        drop(held);
        assert_eq!(models.remove_unused(Duration::ZERO).unwrap().len(), 1);
        assert_eq!(fs::read_dir(models.dir()).unwrap().count(), 0);
    }

    #[test]
    fn loaders_and_removers_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let models = CompiledModels::new(dir.path().join("cache"));
        let (path, done) = (package(dir.path(), b"x"), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..60 {
                        let held = models.get(&path, compile).unwrap();
                        assert!(held.path().join("model.mil").is_file());
                        std::thread::yield_now();
                        assert!(held.path().join("model.mil").is_file());
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < 3 {
                    models.forget(&path).unwrap();
                    models.remove_unused(Duration::ZERO).unwrap();
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
        });
    }

    #[test]
    fn what_an_interrupted_compile_left_goes_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let models = CompiledModels::new(dir.path().join("cache"));
        let path = package(dir.path(), b"x");
        let entry = models.get(&path, compile).unwrap().path().parent().unwrap().to_path_buf();
        fs::remove_dir_all(entry.join("m.mlmodelc")).unwrap();
        fs::create_dir(entry.join("making-1")).unwrap();
        models.get(&path, compile).unwrap();
        assert!(!entry.join("making-1").exists());
    }
}
