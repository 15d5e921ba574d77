use std::fmt;

use crate::proto::mil;

pub use crate::proto::mil::DataType;

impl DataType {
    /// Bits an element takes in a weight file; `None` for strings and the unused type.
    pub fn bits(self) -> Option<usize> {
        Some(match self {
            Self::Unused | Self::String => return None,
            Self::Uint1 => 1,
            Self::Uint2 => 2,
            Self::Uint3 => 3,
            Self::Uint4 | Self::Int4 => 4,
            Self::Uint6 => 6,
            Self::Bool | Self::Uint8 | Self::Int8 | Self::Float8E4m3 | Self::Float8E5m2 => 8,
            Self::Float16 | Self::Bfloat16 | Self::Int16 | Self::Uint16 => 16,
            Self::Float32 | Self::Int32 | Self::Uint32 => 32,
            Self::Float64 | Self::Int64 | Self::Uint64 => 64,
        })
    }

    /// Bytes of `count` elements, the last one padded.
    pub fn byte_len(self, count: usize) -> Option<usize> {
        Some(count.checked_mul(self.bits()?)?.div_ceil(8))
    }

    /// Whether the type holds real numbers.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64 | Self::Bfloat16)
    }

    /// The type of a name that [`DataType::name`] gives.
    pub fn from_name(name: &str) -> Option<Self> {
        (0..64).filter_map(|code| Self::try_from(code).ok()).find(|dtype| dtype.name() == name)
    }

    /// The name MIL text uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unused => "unused",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Float16 => "fp16",
            Self::Float32 => "fp32",
            Self::Float64 => "fp64",
            Self::Bfloat16 => "bf16",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Int4 => "int4",
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Uint4 => "uint4",
            Self::Uint2 => "uint2",
            Self::Uint1 => "uint1",
            Self::Uint6 => "uint6",
            Self::Uint3 => "uint3",
            Self::Float8E4m3 => "fp8e4m3",
            Self::Float8E5m2 => "fp8e5m2",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Element type and static shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub dtype: DataType,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// A tensor type.
    pub fn new(dtype: DataType, shape: impl Into<Vec<usize>>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// An fp16 tensor type.
    pub fn fp16(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(DataType::Float16, shape)
    }

    /// Number of elements; saturates.
    pub fn numel(&self) -> usize {
        self.shape.iter().fold(1usize, |n, &d| n.saturating_mul(d))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shape.is_empty() {
            return write!(f, "{}", self.dtype);
        }
        let dims = self.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "tensor<{}, [{dims}]>", self.dtype)
    }
}

/// Type of a value: a tensor, a state that holds one, or a list of strings' element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// A tensor.
    Tensor(TensorType),
    /// A state.
    State(TensorType),
}

impl Type {
    /// The tensor, or the tensor a state holds.
    pub fn tensor(&self) -> &TensorType {
        match self {
            Self::Tensor(t) | Self::State(t) => t,
        }
    }
}

impl From<TensorType> for Type {
    fn from(t: TensorType) -> Self {
        Self::Tensor(t)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(t) => t.fmt(f),
            Self::State(t) => write!(f, "state<{t}>"),
        }
    }
}

pub(crate) fn tensor_to_proto(t: &TensorType) -> mil::ValueType {
    let dimension = |&size: &usize| mil::Dimension {
        dimension: Some(mil::DimensionKind::Constant(mil::ConstantDimension { size: size as u64 })),
    };
    mil::ValueType {
        r#type: Some(mil::TypeKind::Tensor(mil::TensorType {
            data_type: t.dtype as i32,
            rank: t.shape.len() as i64,
            dimensions: t.shape.iter().map(dimension).collect(),
            attributes: std::collections::BTreeMap::new(),
        })),
    }
}

pub(crate) fn to_proto(t: &Type) -> mil::ValueType {
    match t {
        Type::Tensor(t) => tensor_to_proto(t),
        Type::State(t) => {
            let wrapped_type = Some(Box::new(tensor_to_proto(t)));
            mil::ValueType { r#type: Some(mil::TypeKind::State(Box::new(mil::StateType { wrapped_type }))) }
        }
    }
}

/// Reads a type; `None` when it is none of those carried (lists, tuples, dictionaries, flexible shapes).
pub(crate) fn from_proto(t: &mil::ValueType) -> Option<Type> {
    match t.r#type.as_ref()? {
        mil::TypeKind::Tensor(t) => {
            let dim = |d: &mil::Dimension| match d.dimension? {
                mil::DimensionKind::Constant(c) => usize::try_from(c.size).ok(),
                mil::DimensionKind::Unknown(_) => None,
            };
            let shape = t.dimensions.iter().map(dim).collect::<Option<Vec<_>>>()?;
            let dtype = DataType::try_from(t.data_type).ok()?;
            (t.rank == shape.len() as i64).then_some(Type::Tensor(TensorType { dtype, shape }))
        }
        mil::TypeKind::State(s) => match from_proto(s.wrapped_type.as_ref()?)? {
            Type::Tensor(t) => Some(Type::State(t)),
            Type::State(_) => None,
        },
        _ => None,
    }
}
