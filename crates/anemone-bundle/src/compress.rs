//! Programs with compressed weights.
//!
//! A weight that feeds a convolution and nothing else is replaced by codes and a table, which a `constexpr` operation expands.
//! Weights stream: one is read, compressed and written before the next. What was written is read back from the finished package,
//! decoded and compared before the package counts.

mod check;
mod expand;
mod rewrite;
mod slot;

use std::error::Error as StdError;
use std::sync::Arc;

use anemone_ane::WeightRecord;
use anemone_palettize::{Affine, Matrix, Palettized, Scheme};
use half::f16;

pub(crate) use check::check;
pub(crate) use expand::{Form, Packed};
pub(crate) use rewrite::{Place, Table, rewrite};

/// A weight that may be compressed.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// The checkpoint tensors it is a part of; several where equal parts are stored once.
    pub records: Vec<WeightRecord>,
    /// Shape as stored: output channels first.
    pub shape: Vec<usize>,
}

impl Site {
    /// Name of the checkpoint tensor.
    pub fn tensor(&self) -> &str {
        self.records.first().map_or("", |r| &r.tensor)
    }

    /// Output channels.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements of an output channel.
    pub fn columns(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// How a weight is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Codes and tables.
    Palette(Scheme),
    /// Integers of this many bits, with a scale for each output channel.
    Affine(u8),
}

/// A weight's codes and tables, or integers and scales.
#[derive(Debug, Clone, PartialEq)]
pub enum Encoded {
    /// Codes and tables.
    Palette(Palettized),
    /// Integers and scales.
    Affine(Affine),
}

impl Encoded {
    /// Entries of all tables, or scales.
    fn table(&self) -> &[f16] {
        match self {
            Self::Palette(p) => &p.tables,
            Self::Affine(a) => &a.scales,
        }
    }
}

/// Decides which weights are compressed and how; none leaves a weight as it is.
pub type Choose = dyn Fn(&Site) -> Option<Encoding> + Send + Sync;

/// Compresses a weight as chosen.
pub type Encode =
    dyn Fn(&Site, Encoding, Matrix<'_>) -> Result<Encoded, Box<dyn StdError + Send + Sync>> + Send + Sync;

/// What compresses the weights of a program.
#[derive(Clone)]
pub struct Compressor {
    /// Which weights, and how.
    pub choose: Arc<Choose>,
    /// The work itself, run while the package is written.
    pub encode: Arc<Encode>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compressor")
    }
}

impl Encoding {
    /// Bits of a code or integer.
    pub fn bits(&self) -> u8 {
        match self {
            Self::Palette(scheme) => scheme.bits,
            Self::Affine(bits) => *bits,
        }
    }

    /// Rows that share a table or scale; errors, with the remedy, where no package of this version can hold the weight so.
    pub(crate) fn group_rows(&self, rows: usize, spec_version: i32) -> Result<usize, String> {
        match self {
            Self::Palette(scheme) => {
                scheme.check().map_err(|e| e.to_string())?;
                let group = scheme.group_rows(rows).map_err(|e| e.to_string())?;
                if spec_version < 9 && (group < rows || scheme.vector > 1 || scheme.bits == 3) {
                    return Err(format!(
                        "specification version {spec_version} has one table of single numbers for a tensor, with 1, 2, 4, 6 \
                         or 8 bits; use that, or a target from macos15 on"
                    ));
                }
                Ok(group)
            }
            Self::Affine(8) => Ok(1),
            Self::Affine(4) if spec_version >= 9 => Ok(1),
            Self::Affine(4) => Err(format!(
                "specification version {spec_version} has no int4; use int8, or a target from macos15 on"
            )),
            Self::Affine(bits) => Err(format!("int{bits} is not supported; use int4 or int8")),
        }
    }
}
