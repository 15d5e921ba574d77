//! The weights of a program under construction: each checkpoint tensor, transformed as the lowering asks, once for all functions.

use std::collections::{BTreeMap, HashMap};
use std::error::Error as StdError;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use anemone_mil::{DataType, TensorType, Value, Weight, WeightId, WeightSource, identifier};
use anemone_models::WeightRef;
use anemone_tensor::{Bytes, Tensor, append_fp16};
use half::f16;
use serde::{Deserialize, Serialize};

use crate::{Error, Scales};

/// Where a stored weight comes from; one row of a bundle's weight table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightRecord {
    /// Name of the tensor in the checkpoint.
    pub tensor: String,
    /// Rows used.
    pub rows: Range<usize>,
    /// Columns used.
    pub columns: Range<usize>,
    /// Power of two the numbers were multiplied by.
    pub log2_scale: i32,
    /// Shape as stored.
    pub shape: Vec<usize>,
}

impl WeightRecord {
    /// All of a matrix `[rows, columns]`, as it is.
    pub fn whole(tensor: &str, shape: &[usize]) -> Self {
        let size = |axis: usize| shape.get(axis).copied().unwrap_or(1);
        let (rows, columns) = (0..size(0), 0..size(1));
        Self { tensor: tensor.to_owned(), rows, columns, log2_scale: 0, shape: shape.to_vec() }
    }
}

/// Reads a weight a stack names; the tensor shares the stored bytes.
pub type Load<'a> = &'a dyn Fn(&WeightRef) -> Result<Tensor, anemone_models::Error>;

pub(crate) struct Table<'a> {
    load: Load<'a>,
    /// Type of the stored numbers.
    pub(crate) dtype: DataType,
    known: HashMap<String, WeightId>,
    /// Scales chosen by calibration, by MIL name.
    scales: BTreeMap<String, i32>,
    pub(crate) weights: Vec<Weight>,
    /// One for each weight; none for numbers that come from no checkpoint.
    pub(crate) records: Vec<Option<WeightRecord>>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(load: Load<'a>) -> Self {
        Self::with_type(load, DataType::Float16)
    }

    pub(crate) fn with_type(load: Load<'a>, dtype: DataType) -> Self {
        let (known, scales) = (HashMap::new(), BTreeMap::new());
        Self { load, dtype, known, scales, weights: Vec::new(), records: Vec::new() }
    }

    /// Uses the scales chosen by calibration.
    pub(crate) fn scaled(mut self, scales: Option<&Scales>) -> Self {
        self.scales = scales.map(|s| s.log2.clone()).unwrap_or_default();
        self
    }

    /// The scale chosen for a path.
    pub(crate) fn scale(&self, path: &str) -> Option<i32> {
        self.scales.get(&identifier(path)).copied()
    }

    /// A matrix's rows and columns as a `[rows, columns, 1, 1]` convolution weight, times 2^`log2`.
    pub(crate) fn matrix(
        &mut self,
        weight: &WeightRef,
        rows: Range<usize>,
        columns: Range<usize>,
        log2: i32,
    ) -> Result<Value, Error> {
        let shape = vec![rows.len(), columns.len(), 1, 1];
        self.add(weight, rows, columns, log2, shape)
    }

    /// A vector as `[1, n, 1, 1]` (a factor of channels) or `[n]` (a bias), times 2^`log2`.
    pub(crate) fn vector(&mut self, weight: &WeightRef, as_factor: bool, log2: i32) -> Result<Value, Error> {
        let n = weight.shape.numel();
        let shape = if as_factor { vec![1, n, 1, 1] } else { vec![n] };
        self.add(weight, 0..1, 0..n, log2, shape)
    }

    /// One tap of a depthwise kernel `[hidden, taps]` as `[1, hidden, 1, 1]`.
    pub(crate) fn tap(&mut self, weight: &WeightRef, hidden: usize, tap: usize) -> Result<Value, Error> {
        self.add(weight, 0..hidden, tap..tap + 1, 0, vec![1, hidden, 1, 1])
    }

    /// A vector `[n]` of one number.
    pub(crate) fn filled(&mut self, value: f32, n: usize) -> Value {
        self.made(&format!("filled {value}"), &vec![value; n], vec![n])
    }

    /// Numbers that come from no checkpoint; the same name stands for the same numbers.
    pub(crate) fn made(&mut self, name: &str, values: &[f32], shape: Vec<usize>) -> Value {
        let ty = TensorType::new(self.dtype, shape);
        let key = format!("made {name} {ty:?}");
        if let Some(id) = self.known.get(&key) {
            return Value::Weight(ty, *id);
        }
        let bytes: Vec<u8> = match self.dtype {
            DataType::Float32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            _ => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        };
        let id = WeightId(self.weights.len());
        let source = WeightSource::Bytes(Bytes::from(bytes));
        self.weights.push(Weight { name: name.to_owned(), ty: ty.clone(), source });
        self.records.push(None);
        self.known.insert(key, id);
        Value::Weight(ty, id)
    }

    fn add(
        &mut self,
        weight: &WeightRef,
        rows: Range<usize>,
        columns: Range<usize>,
        log2: i32,
        shape: Vec<usize>,
    ) -> Result<Value, Error> {
        let ty = TensorType::new(self.dtype, shape.clone());
        let key = format!("{weight:?} {rows:?} {columns:?} {log2} {shape:?}");
        if let Some(id) = self.known.get(&key) {
            return Ok(Value::Weight(ty, *id));
        }
        let tensor = (self.load)(weight)?;
        // The width of a row as the ranges count it: vectors are one row, kernels a row for each channel.
        let width = match (&rows, tensor.shape().first()) {
            (Range { start: 0, end: 1 }, _) if tensor.shape().len() == 1 => tensor.shape().numel(),
            (_, Some(&first)) if first > 0 => tensor.shape().numel() / first,
            _ => 0,
        };
        let name = weight.name.clone();
        let (r, c, label, wide) =
            (rows.clone(), columns.clone(), name.clone(), self.dtype == DataType::Float32);
        let produce = move |out: &mut dyn Write| {
            if wide {
                return stream_wide(&tensor, width, r.clone(), c.clone(), log2, out);
            }
            stream(&tensor, width, r.clone(), c.clone(), log2, &label, out)
        };
        let id = WeightId(self.weights.len());
        self.weights.push(Weight {
            name: name.clone(),
            ty: ty.clone(),
            source: WeightSource::Stream(Arc::new(produce)),
        });
        self.records.push(Some(WeightRecord { tensor: name, rows, columns, log2_scale: log2, shape }));
        self.known.insert(key, id);
        Ok(Value::Weight(ty, id))
    }
}

