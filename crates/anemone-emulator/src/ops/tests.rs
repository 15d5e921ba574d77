//! Each operation against values worked out by hand or by a plain f64 reference.

use std::path::Path;

use anemone_mil::{
    Arg, Array, DataType, Executor, FunctionBuilder, Immediate, Program, States, TensorType, Type, Value,
    VarId, Weight, WeightId, WeightSource, pack_bits, write_package,
};
use half::f16;

use crate::{Emulator, Profile};

type Reference = fn(f64) -> f64;
type Build<'a> = &'a dyn Fn(&mut FunctionBuilder, &[VarId]) -> VarId;

fn array(shape: &[usize], data: &[f32]) -> Array {
    Array { shape: shape.to_vec(), data: data.to_vec() }
}

fn ramp(shape: &[usize]) -> Array {
    let n = shape.iter().product::<usize>();
    array(shape, &(0..n).map(|i| ((i * 7 + 3) % 11) as f32 / 4.0 - 1.0).collect::<Vec<_>>())
}

fn save(b: FunctionBuilder, out: VarId, weights: Vec<Weight>, path: &Path) {
    save_as(9, b, out, weights, path);
}

fn save_as(spec_version: i32, b: FunctionBuilder, out: VarId, weights: Vec<Weight>, path: &Path) {
    let f = b.finish(&[out]).unwrap();
    let program = Program {
        spec_version,
        functions: [("main".to_string(), f)].into(),
        default_function: "main".into(),
        weights,
        metadata: std::collections::BTreeMap::default(),
    };
    write_package(&program, path).unwrap();
}

fn run_with(
    profile: Profile,
    inputs: &[(DataType, Array)],
    weights: Vec<Weight>,
    build: Build<'_>,
) -> Result<Array, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.mlpackage");
    let mut b = FunctionBuilder::new("main", 9);
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("in_{i}")).collect();
    let ids: Vec<VarId> = names
        .iter()
        .zip(inputs)
        .map(|(n, (t, a))| b.input(n, TensorType::new(*t, a.shape.clone())).unwrap())
        .collect();
    let out = build(&mut b, &ids);
    save(b, out, weights, &path);
    let mut f = Emulator::new(profile, 1).load(&path, "main").map_err(|e| e.to_string())?;
    let given: Vec<(&str, &Array)> =
        names.iter().map(String::as_str).zip(inputs.iter().map(|(_, a)| a)).collect();
    f.predict(&given, &mut States::new()).map(|mut o| o.remove(0)).map_err(|e| e.to_string())
}

fn floats(inputs: &[Array], build: Build<'_>) -> Array {
    let inputs: Vec<_> = inputs.iter().map(|a| (DataType::Float32, a.clone())).collect();
    run_with(Profile::f32(), &inputs, vec![], build).unwrap()
}

fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= 2e-6 * (1.0 + e.abs()), "{what}: {found:?}, expected {expected:?}");
    }
}

fn op(b: &mut FunctionBuilder, kind: &str, inputs: &[(&str, Arg)]) -> VarId {
    b.op(kind, "result", inputs).unwrap()
}

#[test]
fn functions_of_one_element() {
    let x = [-2.0f32, -0.5, 0.0, 0.3, 1.7];
    let cases: [(&str, Reference); 12] = [
        ("abs", f64::abs),
        ("cos", f64::cos),
        ("erf", libm::erf),
        ("exp", f64::exp),
        ("gelu", |x| 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt()))),
        ("relu", |x| x.max(0.0)),
        ("sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
        ("silu", |x| x / (1.0 + (-x).exp())),
        ("sin", f64::sin),
        ("square", |x| x * x),
        ("tanh", f64::tanh),
        ("identity", |x| x),
    ];
    for (kind, reference) in cases {
        let found = floats(&[array(&[5], &x)], &|b, i| op(b, kind, &[("x", i[0].into())]));
        let expected: Vec<f32> = x.iter().map(|x| reference(f64::from(*x)) as f32).collect();
        close(&found.data, &expected, kind);
    }
    let modes: [(&str, Reference); 2] = [
        ("TANH_APPROXIMATION", |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }),
        ("SIGMOID_APPROXIMATION", |x| x / (1.0 + (-1.702 * x).exp())),
    ];
    for (mode, reference) in modes {
        let found = floats(&[array(&[5], &x)], &|b, i| {
            op(b, "gelu", &[("x", i[0].into()), ("mode", Value::text(mode).into())])
        });
        close(&found.data, &x.map(|x| reference(f64::from(x)) as f32), mode);
    }
    for (kind, expected) in [("rsqrt", [1.0, 0.5]), ("inverse", [1.0, 0.25]), ("log", [0.0, 4f32.ln()])] {
        let found = floats(&[array(&[2], &[0.75, 3.75])], &|b, i| {
            let e = Value::float(DataType::Float32, 0.25);
            op(b, kind, &[("x", i[0].into()), ("epsilon", e.into())])
        });
        close(&found.data, &expected, kind);
    }
}

