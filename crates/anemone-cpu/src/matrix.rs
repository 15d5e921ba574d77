use std::sync::OnceLock;

use anemone_checkpoint::{Weights, scan_non_finite};
use anemone_kernels::{Coded, Compact, MatrixView, Woven};
use anemone_models::WeightRef;
use anemone_tensor::{Arena, Blocks, Bytes, Palettized, Segment, Tensor};

use crate::Error;

/// A weight matrix where it is stored and, once moved, in large pages of our own. Products are the same from both.
///
/// One in coded blocks is read only once it is moved.
#[derive(Debug)]
pub(crate) struct Matrix {
    stored: Stored,
    moved: OnceLock<Moved>,
}

#[derive(Debug)]
enum Stored {
    Tensor(Tensor),
    Palettized(Palettized),
    Coded(Blocks),
}

#[derive(Debug)]
enum Moved {
    Coded(Coded),
    Copy(Tensor),
    Compact(Compact),
    Woven(Woven),
}

impl Matrix {
    pub(crate) fn new(stored: Tensor) -> Self {
        Self { stored: Stored::Tensor(stored), moved: OnceLock::new() }
    }

    /// `None` when no product takes it.
    pub(crate) fn palettized(stored: Palettized) -> Option<Self> {
        MatrixView::palettized(&stored)?;
        Some(Self { stored: Stored::Palettized(stored), moved: OnceLock::new() })
    }

    /// Reads a weight in the form products want it.
    pub(crate) fn load(weight: &WeightRef, weights: &dyn Weights) -> Result<Self, Error> {
        if let Some(matrix) = Self::coded(weight, weights)? {
            return Ok(matrix);
        }
        match weight.load_palettized(weights)?.and_then(Self::palettized) {
            Some(matrix) => Ok(matrix),
            None => Ok(Self::new(weight.load(weights)?)),
        }
    }

    /// Reads a weight whose rows are looked up.
    pub(crate) fn rows_of(weight: &WeightRef, weights: &dyn Weights) -> Result<Self, Error> {
        match Self::coded(weight, weights)? {
            Some(matrix) => Ok(matrix),
            None => Ok(Self::new(weight.load(weights)?)),
        }
    }

    /// A weight in coded blocks that products take.
    fn coded(weight: &WeightRef, weights: &dyn Weights) -> Result<Option<Self>, Error> {
        let blocks = weight.load_blocks(weights)?.filter(Coded::takes);
        Ok(blocks.map(|blocks| Self { stored: Stored::Coded(blocks), moved: OnceLock::new() }))
    }

    /// Whether it is in coded blocks.
    pub(crate) fn is_coded(&self) -> bool {
        matches!(self.stored, Stored::Coded(_))
    }

    /// The tensor, unless the matrix is palettized or coded.
    pub(crate) fn tensor(&self) -> Option<&Tensor> {
        match &self.stored {
            Stored::Tensor(tensor) => Some(tensor),
            Stored::Palettized(_) | Stored::Coded(_) => None,
        }
    }

    /// Output features.
    pub(crate) fn rows(&self) -> usize {
        match &self.stored {
            Stored::Tensor(tensor) => tensor.shape()[0],
            Stored::Palettized(matrix) => matrix.rows(),
            Stored::Coded(matrix) => matrix.rows(),
        }
    }

    /// What is stored: a tensor's bytes, or all indices.
    fn runs(&self) -> Vec<&Bytes> {
        match &self.stored {
            Stored::Tensor(tensor) => vec![tensor.bytes()],
            Stored::Palettized(matrix) => matrix.segments().map(Segment::indices).collect(),
            Stored::Coded(matrix) => vec![matrix.bytes()],
        }
    }

