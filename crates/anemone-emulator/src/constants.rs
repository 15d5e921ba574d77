//! Constants of a package: read once, shared by its functions.

use std::collections::BTreeMap;

use anemone_mil::{DataType, Immediate, Program, Value, Var, VarId, Weight, WeightSource, unpack_bits};
use anemone_tensor::{Bytes, DType};
use half::f16;

use crate::value::{Data, Stored};

/// What is known of a package's constants, and of the compressed weights of the function being planned.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    weights: Vec<Weight>,
    /// Weights whose floats some operation needed widened.
    widened: BTreeMap<usize, Data>,
    /// Expansions by a description of their inputs.
    expanded: BTreeMap<String, Expanded>,
    /// Expansions by the value that names them in the function being planned.
    named: BTreeMap<VarId, Expanded>,
}

/// A compressed weight, expanded.
#[derive(Debug, Clone)]
pub(crate) enum Expanded {
    Floats(Stored),
    Ints(Data),
}

impl Constants {
    pub(crate) fn new(program: &Program) -> Self {
        Self { weights: program.weights.clone(), ..Self::default() }
    }

    pub(crate) fn start_function(&mut self) {
        self.named.clear();
    }

    /// A constant's elements, floats widened.
    pub(crate) fn data(&self, value: &Value) -> Result<Data, String> {
        match value {
            Value::Immediate(_, Immediate::Floats(v)) => Ok(Data::floats(v.clone())),
            Value::Immediate(_, Immediate::Ints(v)) => integers(v.iter().copied()),
            Value::Immediate(_, Immediate::Bools(v)) => {
                Ok(Data::ints(v.iter().map(|b| i32::from(*b)).collect()))
            }
            Value::Immediate(_, Immediate::Strings(_)) => Err("strings are not computed with".into()),
            Value::Weight(ty, id) => {
                if let Some(data) = self.widened.get(&id.0) {
                    return Ok(data.clone());
                }
                let bytes = self.bytes(id.0)?;
                decode(ty.dtype, &bytes, ty.numel())
            }
        }
    }

    /// Unsigned codes of 8 bits and fewer in the weight file, a byte each; none for anything else.
    pub(crate) fn codes(&self, value: &Value) -> Option<Vec<u8>> {
        use DataType::{Uint1, Uint2, Uint3, Uint4, Uint6, Uint8};
        let Value::Weight(ty, id) = value else { return None };
        let bits =
            ty.dtype.bits().filter(|_| matches!(ty.dtype, Uint1 | Uint2 | Uint3 | Uint4 | Uint6 | Uint8))?;
        unpack_bits(&self.bytes(id.0).ok()?, bits, ty.numel())
    }

    /// The data of a run-time operand that is constant; kept, so that functions share it.
    pub(crate) fn operand(&mut self, id: VarId, var: &Var) -> Option<Result<Data, String>> {
        if let Some(expanded) = self.named.get(&id) {
            return Some(Ok(match expanded {
                Expanded::Floats(stored) => Data::floats(stored.widened()),
                Expanded::Ints(data) => data.clone(),
            }));
        }
        let value = var.value.as_ref()?;
        let data = self.data(value);
        if let (Value::Weight(_, id), Ok(data)) = (value, &data) {
            self.widened.insert(id.0, data.clone());
        }
        Some(data)
    }

    pub(crate) fn stored(&self, id: VarId, var: &Var) -> Option<Stored> {
        if let Some(Expanded::Floats(stored)) = self.named.get(&id) {
            return Some(stored.clone());
        }
        let Some(Value::Weight(ty, weight)) = &var.value else { return None };
        Some(Stored { dtype: float_type(ty.dtype)?, bytes: self.bytes(weight.0).ok()? })
    }

    /// Names the expansion of a compressed weight, made once for each set of inputs.
    pub(crate) fn expand(
        &mut self,
        id: VarId,
        key: String,
        make: impl FnOnce(&Self) -> Result<Expanded, String>,
    ) -> Result<(), String> {
        let expanded = match self.expanded.get(&key) {
            Some(expanded) => expanded.clone(),
            None => make(self)?,
        };
        self.expanded.insert(key, expanded.clone());
        self.named.insert(id, expanded);
        Ok(())
    }

    fn bytes(&self, id: usize) -> Result<Bytes, String> {
        let weight = self.weights.get(id).ok_or("the weight is not in the package")?;
        match &weight.source {
            WeightSource::Bytes(bytes) => Ok(bytes.clone()),
            WeightSource::Stream(_) => Err("the weight is not on disk yet; write the package first".into()),
        }
    }
}

impl Expanded {
    /// Keeps floats in the type they are declared in.
    pub(crate) fn floats(dtype: DataType, values: &[f32]) -> Result<Self, String> {
        let (dtype, bytes) = match float_type(dtype) {
            Some(DType::F16) => {
                (DType::F16, values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect::<Vec<u8>>())
            }
            Some(DType::F32) => (DType::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            _ => return Err(format!("compressed weights of {dtype} are not supported")),
        };
        Ok(Self::Floats(Stored { dtype, bytes: bytes.into() }))
    }
}

fn float_type(dtype: DataType) -> Option<DType> {
    match dtype {
        DataType::Float16 => Some(DType::F16),
        DataType::Float32 => Some(DType::F32),
        DataType::Bfloat16 => Some(DType::BF16),
        _ => None,
    }
}

fn integers(values: impl Iterator<Item = i64>) -> Result<Data, String> {
    let narrow = |v: i64| i32::try_from(v).map_err(|_| format!("the integer {v} is beyond 32 bits"));
    Ok(Data::ints(values.map(narrow).collect::<Result<_, _>>()?))
}

fn decode(dtype: DataType, bytes: &Bytes, count: usize) -> Result<Data, String> {
    if let Some(dtype) = float_type(dtype) {
        return Ok(Data::floats(Stored { dtype, bytes: bytes.clone() }.widened()));
    }
    let bits = dtype.bits().ok_or_else(|| format!("weights of {dtype} are not supported"))?;
    if bits < 8 {
        let codes = unpack_bits(bytes, bits, count).ok_or("the weight is too short")?;
        let sign = |c: u8| if dtype == DataType::Int4 && c > 7 { i64::from(c) - 16 } else { i64::from(c) };
        return integers(codes.into_iter().map(sign));
    }
    match dtype {
        DataType::Int8 => integers(bytes.iter().map(|b| i64::from(*b as i8))),
        DataType::Uint8 | DataType::Bool => integers(bytes.iter().map(|b| i64::from(*b))),
        DataType::Int16 => integers(bytes.chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]]).into())),
        DataType::Uint16 => integers(bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]).into())),
        DataType::Int32 => {
            integers(bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()))
        }
        DataType::Uint32 => {
            integers(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()))
        }
        _ => Err(format!("weights of {dtype} are not supported")),
    }
}
