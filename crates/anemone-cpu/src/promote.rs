use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anemone_tensor::Arena;

use crate::matrix::Matrix;
use crate::model::Model;
use crate::{Error, Layout};

/// Passes of one token after which moving starts. It costs as much time as decoding some 30 tokens, and on virtual machines
/// where fresh memory is slow twice that (`bench` shows it): a run that has come this far is likely to go on long enough for
/// the faster reading to pay.
const START: usize = 256;
/// Passes over which the moving is spread, so that no token waits long.
const SPREAD: usize = 64;
/// Models below this are read from the caches wherever they lie.
const SMALLEST: usize = 64 << 20;
/// Memory left to others, in MiB.
const MARGIN_MIB: u64 = 512;

/// The state of moving a model's matrices to large pages.
#[derive(Debug)]
pub(crate) struct Promotion {
    pub(crate) layout: Layout,
    passes: AtomicUsize,
    work: Mutex<Work>,
}

#[derive(Debug)]
enum Work {
    Waiting,
    Moving { arena: Arena, next: usize },
    Over,
}

impl Promotion {
    pub(crate) fn new(layout: Layout) -> Self {
        let work = if layout == Layout::Mapped { Work::Over } else { Work::Waiting };
        Self { layout, passes: AtomicUsize::new(0), work: Mutex::new(work) }
    }
}

impl Model {
    /// Moves all that is left to large pages, if the layout and the machine allow it; whether the weights are there now.
    pub(crate) fn settle(&self, compact: bool) -> bool {
        // A refusal leaves the model as it is.
        let _ = self.advance(1, compact);
        self.is_packed()
    }

    /// Whether every matrix is in large pages of our own.
    pub fn is_packed(&self) -> bool {
        self.matrices().iter().all(|m| m.is_moved())
    }

    /// Counts a pass of one token, and moves a share of the weights when it is time.
    pub(crate) fn count_pass(&self, compact: bool) {
        let passes = self.promotion.passes.fetch_add(1, Ordering::Relaxed);
        if passes >= START {
            let _ = self.advance(SPREAD, compact);
        }
    }

    /// Moves every matrix at once.
    pub(crate) fn pack(&self, compact: bool) -> Result<(), Error> {
        self.advance(1, compact)
    }

    /// The matrices that are not laid out at load as it is.
    fn movable(&self) -> Vec<&Matrix> {
        self.matrices().into_iter().filter(|m| !m.is_coded()).collect()
    }

    /// Lays coded matrices out in large pages, in the order a pass reads them.
    pub(crate) fn lay_out(&self) -> Result<(), Error> {
        let coded: Vec<&Matrix> =
            self.matrices().into_iter().chain(self.embedding_matrix()).filter(|m| m.is_coded()).collect();
        let lengths: Vec<usize> = coded.iter().flat_map(|m| m.lengths()).collect();
        let mut arena = Arena::reserve(&lengths).map_err(Error::Pack)?;
        for matrix in coded {
            matrix.move_to(&mut arena, false);
        }
        Ok(())
    }

    fn matrix_bytes(&self) -> usize {
        self.movable().iter().map(|m| m.len()).sum()
    }

    /// Whether moving is worth it here: a large model in mapped files, large pages, and room.
    fn may_promote(&self) -> bool {
        let bytes = self.matrix_bytes();
        bytes >= SMALLEST
            && self.movable().iter().all(|m| m.is_mapped())
            && has_large_pages()
            && crate::engine::available_mib().is_some_and(|free| (bytes >> 20) as u64 + MARGIN_MIB < free)
    }

    /// Moves the next matrices, in the order a pass reads them: one of `shares` equal shares of the bytes, or what is left.
    fn advance(&self, shares: usize, compact: bool) -> Result<(), Error> {
        // Another engine over the model is at it.
        let Ok(mut work) = self.promotion.work.try_lock() else { return Ok(()) };
        if matches!(*work, Work::Over) {
            return Ok(());
        }
        let matrices: Vec<&Matrix> = self.movable();
        if matches!(*work, Work::Waiting) {
            if self.promotion.layout == Layout::Auto && !self.may_promote() {
                *work = Work::Over;
                return Ok(());
            }
            let lengths: Vec<usize> = matrices.iter().flat_map(|m| m.lengths()).collect();
            let arena = Arena::reserve(&lengths);
            *work = Work::Over;
            *work = Work::Moving { arena: arena.map_err(Error::Pack)?, next: 0 };
        }
        let Work::Moving { arena, next } = &mut *work else { return Ok(()) };
        let (mut done, budget) = (0, self.matrix_bytes().div_ceil(shares));
        while done < budget
            && let Some(matrix) = matrices.get(*next)
        {
            matrix.move_to(arena, compact);
            done += matrix.len();
            *next += 1;
        }
        if *next == matrices.len() {
            *work = Work::Over;
        }
        Ok(())
    }
}

/// Whether the system gives 2 MiB pages to those who ask.
fn has_large_pages() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|text| !text.contains("[never]"))
}
