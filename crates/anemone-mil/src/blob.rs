//! The weight file: a 64-byte header, then records of 64 bytes of description and a payload, everything aligned to 64 bytes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anemone_tensor::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::{DataType, Error, Weight, WeightSource};

const SENTINEL: u32 = 0xDEAD_BEEF;
const VERSION: u32 = 2;
const ALIGN: u64 = 64;
/// Bytes of a payload that are hashed to find candidates for equality; these are then compared whole.
const PREFIX: u64 = 64 << 10;

fn code(dtype: DataType) -> Option<u32> {
    Some(match dtype {
        DataType::Float16 => 1,
        DataType::Float32 => 2,
        DataType::Uint8 => 3,
        DataType::Int8 => 4,
        DataType::Bfloat16 => 5,
        DataType::Int16 => 6,
        DataType::Uint16 => 7,
        DataType::Int4 => 8,
        DataType::Uint1 => 9,
        DataType::Uint2 => 10,
        DataType::Uint4 => 11,
        DataType::Uint3 => 12,
        DataType::Uint6 => 13,
        DataType::Int32 => 14,
        DataType::Uint32 => 15,
        DataType::Float8E4m3 => 16,
        DataType::Float8E5m2 => 17,
        _ => return None,
    })
}

/// Packs codes of `bits` bits (1 to 8) into bytes, least significant bit first.
pub fn pack_bits(codes: &[u8], bits: usize) -> Vec<u8> {
    assert!((1..=8).contains(&bits), "1 to 8 bits");
    if bits == 8 {
        return codes.to_vec();
    }
    let mask = (1u64 << bits) - 1;
    let mut out = Vec::with_capacity((codes.len() * bits).div_ceil(8));
    // Eight codes fill as many bytes as a code has bits.
    for eight in codes.chunks(8) {
        let word = eight.iter().rev().fold(0u64, |word, code| word << bits | u64::from(*code) & mask);
        out.extend_from_slice(&word.to_le_bytes()[..(eight.len() * bits).div_ceil(8)]);
    }
    out
}

/// The inverse of [`pack_bits`] for `count` codes; `None` when the bytes are too few.
pub fn unpack_bits(bytes: &[u8], bits: usize, count: usize) -> Option<Vec<u8>> {
    assert!((1..=8).contains(&bits), "1 to 8 bits");
    let bytes = bytes.get(..count.checked_mul(bits)?.div_ceil(8))?;
    if bits == 8 {
        return Some(bytes.to_vec());
    }
    let mask = (1u64 << bits) - 1;
    let mut out = Vec::with_capacity(count.next_multiple_of(8));
    for some in bytes.chunks(bits) {
        let mut word = [0; 8];
        word[..some.len()].copy_from_slice(some);
        let word = u64::from_le_bytes(word);
        out.extend((0..8).map(|i| (word >> (i * bits) & mask) as u8));
    }
    out.truncate(count);
    Some(out)
}

/// Writes a weight file record by record; content already written is not written again.
#[derive(Debug)]
pub struct BlobWriter {
    file: BufWriter<File>,
    path: PathBuf,
    position: u64,
    records: u32,
    /// Type code, size and hash of each payload's beginning, to the offset of its record.
    seen: HashMap<(u32, u64, u128), u64>,
}

