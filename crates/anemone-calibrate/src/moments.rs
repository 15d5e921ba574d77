use anemone_kernels::{Context, Input, MatrixView, Product, matmul};
use anemone_tensor::DType;

/// Rows updated together, which bounds the memory of a step.
const STRIPE: usize = 512;

/// Second moments of a map's input, `Σ xᵀx` over tokens.
#[derive(Debug, Clone)]
pub struct Moments {
    features: usize,
    tokens: u64,
    /// `[features, features]`, kept in the lower triangle.
    sums: Vec<f32>,
}

impl Moments {
    /// Of no token yet.
    pub fn new(features: usize) -> Self {
        Self { features, tokens: 0, sums: vec![0.0; features * features] }
    }

    /// Adds the inputs `[tokens, features]`. The result does not depend on the number of threads.
    pub fn add(&mut self, x: &[f32], context: &Context) {
        let n = self.features;
        assert!(n > 0 && x.len().is_multiple_of(n), "whole tokens");
        let tokens = x.len() / n;
        if tokens == 0 {
            return;
        }
        let mut across = vec![0.0f32; x.len()];
        for (t, x) in x.chunks_exact(n).enumerate() {
            for (i, v) in x.iter().enumerate() {
                across[i * tokens + t] = *v;
            }
        }
        let mut product = vec![0.0f32; STRIPE.min(n) * n];
        for first in (0..n).step_by(STRIPE) {
            let count = STRIPE.min(n - first);
            // Columns beyond the diagonal are those of other rows.
            let columns = first + count;
            let bytes = bytemuck::cast_slice(&across[..columns * tokens]);
            let weight = MatrixView::from_bytes(DType::F32, bytes, columns, tokens).expect("lengths agree");
            let out = &mut product[..count * columns];
            let x = Input::F32(&across[first * tokens..(first + count) * tokens]);
            matmul(context, x, count, &mut [Product { weight, bias: None, out }]);
            let rows = self.sums[first * n..(first + count) * n].chunks_exact_mut(n);
            for (sums, product) in rows.zip(out.chunks_exact(columns)) {
                for (sum, p) in sums.iter_mut().zip(product) {
                    *sum += p;
                }
            }
        }
        self.tokens += tokens as u64;
    }

    /// Features of the input.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Tokens seen.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// [`Moments::of_columns`] as far as so many tokens can be believed: of what two features have in common, the part
    /// `tokens / (tokens + features)` is kept. Few tokens show much that other text does not.
    pub fn shrunk(&self, columns: std::ops::Range<usize>) -> Vec<f32> {
        let (n, tokens) = (columns.len(), self.tokens as f64);
        let kept = (tokens / (tokens + self.features as f64)) as f32;
        let mut moments = self.of_columns(columns);
        for (i, row) in moments.chunks_exact_mut(n.max(1)).enumerate() {
            for (_, v) in row.iter_mut().enumerate().filter(|(j, _)| *j != i) {
                *v *= kept;
            }
        }
        moments
    }

    /// `[features, features]`, symmetric; of the `columns` alone.
    pub fn of_columns(&self, columns: std::ops::Range<usize>) -> Vec<f32> {
        let n = self.features;
        let at = |i: usize, j: usize| self.sums[i.max(j) * n + i.min(j)];
        columns.clone().flat_map(|i| columns.clone().map(move |j| at(i, j))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_sums_of_products() {
        // More than a stripe, so that its edge is crossed.
        let n = 600;
        let x: Vec<f32> = (0..5 * n).map(|i| ((i * 37 + i / 11) % 19) as f32 - 9.0).collect();
        for threads in [1, 3] {
            let context = Context::new(threads);
            let mut moments = Moments::new(n);
            moments.add(&x[..2 * n], &context);
            moments.add(&x[2 * n..], &context);
            assert_eq!((moments.features(), moments.tokens()), (n, 5));
            let part = moments.of_columns(500..600);
            for (i, j) in (0..100).flat_map(|i| [(i, i), (i, (i * 7 + 3) % 100)]) {
                let expected: f32 = x.chunks_exact(n).map(|x| x[500 + i] * x[500 + j]).sum();
                // Small integers: exact in any order.
                assert_eq!(part[i * 100 + j], expected);
            }
            let shrunk = moments.shrunk(500..600);
            assert_eq!(shrunk[7 * 100 + 7], part[7 * 100 + 7]);
            assert_eq!(shrunk[7 * 100 + 9], part[7 * 100 + 9] * (5.0 / 605.0) as f32);
        }
    }
}
