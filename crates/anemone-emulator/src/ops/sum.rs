//! Sums that do not depend on the order of their terms, so that where a key lies in a cache cannot show in a result.
//!
//! Terms are rounded to a common quantum, 2^−37 of the power of two above the largest; multiples of it add up exactly in f64 for
//! up to 2^16 terms. Beyond that, and where a term is not finite, the sum is a plain f64 one.

use std::sync::Mutex;

use anemone_kernels::Context;

/// Running sums side by side, so that loops become vectors.
const LANES: usize = 8;
/// Multiplications a task of a product should have.
const TASK: usize = 1 << 15;

/// `(x + anchor) − anchor` rounds to the quantum for terms of at most `most`; 0, which rounds nothing, where there is none.
fn anchor(most: f64) -> f64 {
    if most == 0.0 || !most.is_finite() {
        return 0.0;
    }
    // The exponent as stored, at least 1 for the rare subnormal; 16 more is 2^15 of the power of two above.
    let exponent = ((most.to_bits() >> 52) & 0x7ff).max(1) + 16;
    if exponent >= 0x7ff { 0.0 } else { 1.5 * f64::from_bits(exponent << 52) }
}

#[inline]
fn greater(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The sum of `term` of every value.
pub(crate) fn sum(values: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    let mut most = [0.0f64; LANES];
    for chunk in chunks.clone() {
        most.iter_mut().zip(chunk).for_each(|(m, v)| *m = greater(term(*v).abs(), *m));
    }
    most.iter_mut().zip(rest).for_each(|(m, v)| *m = greater(term(*v).abs(), *m));
    let anchor = anchor(most.into_iter().fold(0.0, greater));
    let mut total = [0.0f64; LANES];
    for chunk in chunks {
        total.iter_mut().zip(chunk).for_each(|(t, v)| *t += (term(*v) + anchor) - anchor);
    }
    total.iter_mut().zip(rest).for_each(|(t, v)| *t += (term(*v) + anchor) - anchor);
    total.into_iter().sum()
}

/// The sums of `term` along the middle of `[n, inner]`.
pub(super) fn column_sums(values: &[f32], inner: usize, term: impl Fn(f32) -> f64) -> Vec<f64> {
    if inner == 1 {
        return vec![sum(values, term)];
    }
    let mut anchors = vec![0.0f64; inner];
    for row in values.chunks_exact(inner.max(1)) {
        anchors.iter_mut().zip(row).for_each(|(m, v)| *m = greater(term(*v).abs(), *m));
    }
    for m in &mut anchors {
        *m = anchor(*m);
    }
    let mut totals = vec![0.0f64; inner];
    for row in values.chunks_exact(inner.max(1)) {
        for ((t, v), a) in totals.iter_mut().zip(row).zip(&anchors) {
            *t += (term(*v) + a) - a;
        }
    }
    totals
}

/// The sum of products of two rows.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (x, y) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = x.remainder().iter().zip(y.remainder());
    // The largest product, to 24 bits; the anchor leaves room for the rest.
    let mut most = [0.0f32; LANES];
    let larger = |m: &mut f32, a: f32, b: f32| {
        let p = (a * b).abs();
        *m = if p > *m { p } else { *m };
    };
    for (x, y) in x.clone().zip(y.clone()) {
        most.iter_mut().zip(x).zip(y).for_each(|((m, a), b)| larger(m, *a, *b));
    }
    most.iter_mut().zip(rest.clone()).for_each(|(m, (a, b))| larger(m, *a, *b));
    let anchor = anchor(f64::from(most.into_iter().fold(0.0, f32::max)));
    let mut total = [0.0f64; LANES];
    let add = |t: &mut f64, a: f32, b: f32| *t += (f64::from(a) * f64::from(b) + anchor) - anchor;
    for (x, y) in x.zip(y) {
        total.iter_mut().zip(x).zip(y).for_each(|((t, a), b)| add(t, *a, *b));
    }
    total.iter_mut().zip(rest).for_each(|(t, (a, b))| add(t, *a, *b));
    total.into_iter().sum::<f64>() as f32
}

