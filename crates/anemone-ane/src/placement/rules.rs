use anemone_mil::{Arg, DataType, Function, Immediate, Op, TensorType, Type, Value, VarId};

use super::{Chip, Cost, Finding, offers};

/// How well a rule is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confidence {
    /// Apple says so, or two measured it.
    High,
    /// One careful measurement.
    Medium,
    /// One report.
    Low,
    /// Seen on another chip only.
    Inferred,
}

/// A rule by which operations leave the Neural Engine, or do badly there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// The operator is never offered it.
    Operator,
    /// The operator was never seen.
    Unknown,
    /// An integer type of 32 bits or more, or a float of 32 bits or more.
    Type,
    /// Beginnings, sizes or indices that are only known at run time.
    Dynamic,
    /// More than five axes.
    Rank,
    /// An axis that is too long.
    Axis,
    /// A window that is too large.
    Kernel,
    /// A sum over too many elements.
    Inner,
    /// A convolution of each channel by itself.
    Depthwise,
    /// A state whose last axis is no multiple of 32.
    State,
    /// A mask that is infinite.
    Infinite,
    /// Weights of all beyond what is placed.
    Size,
    /// Rows of a weight that fall on a slow spot of its memory channels.
    Notch,
    /// A last axis of one.
    Singleton,
    /// Too little work for a launch to pay.
    Small,
}

impl Rule {
    /// How well it is supported, on a chip that it was seen on.
    pub fn confidence(self) -> Confidence {
        match self {
            Self::Operator
            | Self::Type
            | Self::Dynamic
            | Self::Rank
            | Self::Axis
            | Self::Infinite
            | Self::Singleton => Confidence::High,
            Self::Kernel | Self::Inner | Self::State | Self::Size | Self::Notch | Self::Small => {
                Confidence::Medium
            }
            Self::Unknown | Self::Depthwise => Confidence::Low,
        }
    }

    /// Where it comes from.
    pub fn source(self) -> &'static str {
        match self {
            Self::Operator | Self::Unknown | Self::Type | Self::Dynamic | Self::Kernel | Self::Inner => {
                "751K study, op dispatch tables (M4, macOS 27; limits of sizes also for the M6)"
            }
            Self::Rank | Self::Infinite | Self::Singleton => "apple/coreai-models, Neural Engine rules",
            Self::Axis => "FluidInference/mobius#61 (M3 Ultra); 751K study (M4, M6)",
            Self::Depthwise => {
                "john-rocky/CoreML-LLM (LFM2's short convolution); plans of it alone offer the Neural Engine"
            }
            Self::State => "apple/coremltools#2631",
            Self::Size => "ANEMLL; 751K study (macOS 26 and 27)",
            Self::Notch => "stablehlo-coreml#110 (M4)",
            Self::Small => {
                "751K study, the planner's costs (M4); LoNE (M1: graphs of a few layers of 230M and 350M)"
            }
        }
    }
}

/// Rows of a window of one column that are offered, and rows or columns of any other.
const CONV_WINDOW: (usize, usize) = (31, 15);
/// Largest window of a maximum.
const MAX_POOL: usize = 8;
/// Elements a product may be summed over.
const INNER: usize = 32_768;
const RANK: usize = 5;
/// Weights of a program that macOS 27 and iOS place, and those macOS 26 does.
const PLACED: [usize; 2] = [1 << 30, 2 << 30];

/// The first rule by which an operation leaves the Neural Engine.
pub(super) fn away(function: &Function, op: &Op, chip: &Chip) -> Option<Finding> {
    let found = |rule, problem: String| Some(finding(function, op, rule, problem));
    if offers(&op.kind) == Some(false) {
        return found(Rule::Operator, format!("`{}` is never offered the Neural Engine", op.kind));
    }
    for (what, ty) in tensors(function, op) {
        let wide = match ty.dtype {
            DataType::Int32 | DataType::Int64 | DataType::Uint32 | DataType::Uint64 | DataType::Float64 => {
                true
            }
            // A cast to or from it is offered; arithmetic in it is not.
            DataType::Float32 => op.kind != "cast",
            _ => false,
        };
        if wide {
            return found(
                Rule::Type,
                format!("{what} is {}; the Neural Engine has fp16 and small integers", ty.dtype),
            );
        }
        if ty.shape.len() > RANK {
            return found(
                Rule::Rank,
                format!("{what} has {} axes, at most {RANK} are possible", ty.shape.len()),
            );
        }
        if let Some(long) = ty.shape.iter().find(|size| **size > chip.axis) {
            let problem = format!("{what} has an axis of {long}, at most {} on {}", chip.axis, chip.name);
            let own = finding(function, op, Rule::Axis, problem);
            let inferred = Finding { confidence: Confidence::Inferred, ..own.clone() };
            return Some(if chip.axis_is_seen { own } else { inferred });
        }
    }
    dynamic(function, op).or_else(|| window(function, op)).or_else(|| inner(function, op))
}

