//! An operation while it is planned: its parameters, and the values it will be given.

use std::cell::RefCell;

use anemone_mil::{Arg, DataType, Function, Immediate, Op, TensorType, Value, VarId};

use crate::constants::Constants;
use crate::value::{Data, Stored};

pub(crate) struct Site<'a> {
    pub(crate) op: &'a Op,
    pub(crate) function: &'a Function,
    pub(crate) constants: RefCell<&'a mut Constants>,
    /// Values needed at run time, in the order of their slots.
    pub(crate) slots: RefCell<Vec<VarId>>,
}

impl<'a> Site<'a> {
    fn arg(&self, name: &str) -> Option<&'a Arg> {
        self.op.inputs.get(name)
    }

    fn vars(&self, name: &str) -> Vec<VarId> {
        match self.arg(name) {
            Some(Arg::Var(id)) => vec![*id],
            Some(Arg::List(ids)) => ids.clone(),
            _ => Vec::new(),
        }
    }

    fn var(&self, name: &str) -> Result<VarId, String> {
        self.vars(name)
            .first()
            .copied()
            .ok_or_else(|| format!("input `{name}` must be a value of the program"))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.op.inputs.contains_key(name)
    }

    /// The run-time position of an input.
    pub(crate) fn slot(&self, name: &str) -> Result<usize, String> {
        Ok(self.take(self.var(name)?))
    }

    /// The run-time positions of a variadic input.
    pub(crate) fn list(&self, name: &str) -> Result<Vec<usize>, String> {
        self.var(name)?;
        Ok(self.vars(name).into_iter().map(|id| self.take(id)).collect())
    }

    fn take(&self, id: VarId) -> usize {
        let mut slots = self.slots.borrow_mut();
        slots.push(id);
        slots.len() - 1
    }

    pub(crate) fn ty(&self, name: &str) -> Result<&'a TensorType, String> {
        match self.arg(name) {
            Some(Arg::Value(value)) => Ok(value.ty()),
            _ => Ok(self.function.var(self.var(name)?).ty.tensor()),
        }
    }

    pub(crate) fn shape(&self, name: &str) -> Result<Vec<usize>, String> {
        Ok(self.ty(name)?.shape.clone())
    }

    pub(crate) fn shapes(&self, name: &str) -> Result<Vec<Vec<usize>>, String> {
        self.var(name)?;
        Ok(self.vars(name).into_iter().map(|id| self.function.var(id).ty.tensor().shape.clone()).collect())
    }

    /// Type of a result.
    pub(crate) fn out(&self, i: usize) -> &'a TensorType {
        self.function.var(self.op.outputs[i]).ty.tensor()
    }

    /// A constant, when the input is one.
    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        match self.arg(name)? {
            Arg::Value(value) => Some(value),
            Arg::Var(id) => self.function.var(*id).value.as_ref(),
            Arg::List(_) => None,
        }
    }

    fn immediate(&self, name: &str) -> Option<&'a Immediate> {
        match self.value(name)? {
            Value::Immediate(_, immediate) => Some(immediate),
            Value::Weight(..) => None,
        }
    }

    pub(crate) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.immediate(name)? {
            Immediate::Ints(v) => Some(v.clone()),
            _ => None,
        }
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.ints(name)?.first().copied()
    }

    pub(crate) fn flags(&self, name: &str) -> Option<Vec<bool>> {
        match self.immediate(name)? {
            Immediate::Bools(v) => Some(v.clone()),
            _ => None,
        }
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.flags(name).and_then(|v| v.first().copied()).unwrap_or(false)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        match self.immediate(name)? {
            Immediate::Strings(v) => v.first().map(String::as_str),
            _ => None,
        }
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> f32 {
        match self.immediate(name) {
            Some(Immediate::Floats(v)) => v.first().copied().unwrap_or(default),
            _ => default,
        }
    }

    /// A constant's floats, widened; `None` when it is not given.
    pub(crate) fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, String> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match self.constants.borrow().data(value)? {
            Data::Floats(v) => Ok(Some(v.to_vec())),
            Data::Ints(_) => Err(format!("input `{name}` holds integers")),
        }
    }

    /// A constant's floats as they are stored; `None` when the input is computed, or written in the program.
    pub(crate) fn stored(&self, name: &str) -> Option<Stored> {
        let Arg::Var(id) = self.arg(name)? else { return None };
        self.constants.borrow().stored(*id, self.function.var(*id))
    }

    /// An axis counted from the front; the type check has put it in range.
    pub(crate) fn axis(&self, name: &str, rank: usize, default: i64) -> Result<usize, String> {
        place(self.int(name).unwrap_or(default), rank)
    }

    pub(crate) fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>, String> {
        match self.ints(name) {
            Some(axes) => {
                let axes = axes.into_iter().map(|a| place(a, rank)).collect::<Result<Vec<_>, _>>()?;
                let twice = (1..axes.len()).find(|i| axes[..*i].contains(&axes[*i]));
                twice.map_or(Ok(axes.clone()), |i| Err(format!("`{name}` gives axis {} twice", axes[i])))
            }
            None => Ok((0..rank).collect()),
        }
    }

    /// Refuses element types an operation has no arithmetic for.
    pub(crate) fn needs_floats(&self, name: &str) -> Result<(), String> {
        let ids = self.vars(name);
        match ids.iter().map(|id| self.function.var(*id).ty.tensor().dtype).find(|t| !t.is_float()) {
            Some(dtype) => Err(format!("input `{name}` is {dtype}; cast it to fp16 or fp32 first")),
            None => Ok(()),
        }
    }

    pub(crate) fn is_float(&self, name: &str) -> Result<bool, String> {
        Ok(self.ty(name)?.dtype.is_float())
    }

    pub(crate) fn is_bool(&self, name: &str) -> Result<bool, String> {
        Ok(self.ty(name)?.dtype == DataType::Bool)
    }
}

fn place(axis: i64, rank: usize) -> Result<usize, String> {
    let from_front = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(from_front)
        .ok()
        .filter(|a| *a < rank)
        .ok_or_else(|| format!("axis {axis} is outside rank {rank}"))
}
