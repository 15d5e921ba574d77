use std::fmt::Debug;

use anemone_tensor::{Blocks, DType, Palettized, Shape, Tensor};

use crate::Error;

/// Name to tensor: the seam between stored weights and the engines that read them.
pub trait Weights: Send + Sync + Debug {
    /// Element type and shape, touching no data; `None` when absent or of an element type that is not carried
    /// (then [`Weights::tensor`] says which).
    fn entry(&self, name: &str) -> Option<Entry>;

    /// The tensor, sharing the stored bytes. An absent name and an element type that is not carried are errors.
    fn tensor(&self, name: &str) -> Result<Tensor, Error>;

    /// The matrix as indices into tables, where it is stored so; `None` where it is not.
    ///
    /// [`Weights::tensor`] gives the same elements, or those of another copy that is stored in full.
    fn palettized(&self, _name: &str) -> Result<Option<Palettized>, Error> {
        Ok(None)
    }

    /// The matrix in coded blocks, where it is stored so; `None` where it is not.
    ///
    /// [`Weights::tensor`] gives the same elements in f32.
    fn blocks(&self, _name: &str) -> Result<Option<Blocks>, Error> {
        Ok(None)
    }

    /// All names, sorted.
    fn names(&self) -> Vec<String>;

    /// Element type as stored, also for types that are not carried; `None` when absent.
    fn stored_dtype(&self, name: &str) -> Option<String> {
        self.entry(name).map(|entry| entry.dtype.name().to_owned())
    }
}

/// What is known of a tensor before its data is touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Shape,
}