fn finding(function: &Function, op: &Op, rule: Rule, problem: String) -> Finding {
    let name = op.outputs.first().map_or_else(|| function.name.clone(), |id| function.var(*id).name.clone());
    Finding { op: name, operator: op.kind.clone(), rule, confidence: rule.confidence(), problem }
}

/// Something about all of a function.
fn of_all(function: &Function, rule: Rule, problem: String) -> Finding {
    let (op, operator) = (function.name.clone(), "function".to_owned());
    Finding { op, operator, rule, confidence: rule.confidence(), problem }
}

/// Inputs that carry data, and results, with what they are.
fn tensors<'a>(function: &'a Function, op: &'a Op) -> Vec<(String, &'a TensorType)> {
    const DATA: [&str; 12] =
        ["x", "y", "data", "weight", "bias", "values", "input", "a", "b", "cond", "key", "indices"];
    let mut all = Vec::new();
    let mut add = |what: String, id: VarId| {
        let var = function.var(id);
        if let Type::Tensor(ty) = &var.ty {
            all.push((what, ty));
        }
    };
    for (name, arg) in op.inputs.iter().filter(|(name, _)| DATA.contains(&name.as_str())) {
        let is_index = name == "indices";
        match arg {
            // Indices that are constants are folded into the program.
            Arg::Var(id) if !(is_index && function.var(*id).value.is_some()) => {
                add(format!("'{}'", function.var(*id).name), *id);
            }
            Arg::List(ids) => ids.iter().for_each(|id| add(format!("'{}'", function.var(*id).name), *id)),
            _ => {}
        }
    }
    for id in &op.outputs {
        add(format!("the result '{}'", function.var(*id).name), *id);
    }
    all
}

fn constant<'a>(function: &'a Function, op: &'a Op, input: &str) -> Option<&'a Value> {
    match op.inputs.get(input)? {
        Arg::Var(id) => function.var(*id).value.as_ref(),
        Arg::Value(value) => Some(value),
        Arg::List(_) => None,
    }
}

fn dynamic(function: &Function, op: &Op) -> Option<Finding> {
    let inputs: &[&str] = match op.kind.as_str() {
        "slice_by_size" => &["begin", "size"],
        "slice_by_index" => &["begin", "end"],
        "gather" | "gather_nd" | "gather_along_axis" => &["indices"],
        "reshape" => &["shape"],
        "pad" => &["pad"],
        "tile" => &["reps"],
        _ => return None,
    };
    let late = inputs
        .iter()
        .find(|name| op.inputs.contains_key(**name) && constant(function, op, name).is_none())?;
    let problem = format!("'{late}' of `{}` is only known at run time", op.kind);
    Some(finding(function, op, Rule::Dynamic, problem))
}

fn ints(value: &Value) -> Option<Vec<usize>> {
    match value {
        Value::Immediate(_, Immediate::Ints(values)) => {
            values.iter().map(|value| usize::try_from(*value).ok()).collect()
        }
        _ => None,
    }
}

fn window(function: &Function, op: &Op) -> Option<Finding> {
    let problem = match op.kind.as_str() {
        "conv" => {
            let Arg::Var(weight) = op.inputs.get("weight")? else { return None };
            let shape = &function.var(*weight).ty.tensor().shape;
            let [.., rows, columns] = shape[..] else { return None };
            let rows = if shape.len() > 3 { rows } else { 1 };
            (rows > CONV_WINDOW.0 || columns > CONV_WINDOW.1 || rows > CONV_WINDOW.1 && columns > 1).then(|| {
                format!("a window of {rows} by {columns}; up to 15 columns, or 31 rows of one column, are possible")
            })
        }
        "max_pool" => {
            let sizes = ints(constant(function, op, "kernel_sizes")?)?;
            let (columns, rows) = (sizes.last().copied().unwrap_or(0), sizes.first().copied().unwrap_or(0));
            (columns > MAX_POOL || rows > MAX_POOL && columns > 1).then(|| {
                format!("a maximum over {rows} by {columns}; at most {MAX_POOL}, or rows of one column, are possible")
            })
        }
        _ => None,
    }?;
    Some(finding(function, op, Rule::Kernel, problem))
}

fn inner(function: &Function, op: &Op) -> Option<Finding> {
    if op.kind != "matmul" {
        return None;
    }
    let Arg::Var(x) = op.inputs.get("x")? else { return None };
    let shape = &function.var(*x).ty.tensor().shape;
    let transposed = constant(function, op, "transpose_x")
        .is_some_and(|v| matches!(v, Value::Immediate(_, Immediate::Bools(b)) if b == &[true]));
    let summed = if transposed { shape.iter().rev().nth(1) } else { shape.last() };
    let summed = *summed?;
    (summed > INNER).then(|| {
        let problem = format!("a product summed over {summed}, at most {INNER} are possible");
        finding(function, op, Rule::Inner, problem)
    })
}

