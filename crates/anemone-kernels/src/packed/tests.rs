use anemone_tensor::{Arena, DType};
use half::{bf16, f16};

use super::*;
use crate::{Level, MatrixView};

fn values(n: usize, seed: usize) -> Vec<f32> {
    let mut state = (seed as u32).wrapping_mul(2_654_435_761) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / (1u64 << 31) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn stored(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

fn read(dtype: DType, v: f32) -> f64 {
    match dtype {
        DType::F16 => f64::from(f16::from_f32(v)),
        DType::BF16 => f64::from(bf16::from_f32(v)),
        _ => f64::from(v),
    }
}

fn panels(context: &Context, view: MatrixView<'_>, order: RowOrder, paired: bool) -> Panels {
    let plan = PanelPlan { order, paired };
    let mut arena = Arena::reserve(&[Panels::size(view, plan)]).unwrap();
    Panels::new(context, view, plan, |len, fill| arena.push_with(len, fill)).unwrap()
}

const SHAPES: [(usize, usize); 6] = [(64, 32), (1, 1), (70, 33), (130, 513), (3, 1250), (192, 64)];
const TYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

#[test]
fn every_level_matches_f64() {
    for &level in Level::available() {
        let context = Context::with_level(2, level);
        for ((rows, cols), dtype) in SHAPES.into_iter().flat_map(|s| TYPES.map(|t| (s, t))) {
            let (w, bias) = (values(rows * cols, 1), values(rows, 2));
            let bytes = stored(dtype, &w);
            let view = MatrixView::from_bytes(dtype, &bytes, rows, cols).unwrap();
            let wide = panels(&context, view, RowOrder::Plain, false);
            for tokens in [1, 5, 13, 100] {
                let (x, before) = (values(tokens * cols, 3), values(tokens * rows, 4));
                let mut out = before.clone();
                let product = PackedProduct { weight: &wide, bias: Some(&bias), then: Then::Add(&mut out) };
                matmul_packed(&context, Input::F32(&x), tokens, product);
                for (i, o) in out.iter().enumerate() {
                    let (t, r) = (i / rows, i % rows);
                    let dot: f64 =
                        (0..cols).map(|k| f64::from(x[t * cols + k]) * read(dtype, w[r * cols + k])).sum();
                    let expected = f64::from(before[i]) + f64::from(bias[r]) + dot;
                    // Running sums of at most 1152 products below one, twice rounded a step on the scalar level: some ulp of their size, 30.
                    assert!(
                        (f64::from(*o) - expected).abs() < 1e-4,
                        "{level:?} {rows}x{cols} {dtype} {tokens}"
                    );
                }
            }
        }
    }
}

#[test]
fn pairs_match_products_of_rounded_numbers() {
    for &level in Level::available().iter().filter(|level| level.has_bf16_products()) {
        let context = Context::with_level(2, level);
        for ((rows, cols), dtype) in SHAPES.into_iter().flat_map(|s| TYPES.map(|t| (s, t))) {
            let w = values(rows * cols, 1);
            let bytes = stored(dtype, &w);
            let view = MatrixView::from_bytes(dtype, &bytes, rows, cols).unwrap();
            let paired = panels(&context, view, RowOrder::Plain, true);
            for tokens in [1, 5, 13, 100] {
                let x: Vec<bf16> = values(tokens * cols, 3).into_iter().map(bf16::from_f32).collect();
                let mut out = vec![f32::NAN; tokens * rows];
                let product = PackedProduct { weight: &paired, bias: None, then: Then::Store(&mut out) };
                matmul_packed(&context, Input::Bf16(&x), tokens, product);
                for (i, o) in out.iter().enumerate() {
                    let (t, r) = (i / rows, i % rows);
                    let weight = |k: usize| f64::from(bf16::from_f32(read(dtype, w[r * cols + k]) as f32));
                    let expected: f64 = (0..cols).map(|k| f64::from(x[t * cols + k]) * weight(k)).sum();
                    // As above, over at most 1250 products.
                    assert!(
                        (f64::from(*o) - expected).abs() < 1e-4,
                        "{level:?} {rows}x{cols} {dtype} {tokens}"
                    );
                }
            }
        }
    }
}

#[test]
fn company_and_threads_change_no_bit() {
    let (rows, cols, tokens) = (200, 700, 151);
    let (w, x) = (values(rows * cols, 1), values(tokens * cols, 2));
    let bytes = stored(DType::F16, &w);
    let view = MatrixView::from_bytes(DType::F16, &bytes, rows, cols).unwrap();
    for &level in Level::available() {
        let context = Context::with_level(3, level);
        let weight = panels(&context, view, RowOrder::Plain, false);
        let run = |threads: usize, x: &[f32]| {
            let mut out = vec![0.0; x.len() / cols * rows];
            let product = PackedProduct { weight: &weight, bias: None, then: Then::Store(&mut out) };
            matmul_packed(&Context::with_level(threads, level), Input::F32(x), x.len() / cols, product);
            out
        };
        let all = run(3, &x);
        for threads in [1, 8] {
            assert_eq!(run(threads, &x), all, "{level:?} {threads}");
        }
        for (t, x) in x.chunks_exact(cols).enumerate().step_by(37) {
            assert_eq!(run(2, x), all[t * rows..(t + 1) * rows], "{level:?} {t}");
        }
    }
}

/// Functions of results are those of the results stored and activated apart, but for the roundings of their type.
#[test]
fn results_are_activated_and_gated() {
    for &level in Level::available() {
        let context = Context::with_level(2, level);
        for ((rows, cols), paired) in
            [(2, 3), (40, 33), (64, 70), (130, 1300)].into_iter().flat_map(|s| [(s, false), (s, true)])
        {
            if paired && !level.has_bf16_products() {
                continue;
            }
            let (w, bias, tokens) = (values(rows * cols, 1), values(rows, 2), 57);
            let bytes = stored(DType::F16, &w);
            let view = MatrixView::from_bytes(DType::F16, &bytes, rows, cols).unwrap();
            let x = values(tokens * cols, 3);
            let low: Vec<bf16> = x.iter().copied().map(bf16::from_f32).collect();
            let input = if paired { Input::Bf16(&low) } else { Input::F32(&x) };
            let product = |order, then: Then<'_>| {
                let weight = panels(&context, view, order, paired);
                matmul_packed(
                    &context,
                    input,
                    tokens,
                    PackedProduct { weight: &weight, bias: Some(&bias), then },
                );
            };
            let output = |len: usize, run: &dyn Fn(Output<'_>)| {
                let (mut wide, mut low) = (vec![f32::NAN; len], vec![bf16::NAN; len]);
                if paired {
                    run(Output::Bf16(&mut low));
                    low.into_iter().map(f32::from).collect()
                } else {
                    run(Output::F32(&mut wide));
                    wide
                }
            };
            let mut plain = vec![f32::NAN; tokens * rows];
            product(RowOrder::Plain, Then::Store(&mut plain));
            let relu =
                output(plain.len(), &|out| product(RowOrder::Plain, Then::Activate(Activation::Relu, out)));
            let gate =
                output(plain.len() / 2, &|out| product(RowOrder::Gated, Then::Gate(Activation::Gelu, out)));
            let mut bent = vec![0.0; plain.len()];
            crate::activate(&context, Activation::Gelu, &plain, Output::F32(&mut bent));
            let half = rows / 2;
            let expected: Vec<f32> = (0..gate.len())
                .map(|i| bent[i / half * rows + i % half] * plain[i / half * rows + half + i % half])
                .collect();
            // The type of the result: half a unit of its last place; bf16 instructions flush what is smaller than 1e-38.
            let ulp = if paired { 2f32.powi(-8) } else { 0.0 };
            for (result, plain) in relu.iter().zip(&plain) {
                assert!(
                    (result - plain.max(0.0)).abs() <= plain.abs() * ulp,
                    "{level:?} {rows}x{cols} {paired}"
                );
            }
            for (result, e) in gate.iter().zip(&expected) {
                assert!(
                    (result - e).abs() <= e.abs() * ulp + f32::MIN_POSITIVE,
                    "{level:?} {rows}x{cols} {paired} {result} {e}"
                );
            }
        }
    }
}
