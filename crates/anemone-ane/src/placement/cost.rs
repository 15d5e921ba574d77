//! What places cost by the planner's own reckoning, as published, and the cheapest way through a function.

use std::collections::HashMap;
use std::sync::LazyLock;

use anemone_mil::{Arg, Function, Immediate, Op, TensorType, Type, Value, VarId};

use super::{Segment, elements, rows};

const TABLE: &str = include_str!("../../data/costs.tsv");

/// Rates or times on the Neural Engine and on the CPU.
type Pair = (f64, f64);

static COSTS: LazyLock<HashMap<&'static str, (Pair, &'static str)>> = LazyLock::new(|| {
    rows(TABLE)
        .filter_map(|row| {
            let [what, ane, cpu, unit, ..] = row[..] else { return None };
            Some((what, ((ane.parse().ok()?, cpu.parse().ok()?), unit)))
        })
        .collect()
});

fn pair(what: &str) -> Pair {
    COSTS.get(what).map_or((1.0, 1.0), |(pair, _)| *pair)
}

/// Milliseconds that the planner reckons with in either place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// On the Neural Engine; infinite where it cannot run.
    pub neural_engine: f64,
    /// On the CPU.
    pub cpu: f64,
}

impl Cost {
    /// Work of `amount` bytes or operations at a rate in billions a second.
    fn at(what: &str, amount: f64) -> Self {
        let (ane, cpu) = pair(what);
        Self { neural_engine: amount / ane / 1e6, cpu: amount / cpu / 1e6 }
    }

    /// The slower of two that go on at the same time.
    fn or(self, other: Self) -> Self {
        Self { neural_engine: self.neural_engine.max(other.neural_engine), cpu: self.cpu.max(other.cpu) }
    }

    /// A map of `inputs` to `outputs` channels by a dense weight, for so many tokens.
    pub fn of_map(inputs: usize, outputs: usize, tokens: usize) -> Self {
        let weights = inputs as f64 * outputs as f64;
        let products = 2.0 * weights * tokens as f64;
        Self::at("conv_point", products).or(Self::at("weights", 2.0 * weights))
    }

    /// One after the other.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { neural_engine: self.neural_engine + other.neural_engine, cpu: self.cpu + other.cpu }
    }

    /// Nothing at all.
    pub const NONE: Self = Self { neural_engine: 0.0, cpu: 0.0 };

    /// What it comes to as a graph of its own: on the Neural Engine with its launch and its output, or on the CPU.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { neural_engine: self.neural_engine + pair("launch").0 + pair("output").0, cpu: self.cpu }
    }

    /// Whether a graph of its own is cheaper on the Neural Engine.
    pub fn is_placed_alone(self) -> bool {
        let alone = self.alone();
        alone.neural_engine < alone.cpu
    }
}

/// What an operation costs.
pub(super) fn of(function: &Function, op: &Op, leaves: bool) -> Cost {
    let cost = work(function, op);
    if leaves { Cost { neural_engine: f64::INFINITY, ..cost } } else { cost }
}

fn work(function: &Function, op: &Op) -> Cost {
    let out = op.outputs.first().map(|id| shape(function, *id));
    match op.kind.as_str() {
        "conv" => convolution(function, op, out.unwrap_or(&[])),
        "matmul" => {
            let Some(x) = input(op, "x") else { return memory(function, op, "*") };
            let axis = usize::from(is_true(function, op, "transpose_x"));
            let summed = shape(function, x).iter().rev().nth(axis).copied().unwrap_or(1);
            products("matmul", out, summed, constants(function, op))
        }
        "einsum" => match contracted(function, op) {
            Some(summed) => products("matmul", out, summed, constants(function, op)),
            None => memory(function, op, "*"),
        },
        "add" | "mul" if has_one_shape(function, op) => memory(function, op, &op.kind),
        "concat" | "gather" | "linear" | "relu" | "transpose" => memory(function, op, &op.kind),
        _ => memory(function, op, "*"),
    }
}

fn products(what: &str, out: Option<&[usize]>, summed: usize, constants: f64) -> Cost {
    let amount = 2.0 * elements(out.unwrap_or(&[])) as f64 * summed as f64;
    Cost::at(what, amount).or(Cost::at("weights", constants))
}

