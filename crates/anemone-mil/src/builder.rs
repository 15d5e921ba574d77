use std::collections::{BTreeMap, HashSet};

use crate::{Arg, Error, Function, Op, Type, Value, Var, VarId, ops};

/// Builds a function operation by operation; each is checked as it is added.
#[derive(Debug)]
pub struct FunctionBuilder {
    function: Function,
    spec_version: i32,
    names: HashSet<String>,
}

/// Makes a MIL identifier of a module path: `model.layers.3.conv` becomes `model_layers_3_conv`.
pub fn identifier(path: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let name: String = path.chars().map(legal).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) || name.is_empty() { format!("_{name}") } else { name }
}

impl FunctionBuilder {
    /// Starts a function for a specification version.
    pub fn new(name: &str, spec_version: i32) -> Self {
        let function = Function {
            name: name.to_string(),
            inputs: Vec::new(),
            ops: Vec::new(),
            outputs: Vec::new(),
            vars: Vec::new(),
        };
        Self { function, spec_version, names: HashSet::new() }
    }

    /// The function so far.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Type of a value.
    pub fn ty(&self, id: VarId) -> &Type {
        &self.function.var(id).ty
    }

    /// Shape of a value.
    pub fn shape(&self, id: VarId) -> &[usize] {
        &self.ty(id).tensor().shape
    }

    /// Adds an input or a state.
    pub fn input(&mut self, name: &str, ty: impl Into<Type>) -> Result<VarId, Error> {
        let id = self.var(name, ty.into(), None)?;
        self.function.inputs.push(id);
        Ok(id)
    }

    /// Adds a constant.
    pub fn constant(&mut self, name: &str, value: Value) -> Result<VarId, Error> {
        let id = self.var(name, Type::Tensor(value.ty().clone()), Some(value.clone()))?;
        let attributes = BTreeMap::from([("val".to_string(), value)]);
        self.function.ops.push(Op {
            kind: "const".into(),
            inputs: BTreeMap::new(),
            outputs: vec![id],
            attributes,
        });
        Ok(id)
    }

    /// Adds an operation with one result, named `name`.
    ///
    /// Inputs given as [`Arg::Value`] become constants named after the operation and the parameter, except for `constexpr`
    /// operations, which keep them in place.
    pub fn op(&mut self, kind: &str, name: &str, inputs: &[(&str, Arg)]) -> Result<VarId, Error> {
        let outputs = self.ops(kind, name, inputs, &[name])?;
        Ok(outputs[0])
    }

    /// Adds an operation with as many results as `outputs` names.
    pub fn ops(
        &mut self,
        kind: &str,
        name: &str,
        inputs: &[(&str, Arg)],
        outputs: &[&str],
    ) -> Result<Vec<VarId>, Error> {
        let def = ops::find(kind, self.spec_version)
            .ok_or_else(|| Error::UnknownOp { op: kind.into(), at: name.into() })?;
        let mut bound = BTreeMap::new();
        for (param, arg) in inputs {
            let arg = match arg {
                Arg::Value(value) if !kind.starts_with("constexpr_") => {
                    Arg::Var(self.constant(&format!("{name}_{param}_0"), value.clone())?)
                }
                other => other.clone(),
            };
            bound.insert((*param).to_string(), arg);
        }
        let types = ops::check(def, name, &bound, &self.function, self.spec_version)?;
        if types.len() != outputs.len() {
            let problem = format!("gives {} results, {} are named", types.len(), outputs.len());
            return Err(Error::Op { op: def.name, at: name.into(), problem });
        }
        let ids =
            outputs.iter().zip(types).map(|(n, t)| self.var(n, t, None)).collect::<Result<Vec<_>, _>>()?;
        self.function.ops.push(Op {
            kind: kind.into(),
            inputs: bound,
            outputs: ids.clone(),
            attributes: BTreeMap::from([("name".to_string(), Value::text(name))]),
        });
        Ok(ids)
    }

    /// Declares the results and ends the function.
    pub fn finish(mut self, outputs: &[VarId]) -> Result<Function, Error> {
        let error = |problem: String| Error::Function { function: self.function.name.clone(), problem };
        if outputs.is_empty() {
            return Err(error("has no outputs".into()));
        }
        for id in outputs {
            if self.function.inputs.contains(id) {
                let name = &self.function.var(*id).name;
                return Err(error(format!(
                    "returns its input `{name}` unchanged, which Core ML does not allow"
                )));
            }
        }
        self.function.outputs = outputs.to_vec();
        Ok(self.function)
    }

