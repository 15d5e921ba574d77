//! The triangular factor of second moments that says how later columns make up for the errors of earlier ones.

use anemone_kernels::{Context, Input, MatrixView, Product, matmul};
use anemone_tensor::DType;

use crate::Error;

/// Columns factored together.
const BLOCK: usize = 64;
/// Rows of the remainder updated together, which bounds the memory of a step.
const STRIPE: usize = 512;

/// `H = (I + U) D (I + U)ᵀ` of the moments `H` of a map's input, its columns in the order of their use.
///
/// With errors `e` of a row the map's squared error is `e H eᵀ`, which is `Σ d[k] (e[k] + Σ_{j<k} e[j] u[j, k])²`: each column can
/// make up for the errors of those before it.
#[derive(Debug, Clone)]
pub struct Factor {
    /// Column of the matrix for each place.
    pub(crate) order: Vec<usize>,
    /// `[n, n]`: row `k` has `u[j, k]` at `j < k`, zeros elsewhere.
    pub(crate) lower: Vec<f32>,
    /// `[n]`, all positive.
    pub(crate) diagonal: Vec<f32>,
}

impl Factor {
    /// Factors the moments `[n, n]`, symmetric, after adding `damping` of their mean diagonal to it.
    ///
    /// Columns that matter most come first. Errors when the moments are not finite or, damped, not positive definite. The result
    /// does not depend on the number of threads.
    pub fn new(moments: &[f32], n: usize, damping: f64, context: &Context) -> Result<Self, Error> {
        if moments.len() != n * n || n == 0 {
            return Err(Error::Length { what: "the moments", found: moments.len(), expected: n * n });
        }
        if let Some(at) = moments.iter().position(|v| !v.is_finite()) {
            return Err(Error::Moments { column: at % n });
        }
        let mean = (0..n).map(|i| f64::from(moments[i * n + i])).sum::<f64>() / n as f64;
        // An input that is always zero teaches nothing; any error is as good.
        let mean = if mean > 0.0 { mean } else { 1.0 };
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|a, b| moments[b * n + b].total_cmp(&moments[a * n + a]));
        // Factored from the last column to the first.
        let mut g = vec![0.0f32; n * n];
        for (i, row) in g.chunks_exact_mut(n).enumerate() {
            let of = &moments[order[n - 1 - i] * n..][..n];
            for (j, v) in row.iter_mut().enumerate() {
                *v = of[order[n - 1 - j]];
            }
            row[i] += (damping * mean) as f32;
        }
        cholesky(&mut g, n, context).map_err(|place| Error::Moments { column: order[n - 1 - place] })?;
        let mut lower = vec![0.0; n * n];
        let mut diagonal = vec![0.0; n];
        for k in 0..n {
            let pivot = g[(n - 1 - k) * n + n - 1 - k];
            diagonal[k] = pivot * pivot;
            for j in 0..k {
                lower[k * n + j] = g[(n - 1 - j) * n + n - 1 - k] / pivot;
            }
        }
        Ok(Self { order, lower, diagonal })
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        self.diagonal.len()
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.diagonal.is_empty()
    }
}

/// Replaces the lower triangle by `C` with `C Cᵀ = g`; gives the place where that ends when it cannot go on.
fn cholesky(g: &mut [f32], n: usize, context: &Context) -> Result<(), usize> {
    for start in (0..n).step_by(BLOCK) {
        let end = (start + BLOCK).min(n);
        let width = end - start;
        for j in start..end {
            let row: Vec<f32> = g[j * n + start..j * n + j].to_vec();
            let pivot = f64::from(g[j * n + j]) - dot(&row, &row);
            if pivot.is_nan() || pivot <= 0.0 {
                return Err(j);
            }
            let pivot = pivot.sqrt();
            g[j * n + j] = pivot as f32;
            for i in j + 1..end {
                let sum = dot(&g[i * n + start..i * n + j], &row);
                g[i * n + j] = ((f64::from(g[i * n + j]) - sum) / pivot) as f32;
            }
        }
        if end == n {
            break;
        }
        let (top, rest) = g.split_at_mut(end * n);
        let top = &*top;
        let rows = std::sync::Mutex::new(rest.chunks_exact_mut(n).collect::<Vec<_>>());
        let taken = |i: usize| {
            let mut rows = rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            std::mem::take(&mut rows[i])
        };
        context.pool().run(n - end, &|_, i| {
            let row = taken(i);
            for j in start..end {
                let above = &top[j * n + start..j * n + j];
                let sum = dot(&row[start..j], above);
                row[j] = ((f64::from(row[j]) - sum) / f64::from(top[j * n + j])) as f32;
            }
        });
        let panel: Vec<f32> = rest.chunks_exact(n).flat_map(|row| &row[start..end]).copied().collect();
        let left = n - end;
        let mut product = vec![0.0; STRIPE.min(left) * left];
        for (first, stripe) in rest.chunks_mut(STRIPE * n).enumerate() {
            let first = first * STRIPE;
            let count = stripe.len() / n;
            // What lies right of the diagonal is not needed.
            let columns = (first + count).min(left);
            let weight = view(&panel[..columns * width], columns, width);
            let out = &mut product[..count * columns];
            let x = Input::F32(&panel[first * width..(first + count) * width]);
            matmul(context, x, count, &mut [Product { weight, bias: None, out }]);
            for (row, product) in stripe.chunks_exact_mut(n).zip(out.chunks_exact(columns)) {
                for (v, p) in row[end..].iter_mut().zip(product) {
                    *v -= p;
                }
            }
        }
    }
    Ok(())
}

