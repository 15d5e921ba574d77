//! Whole tensors: distance from the optimum, independence of threads, decoding, importances.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anemone_kernels::Pool;
use anemone_palettize::{
    Error, Importance, Matrix, Method, Palettized, Scheme, affine, decode, distortion, palettize,
};
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// What `Method::Fast` promises.
const FAST: f64 = 1.01;

fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    (-2.0 * (1.0 - uniform(rng)).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos()
}

fn normal_weights(count: usize) -> Vec<f16> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    (0..count).map(|_| f16::from_f64(0.02 * normal(&mut rng))).collect()
}

/// Kinds of weights that are unlike each other: bell, heavy tails with outliers, few distinct numbers, one side, two heaps.
fn kinds() -> Vec<(&'static str, Vec<f16>)> {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let count = 64 * 256;
    let mut make = |draw: &dyn Fn(&mut ChaCha8Rng, usize) -> f64| -> Vec<f16> {
        (0..count).map(|i| f16::from_f64(draw(&mut rng, i))).collect()
    };
    vec![
        ("normal", make(&|r, _| 0.02 * normal(r))),
        (
            "tails",
            make(&|r, i| if i % 997 == 0 { 40.0 * normal(r) } else { 0.1 * normal(r) * normal(r).powi(2) }),
        ),
        ("bf16", make(&|r, _| f64::from(half::bf16::from_f64(0.05 * normal(r)).to_f32()))),
        ("one side", make(&|r, _| uniform(r).powi(3))),
        ("two heaps", make(&|r, i| if i % 3 == 0 { 1.0 + 0.01 * normal(r) } else { -0.5 + 0.1 * normal(r) })),
    ]
}

fn run(
    values: &[f16],
    rows: usize,
    scheme: &Scheme,
    importance: Importance<'_>,
    threads: usize,
) -> Palettized {
    let matrix = Matrix::new(values, rows, values.len() / rows).expect("a matrix");
    palettize(matrix, scheme, importance, &Pool::new(threads), &|_| ()).expect("a scheme that fits")
}

#[test]
fn fast_tables_are_within_their_bound_and_exact_ones_the_least() {
    let importances: Vec<f32> = (0..256).map(|i| (1 + i * i % 97) as f32 / 10.0).collect();
    for (kind, values) in kinds() {
        for bits in [1, 2, 3, 4, 6, 8] {
            for group in [None, Some(16)] {
                for importance in [Importance::Equal, Importance::Columns(&importances)] {
                    let of = |method| run(&values, 64, &Scheme::new(bits, group, method), importance, 1);
                    let (exact, fast) = (of(Method::Exact), of(Method::Fast));
                    let ratio = fast.unrounded / exact.unrounded;
                    assert!((1.0 - 1e-9..=FAST).contains(&ratio), "{kind} {bits} bits {group:?}: {ratio}");
                    // Rounding the entries changes both alike.
                    let ratio = fast.distortion.weighted / exact.distortion.weighted;
                    assert!(ratio <= FAST, "{kind} {bits} bits {group:?}, rounded: {ratio}");
                    let even = of(Method::Uniform);
                    assert!(even.unrounded >= exact.unrounded * (1.0 - 1e-9), "{kind} {bits} bits");
                }
            }
        }
    }
}

#[test]
fn normal_weights_lose_what_theory_says() {
    // Panter and Dite: a normal variable in n levels keeps √3·π/2 / n² of its variance, for many levels.
    let values = normal_weights(1 << 18);
    for bits in [6, 8] {
        let found = run(&values, 512, &Scheme::new(bits, None, Method::Exact), Importance::Equal, 1);
        let theory = (3f64.sqrt() * std::f64::consts::FRAC_PI_2).sqrt() / f64::from(1u32 << bits);
        let ratio = found.distortion.rel_rmse() / theory;
        assert!((0.93..1.01).contains(&ratio), "{bits} bits: {ratio}");
    }
}

