//! Model file to program. Every operation is checked against the table, every declared type against inference.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use half::f16;

use super::encode::BLOB_FILE;
use crate::proto::{mil, model};
use crate::types::from_proto;
use crate::{
    Arg, BlobReader, DataType, Error, Function, Immediate, Op, Program, TensorType, Type, Value, Var, VarId,
    Weight, WeightId, WeightSource, ops,
};

/// The program, and the offset of each of its weights.
pub(super) fn program(
    model: model::Model,
    blob: Option<&BlobReader>,
    path: &Path,
) -> Result<(Program, Vec<u64>), Error> {
    let problem = |problem: String| Error::Package { path: path.into(), problem };
    let spec_version = model.specification_version;
    if !(6..=10).contains(&spec_version) {
        return Err(problem(format!("has specification version {spec_version}; supported are 6 to 10")));
    }
    let program = model
        .ml_program
        .ok_or_else(|| problem("is not an ML program (an older kind of Core ML model)".into()))?;
    let description = model.description.unwrap_or_default();
    let default_function = match description.default_function_name.as_str() {
        "" => "main".to_string(),
        name => name.to_string(),
    };
    let mut reader = Reader { blob, weights: Vec::new(), offsets: Vec::new(), known: HashMap::new() };
    let mut functions = BTreeMap::new();
    for (name, f) in &program.functions {
        functions.insert(name.clone(), reader.function(name, f, spec_version)?);
    }
    if !functions.contains_key(&default_function) {
        return Err(problem(format!("has no function `{default_function}`, its default")));
    }
    let metadata = description.metadata.map(|m| m.user_defined).unwrap_or_default();
    let Reader { weights, offsets, .. } = reader;
    Ok((Program { spec_version, functions, default_function, weights, metadata }, offsets))
}

struct Reader<'a> {
    blob: Option<&'a BlobReader>,
    weights: Vec<Weight>,
    offsets: Vec<u64>,
    /// Weights by record, so that functions share them.
    known: HashMap<(u64, i32), WeightId>,
}

