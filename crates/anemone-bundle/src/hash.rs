use std::fs::{self, File};
use std::path::Path;

use anemone_tensor::Bytes;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::Error;

/// SHA-256 of bytes, in hexadecimal: the name a checkpoint's file has elsewhere.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// SHA-256 of a file, in hexadecimal.
pub fn file_sha256(path: &Path) -> Result<String, Error> {
    let mut hash = Sha256::new();
    read(path, |bytes| hash.update(bytes))?;
    Ok(hex(&hash.finalize()))
}

/// XXH3-128 of bytes, in hexadecimal: tells a damaged file, not a forged one, at the speed of memory.
pub fn content_hash(bytes: &[u8]) -> String {
    digits(xxh3_128(bytes))
}

/// [`content_hash`] of a file.
pub fn file_hash(path: &Path) -> Result<String, Error> {
    let mut hash = Xxh3::new();
    read(path, |bytes| hash.update(bytes))?;
    Ok(digits(hash.digest128()))
}

/// [`content_hash`] over a package: for each file in order of path, its path, a zero byte and the hash of its content.
pub fn package_hash(path: &Path) -> Result<String, Error> {
    let mut files = Vec::new();
    collect(path, path, &mut files)?;
    files.sort();
    let mut hash = Xxh3::new();
    for name in files {
        hash.update(name.as_bytes());
        hash.update(&[0]);
        hash.update(file_hash(&path.join(&name))?.as_bytes());
    }
    Ok(digits(hash.digest128()))
}

/// Shows a file's bytes in order. They are mapped, which spares a copy, and given back behind.
fn read(path: &Path, mut visit: impl FnMut(&[u8])) -> Result<(), Error> {
    const WINDOW: usize = 2 << 20;
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let bytes = Bytes::map(&File::open(path).map_err(io)?).map_err(io)?;
    for start in (0..bytes.len()).step_by(WINDOW) {
        let window = bytes
            .slice(start..(start + WINDOW).min(bytes.len()))
            .ok_or_else(|| io(std::io::ErrorKind::UnexpectedEof.into()))?;
        visit(&window);
        window.release();
    }
    Ok(())
}

fn collect(root: &Path, dir: &Path, files: &mut Vec<String>) -> Result<(), Error> {
    let io = |source| Error::Io { path: dir.to_path_buf(), source };
    for entry in fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            let relative = path.strip_prefix(root).unwrap_or(&path);
            files.push(relative.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(())
}

pub(crate) fn digits(hash: u128) -> String {
    format!("{hash:032x}")
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |v: u8| char::from(DIGITS[usize::from(v & 15)]);
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(*b)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        // Of the empty input, as the algorithm's own tools print it.
        assert_eq!(content_hash(b""), "99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn files_and_packages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let content: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &content).unwrap();
        assert_eq!(file_hash(&path).unwrap(), content_hash(&content));
        assert_eq!(file_sha256(&path).unwrap(), sha256(&content));
        let before = package_hash(dir.path()).unwrap();
        fs::rename(&path, dir.path().join("b")).unwrap();
        assert_ne!(package_hash(dir.path()).unwrap(), before, "names count");
    }
}
