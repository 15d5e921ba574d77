use std::collections::HashMap;
use std::fmt;

use anemone_tensor::{Bytes, DType, Shape, Tensor};
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::Error;
use crate::text::quote;

/// Largest header the format allows.
const HEADER_LIMIT: u64 = 100_000_000;
/// Most tensors in one file: far above real checkpoints, far below what exhausts memory.
const TENSOR_LIMIT: usize = 1 << 20;
const RANK_LIMIT: usize = 16;
const PREFIX: usize = 8;

/// A parsed safetensors file: every tensor's place is known and lies within the bytes.
#[derive(Debug)]
pub struct SafetensorsFile {
    label: String,
    bytes: Bytes,
    tensors: Vec<StoredTensor>,
    by_name: HashMap<String, usize>,
}

/// One tensor of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// Its name.
    pub name: String,
    /// Element type as the file spells it.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Shape,
    /// First byte of the data, counted from the start of the file.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// Parses a whole safetensors file held in memory; the entry point for bytes of unknown origin.
pub fn parse_safetensors(bytes: Bytes) -> Result<SafetensorsFile, Error> {
    SafetensorsFile::parse("safetensors", bytes)
}

impl SafetensorsFile {
    /// Parses the header and checks every entry against the bytes; messages call the file `label`.
    pub fn parse(label: &str, bytes: Bytes) -> Result<Self, Error> {
        let (header, data_at) = split_header(label, &bytes)?;
        let raw = parse_header(label, header)?;
        let mut file = Self { label: label.to_owned(), bytes, tensors: Vec::new(), by_name: HashMap::new() };
        file.tensors.reserve_exact(raw.len());
        for (name, entry) in raw {
            file.tensors.push(stored(label, name, entry, data_at)?);
        }
        file.tensors.sort_by_key(|t| (t.start, t.end));
        check_layout(label, &file.tensors, data_at, file.bytes.len())?;
        file.by_name = file.tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(file)
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[StoredTensor] {
        &self.tensors
    }

    /// Where a tensor is.
    pub fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// A tensor sharing the file's bytes; errors when absent or of an element type that is not carried.
    pub fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let (file, name_owned) = (|| self.label.clone(), || name.to_owned());
        let stored =
            self.get(name).ok_or_else(|| Error::NoTensor { name: name_owned(), checkpoint: file() })?;
        let dtype = stored.known_dtype().ok_or_else(|| Error::UnsupportedDType {
            file: file(),
            name: name_owned(),
            dtype: stored.dtype.clone(),
        })?;
        let bytes = self.bytes.slice(stored.start..stored.end).ok_or_else(|| Error::Truncated {
            file: file(),
            tensor: name_owned(),
            expected: stored.end as u64,
            found: self.bytes.len(),
        })?;
        Tensor::new(dtype, stored.shape.clone(), bytes).map_err(|source| Error::Tensor {
            file: file(),
            name: name_owned(),
            source,
        })
    }

    /// The file as messages call it.
    pub fn label(&self) -> &str {
        &self.label
    }
}

impl StoredTensor {
    /// The element type when it is one this program carries.
    pub fn known_dtype(&self) -> Option<DType> {
        [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8]
            .into_iter()
            .find(|dtype| dtype.name() == self.dtype)
    }
}

fn split_header<'a>(label: &str, bytes: &'a [u8]) -> Result<(&'a [u8], usize), Error> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(Error::NoHeader { file: label.to_owned(), found: bytes.len() });
    };
    let length = u64::from_le_bytes(*prefix);
    let header = usize::try_from(length).ok().filter(|_| length <= HEADER_LIMIT).and_then(|n| rest.get(..n));
    match header {
        Some(header) => Ok((header, PREFIX + header.len())),
        None => Err(Error::HeaderLength {
            file: label.to_owned(),
            length,
            available: rest.len(),
            limit: HEADER_LIMIT,
        }),
    }
}

fn parse_header(label: &str, header: &[u8]) -> Result<Vec<(String, RawEntry)>, Error> {
    let mut current = None;
    let mut json = serde_json::Deserializer::from_slice(header);
    let parsed = HeaderSeed { current: &mut current }.deserialize(&mut json);
    let entries = parsed.and_then(|entries| json.end().map(|()| entries));
    entries.map_err(|source| Error::HeaderJson {
        file: label.to_owned(),
        offset: PREFIX + offset_of(header, source.line(), source.column()),
        tensor: current,
        source,
    })
}

/// Offset of a line and column as the JSON parser counts them.
fn offset_of(text: &[u8], line: usize, column: usize) -> usize {
    let starts = text.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1);
    let start = if line > 1 { starts.clone().nth(line - 2).unwrap_or(0) } else { 0 };
    (start + column.saturating_sub(1)).min(text.len())
}

fn stored(label: &str, name: String, entry: RawEntry, data_at: usize) -> Result<StoredTensor, Error> {
    let bad = |problem: String| Error::TensorInfo { file: label.to_owned(), tensor: name.clone(), problem };
    let [start, end] = entry.data_offsets;
    if end < start {
        return Err(bad(format!("data offsets [{start}, {end}] run backwards")));
    }
    let dims: Option<Vec<usize>> = entry.shape.0.iter().map(|&d| usize::try_from(d).ok()).collect();
    let numel = entry.shape.0.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    let (Some(dims), Some(numel)) = (dims, numel) else {
        return Err(bad(format!("the number of elements of shape {:?} overflows", entry.shape.0)));
    };
    let shape = Shape::new(dims);
    if let Some(bits) = bits(&entry.dtype) {
        let expected = numel
            .checked_mul(bits)
            .ok_or_else(|| bad(format!("the byte length of shape {shape} overflows")))?
            .div_ceil(8);
        if end - start != expected {
            return Err(bad(format!(
                "shape {shape} of {} needs {expected} bytes, but data offsets [{start}, {end}] hold {}",
                entry.dtype,
                end - start
            )));
        }
    }
    let place = |offset: u64| usize::try_from(offset).ok().and_then(|o| o.checked_add(data_at));
    match (place(start), place(end)) {
        (Some(start), Some(end)) => Ok(StoredTensor { name, dtype: entry.dtype, shape, start, end }),
        _ => Err(bad(format!("data offsets [{start}, {end}] overflow"))),
    }
}

