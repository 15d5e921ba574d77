use std::collections::{BTreeMap, BTreeSet};

use crate::{Type, Value, Weight, WeightId};

/// Functions over shared weights.
#[derive(Debug, Clone)]
pub struct Program {
    /// Specification version of the model file, 6 to 10; decides the operation set.
    pub spec_version: i32,
    /// The functions, by name.
    pub functions: BTreeMap<String, Function>,
    /// The function that runs when none is named.
    pub default_function: String,
    /// The weight file's tensors.
    pub weights: Vec<Weight>,
    /// User-defined metadata of the model file.
    pub metadata: BTreeMap<String, String>,
}

impl Program {
    /// The operation set of a specification version: 9 is `CoreML8`.
    pub fn opset(spec_version: i32) -> String {
        format!("CoreML{}", spec_version - 1)
    }
}

/// A straight line of operations.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Name in the program.
    pub name: String,
    /// Tensors and states it is given.
    pub inputs: Vec<VarId>,
    /// Operations in order of execution.
    pub ops: Vec<Op>,
    /// What it returns.
    pub outputs: Vec<VarId>,
    /// Every input and result.
    pub vars: Vec<Var>,
}

/// Index into [`Function::vars`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VarId(pub usize);

/// A named value of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct Var {
    /// Identifier, unique in the function.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Its value, when an operation `const` defines it.
    pub value: Option<Value>,
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    /// Operation type, `conv`.
    pub kind: String,
    /// Inputs by parameter name, in order of name.
    pub inputs: BTreeMap<String, Arg>,
    /// Results.
    pub outputs: Vec<VarId>,
    /// Attributes; a `const` has `val`.
    pub attributes: BTreeMap<String, Value>,
}

/// What an input is bound to.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// One value.
    Var(VarId),
    /// Several values, for variadic inputs.
    List(Vec<VarId>),
    /// A value in place, as `constexpr` operations of version 9 take them.
    Value(Value),
}

impl Function {
    /// The value behind an index.
    pub fn var(&self, id: VarId) -> &Var {
        &self.vars[id.0]
    }

    /// The input or output of a name.
    pub fn find(&self, name: &str) -> Option<VarId> {
        self.vars.iter().position(|v| v.name == name).map(VarId)
    }

    /// Operations that compute, which is all but constants.
    pub fn compute_ops(&self) -> impl Iterator<Item = &Op> {
        self.ops.iter().filter(|op| op.kind != "const")
    }

    /// The stored weights it reads.
    pub fn weights(&self) -> BTreeSet<WeightId> {
        let of = |value: &Value| match value {
            Value::Weight(_, id) => Some(*id),
            Value::Immediate(..) => None,
        };
        let attributes = self.ops.iter().flat_map(|op| op.attributes.values());
        let in_place = self.ops.iter().flat_map(|op| op.inputs.values()).filter_map(|arg| match arg {
            Arg::Value(value) => Some(value),
            _ => None,
        });
        attributes
            .chain(in_place)
            .chain(self.vars.iter().filter_map(|v| v.value.as_ref()))
            .filter_map(of)
            .collect()
    }

    /// Count of computing operations by type.
    pub fn op_counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for op in self.compute_ops() {
            *counts.entry(op.kind.as_str()).or_insert(0) += 1;
        }
        counts
    }
}
