use std::collections::BTreeMap;

use anemone_mil::{
    Arg, DataType, Function, Immediate, Op, Program, TensorType, Type, Value, Var, VarId, Weight, WeightId,
    WeightSource,
};

use super::rules::Rule;
use super::{Chip, OPERATORS, Placement, offers, predict, rows};

const CASES: &str = include_str!("../../data/placements.tsv");

/// A function made by hand: what a checked builder would refuse may come in a package of others.
#[derive(Default)]
pub(super) struct Maker {
    inputs: Vec<VarId>,
    ops: Vec<Op>,
    vars: Vec<Var>,
    weights: Vec<Weight>,
}

impl Maker {
    fn var(&mut self, name: &str, ty: impl Into<Type>, value: Option<Value>) -> VarId {
        self.vars.push(Var { name: name.to_owned(), ty: ty.into(), value });
        VarId(self.vars.len() - 1)
    }

    pub(super) fn input(&mut self, name: &str, ty: impl Into<Type>) -> VarId {
        let id = self.var(name, ty, None);
        self.inputs.push(id);
        id
    }

    pub(super) fn constant(&mut self, name: &str, ty: TensorType, values: Immediate) -> VarId {
        let value = Value::Immediate(ty.clone(), values);
        self.var(name, ty, Some(value))
    }

    /// A stored weight that is not there.
    pub(super) fn weight(&mut self, name: &str, ty: TensorType) -> VarId {
        self.weights.push(Weight {
            name: name.to_owned(),
            ty: ty.clone(),
            source: WeightSource::Bytes(Vec::new().into()),
        });
        let value = Value::Weight(ty.clone(), WeightId(self.weights.len() - 1));
        self.var(name, ty, Some(value))
    }

    pub(super) fn op(
        &mut self,
        kind: &str,
        name: &str,
        inputs: &[(&str, VarId)],
        result: TensorType,
    ) -> VarId {
        let out = self.var(name, result, None);
        let inputs = inputs.iter().map(|(name, id)| ((*name).to_owned(), Arg::Var(*id))).collect();
        self.ops.push(Op { kind: kind.to_owned(), inputs, outputs: vec![out], attributes: BTreeMap::new() });
        out
    }

    /// Its operations as a function, without its weights.
    pub(super) fn function(self) -> Function {
        let Self { inputs, ops, vars, .. } = self;
        let outputs = ops.last().map(|op| op.outputs.clone()).unwrap_or_default();
        Function { name: "main".into(), inputs, ops, outputs, vars }
    }

    pub(super) fn predict(mut self, chip: &str) -> Placement {
        let weights = std::mem::take(&mut self.weights);
        let function = self.function();
        let program = Program {
            spec_version: 9,
            functions: BTreeMap::new(),
            default_function: "main".into(),
            weights,
            metadata: BTreeMap::new(),
        };
        predict(&program, &function, &Chip::named(chip).unwrap())
    }
}

pub(super) fn half(shape: &[usize]) -> TensorType {
    TensorType::new(DataType::Float16, shape.to_vec())
}

/// The first finding's rule and operation, if any leaves. What uses a tensor no engine takes leaves with it.
fn left(placement: &Placement) -> Option<(Rule, String)> {
    let known = |op: &str| ["y", "bad", "after"].contains(&op);
    assert!(placement.away.iter().all(|finding| known(&finding.op)), "{:?}", placement.away);
    placement.away.first().map(|finding| (finding.rule, finding.op.clone()))
}

