/// `e^x` for `x <= 0`, with the same bits on every platform; 0 below -87, relative error under 3e-7.
///
/// The standard library's is the platform's own, and platforms differ in the last bit.
pub(super) fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has few enough bits that its products are exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    // The low bits of the shifted number are n, the exponent of the scale.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x > -87.0 { p * scale } else { 0.0 }
}

/// The sum of `e^(x - max)`, added in a fixed order.
pub(super) fn sum_exp(values: &[f32], max: f32) -> f64 {
    let block = |block: &[f32]| {
        let mut lanes = [0.0f32; 16];
        let (chunks, rest) = block.as_chunks::<16>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += exp(x - max);
            }
        }
        let rest: f64 = rest.iter().map(|&x| f64::from(exp(x - max))).sum();
        lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>() + rest
    };
    values.chunks(1024).map(block).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_true_value() {
        for i in 0..200_000 {
            let x = -87.0 * (i as f32 / 200_000.0);
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 3e-7, "{x}: {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-87.5), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn exp_bits_are_pinned() {
        // The point of the function: these may not change with the platform.
        let bits: Vec<u32> = [-0.1f32, -1.0, -2.5, -10.0, -50.25].iter().map(|&x| exp(x).to_bits()).collect();
        assert_eq!(bits, PINNED);
    }

    const PINNED: [u32; 5] = [1063756653, 1052531378, 1034427438, 943614926, 456497180];

    #[test]
    fn sums_use_every_value() {
        let values: Vec<f32> = (0..1003).map(|i| -(i as f32) * 0.01).collect();
        let expected: f64 = values.iter().map(|&x| f64::from(x).exp()).sum();
        assert!((sum_exp(&values, 0.0) / expected - 1.0).abs() < 1e-6);
    }
}
