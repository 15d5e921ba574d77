//! Normalisations.

use super::{Domain, Inputs, OpDef, Param};
use crate::Type;

const X: Param = Param::new("x", Domain::Float);

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "batch_norm",
        params: &[
            X,
            Param::new("mean", Domain::Float).constant(),
            Param::new("variance", Domain::Float).constant(),
            Param::new("gamma", Domain::Float).optional().constant(),
            Param::new("beta", Domain::Float).optional().constant(),
            Param::new("epsilon", Domain::Float).optional().constant(),
        ],
        since: 6,
        infer: batch_norm,
    },
    OpDef {
        name: "l2_norm",
        params: &[X, Param::new("epsilon", Domain::Float).optional().constant()],
        since: 6,
        infer: same,
    },
    OpDef {
        name: "layer_norm",
        params: &[
            X,
            Param::new("axes", Domain::Int).optional().constant(),
            Param::new("gamma", Domain::Float).optional().constant(),
            Param::new("beta", Domain::Float).optional().constant(),
            Param::new("epsilon", Domain::Float).optional().constant(),
        ],
        since: 6,
        infer: layer_norm,
    },
];

fn same(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    Ok(vec![Type::Tensor(i.tensor("x").clone())])
}

fn batch_norm(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let channels = i.tensor("x").shape.get(1).copied().ok_or("`x` needs a channel axis")?;
    for name in ["mean", "variance", "gamma", "beta"] {
        if i.optional(name).is_some_and(|t| t.shape != [channels]) {
            return Err(format!("`{name}` must be [{channels}]"));
        }
    }
    same(i)
}

fn layer_norm(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let x = i.tensor("x");
    let axes = i.axes("axes", x.shape.len())?.unwrap_or_else(|| (0..x.shape.len()).collect());
    let shape: Vec<usize> = axes.iter().map(|a| x.shape[*a]).collect();
    for name in ["gamma", "beta"] {
        if i.optional(name).is_some_and(|t| t.shape != shape) {
            return Err(format!("`{name}` must be {shape:?}"));
        }
    }
    same(i)
}