#[test]
fn operands_stretch_and_nan_is_carried() {
    let (x, y) = (array(&[2, 1, 2], &[1., 2., 3., f32::NAN]), array(&[3, 1], &[10., 20., -5.]));
    let found =
        floats(&[x.clone(), y.clone()], &|b, i| op(b, "mul", &[("x", i[0].into()), ("y", i[1].into())]));
    assert_eq!(found.shape, [2, 3, 2]);
    assert_eq!(found.data[..7], [10., 20., 20., 40., -5., -10., 30.]);
    assert!(found.data[7].is_nan());
    for kind in ["maximum", "minimum"] {
        let found =
            floats(&[x.clone(), y.clone()], &|b, i| op(b, kind, &[("x", i[0].into()), ("y", i[1].into())]));
        assert!(found.data[7].is_nan(), "{kind}");
    }
    let found = floats(&[array(&[3], &[1.0, 0.0, -1.0]), array(&[], &[0.0])], &|b, i| {
        op(b, "real_div", &[("x", i[0].into()), ("y", i[1].into())])
    });
    assert!(found.data[0] == f32::INFINITY && found.data[1].is_nan() && found.data[2] == f32::NEG_INFINITY);
}

#[test]
fn half_results_are_rounded_and_overflow_to_infinity() {
    let half = |v: &[f32]| (DataType::Float16, array(&[v.len()], v));
    let inputs = [half(&[1.0, 60000.0, 2049.0]), half(&[0.0004, 60000.0, 1.0])];
    let add: Build<'_> = &|b, i| op(b, "add", &[("x", i[0].into()), ("y", i[1].into())]);
    // 1.0004 lies below half a step of 2^-10; 2049 is no fp16 number and ties to 2048.
    assert_eq!(run_with(Profile::fp16(), &inputs, vec![], add).unwrap().data, [1.0, f32::INFINITY, 2048.0]);
    assert_eq!(run_with(Profile::f32(), &inputs, vec![], add).unwrap().data, [1.0004, 120000.0, 2050.0]);
}

#[test]
fn convolutions_follow_their_definition() {
    let (x, w) = (ramp(&[2, 4, 5, 6]), ramp(&[6, 2, 3, 2]));
    let (stride, dilation, pad) = ([2usize, 1], [1usize, 2], [1usize, 0, 2, 1]);
    let found = floats(&[x.clone(), w.clone()], &|b, i| {
        let bias = Value::floats(DataType::Float32, [6], &[0.5, -1.0, 2.0, 0.0, 1.0, 3.0]);
        op(
            b,
            "conv",
            &[
                ("x", i[0].into()),
                ("weight", i[1].into()),
                ("bias", bias.into()),
                ("strides", Value::ints(&[2, 1]).into()),
                ("dilations", Value::ints(&[1, 2]).into()),
                ("groups", Value::int(2).into()),
                ("pad_type", Value::text("custom").into()),
                ("pad", Value::ints(&[1, 0, 2, 1]).into()),
            ],
        )
    });
    let (h, wd) = ((5 + 1 - 3) / 2 + 1, 6 + 3 - 3 + 1);
    assert_eq!(found.shape, [2, 6, h, wd]);
    let mut expected = Vec::new();
    for n in 0..2 {
        for o in 0..6 {
            for r in 0..h {
                for c in 0..wd {
                    let mut sum = f64::from([0.5f32, -1.0, 2.0, 0.0, 1.0, 3.0][o]);
                    for ch in 0..2 {
                        for a in 0..3 {
                            for d in 0..2 {
                                let (y, z) =
                                    (r * stride[0] + a * dilation[0], c * stride[1] + d * dilation[1]);
                                let (Some(y), Some(z)) = (y.checked_sub(pad[0]), z.checked_sub(pad[2]))
                                else {
                                    continue;
                                };
                                if y < 5 && z < 6 {
                                    let at = ((n * 4 + o / 3 * 2 + ch) * 5 + y) * 6 + z;
                                    sum += f64::from(x.data[at])
                                        * f64::from(w.data[((o * 2 + ch) * 3 + a) * 2 + d]);
                                }
                            }
                        }
                    }
                    expected.push(sum as f32);
                }
            }
        }
    }
    close(&found.data, &expected, "conv");
}

