//! Tables of vectors along output channels, by k-means from a deterministic spread of starts.

use half::f16;

use crate::Importance;

/// Most rounds of moving entries to the means of their vectors.
const ROUNDS: usize = 25;
/// A round that lowers the error by less than this part of it is the last.
const PROGRESS: f64 = 1e-4;
/// Vectors beyond which a start is drawn from a regular sample of them.
const SAMPLE: usize = 1 << 14;

/// Place of part `part` of vector `i` in rows of `columns`, vectors running along `n` rows.
pub(crate) fn place(i: usize, part: usize, columns: usize, n: usize) -> usize {
    (i / columns * n + part) * columns + i % columns
}

/// Vectors of `n` consecutive rows, and the importance of each of their numbers.
pub(crate) fn gather(
    values: &[f16],
    columns: usize,
    n: usize,
    importance: Importance<'_>,
) -> (Vec<f32>, Vec<f32>) {
    let places =
        || (0..values.len() / n).flat_map(move |i| (0..n).map(move |part| place(i, part, columns, n)));
    let points = places().map(|at| values[at].to_f32()).collect();
    (points, places().map(|at| importance.of(at, columns) as f32).collect())
}

/// A table of `entries` vectors of `n` numbers rounded to fp16, each vector's code, and the weighted squared error before rounding.
pub(crate) fn fit(
    points: &[f32],
    weights: &[f32],
    n: usize,
    entries: usize,
    codes: &mut [u8],
) -> (Vec<f16>, f64) {
    match n {
        2 => fit_sized::<2>(points.as_chunks().0, weights.as_chunks().0, entries, codes),
        _ => fit_sized::<4>(points.as_chunks().0, weights.as_chunks().0, entries, codes),
    }
}

fn fit_sized<const N: usize>(
    points: &[[f32; N]],
    weights: &[[f32; N]],
    entries: usize,
    codes: &mut [u8],
) -> (Vec<f16>, f64) {
    let mut table = spread(points, weights, entries);
    let mut last = f64::INFINITY;
    for _ in 0..ROUNDS {
        let error = assign(points, weights, &table, codes);
        if error >= last * (1.0 - PROGRESS) {
            break;
        }
        last = error;
        means(points, weights, codes, &mut table);
    }
    let unrounded = assign(points, weights, &table, codes);
    // In order of their first number, so that equal weights give equal tables.
    table.sort_by(|a, b| {
        a.iter().zip(b).map(|(a, b)| a.total_cmp(b)).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    });
    let rounded: Vec<[f32; N]> = table.iter().map(|e| e.map(|v| f16::from_f32(v).to_f32())).collect();
    assign(points, weights, &rounded, codes);
    (rounded.into_iter().flatten().map(f16::from_f32).collect(), unrounded)
}

fn distance<const N: usize>(a: &[f32; N], b: &[f32; N], weight: &[f32; N]) -> f32 {
    let mut sum = 0.0;
    for i in 0..N {
        sum += weight[i] * (a[i] - b[i]) * (a[i] - b[i]);
    }
    sum
}

/// Nearest entry of each vector, the first of several as near; the weighted squared error.
fn assign<const N: usize>(
    points: &[[f32; N]],
    weights: &[[f32; N]],
    table: &[[f32; N]],
    codes: &mut [u8],
) -> f64 {
    let mut total = 0.0;
    for ((point, weight), code) in points.iter().zip(weights).zip(codes) {
        let mut best = (f32::INFINITY, 0);
        for (i, entry) in table.iter().enumerate() {
            let d = distance(point, entry, weight);
            if d < best.0 {
                best = (d, i);
            }
        }
        *code = best.1 as u8;
        total += f64::from(best.0);
    }
    total
}

/// Moves entries to the weighted means of their vectors; one without any goes where the error is largest.
fn means<const N: usize>(points: &[[f32; N]], weights: &[[f32; N]], codes: &[u8], table: &mut [[f32; N]]) {
    let mut sums = vec![[[0f64; 2]; N]; table.len()];
    for ((point, weight), code) in points.iter().zip(weights).zip(codes) {
        for (sum, (p, w)) in sums[usize::from(*code)].iter_mut().zip(point.iter().zip(weight)) {
            sum[0] += f64::from(*p) * f64::from(*w);
            sum[1] += f64::from(*w);
        }
    }
    let mut used = vec![false; table.len()];
    for code in codes {
        used[usize::from(*code)] = true;
    }
    let old = table.to_vec();
    for (entry, sums) in table.iter_mut().zip(&sums) {
        for (v, [sum, weight]) in entry.iter_mut().zip(sums) {
            if *weight > 0.0 {
                *v = (sum / weight) as f32;
            }
        }
    }
    if used.iter().all(|u| *u) {
        return;
    }
    let mut worst: Vec<(f32, usize)> = (points.iter().zip(weights).zip(codes).enumerate())
        .map(|(i, ((p, w), c))| (distance(p, &old[usize::from(*c)], w), i))
        .collect();
    worst.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for ((_, i), entry) in worst.into_iter().zip(table.iter_mut().zip(used).filter(|(_, used)| !used)) {
        *entry.0 = points[i];
    }
}

