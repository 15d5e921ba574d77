//! Packages written by coremltools are read, checked and written back without loss.

#![allow(clippy::print_stderr, reason = "a skipped test says so")]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::path::PathBuf;

use anemone_mil::{
    Arg, DataType, FunctionBuilder, Program, TensorType, Type, Value, VarId, Weight, WeightId, WeightSource,
    pack_bits, print_program, read_package, write_package,
};

fn shared(path: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path);
    if !dir.exists() {
        eprintln!("skipped: shared/{path} is not present");
        return None;
    }
    Some(dir)
}

#[test]
fn a_package_of_coremltools_survives_the_round_trip() {
    let Some(path) = shared("fixtures/laya-tiny/bc1s_multilingual_L64.mlpackage") else { return };
    let program = read_package(&path).unwrap();
    let main = &program.functions["main"];
    // Counts from the recorded conversion of this model.
    let counts = main.op_counts();
    assert_eq!(counts.values().sum::<usize>(), 358);
    assert_eq!(counts["conv"], 4 * 5 + 4 * 2 + 2);
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.mlpackage");
    let report = write_package(&program, &copy).unwrap();
    assert_eq!(report.offsets.len(), program.weights.len());
    let again = read_package(&copy).unwrap();
    let again = &again.functions["main"];
    assert!(
        main.ops.len() == again.ops.len() && main.inputs == again.inputs && main.outputs == again.outputs
    );
    for (a, b) in main.ops.iter().zip(&again.ops) {
        assert!(a.kind == b.kind && a.inputs == b.inputs && a.outputs == b.outputs, "{a:?} became {b:?}");
    }
    // Weights of equal content have become one, so constants are compared by what they hold.
    let reread = read_package(&copy).unwrap();
    assert!(reread.weights.len() <= program.weights.len());
    for (a, b) in main.vars.iter().zip(&again.vars) {
        assert!(a.name == b.name && a.ty == b.ty, "{} became {}", a.name, b.name);
        let content = |program: &Program, value: &Option<Value>| match value {
            Some(Value::Weight(_, id)) => program.weights[id.0].source.read().unwrap().to_vec(),
            other => format!("{other:?}").into_bytes(),
        };
        assert!(content(&program, &a.value) == content(&reread, &b.value), "the value of {} changed", a.name);
    }
    #[allow(clippy::disallowed_methods, reason = "lets the validator look at the packages")]
    if let Some(keep) = std::env::var_os("ANEMONE_KEEP") {
        write_package(&program, &PathBuf::from(keep).join("laya.mlpackage")).unwrap();
    }
}

/// Two functions over one weight, with a state.
fn two_functions() -> Program {
    let weight = TensorType::fp16([32, 32, 1, 1]);
    let function = |name: &str, tokens: usize| {
        let mut b = FunctionBuilder::new(name, 9);
        let x = b.input("x", TensorType::fp16([1, 32, 1, tokens])).unwrap();
        let s = b.input("memory", Type::State(TensorType::fp16([1, 32, 1, 64]))).unwrap();
        let w = b.constant("w", Value::Weight(weight.clone(), WeightId(0))).unwrap();
        let conv = [
            ("x", x.into()),
            ("weight", w.into()),
            ("pad_type", Value::text("valid").into()),
            ("strides", Value::ints(&[1, 1]).into()),
            ("pad", Value::ints(&[0; 4]).into()),
            ("dilations", Value::ints(&[1, 1]).into()),
            ("groups", Value::int(1).into()),
        ];
        let y = b.op("conv", "y", &conv).unwrap();
        let memory = b.op("read_state", "memory_now", &[("input", s.into())]).unwrap();
        let wide = b
            .op(
                "concat",
                "wide",
                &[
                    ("values", vec![memory, y].into()),
                    ("axis", Value::int(3).into()),
                    ("interleave", Value::flag(false).into()),
                ],
            )
            .unwrap();
        let begin = Value::ints(&[0, 0, 0, tokens as i32]);
        let slice = [
            ("x", wide.into()),
            ("begin", begin.into()),
            ("end", Value::ints(&[1, 32, 1, 64 + tokens as i32]).into()),
        ];
        let kept = b.op("slice_by_index", "kept", &slice).unwrap();
        b.ops("write_state", "memory_write", &[("input", s.into()), ("data", kept.into())], &[]).unwrap();
        let half = b.constant("half", Value::float(DataType::Float16, 0.5)).unwrap();
        let out = b.op("mul", "out", &[("x", y.into()), ("y", half.into())]).unwrap();
        b.finish(&[out]).unwrap()
    };
    let bytes: Vec<u8> =
        (0..32 * 32u32).flat_map(|i| half::f16::from_f32(i as f32 / 512.0 - 1.0).to_le_bytes()).collect();
    Program {
        spec_version: 9,
        functions: [("decode", 1), ("prefill_16", 16)].map(|(n, t)| (n.to_string(), function(n, t))).into(),
        default_function: "decode".into(),
        weights: vec![Weight { name: "w".into(), ty: weight, source: WeightSource::Bytes(bytes.into()) }],
        metadata: [("made-by".to_string(), "anemone".to_string())].into(),
    }
}

