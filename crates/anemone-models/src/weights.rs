use std::collections::BTreeSet;

use anemone_checkpoint::Weights;
use anemone_tensor::{Blocks, Palettized, Shape, Tensor};

use crate::{Error, Stack};

/// A weight by name: a whole tensor, or part of a fused one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightRef {
    /// Name in the checkpoint.
    pub name: String,
    /// Shape of what is used.
    pub shape: Shape,
    /// Where it lies when the tensor is fused.
    pub part: Option<Part>,
}

/// Part of a fused `[count, rows, cols]` tensor: rows of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Shape of the whole tensor.
    pub whole: Shape,
    /// Entry of the outermost axis.
    pub index: usize,
    /// First row inside the entry.
    pub row: usize,
}

impl WeightRef {
    /// A whole tensor.
    pub fn new(name: impl Into<String>, shape: impl Into<Shape>) -> Self {
        Self { name: name.into(), shape: shape.into(), part: None }
    }

    /// Reads the weight, checked against its shape, sharing the checkpoint's bytes.
    pub fn load(&self, weights: &dyn Weights) -> Result<Tensor, Error> {
        let tensor = weights.tensor(&self.name)?;
        let expected = self.part.as_ref().map_or(&self.shape, |p| &p.whole);
        if tensor.shape() != expected {
            return Err(Error::Shape {
                name: self.name.clone(),
                expected: expected.clone(),
                found: tensor.shape().clone(),
            });
        }
        if !tensor.dtype().is_float() {
            return Err(Error::DType { name: self.name.clone(), dtype: tensor.dtype().to_string() });
        }
        let Some(part) = &self.part else { return Ok(tensor) };
        let slice = || {
            let rows = part.whole[1];
            let flat = tensor.reshape([part.whole[0] * rows, part.whole[2]])?;
            let first = part.index * rows + part.row;
            flat.rows(first, first + self.shape[0])
        };
        slice().map_err(|source| Error::Tensor { name: self.name.clone(), source })
    }

    fn check_matrix(&self, rows: usize, cols: usize) -> Result<(), Error> {
        let found = Shape::from([rows, cols]);
        if found == self.shape {
            return Ok(());
        }
        Err(Error::Shape { name: self.name.clone(), expected: self.shape.clone(), found })
    }

    /// Reads a whole matrix as indices into tables, checked against its shape; `None` where it is not stored so.
    pub fn load_palettized(&self, weights: &dyn Weights) -> Result<Option<Palettized>, Error> {
        if self.part.is_some() {
            return Ok(None);
        }
        let Some(matrix) = weights.palettized(&self.name)? else { return Ok(None) };
        self.check_matrix(matrix.rows(), matrix.cols())?;
        Ok(Some(matrix))
    }

    /// Reads a whole matrix in coded blocks, checked against its shape; `None` where it is not stored so.
    pub fn load_blocks(&self, weights: &dyn Weights) -> Result<Option<Blocks>, Error> {
        if self.part.is_some() {
            return Ok(None);
        }
        let Some(matrix) = weights.blocks(&self.name)? else { return Ok(None) };
        self.check_matrix(matrix.rows(), matrix.cols())?;
        Ok(Some(matrix))
    }
}

/// Checks that the checkpoint holds what the stack asks for, with the right shapes, and nothing else under `prefix`.
///
/// Reads no weight data, except to compare a stored but tied head with the embedding.
pub fn check(stack: &Stack, weights: &dyn Weights, prefix: &str) -> Result<(), Error> {
    let mut extra = Vec::new();
    for name in unused(&stack.weights(), weights)? {
        if name.ends_with("rotary_emb.inv_freq") {
            continue;
        }
        if name.ends_with("lm_head.weight") && stack.is_tied() {
            let (head, embedding) = (weights.tensor(&name)?, weights.tensor(&stack.embedding.name)?);
            if head.shape() != embedding.shape() || head.bytes()[..] != embedding.bytes()[..] {
                return Err(Error::TiedHead(name));
            }
            continue;
        }
        // Towers of other modalities lie outside a prefixed text model.
        if prefix.is_empty() || prefix == "model." || name.starts_with(prefix) {
            extra.push(name);
        }
    }
    if extra.is_empty() { Ok(()) } else { Err(Error::Extra(extra)) }
}

/// Checks that the checkpoint holds the weights with their shapes, and gives the names of what else it holds.
pub(crate) fn unused(asked: &[&WeightRef], weights: &dyn Weights) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    let mut used = BTreeSet::new();
    for weight in asked {
        used.insert(weight.name.as_str());
        let Some(entry) = weights.entry(&weight.name) else {
            // Present, but in a type that is not carried.
            if let Some(dtype) = weights.stored_dtype(&weight.name) {
                return Err(Error::DType { name: weight.name.clone(), dtype });
            }
            missing.push(weight.name.clone());
            continue;
        };
        let expected = weight.part.as_ref().map_or(&weight.shape, |p| &p.whole);
        if entry.shape != *expected {
            return Err(Error::Shape {
                name: weight.name.clone(),
                expected: expected.clone(),
                found: entry.shape,
            });
        }
        if !entry.dtype.is_float() {
            return Err(Error::DType { name: weight.name.clone(), dtype: entry.dtype.to_string() });
        }
    }
    if !missing.is_empty() {
        return Err(Error::Missing(missing));
    }
    Ok(weights.names().into_iter().filter(|name| !used.contains(name.as_str())).collect())
}
