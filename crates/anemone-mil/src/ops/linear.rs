//! Sums of products.

use std::collections::BTreeMap;

use super::{Domain, Inputs, OpDef, Param, broadcast, one, show};
use crate::Type;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "conv",
        params: &[
            Param::new("x", Domain::Float),
            Param::new("weight", Domain::Float),
            Param::new("bias", Domain::Float).optional().constant(),
            Param::new("strides", Domain::Int).optional().constant(),
            Param::new("pad_type", Domain::Text).optional().constant(),
            Param::new("pad", Domain::Int).optional().constant(),
            Param::new("dilations", Domain::Int).optional().constant(),
            Param::new("groups", Domain::Int).optional().constant(),
        ],
        since: 6,
        infer: conv,
    },
    OpDef {
        name: "einsum",
        params: &[
            Param::new("values", Domain::Float).variadic(),
            Param::new("equation", Domain::Text).constant(),
        ],
        since: 6,
        infer: einsum,
    },
    OpDef {
        name: "linear",
        params: &[
            Param::new("x", Domain::Float),
            Param::new("weight", Domain::Float),
            Param::new("bias", Domain::Float).optional().constant(),
        ],
        since: 6,
        infer: linear,
    },
    OpDef {
        name: "matmul",
        params: &[
            Param::new("x", Domain::Numeric),
            Param::new("y", Domain::Numeric),
            Param::new("transpose_x", Domain::Bool).optional().constant(),
            Param::new("transpose_y", Domain::Bool).optional().constant(),
        ],
        since: 6,
        infer: matmul,
    },
    OpDef {
        name: "scaled_dot_product_attention",
        params: &[
            Param::new("query", Domain::Float),
            Param::new("key", Domain::Float),
            Param::new("value", Domain::Float),
            Param::new("attn_mask", Domain::Any).optional(),
        ],
        since: 9,
        infer: attention,
    },
];

fn conv(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (x, w) = (i.tensor("x"), i.tensor("weight"));
    let rank = x.shape.len();
    if !(3..=5).contains(&rank) || w.shape.len() != rank {
        return Err(format!(
            "`x` {} and `weight` {} must have one rank from 3 to 5",
            show(&x.shape),
            show(&w.shape)
        ));
    }
    let spatial = rank - 2;
    let per_axis = |name: &str| -> Result<Vec<i64>, String> {
        let v = i.ints(name)?.unwrap_or_else(|| vec![1; spatial]);
        if v.len() != spatial || v.iter().any(|v| *v < 1) {
            return Err(format!("`{name}` must be {spatial} numbers of at least 1"));
        }
        Ok(v)
    };
    let (strides, dilations) = (per_axis("strides")?, per_axis("dilations")?);
    let groups = i.int("groups")?.unwrap_or(1);
    let groups = usize::try_from(groups).ok().filter(|g| *g > 0).ok_or("`groups` must be at least 1")?;
    let (out, inner) = (w.shape[0], w.shape[1]);
    if x.shape[1] != inner * groups || out % groups != 0 {
        return Err(format!(
            "`x` has {} channels, `weight` {} in {groups} groups",
            x.shape[1],
            show(&w.shape)
        ));
    }
    if let Some(bias) = i.optional("bias")
        && bias.shape != [out]
    {
        return Err(format!("`bias` is {}, expected [{out}]", show(&bias.shape)));
    }
    let pads = match i.text("pad_type")?.unwrap_or("valid") {
        "valid" => vec![0; 2 * spatial],
        "custom" => {
            let pad = i.ints("pad")?.unwrap_or_else(|| vec![0; 2 * spatial]);
            if pad.len() != 2 * spatial || pad.iter().any(|p| *p < 0) {
                return Err(format!("`pad` must be {} numbers of at least 0", 2 * spatial));
            }
            pad
        }
        other => return Err(format!("pad_type `{other}` is not supported; use `valid` or `custom`")),
    };
    let mut shape = vec![x.shape[0], out];
    for a in 0..spatial {
        let reach = (w.shape[a + 2] as i64 - 1) * dilations[a] + 1;
        let room = x.shape[a + 2] as i64 + pads[2 * a] + pads[2 * a + 1] - reach;
        if room < 0 {
            return Err(format!("the kernel {} does not fit `x` {}", show(&w.shape), show(&x.shape)));
        }
        shape.push((room / strides[a] + 1) as usize);
    }
    one(x.dtype, shape)
}

