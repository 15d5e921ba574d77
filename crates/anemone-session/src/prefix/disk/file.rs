//! One block's file.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::prefix::{BLOCK_TOKENS, Block, Key};

pub(super) const MAGIC: &[u8; 8] = b"ANEPREFX";
const VERSION: u32 = 1;
const COMPLETE: u32 = 1;
/// Bytes before the hash.
const HEAD: usize = 8 + 4 + 4 + 32 + 8 + 8;
const HASH: usize = 32;

/// Length of the file of a block of so many bytes.
pub(super) fn length(bytes: usize) -> u64 {
    (HEAD + HASH + 4 * BLOCK_TOKENS) as u64 + bytes as u64
}

/// What a file says of itself before its content.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    version: u32,
    pub(super) complete: bool,
    pub(super) key: Key,
    tokens: u64,
    bytes: u64,
}

impl Header {
    fn to_bytes(&self) -> [u8; HEAD] {
        let mut bytes = Vec::with_capacity(HEAD);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&if self.complete { COMPLETE } else { 0 }.to_le_bytes());
        bytes.extend_from_slice(&self.key.0);
        bytes.extend_from_slice(&self.tokens.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        let mut head = [0; HEAD];
        head.copy_from_slice(&bytes);
        head
    }

    /// `None` when it does not begin as our files do.
    fn parse(head: &[u8; HEAD]) -> Option<Self> {
        let (magic, rest) = head.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (tokens, rest) = rest.split_first_chunk()?;
        let bytes = rest.first_chunk()?;
        (magic == MAGIC).then(|| Self {
            version: u32::from_le_bytes(*version),
            complete: u32::from_le_bytes(*flags) & COMPLETE != 0,
            key: Key(*key),
            tokens: u64::from_le_bytes(*tokens),
            bytes: u64::from_le_bytes(*bytes),
        })
    }
}

/// What is at a block's place.
#[derive(Debug)]
pub(super) enum Found {
    Block(Block),
    Nothing,
    /// A file of ours that cannot be used, and why.
    Damaged(String),
    /// Something that is none of our files.
    Foreign,
}

/// The file of a place if it is one, open, and its length.
fn open(path: &Path) -> io::Result<Option<Result<(File, u64), ()>>> {
    // Looked at before it is opened: a pipe would make the reader wait.
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Ok(Some(Err(()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    match File::open(path) {
        Ok(file) => {
            let length = file.metadata()?.len();
            Ok(Some(Ok((file, length))))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the file at `path` says of itself, and its length; `Err` inside when it is none of ours.
pub(super) fn head(path: &Path) -> io::Result<Option<Result<(Header, u64), ()>>> {
    let Some(opened) = open(path)? else { return Ok(None) };
    let Ok((mut file, length)) = opened else { return Ok(Some(Err(()))) };
    if length < HEAD as u64 {
        // Cut short, which the next read finds.
        return Ok(None);
    }
    let mut head = [0; HEAD];
    file.read_exact(&mut head)?;
    Ok(Some(Header::parse(&head).map(|header| (header, length)).ok_or(())))
}

/// Reads the block of a key; what does not fit key, tokens and size is not read at all.
pub(super) fn read(path: &Path, key: &Key, tokens: &[u32], bytes: usize) -> io::Result<Found> {
    let Some(opened) = open(path)? else { return Ok(Found::Nothing) };
    let Ok((mut file, found)) = opened else { return Ok(Found::Foreign) };
    let damaged = |what: String| Ok(Found::Damaged(what));
    if found == 0 {
        return damaged("it is empty".into());
    }
    let mut head = [0; HEAD];
    let whole = found >= HEAD as u64;
    let start = if whole { HEAD } else { found as usize };
    file.read_exact(&mut head[..start])?;
    let magic = start.min(MAGIC.len());
    if head[..magic] != MAGIC[..magic] {
        return Ok(Found::Foreign);
    }
    let Some(header) = Header::parse(&head).filter(|_| whole) else {
        return damaged(format!("it is cut short at {found} bytes"));
    };
    if header.version != VERSION {
        return damaged(format!("its version is {} and this one reads {VERSION}", header.version));
    }
    let expected = length(bytes);
    if found != expected {
        return damaged(format!("it has {found} bytes where a block has {expected}"));
    }
    if header.key != *key || header.tokens != tokens.len() as u64 || header.bytes != bytes as u64 {
        return damaged("its head is of another block".into());
    }
    let mut hash = [0; HASH];
    file.read_exact(&mut hash)?;
    let mut content = vec![0; 4 * tokens.len()];
    file.read_exact(&mut content)?;
    let mut payload = vec![0; bytes];
    file.read_exact(&mut payload)?;
    if sum(&head, &content, &payload) != hash {
        return damaged("its checksum does not fit its content".into());
    }
    if !content.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).eq(tokens.iter().copied()) {
        return damaged("its tokens are others".into());
    }
    Ok(Found::Block(Block { bytes: payload, complete: header.complete }))
}

/// Writes a block.
pub(super) fn write(file: &mut File, key: &Key, tokens: &[u32], block: &Block) -> io::Result<()> {
    let header = Header {
        version: VERSION,
        complete: block.complete,
        key: *key,
        tokens: tokens.len() as u64,
        bytes: block.bytes.len() as u64,
    };
    let head = header.to_bytes();
    let content: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut start = head.to_vec();
    start.extend_from_slice(&sum(&head, &content, &block.bytes));
    start.extend_from_slice(&content);
    file.write_all(&start)?;
    file.write_all(&block.bytes)
}

fn sum(head: &[u8], content: &[u8], payload: &[u8]) -> [u8; HASH] {
    let mut hash = Sha256::new();
    for part in [head, content, payload] {
        hash.update(part);
    }
    hash.finalize().into()
}
