use anemone_tensor::{Bytes, DType, PALETTE_BITS, Palettized, Segment};
use half::{bf16, f16};

use crate::{Context, Input, Level, MatrixView, Product, Woven, matmul};

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn value(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 31) as f32 - 0.5
    }

    fn segment(&mut self, rows: usize, cols: usize, bits: u32, group: usize) -> Segment {
        let bytes: Vec<u8> =
            (0..(rows * cols * bits as usize).div_ceil(8)).map(|_| self.next() as u8).collect();
        let tables = (0..rows.div_ceil(group) << bits).map(|_| f16::from_f32(self.value())).collect();
        Segment::new((rows, cols), bits, group, tables, bytes.into()).unwrap()
    }
}

fn multiply(
    context: &Context,
    weight: MatrixView<'_>,
    x: Input<'_>,
    tokens: usize,
    bias: &[f32],
) -> Vec<u32> {
    let mut out = vec![f32::NAN; tokens * weight.rows()];
    matmul(context, x, tokens, &mut [Product { weight, bias: Some(bias), out: &mut out }]);
    out.iter().map(|v| v.to_bits()).collect()
}

/// The matrix expanded is the reference: products of it are tested against f64, and these must not differ from them by a bit.
fn agrees_with_its_expansion(matrix: &Palettized, case: &str) {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let expanded: Vec<u8> = matrix.expand().iter().flat_map(|v| v.to_le_bytes()).collect();
    let plain = MatrixView::from_bytes(DType::F16, &expanded, rows, cols).unwrap();
    let place = |len, fill: &mut dyn FnMut(&mut [u8])| {
        let mut bytes = vec![0xaa; len];
        fill(&mut bytes);
        Some(Bytes::from(bytes))
    };
    let woven = Woven::new(matrix, place).unwrap();
    let views = [MatrixView::palettized(matrix).unwrap(), MatrixView::woven(&woven).unwrap()];
    let mut noise = Noise(7);
    let bias: Vec<f32> = (0..rows).map(|_| noise.value()).collect();
    for tokens in [1, 2, 7] {
        let x: Vec<f32> = (0..tokens * cols).map(|_| noise.value()).collect();
        let low: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
        for &level in Level::available() {
            for threads in [1, 2] {
                let context = Context::with_level(threads, level);
                let mut inputs = vec![Input::F32(&x)];
                inputs.extend(level.has_bf16_products().then_some(Input::Bf16(&low)));
                for x in inputs {
                    let expected = multiply(&context, plain, x, tokens, &bias);
                    for (view, order) in views.into_iter().zip(["plain", "woven"]) {
                        let ours = multiply(&context, view, x, tokens, &bias);
                        assert_eq!(
                            ours, expected,
                            "{case}, {tokens} tokens, {level:?}, {threads} threads, {order}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_format_gives_the_bits_of_the_expanded_matrix() {
    let mut noise = Noise(1);
    for bits in PALETTE_BITS {
        // Whole groups of indices and remainders of every kind; rows that begin inside a byte; groups of any size.
        for (rows, cols, group) in [
            (1, 1, 1),
            (9, 64, 4),
            (13, 160, 32),
            (6, 96, 6),
            (5, 71, 2),
            (11, 200, 3),
            (3, 33, 1),
            (66, 130, 32),
        ] {
            let segment = noise.segment(rows, cols, bits, group);
            let matrix = Palettized::new(vec![vec![segment]]).unwrap();
            agrees_with_its_expansion(&matrix, &format!("{bits} bits, {rows}×{cols}, groups of {group}"));
        }
    }
}

#[test]
fn bands_and_segments_join_without_a_trace() {
    let mut noise = Noise(2);
    let mut bands = Vec::new();
    for (rows, parts) in [
        (7, vec![(96, 4, 4), (64, 8, 7), (40, 6, 2)]),
        (5, vec![(200, 3, 5)]),
        (6, vec![(33, 4, 6), (167, 1, 6)]),
        (10, vec![(128, 4, 4), (64, 8, 16), (8, 6, 2)]),
        (4, vec![(32, 2, 1), (32, 4, 1), (32, 6, 1), (32, 8, 1), (72, 4, 4)]),
    ] {
        bands.push(
            parts.iter().map(|(cols, bits, group)| noise.segment(rows, *cols, *bits, *group)).collect(),
        );
    }
    agrees_with_its_expansion(&Palettized::new(bands).unwrap(), "bands");
}

#[test]
fn an_infinite_entry_stays_with_its_own_element() {
    // Index 0 is what lies beyond a row's end.
    let tables = vec![f16::INFINITY, f16::ONE];
    let ones: Bytes = vec![0xffu8; 2 * 24 / 8].into();
    let segment = Segment::new((2, 24), 1, 2, tables, ones).unwrap();
    let matrix = Palettized::new(vec![vec![segment]]).unwrap();
    agrees_with_its_expansion(&matrix, "infinity");
    let context = Context::with_level(1, Level::best());
    let x = [1.0; 24];
    assert_eq!(
        multiply(&context, MatrixView::palettized(&matrix).unwrap(), Input::F32(&x), 1, &[0.0; 2]),
        [24f32.to_bits(); 2]
    );
}

#[test]
fn rows_too_long_for_the_buffer_are_refused() {
    let long = Noise(3).segment(1, (64 << 10) + 1, 1, 1);
    assert!(MatrixView::palettized(&Palettized::new(vec![vec![long]]).unwrap()).is_none());
}
