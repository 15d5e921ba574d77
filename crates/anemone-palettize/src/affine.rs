//! Integers with a scale for each output channel.

use std::sync::{Mutex, PoisonError};

use anemone_kernels::Pool;
use half::f16;

use crate::{Distortion, Error, Importance, Matrix};

/// Scales tried for a row, from the one that reaches its largest weight down to `FLOOR` of it: what is cut off at the ends may
/// be less than what the finer steps save.
const TRIALS: usize = 24;
const FLOOR: f32 = 0.6;

/// A tensor as integers times a scale for each row.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// 4 or 8.
    pub bits: u8,
    /// Signed integers, row-major, from −(2^(bits−1) − 1) to 2^(bits−1) − 1.
    pub integers: Vec<i8>,
    /// One for each row.
    pub scales: Vec<f16>,
    /// Columns of the tensor.
    pub columns: usize,
    /// What was lost, measured against fp16 products of integers and scales.
    pub distortion: Distortion,
}

impl Affine {
    /// The weights the integers stand for, row-major.
    pub fn decode(&self) -> Vec<f16> {
        scaled(&self.integers, &self.scales, self.columns)
    }
}

/// Integers times the scale of their row, rounded to fp16.
pub fn scaled(integers: &[i8], scales: &[f16], columns: usize) -> Vec<f16> {
    let rows = integers.chunks(columns.max(1)).zip(scales);
    rows.flat_map(|(row, scale)| row.iter().map(|i| times(*i, *scale))).collect()
}

/// Both factors are exact in f32 and so is their product: it is rounded once.
fn times(integer: i8, scale: f16) -> f16 {
    f16::from_f32(f32::from(integer) * scale.to_f32())
}

/// Makes integers of `bits` bits of a tensor, each row with the scale that loses least of those tried.
///
/// Rows run on the pool's threads; the result does not depend on how many there are. `progress` is told the number of weights
/// that are done.
pub fn affine(
    matrix: Matrix<'_>,
    bits: u8,
    importance: Importance<'_>,
    pool: &Pool,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Affine, Error> {
    /// Rows of a task.
    const ROWS: usize = 16;
    if !matches!(bits, 4 | 8) {
        return Err(Error::Integer { bits });
    }
    let columns = matrix.columns();
    importance.check(matrix.values().len(), columns)?;
    let mut integers = vec![0i8; matrix.values().len()];
    let mut scales = vec![f16::ZERO; matrix.rows()];
    let block = (ROWS * columns).max(1);
    let parts: Vec<Mutex<_>> = (integers.chunks_mut(block))
        .zip(scales.chunks_mut(ROWS))
        .map(|(integers, scales)| Mutex::new((integers, scales, Distortion::default())))
        .collect();
    pool.run(parts.len(), &|_, task| {
        let mut part = parts[task].lock().unwrap_or_else(PoisonError::into_inner);
        let (integers, scales, distortion) = &mut *part;
        for (i, (row, scale)) in integers.chunks_mut(columns).zip(scales.iter_mut()).enumerate() {
            let start = task * block + i * columns;
            let range = start..start + columns;
            let values = &matrix.values()[range.clone()];
            let of = importance.rows(range);
            *scale = best_scale(values, bits, of);
            for (j, (integer, value)) in row.iter_mut().zip(values).enumerate() {
                *integer = integer_of(*value, *scale, bits);
                distortion.count(*value, times(*integer, *scale), 1.0, of.of(j, columns));
            }
        }
        progress(integers.len());
    });
    let mut distortion = Distortion::default();
    for part in parts {
        distortion.add(&part.into_inner().unwrap_or_else(PoisonError::into_inner).2);
    }
    Ok(Affine { bits, integers, scales, columns, distortion })
}

fn limit(bits: u8) -> f32 {
    f32::from((1i16 << (bits - 1)) - 1)
}

fn integer_of(value: f16, scale: f16, bits: u8) -> i8 {
    let most = limit(bits);
    let scale = scale.to_f32();
    if scale == 0.0 { 0 } else { (value.to_f32() / scale).round_ties_even().clamp(-most, most) as i8 }
}

fn best_scale(values: &[f16], bits: u8, importance: Importance<'_>) -> f16 {
    let reach = values.iter().fold(0f32, |m, v| m.max(v.to_f32().abs()));
    let wide: Vec<f32> = values.iter().map(|v| v.to_f32()).collect();
    let most = limit(bits);
    let loss = |scale: f32| -> f64 {
        let inverse = scale.recip();
        let error = |v: f32| v - (v * inverse).round_ties_even().clamp(-most, most) * scale;
        match importance {
            Importance::Equal => wide.iter().map(|v| f64::from(error(*v) * error(*v))).sum(),
            Importance::Columns(each) | Importance::Elements(each) => {
                wide.iter().zip(each).map(|(v, w)| f64::from(*w) * f64::from(error(*v) * error(*v))).sum()
            }
        }
    };
    let mut best = (f64::INFINITY, f16::ZERO);
    for trial in 0..TRIALS {
        let part = 1.0 - (1.0 - FLOOR) * trial as f32 / (TRIALS - 1) as f32;
        let scale = f16::from_f32(reach / most * part);
        if scale == f16::ZERO {
            break;
        }
        let lost = loss(scale.to_f32());
        if lost < best.0 {
            best = (lost, scale);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halves(values: &[f32]) -> Vec<f16> {
        values.iter().map(|v| f16::from_f32(*v)).collect()
    }

    #[test]
    fn what_integers_can_say_is_exact() {
        let values = halves(&[7.0, -7.0, 3.0, 0.0, -0.5, 0.25, 0.0, 1.75]);
        let matrix = Matrix::new(&values, 2, 4).unwrap();
        let found = affine(matrix, 4, Importance::Equal, &Pool::new(1), &|_| ()).unwrap();
        assert_eq!(found.scales, halves(&[1.0, 0.25]));
        assert_eq!(found.integers, [7, -7, 3, 0, -2, 1, 0, 7]);
        assert_eq!(found.decode(), values);
        assert_eq!(found.distortion.squared, 0.0);
    }

    #[test]
    fn an_outlier_is_cut_off_where_that_loses_less_and_zeros_stay() {
        let mut row = vec![0.0f32; 64];
        row.iter_mut().enumerate().for_each(|(i, v)| *v = (i as f32 - 32.0) / 32.0);
        row[5] = 1.5;
        let values = halves(&row);
        let matrix = Matrix::new(&values, 1, 64).unwrap();
        let found = affine(matrix, 4, Importance::Equal, &Pool::new(1), &|_| ()).unwrap();
        assert!(found.scales[0].to_f32() < 1.5 / 7.0 * 0.95, "{:?}", found.scales);
        let mut care = vec![0.0; 64];
        care[5] = 1.0;
        let found = affine(matrix, 4, Importance::Columns(&care), &Pool::new(1), &|_| ()).unwrap();
        assert!((found.decode()[5].to_f32() - 1.5).abs() < 2e-3);
        let zeros = halves(&[0.0; 3]);
        let none = affine(Matrix::new(&zeros, 1, 3).unwrap(), 8, Importance::Equal, &Pool::new(1), &|_| ());
        assert_eq!(none.unwrap().decode(), zeros);
        let wrong = affine(matrix, 6, Importance::Equal, &Pool::new(1), &|_| ());
        assert_eq!(wrong, Err(Error::Integer { bits: 6 }));
    }
}
