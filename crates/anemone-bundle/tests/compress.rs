//! Compressed packages: every form is written, read back, decoded and described.

#![allow(clippy::unwrap_used, reason = "the programs of these tests are well typed")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anemone_ane::{LayaFunctions, WeightRecord};
use anemone_bundle::{
    BundleWeights, Compression, Compressor, DecisionBundle, DecisionOptions, Encoded, Encoding, Error, Gate,
    Role, Source, Writer, judge,
};
use anemone_checkpoint::Weights;
use anemone_kernels::Pool;
use anemone_mil::{
    FunctionBuilder, Program, TensorType, Value, VarId, Weight, WeightId, WeightSource, read_package,
};
use anemone_palettize::{Importance, Method, Scheme, affine, palettize};
use half::f16;

const ROWS: usize = 64;
const COLUMNS: usize = 24;

fn numbers(seed: u32, count: usize) -> Vec<f16> {
    let mut x = seed;
    let mut draw = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| f16::from_f32(draw() * draw() + 0.1 * draw())).collect()
}

fn bytes(values: &[f16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Two convolutions that share a weight between functions, one of them also a factor elsewhere, and a norm's weight.
fn program(spec_version: i32) -> (Program, Vec<Vec<WeightRecord>>) {
    let kinds = [
        ("up", vec![ROWS, COLUMNS, 1, 1], 1),
        ("down", vec![COLUMNS, ROWS, 1, 1], 2),
        ("norm", vec![1, COLUMNS, 1, 1], 3),
        ("both", vec![COLUMNS, COLUMNS, 1, 1], 4),
    ];
    let weights = kinds.iter().map(|(name, shape, seed)| {
        let ty = TensorType::fp16(shape.clone());
        let source = WeightSource::Bytes(bytes(&numbers(*seed, ty.numel())).into());
        Weight { name: (*name).into(), ty, source }
    });
    let records = kinds.iter().map(|(name, shape, _)| {
        let (rows, columns) = (0..shape[0], 0..shape[1]);
        vec![WeightRecord {
            tensor: format!("model.{name}.weight"),
            rows,
            columns,
            log2_scale: 0,
            shape: shape.clone(),
        }]
    });
    let function = |name: &str, tokens: usize| {
        let mut b = FunctionBuilder::new(name, spec_version);
        let x = b.input("x", TensorType::fp16([1, COLUMNS, 1, tokens])).unwrap();
        let ids: Vec<VarId> = (kinds.iter().enumerate())
            .map(|(i, (name, shape, _))| {
                b.constant(name, Value::Weight(TensorType::fp16(shape.clone()), WeightId(i))).unwrap()
            })
            .collect();
        let conv = |b: &mut FunctionBuilder, name: &str, x: VarId, w: VarId| {
            let inputs = [
                ("x", x.into()),
                ("weight", w.into()),
                ("pad_type", Value::text("valid").into()),
                ("strides", Value::ints(&[1, 1]).into()),
                ("pad", Value::ints(&[0; 4]).into()),
                ("dilations", Value::ints(&[1, 1]).into()),
                ("groups", Value::int(1).into()),
            ];
            b.op("conv", name, &inputs).unwrap()
        };
        let normed = b.op("mul", "normed", &[("x", x.into()), ("y", ids[2].into())]).unwrap();
        let up = conv(&mut b, "h", normed, ids[0]);
        let down = conv(&mut b, "d", up, ids[1]);
        let mixed = conv(&mut b, "m", down, ids[3]);
        let twice = b.op("mul", "both_again", &[("x", ids[3].into()), ("y", ids[3].into())]).unwrap();
        let sum = b.op(
            "reduce_sum",
            "sum",
            &[
                ("x", twice.into()),
                ("axes", Value::ints(&[0, 1]).into()),
                ("keep_dims", Value::flag(true).into()),
            ],
        );
        let out = b.op("mul", "y", &[("x", mixed.into()), ("y", sum.unwrap().into())]).unwrap();
        b.finish(&[out]).unwrap()
    };
    let names = if spec_version < 9 { vec![("main", 8)] } else { vec![("long", 16), ("short", 8)] };
    let functions = names.iter().map(|(name, tokens)| ((*name).to_owned(), function(name, *tokens)));
    let program = Program {
        spec_version,
        functions: functions.collect(),
        default_function: names[0].0.into(),
        weights: weights.collect(),
        metadata: BTreeMap::new(),
    };
    (program, records.collect())
}

fn compressor(encoding: Encoding) -> Compressor {
    let pool = Arc::new(Pool::new(2));
    Compressor {
        choose: Arc::new(move |site| (site.columns() * site.rows() > 100).then_some(encoding)),
        encode: Arc::new(move |_, encoding, matrix| {
            Ok(match encoding {
                Encoding::Palette(scheme) => {
                    Encoded::Palette(palettize(matrix, &scheme, Importance::Equal, &pool, &|_| ())?)
                }
                Encoding::Affine(bits) => {
                    Encoded::Affine(affine(matrix, bits, Importance::Equal, &pool, &|_| ())?)
                }
            })
        }),
    }
}

fn compression() -> Compression {
    Compression {
        source_bundle: None,
        precision: "a test".into(),
        method: None,
        group: None,
        vector: 1,
        threshold: 100,
        only: Vec::new(),
        skip: Vec::new(),
        calibration: None,
        gate: None,
        tensors: Vec::new(),
    }
}

fn finish(mut writer: Writer, encoding: Encoding, spec_version: i32) -> Result<(), Error> {
    let (program, records) = program(spec_version);
    writer.compressed(compression());
    let package =
        writer.compressed_package("body.mlpackage", Role::Body, &program, &records, &compressor(encoding))?;
    writer.add(package);
    let name = program.functions.keys().next().unwrap().clone();
    let functions = vec![LayaFunctions { name, length: 8, packed: None }];
    let source = Source { name: "x".into(), model_type: "x".into(), sha256: BTreeMap::new() };
    let tensors = records.iter().flatten().map(|r| (r.tensor.clone(), r.shape.clone())).collect();
    let options = DecisionOptions { tile: None, option_slots: 1, spec_version };
    writer.finish_decision(source, options, functions, tensors, "a test")?;
    Ok(())
}

fn write(dir: &Path, encoding: Encoding, spec_version: i32) -> Result<PathBuf, Error> {
    let out = dir.join("b");
    finish(Writer::create(&out, true)?, encoding, spec_version)?;
    Ok(out)
}

#[test]
fn every_form_says_what_it_holds() {
    let table = |bits, group| Encoding::Palette(Scheme::new(bits, group, Method::Exact));
    let vector =
        |bits, vector, group| Encoding::Palette(Scheme { vector, ..Scheme::new(bits, group, Method::Fast) });
    let forms = [
        (9, table(1, None)),
        (9, table(2, Some(8))),
        (9, table(3, Some(8))),
        (9, table(4, Some(8))),
        (10, table(6, Some(4))),
        (9, table(8, None)),
        (9, vector(4, 2, Some(8))),
        (9, vector(2, 4, None)),
        (9, Encoding::Affine(4)),
        (9, Encoding::Affine(8)),
        (9, table(3, None)),
        (7, table(1, None)),
        (7, table(2, None)),
        (8, table(4, None)),
        (7, table(6, None)),
        (8, table(8, None)),
        (7, Encoding::Affine(8)),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (i, (spec_version, encoding)) in forms.into_iter().enumerate() {
        let out = write(dir.path(), encoding, spec_version).unwrap();
        let bundle = DecisionBundle::open(&out).unwrap();
        bundle.verify_hashes().unwrap();
        let weights = BundleWeights::open_decision(&bundle).unwrap();
        let pool = Pool::new(1);
        for (name, seed, rows, columns) in [("up", 1, ROWS, COLUMNS), ("down", 2, COLUMNS, ROWS)] {
            let values = numbers(seed, rows * columns);
            let matrix = anemone_palettize::Matrix::new(&values, rows, columns).unwrap();
            let expected = match encoding {
                Encoding::Palette(scheme) => {
                    palettize(matrix, &scheme, Importance::Equal, &pool, &|_| ()).unwrap().decode()
                }
                Encoding::Affine(bits) => {
                    affine(matrix, bits, Importance::Equal, &pool, &|_| ()).unwrap().decode()
                }
            };
            let found = weights.tensor(&format!("model.{name}.weight")).unwrap();
            assert_eq!(found.bytes()[..], bytes(&expected)[..], "{encoding:?} {name}");
            // What products read in place is the same; integers and vectors they do not.
            let palettized = weights.palettized(&format!("model.{name}.weight")).unwrap();
            let in_place = matches!(encoding, Encoding::Palette(scheme) if scheme.vector == 1);
            assert_eq!(palettized.is_some(), in_place);
            assert!(palettized.is_none_or(|p| p.expand() == expected), "{encoding:?} {name}");
        }
        // A norm's weight and one that is used for something else are what they were.
        for (name, seed, count) in [("norm", 3, COLUMNS), ("both", 4, COLUMNS * COLUMNS)] {
            let found = weights.tensor(&format!("model.{name}.weight")).unwrap();
            assert_eq!(found.bytes()[..], bytes(&numbers(seed, count))[..], "{encoding:?} {name}");
            assert!(weights.palettized(&format!("model.{name}.weight")).unwrap().is_none());
        }
        let compression = bundle.manifest().compression.as_ref().unwrap();
        let names: Vec<&str> = compression.tensors.iter().map(|t| t.tensor.as_str()).collect();
        assert_eq!(names, ["model.up.weight", "model.down.weight"]);
        assert!(compression.tensors.iter().all(|t| t.bits == encoding.bits() && t.rel_rmse > 0.0));
        let read = read_package(&bundle.package()).unwrap();
        let counts = read
            .functions
            .values()
            .map(|f| f.compute_ops().filter(|op| op.kind.starts_with("constexpr_")).count());
        assert!(counts.clone().all(|n| n == 2) && counts.count() == read.functions.len());
        #[allow(clippy::disallowed_methods, reason = "lets the validator look at the packages")]
        if let Some(keep) = std::env::var_os("ANEMONE_KEEP") {
            anemone_mil::write_package(&read, &PathBuf::from(keep).join(format!("form_{i}.mlpackage")))
                .unwrap();
        }
    }
}

#[test]
fn what_a_target_cannot_hold_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let say = |spec_version, encoding| write(dir.path(), encoding, spec_version).unwrap_err().to_string();
    let scheme = Scheme::new(4, Some(8), Method::Fast);
    let old = say(8, Encoding::Palette(scheme));
    assert!(
        old.starts_with("`model.up.weight`: specification version 8 has one table")
            && old.contains("macos15")
    );
    assert!(say(7, Encoding::Palette(Scheme { group: None, bits: 3, ..scheme })).contains("1, 2, 4, 6"));
    assert!(say(7, Encoding::Affine(4)).contains("has no int4; use int8"));
    let odd = say(9, Encoding::Palette(Scheme { bits: 5, ..scheme }));
    assert_eq!(odd, "`model.up.weight`: 5 bits are not supported; use 1, 2, 3, 4, 6 or 8");
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing is left");
}

#[test]
fn a_wrong_encoder_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let (program, records) = program(9);
    let writer = Writer::create(&dir.path().join("b"), false).unwrap();
    let scheme = Scheme::new(4, Some(8), Method::Fast);
    let good = compressor(Encoding::Palette(scheme));
    let encode = Arc::clone(&good.encode);
    // Tables in another order than the codes were made for, whose error is still said to be the old one.
    let bad = Compressor {
        encode: Arc::new(move |site, encoding, matrix| {
            let mut encoded = encode(site, encoding, matrix)?;
            if let Encoded::Palette(p) = &mut encoded {
                p.tables.reverse();
            }
            Ok(encoded)
        }),
        ..good
    };
    let error = writer.compressed_package("p.mlpackage", Role::Body, &program, &records, &bad).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("`model.up.weight`: ") && error.contains("its relative error is"), "{error}");
    let failing = Compressor { encode: Arc::new(|_, _, _| Err("the calibration is gone".into())), ..bad };
    let error =
        writer.compressed_package("q.mlpackage", Role::Body, &program, &records, &failing).unwrap_err();
    assert_eq!(error.to_string(), "weight `up`");
}

