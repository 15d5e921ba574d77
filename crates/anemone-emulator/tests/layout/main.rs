//! The channel-first lowering of decision models against an independent model in f64 that knows neither layout nor padding.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod oracle;

use anemone_ane::{LayaOptions, LayaPart, LocalAttention, OPTION_SLOTS, lower_laya, lower_laya_part};
use anemone_emulator::{Emulator, Profile};
use anemone_mil::{Array, DataType, Executor as _, Program, States, write_package};
use anemone_models::{Laya, WeightRef};
use anemone_tensor::{DType, Tensor};
use oracle::{Attention, Oracle, Spec, Weights};

const LENGTH: usize = 64;
/// Sums in f32 of values near one against sums in f64.
const BOUND: f64 = 1e-4;

fn specs() -> Vec<(&'static str, Spec)> {
    let base = Spec {
        hidden: 128,
        heads: 4,
        width: 48,
        full: vec![true, false, false, true, false],
        thetas: [160_000.0, 10_000.0],
        local_attention: 16,
        eps: 1e-5,
        biases: [false; 3],
        head_layers: 2,
    };
    vec![
        ("as published", base.clone()),
        ("biases, wide epsilon", Spec { biases: [true; 3], eps: 1e-2, ..base.clone() }),
        (
            "one base, sliding first, odd window",
            Spec {
                full: vec![false, false, true],
                thetas: [500.0, 500.0],
                local_attention: 9,
                biases: [true, false, false],
                ..base.clone()
            },
        ),
        (
            "short bases, one head of one layer",
            Spec {
                hidden: 48,
                heads: 3,
                thetas: [37.0, 4.0],
                head_layers: 1,
                eps: 1e-3,
                biases: [false, true, false],
                ..base
            },
        ),
    ]
}

/// Numbers from -1 to 1, the same for the same seed.
fn numbers(seed: u64, n: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f64::from((state >> 40) as u32) / f64::from(1u32 << 23) - 1.0
    };
    (0..n).map(|_| f64::from(next() as f32)).collect()
}

/// Weights of every name, of sizes at which each part of the model matters.
fn weights(laya: &Laya) -> Weights {
    let mut all = Weights::new();
    for (i, weight) in laya.weights().into_iter().enumerate() {
        let vector = weight.shape.len() == 1;
        let (base, scale) = match &weight.name {
            name if name.contains("norm") || name.starts_with("scorer.0") => {
                if name.ends_with("bias") {
                    (0.0, 0.5)
                } else {
                    (1.0, 0.5)
                }
            }
            _ if vector => (0.0, 0.3),
            name if name.contains("Wqkv") || name.contains("in_proj") => {
                (0.0, 2.5 / (weight.shape[1] as f64).sqrt())
            }
            name if name.starts_with("scorer") => (0.0, 6.0 / (weight.shape[1] as f64).sqrt()),
            _ => (0.0, 1.5 / (weight.shape[1] as f64).sqrt()),
        };
        let values = numbers(i as u64 + 1, weight.shape.numel());
        all.insert(
            weight.name.clone(),
            values.into_iter().map(|v| f64::from((base + scale * v) as f32)).collect(),
        );
    }
    all
}

fn described(spec: &Spec) -> Laya {
    let [agent, encoder] = spec.configs();
    Laya::describe(agent.as_object().unwrap(), encoder.as_object().unwrap()).unwrap()
}

/// A question's tokens as vectors, its kind and its markers.
#[derive(Clone)]
struct Question {
    tokens: Vec<Vec<f64>>,
    kind: usize,
    markers: Vec<usize>,
}

fn question(spec: &Spec, tokens: usize, kind: usize) -> Question {
    let vector = |i: usize| numbers((1000 * tokens + i) as u64, spec.hidden);
    let markers = [1, tokens / 2, tokens - 1].to_vec();
    Question { tokens: (0..tokens).map(vector).collect(), kind, markers }
}

fn load(weights: &Weights) -> impl Fn(&WeightRef) -> Result<Tensor, anemone_models::Error> {
    |w| {
        let bytes: Vec<u8> = weights[&w.name].iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
        Ok(Tensor::new(DType::F32, w.shape.clone(), bytes.into()).unwrap())
    }
}

/// What a function gives on the emulator in f32.
fn predict(program: &Program, name: &str, inputs: &[(&str, &Array)]) -> Vec<Array> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.mlpackage");
    write_package(program, &path).unwrap();
    Emulator::new(Profile::f32(), 1).load(&path, name).unwrap().predict(inputs, &mut States::new()).unwrap()
}