#[test]
fn real_weights_are_within_the_bound() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models");
    for model in ["stories-lfm2", "laya-demo"] {
        let path = shared.join(model).join("model.safetensors");
        let Ok(bytes) = std::fs::read(&path) else {
            println!("skipped: {} is not there", path.display());
            continue;
        };
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut worst = 0f64;
        for (name, view) in file.iter().filter(|(_, view)| view.shape().len() == 2).take(24) {
            let values: Vec<f16> = match view.dtype() {
                safetensors::Dtype::BF16 => (view.data().chunks_exact(2))
                    .map(|b| f16::from_f32(half::bf16::from_le_bytes([b[0], b[1]]).to_f32()))
                    .collect(),
                safetensors::Dtype::F16 => {
                    view.data().chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect()
                }
                other => panic!("{name} is {other:?}"),
            };
            for (bits, group) in [(8, Some(32)), (6, Some(32)), (4, Some(32)), (4, None)] {
                let of = |method| {
                    run(&values, view.shape()[0], &Scheme::new(bits, group, method), Importance::Equal, 1)
                };
                let (exact, fast) = (of(Method::Exact), of(Method::Fast));
                if exact.unrounded > 0.0 {
                    worst = worst.max(fast.distortion.squared / exact.distortion.squared);
                }
                assert!(fast.unrounded <= FAST * exact.unrounded, "{model} {name} {bits} bits");
            }
        }
        assert!(worst > 0.0 && worst <= FAST, "{model}: {worst}");
    }
}

#[test]
fn threads_change_no_bit_and_progress_adds_up() {
    let values = normal_weights(96 * 80);
    for scheme in [
        Scheme::new(4, Some(8), Method::Exact),
        Scheme::new(3, Some(8), Method::Fast),
        Scheme { vector: 2, ..Scheme::new(4, Some(24), Method::Fast) },
    ] {
        let one = run(&values, 96, &scheme, Importance::Equal, 1);
        let done = AtomicUsize::new(0);
        let matrix = Matrix::new(&values, 96, 80).unwrap();
        let many = palettize(matrix, &scheme, Importance::Equal, &Pool::new(5), &|n| {
            done.fetch_add(n, Ordering::Relaxed);
        });
        assert_eq!(many.unwrap(), one);
        assert_eq!(done.into_inner(), values.len());
    }
    let matrix = Matrix::new(&values, 96, 80).unwrap();
    let ints = |threads| affine(matrix, 4, Importance::Equal, &Pool::new(threads), &|_| ()).unwrap();
    assert_eq!(ints(1), ints(4));
}

#[test]
fn what_is_reported_is_what_decoding_loses() {
    let values = normal_weights(48 * 50);
    for scheme in [
        Scheme::new(1, None, Method::Fast),
        Scheme::new(6, Some(12), Method::Exact),
        Scheme::new(8, Some(16), Method::Uniform),
        Scheme { vector: 4, ..Scheme::new(6, Some(16), Method::Fast) },
        Scheme { vector: 2, ..Scheme::new(8, None, Method::Fast) },
    ] {
        let found = run(&values, 48, &scheme, Importance::Equal, 2);
        assert_eq!(found.tables.len(), (found.groups() * found.vector) << found.bits);
        let (said, seen) = (found.distortion, distortion(&values, &found.decode()));
        assert!((said.squared - seen.squared).abs() <= 1e-9 * seen.squared, "{scheme:?}");
        assert!((said.signal - seen.signal).abs() <= 1e-9 * seen.signal && said.max_abs == seen.max_abs);
        assert_eq!(said.squared, said.weighted);
        if found.vector == 1 {
            assert!(found.tables.chunks(scheme.entries()).all(<[f16]>::is_sorted), "{scheme:?}");
        }
    }
    let matrix = Matrix::new(&values, 48, 50).unwrap();
    let ints = affine(matrix, 8, Importance::Equal, &Pool::new(1), &|_| ()).unwrap();
    let seen = distortion(&values, &ints.decode());
    assert!((ints.distortion.squared - seen.squared).abs() <= 1e-9 * seen.squared && seen.rel_rmse() < 0.01);
}