fn einsum(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let equation = i.text("equation")?.unwrap_or_default();
    let values = i.list("values");
    let (left, right) =
        equation.split_once("->").ok_or_else(|| format!("equation `{equation}` has no `->`"))?;
    let terms: Vec<&str> = left.split(',').map(str::trim).collect();
    if terms.len() != values.len() {
        return Err(format!(
            "equation `{equation}` names {} inputs, {} are given",
            terms.len(),
            values.len()
        ));
    }
    let mut sizes = BTreeMap::new();
    for (term, value) in terms.iter().zip(&values) {
        if term.chars().count() != value.shape.len() || value.dtype != values[0].dtype {
            return Err(format!("`{term}` of `{equation}` does not fit {value}"));
        }
        for (letter, &size) in term.chars().zip(&value.shape) {
            if *sizes.entry(letter).or_insert(size) != size {
                return Err(format!("`{letter}` of `{equation}` is both {} and {size}", sizes[&letter]));
            }
        }
    }
    let size = |letter| {
        sizes.get(&letter).copied().ok_or_else(|| format!("`{letter}` of `{equation}` is on no input"))
    };
    one(values[0].dtype, right.trim().chars().map(size).collect::<Result<Vec<_>, _>>()?)
}

fn linear(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (x, w) = (i.tensor("x"), i.tensor("weight"));
    let (Some(inner), &[out, expected]) = (x.shape.last(), &w.shape[..]) else {
        return Err("`x` needs an axis and `weight` two".into());
    };
    if *inner != expected {
        return Err(format!(
            "`x` {} and `weight` {} differ in their last axis",
            show(&x.shape),
            show(&w.shape)
        ));
    }
    let mut shape = x.shape.clone();
    *shape.last_mut().expect("checked above") = out;
    one(x.dtype, shape)
}

fn matmul(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (x, y) = (i.tensor("x"), i.tensor("y"));
    let (rx, ry) = (x.shape.len(), y.shape.len());
    if rx < 2 || ry < 2 {
        return Err(format!("`x` {} and `y` {} need two axes each", show(&x.shape), show(&y.shape)));
    }
    let ends = |s: &[usize], transposed: bool| {
        let (a, b) = (s[s.len() - 2], s[s.len() - 1]);
        if transposed { (b, a) } else { (a, b) }
    };
    let (m, k) = ends(&x.shape, i.flag("transpose_x")?);
    let (k2, n) = ends(&y.shape, i.flag("transpose_y")?);
    if k != k2 || x.dtype != y.dtype {
        return Err(format!("{x} and {y} do not multiply"));
    }
    let mut shape =
        broadcast(&x.shape[..rx - 2], &y.shape[..ry - 2]).ok_or("batch axes do not stretch to each other")?;
    shape.extend([m, n]);
    one(x.dtype, shape)
}

fn attention(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (q, k, v) = (i.tensor("query"), i.tensor("key"), i.tensor("value"));
    let r = q.shape.len();
    if r < 3 || k.shape.len() != r || v.shape.len() != r {
        return Err("query, key and value need one rank of at least 3".into());
    }
    if q.shape[r - 1] != k.shape[r - 1] || k.shape[r - 2] != v.shape[r - 2] {
        return Err(format!(
            "query {}, key {} and value {} do not fit",
            show(&q.shape),
            show(&k.shape),
            show(&v.shape)
        ));
    }
    let mut shape = q.shape.clone();
    shape[r - 1] = v.shape[r - 1];
    one(q.dtype, shape)
}