/// Starts spread over the vectors: each the one of a few drawn by its distance from those before that lowers the error most.
fn spread<const N: usize>(points: &[[f32; N]], weights: &[[f32; N]], entries: usize) -> Vec<[f32; N]> {
    const TRIALS: usize = 3;
    let step = points.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<(&[f32; N], &[f32; N])> = points.iter().zip(weights).step_by(step).collect();
    let Some((first, _)) = sample.get(sample.len() / 2) else { return vec![[0.0; N]; entries] };
    let mut table = vec![**first];
    let mut far: Vec<f32> = sample.iter().map(|(p, w)| distance(p, first, w)).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = || {
        // SplitMix64: the same starts for the same weights.
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    while table.len() < entries {
        let mut sums = Vec::with_capacity(far.len());
        let mut total = 0.0;
        sums.extend(far.iter().map(|d| {
            total += f64::from(*d);
            total
        }));
        if total <= 0.0 {
            // Every vector has an entry already.
            let last = table[table.len() - 1];
            table.resize(entries, last);
            break;
        }
        let trial = |at: usize| -> (f64, Vec<f32>, usize) {
            let next: Vec<f32> =
                (sample.iter().zip(&far)).map(|((p, w), d)| d.min(distance(p, sample[at].0, w))).collect();
            (next.iter().map(|d| f64::from(*d)).sum(), next, at)
        };
        let mut best: Option<(f64, Vec<f32>, usize)> = None;
        for _ in 0..TRIALS {
            let goal = draw() * total;
            let at = sums.partition_point(|s| *s <= goal).min(sample.len() - 1);
            let found = trial(at);
            if best.as_ref().is_none_or(|b| found.0 < b.0) {
                best = Some(found);
            }
        }
        if let Some((_, next, at)) = best {
            far = next;
            table.push(*sample[at].0);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_that_stand_apart_are_found() {
        let centres = [[0.0f32, 0.0], [8.0, 0.0], [0.0, 8.0], [8.0, 8.0]];
        let points: Vec<[f32; 2]> = (0..400)
            .map(|i| {
                let (c, j) = (centres[i % 4], (i / 4) as f32 / 100.0 - 0.5);
                [c[0] + j, c[1] - j]
            })
            .collect();
        let mut codes = vec![0; points.len()];
        let (table, error) = fit(points.as_flattened(), &vec![1.0; 800], 2, 4, &mut codes);
        let expected = [[0.0, 0.0], [0.0, 8.0], [8.0, 0.0], [8.0, 8.0]];
        for (entry, expected) in table.chunks(2).zip(expected) {
            // The mean of (i / 100 - 0.5) over 100 steps is -0.005.
            assert!((entry[0].to_f32() - expected[0] + 0.005).abs() < 0.01, "{table:?}");
            assert!((entry[1].to_f32() - expected[1] - 0.005).abs() < 0.01, "{table:?}");
        }
        assert!(codes.iter().enumerate().all(|(i, c)| *c == [0, 2, 1, 3][i % 4]));
        // Twice the variance of 100 even steps of 0.01, 400 times.
        assert!((error - 400.0 * 2.0 * (1e4 - 1.0) / 12.0 * 1e-4).abs() < 1e-2, "{error}");
    }

    #[test]
    fn fewer_vectors_than_entries_are_kept() {
        let points = [1.0f32, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0];
        let mut codes = [9; 2];
        let (table, error) = fit(&points, &[1.0; 8], 4, 4, &mut codes);
        assert_eq!((error, codes), (0.0, [0, 0]));
        assert_eq!(table[..4].iter().map(|v| v.to_f32()).collect::<Vec<_>>(), &points[..4]);
        assert_eq!(fit(&[], &[], 2, 2, &mut []).0, [f16::ZERO; 4]);
    }
}
