use std::sync::OnceLock;

use anemone_kernels::MatrixView;
use anemone_tensor::{Bytes, Tensor};

/// A weight matrix where it is stored and, once copied, in large pages of our own. The values are the same in both.
#[derive(Debug)]
pub(crate) struct Matrix {
    stored: Tensor,
    copy: OnceLock<Tensor>,
}

impl Matrix {
    pub(crate) fn new(stored: Tensor) -> Self {
        Self { stored, copy: OnceLock::new() }
    }

    /// The tensor to read: the copy where there is one.
    pub(crate) fn tensor(&self) -> &Tensor {
        self.copy.get().unwrap_or(&self.stored)
    }

    pub(crate) fn view(&self) -> MatrixView<'_> {
        let copied = self.copy.get();
        let view = MatrixView::new(copied.unwrap_or(&self.stored)).expect("a checked matrix of floats");
        // Small pages are read faster in several streams, large ones in one.
        view.with_sequential(copied.is_some())
    }

    pub(crate) fn is_copied(&self) -> bool {
        self.copy.get().is_some()
    }

    pub(crate) fn stored(&self) -> &Bytes {
        self.stored.bytes()
    }

    /// Reads the copy from now on and gives the stored pages back to the system.
    pub(crate) fn replace(&self, bytes: Bytes) {
        let copy = Tensor::new(self.stored.dtype(), self.stored.shape().clone(), bytes);
        // Whoever came first copied the same bytes.
        let _ = self.copy.set(copy.expect("the copy has the same length"));
        self.stored.bytes().release();
    }
}
