//! One compressed weight, from its source to what is written.

use std::error::Error as StdError;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anemone_mil::{WeightSource, pack_bits};
use anemone_palettize::{Distortion, Matrix};
use anemone_tensor::Bytes;
use half::f16;
use xxhash_rust::xxh3::Xxh3;

use super::{Encode, Encoded, Encoding, Site};

type Failure = Box<dyn StdError + Send + Sync>;

/// A weight that is compressed when its codes are written.
pub(crate) struct Slot {
    pub(crate) site: Site,
    pub(crate) encoding: Encoding,
    source: WeightSource,
    encode: Arc<Encode>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes of the tables, from when the codes are written until the tables are.
    table: Option<Vec<u8>>,
    outcome: Option<Outcome>,
}

/// What was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// Of the numbers the codes stand for.
    pub(crate) hash: u128,
    pub(crate) distortion: Distortion,
    pub(crate) bytes: u64,
}

impl Slot {
    pub(crate) fn new(site: Site, encoding: Encoding, source: WeightSource, encode: Arc<Encode>) -> Self {
        Self { site, encoding, source, encode, state: Mutex::default() }
    }

    fn encoded(&self) -> Result<Encoded, Failure> {
        let values = self.values()?;
        let matrix = Matrix::new(&values, self.site.rows(), self.site.columns())?;
        (self.encode)(&self.site, self.encoding, matrix)
    }

    /// The entries of the tables, before anything is written: the weight is compressed for them alone.
    pub(crate) fn entries(&self) -> Result<Vec<f32>, Failure> {
        let encoded = self.encoded()?;
        Ok(encoded.table().iter().map(|v| v.to_f32()).collect())
    }

    /// Compresses the weight and writes its packed codes.
    pub(crate) fn write_codes(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let encoded = self.encoded()?;
        let (packed, distortion) = match &encoded {
            Encoded::Palette(p) => (pack_bits(&p.codes, p.bits.into()), p.distortion),
            Encoded::Affine(a) => {
                let codes: Vec<u8> = a.integers.iter().map(|i| *i as u8).collect();
                (pack_bits(&codes, a.bits.into()), a.distortion)
            }
        };
        let hash = expansion_hash(&encoded);
        out.write_all(&packed)?;
        let table: Vec<u8> = encoded.table().iter().flat_map(|v| v.to_le_bytes()).collect();
        let bytes = (packed.len() + table.len()) as u64;
        *self.state() = State { table: Some(table), outcome: Some(Outcome { hash, distortion, bytes }) };
        Ok(())
    }

    /// Writes the tables of the codes written last.
    pub(crate) fn write_table(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let table = self.state().table.take();
        let table = table.ok_or("its tables were asked for before its codes")?;
        out.write_all(&table)?;
        Ok(())
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.state().outcome
    }

    /// The weight before compression.
    pub(crate) fn values(&self) -> Result<Vec<f16>, Failure> {
        let mut halves =
            Halves { values: Vec::with_capacity(self.site.rows() * self.site.columns()), odd: None };
        match &self.source {
            WeightSource::Bytes(bytes) => {
                const BLOCK: usize = 1 << 20;
                for start in (0..bytes.len()).step_by(BLOCK) {
                    let block = bytes.slice(start..(start + BLOCK).min(bytes.len()));
                    let block = block.ok_or("its bytes are not there")?;
                    halves.write_all(&block)?;
                    // What was read need not stay in memory.
                    Bytes::release(&block);
                }
            }
            WeightSource::Stream(produce) => produce(&mut halves)?,
        }
        Ok(halves.values)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Collects bytes as fp16 numbers.
struct Halves {
    values: Vec<f16>,
    /// The first byte of a number whose second is still to come.
    odd: Option<u8>,
}

impl Write for Halves {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        if let (Some(first), [second, after @ ..]) = (self.odd, rest) {
            self.values.push(f16::from_le_bytes([first, *second]));
            (self.odd, rest) = (None, after);
        }
        let (pairs, odd) = rest.as_chunks();
        self.values.extend(pairs.iter().map(|b| f16::from_le_bytes(*b)));
        self.odd = odd.first().copied().or(self.odd);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Hash of the numbers that codes stand for, a group at a time.
fn expansion_hash(encoded: &Encoded) -> u128 {
    let mut hash = Xxh3::new();
    match encoded {
        Encoded::Palette(p) => {
            let codes = p.codes.chunks((p.group_rows * p.columns / p.vector).max(1));
            for (codes, table) in codes.zip(p.tables.chunks(p.vector << p.bits)) {
                let part = anemone_palettize::decode(codes, table, p.group_rows, p.columns, p.bits, p.vector);
                update(&mut hash, &part);
            }
        }
        Encoded::Affine(a) => {
            for (integers, scale) in a.integers.chunks(a.columns.max(1)).zip(&a.scales) {
                update(&mut hash, &anemone_palettize::scaled(integers, &[*scale], a.columns));
            }
        }
    }
    hash.digest128()
}

pub(crate) fn hash(values: &[f16]) -> u128 {
    let mut hash = Xxh3::new();
    update(&mut hash, values);
    hash.digest128()
}

fn update(hash: &mut Xxh3, values: &[f16]) {
    let mut buffer = Vec::with_capacity(2 << 14);
    for block in values.chunks(1 << 14) {
        buffer.clear();
        buffer.extend(block.iter().flat_map(|v| v.to_le_bytes()));
        hash.update(&buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_come_in_odd_parts() {
        let values: Vec<f16> = (0..50u8).map(|i| f16::from_f32(f32::from(i) * 0.3)).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        for part in [1, 2, 3, 7, 100] {
            let mut halves = Halves { values: Vec::new(), odd: None };
            bytes.chunks(part).for_each(|b| halves.write_all(b).unwrap());
            assert_eq!(halves.values, values, "{part}");
        }
    }
}
