//! Tables of single numbers.

use half::f16;

use crate::cuts::{Search, Sum, cost, mean, sums};
use crate::{Histogram, Method};

/// Places between which a fast fit chooses its cuts, for each entry of the table.
const PLACES: usize = 6;
/// The same for a whole table, at least.
const LEAST_PLACES: usize = 256;
/// Rounds of moving cuts between means after that.
const ROUNDS: usize = 3;
/// How far above a proven bound the error of a fast fit may be; beyond it the best is searched.
pub(crate) const FAST: f64 = 1.01;

/// Memory that fitting needs, to be used again.
#[derive(Debug, Default)]
pub struct Fitter {
    search: Search,
}

/// A table for one group.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Entries, ascending; where there are fewer distinct weights than entries, the last is repeated.
    pub entries: Vec<f16>,
    /// Squared error, each weight times its importance, before the entries were rounded to fp16.
    pub unrounded: f64,
}

impl Fitter {
    /// The table of `entries` entries for the numbers of a histogram, with respect to its importances.
    pub fn fit(&mut self, histogram: &Histogram, entries: usize, method: Method) -> Table {
        let matters = |(value, weight): (&f16, &f64)| (*weight > 0.0).then(|| (value.to_f64(), *weight));
        let (values, weights): (Vec<f64>, Vec<f64>) =
            histogram.values.iter().zip(&histogram.weights).filter_map(matters).unzip();
        if values.is_empty() {
            // Nothing matters; any table is as good.
            let least = histogram.values.first().copied().unwrap_or(f16::ZERO);
            return Table { entries: vec![least; entries], unrounded: 0.0 };
        }
        if method == Method::Uniform {
            return uniform(histogram, entries);
        }
        let sums = sums(&values, &weights);
        let measure = measure(&values, &weights);
        let n = values.len();
        let total = measure[n];
        // What one cluster more saves by high-rate theory: the error falls with the square of the entries.
        let price = total.powi(3) / (6.0 * (entries as f64).powi(3));
        let wanted = (PLACES * entries).max(LEAST_PLACES);
        let coarse = if method == Method::Fast && n > 2 * wanted {
            self.coarse(&sums, &values, &measure, wanted, entries, price)
        } else {
            Err(price)
        };
        let cuts = coarse.unwrap_or_else(|price| self.search.optimal(&sums, entries, price).0);
        let clusters = || cuts.windows(2).map(|c| (&sums[c[0]], &sums[c[1]]));
        let unrounded = clusters().map(|(a, b)| cost(a, b)).sum();
        let mut table: Vec<f16> = clusters().filter_map(|(a, b)| mean(a, b)).map(f16::from_f64).collect();
        let last = table.last().copied().unwrap_or(f16::ZERO);
        table.resize(entries, last);
        Table { entries: table, unrounded }
    }
}

impl Fitter {
    /// Cuts between some places only, moved between means; the price to search the best with where they are not good enough.
    fn coarse(
        &mut self,
        sums: &[Sum],
        values: &[f64],
        measure: &[f64],
        wanted: usize,
        entries: usize,
        price: f64,
    ) -> Result<Vec<usize>, f64> {
        let places = places(measure, wanted);
        let some: Vec<Sum> = places.iter().map(|p| sums[*p]).collect();
        let (cuts, price) = self.search.optimal(&some, entries, price);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| places[c]).collect();
        (0..ROUNDS).for_each(|_| between_means(&mut cuts, sums, values));
        let error: f64 = cuts.windows(2).map(|c| cost(&sums[c[0]], &sums[c[1]])).sum();
        let good = cuts.len() == entries + 1 && error <= FAST * self.search.bound(sums, entries, price);
        if good { Ok(cuts) } else { Err(price) }
    }
}

/// Entries at equal distances from the least to the largest number.
fn uniform(histogram: &Histogram, entries: usize) -> Table {
    let (Some(least), Some(most)) = (histogram.values.first(), histogram.values.last()) else {
        return Table { entries: vec![f16::ZERO; entries], unrounded: 0.0 };
    };
    let (least, step) = (least.to_f64(), (most.to_f64() - least.to_f64()) / (entries - 1) as f64);
    let exact: Vec<f64> = (0..entries).map(|i| least + step * i as f64).collect();
    let mut unrounded = 0.0;
    for (value, weight) in histogram.values.iter().zip(&histogram.weights) {
        let place = if step > 0.0 { ((value.to_f64() - least) / step).round() as usize } else { 0 };
        unrounded += weight * (value.to_f64() - exact[place.min(entries - 1)]).powi(2);
    }
    Table { entries: exact.into_iter().map(f16::from_f64).collect(), unrounded }
}

/// For each number, the cube root of the density integrated up to it: good entries are equally many in equal parts of it.
fn measure(values: &[f64], weights: &[f64]) -> Vec<f64> {
    let n = values.len();
    let mut sum = 0.0;
    let mut measure = Vec::with_capacity(n + 1);
    measure.push(0.0);
    for i in 0..n {
        let (left, right) = (values[i.saturating_sub(1)], values[(i + 1).min(n - 1)]);
        let sides = if i == 0 || i + 1 == n { 1.0 } else { 0.5 };
        let gap = ((right - left) * sides).max(f64::MIN_POSITIVE);
        sum += (weights[i] * gap * gap).cbrt();
        measure.push(sum);
    }
    measure
}