/// The format's rule: in order of offset, tensors follow each other without overlap or gap and fill the file.
fn check_layout(label: &str, tensors: &[StoredTensor], data_at: usize, length: usize) -> Result<(), Error> {
    let mut at = data_at;
    let mut previous: Option<&StoredTensor> = None;
    for tensor in tensors {
        if tensor.start != at {
            let relation = if tensor.start < at { "overlaps" } else { "leaves a gap after" };
            let after = previous.map_or_else(|| "the header".to_owned(), |p| quote(&p.name));
            let problem =
                format!("data at byte {} {relation} {after}, which ends at byte {at}", tensor.start);
            let (file, tensor) = (label.to_owned(), tensor.name.clone());
            return Err(Error::TensorInfo { file, tensor, problem });
        }
        if tensor.end > length {
            return Err(Error::Truncated {
                file: label.to_owned(),
                tensor: tensor.name.clone(),
                expected: tensor.end as u64,
                found: length,
            });
        }
        at = tensor.end;
        previous = Some(tensor);
    }
    if at != length {
        return Err(Error::TrailingBytes { file: label.to_owned(), offset: at, extra: length - at });
    }
    Ok(())
}

/// Bits of one element, for the types whose size is known.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "C64" | "F64" | "I64" | "U64" => 64,
        _ => return None,
    })
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: RawShape,
    data_offsets: [u64; 2],
}

struct RawShape(Vec<u64>);

impl<'de> Deserialize<'de> for RawShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = RawShape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawShape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == RANK_LIMIT {
                        return Err(A::Error::custom(format!("more than {RANK_LIMIT} dimensions")));
                    }
                    dims.push(dim);
                }
                Ok(RawShape(dims))
            }
        }
        deserializer.deserialize_seq(Dims)
    }
}

/// Reads the header object entry by entry, so that duplicates are seen and an error knows its tensor.
struct HeaderSeed<'c> {
    current: &'c mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = Vec<(String, RawEntry)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = Vec<(String, RawEntry)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            *self.current = Some(name.clone());
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else if !seen.insert(name.clone()) {
                return Err(A::Error::custom("the name occurs twice"));
            } else if entries.len() == TENSOR_LIMIT {
                return Err(A::Error::custom(format!("more than {TENSOR_LIMIT} tensors")));
            } else {
                entries.push((name, map.next_value()?));
            }
            *self.current = None;
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn error(header: &str, data: usize) -> String {
        parse_safetensors(Bytes::from(file(header, data))).unwrap_err().to_string()
    }

    #[test]
    fn a_good_file_shares_its_bytes() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},
            "a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},
            "empty":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]}}  "#;
        let parsed = parse_safetensors(Bytes::from(file(header, 20))).unwrap();
        assert_eq!(parsed.tensor("b").unwrap().shape(), &Shape::from([2, 2]));
        assert_eq!(parsed.tensor("empty").unwrap().shape().numel(), 0);
        assert_eq!(parsed.tensors().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "empty", "b"]);
        let unread = parsed.tensor("a").unwrap_err().to_string();
        assert!(unread.contains("tensor `a` has element type `F8_E4M3`"), "{unread}");
        assert!(parsed.tensor("c").unwrap_err().to_string().contains("tensor `c` is not in"));
    }

    #[test]
    fn json_errors_carry_the_byte_and_the_tensor() {
        let header = r#"{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#;
        let text = error(header, 4);
        let byte = 8 + header.find("-1").unwrap();
        assert!(
            text.contains(&format!("at byte {byte}")) || text.contains(&format!("at byte {}", byte + 1)),
            "{text}"
        );
        assert!(text.contains("(tensor `w`)"), "{text}");
        assert!(error("{} x", 0).contains("trailing characters"));
        assert!(error("[]", 0).contains("expected an object of tensors"));
    }

    #[test]
    fn entries_must_agree_with_the_data() {
        let one = |shape: &str, offsets: &str| {
            format!(r#"{{"w":{{"dtype":"F16","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        assert!(error(&one("[2]", "[0,5]"), 5).contains("shape [2] of F16 needs 4 bytes"));
        assert!(error(&one("[2]", "[4,0]"), 4).contains("run backwards"));
        assert!(error(&one("[4294967296,4294967296]", "[0,4]"), 4).contains("overflows"));
        assert!(error(&one("[9223372036854775807]", "[0,4]"), 4).contains("overflows"));
        assert!(error(&one("[2]", "[18446744073709551611,18446744073709551615]"), 4).contains("overflow"));
        assert!(
            error(&one("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,4]"), 4)
                .contains("more than 16 dimensions")
        );
        assert!(error(&one("[2]", "[2,6]"), 6).contains("leaves a gap after the header"));
        assert!(error(&one("[2]", "[0,4]"), 6).contains("2 bytes follow the last tensor"));
    }
}
