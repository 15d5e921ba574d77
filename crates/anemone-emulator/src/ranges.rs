//! What sums of products came to while functions ran.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use anemone_tensor::DType;

use crate::accumulate::Accumulator;
use crate::value::widen;

/// Rows and tokens of an operation whose products are looked at one by one, in each call.
const SAMPLED: [usize; 2] = [16, 4];

/// What sums of products came to, by package and operation; clones share it. See
/// [`Emulator::with_ranges`](crate::Emulator::with_ranges).
#[derive(Debug, Clone, Default)]
pub struct Ranges(Arc<Mutex<BTreeMap<String, Seen>>>);

#[derive(Debug, Default)]
struct Seen {
    range: Range,
    /// Weights that were looked at, by address.
    weights: BTreeSet<usize>,
    longest_row: f64,
}

/// What the sums of one operation came to over all calls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Range {
    /// Package, without its extension.
    pub package: String,
    /// Name of the operation's result.
    pub op: String,
    /// Terms of a sum.
    pub terms: usize,
    /// Sums made.
    pub sums: u64,
    /// Largest magnitude of a sum.
    pub peak: f32,
    /// What no partial sum can exceed, in whatever order: the longest row of one side times the longest of the other.
    pub reach: f32,
    /// Products looked at that are not zero.
    pub products: u64,
    /// Those of them that the profile drops.
    pub dropped: u64,
    /// Sum of their squares.
    pub energy: f64,
    /// Sum of squares of those dropped.
    pub lost: f64,
    /// Exponent of the lowest bit of any weight, where the operation has stored weights that are not all zero: by how much they
    /// can be made smaller without losing one.
    pub lowest_bit: Option<i32>,
    /// Largest magnitude of a stored weight.
    pub largest_weight: f32,
}

impl Range {
    /// Root of the mean square of products; 0 when all are zero.
    pub fn rms(&self) -> f64 {
        if self.products == 0 { 0.0 } else { (self.energy / self.products as f64).sqrt() }
    }

    /// Doublings that `reach` is away from `limit`; none when there are no sums but zero.
    pub fn headroom(&self, limit: f32) -> Option<f64> {
        (self.reach > 0.0).then(|| (f64::from(limit) / f64::from(self.reach)).log2())
    }

    /// Doublings that products lie above `dropped`, by their root mean square; none when all are zero.
    pub fn margin(&self, dropped: f32) -> Option<f64> {
        (self.products > 0).then(|| (self.rms() / f64::from(dropped)).log2())
    }

    /// Share of the products that are dropped, and of the sum of their squares.
    pub fn dropped_share(&self) -> (f64, f64) {
        let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        (share(self.dropped as f64, self.products as f64), share(self.lost, self.energy))
    }
}

/// Sums of one call: `out [tokens, rows] = x [tokens, k] · wᵀ`.
pub(crate) struct Sums<'a> {
    pub(crate) weight: (DType, &'a [u8]),
    /// Whether the weight is stored and the same in every call.
    pub(crate) stored: bool,
    pub(crate) rows: usize,
    pub(crate) k: usize,
    pub(crate) x: &'a [f32],
    pub(crate) out: &'a [f32],
}

