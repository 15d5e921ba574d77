use crate::Bytes;
use half::f16;

/// Elements that share a scale, at most.
pub const BLOCK: usize = 32;

/// How elements of a [`Blocks`] matrix are coded; the names are those of GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[allow(non_camel_case_types, reason = "the names the formats have everywhere")]
pub enum BlockFormat {
    /// 4 bits around 8, a scale for 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32.
    Q4_1,
    /// 5 bits around 16, a scale for 32.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32.
    Q5_1,
    /// 8 bits with a sign, a scale for 32.
    Q8_0,
    /// 4 bits; scale and minimum of 32 are 6-bit multiples of those of 256.
    Q4_K,
    /// 5 bits; scale and minimum of 32 are 6-bit multiples of those of 256.
    Q5_K,
    /// 6 bits around 32; the scale of 16 is an 8-bit multiple of that of 256.
    Q6_K,
}

/// 32 elements of a row: `scales[i / 16] * (codes[i] - zero) - min`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    /// Codes, at least 0.
    pub codes: [u8; BLOCK],
    /// Scales of either half; the same unless the format says otherwise.
    pub scales: [f32; 2],
    /// What is taken from every element.
    pub min: f32,
}

/// A matrix `[rows, cols]` of coded elements, row by row without a gap.
#[derive(Debug, Clone)]
pub struct Blocks {
    format: BlockFormat,
    rows: usize,
    cols: usize,
    bytes: Bytes,
}

/// What is wrong with a matrix of blocks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// No rows, no columns, or more elements than memory could hold.
    #[error("{0} × {1} elements, which no matrix has")]
    Size(usize, usize),
    /// Rows that are no whole blocks.
    #[error("rows of {cols} elements, which are no whole blocks of {block}")]
    Row {
        /// Elements of a row.
        cols: usize,
        /// Elements of a block.
        block: usize,
    },
    /// Bytes of another length.
    #[error("{found} bytes, expected {expected}")]
    Len {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        expected: usize,
    },
}

impl BlockFormat {
    /// Every format.
    pub const ALL: [Self; 8] =
        [Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0, Self::Q4_K, Self::Q5_K, Self::Q6_K];

    /// Elements of a stored block.
    pub const fn elements(self) -> usize {
        match self {
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
            _ => BLOCK,
        }
    }

    /// Bytes of a stored block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Bits of a code.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4_K => 4,
            Self::Q5_0 | Self::Q5_1 | Self::Q5_K => 5,
            Self::Q6_K => 6,
            Self::Q8_0 => 8,
        }
    }

    /// The code of an element that is 0, minimum aside.
    pub const fn zero(self) -> u8 {
        match self {
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q6_K => 32,
            Self::Q8_0 => 128,
            Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K => 0,
        }
    }

    /// Name, as in GGUF.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
        }
    }

    /// Bytes of a row of `cols` elements; `None` when they are no whole blocks.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        cols.is_multiple_of(self.elements()).then(|| (cols / self.elements()).checked_mul(self.bytes()))?
    }

    /// The piece `part` of a stored block.
    fn piece(self, block: &[u8], part: usize) -> Piece {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let nibble = |at: usize, i: usize| block[at + i % 16] >> (i / 16 * 4) & 15;
        let fifth = |at: usize, i: usize| (block[at + i / 8] >> (i % 8) & 1) << 4;
        let plain = |scale: f32, min: f32, code: &dyn Fn(usize) -> u8| Piece {
            codes: std::array::from_fn(code),
            scales: [scale; 2],
            min,
        };
        match self {
            Self::Q4_0 => plain(half(0), 0.0, &|i| nibble(2, i)),
            Self::Q4_1 => plain(half(0), -half(2), &|i| nibble(4, i)),
            Self::Q5_0 => plain(half(0), 0.0, &|i| nibble(6, i) | fifth(2, i)),
            Self::Q5_1 => plain(half(0), -half(2), &|i| nibble(8, i) | fifth(4, i)),
            Self::Q8_0 => plain(half(0), 0.0, &|i| block[2 + i] ^ 0x80),
            Self::Q4_K | Self::Q5_K => {
                let (scale, min) = six_bits(&block[4..16], part);
                let codes = if self == Self::Q4_K { 16 } else { 48 };
                let low = |i: usize| block[codes + part / 2 * 32 + i] >> (part % 2 * 4) & 15;
                let high = |i: usize| {
                    if self == Self::Q4_K { 0 } else { (block[16 + i] >> part & 1) << 4 }
                };
                plain(half(0) * f32::from(scale), half(2) * f32::from(min), &|i| low(i) | high(i))
            }
            Self::Q6_K => {
                let (side, quarter) = (part / 4, part % 4);
                let low = |i: usize| block[side * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
                let high = |i: usize| (block[128 + side * 32 + i] >> (quarter * 2) & 3) << 4;
                let scale = |i: usize| half(208) * f32::from(block[192 + part * 2 + i].cast_signed());
                Piece {
                    codes: std::array::from_fn(|i| low(i) | high(i)),
                    scales: [scale(0), scale(1)],
                    min: 0.0,
                }
            }
        }
    }
}

/// Multiples of scale and minimum for 32 elements of 256, from 12 bytes.
pub fn six_bits(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        return (packed[part] & 0x3f, packed[part + 4] & 0x3f);
    }
    let shared = packed[part + 4];
    ((shared & 0xf) | (packed[part - 4] >> 2 & 0x30), (shared >> 4) | (packed[part] >> 2 & 0x30))
}

