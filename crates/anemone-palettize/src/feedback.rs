//! Rounding in which each column makes up for the errors of those before it.

use std::sync::{Mutex, PoisonError};

use anemone_kernels::{Context, Input, Product, matmul};
use half::f16;

use crate::factor::{dot, view};
use crate::{Counter, Distortion, Error, Factor, Fitter, Importance, Matrix, Palettized, Scheme};

/// Columns rounded before their errors are passed on to all that follow.
const BLOCK: usize = 128;
/// Weights whose sums are held at once.
const CHUNK: usize = 4 << 20;

/// What palettizes with the moments of a map's input in view.
#[derive(Debug, Clone, Copy)]
pub struct Feedback<'a> {
    /// The factor of the moments, of as many columns as the matrix.
    pub factor: &'a Factor,
    /// Times tables are fitted and all weights rounded; after the first to what the weights and the errors before them ask for. The
    /// best of a group's rounds counts. At least one.
    pub rounds: usize,
}

/// One round's result for every group.
struct Round {
    tables: Vec<Vec<f16>>,
    /// In the factor's order of columns.
    codes: Vec<u8>,
    /// What each weight was rounded from, in the same order.
    targets: Vec<f16>,
    /// Squared error of the map's output.
    errors: Vec<f64>,
}

/// Makes codes and tables of single numbers that keep the output of the map near, `e H eᵀ` for each row's errors.
///
/// Neither the number of threads nor the rows around a group change its result. `progress` is told the number of weights done.
pub fn palettize_with_feedback(
    matrix: Matrix<'_>,
    scheme: &Scheme,
    feedback: Feedback<'_>,
    context: &Context,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Palettized, Error> {
    scheme.check()?;
    let (rows, columns, factor) = (matrix.rows(), matrix.columns(), feedback.factor);
    if scheme.vector != 1 {
        return Err(Error::FeedbackVector { vector: scheme.vector });
    }
    if factor.len() != columns {
        return Err(Error::Length { what: "the factor", found: factor.len(), expected: columns });
    }
    let group_rows = scheme.group_rows(rows)?;
    let weights: Vec<f16> = matrix
        .values()
        .chunks_exact(columns)
        .flat_map(|row| factor.order.iter().map(|column| row[*column]))
        .collect();
    let rounds = feedback.rounds.max(1);
    let share = matrix.values().len() / rounds;
    let mut best = round(&weights, &weights, group_rows, scheme, factor, context);
    progress(matrix.values().len() - share * (rounds - 1));
    let block = group_rows * columns;
    let mut targets = std::mem::take(&mut best.targets);
    for _ in 1..rounds {
        let next = round(&weights, &targets, group_rows, scheme, factor, context);
        for (g, table) in next.tables.into_iter().enumerate() {
            if next.errors[g] < best.errors[g] {
                best.errors[g] = next.errors[g];
                best.tables[g] = table;
                best.codes[g * block..(g + 1) * block]
                    .copy_from_slice(&next.codes[g * block..(g + 1) * block]);
            }
        }
        targets = next.targets;
        progress(share);
    }
    let mut codes = vec![0; best.codes.len()];
    for (out, row) in codes.chunks_exact_mut(columns).zip(best.codes.chunks_exact(columns)) {
        for (code, column) in row.iter().zip(&factor.order) {
            out[*column] = *code;
        }
    }
    let mut distortion = Distortion::default();
    for (at, (value, code)) in matrix.values().iter().zip(&codes).enumerate() {
        distortion.count(*value, best.tables[at / block][usize::from(*code)], 1.0, 0.0);
    }
    distortion.weighted = best.errors.iter().sum();
    Ok(Palettized {
        bits: scheme.bits,
        group_rows,
        vector: 1,
        columns,
        codes,
        tables: best.tables.concat(),
        distortion,
        unrounded: distortion.weighted,
    })
}

/// Fits a table to each group's `targets` and rounds the weights with it.
fn round(
    weights: &[f16],
    targets: &[f16],
    group_rows: usize,
    scheme: &Scheme,
    factor: &Factor,
    context: &Context,
) -> Round {
    let n = factor.len();
    let block = group_rows * n;
    let tables = tables(targets, block, scheme, factor, context);
    let mut round = Round {
        errors: vec![0.0; tables.len()],
        codes: vec![0; weights.len()],
        targets: vec![f16::ZERO; weights.len()],
        tables,
    };
    // Half way between neighbours; what lies on it goes to the lower.
    let bounds: Vec<Vec<f32>> = round
        .tables
        .iter()
        .map(|table| table.windows(2).map(|w| 0.5 * (w[0].to_f32() + w[1].to_f32())).collect())
        .collect();
    let held = (CHUNK / n).max(1) * n;
    let mut first = 0;
    let parts = weights.chunks(held).zip(round.codes.chunks_mut(held)).zip(round.targets.chunks_mut(held));
    for ((weights, codes), targets) in parts {
        let rows: Vec<Row<'_>> = (first..)
            .zip(weights.chunks_exact(n).zip(codes.chunks_exact_mut(n)).zip(targets.chunks_exact_mut(n)))
            .map(|(row, ((weights, codes), targets))| {
                let group = row / group_rows;
                let (table, bounds) = (&round.tables[group][..], &bounds[group][..]);
                Row { weights, codes, targets, table, bounds, error: 0.0 }
            })
            .collect();
        let count = rows.len();
        for (row, error) in (first..).zip(pass(rows, factor, context)) {
            round.errors[row / group_rows] += error;
        }
        first += count;
    }
    round
}

/// The tables of all groups.
fn tables(
    targets: &[f16],
    block: usize,
    scheme: &Scheme,
    factor: &Factor,
    context: &Context,
) -> Vec<Vec<f16>> {
    let groups: Vec<&[f16]> = targets.chunks_exact(block).collect();
    let tables: Vec<Mutex<Vec<f16>>> = groups.iter().map(|_| Mutex::default()).collect();
    let threads = context.pool().threads();
    let scratch: Vec<Mutex<(Counter, Fitter)>> = (0..threads).map(|_| Mutex::default()).collect();
    context.pool().run(groups.len(), &|thread, group| {
        let mut scratch = scratch[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let (counter, fitter) = &mut *scratch;
        let importance = Importance::Columns(&factor.diagonal);
        let histogram = counter.histogram(groups[group], factor.len(), importance);
        let table = fitter.fit(&histogram, scheme.entries(), scheme.method);
        *tables[group].lock().unwrap_or_else(PoisonError::into_inner) = table.entries;
    });
    tables.into_iter().map(|t| t.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

struct Row<'a> {
    weights: &'a [f16],
    codes: &'a mut [u8],
    targets: &'a mut [f16],
    table: &'a [f16],
    bounds: &'a [f32],
    error: f64,
}

/// Rounds some rows column by column; gives the squared error of each row's output.
fn pass(rows: Vec<Row<'_>>, factor: &Factor, context: &Context) -> Vec<f64> {
    let (n, count) = (factor.len(), rows.len());
    // What the errors so far ask of the columns to come.
    let mut asked = vec![0.0f32; count * n];
    let mut errors = vec![0.0f32; count * BLOCK.min(n)];
    let mut product = vec![0.0f32; count * n];
    let rows: Vec<Mutex<Row<'_>>> = rows.into_iter().map(Mutex::new).collect();
    for start in (0..n).step_by(BLOCK) {
        let end = (start + BLOCK).min(n);
        let width = end - start;
        let errors = &mut errors[..count * width];
        let own: Vec<Mutex<&mut [f32]>> = errors.chunks_exact_mut(width).map(Mutex::new).collect();
        let asked_of = &asked;
        context.pool().run(count, &|_, r| {
            let mut row = rows[r].lock().unwrap_or_else(PoisonError::into_inner);
            let mut errors = own[r].lock().unwrap_or_else(PoisonError::into_inner);
            row.round(start, &asked_of[r * n + start..r * n + end], &mut errors, factor);
        });
        drop(own);
        if end == n {
            break;
        }
        let left = n - end;
        let passed: Vec<f32> =
            factor.lower[end * n..].chunks_exact(n).flat_map(|row| &row[start..end]).copied().collect();
        let out = &mut product[..count * left];
        let weight = view(&passed, left, width);
        matmul(context, Input::F32(errors), count, &mut [Product { weight, bias: None, out }]);
        for (asked, product) in asked.chunks_exact_mut(n).zip(out.chunks_exact(left)) {
            for (asked, product) in asked[end..].iter_mut().zip(product) {
                *asked += product;
            }
        }
    }
    rows.into_iter().map(|row| row.into_inner().unwrap_or_else(PoisonError::into_inner).error).collect()
}

impl Row<'_> {
    /// Rounds the columns `start..`, one for each of `errors`.
    fn round(&mut self, start: usize, asked: &[f32], errors: &mut [f32], factor: &Factor) {
        let n = factor.len();
        for (i, asked) in asked.iter().enumerate() {
            let k = start + i;
            let inside = dot(&errors[..i], &factor.lower[k * n + start..k * n + k]) as f32;
            let weight = self.weights[k].to_f32();
            let target = weight + asked + inside;
            let code = self.bounds.partition_point(|bound| *bound < target);
            let entry = self.table[code].to_f32();
            errors[i] = weight - entry;
            self.codes[k] = code as u8;
            // A table holds fp16 numbers, so nothing beyond them is worth aiming at.
            self.targets[k] = f16::from_f32(target.clamp(-65504.0, 65504.0));
            self.error += f64::from(factor.diagonal[k]) * f64::from(target - entry).powi(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Method, palettize};

    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        }
    }

    /// Moments of inputs whose neighbours move together, some louder than others.
    fn moments(n: usize) -> Vec<f32> {
        let mut noise = Noise(3);
        let mut h = vec![0.0f32; n * n];
        for _ in 0..2 * n {
            let mut x: Vec<f32> = (0..n).map(|i| noise.next() * if i % 7 == 0 { 4.0 } else { 1.0 }).collect();
            for i in 1..n {
                x[i] += 0.8 * x[i - 1];
            }
            for i in 0..n {
                for j in 0..n {
                    h[i * n + j] += x[i] * x[j];
                }
            }
        }
        h
    }

    fn weights(rows: usize, n: usize) -> Vec<f16> {
        let mut noise = Noise(5);
        (0..rows * n).map(|_| f16::from_f32((noise.next() + noise.next() + noise.next()) / 10.0)).collect()
    }

    /// `Σ e H eᵀ` over rows, the plain way.
    fn output_error(values: &[f16], decoded: &[f16], h: &[f32], n: usize) -> f64 {
        let rows = values.chunks_exact(n).zip(decoded.chunks_exact(n));
        rows.map(|(w, q)| {
            let e: Vec<f64> = w.iter().zip(q).map(|(w, q)| w.to_f64() - q.to_f64()).collect();
            let he = |i: usize| (0..n).map(|j| f64::from(h[i * n + j]) * e[j]).sum::<f64>();
            (0..n).map(|i| e[i] * he(i)).sum::<f64>()
        })
        .sum()
    }

    #[test]
    fn outputs_stay_nearer_than_weights_alone_would_keep_them() {
        let (rows, n) = (64, 200);
        let (values, h) = (weights(rows, n), moments(n));
        let matrix = Matrix::new(&values, rows, n).unwrap();
        let context = Context::new(2);
        let factor = Factor::new(&h, n, 0.0, &context).unwrap();
        for bits in [3, 4, 6] {
            let scheme = Scheme::new(bits, Some(32), Method::Fast);
            let plain = palettize(matrix, &scheme, Importance::Equal, context.pool(), &|_| ()).unwrap();
            let plain = output_error(&values, &plain.decode(), &h, n);
            let mut last = f64::INFINITY;
            for rounds in [1, 3] {
                let feedback = Feedback { factor: &factor, rounds };
                let with = palettize_with_feedback(matrix, &scheme, feedback, &context, &|_| ()).unwrap();
                let measured = output_error(&values, &with.decode(), &h, n);
                // Both are the same sum, in f32 and in f64.
                assert!((with.unrounded / measured - 1.0).abs() < 1e-3, "{} {measured}", with.unrounded);
                assert!(measured < 0.35 * plain, "{bits} bits, {rounds} rounds: {measured} of {plain}");
                assert!(with.unrounded <= last);
                last = with.unrounded;
            }
        }
    }

    #[test]
    fn inputs_that_do_not_move_together_ask_for_nothing() {
        let (rows, n) = (8, 70);
        let values = weights(rows, n);
        let matrix = Matrix::new(&values, rows, n).unwrap();
        let context = Context::new(1);
        let h: Vec<f32> = (0..n * n).map(|i| if i / n == i % n { 2.0 } else { 0.0 }).collect();
        let factor = Factor::new(&h, n, 0.0, &context).unwrap();
        for group in [None, Some(4)] {
            let scheme = Scheme::new(4, group, Method::Exact);
            let feedback = Feedback { factor: &factor, rounds: 1 };
            let with = palettize_with_feedback(matrix, &scheme, feedback, &context, &|_| ()).unwrap();
            let plain = palettize(matrix, &scheme, Importance::Equal, context.pool(), &|_| ()).unwrap();
            assert_eq!((&with.codes, &with.tables), (&plain.codes, &plain.tables));
            assert!((with.distortion.squared / plain.distortion.squared - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn neither_threads_nor_neighbours_change_a_group() {
        let (rows, n) = (96, 150);
        let values = weights(rows, n);
        let factor = Factor::new(&moments(n), n, 0.01, &Context::new(1)).unwrap();
        let scheme = Scheme::new(4, Some(32), Method::Fast);
        let run = |rows: usize, threads| {
            let matrix = Matrix::new(&values[..rows * n], rows, n).unwrap();
            let feedback = Feedback { factor: &factor, rounds: 2 };
            palettize_with_feedback(matrix, &scheme, feedback, &Context::new(threads), &|_| ()).unwrap()
        };
        let [one, three, first] = [run(96, 1), run(96, 3), run(32, 2)];
        assert_eq!(one, three);
        assert_eq!(first.codes, one.codes[..32 * n]);
        assert_eq!(first.tables, one.tables[..16]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let values = weights(4, 6);
        let matrix = Matrix::new(&values, 4, 6).unwrap();
        let context = Context::new(1);
        let factor = Factor::new(&[1.0], 1, 0.0, &context).unwrap();
        let feedback = Feedback { factor: &factor, rounds: 1 };
        let run = |scheme| palettize_with_feedback(matrix, &scheme, feedback, &context, &|_| ()).unwrap_err();
        let scheme = Scheme::new(4, None, Method::Fast);
        assert!(run(scheme).to_string().contains("the factor has 1 elements, expected 6"));
        assert!(run(Scheme { vector: 2, ..scheme }).to_string().contains("vectors of 2"));
    }
}