/// `[n, m] = b [n, k] · aᵀ` with `a [m, k]`.
pub(crate) fn product(context: &Context, a: &[f32], b: &[f32], k: usize, out: &mut [f32]) {
    if k == 0 || a.is_empty() || b.is_empty() {
        out.fill(0.0);
        return;
    }
    let m = a.len() / k;
    let rows = (TASK / a.len()).max(1);
    let parts: Vec<_> = out.chunks_mut(rows * m).zip(b.chunks(rows * k)).collect();
    let tasks = parts.len();
    let parts = Mutex::new(parts);
    context.pool().run(tasks, &|_, _| {
        let part = parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        let Some((out, b)) = part else { return };
        for (out, b) in out.chunks_exact_mut(m).zip(b.chunks_exact(k)) {
            out.iter_mut().zip(a.chunks_exact(k)).for_each(|(o, a)| *o = dot(a, b));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of many magnitudes.
    fn numbers(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f32 / (1u64 << 31) as f32 - 0.5
        };
        (0..n).map(|_| next() * f32::powi(2.0, (next() * 40.0) as i32)).collect()
    }

    #[test]
    fn sums_do_not_depend_on_order_or_zeros() {
        for seed in 1..200 {
            let (a, b) = (numbers(301, seed), numbers(301, seed + 1000));
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let most =
                a.iter().zip(&b).map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs()).fold(0.0, f64::max);
            let first = dot(&a, &b);
            // 301 terms off by half a quantum each, and the rounding of the result.
            let bound = 301.0 * most * f64::powi(2.0, -37) + exact.abs() * f64::powi(2.0, -24);
            assert!((f64::from(first) - exact).abs() <= bound, "{first} {exact}");
            let mut order: Vec<usize> = (0..301).collect();
            order.rotate_left(seed as usize % 301);
            order.swap(3, 200);
            order.reverse();
            // Masked keys have a probability of zero.
            let mut x: Vec<f32> = order.iter().map(|i| a[*i]).collect();
            let mut y: Vec<f32> = order.iter().map(|i| b[*i]).collect();
            x.insert(100, 1e30);
            y.insert(100, 0.0);
            assert_eq!(dot(&x, &y).to_bits(), first.to_bits());
            let squares = sum(&a, |v| f64::from(v) * f64::from(v));
            assert_eq!(sum(&x[..100], f64::from), column_sums(&x[..100], 1, f64::from)[0]);
            x.retain(|v| *v != 1e30);
            assert_eq!(sum(&x, |v| f64::from(v) * f64::from(v)).to_bits(), squares.to_bits());
            let wide: Vec<f32> = x.iter().flat_map(|v| [*v, 1.0, -*v]).collect();
            let sums = column_sums(&wide, 3, f64::from);
            assert_eq!(sums, [sum(&a, f64::from), 301.0, -sum(&a, f64::from)]);
        }
    }

    #[test]
    fn what_is_not_finite_stays_so_and_small_terms_count() {
        assert!(dot(&[1.0, f32::NAN], &[1.0, 1.0]).is_nan());
        assert_eq!(dot(&[1.0, f32::INFINITY], &[1.0, 1.0]), f32::INFINITY);
        assert!(dot(&[0.0], &[f32::INFINITY]).is_nan());
        assert_eq!(sum(&[f32::NEG_INFINITY, 1.0], f64::from), f64::NEG_INFINITY);
        assert_eq!(sum(&[], f64::from), 0.0);
        assert_eq!(dot(&[1e-45, 1e-45], &[1.0, 1.0]), 2.0 * 1e-45f32);
        assert_eq!(dot(&[1.0], &[0.333_333_34]), 0.333_333_34, "a single number is kept whole");
    }
}
