//! The operation table: for each operation its inputs, dtype domains, the specification version it came with, and how the types
//! of its results follow from its inputs.

#![allow(clippy::unnecessary_wraps, reason = "inference functions share one signature")]

mod elementwise;
mod linear;
mod normalization;
mod reduction;
mod state;
mod tensor;
mod weights;

use std::collections::BTreeMap;

use crate::{Arg, DataType, Error, Function, Immediate, TensorType, Type, Value};

/// The declaration of one operation.
#[derive(Debug)]
pub struct OpDef {
    /// Its type, `conv`.
    pub name: &'static str,
    /// Inputs.
    pub params: &'static [Param],
    /// Specification version it first appeared in with this form.
    pub since: i32,
    /// Result types, or what is wrong with the inputs.
    pub infer: fn(&Inputs<'_>) -> Result<Vec<Type>, String>,
}

/// The declaration of one input.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// Element types it may have.
    pub domain: Domain,
    /// Whether it must be given.
    pub required: bool,
    /// Whether its value must be known when the program is built.
    pub constant: bool,
    /// Whether it takes several values.
    pub variadic: bool,
}

/// Element types an input may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// fp16 or fp32.
    Float,
    /// Floats, int32 and what narrow integer types the target allows.
    Numeric,
    /// Anything.
    Any,
    /// int32 (or narrower) integers.
    Int,
    /// Booleans.
    Bool,
    /// Strings.
    Text,
    /// A state.
    State,
}

impl Domain {
    fn holds(self, ty: &Type) -> bool {
        let dtype = ty.tensor().dtype;
        match (self, ty) {
            (Self::State, t) => matches!(t, Type::State(_)),
            (_, Type::State(_)) => false,
            (Self::Any, _) => true,
            (Self::Float, _) => matches!(dtype, DataType::Float16 | DataType::Float32),
            (Self::Numeric, _) => dtype.is_float() || Self::Int.holds(ty),
            (Self::Int, _) => {
                matches!(
                    dtype,
                    DataType::Int8
                        | DataType::Int16
                        | DataType::Int32
                        | DataType::Uint8
                        | DataType::Uint16
                        | DataType::Uint32
                )
            }
            (Self::Bool, _) => dtype == DataType::Bool,
            (Self::Text, _) => dtype == DataType::String,
        }
    }
}

impl Param {
    const fn new(name: &'static str, domain: Domain) -> Self {
        Self { name, domain, required: true, constant: false, variadic: false }
    }

    const fn optional(self) -> Self {
        Self { required: false, ..self }
    }

    const fn constant(self) -> Self {
        Self { constant: true, ..self }
    }

    const fn variadic(self) -> Self {
        Self { variadic: true, ..self }
    }
}

/// Every operation, sorted by name within its family.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    [elementwise::OPS, linear::OPS, normalization::OPS, reduction::OPS, state::OPS, tensor::OPS, weights::OPS]
        .into_iter()
        .flatten()
}

/// The declaration of an operation as a specification version has it: its latest form up to there, or the earliest there is.
pub fn find(name: &str, spec_version: i32) -> Option<&'static OpDef> {
    let forms = || all().filter(|op| op.name == name);
    forms()
        .filter(|op| op.since <= spec_version)
        .max_by_key(|op| op.since)
        .or_else(|| forms().min_by_key(|op| op.since))
}

/// Inputs of an operation as inference sees them: types, and values where they are known.
#[derive(Debug)]
pub struct Inputs<'a> {
    bound: BTreeMap<&'a str, Vec<(&'a Type, Option<&'a Value>)>>,
}

