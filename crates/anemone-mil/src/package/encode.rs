//! Program to model file.

use std::collections::BTreeMap;

use half::f16;

use crate::proto::{mil, model};
use crate::types::{tensor_to_proto, to_proto};
use crate::{Arg, DataType, Error, Function, Immediate, Program, TensorType, Type, Value};

pub(super) const BLOB_FILE: &str = "@model_path/weights/weight.bin";

pub(super) fn model(program: &Program, offsets: &[u64]) -> Result<model::Model, Error> {
    let mut description = model::ModelDescription {
        metadata: Some(model::Metadata {
            user_defined: program.metadata.clone(),
            ..model::Metadata::default()
        }),
        ..model::ModelDescription::default()
    };
    if !program.functions.contains_key(&program.default_function) {
        let function = program.default_function.clone();
        return Err(Error::Function {
            function,
            problem: "is the default, but the program has no such function".into(),
        });
    }
    let single = program.functions.len() == 1 && program.default_function == "main";
    if !single && program.spec_version < 9 {
        let what = "a program of several functions".to_string();
        return Err(Error::Version { what, needs: 9, target: program.spec_version });
    }
    for function in program.functions.values() {
        let features = features(function)?;
        if single {
            (description.input, description.output, description.state) =
                (features.input, features.output, features.state);
        } else {
            description.functions.push(features);
        }
    }
    if !single {
        description.default_function_name.clone_from(&program.default_function);
    }
    let functions = program
        .functions
        .iter()
        .map(|(name, f)| (name.clone(), function(f, program.spec_version, offsets)))
        .collect();
    Ok(model::Model {
        specification_version: program.spec_version,
        description: Some(description),
        ml_program: Some(mil::Program { version: 1, functions, ..mil::Program::default() }),
    })
}

fn features(function: &Function) -> Result<model::FunctionDescription, Error> {
    let array = |name: &str, t: &TensorType| -> Result<model::ArrayFeatureType, Error> {
        let data_type = match t.dtype {
            DataType::Float16 => model::ArrayDataType::Float16,
            DataType::Float32 => model::ArrayDataType::Float32,
            DataType::Int32 => model::ArrayDataType::Int32,
            DataType::Int8 => model::ArrayDataType::Int8,
            other => {
                let problem =
                    format!("`{name}` is {other}, which a feature cannot be; use fp16, fp32, int32 or int8");
                return Err(Error::Function { function: function.name.clone(), problem });
            }
        };
        Ok(model::ArrayFeatureType {
            shape: t.shape.iter().map(|&d| d as i64).collect(),
            data_type: data_type as i32,
        })
    };
    let feature = |name: &str, kind| model::FeatureDescription {
        name: name.into(),
        short_description: String::new(),
        r#type: Some(model::FeatureType { r#type: Some(kind), is_optional: false }),
    };
    let mut out =
        model::FunctionDescription { name: function.name.clone(), ..model::FunctionDescription::default() };
    for id in &function.inputs {
        let var = function.var(*id);
        match &var.ty {
            Type::Tensor(t) => {
                out.input.push(feature(&var.name, model::FeatureKind::MultiArray(array(&var.name, t)?)));
            }
            Type::State(t) => {
                let state = model::StateFeatureType { array_type: Some(array(&var.name, t)?) };
                out.state.push(feature(&var.name, model::FeatureKind::State(state)));
            }
        }
    }
    for id in &function.outputs {
        let var = function.var(*id);
        out.output
            .push(feature(&var.name, model::FeatureKind::MultiArray(array(&var.name, var.ty.tensor())?)));
    }
    Ok(out)
}

