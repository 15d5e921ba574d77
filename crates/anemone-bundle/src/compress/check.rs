//! Reads compressed weights back from a finished package and compares them with what was meant.

use std::collections::BTreeSet;
use std::path::Path;

use anemone_mil::{Arg, Immediate, Op, Program, Value, WeightId, WeightSource, read_package};
use anemone_palettize::{Distortion, distortion};
use anemone_tensor::Bytes;
use half::f16;

use super::expand::{Form, Packed};
use super::rewrite::{Place, Rewritten};
use super::slot::{Slot, hash};
use crate::Error;

/// Errors unless every compressed weight of every function decodes to what its codes were made for, as far from the source as
/// was said.
pub(crate) fn check(path: &Path, rewritten: &Rewritten) -> Result<(), Error> {
    if rewritten.names.is_empty() {
        return Ok(());
    }
    let read = read_package(path)?;
    let mut done = BTreeSet::new();
    let mut seen = 0;
    for (function, f) in &read.functions {
        for op in f.compute_ops().filter(|op| op.kind.starts_with("constexpr_")) {
            let var = f.var(op.outputs[0]);
            let Some(weight) = rewritten.names.get(&(function.clone(), var.name.clone())) else { continue };
            let Place::Coded { slot, .. } = &rewritten.places[weight.0] else { continue };
            seen += 1;
            let wrong = |problem: String| Error::Compression {
                tensor: slot.site.tensor().to_owned(),
                problem: format!(
                    "{} does not hold it as it was made: {problem}; check the disk and try again",
                    path.display()
                ),
            };
            let (key, packed) = parse(op, &read, var.ty.tensor().shape.as_slice()).map_err(wrong)?;
            if key[1].is_none() || done.insert((key, *weight)) {
                compare(slot, &packed).map_err(wrong)?;
                // What was read need not stay in memory.
                packed.codes.release();
            }
        }
    }
    if seen == rewritten.names.len() {
        return Ok(());
    }
    let problem = format!("{seen} of {} compressed weights are in {}", rewritten.names.len(), path.display());
    Err(Error::Compression { tensor: "all of them".into(), problem })
}

fn compare(slot: &Slot, packed: &Packed<Bytes>) -> Result<(), String> {
    let decoded = packed.expand()?;
    let outcome = slot.outcome().ok_or("it was not written")?;
    if hash(&decoded) != outcome.hash {
        return Err("it decodes to other numbers".into());
    }
    let values = slot.values().map_err(|e| e.to_string())?;
    let (said, found) = (outcome.distortion, distortion(&values, &decoded));
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.max(b);
    let same = |a: &Distortion, b: &Distortion| close(a.squared, b.squared) && close(a.max_abs, b.max_abs);
    if values.len() == decoded.len() && same(&said, &found) {
        return Ok(());
    }
    Err(format!("its relative error is {:e} instead of {:e}", found.rel_rmse(), said.rel_rmse()))
}

/// Weights of codes and of tables; none for tables in the program.
type Key = [Option<WeightId>; 2];

/// A `constexpr` operation's stored bytes, and the weights they are.
fn parse(op: &Op, program: &Program, shape: &[usize]) -> Result<(Key, Packed<Bytes>), String> {
    let stored = |name: &str| match op.inputs.get(name) {
        Some(Arg::Value(Value::Weight(ty, id))) => match &program.weights[id.0].source {
            WeightSource::Bytes(bytes) => Ok((Some(*id), ty.clone(), bytes.clone())),
            WeightSource::Stream(_) => Err(format!("`{name}` is not on disk")),
        },
        Some(Arg::Value(Value::Immediate(ty, Immediate::Floats(v)))) => {
            let bytes: Vec<u8> = v.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
            Ok((None, ty.clone(), bytes.into()))
        }
        _ => Err(format!("`{name}` is not in the weight file")),
    };
    let axis_zero = |name: &str| match op.inputs.get(name) {
        None => true,
        Some(Arg::Value(Value::Immediate(_, Immediate::Ints(v)))) => v[..] == [0],
        Some(_) => false,
    };
    let (rows, columns) = (shape[0], shape[1..].iter().product());
    let ((codes, codes_type, bytes), (table, table_type, entries), form) = match op.kind.as_str() {
        "constexpr_lut_to_dense" => {
            let (codes, table) = (stored("indices")?, stored("lut")?);
            let form = match table.1.shape[..] {
                [entries] => Form::Table { bits: entries.trailing_zeros() as u8, groups: 1, vector: 1 },
                [groups, 1, 1, 1, entries, vector] => {
                    Form::Table { bits: entries.trailing_zeros() as u8, groups, vector }
                }
                _ => return Err(format!("its tables are {}", table.1)),
            };
            (codes, table, form)
        }
        "constexpr_blockwise_shift_scale" => {
            let (codes, table) = (stored("data")?, stored("scale")?);
            let bits = codes.1.dtype.bits().unwrap_or(0) as u8;
            (codes, table, Form::Scaled { bits })
        }
        _ => (stored("quantized_data")?, stored("scale")?, Form::Scaled { bits: 8 }),
    };
    if !["vector_axis", "axis", "zero_point"].into_iter().all(axis_zero) || op.inputs.contains_key("offset") {
        return Err(format!("{codes_type} and {table_type} are along another axis, or shifted"));
    }
    Ok(([codes, table], Packed { codes: bytes, table: entries, form, rows, columns }))
}