#[test]
fn equations_agree_with_a_plain_sum() {
    for (equation, a, b, expected) in [
        ("bkhc,bchq->bkhq", vec![1, 3, 2, 4], vec![1, 4, 2, 5], vec![1, 3, 2, 5]),
        ("bchk,bkhq->bchq", vec![2, 4, 1, 3], vec![2, 3, 1, 5], vec![2, 4, 1, 5]),
        ("ii,ij->j", vec![3, 3], vec![3, 2], vec![2]),
        ("ab,cd->da", vec![2, 3], vec![4, 5], vec![5, 2]),
    ] {
        let (x, y) = (ramp(&a), ramp(&b));
        let found = floats(&[x.clone(), y.clone()], &|f, i| {
            let values = Arg::List(i.to_vec());
            op(f, "einsum", &[("values", values), ("equation", Value::text(equation).into())])
        });
        assert_eq!(found.shape, expected, "{equation}");
        let (left, right) = equation.split_once("->").unwrap();
        let (l, r) = left.split_once(',').unwrap();
        let letters: Vec<char> = ('a'..='z').filter(|c| left.contains(*c)).collect();
        let size = |c: char| l.find(c).map_or_else(|| b[r.find(c).unwrap()], |p| a[p]);
        let mut sums = vec![0.0f64; expected.iter().product()];
        let mut index = vec![0usize; letters.len()];
        let at = |term: &str, index: &[usize]| {
            term.chars().fold(0, |n, c| n * size(c) + index[letters.iter().position(|l| *l == c).unwrap()])
        };
        'all: loop {
            sums[at(right, &index)] += f64::from(x.data[at(l, &index)]) * f64::from(y.data[at(r, &index)]);
            for (i, c) in letters.iter().enumerate().rev() {
                index[i] += 1;
                if index[i] < size(*c) {
                    continue 'all;
                }
                index[i] = 0;
            }
            break;
        }
        close(&found.data, &sums.iter().map(|s| *s as f32).collect::<Vec<_>>(), equation);
    }
}