impl BlobWriter {
    /// Creates the file.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let mut file = BufWriter::with_capacity(64 << 10, File::create(path).map_err(io)?);
        file.write_all(&[0; ALIGN as usize]).map_err(io)?;
        Ok(Self { file, path: path.to_path_buf(), position: ALIGN, records: 0, seen: HashMap::new() })
    }

    /// Appends a weight and returns the offset of its record, or the offset of an equal one.
    pub fn put(&mut self, weight: &Weight) -> Result<u64, Error> {
        let dtype = weight.ty.dtype;
        let code = code(dtype).ok_or(Error::NotStorable(dtype))?;
        let bits = weight.ty.numel().saturating_mul(dtype.bits().unwrap_or(0));
        let size = bits.div_ceil(8) as u64;
        let record = self.position.next_multiple_of(ALIGN);
        let mut description = [0u8; ALIGN as usize];
        description[0..4].copy_from_slice(&SENTINEL.to_le_bytes());
        description[4..8].copy_from_slice(&code.to_le_bytes());
        description[8..16].copy_from_slice(&size.to_le_bytes());
        description[16..24].copy_from_slice(&(record + ALIGN).to_le_bytes());
        description[24..32].copy_from_slice(&(size * 8 - bits as u64).to_le_bytes());
        let padding = (record - self.position) as usize;
        let start = self.position;
        self.write(&[0; ALIGN as usize][..padding])?;
        self.write(&description)?;

        let mut payload = Payload { file: &mut self.file, hash: Xxh3::new(), size: 0, limit: size, io: None };
        let produced = match &weight.source {
            WeightSource::Bytes(bytes) => payload.write_all(bytes).map_err(Into::into),
            WeightSource::Stream(produce) => produce(&mut payload),
        };
        let (found, digest, failed) = (payload.size, payload.hash.digest128(), payload.io.take());
        if let Some(source) = failed {
            return Err(self.io(source));
        }
        produced.map_err(|source| Error::Weight { name: weight.name.clone(), source })?;
        if found != size {
            let problem = format!(
                "weight `{}` ({}) needs {size} bytes, its source gave {found}",
                weight.name, weight.ty
            );
            return Err(Error::Blob { offset: record, problem });
        }
        if let Some(&equal) = self.seen.get(&(code, size, digest))
            && self.is_equal(equal + ALIGN, record + ALIGN, size)?
        {
            self.file.seek(SeekFrom::Start(start)).map_err(|e| self.io(e))?;
            self.position = start;
            return Ok(equal);
        }
        self.seen.insert((code, size, digest), record);
        self.position = record + ALIGN + size;
        self.records += 1;
        Ok(record)
    }

    /// Completes the header and flushes; returns the file's length.
    pub fn finish(mut self) -> Result<u64, Error> {
        let (records, position, path) = (self.records, self.position, self.path.clone());
        let io = |source| Error::Io { path: path.clone(), source };
        self.file.flush().map_err(io)?;
        let mut file = self.file.into_inner().map_err(|e| io(e.into_error()))?;
        // A record given up for an equal one may have left bytes behind the end.
        file.set_len(position).map_err(io)?;
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        file.write_all(&records.to_le_bytes()).map_err(io)?;
        file.write_all(&VERSION.to_le_bytes()).map_err(io)?;
        Ok(position)
    }

    /// Whether two payloads in the file are the same.
    fn is_equal(&mut self, a: u64, b: u64, size: u64) -> Result<bool, Error> {
        let io = |e| Error::Io { path: self.path.clone(), source: e };
        self.file.flush().map_err(io)?;
        let open = |at: u64| -> io::Result<_> {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(at))?;
            Ok(BufReader::with_capacity(1 << 18, file))
        };
        let (mut a, mut b) = (open(a).map_err(io)?, open(b).map_err(io)?);
        let (mut left, mut right, mut remaining) = ([0; 1 << 14], [0; 1 << 14], size);
        while remaining > 0 {
            let n = remaining.min(left.len() as u64) as usize;
            a.read_exact(&mut left[..n]).map_err(io)?;
            b.read_exact(&mut right[..n]).map_err(io)?;
            if left[..n] != right[..n] {
                return Ok(false);
            }
            remaining -= n as u64;
        }
        Ok(true)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|e| self.io(e))
    }

    fn io(&self, source: io::Error) -> Error {
        Error::Io { path: self.path.clone(), source }
    }
}

/// Counts and hashes what a weight's producer writes, and keeps a failure of the file apart from its own.
struct Payload<'a> {
    file: &'a mut BufWriter<File>,
    /// Of the first [`PREFIX`] bytes.
    hash: Xxh3,
    size: u64,
    limit: u64,
    io: Option<io::Error>,
}

