//! Rearrangements: no arithmetic.

use super::{Domain, Inputs, OpDef, Param, one, show};
use crate::Type;

const X: Param = Param::new("x", Domain::Any);

const fn constant_ints(name: &'static str) -> Param {
    Param::new(name, Domain::Int).constant()
}

const fn constant_flags(name: &'static str) -> Param {
    Param::new(name, Domain::Bool).optional().constant()
}

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "concat",
        params: &[
            Param::new("values", Domain::Any).variadic(),
            constant_ints("axis"),
            Param::new("interleave", Domain::Bool).optional().constant(),
        ],
        since: 6,
        infer: concat,
    },
    OpDef { name: "expand_dims", params: &[X, constant_ints("axes")], since: 6, infer: expand_dims },
    OpDef {
        name: "gather",
        params: &[
            X,
            Param::new("indices", Domain::Int),
            constant_ints("axis").optional(),
            constant_ints("batch_dims").optional(),
            Param::new("validate_indices", Domain::Bool).optional().constant(),
        ],
        since: 6,
        infer: gather,
    },
    OpDef { name: "reshape", params: &[X, constant_ints("shape")], since: 6, infer: reshape },
    OpDef {
        name: "slice_by_index",
        params: &[
            X,
            Param::new("begin", Domain::Int),
            Param::new("end", Domain::Int),
            constant_ints("stride").optional(),
            constant_flags("begin_mask"),
            constant_flags("end_mask"),
            constant_flags("squeeze_mask"),
        ],
        since: 6,
        infer: slice_by_index,
    },
    OpDef {
        name: "slice_by_size",
        params: &[X, Param::new("begin", Domain::Int), constant_ints("size")],
        since: 6,
        infer: slice_by_size,
    },
    OpDef {
        name: "slice_update",
        params: &[
            X,
            Param::new("update", Domain::Any),
            Param::new("begin", Domain::Int),
            Param::new("end", Domain::Int),
            constant_ints("stride").optional(),
            constant_flags("begin_mask"),
            constant_flags("end_mask"),
            constant_flags("squeeze_mask"),
        ],
        since: 9,
        infer: slice_update,
    },
    OpDef {
        name: "split",
        params: &[
            X,
            constant_ints("num_splits").optional(),
            constant_ints("split_sizes").optional(),
            constant_ints("axis"),
        ],
        since: 6,
        infer: split,
    },
    OpDef { name: "squeeze", params: &[X, constant_ints("axes").optional()], since: 6, infer: squeeze },
    OpDef {
        name: "stack",
        params: &[Param::new("values", Domain::Any).variadic(), constant_ints("axis")],
        since: 6,
        infer: stack,
    },
    OpDef { name: "tile", params: &[X, constant_ints("reps")], since: 6, infer: tile },
    OpDef { name: "transpose", params: &[X, constant_ints("perm")], since: 6, infer: transpose },
];

