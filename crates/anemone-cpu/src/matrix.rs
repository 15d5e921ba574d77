use std::sync::OnceLock;

use anemone_kernels::{Compact, MatrixView};
use anemone_tensor::{Arena, Bytes, Tensor};

/// A weight matrix where it is stored and, once moved, in large pages of our own. Products are the same from both.
#[derive(Debug)]
pub(crate) struct Matrix {
    stored: Tensor,
    moved: OnceLock<Moved>,
}

#[derive(Debug)]
enum Moved {
    Copy(Tensor),
    Compact(Compact),
}

impl Matrix {
    pub(crate) fn new(stored: Tensor) -> Self {
        Self { stored, moved: OnceLock::new() }
    }

    /// The tensor as stored.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.stored
    }

    pub(crate) fn stored(&self) -> &Bytes {
        self.stored.bytes()
    }

    pub(crate) fn view(&self) -> MatrixView<'_> {
        let checked = |tensor| MatrixView::new(tensor).expect("a checked matrix of floats");
        match self.moved.get() {
            None => checked(&self.stored),
            // Small pages are read faster in several streams, large ones in one.
            Some(Moved::Copy(copy)) => checked(copy).with_sequential(true),
            Some(Moved::Compact(compact)) => checked(&self.stored).with_compact(compact),
        }
    }

    /// Bytes a product reads.
    pub(crate) fn bytes_read(&self) -> usize {
        match self.moved.get() {
            Some(Moved::Compact(compact)) => compact.size(),
            _ => self.stored().len(),
        }
    }

    pub(crate) fn is_moved(&self) -> bool {
        self.moved.get().is_some()
    }

    /// Moves the matrix to the arena, which must have room for it as stored, and gives the stored pages back to the system.
    ///
    /// `compact` allows 12 bits a weight, rounding to bf16 as the products that will read it do.
    pub(crate) fn move_to(&self, arena: &mut Arena, compact: bool) {
        let plan = if compact { Compact::plan(&self.stored) } else { None };
        let compact = plan.and_then(|plan| plan.encode(|len, fill| arena.push_with(len, fill)));
        let moved = compact.map_or_else(|| self.copy_to(arena), Moved::Compact);
        // Whoever came first moved the same weights.
        let _ = self.moved.set(moved);
        self.stored().release();
    }

    fn copy_to(&self, arena: &mut Arena) -> Moved {
        let bytes = arena.push(self.stored()).expect("the arena was reserved for this");
        let copy = Tensor::new(self.stored.dtype(), self.stored.shape().clone(), bytes);
        Moved::Copy(copy.expect("the copy has the same length"))
    }
}