#[test]
fn softmax_and_reductions_along_any_axis() {
    let x = ramp(&[2, 3, 4]);
    for axis in 0..3i32 {
        let found = floats(std::slice::from_ref(&x), &|b, i| {
            op(b, "softmax", &[("x", i[0].into()), ("axis", Value::int(axis).into())])
        });
        let sums = floats(std::slice::from_ref(&found), &|b, i| {
            op(b, "reduce_sum", &[("x", i[0].into()), ("axes", Value::ints(&[axis]).into())])
        });
        close(&sums.data, &vec![1.0; sums.data.len()], "softmax sums to one");
        // The ratio of two neighbours along the axis is the exponential of their difference.
        let step = [12, 4, 1][axis as usize];
        close(&[found.data[step] / found.data[0]], &[(x.data[step] - x.data[0]).exp()], "softmax ratio");
    }
    let large = floats(&[array(&[2], &[200.0, 199.0])], &|b, i| {
        op(b, "softmax", &[("x", i[0].into()), ("axis", Value::int(0).into())])
    });
    close(&large.data, &[0.731_058_6, 0.268_941_43], "softmax of numbers whose exponentials overflow");
    let reduce = |kind: &str, axes: &[i32]| {
        floats(std::slice::from_ref(&x), &|b, i| {
            op(b, kind, &[("x", i[0].into()), ("axes", Value::ints(axes).into())])
        })
        .data
    };
    let lane = |k: usize| (0..2).flat_map(move |a| (0..4).map(move |c| a * 12 + k * 4 + c));
    let by = |f: &dyn Fn(Vec<f32>) -> f32| {
        (0..3).map(|k| f(lane(k).map(|i| x.data[i]).collect())).collect::<Vec<_>>()
    };
    close(&reduce("reduce_mean", &[0, 2]), &by(&|v| v.iter().sum::<f32>() / 8.0), "mean");
    close(&reduce("reduce_sum_square", &[0, 2]), &by(&|v| v.iter().map(|v| v * v).sum()), "sum of squares");
    close(&reduce("reduce_max", &[0, 2]), &by(&|v| v.into_iter().fold(f32::MIN, f32::max)), "max");
    close(&reduce("reduce_min", &[0, 2]), &by(&|v| v.into_iter().fold(f32::MAX, f32::min)), "min");
    let best = floats(&[array(&[2, 3], &[1., 5., 5., f32::NAN, 9., 0.])], &|b, i| {
        op(b, "reduce_argmax", &[("x", i[0].into()), ("axis", Value::int(1).into())])
    });
    assert_eq!(best.data, [1.0, 0.0]);
}

#[test]
fn layer_norm_over_channels() {
    let x = ramp(&[1, 4, 1, 3]);
    let gamma = [1.0f32, 2.0, 0.5, -1.0];
    let found = floats(std::slice::from_ref(&x), &|b, i| {
        let gamma = Value::floats(DataType::Float32, [4], &gamma);
        let epsilon = Value::float(DataType::Float32, 0.5);
        let inputs = [
            ("x", i[0].into()),
            ("axes", Value::ints(&[1]).into()),
            ("gamma", gamma.into()),
            ("epsilon", epsilon.into()),
        ];
        op(b, "layer_norm", &inputs)
    });
    for t in 0..3 {
        let v: Vec<f32> = (0..4).map(|c| x.data[c * 3 + t]).collect();
        let mean = v.iter().sum::<f32>() / 4.0;
        let variance = v.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 4.0;
        let expected: Vec<f32> =
            v.iter().zip(gamma).map(|(v, g)| (v - mean) / (variance + 0.5).sqrt() * g).collect();
        close(&(0..4).map(|c| found.data[c * 3 + t]).collect::<Vec<_>>(), &expected, "layer_norm");
    }
}

#[test]
fn elements_move_where_they_should() {
    let x = array(&[2, 3], &[0., 1., 2., 3., 4., 5.]);
    let one = |build: Build<'_>| floats(std::slice::from_ref(&x), build).data;
    let perm = one(&|b, i| op(b, "transpose", &[("x", i[0].into()), ("perm", Value::ints(&[1, 0]).into())]));
    assert_eq!(perm, [0., 3., 1., 4., 2., 5.]);
    let tiled = one(&|b, i| op(b, "tile", &[("x", i[0].into()), ("reps", Value::ints(&[1, 2]).into())]));
    assert_eq!(tiled, [0., 1., 2., 0., 1., 2., 3., 4., 5., 3., 4., 5.]);
    let mixed = one(&|b, i| {
        let values = Arg::List(vec![i[0], i[0]]);
        op(
            b,
            "concat",
            &[("values", values), ("axis", Value::int(0).into()), ("interleave", Value::flag(true).into())],
        )
    });
    assert_eq!(mixed, [0., 1., 2., 0., 1., 2., 3., 4., 5., 3., 4., 5.]);
    let slice = one(&|b, i| {
        op(
            b,
            "slice_by_index",
            &[
                ("x", i[0].into()),
                ("begin", Value::ints(&[-1, 0]).into()),
                ("end", Value::ints(&[0, 0]).into()),
                ("stride", Value::ints(&[1, 2]).into()),
                ("end_mask", Value::flags(&[false, true]).into()),
                ("squeeze_mask", Value::flags(&[true, false]).into()),
            ],
        )
    });
    assert_eq!(slice, [3., 5.]);
}

