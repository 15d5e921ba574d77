use std::io;
use std::ops::Range;
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

use crate::Bytes;

/// Each run starts at a multiple of this.
const ALIGNMENT: usize = 64;

/// Private memory filled run by run, in 2 MiB pages where the system has them.
///
/// A run is readable as soon as it is pushed and lives as long as its [`Bytes`]; memory is taken as it is filled.
#[derive(Debug)]
pub struct Arena {
    area: Arc<MmapRaw>,
    used: usize,
}

impl Arena {
    /// Reserves address space for runs of these lengths.
    pub fn reserve(lengths: &[usize]) -> io::Result<Self> {
        let total: usize = lengths.iter().map(|len| len.next_multiple_of(ALIGNMENT)).sum();
        let area = MmapMut::map_anon(total.max(1))?;
        #[cfg(target_os = "linux")]
        // A refusal only costs speed.
        let _ = area.advise(memmap2::Advice::HugePage);
        Ok(Self { area: Arc::new(area.into()), used: 0 })
    }

    /// Copies a run in; `None` when it does not fit.
    pub fn push(&mut self, run: &[u8]) -> Option<Bytes> {
        self.push_with(run.len(), |target| copy(target, run))
    }

    /// Lets `fill` write a run of `len` bytes, which are zero before; `None` when it does not fit.
    pub fn push_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Option<Bytes> {
        let range = self.used..self.used.checked_add(len)?;
        if range.end > self.area.len() {
            return None;
        }
        self.used = range.end.next_multiple_of(ALIGNMENT);
        // SAFETY: the range is inside the area and after everything handed out so far, so nobody else sees it; `&mut self`
        // keeps other writers out.
        #[allow(unsafe_code, reason = "memory mapping is this crate's charge")]
        let target = unsafe { std::slice::from_raw_parts_mut(self.area.as_mut_ptr().add(range.start), len) };
        fill(target);
        Some(Bytes::of_arena(&self.area, range))
    }
}

/// The bytes of a range that was filled and handed out.
pub(crate) fn finished<'a>(area: &'a MmapRaw, range: &Range<usize>) -> &'a [u8] {
    // SAFETY: only `Arena::push_with` makes ranges: inside the area, fully written, and never written again.
    #[allow(unsafe_code, reason = "memory mapping is this crate's charge")]
    unsafe {
        std::slice::from_raw_parts(area.as_ptr().add(range.start), range.len())
    }
}

/// First touches of fresh pages are the cost, so threads share it.
fn copy(target: &mut [u8], source: &[u8]) {
    const PIECE: usize = 2 << 20;
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8);
    let share = source.len().div_ceil(threads).next_multiple_of(PIECE);
    if source.len() <= share {
        return target.copy_from_slice(source);
    }
    std::thread::scope(|scope| {
        for (target, source) in target.chunks_mut(share).zip(source.chunks(share)) {
            scope.spawn(move || target.copy_from_slice(source));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_keep_their_content_and_alignment() {
        let parts: [&[u8]; 4] = [&[1, 2, 3], &[], &[4; 100], &vec![7; 5 << 20]];
        let lengths = parts.map(<[u8]>::len);
        let mut arena = Arena::reserve(&lengths).unwrap();
        let runs: Vec<Bytes> = parts.iter().map(|part| arena.push(part).unwrap()).collect();
        assert!(arena.push(&[0; 65]).is_none());
        drop(arena);
        for (bytes, part) in runs.iter().zip(parts) {
            assert_eq!(&bytes[..], part);
            assert!(bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) && !bytes.is_mapped());
            assert!(bytes.slice(0..part.len() + 1).is_none());
        }
    }
}
