use bytemuck::Pod;
use half::{bf16, f16};

use crate::{Bytes, DType, Shape};

/// A dense, row-major, read-only tensor over shared bytes.
#[derive(Debug, Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    bytes: Bytes,
}

/// What can be wrong with a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The bytes do not hold exactly the elements the shape asks for.
    #[error("shape {shape} of {dtype} needs {expected} bytes, found {found}")]
    Length {
        /// Element type.
        dtype: DType,
        /// Shape asked for.
        shape: Shape,
        /// Bytes the shape needs (saturated).
        expected: usize,
        /// Bytes present.
        found: usize,
    },
    /// A row range lies outside the tensor.
    #[error("rows {start}..{end} are outside shape {shape}")]
    Rows {
        /// First row.
        start: usize,
        /// One past the last row.
        end: usize,
        /// Shape of the tensor.
        shape: Shape,
    },
    /// The element type is not one of the floating types.
    #[error("element type {0} is not a floating type")]
    NotFloat(DType),
}

impl Tensor {
    /// Wraps bytes; errors when their length is not the shape's.
    pub fn new(dtype: DType, shape: impl Into<Shape>, bytes: Bytes) -> Result<Self, TensorError> {
        let shape = shape.into();
        let expected = shape.checked_numel().and_then(|n| n.checked_mul(dtype.size()));
        if expected != Some(bytes.len()) {
            let expected = expected.unwrap_or(usize::MAX);
            return Err(TensorError::Length { dtype, shape, expected, found: bytes.len() });
        }
        Ok(Self { dtype, shape, bytes })
    }

    /// An f32 tensor of the given values.
    pub fn from_f32(shape: impl Into<Shape>, values: &[f32]) -> Result<Self, TensorError> {
        Self::new(DType::F32, shape, Bytes::from(bytemuck::cast_slice(values).to_vec()))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The stored bytes, little-endian.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The same bytes under another shape of equal size.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self, TensorError> {
        Self::new(self.dtype, shape, self.bytes.clone())
    }

    /// Rows `start..end` of the outermost axis, sharing the bytes.
    pub fn rows(&self, start: usize, end: usize) -> Result<Self, TensorError> {
        let error = || TensorError::Rows { start, end, shape: self.shape.clone() };
        let first = *self.shape.first().ok_or_else(error)?;
        if start > end || end > first {
            return Err(error());
        }
        let row = self.bytes.len().checked_div(first).unwrap_or(0);
        let bytes = self.bytes.slice(start * row..end * row).ok_or_else(error)?;
        let mut dims = self.shape.to_vec();
        dims[0] = end - start;
        Self::new(self.dtype, Shape::new(dims), bytes)
    }

    /// All elements widened to f32.
    pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
        fn widen<T: Pod>(bytes: &[u8], f: impl Fn(T) -> f32) -> Vec<f32> {
            bytes.chunks_exact(size_of::<T>()).map(|c| f(bytemuck::pod_read_unaligned(c))).collect()
        }
        match self.dtype {
            DType::F32 => Ok(widen(&self.bytes, |v: f32| v)),
            DType::F16 => Ok(widen(&self.bytes, f16::to_f32)),
            DType::BF16 => Ok(widen(&self.bytes, bf16::to_f32)),
            other => Err(TensorError::NotFloat(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_checked() {
        let error = Tensor::new(DType::F16, [2, 3], Bytes::from(vec![0; 11])).unwrap_err();
        assert_eq!(error.to_string(), "shape [2, 3] of F16 needs 12 bytes, found 11");
        let huge = Tensor::new(DType::F32, [usize::MAX, 8], Bytes::from(vec![]));
        assert!(huge.is_err());
    }

    #[test]
    fn rows_share_and_check() {
        let t = Tensor::from_f32([3, 2], &[0., 1., 2., 3., 4., 5.]).unwrap();
        assert_eq!(t.rows(1, 3).unwrap().to_f32().unwrap(), [2., 3., 4., 5.]);
        assert!(t.rows(2, 4).is_err());
        assert!(t.rows(2, 1).is_err());
    }

    #[test]
    fn halves_widen() {
        let bf = Tensor::new(DType::BF16, [2], Bytes::from(vec![0x80, 0x3f, 0x00, 0xc0])).unwrap();
        assert_eq!(bf.to_f32().unwrap(), [1.0, -2.0]);
        let fp = Tensor::new(DType::F16, [2], Bytes::from(vec![0x00, 0x3c, 0x00, 0xc0])).unwrap();
        assert_eq!(fp.to_f32().unwrap(), [1.0, -2.0]);
    }
}