#[test]
fn published_plans_of_single_operators_are_replayed() {
    // The table of operators is itself read off them, so those rows can only show that it is read right.
    let seen: Vec<Vec<&str>> = rows(OPERATORS).filter(|row| row[2] == "seen").collect();
    for row in &seen {
        assert_eq!(offers(row[0]), Some(row[1] == "yes"), "{row:?}");
    }
    // Types, shapes, windows and what is known when: decided by rules.
    let (mut right, mut wrong) = (0, Vec::new());
    for row in rows(CASES) {
        let [case, operator, dtype, shape, kernel, inner, dynamic, expected] = row[..] else {
            panic!("{row:?}")
        };
        let numbers = |text: &str| text.split('x').map(|n| n.parse().unwrap()).collect::<Vec<usize>>();
        let (ty, mut make) =
            (TensorType::new(DataType::from_name(dtype).unwrap(), numbers(shape)), Maker::default());
        let x = if inner == "-" {
            make.input("x", ty.clone())
        } else {
            make.input("x", half(&[1, 1, 64, inner.parse().unwrap()]))
        };
        let mut inputs = vec![("x", x)];
        if operator == "conv" {
            let window = numbers(kernel);
            inputs.push(("weight", make.weight("w", half(&[64, 64, window[0], window[1]]))));
        } else if kernel != "-" {
            let window: Vec<i64> = numbers(kernel).into_iter().map(|n| n as i64).collect();
            let ty = TensorType::new(DataType::Int32, vec![2]);
            inputs.push(("kernel_sizes", make.constant("k", ty, Immediate::Ints(window))));
        }
        let late = if operator == "gather" { "indices" } else { "begin" };
        if matches!(operator, "gather" | "slice_by_size") {
            let ty = TensorType::new(DataType::Int32, vec![4]);
            let id = if dynamic == "yes" {
                make.input("late", ty)
            } else {
                make.constant("late", ty, Immediate::Ints(vec![0; 4]))
            };
            inputs.push((late, id));
        }
        make.op(operator, "y", &inputs, ty);
        let predicted = make.predict("m6").away.is_empty();
        if predicted == (expected == "yes") { right += 1 } else { wrong.push(case.to_owned()) }
    }
    assert_eq!((seen.len(), right, wrong), (127, 70, Vec::<String>::new()));
}

#[test]
fn chips_differ_in_the_axes_they_take() {
    let relu = |axis: usize, chip: &str| {
        let mut make = Maker::default();
        let x = make.input("x", half(&[1, 1, 1, axis]));
        make.op("relu", "y", &[("x", x)], half(&[1, 1, 1, axis]));
        left(&make.predict(chip))
    };
    assert_eq!(relu(16_384, "m3"), None);
    assert_eq!(relu(17_920, "M3"), Some((Rule::Axis, "y".into())));
    assert_eq!(relu(17_920, "m6"), None);
    assert_eq!(Chip::named("M4 Max").unwrap().name, "m4max");
    assert!(Chip::named("m99").unwrap_err().to_string().contains("m1, m2"));
}

/// A graph of sound operations with a bad one in the middle, by what it does to it.
fn planted(plant: impl FnOnce(&mut Maker, VarId) -> VarId) -> Placement {
    let ty = half(&[1, 64, 1, 64]);
    let mut make = Maker::default();
    let x = make.input("x", ty.clone());
    // Enough weights for a launch to pay.
    let big = make.weight("big", half(&[16_384, 16_000, 1, 1]));
    let before = make.op("conv", "before", &[("x", x), ("weight", big)], ty.clone());
    let bad = plant(&mut make, before);
    make.op("relu", "after", &[("x", bad)], ty);
    make.predict("m4")
}

#[test]
fn nine_planted_operations_are_told_to_leave() {
    let of = |dtype, shape: &[usize]| TensorType::new(dtype, shape.to_vec());
    let int = |make: &mut Maker, name: &str| make.input(name, TensorType::new(DataType::Int32, vec![4]));
    let sound = planted(|make, x| make.op("mul", "bad", &[("x", x), ("y", x)], half(&[1, 64, 1, 64])));
    assert!(sound.away.is_empty() && sound.warnings.is_empty() && sound.segments.len() == 1, "{sound:?}");
    let leaves: [(Rule, Placement); 9] = [
        (
            Rule::Type,
            planted(|make, x| {
                make.op("add", "bad", &[("x", x), ("y", x)], of(DataType::Int32, &[1, 64, 1, 64]))
            }),
        ),
        (
            Rule::Type,
            planted(|make, x| {
                let wide = make.constant("wide", of(DataType::Float32, &[1]), Immediate::Floats(vec![1.0]));
                make.op("mul", "bad", &[("x", x), ("y", wide)], half(&[1, 64, 1, 64]))
            }),
        ),
        (Rule::Axis, planted(|make, x| make.op("relu", "bad", &[("x", x)], half(&[1, 1, 1, 70_000])))),
        (Rule::Rank, planted(|make, x| make.op("transpose", "bad", &[("x", x)], half(&[1, 2, 2, 4, 4, 64])))),
        (
            Rule::Dynamic,
            planted(|make, x| {
                let begin = int(make, "begin");
                make.op("slice_by_size", "bad", &[("x", x), ("begin", begin)], half(&[1, 64, 1, 64]))
            }),
        ),
        (
            Rule::Operator,
            planted(|make, x| make.op("reduce_argmax", "bad", &[("x", x)], half(&[1, 1, 1, 64]))),
        ),
        (Rule::Operator, planted(|make, x| make.op("scatter", "bad", &[("data", x)], half(&[1, 64, 1, 64])))),
        (
            Rule::Kernel,
            planted(|make, x| {
                let weight = make.weight("w", half(&[64, 64, 1, 31]));
                make.op("conv", "bad", &[("x", x), ("weight", weight)], half(&[1, 64, 1, 64]))
            }),
        ),
        (
            Rule::Inner,
            planted(|make, _| {
                let wide = make.input("wide", half(&[1, 1, 4, 40_000]));
                make.op("matmul", "bad", &[("x", wide), ("y", wide)], half(&[1, 1, 4, 4]))
            }),
        ),
    ];
    for (rule, placement) in leaves {
        assert_eq!(left(&placement), Some((rule, "bad".into())), "{placement:?}");
        let places: Vec<bool> = placement.segments.iter().map(|segment| segment.neural_engine).collect();
        assert_eq!(places[..2], [true, false], "{placement:?}");
    }
}