/// Writes rows and columns of a tensor as fp16, times a power of two; numbers beyond fp16 are an error, not infinity.
fn stream(
    tensor: &Tensor,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    log2: i32,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Box<dyn StdError + Send + Sync>> {
    const FLUSH: usize = 1 << 20;
    let size = tensor.dtype().size();
    let scale = f32::powi(2.0, log2);
    let mut buffer: Vec<u8> = Vec::with_capacity(FLUSH + 2 * columns.len());
    let at = |row: usize| row * width + columns.start;
    let mut given_back = at(rows.start) * size;
    for row in rows {
        let end = (at(row) + columns.len()) * size;
        let bytes = &tensor.bytes()[at(row) * size..end];
        append_fp16(bytes, tensor.dtype(), scale, &mut buffer)
            .map_err(|b| beyond_fp16(name, at(row) + b.index, b.value, log2))?;
        if buffer.len() >= FLUSH {
            out.write_all(&buffer)?;
            buffer.clear();
            // What was read need not stay in memory: a conversion passes over more than there may be.
            tensor.bytes().slice(given_back..end).iter().for_each(Bytes::release);
            given_back = end;
        }
    }
    out.write_all(&buffer)?;
    tensor.bytes().slice(given_back..tensor.bytes().len()).iter().for_each(Bytes::release);
    Ok(())
}

/// Writes rows and columns of a tensor as f32, times a power of two.
fn stream_wide(
    tensor: &Tensor,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    log2: i32,
    out: &mut dyn Write,
) -> Result<(), Box<dyn StdError + Send + Sync>> {
    let (values, scale) = (tensor.to_f32()?, f32::powi(2.0, log2));
    for row in rows {
        let row = &values[row * width + columns.start..row * width + columns.end];
        let bytes: Vec<u8> = row.iter().flat_map(|v| (v * scale).to_le_bytes()).collect();
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// Why an element of a checkpoint's tensor cannot be stored as fp16, and what to do; `value` is scaled by 2^`log2` already.
pub fn beyond_fp16(name: &str, element: usize, value: f32, log2: i32) -> Box<dyn StdError + Send + Sync> {
    let remedy = match log2 {
        _ if value.is_nan() => "is no number; the checkpoint is damaged: download or export it again".into(),
        0 => "is beyond fp16; run this model with the CPU engine".into(),
        _ => format!("is beyond fp16 when scaled by 2^{log2}; convert with --no-rule scale-wide"),
    };
    format!("element {element} of `{name}`, {value:e}, {remedy}").into()
}

#[cfg(test)]
mod tests {
    use anemone_tensor::DType;

    use super::*;

    #[test]
    fn what_fp16_cannot_hold_is_named_with_its_place_and_remedy() {
        let say = |at: usize, value: f32, log2| {
            let mut values = [1.0f32; 12];
            values[at] = value;
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let tensor = Tensor::new(DType::F32, [3, 4], Bytes::from(bytes)).unwrap();
            let mut out = Vec::new();
            stream(&tensor, 4, 1..3, 2..4, log2, "w", &mut out).map_err(|e| e.to_string()).map(|()| out)
        };
        let one = half::f16::ONE.to_le_bytes().repeat(4);
        // Outside of the rows and columns that are stored.
        assert_eq!(say(2, 1e6, 0).unwrap(), one);
        assert_eq!(say(9, 1e6, 0).unwrap(), one);
        assert_eq!(
            say(11, 65_520.0, 0).unwrap_err(),
            "element 11 of `w`, 6.552e4, is beyond fp16; run this model with the CPU engine"
        );
        let scaled = say(6, -5000.0, 4).unwrap_err();
        assert!(scaled.starts_with("element 6 of `w`, -8e4, ") && scaled.ends_with("--no-rule scale-wide"));
        let nan = say(6, f32::NAN, 4).unwrap_err();
        assert!(nan.starts_with("element 6 of `w`, NaN, is no number; the checkpoint is damaged"), "{nan}");
    }
}