/// Checks an operation against its declaration and infers its results' types.
pub fn check(
    def: &'static OpDef,
    at: &str,
    inputs: &BTreeMap<String, Arg>,
    function: &Function,
    spec_version: i32,
) -> Result<Vec<Type>, Error> {
    let error = |problem: String| Error::Op { op: def.name, at: at.to_string(), problem };
    if def.since > spec_version {
        return Err(Error::Version {
            what: format!("operation `{}`", def.name),
            needs: def.since,
            target: spec_version,
        });
    }
    let in_place: BTreeMap<&str, Type> = inputs
        .iter()
        .filter_map(|(name, arg)| match arg {
            Arg::Value(value) => Some((name.as_str(), Type::Tensor(value.ty().clone()))),
            _ => None,
        })
        .collect();
    let mut bound = BTreeMap::new();
    for (name, arg) in inputs {
        let param = def
            .params
            .iter()
            .find(|p| p.name == name)
            .ok_or_else(|| error(format!("has no input `{name}`")))?;
        let of = |id: &crate::VarId| {
            let var = function.var(*id);
            (&var.ty, var.value.as_ref())
        };
        let values: Vec<(&Type, Option<&Value>)> = match arg {
            Arg::Var(id) => vec![of(id)],
            Arg::List(ids) if param.variadic => ids.iter().map(of).collect(),
            Arg::List(_) => return Err(error(format!("input `{name}` takes one value"))),
            Arg::Value(value) => vec![(&in_place[name.as_str()], Some(value))],
        };
        for (ty, value) in &values {
            if !param.domain.holds(ty) {
                return Err(error(
                    format!("input `{name}` is {ty}, expected {:?}", param.domain).to_lowercase(),
                ));
            }
            if param.constant && value.is_none() {
                return Err(error(format!("input `{name}` must be a constant")));
            }
        }
        if values.is_empty() {
            return Err(error(format!("input `{name}` is an empty list")));
        }
        bound.insert(name.as_str(), values);
    }
    if let Some(missing) = def.params.iter().find(|p| p.required && !inputs.contains_key(p.name)) {
        return Err(error(format!("input `{}` is missing", missing.name)));
    }
    (def.infer)(&Inputs { bound }).map_err(error)
}

impl<'a> Inputs<'a> {
    fn get(&self, name: &str) -> Option<&(&'a Type, Option<&'a Value>)> {
        self.bound.get(name)?.first()
    }

    fn has(&self, name: &str) -> bool {
        self.bound.contains_key(name)
    }

    /// Type of a required tensor.
    fn tensor(&self, name: &str) -> &'a TensorType {
        self.get(name).expect("required inputs are checked first").0.tensor()
    }

    fn optional(&self, name: &str) -> Option<&'a TensorType> {
        self.get(name).map(|(ty, _)| ty.tensor())
    }

    fn list(&self, name: &str) -> Vec<&'a TensorType> {
        self.bound.get(name).into_iter().flatten().map(|(ty, _)| ty.tensor()).collect()
    }

    fn immediate(&self, name: &str) -> Option<&'a Immediate> {
        match self.get(name)?.1? {
            Value::Immediate(_, immediate) => Some(immediate),
            Value::Weight(..) => None,
        }
    }

    /// Constant integers, whatever their type; `None` when not given.
    fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, String> {
        match (self.has(name), self.immediate(name)) {
            (false, _) => Ok(None),
            (true, Some(Immediate::Ints(v))) => Ok(Some(v.clone())),
            _ => Err(format!("input `{name}` must be constant integers")),
        }
    }

    fn int(&self, name: &str) -> Result<Option<i64>, String> {
        match self.ints(name)?.as_deref() {
            None => Ok(None),
            Some(&[v]) => Ok(Some(v)),
            Some(v) => Err(format!("input `{name}` has {} values, expected one", v.len())),
        }
    }

    fn flags(&self, name: &str) -> Result<Option<Vec<bool>>, String> {
        match (self.has(name), self.immediate(name)) {
            (false, _) => Ok(None),
            (true, Some(Immediate::Bools(v))) => Ok(Some(v.clone())),
            _ => Err(format!("input `{name}` must be constant booleans")),
        }
    }

    fn flag(&self, name: &str) -> Result<bool, String> {
        Ok(self.flags(name)?.and_then(|v| v.first().copied()).unwrap_or(false))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match (self.has(name), self.immediate(name)) {
            (false, _) => Ok(None),
            (true, Some(Immediate::Strings(v))) if v.len() == 1 => Ok(Some(&v[0])),
            _ => Err(format!("input `{name}` must be a constant string")),
        }
    }

    /// A constant axis of a tensor of `rank`, counted from the front.
    fn axis(&self, name: &str, rank: usize) -> Result<usize, String> {
        let axis = self.int(name)?.unwrap_or(-1);
        normal_axis(axis, rank).ok_or_else(|| format!("axis {axis} is outside rank {rank}"))
    }

    fn axes(&self, name: &str, rank: usize) -> Result<Option<Vec<usize>>, String> {
        let Some(axes) = self.ints(name)? else { return Ok(None) };
        let one = |&axis: &i64| {
            normal_axis(axis, rank).ok_or_else(|| format!("axis {axis} is outside rank {rank}"))
        };
        axes.iter().map(one).collect::<Result<Vec<_>, _>>().map(Some)
    }
}

fn normal_axis(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(axis).ok().filter(|a| *a < rank)
}

/// Shape of two operands stretched to each other.
fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

fn one(dtype: DataType, shape: impl Into<Vec<usize>>) -> Result<Vec<Type>, String> {
    Ok(vec![Type::Tensor(TensorType::new(dtype, shape))])
}

fn show(shape: &[usize]) -> String {
    format!("{shape:?}")
}
