//! A program with its weights to one with codes and tables in their place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anemone_ane::WeightRecord;
use anemone_mil::{
    Arg, DataType, Function, Immediate, Op, Program, TensorType, Type, Value, Weight, WeightId, WeightSource,
};

use super::slot::Slot;
use super::{Compressor, Encoding, Site};
use crate::Error;

/// A rewritten program.
pub(crate) struct Rewritten {
    pub(crate) program: Program,
    /// For each weight there was: where it, or its codes and tables, are now.
    pub(crate) places: Vec<Place>,
    /// The weight behind the result of each `constexpr` operation, by function and name.
    pub(crate) names: BTreeMap<(String, String), WeightId>,
}

pub(crate) enum Place {
    Dense(WeightId),
    Coded { codes: WeightId, table: Table, group_rows: usize, slot: Arc<Slot> },
}

/// Where the entries of a weight's tables are.
#[derive(Clone)]
pub(crate) enum Table {
    Stored(WeightId),
    /// In the program itself.
    Immediate(TensorType, Vec<f32>),
}

/// Constants of the program with fewer elements are not put into the weight file, as coremltools has it.
const STORED_FROM: usize = 10;

/// Replaces the weights that `compressor` chooses; `records` say what each of them is, weights of no record are left alone.
pub(crate) fn rewrite(
    program: &Program,
    records: &[Vec<WeightRecord>],
    compressor: &Compressor,
) -> Result<Rewritten, Error> {
    let able = able(program);
    let mut weights = Vec::new();
    let mut add = |weight: Weight| {
        weights.push(weight);
        WeightId(weights.len() - 1)
    };
    let mut places = Vec::with_capacity(program.weights.len());
    for (i, weight) in program.weights.iter().enumerate() {
        let site =
            Site { records: records.get(i).cloned().unwrap_or_default(), shape: weight.ty.shape.clone() };
        let eligible = able.contains(&WeightId(i)) && !site.records.is_empty();
        let Some(encoding) = Some(&site).filter(|_| eligible).and_then(|site| (compressor.choose)(site))
        else {
            places.push(Place::Dense(add(weight.clone())));
            continue;
        };
        let group_rows = encoding
            .group_rows(site.rows(), program.spec_version)
            .map_err(|problem| Error::Compression { tensor: site.tensor().to_owned(), problem })?;
        let (codes_type, table_type) = types(&site, encoding, group_rows, program.spec_version);
        let encode = Arc::clone(&compressor.encode);
        let slot = Arc::new(Slot::new(site, encoding, weight.source.clone(), encode));
        let (first, second) = (Arc::clone(&slot), Arc::clone(&slot));
        let codes = add(Weight {
            name: weight.name.clone(),
            ty: codes_type,
            source: WeightSource::Stream(Arc::new(move |out| first.write_codes(out))),
        });
        let table = if program.spec_version >= 9 && table_type.numel() < STORED_FROM {
            let entries = slot.entries().map_err(|e| Error::Compression {
                tensor: slot.site.tensor().to_owned(),
                problem: e.to_string(),
            })?;
            Table::Immediate(table_type, entries)
        } else {
            Table::Stored(add(Weight {
                name: weight.name.clone(),
                ty: table_type,
                source: WeightSource::Stream(Arc::new(move |out| second.write_table(out))),
            }))
        };
        places.push(Place::Coded { codes, table, group_rows, slot });
    }
    let mut names = BTreeMap::new();
    let mut functions = program.functions.clone();
    for (name, function) in &mut functions {
        replace(function, &places, &weights, program.spec_version, |var, id| {
            names.insert((name.clone(), var), id);
        });
    }
    Ok(Rewritten { program: Program { functions, weights, ..program.clone() }, places, names })
}

/// Weights of four axes in fp16 that feed convolutions, and nothing else, in every function.
fn able(program: &Program) -> BTreeSet<WeightId> {
    let (mut fed, mut other) = (BTreeSet::new(), BTreeSet::new());
    for function in program.functions.values() {
        let weight = |value: &Value| match value {
            Value::Weight(ty, id) => Some((*id, ty == &program.weights[id.0].ty)),
            Value::Immediate(..) => None,
        };
        let of = |id: &anemone_mil::VarId| function.var(*id).value.as_ref().and_then(weight);
        for op in function.compute_ops() {
            for (parameter, arg) in &op.inputs {
                let feeds = op.kind == "conv" && parameter == "weight";
                let used: Vec<(WeightId, bool)> = match arg {
                    Arg::Var(id) => of(id).into_iter().collect(),
                    Arg::List(ids) => ids.iter().filter_map(of).collect(),
                    Arg::Value(value) => weight(value).into_iter().collect(),
                };
                for (id, whole) in used {
                    let fine = feeds && whole && matches!(arg, Arg::Var(_));
                    if fine { &mut fed } else { &mut other }.insert(id);
                }
            }
        }
        other.extend(function.outputs.iter().filter_map(of).map(|(id, _)| id));
    }
    let fp16 = |id: &WeightId| {
        let ty = &program.weights[id.0].ty;
        ty.dtype == DataType::Float16 && ty.shape.len() == 4
    };
    fed.difference(&other).copied().filter(fp16).collect()
}

