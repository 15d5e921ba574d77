use std::collections::BTreeMap;
use std::sync::Arc;

use anemone_checkpoint::{Entry, Error, Weights};
use anemone_tensor::{Palettized, Tensor};

/// Weights of which some are replaced.
#[derive(Debug, Clone)]
pub struct Overlay {
    base: Arc<dyn Weights>,
    replaced: BTreeMap<String, Tensor>,
    palettized: BTreeMap<String, Palettized>,
}

impl Overlay {
    /// All of `base`, unchanged.
    pub fn new(base: Arc<dyn Weights>) -> Self {
        Self { base, replaced: BTreeMap::new(), palettized: BTreeMap::new() }
    }

    /// Puts a tensor of the same shape in the place of another.
    #[must_use]
    pub fn with(mut self, name: &str, tensor: Tensor) -> Self {
        self.replaced.insert(name.to_owned(), tensor);
        self
    }

    /// Lets products meet a palettized matrix of the same shape. Who reads the tensor in full, as the rows of an embedding are read,
    /// finds it unchanged.
    #[must_use]
    pub fn with_palettized(mut self, name: &str, matrix: Palettized) -> Self {
        self.palettized.insert(name.to_owned(), matrix);
        self
    }
}

impl Weights for Overlay {
    fn entry(&self, name: &str) -> Option<Entry> {
        match self.replaced.get(name) {
            Some(t) => Some(Entry { dtype: t.dtype(), shape: t.shape().clone() }),
            None => self.base.entry(name),
        }
    }

    fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        self.replaced.get(name).map_or_else(|| self.base.tensor(name), |t| Ok(t.clone()))
    }

    fn palettized(&self, name: &str) -> Result<Option<Palettized>, Error> {
        if let Some(matrix) = self.palettized.get(name) {
            return Ok(Some(matrix.clone()));
        }
        if self.replaced.contains_key(name) { Ok(None) } else { self.base.palettized(name) }
    }

    fn names(&self) -> Vec<String> {
        self.base.names()
    }
}