    /// Lengths of what moving it takes.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        if let Stored::Coded(blocks) = &self.stored {
            return vec![Coded::len_of(blocks)];
        }
        self.runs().iter().map(|run| run.len()).collect()
    }

    /// Bytes stored.
    pub(crate) fn len(&self) -> usize {
        self.lengths().iter().sum()
    }

    /// Whether it lies in mapped files.
    pub(crate) fn is_mapped(&self) -> bool {
        self.runs().iter().all(|run| run.is_mapped())
    }

    /// Brings its pages in.
    pub(crate) fn touch(&self) {
        for run in self.runs() {
            run.touch();
        }
    }

    /// Gives its pages back to the system, which reads them again when they are needed.
    pub(crate) fn release(&self) {
        for run in self.runs() {
            run.release();
        }
    }

    /// The first element, row by row, that is infinite or no number.
    pub(crate) fn find_non_finite(&self) -> Option<usize> {
        match &self.stored {
            Stored::Tensor(tensor) => scan_non_finite(tensor),
            Stored::Palettized(matrix) => matrix.find_non_finite(),
            Stored::Coded(matrix) => matrix.find_non_finite(),
        }
    }

    /// A view of what is stored, whose rows can be read.
    pub(crate) fn stored_view(&self) -> MatrixView<'_> {
        match &self.stored {
            Stored::Tensor(tensor) => MatrixView::new(tensor).expect("a checked matrix of floats"),
            _ => self.view(),
        }
    }

    pub(crate) fn view(&self) -> MatrixView<'_> {
        let checked = |tensor| MatrixView::new(tensor).expect("a checked matrix of floats");
        match (self.moved.get(), &self.stored) {
            // Small pages are read faster in several streams, large ones in one.
            (Some(Moved::Copy(copy)), _) => checked(copy).with_sequential(true),
            (Some(Moved::Compact(compact)), Stored::Tensor(stored)) => checked(stored).with_compact(compact),
            (Some(Moved::Coded(coded)), _) => MatrixView::coded(coded).expect("checked when it was loaded"),
            (_, Stored::Coded(_)) => unreachable!("coded matrices are laid out at load"),
            (Some(Moved::Woven(woven)), _) => MatrixView::woven(woven).expect("checked when it was made"),
            (_, Stored::Tensor(stored)) => checked(stored),
            (_, Stored::Palettized(matrix)) => {
                MatrixView::palettized(matrix).expect("checked when it was made")
            }
        }
    }

    /// Bytes a product reads.
    pub(crate) fn bytes_read(&self) -> usize {
        match (self.moved.get(), &self.stored) {
            (Some(Moved::Compact(compact)), _) => compact.size(),
            (_, Stored::Tensor(tensor)) => tensor.bytes().len(),
            (_, Stored::Palettized(matrix)) => matrix.size(),
            (Some(Moved::Coded(coded)), _) => coded.size(),
            (_, Stored::Coded(blocks)) => blocks.bytes().len(),
        }
    }

    pub(crate) fn is_moved(&self) -> bool {
        self.moved.get().is_some()
    }

    /// Moves the matrix to the arena, which must have room for it as stored, and gives the stored pages back to the system.
    ///
    /// `compact` allows 12 bits a weight, rounding to bf16 as the products that will read it do.
    pub(crate) fn move_to(&self, arena: &mut Arena, compact: bool) {
        let moved = match &self.stored {
            Stored::Palettized(matrix) => {
                let woven = Woven::new(matrix, |len, fill| arena.push_with(len, fill));
                Moved::Woven(woven.expect("the arena was reserved for this"))
            }
            Stored::Coded(blocks) => {
                let coded = Coded::new(blocks, |len, fill| arena.push_with(len, fill));
                Moved::Coded(coded.expect("the arena was reserved for this"))
            }
            Stored::Tensor(stored) => {
                let plan = if compact { Compact::plan(stored) } else { None };
                let compact = plan.and_then(|plan| plan.encode(|len, fill| arena.push_with(len, fill)));
                compact.map_or_else(|| copy_to(arena, stored), Moved::Compact)
            }
        };
        // Whoever came first moved the same weights.
        let _ = self.moved.set(moved);
        self.release();
    }
}

fn copy_to(arena: &mut Arena, stored: &Tensor) -> Moved {
    let bytes = arena.push(stored.bytes()).expect("the arena was reserved for this");
    let copy = Tensor::new(stored.dtype(), stored.shape().clone(), bytes);
    Moved::Copy(copy.expect("the copy has the same length"))
}
