//! Compressed constants, expanded by the runtime.

use super::{Domain, Inputs, OpDef, Param, one, show};
use crate::Type;

pub(super) const OPS: &[OpDef] = &[
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
        name: "constexpr_lut_to_dense",
        params: &[
            Param::new("indices", Domain::Any).constant(),
            Param::new("lut", Domain::Any).constant(),
            Param::new("vector_axis", Domain::Int).optional().constant(),
        ],
        since: 9,
        infer: lut,
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