#[test]
fn an_axis_given_twice_is_refused() {
    let x = [(DataType::Float32, ramp(&[2, 3]))];
    let error = run_with(Profile::f32(), &x, vec![], &|b, i| {
        op(
            b,
            "reduce_sum",
            &[
                ("x", i[0].into()),
                ("axes", Value::ints(&[1, 1]).into()),
                ("keep_dims", Value::flag(true).into()),
            ],
        )
    });
    assert_eq!(error.unwrap_err(), "operation `reduce_sum` at `result`: `axes` gives axis 1 twice");
}

#[test]
fn gather_takes_rows_and_refuses_what_is_outside() {
    let gather = |index: f32| {
        let inputs = [(DataType::Float32, ramp(&[3, 2])), (DataType::Int32, array(&[2], &[1.0, index]))];
        run_with(Profile::f32(), &inputs, vec![], &|b, i| {
            op(b, "gather", &[("x", i[0].into()), ("indices", i[1].into()), ("axis", Value::int(0).into())])
        })
    };
    let x = ramp(&[3, 2]).data;
    assert_eq!(gather(-1.0).unwrap().data, [x[2], x[3], x[4], x[5]]);
    let error = gather(3.0).unwrap_err();
    assert_eq!(error, "operation `gather` at `result`: index 3 is outside axis 0 of 3 elements");
    assert!(gather(0.5).unwrap_err().contains("input `in_1` holds 0.5, which is no int32"));
}

#[test]
fn bounds_computed_at_run_time_are_checked() {
    let update = |from: f32| {
        let inputs = [
            (DataType::Float32, array(&[4], &[0.0; 4])),
            (DataType::Float32, array(&[2], &[7., 8.])),
            (DataType::Int32, array(&[1], &[from])),
            (DataType::Int32, array(&[1], &[from + 2.0])),
        ];
        run_with(Profile::f32(), &inputs, vec![], &|b, i| {
            let inputs =
                [("x", i[0].into()), ("update", i[1].into()), ("begin", i[2].into()), ("end", i[3].into())];
            op(b, "slice_update", &inputs)
        })
    };
    assert_eq!(update(1.0).unwrap().data, [0., 7., 8., 0.]);
    assert!(update(3.0).unwrap_err().contains("3..5 does not lie in axis 0 of 4 elements"));
}

#[test]
fn compressed_weights_expand_by_group_and_vector() {
    for bits in [1usize, 2, 3, 4, 6, 8] {
        let dtype = [
            (1, DataType::Uint1),
            (2, DataType::Uint2),
            (3, DataType::Uint3),
            (4, DataType::Uint4),
            (6, DataType::Uint6),
            (8, DataType::Uint8),
        ];
        let dtype = dtype.into_iter().find(|(b, _)| *b == bits).unwrap().1;
        let (entries, vector) = (1usize << bits, 2);
        let codes: Vec<u8> = (0..8).map(|i| ((i * 5 + 1) % entries.min(200)) as u8).collect();
        // Two groups of rows, each with a table of pairs.
        let table: Vec<f32> = (0..2 * entries * vector).map(|i| i as f32).collect();
        let table_bytes: Vec<u8> = table.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let weight = |name: &str, ty: TensorType, bytes: Vec<u8>| Weight {
            name: name.into(),
            ty,
            source: WeightSource::Bytes(bytes.into()),
        };
        let indices_ty = TensorType::new(dtype, [4, 2]);
        let table_ty = TensorType::fp16([2, 1, entries, vector]);
        let weights = vec![
            weight("indices", indices_ty.clone(), pack_bits(&codes, bits)),
            weight("lut", table_ty.clone(), table_bytes),
        ];
        let inputs = [(DataType::Float16, array(&[1, 4], &[1.0, 1.0, 1.0, 1.0]))];
        let found = run_with(Profile::fp16(), &inputs, weights, &|b, i| {
            let dense = b
                .op(
                    "constexpr_lut_to_dense",
                    "dense",
                    &[
                        ("indices", Value::Weight(indices_ty.clone(), WeightId(0)).into()),
                        ("lut", Value::Weight(table_ty.clone(), WeightId(1)).into()),
                        ("vector_axis", Value::int(1).into()),
                    ],
                )
                .unwrap();
            let one = b
                .op("expand_dims", "wide", &[("x", i[0].into()), ("axes", Value::ints(&[0]).into())])
                .unwrap();
            op(b, "mul", &[("x", dense.into()), ("y", one.into())])
        });
        let expected: Vec<f32> = (0..8)
            .flat_map(|i| (0..2).map(move |j| (i, j)))
            .map(|(i, j)| table[((i / 4) * entries + codes[i] as usize) * 2 + j])
            .collect();
        assert_eq!(found.unwrap().data, expected, "{bits} bits");
    }
}

