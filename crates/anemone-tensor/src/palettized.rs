use half::f16;

use crate::Bytes;

/// Bits an index may take.
pub const PALETTE_BITS: [u32; 6] = [1, 2, 3, 4, 6, 8];

/// A matrix `[rows, cols]` whose elements are indices into tables of f16.
///
/// It is made of bands of rows, one below the other, each of segments side by side.
#[derive(Debug, Clone)]
pub struct Palettized {
    rows: usize,
    cols: usize,
    bands: Vec<Vec<Segment>>,
}

/// A rectangle `[rows, cols]` of indices.
#[derive(Debug, Clone)]
pub struct Segment {
    rows: usize,
    cols: usize,
    bits: u32,
    group: usize,
    tables: Vec<f16>,
    indices: Bytes,
}

/// What is wrong with a palettized matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PaletteError {
    /// A number of bits without a format.
    #[error("indices of {0} bits; 1, 2, 3, 4, 6 and 8 are possible")]
    Bits(u32),
    /// No rows, no columns, or more elements than memory could hold.
    #[error("{0} × {1} elements, which no matrix has")]
    Size(usize, usize),
    /// A group without rows.
    #[error("groups of 0 rows; at least 1 is needed")]
    Group,
    /// Tables of another size.
    #[error("{found} table entries, expected {expected}: one table for each {group} rows")]
    Tables {
        /// Entries there are.
        found: usize,
        /// Entries there should be.
        expected: usize,
        /// Rows of a group.
        group: usize,
    },
    /// Indices of another size.
    #[error("{found} bytes of indices, expected {expected}")]
    Indices {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        expected: usize,
    },
    /// Rectangles that form no matrix.
    #[error("segment {segment} of band {band} does not fit the others")]
    Fit {
        /// The band, from the top.
        band: usize,
        /// The segment, from the left.
        segment: usize,
    },
}

impl Segment {
    /// `indices`: row by row without a gap, each index in the lowest bits free. `tables`: `[rows.div_ceil(group), 2^bits]`, a table for
    /// each `group` rows.
    pub fn new(
        (rows, cols): (usize, usize),
        bits: u32,
        group: usize,
        tables: Vec<f16>,
        indices: Bytes,
    ) -> Result<Self, PaletteError> {
        if !PALETTE_BITS.contains(&bits) {
            return Err(PaletteError::Bits(bits));
        }
        if group == 0 {
            return Err(PaletteError::Group);
        }
        let count = rows.checked_mul(cols).filter(|n| *n > 0 && *n <= usize::MAX >> 4);
        let count = count.ok_or(PaletteError::Size(rows, cols))?;
        let expected = rows.div_ceil(group) << bits;
        if tables.len() != expected {
            return Err(PaletteError::Tables { found: tables.len(), expected, group });
        }
        let expected = (count * bits as usize).div_ceil(8);
        if indices.len() != expected {
            return Err(PaletteError::Indices { found: indices.len(), expected });
        }
        Ok(Self { rows, cols, bits, group, tables, indices })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bits of an index.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Rows that share a table.
    pub fn group(&self) -> usize {
        self.group
    }

    /// The table of a row.
    pub fn table(&self, row: usize) -> &[f16] {
        let size = 1 << self.bits;
        &self.tables[row / self.group * size..][..size]
    }

    /// All indices, packed.
    pub fn indices(&self) -> &Bytes {
        &self.indices
    }

    /// The same with the indices elsewhere: as many bytes of the same content.
    ///
    /// Panics when there are more or fewer.
    #[must_use]
    pub fn with_indices(&self, indices: Bytes) -> Self {
        assert_eq!(indices.len(), self.indices.len(), "bytes of indices");
        Self { indices, ..self.clone() }
    }

    /// The index of an element.
    pub fn index(&self, row: usize, col: usize) -> usize {
        let bits = self.bits as usize;
        let at = (row * self.cols + col) * bits;
        // An index crosses into the next byte at most.
        let byte = |i: usize| usize::from(self.indices.get(i).copied().unwrap_or(0));
        (byte(at / 8) | byte(at / 8 + 1) << 8) >> (at % 8) & ((1 << bits) - 1)
    }
}

impl Palettized {
    /// Puts bands of segments together: the segments of a band have as many rows, and all bands as many columns.
    pub fn new(bands: Vec<Vec<Segment>>) -> Result<Self, PaletteError> {
        let width = |band: &[Segment]| band.iter().map(Segment::cols).sum::<usize>();
        let cols = bands.first().map_or(0, |band| width(band));
        let mut rows = 0;
        for (b, band) in bands.iter().enumerate() {
            let height = band.first().map_or(0, Segment::rows);
            let misfit = band.iter().position(|s| s.rows != height);
            if let Some(segment) = misfit.or((width(band) != cols).then_some(band.len().saturating_sub(1))) {
                return Err(PaletteError::Fit { band: b, segment });
            }
            rows += height;
        }
        if rows == 0 || cols == 0 {
            return Err(PaletteError::Size(rows, cols));
        }
        Ok(Self { rows, cols, bands })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The bands from the top, each a list of segments from the left.
    pub fn bands(&self) -> &[Vec<Segment>] {
        &self.bands
    }

    /// Every segment, band by band.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.bands.iter().flatten()
    }

    /// The same with the indices of every segment replaced by what `place` makes of them; `None` when it gives none.
    pub fn map_indices(&self, mut place: impl FnMut(&Bytes) -> Option<Bytes>) -> Option<Self> {
        let mut moved = |s: &Segment| Some(s.with_indices(place(&s.indices)?));
        let bands = self.bands.iter().map(|band| band.iter().map(&mut moved).collect());
        Some(Self { bands: bands.collect::<Option<_>>()?, ..*self })
    }

