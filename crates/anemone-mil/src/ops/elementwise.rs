//! One result element from the elements at the same place.

use super::{Domain, Inputs, OpDef, Param, broadcast, one, show};
use crate::{DataType, Type};

const X: Param = Param::new("x", Domain::Float);
const NX: Param = Param::new("x", Domain::Numeric);
const NY: Param = Param::new("y", Domain::Numeric);

const fn unary(name: &'static str) -> OpDef {
    OpDef { name, params: &[X], since: 6, infer: same }
}

const fn binary(name: &'static str) -> OpDef {
    OpDef { name, params: &[NX, NY], since: 6, infer: arithmetic }
}

const fn comparison(name: &'static str) -> OpDef {
    OpDef { name, params: &[NX, NY], since: 6, infer: compare }
}

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "abs", params: &[NX], since: 6, infer: same },
    binary("add"),
    OpDef {
        name: "cast",
        params: &[Param::new("x", Domain::Any), Param::new("dtype", Domain::Text).constant()],
        since: 6,
        infer: cast,
    },
    OpDef {
        name: "clip",
        params: &[
            X,
            Param::new("alpha", Domain::Float).constant(),
            Param::new("beta", Domain::Float).constant(),
        ],
        since: 6,
        infer: same,
    },
    unary("cos"),
    comparison("equal"),
    unary("erf"),
    unary("exp"),
    OpDef {
        name: "gelu",
        params: &[X, Param::new("mode", Domain::Text).optional().constant()],
        since: 6,
        infer: gelu,
    },
    comparison("greater"),
    comparison("greater_equal"),
    OpDef { name: "identity", params: &[Param::new("x", Domain::Any)], since: 6, infer: same },
    OpDef {
        name: "inverse",
        params: &[X, Param::new("epsilon", Domain::Float).optional().constant()],
        since: 6,
        infer: same,
    },
    comparison("less"),
    comparison("less_equal"),
    OpDef {
        name: "log",
        params: &[X, Param::new("epsilon", Domain::Float).optional().constant()],
        since: 6,
        infer: same,
    },
    OpDef {
        name: "logical_and",
        params: &[Param::new("x", Domain::Bool), Param::new("y", Domain::Bool)],
        since: 6,
        infer: compare,
    },
    binary("maximum"),
    binary("minimum"),
    binary("mul"),
    binary("pow"),
    binary("real_div"),
    unary("relu"),
    OpDef {
        name: "rsqrt",
        params: &[X, Param::new("epsilon", Domain::Float).optional().constant()],
        since: 6,
        infer: same,
    },
    OpDef {
        name: "select",
        params: &[
            Param::new("cond", Domain::Bool),
            Param::new("a", Domain::Any),
            Param::new("b", Domain::Any),
        ],
        since: 6,
        infer: select,
    },
    unary("sigmoid"),
    unary("silu"),
    unary("sin"),
    OpDef {
        name: "softmax",
        params: &[X, Param::new("axis", Domain::Int).optional().constant()],
        since: 6,
        infer: softmax,
    },
    unary("sqrt"),
    OpDef { name: "square", params: &[NX], since: 6, infer: same },
    binary("sub"),
    unary("tanh"),
];

fn same(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    Ok(vec![Type::Tensor(i.tensor("x").clone())])
}

fn operands(i: &Inputs<'_>) -> Result<(DataType, Vec<usize>), String> {
    let (x, y) = (i.tensor("x"), i.tensor("y"));
    if x.dtype != y.dtype {
        return Err(format!("`x` is {} and `y` is {}", x.dtype, y.dtype));
    }
    let shape = broadcast(&x.shape, &y.shape);
    let shape = shape.ok_or_else(|| {
        format!("shapes {} and {} do not stretch to each other", show(&x.shape), show(&y.shape))
    })?;
    Ok((x.dtype, shape))
}

fn arithmetic(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (dtype, shape) = operands(i)?;
    one(dtype, shape)
}

fn compare(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    one(DataType::Bool, operands(i)?.1)
}

fn cast(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let name = i.text("dtype")?.unwrap_or_default();
    let dtype = [
        DataType::Bool,
        DataType::Float16,
        DataType::Float32,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Uint8,
        DataType::Uint16,
    ]
    .into_iter()
    .find(|d| d.name() == name);
    one(dtype.ok_or_else(|| format!("cannot cast to `{name}`"))?, i.tensor("x").shape.clone())
}

fn gelu(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    match i.text("mode")?.unwrap_or("EXACT") {
        "EXACT" | "TANH_APPROXIMATION" | "SIGMOID_APPROXIMATION" => same(i),
        other => Err(format!("mode `{other}` is none of EXACT, TANH_APPROXIMATION, SIGMOID_APPROXIMATION")),
    }
}

fn select(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (cond, a, b) = (i.tensor("cond"), i.tensor("a"), i.tensor("b"));
    if a.dtype != b.dtype {
        return Err(format!("`a` is {} and `b` is {}", a.dtype, b.dtype));
    }
    let shape = broadcast(&a.shape, &b.shape).and_then(|s| broadcast(&s, &cond.shape));
    one(a.dtype, shape.ok_or("shapes do not stretch to each other")?)
}

fn softmax(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    i.axis("axis", i.tensor("x").shape.len())?;
    same(i)
}
