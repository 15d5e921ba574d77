//! Compressed weights, expanded to what Core ML computes with.

use anemone_mil::{DataType, Value};
use anemone_tensor::DType;
use half::f16;

use super::layout::strides;
use crate::constants::{Constants, Expanded};
use crate::plan::LIMIT;
use crate::site::Site;
use crate::value::{Data, Stored};

/// Expands a `constexpr` operation and names the result.
pub(crate) fn expand(site: &Site<'_>) -> Result<(), String> {
    let out = site.out(0);
    if out.numel() > LIMIT {
        return Err(format!("expands to {out}; the limit is {LIMIT} elements"));
    }
    let kind = site.op.kind.as_str();
    // The third input says what is left to know, or is not there.
    let names: &[&str] = match kind {
        "constexpr_lut_to_dense" if site.has("shape") => &["indices", "lut", "shape"],
        "constexpr_lut_to_dense" => &["indices", "lut", "vector_axis"],
        "constexpr_affine_dequantize" => &["quantized_data", "scale", "zero_point"],
        "constexpr_sparse_to_dense" => &["nonzero_data", "mask", "shape"],
        "constexpr_cast" => &["source_val", "output_dtype"],
        _ => &["data", "scale", "offset"],
    };
    let values: Vec<_> = names.iter().map(|n| site.value(n)).collect();
    let channel =
        if kind == "constexpr_affine_dequantize" { site.axis("axis", out.shape.len(), 0)? } else { 0 };
    let key = format!("{kind} {out} {values:?} {channel}");
    let missing = |i: usize| format!("input `{}` must be a constant", names[i]);
    let (first, second) = (values[0].ok_or_else(|| missing(0))?, values[1].ok_or_else(|| missing(1))?);
    let packed = site.has("shape");
    let lut = kind == "constexpr_lut_to_dense";
    let axis = if lut && !packed { site.axis("vector_axis", out.shape.len().max(1), 0)? } else { 0 };
    let make = |constants: &Constants| {
        if lut
            && !packed
            && out.dtype == DataType::Float16
            && let Some(dense) = rows_of_tables(constants, first, second)?
        {
            return Ok(dense);
        }
        let a = constants.data(first)?;
        if kind == "constexpr_cast" {
            return Expanded::floats(out.dtype, &a.to_f32());
        }
        let b = constants.data(second)?;
        let (a_shape, b_shape) = (&first.ty().shape, &second.ty().shape);
        if kind == "constexpr_sparse_to_dense" {
            let Data::Ints(mask) = b else { return Err("`mask` holds no bits".into()) };
            let mask = if packed { unpacked(&mask, 1, out.numel())? } else { mask.to_vec() };
            let dense = spread(&a.to_f32(), &mask)?;
            return collected(out.dtype, &dense);
        }
        if lut {
            let Data::Ints(indices) = a else { return Err("`indices` are not integers".into()) };
            if packed {
                let entries = second.ty().numel();
                let indices = unpacked(&indices, entries.trailing_zeros() as usize, out.numel())?;
                let table = b.to_f32();
                let dense: Vec<f32> = indices.iter().map(|i| table[*i as usize]).collect();
                return collected(out.dtype, &dense);
            }
            return match b {
                Data::Floats(table) => Expanded::floats(
                    out.dtype,
                    &look_up(&indices, a_shape, &table, b_shape, axis, &out.shape)?,
                ),
                Data::Ints(table) => Ok(Expanded::Ints(Data::ints(look_up(
                    &indices, a_shape, &table, b_shape, axis, &out.shape,
                )?))),
            };
        }
        let (mut scale, mut groups) = (b.to_f32(), b_shape.clone());
        let mut offset = values[2].map(|v| constants.data(v)).transpose()?.map(|d| d.to_f32());
        if kind == "constexpr_affine_dequantize" {
            // One of each for every index of an axis, seen as groups; a single one serves them all.
            let count = out.shape.get(channel).copied().unwrap_or(1);
            groups = vec![1; out.shape.len()];
            groups[channel] = count;
            for numbers in [Some(&mut scale), offset.as_mut()].into_iter().flatten() {
                if let &[one] = &numbers[..] {
                    *numbers = vec![one; count];
                }
            }
        }
        let dense = shift_scale(&a.to_f32(), a_shape, &scale, &groups, offset.as_deref(), out.dtype);
        Expanded::floats(out.dtype, &dense)
    };
    site.constants.borrow_mut().expand(site.op.outputs[0], key, make)
}