    fn var(&mut self, name: &str, ty: Type, value: Option<Value>) -> Result<VarId, Error> {
        if identifier(name) != name {
            let problem = "is not an identifier (letters, digits and underscores, no digit first)";
            return Err(Error::Name { name: name.into(), problem });
        }
        if !self.names.insert(name.to_string()) {
            return Err(Error::Name { name: name.into(), problem: "is defined twice" });
        }
        self.function.vars.push(Var { name: name.into(), ty, value });
        Ok(VarId(self.function.vars.len() - 1))
    }
}

impl From<VarId> for Arg {
    fn from(id: VarId) -> Self {
        Self::Var(id)
    }
}

impl From<Value> for Arg {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

impl From<Vec<VarId>> for Arg {
    fn from(ids: Vec<VarId>) -> Self {
        Self::List(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataType, TensorType};

    fn builder() -> (FunctionBuilder, VarId) {
        let mut b = FunctionBuilder::new("main", 9);
        let x = b.input("x", TensorType::fp16([1, 8, 1, 4])).unwrap();
        (b, x)
    }

    #[test]
    fn a_small_function() {
        let (mut b, x) = builder();
        let parts = b.ops(
            "split",
            "s",
            &[("x", x.into()), ("num_splits", Value::int(2).into()), ("axis", Value::int(1).into())],
            &["s0", "s1"],
        );
        let parts = parts.unwrap();
        assert_eq!(b.shape(parts[1]), [1, 4, 1, 4]);
        let y = b.op("concat", "y", &[("values", parts.into()), ("axis", Value::int(-1).into())]).unwrap();
        assert_eq!(b.shape(y), [1, 4, 1, 8]);
        let f = b.finish(&[y]).unwrap();
        assert_eq!(f.op_counts().into_iter().collect::<Vec<_>>(), [("concat", 1), ("split", 1)]);
    }

    #[test]
    fn mistakes_are_named() {
        let (mut b, x) = builder();
        let say = |r: Result<VarId, Error>| r.unwrap_err().to_string();
        assert_eq!(say(b.op("nope", "n", &[])), "operation `nope` (at `n`) is not supported");
        assert_eq!(say(b.op("softmax", "s", &[])), "operation `softmax` at `s`: input `x` is missing");
        assert!(
            say(b.op("softmax", "s1", &[("x", x.into()), ("axis", Value::int(4).into())]))
                .contains("axis 4 is outside rank 4")
        );
        assert!(say(b.op("exp", "e", &[("x", x.into()), ("y", x.into())])).contains("has no input `y`"));
        let half = b.constant("half", Value::float(DataType::Float32, 0.5)).unwrap();
        assert!(
            say(b.op("mul", "m", &[("x", x.into()), ("y", half.into())]))
                .contains("`x` is fp16 and `y` is fp32")
        );
        assert!(
            say(b.op("concat", "c", &[("values", vec![x].into()), ("axis", x.into())])).contains("`axis`")
        );
        assert!(say(b.op("exp", "2x", &[("x", x.into())])).contains("not an identifier"));
        assert!(say(b.op("exp", "half", &[("x", x.into())])).contains("defined twice"));
        let old = FunctionBuilder::new("main", 8).input("s", Type::State(TensorType::fp16([1])));
        assert!(old.is_ok());
        assert!(b.finish(&[x]).unwrap_err().to_string().contains("returns its input `x` unchanged"));
    }

    #[test]
    fn newer_operations_need_a_newer_version() {
        let mut b = FunctionBuilder::new("main", 8);
        let s = b.input("s", Type::State(TensorType::fp16([4]))).unwrap();
        let error = b.op("read_state", "r", &[("input", s.into())]).unwrap_err().to_string();
        assert_eq!(error, "operation `read_state` needs specification version 9, the target is 8");
    }

    #[test]
    fn paths_become_identifiers() {
        assert_eq!(identifier("model.layers.3.self_attn"), "model_layers_3_self_attn");
        assert_eq!(identifier("3d"), "_3d");
        assert_eq!(identifier(""), "_");
    }
}
