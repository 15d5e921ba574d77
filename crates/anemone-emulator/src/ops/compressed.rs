//! Compressed weights, expanded to what Core ML computes with.

use anemone_mil::DataType;
use half::f16;

use super::layout::strides;
use crate::constants::{Constants, Expanded};
use crate::plan::LIMIT;
use crate::site::Site;
use crate::value::Data;

/// Expands a `constexpr` operation and names the result.
pub(crate) fn expand(site: &Site<'_>) -> Result<(), String> {
    let out = site.out(0);
    if out.numel() > LIMIT {
        return Err(format!("expands to {out}; the limit is {LIMIT} elements"));
    }
    let names: &[&str] = match site.op.kind.as_str() {
        "constexpr_lut_to_dense" => &["indices", "lut", "vector_axis"],
        _ => &["data", "scale", "offset"],
    };
    let values: Vec<_> = names.iter().map(|n| site.value(n)).collect();
    let key = format!("{} {out} {values:?}", site.op.kind);
    let missing = |i: usize| format!("input `{}` must be a constant", names[i]);
    let (first, second) = (values[0].ok_or_else(|| missing(0))?, values[1].ok_or_else(|| missing(1))?);
    let lut = site.op.kind == "constexpr_lut_to_dense";
    let axis = if lut { site.axis("vector_axis", out.shape.len().max(1), 0)? } else { 0 };
    let make = |constants: &Constants| {
        let (a, b) = (constants.data(first)?, constants.data(second)?);
        let (a_shape, b_shape) = (&first.ty().shape, &second.ty().shape);
        if lut {
            let Data::Ints(indices) = a else { return Err("`indices` are not integers".into()) };
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
        let offset = values[2].map(|v| constants.data(v)).transpose()?.map(|d| d.to_f32());
        let dense = shift_scale(&a.to_f32(), a_shape, &b.to_f32(), b_shape, offset.as_deref(), out.dtype);
        Expanded::floats(out.dtype, &dense)
    };
    site.constants.borrow_mut().expand(site.op.outputs[0], key, make)
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