/// About `count` different places, first and last included, in equal parts of the measure.
fn places(measure: &[f64], count: usize) -> Vec<usize> {
    let (n, total) = (measure.len() - 1, measure[measure.len() - 1]);
    let mut places = Vec::with_capacity(count + 1);
    places.push(0);
    let (mut at, mut next) = (0, 1);
    while at < n {
        let goal = total * next as f64 / count as f64;
        at = (at + 1 + measure[at + 1..].partition_point(|m| *m < goal)).min(n);
        places.push(at);
        next = ((measure[at] / total * count as f64) as usize).max(next) + 1;
    }
    places
}

/// Moves every cut to the middle between the means beside it; no cluster gets empty.
fn between_means(cuts: &mut [usize], sums: &[Sum], values: &[f64]) {
    let k = cuts.len() - 1;
    let means: Vec<Option<f64>> = cuts.windows(2).map(|c| mean(&sums[c[0]], &sums[c[1]])).collect();
    for i in 1..k {
        let (Some(a), Some(b)) = (means[i - 1], means[i]) else { continue };
        let (low, high) = (cuts[i - 1] + 1, cuts[i + 1] - 1);
        let middle = 0.5 * (a + b);
        cuts[i] = low + values[low..high].partition_point(|v| *v < middle);
    }
}

/// The nearest entry of an ascending table for each of ascending numbers; of two as near, and of equal ones, the first.
pub fn nearest(entries: &[f16], values: &[f16]) -> Vec<u8> {
    let wide: Vec<f64> = entries.iter().map(|e| e.to_f64()).collect();
    let mut at = 0;
    let code = |value: &f16| {
        let value = value.to_f64();
        let mut next = at + 1;
        while next < wide.len() {
            if (wide[next] - value).abs() < (value - wide[at]).abs() {
                at = next;
            } else if wide[next] > wide[at] {
                break;
            }
            next += 1;
        }
        at as u8
    };
    values.iter().map(code).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, Importance};
    use proptest::prelude::*;

    fn histogram(values: &[f16]) -> Histogram {
        Counter::default().histogram(values, 1, Importance::Equal)
    }

    fn halves(values: impl IntoIterator<Item = f32>) -> Vec<f16> {
        values.into_iter().map(f16::from_f32).collect()
    }

    proptest! {
        #[test]
        fn the_nearest_entry_is_found(
            mut entries in prop::collection::vec(-50i16..50, 1..20), mut values in prop::collection::vec(-80i16..80, 0..40)
        ) {
            entries.sort_unstable();
            values.sort_unstable();
            let (table, numbers) = (halves(entries.iter().map(|e| f32::from(*e) / 8.0)), halves(values.iter().map(|v| f32::from(*v) / 8.0)));
            for (code, value) in nearest(&table, &numbers).into_iter().zip(&values) {
                let expected = (0..entries.len()).min_by_key(|i| entries[*i].abs_diff(*value)).unwrap();
                prop_assert_eq!(usize::from(code), expected);
            }
        }
    }

    #[test]
    fn few_distinct_weights_are_kept_as_they_are() {
        let h = histogram(&halves([0.5, -3.0, 0.5, 8.0]));
        for method in [Method::Exact, Method::Fast] {
            let table = Fitter::default().fit(&h, 4, method);
            assert_eq!(table.entries, halves([-3.0, 0.5, 8.0, 8.0]), "{method:?}");
            assert_eq!(table.unrounded, 0.0);
        }
        assert_eq!(Fitter::default().fit(&Histogram::default(), 2, Method::Fast).entries, [f16::ZERO; 2]);
    }

    #[test]
    fn uniform_entries_reach_from_end_to_end() {
        let h = histogram(&halves([-1.0, 0.1, 2.0]));
        let table = Fitter::default().fit(&h, 4, Method::Uniform);
        assert_eq!(table.entries, halves([-1.0, 0.0, 1.0, 2.0]));
        let alike = histogram(&halves([3.0; 5]));
        assert_eq!(Fitter::default().fit(&alike, 2, Method::Uniform).entries, halves([3.0; 2]));
    }

    #[test]
    fn weights_that_do_not_matter_have_no_say() {
        let values = halves([1.0, 1.25, 9.0, 9.25]);
        let h = Counter::default().histogram(&values, 4, Importance::Columns(&[1.0, 3.0, 0.0, 0.0]));
        assert_eq!(Fitter::default().fit(&h, 2, Method::Exact).entries, halves([1.0, 1.25]));
        let h = Counter::default().histogram(&values, 4, Importance::Columns(&[0.0; 4]));
        assert_eq!(Fitter::default().fit(&h, 2, Method::Exact).unrounded, 0.0);
    }
}
