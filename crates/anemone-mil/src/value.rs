use std::error::Error as StdError;
use std::fmt;
use std::io::Write;
use std::sync::Arc;

use anemone_tensor::Bytes;
use half::f16;

use crate::{DataType, TensorType};

/// A constant: its numbers in the program, or a weight.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Stored in the program.
    Immediate(TensorType, Immediate),
    /// Stored in the weight file.
    Weight(TensorType, WeightId),
}

/// Index into [`crate::Program::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// Elements of an immediate value, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum Immediate {
    /// fp16 (kept as their exact f32) or fp32.
    Floats(Vec<f32>),
    /// Any integer type.
    Ints(Vec<i64>),
    /// Booleans.
    Bools(Vec<bool>),
    /// Strings.
    Strings(Vec<String>),
}

impl Value {
    /// Its type.
    pub fn ty(&self) -> &TensorType {
        match self {
            Self::Immediate(t, _) | Self::Weight(t, _) => t,
        }
    }

    /// A string.
    pub fn text(s: impl Into<String>) -> Self {
        Self::Immediate(TensorType::new(DataType::String, []), Immediate::Strings(vec![s.into()]))
    }

    /// A scalar int32.
    pub fn int(v: i32) -> Self {
        Self::Immediate(TensorType::new(DataType::Int32, []), Immediate::Ints(vec![v.into()]))
    }

    /// A vector of int32.
    pub fn ints(v: &[i32]) -> Self {
        let ints = v.iter().map(|&v| v.into()).collect();
        Self::Immediate(TensorType::new(DataType::Int32, [v.len()]), Immediate::Ints(ints))
    }

    /// A scalar boolean.
    pub fn flag(v: bool) -> Self {
        Self::Immediate(TensorType::new(DataType::Bool, []), Immediate::Bools(vec![v]))
    }

    /// A vector of booleans.
    pub fn flags(v: &[bool]) -> Self {
        Self::Immediate(TensorType::new(DataType::Bool, [v.len()]), Immediate::Bools(v.to_vec()))
    }

    /// A scalar of a floating type, rounded to it.
    pub fn float(dtype: DataType, v: f32) -> Self {
        Self::floats(dtype, [], &[v])
    }

    /// A tensor of a floating type, rounded to it.
    pub fn floats(dtype: DataType, shape: impl Into<Vec<usize>>, v: &[f32]) -> Self {
        let round = |v: &f32| if dtype == DataType::Float16 { f16::from_f32(*v).to_f32() } else { *v };
        Self::Immediate(TensorType::new(dtype, shape), Immediate::Floats(v.iter().map(round).collect()))
    }
}

/// A tensor of the weight file.
#[derive(Debug, Clone)]
pub struct Weight {
    /// Name, for messages and manifests.
    pub name: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// Where its bytes come from.
    pub source: WeightSource,
}

/// Where a weight's bytes come from: present bytes, or a producer run when the file is written.
#[derive(Clone)]
pub enum WeightSource {
    /// Bytes at hand.
    Bytes(Bytes),
    /// Writes exactly the weight's bytes; called once for each file written.
    Stream(Arc<Producer>),
}

type Producer = dyn Fn(&mut dyn Write) -> Result<(), Box<dyn StdError + Send + Sync>> + Send + Sync;

impl WeightSource {
    /// The whole content, produced if need be.
    pub fn read(&self) -> Result<Bytes, Box<dyn StdError + Send + Sync>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.clone()),
            Self::Stream(produce) => {
                let mut bytes = Vec::new();
                produce(&mut bytes)?;
                Ok(bytes.into())
            }
        }
    }
}

impl fmt::Debug for WeightSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}