#[test]
fn six_planted_slow_or_doubtful_graphs_are_warned_of() {
    let ty = || half(&[1, 64, 1, 64]);
    let of = |dtype, shape: &[usize]| TensorType::new(dtype, shape.to_vec());
    let warned: [(Rule, &str, Placement); 6] = [
        (
            Rule::Depthwise,
            "bad",
            planted(|make, x| {
                let weight = make.weight("w", half(&[64, 1, 1, 3]));
                let groups = make.constant("groups", of(DataType::Int32, &[]), Immediate::Ints(vec![64]));
                make.op(
                    "conv",
                    "bad",
                    &[("x", x), ("weight", weight), ("groups", groups)],
                    half(&[1, 64, 1, 64]),
                )
            }),
        ),
        (
            Rule::Size,
            "main",
            planted(|make, x| {
                let weight = make.weight("w", half(&[16_384, 65_500, 1, 1]));
                make.op("linear", "bad", &[("x", x), ("weight", weight)], half(&[1, 64, 1, 64]))
            }),
        ),
        (
            Rule::State,
            "cache",
            planted(|make, x| {
                make.input("cache", Type::State(half(&[1, 8, 64, 270])));
                make.op("relu", "bad", &[("x", x)], half(&[1, 64, 1, 64]))
            }),
        ),
        (
            Rule::Infinite,
            "bad",
            planted(|make, x| {
                let mask = make.constant("mask", half(&[1]), Immediate::Floats(vec![f32::NEG_INFINITY]));
                make.op("add", "bad", &[("x", x), ("y", mask)], half(&[1, 64, 1, 64]))
            }),
        ),
        (
            Rule::Singleton,
            "tall",
            planted(|make, x| {
                make.input("tall", half(&[1, 8192, 1, 1]));
                make.op("relu", "bad", &[("x", x)], half(&[1, 64, 1, 64]))
            }),
        ),
        (
            Rule::Notch,
            "bad",
            planted(|make, x| {
                let weight = make.weight("w", half(&[8192, 2048, 1, 1]));
                make.op("conv", "bad", &[("x", x), ("weight", weight)], half(&[1, 64, 1, 64]))
            }),
        ),
    ];
    for (rule, at, placement) in warned {
        let named: Vec<_> =
            placement.warnings.iter().map(|finding| (finding.rule, finding.op.as_str())).collect();
        assert!(
            placement.away.is_empty() && named == [(rule, at)],
            "{rule:?}: {named:?} {:?}",
            placement.away
        );
    }
    // A graph of little work, by itself.
    let mut make = Maker::default();
    let x = make.input("x", ty());
    make.op("relu", "y", &[("x", x)], ty());
    assert_eq!(make.predict("m4").warnings[0].rule, Rule::Small);
}

#[test]
fn what_nobody_has_seen_is_doubtful_and_not_said_to_leave() {
    let placement = planted(|make, x| make.op("complex_fft", "bad", &[("x", x)], half(&[1, 64, 1, 64])));
    assert!(placement.away.is_empty());
    assert_eq!((placement.warnings[0].rule, placement.warnings[0].op.as_str()), (Rule::Unknown, "bad"));
}

#[test]
fn shapes_that_nobody_could_hold_are_counted_without_overflow() {
    let huge = || half(&[usize::MAX / 2, usize::MAX / 2, 1, 1]);
    let placement = planted(|make, x| {
        make.input("tall", half(&[usize::MAX, usize::MAX, 1]));
        let weight = make.weight("w", huge());
        make.op("conv", "bad", &[("x", x), ("weight", weight)], half(&[1, 64, 1, 64]))
    });
    assert_eq!(left(&placement).unwrap().0, Rule::Axis);
    assert!(placement.warnings.iter().any(|warning| warning.rule == Rule::Size), "{placement:?}");
}