#[test]
fn functions_states_and_metadata_round_trip_and_bytes_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one.mlpackage"), dir.path().join("two.mlpackage"));
    let program = two_functions();
    let report = write_package(&program, &one).unwrap();
    assert_eq!(report.weight_bytes, 64 + 64 + 2048, "one weight, stored once");
    write_package(&program, &two).unwrap();
    for file in
        ["Manifest.json", "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"]
    {
        assert_eq!(std::fs::read(one.join(file)).unwrap(), std::fs::read(two.join(file)).unwrap(), "{file}");
    }
    let read = read_package(&one).unwrap();
    assert_eq!(print_program(&read), print_program(&program));
    assert_eq!(read.metadata, program.metadata);
    assert_eq!(read.default_function, "decode");
    assert_eq!(read.weights.len(), 1);
    #[allow(clippy::disallowed_methods, reason = "lets the validator look at the packages")]
    if let Some(keep) = std::env::var_os("ANEMONE_KEEP") {
        write_package(&program, &PathBuf::from(keep).join("two.mlpackage")).unwrap();
    }
    let error = write_package(&program, &one).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
}

/// Attention over a state in two functions, with weights in a table, block-scaled and plain.
fn compressed_attention() -> Program {
    let full = TensorType::fp16([64, 64, 1, 1]);
    let kinds = [
        ("wq.indices", TensorType::new(DataType::Uint4, [64, 64, 1, 1])),
        ("wq.lut", TensorType::fp16([2, 1, 1, 1, 16, 1])),
        ("wk", full.clone()),
        ("wo.data", TensorType::new(DataType::Int8, [64, 64, 1, 1])),
        ("wo.scale", TensorType::fp16([64, 1, 1, 1])),
    ];
    let weights = kinds.iter().map(|(name, ty)| {
        let numbers = 0..ty.numel() as u32;
        let bytes: Vec<u8> = match ty.dtype {
            DataType::Uint4 => pack_bits(&numbers.map(|i| (i * 7 % 16) as u8).collect::<Vec<_>>(), 4),
            DataType::Int8 => numbers.map(|i| (i * 37) as u8).collect(),
            _ => numbers.flat_map(|i| half::f16::from_f32((i % 97) as f32 / 970.0).to_le_bytes()).collect(),
        };
        Weight { name: (*name).into(), ty: ty.clone(), source: WeightSource::Bytes(bytes.into()) }
    });
    let function = |name: &str, tokens: usize| {
        let mut b = FunctionBuilder::new(name, 9);
        let weight = |i: usize| Arg::Value(Value::Weight(kinds[i].1.clone(), WeightId(i)));
        let x = b.input("x", TensorType::fp16([1, 64, 1, tokens])).unwrap();
        let cache = b.input("cache", Type::State(TensorType::fp16([1, 64, 1, 128]))).unwrap();
        let table = [("indices", weight(0)), ("lut", weight(1))];
        let wq = b.op("constexpr_lut_to_dense", "wq", &table).unwrap();
        let wk = b.constant("wk", Value::Weight(full.clone(), WeightId(2))).unwrap();
        let scaled = [("data", weight(3)), ("scale", weight(4))];
        let wo = b.op("constexpr_blockwise_shift_scale", "wo", &scaled).unwrap();
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
        let turn = |b: &mut FunctionBuilder, name: &str, x: VarId, perm: [i32; 4]| {
            b.op("transpose", name, &[("x", x.into()), ("perm", Value::ints(&perm).into())]).unwrap()
        };
        let product = |b: &mut FunctionBuilder, name: &str, x: VarId, y: VarId, turned: bool| {
            let inputs = [
                ("x", x.into()),
                ("y", y.into()),
                ("transpose_x", Value::flag(false).into()),
                ("transpose_y", Value::flag(turned).into()),
            ];
            b.op("matmul", name, &inputs).unwrap()
        };
        let (q, k) = (conv(&mut b, "q", x, wq), conv(&mut b, "k", x, wk));
        let before = b.op("read_state", "before", &[("input", cache.into())]).unwrap();
        let joined = [
            ("values", vec![before, k].into()),
            ("axis", Value::int(3).into()),
            ("interleave", Value::flag(false).into()),
        ];
        let joined = b.op("concat", "joined", &joined).unwrap();
        let last = [
            ("x", joined.into()),
            ("begin", Value::ints(&[0, 0, 0, tokens as i32]).into()),
            ("end", Value::ints(&[1, 64, 1, 128 + tokens as i32]).into()),
        ];
        let after = b.op("slice_by_index", "after", &last).unwrap();
        b.ops("write_state", "written", &[("input", cache.into()), ("data", after.into())], &[]).unwrap();
        let queries = turn(&mut b, "queries", q, [0, 2, 3, 1]);
        let keys = turn(&mut b, "keys", after, [0, 2, 1, 3]);
        let scores = product(&mut b, "scores", queries, keys, false);
        let probs =
            b.op("softmax", "probs", &[("x", scores.into()), ("axis", Value::int(-1).into())]).unwrap();
        let attn = product(&mut b, "attn", keys, probs, true);
        let attn = turn(&mut b, "attn_turned", attn, [0, 2, 1, 3]);
        let y = conv(&mut b, "y", attn, wo);
        b.finish(&[y]).unwrap()
    };
    Program {
        spec_version: 9,
        functions: [("decode", 1), ("prefill", 16)].map(|(n, t)| (n.to_string(), function(n, t))).into(),
        default_function: "decode".into(),
        weights: weights.collect(),
        metadata: [("made-by".to_string(), "anemone".to_string())].into(),
    }
}