fn convolution(function: &Function, op: &Op, out: &[usize]) -> Cost {
    let Some(weight) = input(op, "weight") else { return memory(function, op, "*") };
    let weight = shape(function, weight);
    let window: usize = elements(weight.get(2..).unwrap_or(&[]));
    let groups = ints(function, op, "groups").and_then(|g| g.first().copied()).unwrap_or(1);
    if groups > 1 && weight.get(1) == Some(&1) {
        return memory(function, op, "*");
    }
    let what = if window > 1 { "conv_window" } else { "conv_point" };
    let summed = weight.get(1).copied().unwrap_or(1).saturating_mul(window);
    products(what, Some(out), summed, 2.0 * elements(weight) as f64)
}

/// By the bytes that come in and go out.
fn memory(function: &Function, op: &Op, what: &str) -> Cost {
    let bytes = |id: &VarId| match &function.var(*id).ty {
        Type::Tensor(ty) => of_type(ty),
        Type::State(_) => 0.0,
    };
    let inputs: f64 = op
        .inputs
        .values()
        .map(|arg| match arg {
            Arg::Var(id) => bytes(id),
            Arg::List(ids) => ids.iter().map(bytes).sum(),
            Arg::Value(_) => 0.0,
        })
        .sum();
    Cost::at(what, inputs + op.outputs.iter().map(bytes).sum::<f64>())
}

fn of_type(ty: &TensorType) -> f64 {
    ty.dtype.byte_len(elements(&ty.shape)).unwrap_or(0) as f64
}

/// Bytes of the constants an operation reads.
fn constants(function: &Function, op: &Op) -> f64 {
    let read = op.inputs.values().filter_map(|arg| match arg {
        Arg::Var(id) if function.var(*id).value.is_some() => match &function.var(*id).ty {
            Type::Tensor(ty) => Some(of_type(ty)),
            Type::State(_) => None,
        },
        _ => None,
    });
    read.sum()
}

fn input(op: &Op, name: &str) -> Option<VarId> {
    match op.inputs.get(name)? {
        Arg::Var(id) => Some(*id),
        _ => None,
    }
}

fn shape(function: &Function, id: VarId) -> &[usize] {
    match &function.var(id).ty {
        Type::Tensor(ty) | Type::State(ty) => &ty.shape,
    }
}

fn has_one_shape(function: &Function, op: &Op) -> bool {
    let (Some(x), Some(y)) = (input(op, "x"), input(op, "y")) else { return false };
    shape(function, x) == shape(function, y)
}

fn value<'a>(function: &'a Function, op: &'a Op, name: &str) -> Option<&'a Immediate> {
    let value = match op.inputs.get(name)? {
        Arg::Var(id) => function.var(*id).value.as_ref()?,
        Arg::Value(value) => value,
        Arg::List(_) => return None,
    };
    match value {
        Value::Immediate(_, immediate) => Some(immediate),
        Value::Weight(..) => None,
    }
}

fn is_true(function: &Function, op: &Op, name: &str) -> bool {
    matches!(value(function, op, name), Some(Immediate::Bools(b)) if b == &[true])
}

fn ints(function: &Function, op: &Op, name: &str) -> Option<Vec<usize>> {
    match value(function, op, name)? {
        Immediate::Ints(values) => values.iter().map(|v| usize::try_from(*v).ok()).collect(),
        _ => None,
    }
}

/// Elements that an `einsum` sums over for each of its results.
fn contracted(function: &Function, op: &Op) -> Option<usize> {
    let Immediate::Strings(equation) = value(function, op, "equation")? else { return None };
    let (left, right) = equation.first()?.split_once("->")?;
    let Arg::List(values) = op.inputs.get("values")? else { return None };
    let mut sizes: HashMap<char, usize> = HashMap::new();
    for (letters, id) in left.split(',').zip(values) {
        sizes.extend(letters.trim().chars().zip(shape(function, *id).iter().copied()));
    }
    let summed = sizes.iter().filter(|(letter, _)| !right.contains(**letter));
    Some(summed.fold(1, |product, (_, size)| product.saturating_mul(*size)))
}