#[test]
fn blocks_are_shifted_and_scaled_in_the_type_of_the_scale() {
    let ints = |dtype, shape: &[usize], v: &[i64]| {
        Value::Immediate(TensorType::new(dtype, shape.to_vec()), Immediate::Ints(v.to_vec()))
    };
    let found = run_with(Profile::fp16(), &[(DataType::Float16, array(&[], &[1.0]))], vec![], &|b, i| {
        let dense = b
            .op(
                "constexpr_blockwise_shift_scale",
                "dense",
                &[
                    ("data", ints(DataType::Int8, &[2, 4], &[-128, 127, 3, 4, 5, 6, 7, 8]).into()),
                    ("scale", Value::floats(DataType::Float16, [1, 2], &[0.1, 2.0]).into()),
                    ("offset", ints(DataType::Int8, &[1, 2], &[1, -1]).into()),
                ],
            )
            .unwrap();
        op(b, "mul", &[("x", dense.into()), ("y", i[0].into())])
    });
    let tenth = f16::from_f32(0.1).to_f32();
    let half = |v: f32| f16::from_f32(v).to_f32();
    let expected =
        [half(-129.0 * tenth), half(126.0 * tenth), 8., 10., half(4.0 * tenth), half(5.0 * tenth), 16., 18.];
    assert_eq!(found.unwrap().data, expected);
}

/// What a `constexpr` operation of version 7 expands to, through a package on disk, or what is wrong with it.
fn expanded_early(kind: &str, inputs: &[(&str, Value)], shape: &[usize]) -> Result<Vec<f32>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.mlpackage");
    let mut b = FunctionBuilder::new("main", 7);
    let x = b.input("x", TensorType::fp16(shape.to_vec())).unwrap();
    let inputs: Vec<(&str, Arg)> = inputs.iter().map(|(n, v)| (*n, v.clone().into())).collect();
    let dense = b.op(kind, "dense", &inputs).map_err(|e| e.to_string())?;
    let out = op(&mut b, "mul", &[("x", dense.into()), ("y", x.into())]);
    save_as(7, b, out, vec![], &path);
    let mut f = Emulator::new(Profile::fp16(), 1).load(&path, "main").map_err(|e| e.to_string())?;
    let ones = array(shape, &vec![1.0; shape.iter().product()]);
    Ok(f.predict(&[("x", &ones)], &mut States::new()).unwrap().remove(0).data)
}

