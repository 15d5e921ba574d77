use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::{Mmap, MmapRaw};

/// A cheaply clonable, read-only range of bytes: owned memory or part of a mapped file.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
    /// Whether the owner is a mapped file and not memory of our own.
    file: bool,
}

#[derive(Clone)]
enum Owner {
    Mapped(Arc<Mmap>),
    /// Memory of an [`crate::Arena`]; the bytes' range is never written again.
    Arena(Arc<MmapRaw>),
    Owned(Arc<[u8]>),
    Static(&'static [u8]),
}

impl Bytes {
    /// Maps a whole file read-only. An empty file gives empty bytes.
    ///
    /// The file must not be truncated while mapped; on Linux touching lost pages raises SIGBUS.
    pub fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() == 0 {
            return Ok(Self::from(Vec::new()));
        }
        // SAFETY: the mapping is private and read-only; the caller is told not to truncate the file.
        #[allow(unsafe_code, reason = "memory mapping is this crate's charge")]
        let map = unsafe { Mmap::map(file)? };
        let range = 0..map.len();
        Ok(Self { owner: Owner::Mapped(Arc::new(map)), range, file: true })
    }

    /// Bytes compiled into the program.
    pub const fn from_static(bytes: &'static [u8]) -> Self {
        Self { owner: Owner::Static(bytes), range: 0..bytes.len(), file: false }
    }

    /// A sub-range, sharing the owner; `None` when it does not fit.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Self { owner: self.owner.clone(), range: start..start + range.len(), file: self.file })
    }

    /// Gives a mapped file's pages back to the system; a later read brings them in again.
    pub fn release(&self) {
        #[cfg(target_os = "linux")]
        if let Owner::Mapped(map) = &self.owner
            && self.file
        {
            const PAGE: usize = 4096;
            let start = self.range.start.next_multiple_of(PAGE);
            if let Some(len) = (self.range.end / PAGE * PAGE).checked_sub(start) {
                // SAFETY: the map is of a file and never written, so a dropped page reads the same when it comes back.
                #[allow(unsafe_code, reason = "memory mapping is this crate's charge")]
                let refused =
                    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
                // A refusal only means that the pages stay.
                drop(refused);
            }
        }
    }

    /// Touches a mapped file's pages, so that a later pass over them does not stop for each.
    ///
    /// Ordinary reads and not one large request: a request would hold up every other thread that asks for memory meanwhile.
    pub fn touch(&self) {
        /// Pages the system brings in around a touched one come in runs of this size.
        const RUN: usize = 64 << 10;
        if self.is_mapped() {
            let sum = self.iter().step_by(RUN).fold(0u8, |sum, b| sum.wrapping_add(*b));
            std::hint::black_box(sum);
        }
    }

    /// Whether the bytes are part of a mapped file.
    pub fn is_mapped(&self) -> bool {
        self.file
    }

    /// A finished range of an arena.
    pub(crate) fn of_arena(area: &Arc<MmapRaw>, range: Range<usize>) -> Self {
        Self { owner: Owner::Arena(Arc::clone(area)), range, file: false }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Owner::Owned(bytes.into()), range, file: false }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.owner {
            Owner::Mapped(map) => &map[self.range.clone()],
            Owner::Arena(area) => crate::arena::finished(area, &self.range),
            Owner::Owned(bytes) => &bytes[self.range.clone()],
            Owner::Static(bytes) => &bytes[self.range.clone()],
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.owner {
            Owner::Mapped(_) => "mapped",
            Owner::Arena(_) => "copied",
            Owner::Owned(_) => "owned",
            Owner::Static(_) => "static",
        };
        write!(f, "Bytes({} {kind} bytes)", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_read_the_same_again() {
        let path = std::env::temp_dir().join(format!("anemone-release-{}", std::process::id()));
        let content: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let bytes = Bytes::map(&File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        bytes.touch();
        bytes.slice(5..99_990).unwrap().release();
        assert_eq!(bytes[..], content);
    }

    #[test]
    fn slices_stay_inside() {
        let bytes = Bytes::from(vec![0, 1, 2, 3]);
        assert_eq!(&bytes.slice(1..3).unwrap().slice(1..2).unwrap()[..], [2]);
        assert!(bytes.slice(1..3).unwrap().slice(0..3).is_none());
    }
}
