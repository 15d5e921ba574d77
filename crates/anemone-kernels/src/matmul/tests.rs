use super::*;
use crate::Level;
use half::f16;

fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut s = seed.wrapping_mul(2654435761).wrapping_add(12345);
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 17;
            s ^= s << 5;
            s as f32 / u32::MAX as f32 - 0.5
        })
        .collect()
}

fn store(dtype: DType, v: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => v.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        DType::BF16 => v.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

fn stored(dtype: DType, v: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(v).to_f32(),
        DType::BF16 => bf16::from_f32(v).to_f32(),
        _ => v,
    }
}

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Reference in f64, and the sum of |w·x| that bounds the rounding error.
fn reference(w: &[f32], x: &[f32], rows: usize, cols: usize, tokens: usize) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for t in 0..tokens {
        for r in 0..rows {
            let terms = (0..cols).map(|k| f64::from(w[r * cols + k]) * f64::from(x[t * cols + k]));
            out.push((terms.clone().sum(), terms.map(f64::abs).sum()));
        }
    }
    out
}

#[test]
fn f32_products_on_every_level_match_f64() {
    for &level in Level::available() {
        for threads in [1, 3] {
            let context = Context::with_level(threads, level);
            for (rows, cols, tokens) in
                [(1, 1, 1), (5, 7, 1), (9, 33, 2), (16, 64, 7), (37, 100, 13), (66, 257, 6)]
            {
                for dtype in DTYPES {
                    let (w, x) = (values(rows * cols, 1), values(tokens * cols, 2));
                    let bytes = store(dtype, &w);
                    let w: Vec<f32> = w.iter().map(|&v| stored(dtype, v)).collect();
                    let mut out = vec![f32::NAN; tokens * rows];
                    let weight = MatrixView::from_bytes(dtype, &bytes, rows, cols).unwrap();
                    matmul(
                        &context,
                        Input::F32(&x),
                        tokens,
                        &mut [Product { weight, bias: None, out: &mut out }],
                    );
                    for (o, (expected, scale)) in out.iter().zip(reference(&w, &x, rows, cols, tokens)) {
                        // cols roundings of at most 2^-24 each, relative to the sum of magnitudes.
                        let bound = scale * cols as f64 * 6e-8 + 1e-30;
                        assert!(
                            (f64::from(*o) - expected).abs() <= bound,
                            "{level:?} {dtype} {rows}x{cols}x{tokens}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn bf16_products_match_f64_on_rounded_inputs() {
    let Some(&level) = Level::available().iter().find(|l| l.has_bf16_products()) else {
        eprintln!("skipped: no bf16 products on this machine");
        return;
    };
    let context = Context::with_level(2, level);
    for (rows, cols, tokens) in [(1, 1, 1), (5, 7, 1), (9, 33, 2), (16, 64, 7), (37, 100, 13), (130, 1030, 6)]
    {
        for dtype in DTYPES {
            let (w, x) = (values(rows * cols, 3), values(tokens * cols, 4));
            let bytes = store(dtype, &w);
            let w: Vec<f32> = w.iter().map(|&v| bf16::from_f32(stored(dtype, v)).to_f32()).collect();
            let xb: Vec<bf16> = x.iter().map(|&v| bf16::from_f32(v)).collect();
            let x: Vec<f32> = xb.iter().map(|v| v.to_f32()).collect();
            let mut out = vec![f32::NAN; tokens * rows];
            let weight = MatrixView::from_bytes(dtype, &bytes, rows, cols).unwrap();
            matmul(&context, Input::Bf16(&xb), tokens, &mut [Product { weight, bias: None, out: &mut out }]);
            for (o, (expected, scale)) in out.iter().zip(reference(&w, &x, rows, cols, tokens)) {
                // Products of bf16 are exact in f32; the sums round as f32 sums do (each step may round twice).
                let bound = scale * cols as f64 * 1.2e-7 + 1e-30;
                assert!((f64::from(*o) - expected).abs() <= bound, "{dtype} {rows}x{cols}x{tokens}");
            }
        }
    }
}

#[test]
fn a_token_has_the_same_bits_in_any_company() {
    let (rows, cols, tokens) = (67, 1030, 20);
    for &level in Level::available() {
        let context = Context::with_level(2, level);
        for dtype in DTYPES {
            let bytes = store(dtype, &values(rows * cols, 5));
            let weight = MatrixView::from_bytes(dtype, &bytes, rows, cols).unwrap();
            let x = values(tokens * cols, 6);
            let xb: Vec<bf16> = x.iter().map(|&v| bf16::from_f32(v)).collect();
            let product = |reduced: bool, from: usize, to: usize| {
                let mut out = vec![0.0; (to - from) * rows];
                let input = if reduced {
                    Input::Bf16(&xb[from * cols..to * cols])
                } else {
                    Input::F32(&x[from * cols..to * cols])
                };
                matmul(&context, input, to - from, &mut [Product { weight, bias: None, out: &mut out }]);
                out
            };
            for reduced in [false, level.has_bf16_products()] {
                let all = product(reduced, 0, tokens);
                for split in [1, 2, 3, 5, 6, 7] {
                    let mut parts = Vec::new();
                    for from in (0..tokens).step_by(split) {
                        parts.extend(product(reduced, from, (from + split).min(tokens)));
                    }
                    let same = all.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{level:?} {dtype} bf16 {reduced} chunks of {split}");
                }
            }
        }
    }
}

#[test]
fn several_products_and_biases_in_one_call() {
    let context = Context::new(2);
    let (cols, tokens) = (48, 3);
    let x = values(tokens * cols, 7);
    let (a, b) = (store(DType::F32, &values(10 * cols, 8)), store(DType::F16, &values(33 * cols, 9)));
    let bias = values(10, 10);
    let (mut oa, mut ob, mut plain) =
        (vec![0.0; tokens * 10], vec![0.0; tokens * 33], vec![0.0; tokens * 10]);
    let wa = MatrixView::from_bytes(DType::F32, &a, 10, cols).unwrap();
    let wb = MatrixView::from_bytes(DType::F16, &b, 33, cols).unwrap();
    let mut products = [
        Product { weight: wa, bias: Some(&bias), out: &mut oa },
        Product { weight: wb, bias: None, out: &mut ob },
    ];
    matmul(&context, Input::F32(&x), tokens, &mut products);
    matmul(&context, Input::F32(&x), tokens, &mut [Product { weight: wa, bias: None, out: &mut plain }]);
    for t in 0..tokens {
        for r in 0..10 {
            assert_eq!(oa[t * 10 + r], plain[t * 10 + r] + bias[r]);
        }
    }
    assert!(ob.iter().all(|v| v.is_finite() && *v != 0.0));
}

#[test]
fn a_view_checks_its_length() {
    assert!(MatrixView::from_bytes(DType::F16, &[0; 12], 2, 3).is_some());
    assert!(MatrixView::from_bytes(DType::F16, &[0; 11], 2, 3).is_none());
    assert!(MatrixView::from_bytes(DType::I32, &[0; 24], 2, 3).is_none());
    assert!(MatrixView::from_bytes(DType::F32, &[], usize::MAX, 2).is_none());
}

/// Weights as trained models have them, with some that need patches: zeros, tiny and large ones.
fn gaussian_like(n: usize, seed: u32) -> Vec<f32> {
    let parts: Vec<Vec<f32>> = (0..4).map(|i| values(n, seed + i)).collect();
    let mut out: Vec<f32> = (0..n).map(|i| parts.iter().map(|p| p[i]).sum::<f32>() * 0.03).collect();
    for i in (0..n).step_by(2111) {
        out[i] = [0.0, -1e-9, 300.0][i / 2111 % 3];
    }
    out
}

#[test]
fn compact_weights_change_no_bit() {
    for (rows, cols) in [(1, 64), (5, 128), (37, 192), (70, 1024), (9, 4608)] {
        let mut w = gaussian_like(rows * cols, 3);
        if cols >= 1024 {
            // Patches at both ends of a row, two in a group and in groups side by side.
            for i in [0, 1, 64, cols - 1, cols, 3 * cols + 700] {
                w[i] = 2f32.powi(-60);
            }
        }
        for dtype in DTYPES {
            let bytes = store(dtype, &w);
            let tensor = Tensor::new(dtype, [rows, cols], bytes.into()).unwrap();
            let plan = Compact::plan(&tensor).unwrap();
            assert_eq!(plan.len(), rows * cols * 3 / 2);
            let compact = plan.encode(|len, fill| {
                let mut out = vec![0; len];
                fill(&mut out);
                Some(out.into())
            });
            let compact = compact.unwrap();
            for &level in Level::available() {
                let context = Context::with_level(2, level);
                for tokens in [1, 2, 7] {
                    let x = values(tokens * cols, 5);
                    let narrow: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
                    let run = |weight: MatrixView<'_>, reduced: bool| -> Vec<u32> {
                        let mut out = vec![f32::NAN; tokens * rows];
                        let input = if reduced { Input::Bf16(&narrow) } else { Input::F32(&x) };
                        matmul(&context, input, tokens, &mut [Product { weight, bias: None, out: &mut out }]);
                        out.iter().map(|v| v.to_bits()).collect()
                    };
                    let view = MatrixView::new(&tensor).unwrap();
                    for reduced in [false, true] {
                        if reduced && !level.has_bf16_products() {
                            continue;
                        }
                        let what = format!("{level:?} {dtype} {rows}x{cols}x{tokens} {reduced}");
                        assert_eq!(run(view.with_compact(&compact), reduced), run(view, reduced), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_not_made_compact() {
    let plan = |rows, cols, w: &[f32]| {
        let tensor = Tensor::new(DType::BF16, [rows, cols], store(DType::BF16, w).into()).unwrap();
        Compact::plan(&tensor).is_some()
    };
    assert!(plan(2, 64, &values(128, 1)));
    assert!(!plan(2, 63, &values(126, 1)), "no whole groups");
    // Exponents all over the place.
    let wide: Vec<f32> = (0..4096).map(|i| 2f32.powi(i % 60 - 30)).collect();
    assert!(!plan(4, 1024, &wide));
    // One row in two hundred, which the sample does not look at.
    let mut hidden = values(200 * 64, 1);
    hidden[64..128].copy_from_slice(&wide[..64]);
    assert!(!plan(200, 64, &hidden));
}
