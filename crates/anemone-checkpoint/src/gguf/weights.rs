//! Tensors of a file by the names they have in a snapshot.

use anemone_tensor::{Blocks, DType, Shape, Tensor};

use super::file::{GgufFile, GgufTensor, TensorType};
use super::names::{Names, Source};
use crate::{Entry, Error, Weights};

/// [`Weights`] over a GGUF file. Coded tensors are given in f32 by [`Weights::tensor`], as stored by [`Weights::blocks`].
#[derive(Debug)]
pub(crate) struct GgufWeights {
    file: GgufFile,
    names: Names,
}

impl GgufWeights {
    pub(super) fn new(file: GgufFile, names: Names) -> Self {
        Self { file, names }
    }

    fn find(&self, name: &str) -> Option<(&Source, &GgufTensor)> {
        let source = self.names.sources.get(name)?;
        Some((source, self.file.tensor(&source.tensor)?))
    }

    fn error(&self, tensor: &GgufTensor, problem: impl std::fmt::Display) -> Error {
        Error::GgufTensor {
            file: self.file.label().to_owned(),
            tensor: tensor.name.clone(),
            problem: problem.to_string(),
        }
    }

    /// The tensor as a matrix of blocks, or the part of it that a name means.
    fn matrix(&self, source: &Source, tensor: &GgufTensor) -> Result<Option<Blocks>, Error> {
        let TensorType::Blocks(format) = tensor.kind else { return Ok(None) };
        let cols = tensor.shape.last().copied().unwrap_or(0);
        let rows = tensor.shape[..tensor.shape.len().saturating_sub(1)].iter().product();
        let whole = Blocks::new(format, (rows, cols), tensor.bytes.clone());
        let whole = whole.map_err(|error| self.error(tensor, error))?;
        let Some(expert) = source.expert else { return Ok(Some(whole)) };
        let height = source.shape[0];
        let part = whole.slice(expert * height, (expert + 1) * height);
        part.map(Some).ok_or_else(|| self.error(tensor, format_args!("has no expert {expert}")))
    }
}

impl Weights for GgufWeights {
    fn entry(&self, name: &str) -> Option<Entry> {
        let (source, tensor) = self.find(name)?;
        let dtype = match tensor.kind {
            TensorType::Plain(dtype) => dtype,
            TensorType::Blocks(_) => DType::F32,
            TensorType::Other(_) => return None,
        };
        Some(Entry { dtype, shape: Shape::from(source.shape.as_slice()) })
    }

    fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let Some((source, tensor)) = self.find(name) else {
            return Err(Error::NoTensor { name: name.to_owned(), checkpoint: self.file.label().to_owned() });
        };
        let shape = Shape::from(source.shape.as_slice());
        if let Some(blocks) = self.matrix(source, tensor)? {
            return Tensor::from_f32(shape, &blocks.expand()).map_err(|error| self.error(tensor, error));
        }
        let TensorType::Plain(dtype) = tensor.kind else {
            let kind = tensor.kind.name();
            let problem = format!(
                "is of type {kind}, which is not supported; use a file in F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, Q4_0 or Q4_1"
            );
            return Err(self.error(tensor, problem));
        };
        let bytes = match source.expert {
            None => tensor.bytes.clone(),
            Some(expert) => {
                let len = source.shape.iter().product::<usize>() * dtype.size();
                let part = tensor.bytes.slice(expert * len..(expert + 1) * len);
                part.ok_or_else(|| self.error(tensor, format_args!("has no expert {expert}")))?
            }
        };
        Tensor::new(dtype, shape, bytes).map_err(|error| self.error(tensor, error))
    }

    fn blocks(&self, name: &str) -> Result<Option<Blocks>, Error> {
        let Some((source, tensor)) = self.find(name) else { return Ok(None) };
        self.matrix(source, tensor)
    }

    fn names(&self) -> Vec<String> {
        self.names.sources.keys().cloned().collect()
    }

    fn stored_dtype(&self, name: &str) -> Option<String> {
        self.find(name).map(|(_, tensor)| tensor.kind.name())
    }
}