impl Write for Payload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let prefix = PREFIX.saturating_sub(self.size).min(bytes.len() as u64);
        self.hash.update(&bytes[..prefix as usize]);
        self.size += bytes.len() as u64;
        if self.size > self.limit {
            // Counted but not kept; the caller reports the excess.
            return Ok(bytes.len());
        }
        if let Err(error) = self.file.write_all(bytes) {
            self.io = Some(error);
            return Err(io::Error::other("the weight file could not be written"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads records of a mapped weight file.
#[derive(Debug, Clone)]
pub struct BlobReader {
    bytes: Bytes,
}

impl BlobReader {
    /// Checks the header.
    pub fn new(bytes: Bytes) -> Result<Self, Error> {
        let blob = |problem: String| Error::Blob { offset: 0, problem };
        if bytes.len() < ALIGN as usize {
            return Err(blob(format!("{} bytes are too few for a header of 64", bytes.len())));
        }
        match word(&bytes, 4) {
            VERSION => Ok(Self { bytes }),
            other => Err(blob(format!("version {other}, supported is 2"))),
        }
    }

    /// The payload of the record at `offset`, which must hold exactly `count` elements of `dtype`.
    pub fn get(&self, offset: u64, dtype: DataType, count: usize) -> Result<Bytes, Error> {
        let blob = |problem: String| Error::Blob { offset, problem };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let description = start.checked_add(ALIGN as usize).and_then(|end| self.bytes.get(start..end));
        let Some(description) = description else {
            return Err(blob(format!("the record lies beyond the file's {} bytes", self.bytes.len())));
        };
        if word(description, 0) != SENTINEL {
            return Err(blob("no record starts here".into()));
        }
        let expected = code(dtype).ok_or(Error::NotStorable(dtype))?;
        if word(description, 4) != expected {
            return Err(blob(format!(
                "the record's type code is {}, expected {expected} ({dtype})",
                word(description, 4)
            )));
        }
        let size = dtype.byte_len(count).ok_or_else(|| blob("the tensor's size overflows".into()))?;
        let (stored, at) = (long(description, 8), long(description, 16));
        if stored != size as u64 {
            return Err(blob(format!("the record holds {stored} bytes, the tensor needs {size}")));
        }
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let range = at.checked_add(size).and_then(|end| self.bytes.slice(at..end));
        range.ok_or_else(|| {
            blob(format!("the payload at {at} lies beyond the file's {} bytes", self.bytes.len()))
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorType;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_round_trip(codes in prop::collection::vec(any::<u8>(), 0..200), bits in 1usize..=8) {
            let codes: Vec<u8> = codes.iter().map(|c| c & (((1u16 << bits) - 1) as u8)).collect();
            let packed = pack_bits(&codes, bits);
            prop_assert_eq!(packed.len(), (codes.len() * bits).div_ceil(8));
            prop_assert_eq!(unpack_bits(&packed, bits, codes.len()).unwrap(), codes);
        }
    }

    #[test]
    fn packing_is_least_significant_bit_first() {
        assert_eq!(pack_bits(&[1, 2, 3], 4), [0x21, 0x03]);
        assert_eq!(pack_bits(&[0b101_010, 0b111_111], 6), [0b1110_1010, 0b1111]);
        assert!(unpack_bits(&[0], 6, 2).is_none());
    }

    fn weight(name: &str, dtype: DataType, count: usize, bytes: Vec<u8>) -> Weight {
        Weight {
            name: name.into(),
            ty: TensorType::new(dtype, [count]),
            source: WeightSource::Bytes(bytes.into()),
        }
    }

    #[test]
    fn records_round_trip_and_equal_content_is_stored_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weight.bin");
        let mut writer = BlobWriter::create(&path).unwrap();
        let a = writer.put(&weight("a", DataType::Float16, 50, vec![7; 100])).unwrap();
        let b = writer.put(&weight("b", DataType::Uint6, 5, pack_bits(&[1, 2, 3, 4, 5], 6))).unwrap();
        let again = writer.put(&weight("c", DataType::Float16, 50, vec![7; 100])).unwrap();
        let other = writer.put(&weight("d", DataType::Int8, 100, vec![7; 100])).unwrap();
        assert_eq!((a, again), (64, a));
        assert!(b > a && other > b && (b | other).is_multiple_of(64));
        let length = writer.finish().unwrap();
        let file = std::fs::read(&path).unwrap();
        assert_eq!(file.len() as u64, length);
        assert_eq!(word(&file, 0), 3);
        let reader = BlobReader::new(file.into()).unwrap();
        assert_eq!(&reader.get(a, DataType::Float16, 50).unwrap()[..], [7; 100]);
        let packed = reader.get(b, DataType::Uint6, 5).unwrap();
        assert_eq!(unpack_bits(&packed, 6, 5).unwrap(), [1, 2, 3, 4, 5]);
        for (offset, dtype, count, problem) in [
            (a, DataType::Float32, 50, "type code is 1"),
            (a, DataType::Float16, 51, "holds 100 bytes, the tensor needs 102"),
            (a + 64, DataType::Float16, 50, "no record starts here"),
            (1 << 40, DataType::Float16, 50, "beyond the file"),
        ] {
            let error = reader.get(offset, dtype, count).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn only_the_same_bytes_are_equal() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = BlobWriter::create(&dir.path().join("weight.bin")).unwrap();
        let mut payload = vec![3u8; 100_000];
        let a = writer.put(&weight("a", DataType::Int8, payload.len(), payload.clone())).unwrap();
        let same = writer.put(&weight("b", DataType::Int8, payload.len(), payload.clone())).unwrap();
        // Behind what is hashed.
        payload[99_999] = 4;
        let b = writer.put(&weight("c", DataType::Int8, payload.len(), payload)).unwrap();
        assert_eq!(a, same);
        assert!(b > a);
        assert!(writer.is_equal(a + ALIGN, a + ALIGN, 100_000).unwrap());
        assert!(!writer.is_equal(a + ALIGN, b + ALIGN, 100_000).unwrap());
        assert!(writer.is_equal(a + ALIGN, b + ALIGN, 99_999).unwrap());
    }

    #[test]
    fn a_source_of_the_wrong_length_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = BlobWriter::create(&dir.path().join("weight.bin")).unwrap();
        for bytes in [99, 101] {
            let error =
                writer.put(&weight("w", DataType::Float16, 50, vec![0; bytes])).unwrap_err().to_string();
            assert!(error.contains(&format!("needs 100 bytes, its source gave {bytes}")), "{error}");
        }
    }
}