/// The cheapest way through operations in a row, and what it comes to: each run on the Neural Engine pays its launch, each change of
/// place a switch, and a last operation on the Neural Engine an output.
pub(super) fn cheapest(costs: &[Cost]) -> (Vec<Segment>, f64) {
    let (launch, switch, output) = (pair("launch").0, pair("switch").0, pair("output").0);
    // Of the way so far that ends on the CPU and of that which ends on the Neural Engine: its cost, and where each step came from.
    let (mut on_cpu, mut on_ane) = (f64::INFINITY, f64::INFINITY);
    let mut from: Vec<(bool, bool)> = Vec::with_capacity(costs.len());
    for (index, cost) in costs.iter().enumerate() {
        let (cpu, ane) = if index == 0 {
            from.push((false, true));
            (0.0, launch)
        } else {
            let (stay, leave) = (on_cpu, on_ane + switch);
            let (remain, enter) = (on_ane, on_cpu + switch + launch);
            // Where both cost the same, it stays where it is.
            from.push((leave < stay, remain <= enter));
            (stay.min(leave), remain.min(enter))
        };
        (on_cpu, on_ane) = (cpu + cost.cpu, ane + cost.neural_engine);
    }
    // An output costs what a change of place does, so that a last operation may be in either: it stays where it is.
    let mut neural_engine = on_ane + output <= on_cpu + 1e-9;
    let total = if costs.is_empty() { 0.0 } else { on_cpu.min(on_ane + output) };
    let mut segments: Vec<Segment> = Vec::new();
    for (cost, (cpu_from_ane, ane_from_ane)) in costs.iter().zip(&from).rev() {
        let own = if neural_engine { cost.neural_engine } else { cost.cpu };
        match segments.last_mut().filter(|last| last.neural_engine == neural_engine) {
            Some(last) => {
                last.ops += 1;
                last.ms += own;
            }
            None => segments.push(Segment { neural_engine, ops: 1, ms: own }),
        }
        neural_engine = if neural_engine { *ane_from_ane } else { *cpu_from_ane };
    }
    segments.reverse();
    (segments, total)
}

/// What a placement that is given comes to.
#[cfg(test)]
pub(super) fn of_places(costs: &[Cost], places: &[bool]) -> f64 {
    let (launch, switch, output) = (pair("launch").0, pair("switch").0, pair("output").0);
    let mut total = 0.0;
    for (index, (cost, neural_engine)) in costs.iter().zip(places).enumerate() {
        let before = index.checked_sub(1).map(|i| places[i]);
        if *neural_engine && before != Some(true) {
            total += launch;
        }
        if before.is_some_and(|before| before != *neural_engine) {
            total += switch;
        }
        total += if *neural_engine { cost.neural_engine } else { cost.cpu };
    }
    total + if places.last() == Some(&true) { output } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(neural_engine: f64, cpu: f64) -> Cost {
        Cost { neural_engine, cpu }
    }

    #[test]
    fn the_way_found_is_the_cheapest_of_all() {
        // Every way through six operations, over costs of all sizes that a launch can be.
        let mut seed = 7_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 40) as f64 / f64::from(1 << 24) * 0.5
        };
        for round in 0..300 {
            let mut costs: Vec<Cost> = (0..6).map(|_| cost(next() / 4.0, next())).collect();
            if round % 3 == 0 {
                costs[round % 6].neural_engine = f64::INFINITY;
            }
            let ways = (0..64).map(|way: u32| (0..6).map(|i| way >> i & 1 == 1).collect::<Vec<bool>>());
            let least = ways.map(|places| of_places(&costs, &places)).fold(f64::INFINITY, f64::min);
            let (segments, total) = cheapest(&costs);
            let places: Vec<bool> =
                segments.iter().flat_map(|s| std::iter::repeat_n(s.neural_engine, s.ops)).collect();
            assert!((total - least).abs() < 1e-12, "{round}: {total} {least}");
            assert!((of_places(&costs, &places) - least).abs() < 1e-12, "{round}: {places:?}");
            let own: f64 = segments.iter().map(|segment| segment.ms).sum();
            assert!(own <= total && segments.windows(2).all(|w| w[0].neural_engine != w[1].neural_engine));
        }
        assert_eq!(cheapest(&[]), (Vec::new(), 0.0));
    }

    #[test]
    fn every_row_of_the_table_is_read_and_has_a_known_unit() {
        assert_eq!(COSTS.len(), rows(TABLE).count());
        for row in rows(TABLE) {
            let ((ane, cpu), unit) = COSTS[row[0]];
            assert!(ane > 0.0 && cpu >= 0.0 && ["ms", "GB/s", "GFLOP/s"].contains(&unit), "{row:?}");
            assert!(["medium", "low"].contains(&row[4]) && !row[5].is_empty(), "{row:?}");
        }
    }
}
