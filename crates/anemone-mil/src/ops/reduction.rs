//! Many elements to one along axes.

use super::{Domain, Inputs, OpDef, Param, one};
use crate::{DataType, Type};

const AXES: Param = Param::new("axes", Domain::Int).optional().constant();
const KEEP: Param = Param::new("keep_dims", Domain::Bool).optional().constant();

const X: Param = Param::new("x", Domain::Numeric);

const fn over_axes(name: &'static str) -> OpDef {
    OpDef { name, params: &[X, AXES, KEEP], since: 6, infer: reduce }
}

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "reduce_argmax",
        params: &[
            Param::new("x", Domain::Numeric),
            Param::new("axis", Domain::Int).optional().constant(),
            KEEP,
            Param::new("output_dtype", Domain::Text).optional().constant(),
        ],
        since: 6,
        infer: argmax,
    },
    over_axes("reduce_max"),
    over_axes("reduce_mean"),
    over_axes("reduce_min"),
    over_axes("reduce_sum"),
    over_axes("reduce_sum_square"),
];

fn kept(i: &Inputs<'_>, axes: &[usize]) -> Result<Vec<usize>, String> {
    let keep = i.flag("keep_dims")?;
    let shape = i.tensor("x").shape.iter().enumerate();
    Ok(shape.filter_map(|(a, &d)| if axes.contains(&a) { keep.then_some(1) } else { Some(d) }).collect())
}

fn reduce(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let x = i.tensor("x");
    let axes = i.axes("axes", x.shape.len())?.unwrap_or_else(|| (0..x.shape.len()).collect());
    one(x.dtype, kept(i, &axes)?)
}

fn argmax(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let axis = i.axis("axis", i.tensor("x").shape.len())?;
    let dtype = match i.text("output_dtype")?.unwrap_or("int32") {
        "int32" => DataType::Int32,
        "uint16" => DataType::Uint16,
        other => return Err(format!("output_dtype `{other}` is none of int32, uint16")),
    };
    one(dtype, kept(i, &[axis])?)
}
