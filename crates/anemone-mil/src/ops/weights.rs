//! Compressed constants, expanded by the runtime.

use super::{Domain, Inputs, OpDef, Param, normal_axis, one, show};
use crate::Type;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "constexpr_affine_dequantize",
        params: &[
            Param::new("quantized_data", Domain::Int).constant(),
            Param::new("zero_point", Domain::Int).constant(),
            Param::new("scale", Domain::Float).constant(),
            Param::new("axis", Domain::Int).constant(),
        ],
        since: 7,
        infer: affine,
    },
    OpDef {
        name: "constexpr_blockwise_shift_scale",
        params: &[
            Param::new("data", Domain::Any).constant(),
            Param::new("scale", Domain::Float).constant(),
            Param::new("offset", Domain::Any).optional().constant(),
        ],
        since: 9,
        infer: shift_scale,
    },
    OpDef {
        name: "constexpr_cast",
        params: &[
            Param::new("source_val", Domain::Float).constant(),
            Param::new("output_dtype", Domain::Text).constant(),
        ],
        since: 7,
        infer: cast,
    },
    OpDef {
        name: "constexpr_lut_to_dense",
        params: &[
            Param::new("indices", Domain::Int).constant(),
            Param::new("lut", Domain::Any).constant(),
            Param::new("shape", Domain::Int).constant(),
        ],
        since: 7,
        infer: packed_lut,
    },
    OpDef {
        name: "constexpr_lut_to_dense",
        params: &[
            Param::new("indices", Domain::Any).constant(),
            Param::new("lut", Domain::Any).constant(),
            Param::new("vector_axis", Domain::Int).optional().constant(),
        ],
        since: 9,
        infer: lut,
    },
    OpDef {
        name: "constexpr_sparse_to_dense",
        params: &[
            Param::new("nonzero_data", Domain::Any).constant(),
            Param::new("mask", Domain::Int).constant(),
            Param::new("shape", Domain::Int).constant(),
        ],
        since: 7,
        infer: packed_sparse,
    },
    // Later versions give the mask as bits of the dense shape.
    OpDef {
        name: "constexpr_sparse_to_dense",
        params: &[
            Param::new("nonzero_data", Domain::Any).constant(),
            Param::new("mask", Domain::Any).constant(),
        ],
        since: 9,
        infer: sparse,
    },
];

/// Every axis of `whole` must be a multiple of the same axis of `groups`.
fn divides(groups: &[usize], whole: &[usize]) -> bool {
    groups.len() == whole.len() && groups.iter().zip(whole).all(|(g, w)| *g > 0 && w % g == 0)
}

fn shift_scale(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (data, scale) = (i.tensor("data"), i.tensor("scale"));
    if !divides(&scale.shape, &data.shape) {
        return Err(format!("`scale` {} does not divide `data` {}", show(&scale.shape), show(&data.shape)));
    }
    if let Some(offset) = i.optional("offset")
        && (offset.shape != scale.shape || offset.dtype != data.dtype)
    {
        return Err(format!("`offset` is {offset}, expected the shape of `scale` and the type of `data`"));
    }
    one(scale.dtype, data.shape.clone())
}

fn affine(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (data, scale, zero) = (i.tensor("quantized_data"), i.tensor("scale"), i.tensor("zero_point"));
    let axis = i.int("axis")?.unwrap_or(0);
    let axis =
        normal_axis(axis, data.shape.len()).ok_or_else(|| format!("axis {axis} is outside the data"))?;
    let fits = |t: &crate::TensorType| t.shape.is_empty() || t.shape == [data.shape[axis]];
    if !fits(scale) || !fits(zero) || zero.dtype != data.dtype {
        return Err(format!(
            "`scale` {scale} and `zero_point` {zero} are neither scalars nor one value for each of {} along axis {axis} of `quantized_data` {data}",
            data.shape[axis]
        ));
    }
    one(scale.dtype, data.shape.clone())
}

fn cast(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    match i.text("output_dtype")? {
        Some("fp32") => one(crate::DataType::Float32, i.tensor("source_val").shape.clone()),
        other => Err(format!("`output_dtype` is {other:?}, expected \"fp32\"")),
    }
}

/// The shape input of forms that pack their data.
fn dense_shape(i: &Inputs<'_>) -> Result<Vec<usize>, String> {
    let dims = i.ints("shape")?.unwrap_or_default();
    let dims: Option<Vec<usize>> = dims.iter().map(|d| usize::try_from(*d).ok()).collect();
    let fits =
        |s: &Vec<usize>| s.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).is_some_and(|n| n < 1 << 40);
    dims.filter(fits).ok_or_else(|| "`shape` is none a tensor can have".to_string())
}

fn packed_lut(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (indices, lut, shape) = (i.tensor("indices"), i.tensor("lut"), dense_shape(i)?);
    let entries = lut.numel();
    if !matches!(entries, 2 | 4 | 16 | 64 | 256) || lut.shape.len() != 1 {
        return Err(format!("`lut` is {}, expected 2, 4, 16, 64 or 256 entries", show(&lut.shape)));
    }
    let bits = entries.trailing_zeros() as usize;
    let packed = (shape.iter().product::<usize>() * bits).div_ceil(8);
    if indices.dtype != crate::DataType::Uint8 || indices.shape != [packed] {
        return Err(format!(
            "`indices` are {indices}, expected {packed} bytes for {} of {bits} bits",
            show(&shape)
        ));
    }
    one(lut.dtype, shape)
}

fn packed_sparse(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (data, mask, shape) = (i.tensor("nonzero_data"), i.tensor("mask"), dense_shape(i)?);
    let packed = shape.iter().product::<usize>().div_ceil(8);
    if mask.dtype != crate::DataType::Uint8 || mask.shape != [packed] || data.shape.len() != 1 {
        return Err(format!("`mask` is {mask}, expected {packed} bytes for {}", show(&shape)));
    }
    one(data.dtype, shape)
}

fn sparse(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (data, mask) = (i.tensor("nonzero_data"), i.tensor("mask"));
    if mask.dtype != crate::DataType::Uint1 || data.shape.len() != 1 {
        return Err(format!(
            "`mask` is {mask}, expected uint1, and `nonzero_data` {data}, expected one axis"
        ));
    }
    one(data.dtype, mask.shape.clone())
}

fn lut(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (indices, lut) = (i.tensor("indices"), i.tensor("lut"));
    let rank = indices.shape.len();
    let bits = indices.dtype.bits().unwrap_or(0);
    if !matches!(bits, 1 | 2 | 3 | 4 | 6 | 8) {
        return Err(format!("`indices` are {}, expected 1, 2, 3, 4, 6 or 8 bits", indices.dtype));
    }
    if lut.shape.len() != rank + 2 || lut.shape[rank] != 1 << bits {
        return Err(format!(
            "`lut` is {}, expected {rank} group axes, {} entries, a vector size",
            show(&lut.shape),
            1 << bits
        ));
    }
    let vector = lut.shape[rank + 1];
    if !divides(&lut.shape[..rank], &indices.shape) {
        return Err(format!(
            "`lut` groups {} do not divide `indices` {}",
            show(&lut.shape[..rank]),
            show(&indices.shape)
        ));
    }
    let mut shape = indices.shape.clone();
    if vector > 1 {
        let axis = i.axis("vector_axis", rank)?;
        shape[axis] *= vector;
    }
    one(lut.dtype, shape)
}
