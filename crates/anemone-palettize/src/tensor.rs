//! Tensors as codes and tables.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anemone_kernels::Pool;
use half::f16;

use crate::scalar::nearest;
use crate::{Counter, Distortion, Error, Fitter, Importance, Scheme, vector};

/// A weight as rows (output channels) of columns (everything else).
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f16],
    rows: usize,
    columns: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major finite weights.
    pub fn new(values: &'a [f16], rows: usize, columns: usize) -> Result<Self, Error> {
        let expected = rows.saturating_mul(columns);
        if values.len() != expected {
            return Err(Error::Length { what: "the matrix", found: values.len(), expected });
        }
        match values.iter().position(|v| !v.is_finite()) {
            Some(index) => Err(Error::NotFinite { index, value: values[index].to_f32() }),
            None => Ok(Self { values, rows, columns }),
        }
    }

    /// The weights, row-major.
    pub fn values(&self) -> &'a [f16] {
        self.values
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }
}

/// A tensor's codes, the tables they look into and what was lost.
#[derive(Debug, Clone, PartialEq)]
pub struct Palettized {
    /// Bits of a code.
    pub bits: u8,
    /// Rows of the tensor that share a table.
    pub group_rows: usize,
    /// Consecutive rows a code stands for.
    pub vector: usize,
    /// Columns of the tensor.
    pub columns: usize,
    /// One for each vector, row-major: rows / vector of them in each column.
    pub codes: Vec<u8>,
    /// Entries of all groups one after the other: 2^bits entries of `vector` numbers each.
    pub tables: Vec<f16>,
    /// What was lost, measured against the rounded tables.
    pub distortion: Distortion,
    /// Squared error, each weight times its importance, before the entries were rounded to fp16.
    pub unrounded: f64,
}

impl Palettized {
    /// Number of groups, each with a table.
    pub fn groups(&self) -> usize {
        self.tables.len() / (self.vector << self.bits)
    }

    /// The weights the codes stand for, row-major.
    pub fn decode(&self) -> Vec<f16> {
        decode(&self.codes, &self.tables, self.group_rows, self.columns, self.bits, self.vector)
    }
}

/// Weights of codes: those of `group_rows` rows of `columns` look into one table of 2^`bits` entries of `vector` numbers, which
/// go to consecutive rows.
///
/// A code beyond its table, which is possible for none written here, reads as zero.
pub fn decode(
    codes: &[u8],
    tables: &[f16],
    group_rows: usize,
    columns: usize,
    bits: u8,
    vector: usize,
) -> Vec<f16> {
    let mut out = vec![f16::ZERO; codes.len() * vector];
    let block = group_rows * columns;
    let tables = tables.chunks_exact(vector << bits);
    for ((codes, out), table) in
        codes.chunks((block / vector).max(1)).zip(out.chunks_mut(block.max(1))).zip(tables)
    {
        if vector == 1 {
            for (out, code) in out.iter_mut().zip(codes) {
                *out = table.get(usize::from(*code)).copied().unwrap_or_default();
            }
            continue;
        }
        for (codes, rows) in codes.chunks(columns).zip(out.chunks_mut(columns * vector)) {
            for (part, row) in rows.chunks_mut(columns).enumerate() {
                for (out, code) in row.iter_mut().zip(codes) {
                    *out = table.get(usize::from(*code) * vector + part).copied().unwrap_or_default();
                }
            }
        }
    }
    out
}

/// What one group gives beside its codes.
struct Group {
    table: Vec<f16>,
    distortion: Distortion,
    unrounded: f64,
}

/// Makes codes and tables of a tensor.
///
/// Groups are independent, and run on the pool's threads; the result does not depend on how many there are. `progress` is told
/// the number of weights of each group that is done.
pub fn palettize(
    matrix: Matrix<'_>,
    scheme: &Scheme,
    importance: Importance<'_>,
    pool: &Pool,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Palettized, Error> {
    scheme.check()?;
    let (rows, columns) = (matrix.rows, matrix.columns);
    importance.check(matrix.values.len(), columns)?;
    let group_rows = scheme.group_rows(rows)?;
    let block = (group_rows * columns).max(1);
    let mut codes = vec![0; matrix.values.len() / scheme.vector];
    let parts: Vec<Mutex<(&mut [u8], Option<Group>)>> =
        codes.chunks_mut(block / scheme.vector).map(|codes| Mutex::new((codes, None))).collect();
    let scratch: Vec<Mutex<(Counter, Fitter)>> = (0..pool.threads()).map(|_| Mutex::default()).collect();
    let part = |thread: usize, group: usize| {
        let range = group * block..(group + 1) * block;
        let mut scratch = scratch[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let mut part = parts[group].lock().unwrap_or_else(PoisonError::into_inner);
        let (codes, result) = &mut *part;
        *result = Some(if scheme.vector == 1 {
            numbers(matrix, range, scheme, importance, &mut scratch, codes)
        } else {
            vectors(matrix, range, scheme, importance, codes)
        });
        progress(block);
    };
    pool.run(parts.len(), &part);
    let mut tables = Vec::with_capacity(parts.len() * scheme.entries() * scheme.vector);
    let (mut distortion, mut unrounded) = (Distortion::default(), 0.0);
    for part in parts {
        let (_, group) = part.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Every group ran: the pool returns when all are done, and passes a panic on.
        let Some(group) = group else { continue };
        tables.extend(group.table);
        distortion.add(&group.distortion);
        unrounded += group.unrounded;
    }
    let (bits, vector) = (scheme.bits, scheme.vector);
    Ok(Palettized { bits, group_rows, vector, columns, codes, tables, distortion, unrounded })
}

fn numbers(
    matrix: Matrix<'_>,
    range: Range<usize>,
    scheme: &Scheme,
    importance: Importance<'_>,
    (counter, fitter): &mut (Counter, Fitter),
    codes: &mut [u8],
) -> Group {
    let values = &matrix.values[range.clone()];
    let histogram = counter.histogram(values, matrix.columns, importance.rows(range));
    let table = fitter.fit(&histogram, scheme.entries(), scheme.method);
    let nearest = nearest(&table.entries, &histogram.values);
    counter.assign(&histogram, &nearest, values, codes);
    let mut distortion = Distortion::default();
    let each = histogram.values.iter().zip(&nearest).zip(histogram.counts.iter().zip(&histogram.weights));
    for ((value, code), (count, weight)) in each {
        distortion.count(*value, table.entries[usize::from(*code)], *count, *weight);
    }
    Group { table: table.entries, distortion, unrounded: table.unrounded }
}

fn vectors(
    matrix: Matrix<'_>,
    range: Range<usize>,
    scheme: &Scheme,
    importance: Importance<'_>,
    codes: &mut [u8],
) -> Group {
    let (columns, n) = (matrix.columns, scheme.vector);
    let values = &matrix.values[range.clone()];
    let of = importance.rows(range);
    let (points, weights) = vector::gather(values, columns, n, of);
    let (table, unrounded) = vector::fit(&points, &weights, n, scheme.entries(), codes);
    let mut distortion = Distortion::default();
    for (i, code) in codes.iter().enumerate() {
        for part in 0..n {
            let at = vector::place(i, part, columns, n);
            let entry = table[usize::from(*code) * n + part];
            distortion.count(values[at], entry, 1.0, of.of(at, columns));
        }
    }
    Group { table, distortion, unrounded }
}
