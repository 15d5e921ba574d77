//! Stored codes to numbers.

use anemone_mil::unpack_bits;
use anemone_tensor::{Bytes, PaletteError, Segment};
use half::f16;

/// Stored bytes of a compressed weight, and how to read them.
#[derive(Debug, Clone)]
pub(crate) struct Packed<B> {
    /// Packed codes or integers.
    pub(crate) codes: B,
    /// fp16 entries or scales.
    pub(crate) table: B,
    pub(crate) form: Form,
    /// Rows and columns of what it stands for.
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Table { bits: u8, groups: usize, vector: usize },
    Scaled { bits: u8 },
}

impl<B: std::ops::Deref<Target = [u8]>> Packed<B> {
    /// The numbers, row-major; a text of what does not fit.
    pub(crate) fn expand(&self) -> Result<Vec<f16>, String> {
        let (rows, columns) = (self.rows, self.columns);
        let elements = rows.checked_mul(columns).ok_or("it is too large")?;
        let table: Vec<f16> = self.table.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect();
        let few = || "its codes are too few".to_owned();
        match self.form {
            Form::Table { bits, groups, vector } => {
                if !(1..=8).contains(&bits) || groups == 0 || vector == 0 {
                    return Err(format!(
                        "{groups} tables of {bits} bits and vectors of {vector} are impossible"
                    ));
                }
                if !rows.is_multiple_of(groups) || !(rows / groups).is_multiple_of(vector) {
                    return Err(format!(
                        "{groups} tables of vectors of {vector} do not divide its {rows} rows"
                    ));
                }
                if groups.checked_mul(vector << bits) != Some(table.len()) {
                    return Err(format!(
                        "its tables have {} entries, expected {}",
                        table.len(),
                        groups * (vector << bits)
                    ));
                }
                let codes = unpack_bits(&self.codes, bits.into(), elements / vector).ok_or_else(few)?;
                Ok(anemone_palettize::decode(&codes, &table, rows / groups, columns, bits, vector))
            }
            Form::Scaled { bits } => {
                if table.len() != rows || !matches!(bits, 4 | 8) {
                    return Err(format!("it has {} scales of int{bits} for {rows} rows", table.len()));
                }
                let codes = unpack_bits(&self.codes, bits.into(), elements).ok_or_else(few)?;
                let integers: Vec<i8> = codes.into_iter().map(|c| signed(c, bits)).collect();
                Ok(anemone_palettize::scaled(&integers, &table, columns))
            }
        }
    }
}

impl Packed<Bytes> {
    /// The codes as products read them, the numbers they stand for divided by a power of two; `None` when they are none of single
    /// numbers' tables.
    pub(crate) fn segment(&self, log2_scale: i32) -> Option<Result<Segment, PaletteError>> {
        let Form::Table { bits, groups, vector: 1 } = self.form else { return None };
        if groups == 0 || !self.rows.is_multiple_of(groups) {
            return None;
        }
        let scale = f32::powi(2.0, -log2_scale);
        let entry = |b: &[u8; 2]| f16::from_f32(f16::from_le_bytes(*b).to_f32() * scale);
        let tables = self.table.as_chunks::<2>().0.iter().map(entry).collect();
        let shape = (self.rows, self.columns);
        Some(Segment::new(shape, bits.into(), self.rows / groups, tables, self.codes.clone()))
    }
}

fn signed(code: u8, bits: u8) -> i8 {
    let shift = 8 - bits;
    ((code << shift) as i8) >> shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_said() {
        let table: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let good = Packed {
            codes: vec![0b10_0101u8],
            table,
            form: Form::Table { bits: 1, groups: 1, vector: 1 },
            rows: 2,
            columns: 3,
        };
        let read = good.expand().unwrap();
        assert_eq!(read, [2.0, 1.0, 2.0, 1.0, 1.0, 2.0].map(f16::from_f32));
        let say = |form, rows, columns| Packed { form, rows, columns, ..good.clone() }.expand().unwrap_err();
        let table = |bits, groups, vector| Form::Table { bits, groups, vector };
        assert!(say(table(1, 1, 1), 4, 3).contains("codes are too few"));
        assert!(say(table(1, 3, 1), 2, 3).contains("do not divide its 2 rows"));
        assert!(say(table(2, 1, 1), 2, 3).contains("tables have 2 entries, expected 4"));
        assert!(say(table(9, 1, 1), 2, 3).contains("impossible"));
        assert!(say(table(1, 1, 1), usize::MAX, 3).contains("too large"));
        assert!(say(Form::Scaled { bits: 4 }, 3, 1).contains("2 scales of int4 for 3 rows"));
        assert!(say(Form::Scaled { bits: 5 }, 2, 1).contains("int5"));
    }

    #[test]
    fn integers_have_signs() {
        assert_eq!([0, 1, 7, 8, 15].map(|c| signed(c, 4)), [0, 1, 7, -8, -1]);
        assert_eq!([0, 127, 128, 255].map(|c| signed(c, 8)), [0, 127, -128, -1]);
    }
}