/// What a run may be made to do wrong.
#[derive(Default)]
struct Run {
    tile: Option<usize>,
    packed: bool,
    /// Of padded embeddings, one for each channel and column.
    garbage: Option<u64>,
    /// Added to the window of the local mask.
    wider: isize,
}

/// Logits and first tokens of questions one after the other, by the emulator in f32 over the lowered program.
fn lowered(laya: &Laya, weights: &Weights, questions: &[Question], run: &Run) -> Vec<(Vec<f32>, Vec<f32>)> {
    let hidden = laya.encoder.hidden_size;
    let options = LayaOptions {
        lengths: vec![LENGTH],
        spec_version: 9,
        local: run.tile.map_or(LocalAttention::Dense, LocalAttention::Tiled),
        precision: DataType::Float32,
        pack: run.packed,
    };
    let (program, _) = lower_laya(laya, &load(weights), &options).unwrap();
    let functions = options.functions().remove(0);
    let name = functions.packed.unwrap_or(functions.name);

    // Question and position of every column.
    let mut places: Vec<Option<(usize, usize)>> = (questions.iter().enumerate())
        .flat_map(|(q, question)| (0..question.tokens.len()).map(move |p| Some((q, p))))
        .collect();
    places.resize(LENGTH, None);
    let array = |shape: [usize; 4], value: &dyn Fn(usize, usize) -> f64| {
        let [_, rows, _, columns] = shape;
        let data = (0..rows * columns).map(|i| value(i / columns, i % columns) as f32).collect();
        Array { shape: shape.to_vec(), data }
    };
    let junk = run.garbage.map(|seed| numbers(seed, hidden * LENGTH));
    let embedding = |c: usize, column: usize| match places[column] {
        Some((q, p)) => questions[q].tokens[p][c],
        None => junk.as_ref().map_or(0.0, |junk| 300.0 * junk[c * LENGTH + column]),
    };
    let radius =
        laya.encoder.layers.iter().find_map(|l| l.attention.radius).unwrap().checked_add_signed(run.wider);
    let mask = |radius: usize| {
        let sees = move |key: Option<(usize, usize)>, query: Option<(usize, usize)>| match (key, query) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some((a, i)), Some((b, j))) => a == b && i.abs_diff(j) <= radius,
        };
        let places = &places;
        move |key: usize, query: usize| if sees(places[key], places[query]) { 0.0 } else { -1e4 }
    };
    let kind = |column: usize| places[column].map_or(0, |(q, _)| questions[q].kind);
    let types = |c: usize, column: usize| weights["type_emb.weight"][kind(column) * hidden + c];
    let slots: Vec<(usize, usize)> = questions
        .iter()
        .enumerate()
        .flat_map(|(q, question)| question.markers.iter().map(move |m| (q, *m)))
        .collect();
    let marked = |column: usize, slot: usize| {
        f64::from(u8::from(places[column].is_some_and(|place| slots.get(slot) == Some(&place))))
    };
    let first = |column: usize, slot: usize| f64::from(u8::from(places[column] == Some((slot, 0))));
    let square = [1, LENGTH, 1, LENGTH];
    let map = [1, LENGTH, 1, OPTION_SLOTS];
    let mut inputs = vec![
        ("embeddings".to_owned(), array([1, hidden, 1, LENGTH], &embedding)),
        ("full_mask".to_owned(), array(square, &mask(usize::MAX))),
        ("local_mask".to_owned(), array(square, &mask(radius.unwrap()))),
        ("type_vectors".to_owned(), array([1, hidden, 1, if run.packed { LENGTH } else { 1 }], &types)),
        ("marker_map".to_owned(), array(map, &marked)),
    ];
    if run.packed {
        inputs.push(("first_map".to_owned(), array(map, &first)));
        let mut ropes: Vec<_> = laya.encoder.layers.iter().filter_map(|l| l.attention.rope).collect();
        ropes.dedup();
        let mut known = Vec::new();
        for rope in ropes {
            if known.contains(&rope) {
                continue;
            }
            let angle = |m: usize, column: usize| {
                let position = places[column].map_or(0, |(_, p)| p) as f64;
                position * f64::from(rope.theta).powf(-2.0 * m as f64 / rope.dim as f64)
            };
            let shape = [1, rope.dim / 2, 1, LENGTH];
            let i = known.len();
            inputs.push((format!("cos_{i}"), array(shape, &|m, column| angle(m, column).cos())));
            inputs.push((format!("sin_{i}"), array(shape, &|m, column| angle(m, column).sin())));
            known.push(rope);
        }
    }
    let inputs: Vec<(&str, &Array)> = inputs.iter().map(|(name, array)| (name.as_str(), array)).collect();
    let outputs = predict(&program, &name, &inputs);
    let (logits, cls, mut slot) = (&outputs[0].data, &outputs[1], 0);
    let columns = cls.shape[3];
    (questions.iter().enumerate())
        .map(|(q, question)| {
            let own = logits[slot..slot + question.markers.len()].to_vec();
            slot += question.markers.len();
            (own, cls.data.iter().skip(q).step_by(columns).copied().collect())
        })
        .collect()
}