fn concat(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let values = i.list("values");
    let first = values[0];
    let axis = i.axis("axis", first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[axis] = 0;
    for v in &values {
        let fits = v.dtype == first.dtype
            && v.shape.len() == shape.len()
            && v.shape.iter().enumerate().all(|(a, d)| a == axis || *d == shape[a]);
        if !fits {
            return Err(format!("{v} does not join {first} along axis {axis}"));
        }
        shape[axis] += v.shape[axis];
    }
    if i.flag("interleave")? && values.iter().any(|v| v.shape[axis] != first.shape[axis]) {
        return Err("interleaving needs equal sizes".into());
    }
    one(first.dtype, shape)
}

fn expand_dims(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let x = i.tensor("x");
    let count = i.ints("axes")?.map_or(0, |a| a.len());
    let mut axes = i.axes("axes", x.shape.len() + count)?.unwrap_or_default();
    axes.sort_unstable();
    let mut shape = x.shape.clone();
    for axis in axes {
        shape.insert(axis, 1);
    }
    one(x.dtype, shape)
}

fn gather(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (x, indices) = (i.tensor("x"), i.tensor("indices"));
    if i.int("batch_dims")?.unwrap_or(0) != 0 {
        return Err("batch_dims above 0 is not supported".into());
    }
    let axis = if i.has("axis") { i.axis("axis", x.shape.len())? } else { 0 };
    let mut shape = x.shape[..axis].to_vec();
    shape.extend(&indices.shape);
    shape.extend(x.shape.get(axis + 1..).unwrap_or_default());
    one(x.dtype, shape)
}

fn reshape(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let x = i.tensor("x");
    let wanted = i.ints("shape")?.unwrap_or_default();
    let known: usize = wanted.iter().filter(|d| **d > 0).map(|d| *d as usize).product();
    let dim = |d: i64| match d {
        -1 => Ok(x.numel() / known.max(1)),
        d if d > 0 => Ok(d as usize),
        d => Err(format!("a dimension of {d} is not supported")),
    };
    let shape = wanted.into_iter().map(dim).collect::<Result<Vec<_>, _>>()?;
    if shape.iter().product::<usize>() != x.numel() {
        return Err(format!("{} elements do not form {}", x.numel(), show(&shape)));
    }
    one(x.dtype, shape)
}

/// Extent of each axis of a slice, before axes are squeezed; needs constant bounds where no mask stands in for them.
fn extents(i: &Inputs<'_>) -> Result<Vec<(usize, bool)>, String> {
    let x = i.tensor("x");
    let rank = x.shape.len();
    let per_axis = |name: &str| -> Result<Vec<bool>, String> {
        let v = i.flags(name)?.unwrap_or_else(|| vec![false; rank]);
        if v.len() == rank { Ok(v) } else { Err(format!("`{name}` has {} values for rank {rank}", v.len())) }
    };
    let (begin_mask, end_mask, squeeze) =
        (per_axis("begin_mask")?, per_axis("end_mask")?, per_axis("squeeze_mask")?);
    let (begin, end) = (i.ints("begin")?.unwrap_or_default(), i.ints("end")?.unwrap_or_default());
    let stride = i.ints("stride")?.unwrap_or_else(|| vec![1; rank]);
    if [begin.len(), end.len(), stride.len()] != [rank; 3] {
        return Err(format!("begin, end and stride need {rank} values each"));
    }
    let mut out = Vec::new();
    for a in 0..rank {
        let n = x.shape[a] as i64;
        let place = |v: i64| if v < 0 { v + n } else { v };
        let (from, to) =
            (if begin_mask[a] { 0 } else { place(begin[a]) }, if end_mask[a] { n } else { place(end[a]) });
        if squeeze[a] {
            if !(0..n).contains(&from) {
                return Err(format!("index {from} of axis {a} is outside {n}"));
            }
            out.push((1, true));
            continue;
        }
        if stride[a] < 1 || from < 0 || to > n || from >= to {
            return Err(format!("{from}..{to} by {} does not lie in axis {a} of {n}", stride[a]));
        }
        out.push((((to - from) as usize).div_ceil(stride[a] as usize), false));
    }
    Ok(out)
}

fn slice_by_index(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let shape: Vec<usize> =
        extents(i)?.into_iter().filter(|(_, squeezed)| !squeezed).map(|(n, _)| n).collect();
    one(i.tensor("x").dtype, shape)
}

fn slice_update(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let (x, update) = (i.tensor("x"), i.tensor("update"));
    if x.dtype != update.dtype || x.shape.len() != update.shape.len() {
        return Err(format!("{update} does not update {x}"));
    }
    // Bounds may be computed at run time; what is known is checked.
    if i.ints("begin").is_ok() && i.ints("end").is_ok() {
        let shape: Vec<usize> = extents(i)?.into_iter().map(|(n, _)| n).collect();
        if shape != update.shape {
            return Err(format!("the slice is {}, `update` {}", show(&shape), show(&update.shape)));
        }
    }
    one(x.dtype, x.shape.clone())
}

fn slice_by_size(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let x = i.tensor("x");
    let size = i.ints("size")?.unwrap_or_default();
    if size.len() != x.shape.len() {
        return Err(format!("`size` needs {} values", x.shape.len()));
    }
    let begin = i.ints("begin").ok().flatten();
    let mut shape = Vec::new();
    for (a, (&s, &n)) in size.iter().zip(&x.shape).enumerate() {
        let from = begin.as_ref().and_then(|b| b.get(a)).copied();
        let extent = match (s, from) {
            (-1, Some(from)) => n as i64 - from,
            (-1, None) => return Err("a size of -1 needs a constant `begin`".into()),
            (s, _) => s,
        };
        if extent < 1 || from.unwrap_or(0) + extent > n as i64 {
            return Err(format!("size {extent} does not lie in axis {a} of {n}"));
        }
        shape.push(extent as usize);
    }
    one(x.dtype, shape)
}

fn split(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let x = i.tensor("x");
    let axis = i.axis("axis", x.shape.len())?;
    let n = x.shape[axis];
    let sizes: Vec<usize> = match (i.ints("split_sizes")?, i.int("num_splits")?) {
        (Some(sizes), _) => sizes.iter().map(|s| usize::try_from(*s).unwrap_or(0)).collect(),
        (None, Some(count)) if count > 0 && n.is_multiple_of(count as usize) => {
            vec![n / count as usize; count as usize]
        }
        _ => return Err(format!("give `split_sizes`, or `num_splits` that divides {n}")),
    };
    if sizes.contains(&0) || sizes.iter().sum::<usize>() != n {
        return Err(format!("parts {} do not add up to {n}", show(&sizes)));
    }
    let part = |size: usize| {
        let mut t = x.clone();
        t.shape[axis] = size;
        Type::Tensor(t)
    };
    Ok(sizes.into_iter().map(part).collect())
}

fn squeeze(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let x = i.tensor("x");
    let ones = || (0..x.shape.len()).filter(|a| x.shape[*a] == 1).collect();
    let axes = i.axes("axes", x.shape.len())?.unwrap_or_else(ones);
    if let Some(a) = axes.iter().find(|a| x.shape[**a] != 1) {
        return Err(format!("axis {a} of {} is not 1", show(&x.shape)));
    }
    let kept = x.shape.iter().enumerate().filter(|(a, _)| !axes.contains(a)).map(|(_, d)| *d);
    one(x.dtype, kept.collect::<Vec<_>>())
}

fn stack(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let values = i.list("values");
    if let Some(v) = values.iter().find(|v| **v != values[0]) {
        return Err(format!("{v} does not stack on {}", values[0]));
    }
    let axis = i.axis("axis", values[0].shape.len() + 1)?;
    let mut shape = values[0].shape.clone();
    shape.insert(axis, values.len());
    one(values[0].dtype, shape)
}

fn tile(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let x = i.tensor("x");
    let reps = i.ints("reps")?.unwrap_or_default();
    if reps.len() != x.shape.len() || reps.iter().any(|r| *r < 1) {
        return Err(format!("`reps` must be {} numbers of at least 1", x.shape.len()));
    }
    one(x.dtype, x.shape.iter().zip(&reps).map(|(d, r)| d * *r as usize).collect::<Vec<_>>())
}

fn transpose(i: &Inputs<'_>) -> Result<Vec<Type>, String> {
    let x = i.tensor("x");
    let perm = i.axes("perm", x.shape.len())?.unwrap_or_default();
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..x.shape.len()) {
        return Err(format!("`perm` {} is not an order of {} axes", show(&perm), x.shape.len()));
    }
    one(x.dtype, perm.iter().map(|a| x.shape[*a]).collect::<Vec<_>>())
}