#[test]
fn compressed_weights_are_shared_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.mlpackage");
    let program = compressed_attention();
    let report = write_package(&program, &path).unwrap();
    // A header, and five records, whose content fills whole multiples of 64 bytes.
    assert_eq!(report.weight_bytes, 64 + 5 * 64 + 2048 + 64 + 8192 + 4096 + 128);
    let read = read_package(&path).unwrap();
    assert_eq!(print_program(&read), print_program(&program));
    for (a, b) in program.weights.iter().zip(&read.weights) {
        assert_eq!(a.ty, b.ty);
        assert_eq!(a.source.read().unwrap().to_vec(), b.source.read().unwrap().to_vec(), "{}", a.name);
    }
    #[allow(clippy::disallowed_methods, reason = "lets the validator look at the packages")]
    if let Some(keep) = std::env::var_os("ANEMONE_KEEP") {
        write_package(&program, &PathBuf::from(keep).join("compressed.mlpackage")).unwrap();
    }
}

#[test]
fn a_failing_weight_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = two_functions();
    program.weights[0].source =
        WeightSource::Stream(std::sync::Arc::new(|_| Err("the disk with the checkpoint is gone".into())));
    let error = write_package(&program, &dir.path().join("p.mlpackage")).unwrap_err();
    assert!(error.to_string().contains("weight `w`"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn damaged_packages_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.mlpackage");
    write_package(&two_functions(), &path).unwrap();
    let model = path.join("Data/com.apple.CoreML/model.mlmodel");
    let weights = path.join("Data/com.apple.CoreML/weights/weight.bin");
    let manifest = path.join("Manifest.json");
    let spoil = |file: &PathBuf, change: &dyn Fn(&mut Vec<u8>), expected: &str| {
        let good = std::fs::read(file).unwrap();
        let mut bad = good.clone();
        change(&mut bad);
        std::fs::write(file, bad).unwrap();
        let error = read_package(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        std::fs::write(file, good).unwrap();
    };
    spoil(&weights, &|b| b.truncate(40), "too few for a header");
    spoil(&weights, &|b| b.truncate(200), "beyond the file");
    spoil(&weights, &|b| b[64] = 0, "no record starts here");
    spoil(&weights, &|b| b[4] = 1, "version 1");
    spoil(&model, &|b| b.truncate(b.len() / 2), "model.mlmodel");
    spoil(&model, &|b| b.clear(), "specification version 0");
    spoil(&manifest, &|b| b.truncate(10), "not JSON");
    spoil(&manifest, &|b| *b = b"{}".to_vec(), "rootModelIdentifier");
    let outside = |b: &mut Vec<u8>| {
        let text = String::from_utf8(b.clone()).unwrap();
        *b = text.replace("com.apple.CoreML/model.mlmodel", "../../model.mlmodel").into_bytes();
    };
    spoil(&manifest, &outside, "outside the package");
    std::fs::remove_file(&weights).unwrap();
    assert!(read_package(&path).unwrap_err().to_string().contains("weight file the package lacks"));
}