impl std::fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Blocks {
    /// Takes the bytes of `rows` rows one after the other.
    pub fn new(format: BlockFormat, (rows, cols): (usize, usize), bytes: Bytes) -> Result<Self, BlockError> {
        if rows == 0 || cols == 0 || rows.checked_mul(cols).is_none_or(|n| n > usize::MAX >> 4) {
            return Err(BlockError::Size(rows, cols));
        }
        let row = format.row_bytes(cols).ok_or(BlockError::Row { cols, block: format.elements() })?;
        let expected = row.checked_mul(rows).ok_or(BlockError::Size(rows, cols))?;
        if bytes.len() != expected {
            return Err(BlockError::Len { found: bytes.len(), expected });
        }
        Ok(Self { format, rows, cols, bytes })
    }

    /// How elements are coded.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.bytes.len() / self.rows
    }

    /// The bytes of a row.
    ///
    /// Panics when there is no such row.
    pub fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.row_bytes()..(row + 1) * self.row_bytes()]
    }

    /// Rows `first..end`; `None` when there are none, or fewer.
    pub fn slice(&self, first: usize, end: usize) -> Option<Self> {
        let row = self.row_bytes();
        let bytes = (first < end && end <= self.rows).then(|| self.bytes.slice(first * row..end * row))??;
        Some(Self { rows: end - first, bytes, ..*self })
    }

    /// Elements `32 * index..` of a row.
    ///
    /// Panics when there are none.
    pub fn piece(&self, row: usize, index: usize) -> Piece {
        let parts = self.format.elements() / BLOCK;
        let bytes = self.format.bytes();
        let block = &self.row(row)[index / parts * bytes..][..bytes];
        self.format.piece(block, index % parts)
    }

    /// Writes the elements of a row.
    ///
    /// Panics when there is no such row or `out` is not as long as one.
    pub fn expand_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "elements of a row");
        let zero = i32::from(self.format.zero());
        for (index, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            let piece = self.piece(row, index);
            for (i, (out, code)) in out.iter_mut().zip(piece.codes).enumerate() {
                *out = piece.scales[i / 16] * (i32::from(code) - zero) as f32 - piece.min;
            }
        }
    }

    /// The elements, `[rows, cols]`.
    pub fn expand(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        for (row, out) in out.chunks_exact_mut(self.cols).enumerate() {
            self.expand_row(row, out);
        }
        out
    }

    /// The first element, row by row, that is infinite or no number.
    pub fn find_non_finite(&self) -> Option<usize> {
        let mut out = vec![0.0; self.cols];
        (0..self.rows).find_map(|row| {
            self.expand_row(row, &mut out);
            out.iter().position(|v| !v.is_finite()).map(|at| row * self.cols + at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(format: BlockFormat, bytes: Vec<u8>) -> Vec<f32> {
        Blocks::new(format, (1, format.elements()), bytes.into()).unwrap().expand()
    }

    #[test]
    fn small_blocks_by_hand() {
        let half = |x: f32| f16::from_f32(x).to_le_bytes().to_vec();
        let mut q = half(0.5);
        q.extend((0..16).map(|i| i | (15 - i) << 4));
        let values = one(BlockFormat::Q4_0, q);
        assert_eq!((values[0], values[15], values[16], values[31]), (-4.0, 3.5, 3.5, -4.0));
        let mut q = half(0.5);
        q.extend((0..32).map(|i: i8| (i - 16).to_le_bytes()[0]));
        let values = one(BlockFormat::Q8_0, q);
        assert_eq!((values[0], values[31]), (-8.0, 7.5));
        let mut q = half(2.0);
        q.extend(half(-1.0));
        q.extend([0x21; 16]);
        let values = one(BlockFormat::Q4_1, q);
        assert_eq!((values[0], values[16]), (1.0, 3.0));
        let mut q = half(1.0);
        q.extend([1, 0, 0, 128]);
        q.extend([0; 16]);
        let values = one(BlockFormat::Q5_0, q);
        assert_eq!((values[0], values[1], values[31]), (0.0, -16.0, 0.0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let make = |shape, bytes: usize| {
            Blocks::new(BlockFormat::Q4_K, shape, vec![0; bytes].into()).map(|_| ()).unwrap_err()
        };
        assert_eq!(make((0, 256), 0), BlockError::Size(0, 256));
        assert_eq!(make((1, 32), 18), BlockError::Row { cols: 32, block: 256 });
        assert_eq!(make((2, 256), 144), BlockError::Len { found: 144, expected: 288 });
        assert_eq!(make((usize::MAX, 256), 144), BlockError::Size(usize::MAX, 256));
    }

    #[test]
    fn rows_are_cut_and_bad_scales_found() {
        let mut bytes = vec![0u8; 3 * 18];
        bytes[18..20].copy_from_slice(&f16::INFINITY.to_le_bytes());
        let all = Blocks::new(BlockFormat::Q4_0, (3, 32), bytes.into()).unwrap();
        assert_eq!(all.find_non_finite(), Some(32));
        assert_eq!(all.slice(1, 2).unwrap().find_non_finite(), Some(0));
        assert_eq!(all.slice(2, 3).unwrap().find_non_finite(), None);
        assert!(all.slice(2, 4).is_none() && all.slice(1, 1).is_none());
    }
}
