//! States: tensors that live across predictions.

use super::{Domain, Inputs, OpDef, Param};
use crate::Type;

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "read_state", params: &[Param::new("input", Domain::State)], since: 9, infer: read },
    OpDef {
        name: "write_state",
        params: &[Param::new("input", Domain::State), Param::new("data", Domain::Numeric)],
        since: 9,
        infer: write,
    },
];

fn read(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    Ok(vec![Type::Tensor(i.tensor("input").clone())])
}

fn write(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (state, data) = (i.tensor("input"), i.tensor("data"));
    if state == data { Ok(Vec::new()) } else { Err(format!("the state holds {state}, `data` is {data}")) }
}