#[test]
fn codes_of_another_table_are_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let (program, records) = program(9);
    let writer = Writer::create(&dir.path().join("b"), false).unwrap();
    let good = compressor(Encoding::Palette(Scheme::new(1, None, Method::Exact)));
    let (encode, calls) = (Arc::clone(&good.encode), AtomicUsize::new(0));
    // A table of two entries is asked for before its codes; these are made for another one, and measured against it.
    let bad = Compressor {
        encode: Arc::new(move |site, encoding, matrix| {
            let mut encoded = encode(site, encoding, matrix)?;
            if let (Encoded::Palette(p), 2..) = (&mut encoded, calls.fetch_add(1, Ordering::Relaxed)) {
                p.tables.reverse();
                p.codes.iter_mut().for_each(|code| *code = 1 - *code);
            }
            Ok(encoded)
        }),
        ..good
    };
    let error = writer.compressed_package("p.mlpackage", Role::Body, &program, &records, &bad).unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("`model.up.weight`: ") && error.contains("it decodes to other numbers"),
        "{error}"
    );
}

#[test]
fn a_candidate_is_used_only_after_its_gate() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("b");
    let encoding = Encoding::Affine(4);
    let mut gate = Gate {
        rule: "least cosine".into(),
        bar: 0.99,
        measured: None,
        failures: Vec::new(),
        reference: "x".into(),
        profile: "fp16".into(),
        passed: false,
    };
    let candidate = || {
        let mut writer = Writer::candidate(&out, false).unwrap();
        writer.compressed(Compression { gate: Some(gate.clone()), ..compression() });
        writer
    };
    let rejected = dir.path().join("b.rejected");
    let written = |writer: Writer| {
        let (program, records) = program(9);
        let mut writer = writer;
        let package = writer.compressed_package(
            "body.mlpackage",
            Role::Body,
            &program,
            &records,
            &compressor(encoding),
        );
        writer.add(package.unwrap());
        let functions = vec![LayaFunctions { name: "long".into(), length: 16, packed: None }];
        let source = Source { name: "x".into(), model_type: "x".into(), sha256: BTreeMap::new() };
        let tensors = records.iter().flatten().map(|r| (r.tensor.clone(), r.shape.clone())).collect();
        let options = DecisionOptions { tile: None, option_slots: 1, spec_version: 9 };
        writer.finish_decision(source, options, functions, tensors, "a test").unwrap();
    };
    written(candidate());
    assert!(!out.exists());
    let say = |path: &Path| DecisionBundle::open(path).unwrap_err().to_string();
    assert!(say(&rejected).contains("did not come to an end"), "{}", say(&rejected));
    DecisionBundle::open_candidate(&rejected).unwrap().verify_hashes().unwrap();

    gate.measured = Some(0.95);
    assert_eq!(judge(&out, false, &gate).unwrap(), rejected);
    assert!(say(&rejected).contains(
        "least cosine 0.950000 where 0.99 was asked for; its manifest.json lists what failed) and not"
    ));
    assert!(!out.exists());

    // The next candidate takes its place, and may pass.
    written(
        Writer::candidate(&out, false)
            .map(|mut w| {
                w.compressed(Compression { gate: Some(gate.clone()), ..compression() });
                w
            })
            .unwrap(),
    );
    let passed = Gate { measured: Some(0.995), passed: true, ..gate.clone() };
    assert_eq!(judge(&out, false, &passed).unwrap(), out);
    assert!(!rejected.exists());
    let bundle = DecisionBundle::open(&out).unwrap();
    assert_eq!(bundle.manifest().compression.as_ref().unwrap().gate.as_ref(), Some(&passed));

    // A good bundle that happens to have the name of a candidate is not removed.
    std::fs::rename(&out, &rejected).unwrap();
    assert!(matches!(Writer::candidate(&out, true), Err(Error::Exists(path)) if path == rejected));
}