fn code_type(bits: u8) -> DataType {
    match bits {
        1 => DataType::Uint1,
        2 => DataType::Uint2,
        3 => DataType::Uint3,
        4 => DataType::Uint4,
        6 => DataType::Uint6,
        _ => DataType::Uint8,
    }
}

/// Types of the codes and of the tables.
fn types(site: &Site, encoding: Encoding, group_rows: usize, spec_version: i32) -> (TensorType, TensorType) {
    let rows = site.rows();
    match encoding {
        Encoding::Palette(scheme) if spec_version < 9 => {
            let bytes = (rows * site.columns() * usize::from(scheme.bits)).div_ceil(8);
            (TensorType::new(DataType::Uint8, [bytes]), TensorType::fp16([scheme.entries()]))
        }
        Encoding::Palette(scheme) => {
            let mut codes = site.shape.clone();
            codes[0] /= scheme.vector;
            let mut table = vec![1; site.shape.len()];
            table[0] = rows / group_rows;
            table.extend([scheme.entries(), scheme.vector]);
            (TensorType::new(code_type(scheme.bits), codes), TensorType::fp16(table))
        }
        Encoding::Affine(bits) => {
            let dtype = if bits == 4 { DataType::Int4 } else { DataType::Int8 };
            let mut scale = vec![1; if spec_version < 9 { 1 } else { site.shape.len() }];
            scale[0] = rows;
            (TensorType::new(dtype, site.shape.clone()), TensorType::fp16(scale))
        }
    }
}

/// Puts `constexpr` operations in the place of constants, and the new numbers of weights everywhere.
fn replace(
    function: &mut Function,
    places: &[Place],
    weights: &[Weight],
    spec_version: i32,
    mut replaced: impl FnMut(String, WeightId),
) {
    let renumber = |value: &mut Value| {
        if let Value::Weight(_, id) = value
            && let Place::Dense(now) = &places[id.0]
        {
            *id = *now;
        }
    };
    let Function { ops, vars, .. } = function;
    for op in ops {
        let coded = match op.attributes.get("val") {
            Some(Value::Weight(_, id)) if op.kind == "const" => match &places[id.0] {
                Place::Coded { codes, table, slot, .. } => Some((*id, *codes, table.clone(), slot)),
                Place::Dense(_) => None,
            },
            _ => None,
        };
        let Some((id, codes, table, slot)) = coded else {
            op.attributes.values_mut().for_each(renumber);
            for arg in op.inputs.values_mut() {
                if let Arg::Value(value) = arg {
                    renumber(value);
                }
            }
            continue;
        };
        let var = &mut vars[op.outputs[0].0];
        var.value = None;
        let stored = |id: WeightId| Value::Weight(weights[id.0].ty.clone(), id);
        let table = match table {
            Table::Stored(id) => stored(id),
            Table::Immediate(ty, entries) => Value::Immediate(ty, Immediate::Floats(entries)),
        };
        *op = constexpr(&var.name, &var.ty, slot.encoding, stored(codes), table, spec_version, op);
        replaced(var.name.clone(), id);
    }
    for var in vars {
        if let Some(value) = &mut var.value {
            renumber(value);
        }
    }
}

fn constexpr(
    name: &str,
    ty: &Type,
    encoding: Encoding,
    codes: Value,
    table: Value,
    spec_version: i32,
    constant: &Op,
) -> Op {
    let (kind, inputs) = match encoding {
        Encoding::Palette(_) if spec_version < 9 => {
            let dims: Vec<i64> = ty.tensor().shape.iter().map(|d| *d as i64).collect();
            let shape = TensorType::new(DataType::Uint32, [dims.len()]);
            let shape = Value::Immediate(shape, Immediate::Ints(dims));
            ("constexpr_lut_to_dense", vec![("indices", codes), ("lut", table), ("shape", shape)])
        }
        Encoding::Palette(scheme) => {
            let mut inputs = vec![("indices", codes), ("lut", table)];
            if scheme.vector > 1 {
                inputs.push(("vector_axis", Value::int(0)));
            }
            ("constexpr_lut_to_dense", inputs)
        }
        Encoding::Affine(_) if spec_version < 9 => {
            let zero = Value::Immediate(TensorType::new(DataType::Int8, []), Immediate::Ints(vec![0]));
            let inputs = vec![
                ("quantized_data", codes),
                ("scale", table),
                ("zero_point", zero),
                ("axis", Value::int(0)),
            ];
            ("constexpr_affine_dequantize", inputs)
        }
        Encoding::Affine(_) => ("constexpr_blockwise_shift_scale", vec![("data", codes), ("scale", table)]),
    };
    Op {
        kind: kind.into(),
        inputs: inputs.into_iter().map(|(k, v)| (k.to_owned(), Arg::Value(v))).collect(),
        outputs: constant.outputs.clone(),
        attributes: BTreeMap::from([("name".to_owned(), Value::text(name))]),
    }
}