/// Largest difference of the logits and of the first tokens, relative to values near one.
fn furthest(found: &(Vec<f32>, Vec<f32>), expected: &(Vec<f64>, Vec<f64>)) -> f64 {
    let pairs = found.0.iter().zip(&expected.0).chain(found.1.iter().zip(&expected.1));
    pairs.fold(0.0, |most, (a, b)| {
        let off = (f64::from(*a) - b).abs() / b.abs().max(1.0);
        if off <= most { most } else { off }
    })
}

#[test]
fn both_oracles_agree_with_the_lowering() {
    for (name, spec) in specs() {
        let laya = described(&spec);
        let weights = weights(&laya);
        let oracle = |attention, question: &Question| {
            Oracle { spec: &spec, weights: &weights, attention }.run(
                &question.tokens,
                question.kind,
                &question.markers,
            )
        };
        let mut logits = Vec::new();
        for (tokens, kind) in [(LENGTH, 0), (41, 1), (19, 2)] {
            let question = question(&spec, tokens, kind);
            let (explicit, fused) =
                (oracle(Attention::Explicit, &question), oracle(Attention::Fused, &question));
            for tile in [None, Some(16), Some(24)] {
                let questions = std::slice::from_ref(&question);
                let run = |garbage| {
                    lowered(&laya, &weights, questions, &Run { tile, garbage, ..Run::default() }).remove(0)
                };
                let clean = run(None);
                let off = [furthest(&clean, &explicit), furthest(&clean, &fused)];
                println!("{name}, {tokens} tokens, kind {kind}, tile {tile:?}: {off:?}");
                assert!(off.iter().all(|off| *off < BOUND), "{name} {tokens} {kind} {tile:?}: {off:?}");
                // What lies behind the row reaches nothing, to the bit.
                assert!(run(Some(7)) == clean && run(Some(8)) == clean, "{name} {tokens} {tile:?}");
            }
            logits.push(explicit.0);
        }
        // Logits differ among the options, or nothing above would show much.
        let spread = |l: &Vec<f64>| (l[0] - l[1]).abs().max((l[1] - l[2]).abs());
        assert!(logits.iter().all(|l| spread(l) > 0.1), "{logits:?}");
        // Three questions in one row, each as if it were alone.
        let three = [question(&spec, 17, 2), question(&spec, 25, 0), question(&spec, 9, 1)];
        for tile in [None, Some(16)] {
            let run = Run { tile, packed: true, garbage: Some(3), ..Run::default() };
            for (found, question) in lowered(&laya, &weights, &three, &run).iter().zip(&three) {
                let off = furthest(found, &oracle(Attention::Fused, question));
                assert!(off < BOUND, "{name} packed {tile:?}: {off}");
            }
        }
    }
}