#[test]
fn weights_of_earlier_systems_expand() {
    let ints = |dtype, shape: &[usize], v: &[i64]| {
        Value::Immediate(TensorType::new(dtype, shape.to_vec()), Immediate::Ints(v.to_vec()))
    };
    let bytes =
        |v: &[u8]| ints(DataType::Uint8, &[v.len()], &v.iter().map(|b| i64::from(*b)).collect::<Vec<_>>());
    let halves = |v: &[f32]| Value::floats(DataType::Float16, [v.len()], v);
    let shape = |v: &[i64]| ints(DataType::Uint32, &[v.len()], v);

    let table = |indices: &[u8]| {
        let inputs =
            [("indices", bytes(indices)), ("lut", halves(&[1.0, 2.0, -3.0, 0.5])), ("shape", shape(&[2, 3]))];
        expanded_early("constexpr_lut_to_dense", &inputs, &[2, 3])
    };
    let packed = pack_bits(&[3, 0, 1, 2, 2, 0], 2);
    assert_eq!(table(&packed).unwrap(), [0.5, 1.0, 2.0, -3.0, -3.0, 1.0]);
    assert!(table(&packed[..1]).unwrap_err().contains("expected 2 bytes for [2, 3] of 2 bits"));

    let affine = |zero: Value, scale: Value, axis: i32| {
        let inputs = [
            ("quantized_data", ints(DataType::Int8, &[2, 3], &[1, 2, 3, 4, 5, -6])),
            ("zero_point", zero),
            ("scale", scale),
            ("axis", Value::int(axis)),
        ];
        expanded_early("constexpr_affine_dequantize", &inputs, &[2, 3])
    };
    let zeros = |v: &[i64]| ints(DataType::Int8, &[v.len()], v);
    assert_eq!(affine(zeros(&[1, -1]), halves(&[0.5, 2.0]), 0).unwrap(), [0., 0.5, 1., 10., 12., -10.]);
    let one_zero = ints(DataType::Int8, &[], &[1]);
    assert_eq!(affine(one_zero, halves(&[1.0, 2.0, 4.0]), -1).unwrap(), [0., 2., 8., 3., 8., -28.]);
    assert!(affine(zeros(&[1, 2]), halves(&[1.0; 3]), 1).unwrap_err().contains("along axis 1"));

    let sparse = |values: &[f32]| {
        let inputs =
            [("nonzero_data", halves(values)), ("mask", bytes(&[0b10_0101])), ("shape", shape(&[2, 3]))];
        expanded_early("constexpr_sparse_to_dense", &inputs, &[2, 3])
    };
    assert_eq!(sparse(&[1.0, 2.0, 3.0]).unwrap(), [1.0, 0.0, 2.0, 0.0, 0.0, 3.0]);
    assert!(sparse(&[1.0, 2.0]).unwrap_err().contains("`mask` does not set 2 elements"));
    assert!(sparse(&[1.0; 4]).unwrap_err().contains("`mask` does not set 4 elements"));
}

#[test]
fn states_are_read_and_written_in_place_and_inputs_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.mlpackage");
    let mut b = FunctionBuilder::new("main", 9);
    let x = b.input("x", TensorType::fp16([2])).unwrap();
    let state = b.input("sum", Type::State(TensorType::fp16([2]))).unwrap();
    let old = b.op("read_state", "old", &[("input", state.into())]).unwrap();
    let new = b.op("add", "new", &[("x", old.into()), ("y", x.into())]).unwrap();
    b.ops("write_state", "write", &[("input", state.into()), ("data", new.into())], &[]).unwrap();
    let out = b.op("read_state", "out", &[("input", state.into())]).unwrap();
    save(b, out, vec![], &path);
    let mut emulator = Emulator::new(Profile::fp16(), 1);
    let mut f = emulator.load(&path, "main").unwrap();
    let mut states = States::new();
    let x = array(&[2], &[1.0, 2.0]);
    f.predict(&[("x", &x)], &mut states).unwrap();
    assert_eq!(f.predict(&[("x", &x)], &mut states).unwrap()[0].data, [2.0, 4.0]);
    assert_eq!(states["sum"], array(&[2], &[2.0, 4.0]));
    let mut say = |inputs: &[(&str, &Array)]| f.predict(inputs, &mut States::new()).unwrap_err().to_string();
    assert_eq!(say(&[]), "input `x` is missing; give tensor<fp16, [2]>");
    assert_eq!(say(&[("x", &x), ("y", &x)]), "input `y` is not an input of function `main`; those are `x`");
    assert_eq!(say(&[("x", &x), ("x", &x)]), "input `x` is given twice");
    let long = array(&[3], &[0.0; 3]);
    assert_eq!(say(&[("x", &long)]), "input `x` is [3] with 3 elements, expected tensor<fp16, [2]>");
    states.insert("sum".into(), long);
    assert!(f.predict(&[("x", &x)], &mut states).unwrap_err().to_string().starts_with("state `sum` is [3]"));
    let error = emulator.load(&path, "decode").err().unwrap().to_string();
    assert!(error.ends_with("has no function `decode`; it has `main`"), "{error}");
}
