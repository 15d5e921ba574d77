/// How far one vector is from another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Cosine of the angle between them; 1 for two zero vectors.
    pub cosine: f64,
    /// Largest absolute difference; infinite if either holds a NaN.
    pub max_abs: f64,
    /// KL divergence of their softmaxes, in nats.
    pub kl: f64,
    /// Whether both have the same argmax.
    pub argmax_equal: bool,
}

/// All metrics of two vectors of logits of equal length.
pub fn compare(reference: &[f32], other: &[f32]) -> Comparison {
    Comparison {
        cosine: cosine(reference, other),
        max_abs: max_abs_diff(reference, other),
        kl: kl_divergence(reference, other),
        argmax_equal: argmax(reference) == argmax(other),
    }
}

/// Cosine similarity in f64; 1 when both are zero, 0 when one is.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "cosine of vectors of different length");
    let (mut dot, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (&x, &y) in a.iter().zip(b) {
        let (x, y) = (f64::from(x), f64::from(y));
        dot += x * y;
        aa += x * x;
        bb += y * y;
    }
    if aa == 0.0 && bb == 0.0 {
        return 1.0;
    }
    if aa == 0.0 || bb == 0.0 {
        return 0.0;
    }
    dot / (aa.sqrt() * bb.sqrt())
}

/// Largest absolute difference; infinite when a difference is NaN.
pub fn max_abs_diff(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "difference of vectors of different length");
    let mut max = 0.0f64;
    for (&x, &y) in a.iter().zip(b) {
        let d = (f64::from(x) - f64::from(y)).abs();
        if d.is_nan() {
            return f64::INFINITY;
        }
        max = max.max(d);
    }
    max
}

/// KL(softmax(reference) ‖ softmax(other)) in nats, computed in f64.
pub fn kl_divergence(reference: &[f32], other: &[f32]) -> f64 {
    assert_eq!(reference.len(), other.len(), "divergence of vectors of different length");
    let (p, q) = (log_softmax(reference), log_softmax(other));
    p.iter()
        .zip(&q)
        .filter(|(p, _)| **p > f64::NEG_INFINITY)
        .map(|(p, q)| p.exp() * (p - q))
        .sum::<f64>()
        .max(0.0)
}

fn log_softmax(x: &[f32]) -> Vec<f64> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = x.iter().map(|&v| f64::from(v - max).exp()).sum();
    let log_sum = sum.ln() + f64::from(max);
    x.iter().map(|&v| f64::from(v) - log_sum).collect()
}

/// Index of the largest element, the first on ties; `None` when empty. NaN never wins.
pub fn argmax(x: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &v) in x.iter().enumerate() {
        if best.is_none_or(|(_, b)| v > b || (b.is_nan() && !v.is_nan())) {
            best = Some((i, v));
        }
    }
    best.map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_takes_the_first_and_skips_nan() {
        assert_eq!(argmax(&[]), None);
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(argmax(&[f32::NAN, -1.0]), Some(1));
    }

    #[test]
    fn equal_vectors_compare_equal() {
        let x = [0.5, -2.0, 3.25];
        let c = compare(&x, &x);
        assert!((c.cosine - 1.0).abs() < 1e-15 && c.max_abs == 0.0 && c.kl == 0.0 && c.argmax_equal);
    }

    #[test]
    fn kl_of_known_pair() {
        // softmax of (0, ln 3) is (1/4, 3/4); of (0, 0) is (1/2, 1/2).
        let kl = kl_divergence(&[0.0, 3.0f32.ln()], &[0.0, 0.0]);
        let expected = 0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln();
        assert!((kl - expected).abs() < 1e-7);
    }

    #[test]
    fn nan_is_infinitely_far() {
        assert_eq!(max_abs_diff(&[f32::NAN], &[0.0]), f64::INFINITY);
    }
}