/// What makes operations slow or wrong on the Neural Engine without their leaving it.
pub(super) fn warnings(function: &Function) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    for op in function.compute_ops().filter(|op| !op.kind.starts_with("constexpr_")) {
        // States are read and written by the program itself.
        let is_state = matches!(op.kind.as_str(), "read_state" | "coreml_update_state");
        if offers(&op.kind).is_none() && !is_state {
            let problem = format!("no published plan has `{}`", op.kind);
            all.push(finding(function, op, Rule::Unknown, problem));
        }
        if op.kind == "conv"
            && let Some(Arg::Var(weight)) = op.inputs.get("weight")
        {
            let shape = &function.var(*weight).ty.tensor().shape;
            let groups =
                constant(function, op, "groups").and_then(ints).and_then(|g| g.first().copied()).unwrap_or(1);
            if groups > 1 && shape.get(1) == Some(&1) {
                let problem = format!(
                    "{groups} channels each by itself were seen to run on the CPU; write it as sums of products"
                );
                all.push(finding(function, op, Rule::Depthwise, problem));
            }
            if let Some(problem) = notch(shape) {
                all.push(finding(function, op, Rule::Notch, problem));
            }
        }
        all.extend(infinite(function, op));
    }
    for id in &function.inputs {
        let var = function.var(*id);
        let about = |rule: Rule, problem| Finding {
            op: var.name.clone(),
            operator: "input".to_owned(),
            rule,
            confidence: rule.confidence(),
            problem,
        };
        match &var.ty {
            Type::State(ty) => {
                let last = ty.shape.last().copied().unwrap_or(1);
                if !last.is_multiple_of(32) {
                    all.push(about(
                        Rule::State,
                        format!("a state whose last axis is {last}; make it a multiple of 32"),
                    ));
                }
            }
            Type::Tensor(ty) => {
                let large = super::elements(&ty.shape) >= 4096;
                if large && ty.shape.last() == Some(&1) {
                    all.push(about(
                        Rule::Singleton,
                        "a last axis of 1, which takes 32 times its memory".to_owned(),
                    ));
                }
            }
        }
    }
    all
}

/// Whether a constant masks by infinity, or by what becomes it in a sum.
fn infinite(function: &Function, op: &Op) -> Option<Finding> {
    let inputs = op.inputs.values().filter_map(|arg| match arg {
        Arg::Var(id) => Some(function.var(*id)),
        _ => None,
    });
    let worst = |values: &[f32]| values.iter().copied().find(|v| v.is_infinite() || *v <= -65_000.0);
    let (name, value) = inputs.into_iter().find_map(|var| match &var.value {
        Some(Value::Immediate(_, Immediate::Floats(values))) => Some((&var.name, worst(values)?)),
        _ => None,
    })?;
    let problem = format!("'{name}' has values of {value}; use -10000 for what is masked");
    Some(finding(function, op, Rule::Infinite, problem))
}

/// Whether a weight of `[N, D, ...]` falls on the slow spot: its bytes per core are near a whole number of MiB.
fn notch(shape: &[usize]) -> Option<String> {
    const MIB: usize = 1 << 20;
    const NEAR: usize = 16 << 10;
    let [rows, width, ..] = shape[..] else { return None };
    let bytes = rows.div_ceil(16).checked_mul(width)?.checked_mul(2)?;
    let off = bytes % MIB;
    let near = bytes >= MIB - NEAR && off.min(MIB - off) <= NEAR;
    near.then(|| {
        format!("{bytes} bytes a core are within 16 KiB of a whole number of MiB, which was seen to read at a third of the speed; cut it along its inputs")
    })
}

/// Whether a program is too large to be placed as a whole.
pub(super) fn size(function: &Function, bytes: usize) -> Option<Finding> {
    let beyond = PLACED.iter().filter(|limit| bytes > **limit).count();
    let systems = match beyond {
        0 => return None,
        1 => "macOS 27 and iOS run more than 1 GiB on the CPU",
        _ => "macOS 26 runs more than 2 GiB on the CPU, and macOS 27 and iOS more than 1 GiB",
    };
    let problem = format!("{} MiB of weights; {systems} without a word; use more packages", bytes >> 20);
    Some(of_all(function, Rule::Size, problem))
}

/// A function of which nothing is worth a launch, though some of it could run there.
pub(super) fn declined(function: &Function, costs: &[Cost], cpu_ms: f64) -> Finding {
    let could = costs.iter().filter(|cost| cost.neural_engine.is_finite());
    let there = could.fold(Cost::NONE, |sum, cost| sum.plus(*cost)).alone().neural_engine;
    let problem = format!(
        "the planner reckons {cpu_ms:.3} ms on the CPU, and no run of operations saves its launch on the Neural Engine ({there:.3} ms with \
         launch and output for what could run there), so all of it may stay on the CPU; use fewer, larger packages"
    );
    of_all(function, Rule::Small, problem)
}