    /// Bytes of indices and tables.
    pub fn size(&self) -> usize {
        self.segments().map(|s| s.indices.len() + 2 * s.tables.len()).sum()
    }

    /// Bytes of indices alone.
    pub fn index_bytes(&self) -> usize {
        self.segments().map(|s| s.indices.len()).sum()
    }

    /// The elements, `[rows, cols]`.
    pub fn expand(&self) -> Vec<f16> {
        let mut out = vec![f16::ZERO; self.rows * self.cols];
        self.each(|at, value| out[at] = value);
        out
    }

    /// The first element, row by row, that is infinite or no number.
    pub fn find_non_finite(&self) -> Option<usize> {
        let mut first = None;
        if self.segments().any(|s| s.tables.iter().any(|v| !v.is_finite())) {
            self.each(|at, value| {
                if !value.is_finite() {
                    first = Some(first.map_or(at, |first: usize| first.min(at)));
                }
            });
        }
        first
    }

    /// Shows every element and its place in `[rows, cols]`, segment by segment.
    fn each(&self, mut show: impl FnMut(usize, f16)) {
        let mut top = 0;
        for band in &self.bands {
            let mut left = 0;
            for segment in band {
                for r in 0..segment.rows {
                    let (table, start) = (segment.table(r), (top + r) * self.cols + left);
                    (0..segment.cols).for_each(|c| show(start + c, table[segment.index(r, c)]));
                }
                left += segment.cols;
            }
            top += band[0].rows;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(n: usize) -> Vec<f16> {
        (0..n).map(|i| f16::from_f32(i as f32 / 4.0 - 1.0)).collect()
    }

    /// Indices laid down bit by bit, the slow way.
    fn packed(indices: &[usize], bits: usize) -> Bytes {
        let mut bytes = vec![0u8; (indices.len() * bits).div_ceil(8)];
        for (i, index) in indices.iter().enumerate() {
            for b in 0..bits {
                bytes[(i * bits + b) / 8] |= u8::from(index >> b & 1 == 1) << ((i * bits + b) % 8);
            }
        }
        bytes.into()
    }

    #[test]
    fn elements_are_read_at_any_bit() {
        for bits in PALETTE_BITS {
            let (rows, cols, group) = (5, 7, 2);
            let indices: Vec<usize> = (0..rows * cols).map(|i| (i * 29 + i / 3) % (1 << bits)).collect();
            let tables = table(3 << bits);
            let bytes = packed(&indices, bits as usize);
            let segment = Segment::new((rows, cols), bits, group, tables.clone(), bytes).unwrap();
            let expanded = Palettized::new(vec![vec![segment]]).unwrap().expand();
            for (i, (value, index)) in expanded.iter().zip(&indices).enumerate() {
                assert_eq!(*value, tables[((i / cols / group) << bits) + index], "{bits} bits, element {i}");
            }
        }
    }

    #[test]
    fn bands_and_segments_are_put_in_place() {
        let segment = |rows: usize, cols: usize, value: f32| {
            let tables = vec![f16::from_f32(value), f16::ZERO];
            Segment::new((rows, cols), 1, rows, tables, vec![0; (rows * cols).div_ceil(8)].into()).unwrap()
        };
        let bands = vec![vec![segment(1, 2, 1.0), segment(1, 1, 2.0)], vec![segment(2, 3, 3.0)]];
        let whole = Palettized::new(bands).unwrap();
        let values: Vec<f32> = whole.expand().iter().map(|v| v.to_f32()).collect();
        assert_eq!(values, [1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]);
        assert_eq!((whole.size(), whole.index_bytes()), (3 + 12, 3));
        let uneven = vec![vec![segment(1, 2, 1.0), segment(2, 1, 2.0)]];
        assert_eq!(Palettized::new(uneven).unwrap_err(), PaletteError::Fit { band: 0, segment: 1 });
        let narrow = vec![vec![segment(1, 2, 1.0)], vec![segment(1, 1, 1.0)]];
        assert_eq!(Palettized::new(narrow).unwrap_err(), PaletteError::Fit { band: 1, segment: 0 });
        assert_eq!(Palettized::new(vec![]).unwrap_err(), PaletteError::Size(0, 0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let make = |shape, bits, group, entries, bytes: usize| {
            Segment::new(shape, bits, group, table(entries), vec![0; bytes].into()).unwrap_err()
        };
        assert_eq!(make((1, 1), 5, 1, 32, 1), PaletteError::Bits(5));
        assert_eq!(make((0, 4), 4, 1, 16, 0), PaletteError::Size(0, 4));
        assert_eq!(make((usize::MAX, 2), 4, 1, 16, 0), PaletteError::Size(usize::MAX, 2));
        assert_eq!(make((2, 2), 4, 0, 16, 2), PaletteError::Group);
        let tables = PaletteError::Tables { found: 16, expected: 32, group: 1 };
        assert_eq!(make((2, 2), 4, 1, 16, 2), tables);
        assert_eq!(make((2, 3), 6, 2, 64, 4), PaletteError::Indices { found: 4, expected: 5 });
    }

    #[test]
    fn elements_that_are_no_numbers_are_found() {
        let segment = |entries: [f16; 2], index| {
            Segment::new((1, 1), 1, 1, entries.to_vec(), vec![index].into()).unwrap()
        };
        let bands = |index| {
            let right = segment([f16::ONE, f16::NAN], index);
            vec![vec![segment([f16::ONE; 2], 0), right.clone()], vec![right, segment([f16::ONE; 2], 1)]]
        };
        assert_eq!(Palettized::new(bands(1)).unwrap().find_non_finite(), Some(1));
        assert_eq!(Palettized::new(bands(0)).unwrap().find_non_finite(), None, "an entry nobody uses");
    }
}
