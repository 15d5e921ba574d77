//! The weights of a group as sorted distinct fp16 values with their counts and importances.

use half::f16;

use crate::Error;

/// How much an error of each weight matters; what counts is the importance times the squared error.
#[derive(Debug, Clone, Copy)]
pub enum Importance<'a> {
    /// All alike.
    Equal,
    /// One for each column (input channel), the same for all rows.
    Columns(&'a [f32]),
    /// One for each weight, row-major.
    Elements(&'a [f32]),
}

impl<'a> Importance<'a> {
    /// Of weight `index` in rows of `columns`.
    pub(crate) fn of(&self, index: usize, columns: usize) -> f64 {
        match self {
            Self::Equal => 1.0,
            Self::Columns(each) => f64::from(each[index % columns]),
            Self::Elements(each) => f64::from(each[index]),
        }
    }

    /// That of a run of whole rows.
    pub(crate) fn rows(&self, elements: std::ops::Range<usize>) -> Self {
        match self {
            Self::Elements(each) => Self::Elements(&each[elements]),
            other => *other,
        }
    }

    pub(crate) fn check(&self, elements: usize, columns: usize) -> Result<(), Error> {
        let (each, expected): (&'a [f32], usize) = match self {
            Self::Equal => return Ok(()),
            Self::Columns(each) => (each, columns),
            Self::Elements(each) => (each, elements),
        };
        if each.len() != expected {
            return Err(Error::Length { what: "importance", found: each.len(), expected });
        }
        match each.iter().position(|v| !(v.is_finite() && *v >= 0.0)) {
            Some(index) => Err(Error::Importance { index, value: each[index] }),
            None => Ok(()),
        }
    }
}

/// Memory that counting needs, to be used again: one cell for each fp16 number.
#[derive(Debug)]
pub struct Counter {
    counts: Vec<u32>,
    weights: Vec<f64>,
    /// A bit for each number seen.
    seen: Vec<u64>,
    /// What [`Counter::assign`] looks codes up in.
    codes: Vec<u8>,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            counts: vec![0; 1 << 16],
            weights: Vec::new(),
            seen: vec![0; 1 << 10],
            codes: vec![0; 1 << 16],
        }
    }
}

/// Order of fp16 numbers as integers; both zeros are one.
fn key(value: f16) -> usize {
    let bits = value.to_bits();
    let bits = if bits == 0x8000 { 0 } else { bits };
    usize::from(if bits & 0x8000 == 0 { bits | 0x8000 } else { !bits })
}

fn unkey(key: usize) -> f16 {
    let key = key as u16;
    f16::from_bits(if key & 0x8000 == 0 { !key } else { key & 0x7fff })
}

/// Sorted distinct numbers of a group.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The numbers, ascending.
    pub values: Vec<f16>,
    /// How often each occurs.
    pub counts: Vec<f64>,
    /// Sum of the importances of each; equal to the counts where all matter alike.
    pub weights: Vec<f64>,
}

impl Counter {
    /// Counts finite weights that lie in rows of `columns`; `importance` has the length that fits.
    pub fn histogram(&mut self, values: &[f16], columns: usize, importance: Importance<'_>) -> Histogram {
        let equal = matches!(importance, Importance::Equal);
        if !equal {
            self.weights.resize(1 << 16, 0.0);
        }
        match importance {
            Importance::Equal => values.iter().for_each(|v| self.count(key(*v))),
            Importance::Columns(each) => {
                for row in values.chunks(columns.max(1)) {
                    self.weigh(row, each);
                }
            }
            Importance::Elements(each) => self.weigh(values, each),
        }
        let mut out = Histogram::default();
        for word in 0..self.seen.len() {
            let mut bits = std::mem::take(&mut self.seen[word]);
            while bits != 0 {
                let key = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let count = f64::from(std::mem::take(&mut self.counts[key]));
                out.values.push(unkey(key));
                out.counts.push(count);
                out.weights.push(if equal { count } else { std::mem::take(&mut self.weights[key]) });
            }
        }
        out
    }

    fn count(&mut self, key: usize) {
        self.counts[key] += 1;
        self.seen[key / 64] |= 1 << (key % 64);
    }

    fn weigh(&mut self, values: &[f16], each: &[f32]) {
        for (value, weight) in values.iter().zip(each) {
            let key = key(*value);
            self.count(key);
            self.weights[key] += f64::from(*weight);
        }
    }

    /// Writes the code of each weight; `codes` has one for each value of their histogram.
    pub(crate) fn assign(&mut self, histogram: &Histogram, codes: &[u8], values: &[f16], out: &mut [u8]) {
        for (value, code) in histogram.values.iter().zip(codes) {
            self.codes[key(*value)] = *code;
        }
        for (out, value) in out.iter_mut().zip(values) {
            *out = self.codes[key(*value)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_numbers() {
        let mut last = f64::NEG_INFINITY;
        for k in 0..1 << 16 {
            let value = unkey(k);
            if value.is_finite() && k != key(f16::NEG_ZERO) && value.to_bits() != 0x8000 {
                assert_eq!(key(value), k);
                assert!(value.to_f64() > last);
                last = value.to_f64();
            }
        }
        assert_eq!(key(f16::NEG_ZERO), key(f16::ZERO));
    }

    #[test]
    fn values_are_counted_and_weighed_and_nothing_stays_behind() {
        let mut counter = Counter::default();
        let values = [2.0, -1.0, 2.0, -0.0, 0.0, 7.0].map(f16::from_f32);
        let h = counter.histogram(&values, 3, Importance::Columns(&[1.0, 10.0, 0.0]));
        assert_eq!(h.values, [-1.0, 0.0, 2.0, 7.0].map(f16::from_f32));
        assert_eq!(h.counts, [1.0, 2.0, 2.0, 1.0]);
        assert_eq!(h.weights, [10.0, 11.0, 1.0, 0.0]);
        let h = counter.histogram(&values[..2], 2, Importance::Equal);
        assert_eq!(h.values, [-1.0, 2.0].map(f16::from_f32));
        assert_eq!(h.weights, [1.0, 1.0]);
    }
}