impl Ranges {
    /// Everything seen so far, in order of package and operation.
    pub fn get(&self) -> Vec<Range> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().map(|s| s.range.clone()).collect()
    }

    pub(crate) fn see(&self, package: &str, op: &str, rules: Option<&Accumulator>, sums: &Sums<'_>) {
        let Sums { weight: (dtype, bytes), stored, rows, k, x, out } = *sums;
        if rows == 0 || k == 0 || x.is_empty() {
            return;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.entry(format!("{package}/{op}")).or_default();
        let fresh = !stored || seen.weights.insert(bytes.as_ptr() as usize);
        let range = &mut seen.range;
        if range.sums == 0 {
            (range.package, range.op) = (package.to_owned(), op.to_owned());
        }
        range.terms = range.terms.max(k);
        range.sums += out.len() as u64;
        let most = |peak: f32, v: &[f32]| v.iter().fold(peak, |m, v| if v.abs() > m { v.abs() } else { m });
        range.peak = most(range.peak, out);
        let mut row = vec![0.0f32; k];
        if fresh {
            let mut longest = 0.0f64;
            for r in 0..rows {
                widen(dtype, bytes, r * k, &mut row);
                longest = longest.max(length(&row));
                if stored {
                    range.largest_weight = most(range.largest_weight, &row);
                    let lowest =
                        row.iter().filter(|v| **v != 0.0 && v.is_finite()).map(|v| lowest_bit(*v)).min();
                    range.lowest_bit = range.lowest_bit.into_iter().chain(lowest).min();
                }
            }
            seen.longest_row = if stored { seen.longest_row.max(longest) } else { longest };
        }
        let tokens = x.len() / k;
        let longest = x.chunks_exact(k).map(length).fold(0.0, f64::max);
        range.reach = range.reach.max((longest * seen.longest_row) as f32);
        let spread = |count: usize, most: usize| {
            let taken = count.min(most);
            (0..taken).map(move |i| i * count / taken)
        };
        for r in spread(rows, SAMPLED[0]) {
            widen(dtype, bytes, r * k, &mut row);
            for t in spread(tokens, SAMPLED[1]) {
                for (a, b) in row.iter().zip(&x[t * k..(t + 1) * k]) {
                    let p = f64::from(*a) * f64::from(*b);
                    if p == 0.0 || !p.is_finite() {
                        continue;
                    }
                    range.products += 1;
                    range.energy += p * p;
                    if rules.is_some_and(|rules| rules.drops(*a, *b, k)) {
                        range.dropped += 1;
                        range.lost += p * p;
                    }
                }
            }
        }
    }
}

fn length(v: &[f32]) -> f64 {
    v.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt()
}

/// Exponent of the lowest bit that is set.
fn lowest_bit(v: f32) -> i32 {
    let bits = v.to_bits();
    let (exponent, fraction) = ((bits >> 23 & 0xff) as i32, bits & 0x7f_ffff);
    if exponent == 0 {
        return fraction.trailing_zeros() as i32 - 149;
    }
    (fraction | 0x80_0000).trailing_zeros() as i32 + exponent - 150
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_bit_is_the_largest_power_of_two_that_divides() {
        for (v, expected) in [
            (1.0, 0),
            (-3.0, 0),
            (0.75, -2),
            (1.0 + f32::EPSILON, -23),
            (6e-8, -46),
            (f32::from_bits(2), -148),
        ] {
            let lowest = lowest_bit(v);
            let quotient = f64::from(v) / f64::powi(2.0, lowest);
            assert!(quotient.fract() == 0.0 && quotient % 2.0 != 0.0, "{v}: 2^{lowest}");
            if v != 6e-8 {
                assert_eq!(lowest, expected, "{v}");
            }
        }
    }

    #[test]
    fn sums_are_bounded_and_products_counted() {
        let ranges = Ranges::default();
        let (w, x) = ([3.0f32, -4.0, 0.0, 1.0], [1.0f32, 2.0, -0.5, 0.0]);
        let out = [-5.0f32, 2.0, -1.5, 0.0];
        let sums = Sums {
            weight: (DType::F32, bytemuck::cast_slice(&w)),
            stored: true,
            rows: 2,
            k: 2,
            x: &x,
            out: &out,
        };
        ranges.see("chunk_0", "y", None, &sums);
        ranges.see("chunk_0", "y", None, &Sums { stored: true, ..sums });
        let [range] = &ranges.get()[..] else { panic!("one operation") };
        assert_eq!((range.terms, range.sums, range.peak), (2, 8, 5.0));
        // The row (3, -4) is 5 long, the longer token √5.
        assert!((range.reach - 5.0 * 5f32.sqrt()).abs() < 1e-5);
        // 3·1, -4·2, 1·2, 3·-0.5; the rest are zero.
        assert_eq!((range.products, range.dropped, range.energy), (8, 0, 2.0 * (9.0 + 64.0 + 4.0 + 2.25)));
        assert_eq!((range.lowest_bit, range.largest_weight), (Some(0), 4.0));
        assert!((range.headroom(32768.0).unwrap() - (32768.0 / (5.0 * 5f64.sqrt())).log2()).abs() < 1e-6);
        assert_eq!(range.margin(range.rms() as f32).unwrap().round(), 0.0);
    }
}