/// The usual case, without a number of 32 bits for each weight on the way: fp16 tables of single numbers for equal runs of the
/// first axis.
fn rows_of_tables(constants: &Constants, codes: &Value, table: &Value) -> Result<Option<Expanded>, String> {
    let (shape, count) = (&table.ty().shape, codes.ty().numel());
    let [groups, ones @ .., entries, 1] = &shape[..] else { return Ok(None) };
    if *groups == 0 || ones.iter().any(|d| *d != 1) || !count.is_multiple_of(*groups) {
        return Ok(None);
    }
    let Some(codes) = constants.codes(codes) else { return Ok(None) };
    let table: Vec<[u8; 2]> =
        constants.data(table)?.to_f32().iter().map(|v| f16::from_f32(*v).to_le_bytes()).collect();
    let mut bytes = Vec::with_capacity(2 * count);
    for (codes, table) in codes.chunks((count / groups).max(1)).zip(table.chunks(*entries)) {
        for code in codes {
            let entry = table.get(usize::from(*code));
            bytes.extend(
                entry.ok_or_else(|| format!("index {code} is outside a table of {entries} entries"))?,
            );
        }
    }
    Ok(Some(Expanded::Floats(Stored { dtype: DType::F16, bytes: bytes.into() })))
}

/// An expansion in the type it is declared in.
fn collected(dtype: DataType, dense: &[f32]) -> Result<Expanded, String> {
    if dtype.is_float() {
        return Expanded::floats(dtype, dense);
    }
    Ok(Expanded::Ints(Data::ints(dense.iter().map(|v| *v as i32).collect())))
}

/// Codes of `bits` bits out of bytes.
fn unpacked(bytes: &[i32], bits: usize, count: usize) -> Result<Vec<i32>, String> {
    let bytes: Vec<u8> = bytes.iter().map(|b| *b as u8).collect();
    let codes = anemone_mil::unpack_bits(&bytes, bits, count);
    let codes = codes.ok_or_else(|| format!("{} bytes are too few for {count} codes", bytes.len()))?;
    Ok(codes.into_iter().map(i32::from).collect())
}

/// Values in order where the mask is set, zero elsewhere.
fn spread(values: &[f32], mask: &[i32]) -> Result<Vec<f32>, String> {
    let mut left = values.iter();
    let wrong = || format!("`mask` does not set {} elements", values.len());
    let place = |m: &i32| if *m == 0 { Some(0.0) } else { left.next().copied() };
    let dense = mask.iter().map(place).collect::<Option<Vec<f32>>>().ok_or_else(wrong)?;
    if left.next().is_some() { Err(wrong()) } else { Ok(dense) }
}

/// For each element of `shape`, the number of its group when every axis is cut into the groups of `groups`.
fn group_of(shape: &[usize], groups: &[usize], mut each: impl FnMut(usize, usize)) {
    let own = strides(groups);
    let block: Vec<usize> = shape.iter().zip(groups).map(|(s, g)| s / (*g).max(1)).collect();
    let mut index = vec![0usize; shape.len()];
    for i in 0..shape.iter().product() {
        each(i, index.iter().zip(&block).zip(&own).map(|((i, b), s)| i / b * s).sum());
        for a in (0..shape.len()).rev() {
            index[a] += 1;
            if index[a] < shape[a] {
                break;
            }
            index[a] = 0;
        }
    }
}

fn look_up<T: Copy + Default>(
    indices: &[i32],
    shape: &[usize],
    table: &[T],
    table_shape: &[usize],
    axis: usize,
    out_shape: &[usize],
) -> Result<Vec<T>, String> {
    let rank = shape.len();
    let (entries, vector) = (table_shape[rank], table_shape[rank + 1]);
    let mut out = vec![T::default(); out_shape.iter().product()];
    let inner: usize = shape.get(axis + 1..).unwrap_or_default().iter().product();
    let mut bad = None;
    group_of(shape, &table_shape[..rank], |i, group| {
        let Some(entry) = usize::try_from(indices[i]).ok().filter(|e| *e < entries) else {
            bad = Some(indices[i]);
            return;
        };
        let from = &table[(group * entries + entry) * vector..][..vector];
        // Along the vector axis an index becomes `vector` elements.
        let (before, after) = (i / inner, i % inner);
        for (j, v) in from.iter().enumerate() {
            out[(before * vector + j) * inner + after] = *v;
        }
    });
    bad.map_or(Ok(out), |b| Err(format!("index {b} is outside a table of {entries} entries")))
}

/// `scale · (data − offset)`, each step rounded to the type of the scale.
fn shift_scale(
    data: &[f32],
    shape: &[usize],
    scale: &[f32],
    groups: &[usize],
    offset: Option<&[f32]>,
    dtype: DataType,
) -> Vec<f32> {
    let round = |v: f32| if dtype == DataType::Float16 { f16::from_f32(v).to_f32() } else { v };
    let mut out = vec![0.0; data.len()];
    group_of(shape, groups, |i, group| {
        let shifted = offset.map_or(data[i], |o| round(round(data[i]) - o[group]));
        out[i] = round(scale[group] * round(shifted));
    });
    out
}