fn function(function: &Function, spec_version: i32, offsets: &[u64]) -> mil::Function {
    let opset = Program::opset(spec_version);
    let named = |id: &crate::VarId| {
        let var = function.var(*id);
        mil::NamedValueType { name: var.name.clone(), r#type: Some(to_proto(&var.ty)) }
    };
    let binding = |kind| mil::Binding { binding: Some(kind) };
    let by_name = |id: &crate::VarId| binding(mil::BindingKind::Name(function.var(*id).name.clone()));
    let argument = |arg: &Arg| mil::Argument {
        arguments: match arg {
            Arg::Var(id) => vec![by_name(id)],
            Arg::List(ids) => ids.iter().map(by_name).collect(),
            Arg::Value(v) => vec![binding(mil::BindingKind::Value(value(v, offsets)))],
        },
    };
    let operation = |op: &crate::Op| {
        let mut attributes: BTreeMap<String, mil::Value> =
            op.attributes.iter().map(|(k, v)| (k.clone(), value(v, offsets))).collect();
        if op.kind == "const" {
            attributes
                .entry("name".into())
                .or_insert_with(|| value(&Value::text(function.var(op.outputs[0]).name.clone()), offsets));
        }
        let mut inputs = op.inputs.clone();
        if super::inputs_are_attributes(&op.kind, spec_version) {
            for (key, arg) in std::mem::take(&mut inputs) {
                match arg {
                    Arg::Value(v) => drop(attributes.insert(key, value(&v, offsets))),
                    other => drop(inputs.insert(key, other)),
                }
            }
        }
        mil::Operation {
            r#type: op.kind.clone(),
            inputs: inputs.iter().map(|(k, a)| (k.clone(), argument(a))).collect(),
            outputs: op.outputs.iter().map(named).collect(),
            blocks: Vec::new(),
            attributes,
        }
    };
    let block = mil::Block {
        inputs: Vec::new(),
        outputs: function.outputs.iter().map(|id| function.var(*id).name.clone()).collect(),
        operations: function.ops.iter().map(operation).collect(),
        attributes: BTreeMap::new(),
    };
    mil::Function {
        inputs: function.inputs.iter().map(named).collect(),
        opset: opset.clone(),
        block_specializations: BTreeMap::from([(opset, block)]),
        attributes: BTreeMap::new(),
    }
}

fn value(v: &Value, offsets: &[u64]) -> mil::Value {
    let kind = match v {
        Value::Weight(_, id) => mil::ValueKind::BlobFile(mil::BlobFileValue {
            file_name: BLOB_FILE.into(),
            offset: offsets[id.0],
        }),
        Value::Immediate(ty, immediate) => mil::ValueKind::Immediate(mil::ImmediateValue {
            value: Some(mil::ImmediateKind::Tensor(mil::TensorValue {
                value: Some(tensor(ty.dtype, immediate)),
            })),
        }),
    };
    mil::Value { doc_string: String::new(), r#type: Some(tensor_to_proto(v.ty())), value: Some(kind) }
}

fn tensor(dtype: DataType, immediate: &Immediate) -> mil::TensorKind {
    match immediate {
        Immediate::Floats(v) if dtype == DataType::Float16 => {
            let values = v.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
            mil::TensorKind::Bytes(mil::RepeatedBytes { values })
        }
        Immediate::Floats(v) => mil::TensorKind::Floats(mil::RepeatedFloats { values: v.clone() }),
        Immediate::Ints(v) => match dtype {
            DataType::Int64 | DataType::Uint64 => {
                mil::TensorKind::Longs(mil::RepeatedLongs { values: v.clone() })
            }
            DataType::Int32 => {
                mil::TensorKind::Ints(mil::RepeatedInts { values: v.iter().map(|v| *v as i32).collect() })
            }
            other => {
                let width = other.bits().unwrap_or(8).div_ceil(8);
                let values = v.iter().flat_map(|v| v.to_le_bytes()[..width].to_vec()).collect();
                mil::TensorKind::Bytes(mil::RepeatedBytes { values })
            }
        },
        Immediate::Bools(v) => mil::TensorKind::Bools(mil::RepeatedBools { values: v.clone() }),
        Immediate::Strings(v) => mil::TensorKind::Strings(mil::RepeatedStrings { values: v.clone() }),
    }
}
