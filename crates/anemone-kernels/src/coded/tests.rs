use anemone_tensor::{BlockFormat, Blocks, Bytes};
use half::f16;

use super::*;
use crate::{Context, Input, MatrixView, Product, matmul};

/// Numbers that look random: a linear congruence.
struct Random(u64);

impl Random {
    fn next_u32(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

/// A matrix of random codes and moderate scales.
fn random(format: BlockFormat, rows: usize, cols: usize, seed: u64) -> Blocks {
    let mut random = Random(seed);
    let count = format.row_bytes(cols).unwrap() * rows;
    let mut bytes: Vec<u8> = (0..count).map(|_| random.next_u32() as u8).collect();
    let (at, halves): (usize, usize) = match format {
        BlockFormat::Q6_K => (208, 1),
        BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => (0, 1),
        _ => (0, 2),
    };
    for block in bytes.chunks_exact_mut(format.bytes()) {
        for i in 0..halves {
            let scale = (random.next_u32() % 2001) as f32 / 1e5 - 0.01;
            block[at + 2 * i..][..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
    }
    Blocks::new(format, (rows, cols), bytes.into()).unwrap()
}

fn coded(blocks: &Blocks) -> Coded {
    Coded::new(blocks, aligned).unwrap()
}

/// Memory of an arena, whose runs begin at multiples of 64.
fn aligned(len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Option<Bytes> {
    anemone_tensor::Arena::reserve(&[len]).unwrap().push_with(len, fill)
}

fn inputs(tokens: usize, cols: usize) -> Vec<f32> {
    let mut random = Random(9);
    (0..tokens * cols).map(|_| (random.next_u32() % 4001) as f32 / 1e3 - 2.0).collect()
}

fn product(context: &Context, weight: &Coded, x: &[f32], tokens: usize) -> Vec<f32> {
    let mut rounded = Rounded::default();
    rounded.fill(context, x, tokens);
    let mut out = vec![f32::NAN; tokens * weight.rows()];
    let weight = MatrixView::coded(weight).unwrap();
    matmul(
        context,
        Input::Rounded(x, &rounded),
        tokens,
        &mut [Product { weight, bias: None, out: &mut out }],
    );
    out
}

#[test]
fn rows_expand_to_what_is_stored() {
    for format in BlockFormat::ALL {
        let blocks = random(format, 37, 512, 1);
        let (coded, expected) = (coded(&blocks), blocks.expand());
        let mut row = vec![0.0; 512];
        for (r, expected) in expected.chunks_exact(512).enumerate() {
            coded.expand_row(r, &mut row);
            let same = row.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{format}, row {r}");
        }
        assert_eq!(coded.find_non_finite(), None);
    }
}

#[test]
fn every_level_gives_the_scalar_bits_for_every_number_of_tokens() {
    for format in BlockFormat::ALL {
        let blocks = random(format, 53, 512, 2);
        let weight = coded(&blocks);
        let x = inputs(29, 512);
        let exact = product(&Context::with_level(1, Level::Scalar), &weight, &x, 29);
        for &level in Level::available() {
            let context = Context::with_level(2, level);
            for tokens in (1..=13).chain([24, 25, 29]) {
                let out = product(&context, &weight, &x[..tokens * 512], tokens);
                let same = out.iter().zip(&exact).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{format} at {level:?} of {tokens} tokens");
            }
        }
    }
}

/// Rounding moves an activation by at most half a step, a 254th of its block's largest; the sums of f32 add some 1e-6.
#[test]
fn results_are_near_those_of_exact_activations() {
    let context = Context::new(1);
    for format in BlockFormat::ALL {
        let blocks = random(format, 16, 1024, 3);
        let (weight, x) = (coded(&blocks), inputs(3, 1024));
        let out = product(&context, &weight, &x, 3);
        let matrix = blocks.expand();
        for (t, x) in x.chunks_exact(1024).enumerate() {
            for (r, row) in matrix.chunks_exact(1024).enumerate() {
                let (mut exact, mut bound) = (0.0f64, 1e-5);
                for (x, w) in x.chunks_exact(32).zip(row.chunks_exact(32)) {
                    let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                    let step = f64::from(largest) / 254.0 * 1.0001;
                    exact += x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
                    bound += w.iter().map(|w| f64::from(w.abs()) * step).sum::<f64>();
                }
                let found = f64::from(out[t * 16 + r]);
                assert!((found - exact).abs() <= bound, "{format}: {found} for {exact} within {bound}");
            }
        }
    }
}

#[test]
fn exact_inputs_meet_exact_weights() {
    let blocks = random(BlockFormat::Q4_K, 21, 512, 4);
    let (weight, x) = (coded(&blocks), inputs(2, 512));
    let expanded = anemone_tensor::Tensor::from_f32([21, 512], &blocks.expand()).unwrap();
    for &level in Level::available() {
        let context = Context::with_level(1, level);
        let run = |weight| {
            let mut out = vec![0.0; 2 * 21];
            matmul(&context, Input::F32(&x), 2, &mut [Product { weight, bias: None, out: &mut out }]);
            out
        };
        let from_codes = run(MatrixView::coded(&weight).unwrap());
        assert_eq!(from_codes, run(MatrixView::new(&expanded).unwrap()), "{level:?}");
    }
}

#[test]
fn what_is_no_number_is_not_hidden() {
    let context = Context::new(1);
    let weight = coded(&random(BlockFormat::Q8_0, 16, 64, 5));
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = inputs(2, 64);
        x[64 + 40] = bad;
        let out = product(&context, &weight, &x, 2);
        assert!(out[..16].iter().all(|v| v.is_finite()));
        assert!(out[16..].iter().all(|v| !v.is_finite()), "{out:?}");
    }
    let zeros = product(&context, &weight, &[1e-38; 64], 1);
    assert!(zeros.iter().all(|v| *v == 0.0));
}