#[test]
fn vectors_beat_numbers_at_the_same_bits_a_weight() {
    // Pairs of a normal variable fit 256 entries better than 16 by 16: half a decibel and more, by theory and by far here.
    let values = normal_weights(64 * 512);
    let numbers = run(&values, 64, &Scheme::new(4, None, Method::Exact), Importance::Equal, 2);
    let pairs = Scheme { vector: 2, ..Scheme::new(8, None, Method::Fast) };
    let pairs = run(&values, 64, &pairs, Importance::Equal, 2);
    assert!(pairs.distortion.squared < 0.95 * numbers.distortion.squared);
    // Row 2i and 2i + 1 share a code, whose two numbers go to them in turn.
    let by_hand: Vec<f16> = (0..values.len())
        .map(|at| {
            let (row, column) = (at / 512, at % 512);
            pairs.tables[usize::from(pairs.codes[row / 2 * 512 + column]) * 2 + row % 2]
        })
        .collect();
    assert_eq!(pairs.decode(), by_hand);
}

#[test]
fn importance_moves_the_error_to_where_it_costs_less() {
    let values = normal_weights(32 * 64);
    let care: Vec<f32> = (0..64).map(|c| if c < 8 { 100.0 } else { 1.0 }).collect();
    let scheme = Scheme::new(3, Some(16), Method::Exact);
    let plain = run(&values, 32, &scheme, Importance::Equal, 1);
    let weighted = run(&values, 32, &scheme, Importance::Columns(&care), 1);
    let cost = |p: &Palettized| -> f64 {
        let pairs = values.iter().zip(p.decode());
        pairs.enumerate().map(|(i, (v, d))| f64::from(care[i % 64]) * (v.to_f64() - d.to_f64()).powi(2)).sum()
    };
    assert!((weighted.distortion.weighted - cost(&weighted)).abs() <= 1e-9 * cost(&weighted));
    assert!(cost(&weighted) < 0.9 * cost(&plain));
    assert!(weighted.distortion.squared > plain.distortion.squared);
    let each: Vec<f32> = (0..values.len()).map(|i| care[i % 64]).collect();
    assert_eq!(run(&values, 32, &scheme, Importance::Elements(&each), 1), weighted);
}

#[test]
fn bad_arguments_are_named() {
    let values = vec![f16::ONE; 12];
    let say = |e: Result<Palettized, Error>| e.unwrap_err().to_string();
    let of = |scheme: &Scheme, importance: Importance<'_>| {
        palettize(Matrix::new(&values, 6, 2).unwrap(), scheme, importance, &Pool::new(1), &|_| ())
    };
    let good = Scheme::new(4, None, Method::Fast);
    assert_eq!(
        say(of(&Scheme { bits: 7, ..good }, Importance::Equal)),
        "7 bits are not supported; use 1, 2, 3, 4, 6 or 8"
    );
    assert!(
        say(of(&Scheme { vector: 4, ..good }, Importance::Equal)).contains("no multiple of vectors of 4")
    );
    assert_eq!(say(of(&good, Importance::Columns(&[1.0]))), "importance has 1 elements, expected 2");
    assert!(say(of(&good, Importance::Columns(&[1.0, -1.0]))).starts_with("importance 1 is -1"));
    assert!(say(of(&good, Importance::Elements(&[f32::NAN; 12]))).starts_with("importance 0 is NaN"));
    assert_eq!(
        Matrix::new(&values, 5, 2).unwrap_err().to_string(),
        "the matrix has 12 elements, expected 10"
    );
    let bad = [f16::ONE, f16::INFINITY];
    assert!(Matrix::new(&bad, 1, 2).unwrap_err().to_string().starts_with("element 1 is inf, which no table"));
}

#[test]
fn empty_and_damaged_inputs_do_no_harm() {
    let empty = Matrix::new(&[], 0, 5).unwrap();
    let scheme = Scheme::new(2, Some(4), Method::Fast);
    let found = palettize(empty, &scheme, Importance::Equal, &Pool::new(2), &|_| ()).unwrap();
    assert!(found.codes.is_empty() && found.decode().is_empty());
    // Codes beyond a table, as a damaged file may have them.
    let table = [1.0, 2.0].map(f16::from_f32);
    assert_eq!(decode(&[0, 9, 1], &table, 1, 3, 1, 1), [1.0, 0.0, 2.0].map(f16::from_f32));
}
