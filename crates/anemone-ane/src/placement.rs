//! What of a program Core ML would place on the Neural Engine, as far as published plans tell: operators, types, shapes and sizes.
//!
//! Nothing here was measured by this project. Each rule names where it comes from; a prediction is a reason to look, and
//! `MLComputePlan` on the machine itself has the last word.

mod cost;
#[cfg(test)]
mod graphs;
mod rules;
#[cfg(test)]
mod tests;

use anemone_mil::{Function, Op, Program};

use crate::Error;
pub use cost::Cost;
pub use rules::{Confidence, Rule};

const OPERATORS: &str = include_str!("../data/operators.tsv");
const CHIPS: &str = include_str!("../data/chips.tsv");

/// A chip as far as its limits are published.
#[derive(Debug, Clone, PartialEq)]
pub struct Chip {
    /// Its name, as `m4`.
    pub name: String,
    /// Longest axis of a tensor.
    pub axis: usize,
    /// Whether that was seen on this chip, and not only on another one.
    pub axis_is_seen: bool,
    /// Weights it reads, in GB/s.
    pub read: f64,
}

impl Chip {
    /// All that are known.
    pub fn all() -> Vec<Self> {
        rows(CHIPS)
            .filter_map(|row| {
                let [name, axis, from, read] = row[..] else { return None };
                Some(Self {
                    name: name.to_owned(),
                    axis: axis.parse().ok()?,
                    axis_is_seen: from == "seen",
                    read: read.parse().ok()?,
                })
            })
            .collect()
    }

    /// The chip of a name, in any case.
    pub fn named(name: &str) -> Result<Self, Error> {
        let wanted = name.to_lowercase().replace([' ', '-', '_'], "");
        let all = Self::all();
        let names: Vec<&str> = all.iter().map(|chip| chip.name.as_str()).collect();
        let problem =
            format!("{name}: no limits of this chip are published; use one of {}", names.join(", "));
        let found = all.iter().find(|chip| chip.name == wanted);
        found.cloned().ok_or(Error::Option { option: "--chip", problem })
    }
}

/// Something about an operation that a rule speaks of.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Name of the operation's first result; the function's where it is about all of it.
    pub op: String,
    /// The operator.
    pub operator: String,
    /// The rule.
    pub rule: Rule,
    /// How well it is supported for the chip.
    pub confidence: Confidence,
    /// What is there, and what is possible.
    pub problem: String,
}

/// Operations in a row that run in one place.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Whether it is the Neural Engine.
    pub neural_engine: bool,
    /// Operations that compute.
    pub ops: usize,
    /// Milliseconds that the planner reckons for them, without launches and changes of place.
    pub ms: f64,
}

/// What is predicted for a function.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The function.
    pub function: String,
    /// Operations that compute.
    pub ops: usize,
    /// Operations that leave the Neural Engine, each with the first rule that says so.
    pub away: Vec<Finding>,
    /// What may make it slow there or have it declined as a whole.
    pub warnings: Vec<Finding>,
    /// Runs of operations by place, as the planner would choose them by what they cost.
    pub segments: Vec<Segment>,
    /// Milliseconds that the planner reckons for them with launches and changes of place.
    pub planned_ms: f64,
    /// Milliseconds that it reckons for all of the function on the CPU.
    pub cpu_ms: f64,
    /// Milliseconds that reading its weights takes the chip at least.
    pub read_ms: f64,
}

/// Predicts the placement of a function on a chip.
///
/// Constants and the operators that expand compressed weights run nowhere: they are folded before.
pub fn predict(program: &Program, function: &Function, chip: &Chip) -> Placement {
    let (mut away, mut costs) = (Vec::new(), Vec::new());
    for op in function.compute_ops().filter(|op| !is_folded(op)) {
        let finding = rules::away(function, op, chip);
        costs.push(cost::of(function, op, finding.is_some()));
        away.extend(finding);
    }
    let (segments, planned_ms) = cost::cheapest(&costs);
    let cpu_ms = costs.iter().map(|cost| cost.cpu).sum();
    let bytes = weight_bytes(program, function);
    let mut warnings = rules::warnings(function);
    warnings.extend(rules::size(function, bytes));
    let read_ms = bytes as f64 / chip.read / 1e6;
    let declined = costs.len() > away.len() && segments.iter().all(|segment| !segment.neural_engine);
    if declined {
        warnings.push(rules::declined(function, &costs, cpu_ms));
    }
    let (function, ops) = (function.name.clone(), costs.len());
    Placement { function, ops, away, warnings, segments, planned_ms, cpu_ms, read_ms }
}

fn is_folded(op: &Op) -> bool {
    op.kind.starts_with("constexpr_")
}

/// Bytes of the weights a function reads.
fn weight_bytes(program: &Program, function: &Function) -> usize {
    let bytes = |id: &anemone_mil::WeightId| {
        let ty = &program.weights[id.0].ty;
        ty.dtype.byte_len(elements(&ty.shape)).unwrap_or(usize::MAX)
    };
    function.weights().iter().map(bytes).fold(0, usize::saturating_add)
}

/// Elements of a shape, which may be one that nobody could hold.
fn elements(shape: &[usize]) -> usize {
    shape.iter().fold(1, |product, size| product.saturating_mul(*size))
}

/// Rows of a table, without its comments and its head.
fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table.lines().filter(|line| !line.starts_with('#')).skip(1).map(|line| line.split('\t').collect())
}

/// Whether the Neural Engine is offered for an operator; none where it was never seen.
fn offers(operator: &str) -> Option<bool> {
    let row = rows(OPERATORS).find(|row| row.first() == Some(&operator))?;
    row.get(1).map(|offered| *offered == "yes")
}