#[test]
fn parts_alone_are_those_of_the_whole() {
    for (name, spec) in specs() {
        let laya = described(&spec);
        let weights = weights(&laya);
        let oracle = Oracle { spec: &spec, weights: &weights, attention: Attention::Explicit };
        let question = question(&spec, LENGTH, 0);
        for i in 0..spec.full.len() {
            for (part, expected) in [
                (LayaPart::Mlp(i), oracle.mlp(&question.tokens, i)),
                (LayaPart::Layer(i), oracle.layer(&question.tokens, i)),
            ] {
                let options = LayaOptions {
                    lengths: vec![LENGTH],
                    spec_version: 9,
                    local: LocalAttention::Tiled(16),
                    precision: DataType::Float32,
                    pack: false,
                };
                let program = lower_laya_part(&laya, &load(&weights), &options, part).unwrap();
                let radius = laya.encoder.layers[i].attention.radius;
                let array = |rows: usize, value: &dyn Fn(usize, usize) -> f64| Array {
                    shape: vec![1, rows, 1, LENGTH],
                    data: (0..rows * LENGTH).map(|i| value(i / LENGTH, i % LENGTH) as f32).collect(),
                };
                let near = |k: usize, q: usize| k.abs_diff(q) <= radius.unwrap_or(LENGTH);
                let mask = array(LENGTH, &|k, q| if near(k, q) { 0.0 } else { -1e4 });
                let hidden = array(spec.hidden, &|c, p| question.tokens[p][c]);
                let mut inputs = vec![("hidden", &hidden)];
                if matches!(part, LayaPart::Layer(_)) {
                    inputs.push((if radius.is_some() { "local_mask" } else { "full_mask" }, &mask));
                }
                let found = predict(&program, "main", &inputs).remove(0);
                let pairs =
                    (0..spec.hidden * LENGTH).map(|i| (found.data[i], expected[i % LENGTH][i / LENGTH]));
                let off =
                    pairs.fold(0.0f64, |most, (a, b)| most.max((f64::from(a) - b).abs() / b.abs().max(1.0)));
                assert!(off < BOUND, "{name} {part:?}: {off}");
            }
        }
    }
}

/// What can be wrong in a lowering or around it, each with what does it.
type Fault = (&'static str, fn(&mut Laya, &mut Weights, &mut Question, &mut Run));

const FAULTS: [Fault; 14] = [
    ("bases swapped", |laya, _, _, _| {
        let thetas = [0, 1].map(|i| laya.encoder.layers[i].attention.rope.unwrap().theta);
        for layer in &mut laya.encoder.layers {
            let rope = layer.attention.rope.as_mut().unwrap();
            rope.theta = if rope.theta == thetas[0] { thetas[1] } else { thetas[0] };
        }
    }),
    ("no rotation in one layer", |laya, _, _, _| laya.encoder.layers[2].attention.rope = None),
    ("the head's epsilon in the encoder", |laya, _, _, _| laya.encoder.embedding_norm.eps = 1e-5),
    ("the encoder's epsilon in the head", |laya, _, _, _| laya.head[0].mlp_norm.eps = 1e-2),
    ("a norm without its bias", |laya, _, _, _| laya.encoder.layers[1].mlp_norm.bias = None),
    ("a norm before the first layer", |laya, _, _, _| {
        laya.encoder.layers[0].attention_norm = laya.encoder.layers[1].attention_norm.clone();
    }),
    ("a map without its bias", |laya, _, _, _| laya.encoder.layers[3].attention.out.bias = None),
    ("a window too wide", |_, _, _, run| run.wider = 1),
    ("a window too narrow", |_, _, _, run| run.wider = -1),
    ("a sliding layer that sees all", |laya, _, _, _| laya.encoder.layers[1].attention.radius = None),
    ("the gate activated", |_, weights, _, _| {
        let wi = weights.get_mut("encoder.layers.0.mlp.Wi.weight").unwrap();
        let half = wi.len() / 2;
        wi.rotate_left(half);
    }),
    ("keys for queries", |_, weights, _, _| {
        let own = weights.get_mut("head.layers.0.self_attn.in_proj_weight").unwrap();
        let third = own.len() / 3;
        let (a, b) = own.split_at_mut(third);
        a.swap_with_slice(&mut b[..third]);
    }),
    ("another question's kind", |_, _, question, _| question.kind = 2),
    ("a marker too far", |_, _, question, _| question.markers[1] += 1),
];

#[test]
fn planted_faults_are_found() {
    let (_, spec) = specs().remove(1);
    let (laya, right) = (described(&spec), question(&spec, 41, 1));
    let weights = weights(&laya);
    let expected = Oracle { spec: &spec, weights: &weights, attention: Attention::Explicit }.run(
        &right.tokens,
        right.kind,
        &right.markers,
    );
    for (name, plant) in FAULTS {
        let (mut laya, mut weights, mut question, mut run) =
            (laya.clone(), weights.clone(), right.clone(), Run::default());
        plant(&mut laya, &mut weights, &mut question, &mut run);
        let off = furthest(&lowered(&laya, &weights, &[question], &run)[0], &expected);
        println!("{name}: {off:.1e}");
        assert!(off > 10.0 * BOUND, "{name}: only {off} off");
    }
}