impl Reader<'_> {
    fn function(&mut self, name: &str, f: &mil::Function, spec_version: i32) -> Result<Function, Error> {
        let error = |problem: String| Error::Function { function: name.into(), problem };
        let block = f.block_specializations.get(&f.opset);
        let block =
            block.ok_or_else(|| error(format!("has no block for its operation set `{}`", f.opset)))?;
        let mut function =
            Function { name: name.into(), inputs: vec![], ops: vec![], outputs: vec![], vars: vec![] };
        let mut ids: HashMap<String, VarId> = HashMap::new();
        for input in &f.inputs {
            let ty = input.r#type.as_ref().and_then(from_proto);
            let ty = ty.ok_or_else(|| error(format!("input `{}` has no static tensor type", input.name)))?;
            let id = define(&mut function, &mut ids, &input.name, ty, None)?;
            function.inputs.push(id);
        }
        for op in &block.operations {
            self.operation(&mut function, &mut ids, op, spec_version)?;
        }
        for output in &block.outputs {
            let id = ids.get(output).ok_or_else(|| undefined(output))?;
            function.outputs.push(*id);
        }
        Ok(function)
    }

    fn operation(
        &mut self,
        function: &mut Function,
        ids: &mut HashMap<String, VarId>,
        op: &mil::Operation,
        spec_version: i32,
    ) -> Result<(), Error> {
        let name_of = |v: &mil::Value| match text_of(v) {
            Some(name) => name.to_string(),
            None => String::new(),
        };
        let at = op.outputs.first().map(|o| o.name.clone()).unwrap_or_default();
        let at = if at.is_empty() { op.attributes.get("name").map(name_of).unwrap_or_default() } else { at };
        if !op.blocks.is_empty() {
            return Err(Error::UnknownOp { op: format!("{} (with blocks)", op.r#type), at });
        }
        let mut attributes = BTreeMap::new();
        for (key, value) in &op.attributes {
            attributes.insert(key.clone(), self.value(value, &format!("{at}.{key}"))?);
        }
        if op.r#type == "const" {
            let value = attributes.get("val").cloned();
            let value = value.ok_or_else(|| Error::Op {
                op: "const",
                at: at.clone(),
                problem: "has no `val`".into(),
            })?;
            let id = define(function, ids, &at, Type::Tensor(value.ty().clone()), Some(value))?;
            function.ops.push(Op {
                kind: "const".into(),
                inputs: BTreeMap::new(),
                outputs: vec![id],
                attributes,
            });
            return Ok(());
        }
        let mut inputs = BTreeMap::new();
        for (key, argument) in &op.inputs {
            inputs.insert(key.clone(), self.argument(argument, ids, &format!("{at}.{key}"))?);
        }
        if super::inputs_are_attributes(&op.r#type, spec_version) {
            let (name, rest) = attributes.into_iter().partition(|(key, _)| key == "name");
            attributes = name;
            inputs.extend(rest.into_iter().map(|(key, value): (String, Value)| (key, Arg::Value(value))));
        }
        let def = ops::find(&op.r#type, spec_version)
            .ok_or_else(|| Error::UnknownOp { op: op.r#type.clone(), at: at.clone() })?;
        let inferred = ops::check(def, &at, &inputs, function, spec_version)?;
        if inferred.len() != op.outputs.len() {
            let problem =
                format!("declares {} results, its inputs give {}", op.outputs.len(), inferred.len());
            return Err(Error::Op { op: def.name, at, problem });
        }
        let mut outputs = Vec::new();
        for (output, inferred) in op.outputs.iter().zip(inferred) {
            let declared = output.r#type.as_ref().and_then(from_proto);
            if let Some(declared) = declared.filter(|d| *d != inferred) {
                let (declared, inferred) = (Box::new(declared), Box::new(inferred));
                return Err(Error::DeclaredType { op: op.r#type.clone(), at, declared, inferred });
            }
            outputs.push(define(function, ids, &output.name, inferred, None)?);
        }
        function.ops.push(Op { kind: op.r#type.clone(), inputs, outputs, attributes });
        Ok(())
    }

    fn argument(
        &mut self,
        argument: &mil::Argument,
        ids: &HashMap<String, VarId>,
        at: &str,
    ) -> Result<Arg, Error> {
        let mut names = Vec::new();
        for binding in &argument.arguments {
            match &binding.binding {
                Some(mil::BindingKind::Name(name)) => {
                    names.push(*ids.get(name).ok_or_else(|| undefined(name))?);
                }
                Some(mil::BindingKind::Value(value)) if argument.arguments.len() == 1 => {
                    return Ok(Arg::Value(self.value(value, at)?));
                }
                _ => {
                    return Err(Error::Name {
                        name: at.into(),
                        problem: "is bound to neither a name nor one value",
                    });
                }
            }
        }
        Ok(if names.len() == 1 { Arg::Var(names[0]) } else { Arg::List(names) })
    }

    fn value(&mut self, value: &mil::Value, at: &str) -> Result<Value, Error> {
        let bad = |problem: &'static str| Error::Name { name: at.to_string(), problem };
        let Some(Type::Tensor(ty)) = value.r#type.as_ref().and_then(from_proto) else {
            return Err(bad("has a value that is not a static tensor"));
        };
        match &value.value {
            Some(mil::ValueKind::BlobFile(file)) => {
                if file.file_name != BLOB_FILE {
                    return Err(bad("refers to another file than weights/weight.bin"));
                }
                let key = (file.offset, ty.dtype as i32);
                if let Some(id) = self.known.get(&key)
                    && self.weights[id.0].ty.numel() == ty.numel()
                {
                    return Ok(Value::Weight(ty, *id));
                }
                let blob = self.blob.ok_or_else(|| bad("refers to a weight file the package lacks"))?;
                let bytes = blob.get(file.offset, ty.dtype, ty.numel())?;
                let id = WeightId(self.weights.len());
                let name = at.strip_suffix(".val").unwrap_or(at).to_string();
                self.weights.push(Weight { name, ty: ty.clone(), source: WeightSource::Bytes(bytes) });
                self.offsets.push(file.offset);
                self.known.insert(key, id);
                Ok(Value::Weight(ty, id))
            }
            Some(mil::ValueKind::Immediate(mil::ImmediateValue {
                value: Some(mil::ImmediateKind::Tensor(mil::TensorValue { value: Some(tensor) })),
            })) => {
                let immediate = immediate(&ty, tensor)
                    .ok_or_else(|| bad("has a value of another type than it declares"))?;
                Ok(Value::Immediate(ty, immediate))
            }
            // An attribute may be a tuple or dictionary (build information); programs do not compute with those.
            Some(mil::ValueKind::Immediate(_)) | None => Err(bad("has a value that is not a tensor")),
        }
    }
}

fn text_of(value: &mil::Value) -> Option<&str> {
    match value.value.as_ref()? {
        mil::ValueKind::Immediate(mil::ImmediateValue {
            value:
                Some(mil::ImmediateKind::Tensor(mil::TensorValue { value: Some(mil::TensorKind::Strings(s)) })),
        }) => s.values.first().map(String::as_str),
        _ => None,
    }
}

fn define(
    function: &mut Function,
    ids: &mut HashMap<String, VarId>,
    name: &str,
    ty: Type,
    value: Option<Value>,
) -> Result<VarId, Error> {
    let id = VarId(function.vars.len());
    if name.is_empty() || ids.insert(name.to_string(), id).is_some() {
        return Err(Error::Name { name: name.into(), problem: "is empty or defined twice" });
    }
    function.vars.push(Var { name: name.into(), ty, value });
    Ok(id)
}

fn undefined(name: &str) -> Error {
    Error::Name { name: name.into(), problem: "is not defined before it is used" }
}

fn immediate(ty: &TensorType, tensor: &mil::TensorKind) -> Option<Immediate> {
    let count = ty.numel();
    let immediate = match tensor {
        mil::TensorKind::Floats(v) => Immediate::Floats(v.values.clone()),
        mil::TensorKind::Doubles(v) => Immediate::Floats(v.values.iter().map(|v| *v as f32).collect()),
        mil::TensorKind::Ints(v) => Immediate::Ints(v.values.iter().map(|v| i64::from(*v)).collect()),
        mil::TensorKind::Longs(v) => Immediate::Ints(v.values.clone()),
        mil::TensorKind::Bools(v) => Immediate::Bools(v.values.clone()),
        mil::TensorKind::Strings(v) => Immediate::Strings(v.values.clone()),
        mil::TensorKind::Bytes(v) => from_bytes(ty.dtype, &v.values, count)?,
    };
    let found = match &immediate {
        Immediate::Floats(v) => v.len(),
        Immediate::Ints(v) => v.len(),
        Immediate::Bools(v) => v.len(),
        Immediate::Strings(v) => v.len(),
    };
    let fits = match &immediate {
        Immediate::Floats(_) => ty.dtype.is_float(),
        Immediate::Ints(_) => ty.dtype.bits().is_some() && !ty.dtype.is_float() && ty.dtype != DataType::Bool,
        Immediate::Bools(_) => ty.dtype == DataType::Bool,
        Immediate::Strings(_) => ty.dtype == DataType::String,
    };
    (found == count && fits).then_some(immediate)
}

fn from_bytes(dtype: DataType, bytes: &[u8], count: usize) -> Option<Immediate> {
    let bits = dtype.bits()?;
    if bytes.len() != dtype.byte_len(count)? {
        return None;
    }
    if bits < 8 {
        let codes = crate::unpack_bits(bytes, bits, count)?;
        let sign = |c: u8| if dtype == DataType::Int4 && c > 7 { i64::from(c) - 16 } else { i64::from(c) };
        return Some(Immediate::Ints(codes.into_iter().map(sign).collect()));
    }
    let words = bytes.chunks_exact(bits / 8);
    Some(match dtype {
        DataType::Float16 => {
            Immediate::Floats(words.map(|w| f16::from_le_bytes([w[0], w[1]]).to_f32()).collect())
        }
        DataType::Float32 => {
            Immediate::Floats(words.map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect())
        }
        DataType::Int8 => Immediate::Ints(words.map(|w| i64::from(w[0] as i8)).collect()),
        DataType::Uint8 => Immediate::Ints(words.map(|w| i64::from(w[0])).collect()),
        DataType::Int16 => {
            Immediate::Ints(words.map(|w| i64::from(i16::from_le_bytes([w[0], w[1]]))).collect())
        }
        DataType::Uint16 => {
            Immediate::Ints(words.map(|w| i64::from(u16::from_le_bytes([w[0], w[1]]))).collect())
        }
        DataType::Int32 => {
            Immediate::Ints(words.map(|w| i64::from(i32::from_le_bytes([w[0], w[1], w[2], w[3]]))).collect())
        }
        DataType::Uint32 => {
            Immediate::Ints(words.map(|w| i64::from(u32::from_le_bytes([w[0], w[1], w[2], w[3]]))).collect())
        }
        DataType::Bool => Immediate::Bools(bytes.iter().map(|b| *b != 0).collect()),
        _ => return None,
    })
}