/// A matrix `[rows, cols]` of f32 as products want it.
pub(crate) fn view(values: &[f32], rows: usize, cols: usize) -> MatrixView<'_> {
    MatrixView::from_bytes(DType::F32, bytemuck::cast_slice(values), rows, cols).expect("lengths agree")
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0.0f64; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (a, b) in a8.iter().zip(b8) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += f64::from(*a) * f64::from(*b);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn moments(n: usize, samples: usize) -> Vec<f32> {
        let mut state = 9u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let mut h = vec![0.0f32; n * n];
        for _ in 0..samples {
            // Neighbours move together.
            let mut x: Vec<f32> = (0..n).map(|_| noise()).collect();
            for i in 1..n {
                x[i] += 0.7 * x[i - 1];
            }
            for i in 0..n {
                for j in 0..n {
                    h[i * n + j] += x[i] * x[j];
                }
            }
        }
        h
    }

    #[test]
    fn the_factor_gives_the_moments_back() {
        // Below a block, one, several and a rest; more than a stripe.
        for n in [1, 5, 64, 150, 600] {
            let h = moments(n, 2 * n + 3);
            let factor = Factor::new(&h, n, 0.0, &Context::new(2)).unwrap();
            let largest = (0..n).map(|i| h[i * n + i]).fold(0.0f32, f32::max);
            let u = |j: usize, k: usize| if j == k { 1.0 } else { f64::from(factor.lower[k * n + j]) };
            for (a, b) in (0..n).flat_map(|i| [(i, i), (i, (i * 7 + 3) % n)]) {
                let sum: f64 = (a.max(b)..n).map(|k| u(a, k) * f64::from(factor.diagonal[k]) * u(b, k)).sum();
                let expected = h[factor.order[a] * n + factor.order[b]];
                // Sums of n terms in f32, each rounded at 6e-8 of the largest.
                let bound = f64::from(largest) * 1e-7 * (n as f64 + 10.0);
                assert!((sum - f64::from(expected)).abs() < bound, "{n}: {sum} {expected}");
            }
            let energies: Vec<f32> = factor.order.iter().map(|i| h[i * n + i]).collect();
            assert!(energies.is_sorted_by(|a, b| a >= b), "{n}: what matters most comes first");
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let h = moments(700, 800);
        let [one, three] = [1, 3].map(|threads| Factor::new(&h, 700, 0.01, &Context::new(threads)).unwrap());
        assert_eq!(one.lower, three.lower);
        assert_eq!(one.diagonal, three.diagonal);
    }

    #[test]
    fn moments_that_are_none_are_refused() {
        let context = Context::new(1);
        let message = |h: &[f32], n| Factor::new(h, n, 0.0, &context).unwrap_err().to_string();
        assert!(message(&[1.0, 2.0, 2.0, 1.0], 2).contains("column"), "not definite");
        assert!(message(&[1.0, f32::NAN, 0.0, 1.0], 2).contains("column 1"));
        assert!(message(&[1.0; 3], 2).contains("expected 4"));
        // Nothing was ever seen: all columns are alike.
        let factor = Factor::new(&[0.0; 4], 2, 0.01, &context).unwrap();
        assert!(factor.diagonal.iter().all(|d| *d > 0.0));
    }
}
