//! The metadata of a GGUF file: keys with typed values, decoded when asked for.

use std::collections::BTreeMap;
use std::ops::Range;

use anemone_tensor::Bytes;

use crate::Error;
use crate::text::quote;

/// Type of a value, by the number it has in the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    pub(super) fn of(id: u32) -> Option<Self> {
        const KINDS: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::Text,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        KINDS.get(id as usize).copied()
    }

    /// Bytes of a value; `None` when they vary.
    pub(super) fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::Array => None,
        }
    }
}

/// Where the value of a key lies.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) kind: Kind,
    /// Type and number of elements, for arrays.
    pub(super) array: Option<(Kind, usize)>,
    /// The value's bytes; the elements' for arrays, the characters' for text.
    pub(super) range: Range<usize>,
}

/// One value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetadataValue<'a> {
    /// A whole number.
    Int(i128),
    /// A real number.
    Real(f64),
    /// true or false.
    Flag(bool),
    /// Text.
    Text(&'a str),
    /// An array, which is read by [`Metadata::texts`] and [`Metadata::ints`].
    Array(usize),
}

/// The metadata of a file.
#[derive(Debug, Clone)]
pub struct Metadata {
    pub(super) label: String,
    pub(super) bytes: Bytes,
    pub(super) places: BTreeMap<String, Place>,
}

impl Metadata {
    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The value of a key; `None` when there is none.
    pub fn get(&self, key: &str) -> Option<MetadataValue<'_>> {
        let place = self.places.get(key)?;
        if let Some((_, count)) = place.array {
            return Some(MetadataValue::Array(count));
        }
        self.decode(place.kind, place.range.clone())
    }

    fn decode(&self, kind: Kind, range: Range<usize>) -> Option<MetadataValue<'_>> {
        use MetadataValue::{Flag, Int, Real, Text};
        let bytes = self.bytes.get(range)?;
        let mut wide = [0u8; 8];
        let n = bytes.len().min(8);
        wide[..n].copy_from_slice(&bytes[..n]);
        let unsigned = u64::from_le_bytes(wide);
        Some(match kind {
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => Int(i128::from(unsigned)),
            Kind::I8 => Int(i128::from(wide[0].cast_signed())),
            Kind::I16 => Int(i128::from(i16::from_le_bytes([wide[0], wide[1]]))),
            Kind::I32 => Int(i128::from((unsigned as u32).cast_signed())),
            Kind::I64 => Int(i128::from(unsigned.cast_signed())),
            Kind::F32 => Real(f64::from(f32::from_bits(unsigned as u32))),
            Kind::F64 => Real(f64::from_bits(unsigned)),
            Kind::Bool => Flag(wide[0] != 0),
            Kind::Text => Text(std::str::from_utf8(bytes).ok()?),
            Kind::Array => return None,
        })
    }

    /// An error about a key.
    pub(crate) fn wrong(&self, key: &str, problem: impl Into<String>) -> Error {
        Error::GgufKey { file: self.label.clone(), key: key.to_owned(), problem: problem.into() }
    }

    fn unexpected(&self, key: &str, found: MetadataValue<'_>, expected: &str) -> Error {
        let found = match found {
            MetadataValue::Int(n) => n.to_string(),
            MetadataValue::Real(x) => x.to_string(),
            MetadataValue::Flag(flag) => flag.to_string(),
            MetadataValue::Text(text) => quote(text),
            MetadataValue::Array(count) => format!("an array of {count}"),
        };
        self.wrong(key, format!("is {found}, expected {expected}"))
    }

    /// A count from 0 to 2^31.
    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(MetadataValue::Int(n)) if (0..=1 << 31).contains(&n) => Ok(Some(n as usize)),
            Some(other) => Err(self.unexpected(key, other, "a whole number from 0 to 2147483648")),
        }
    }

    /// A count that must be there.
    pub(crate) fn require(&self, key: &str) -> Result<usize, Error> {
        self.count(key)?.ok_or_else(|| self.wrong(key, "is missing; convert the model to GGUF again"))
    }

    /// A finite number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(MetadataValue::Real(x)) if x.is_finite() => Ok(Some(x)),
            Some(MetadataValue::Int(n)) => Ok(Some(n as f64)),
            Some(other) => Err(self.unexpected(key, other, "a finite number")),
        }
    }

    /// true or false.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(MetadataValue::Flag(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.unexpected(key, other, "true or false")),
        }
    }

    /// Text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(MetadataValue::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.unexpected(key, other, "a string")),
        }
    }

    /// An array of texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, Error> {
        let Some(place) = self.places.get(key) else { return Ok(None) };
        let Some((Kind::Text, count)) = place.array else {
            return Err(self.wrong(key, "is no array of strings; convert the model to GGUF again"));
        };
        let mut texts = Vec::with_capacity(count);
        let mut at = place.range.start;
        for _ in 0..count {
            // Lengths and characters were checked when the file was read.
            let length = self.bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
            let end = at + 8 + length.unwrap_or(0) as usize;
            let text = self.bytes.get(at + 8..end).and_then(|b| std::str::from_utf8(b).ok());
            texts.push(text.ok_or_else(|| self.wrong(key, "holds text that is not UTF-8"))?);
            at = end;
        }
        Ok(Some(texts))
    }

    /// An array of whole numbers or flags, or a single one of them as an array of one.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i128>>, Error> {
        let Some(place) = self.places.get(key) else { return Ok(None) };
        let (kind, count) = place.array.unwrap_or((place.kind, 1));
        let wrong = || self.wrong(key, "is no array of whole numbers; convert the model to GGUF again");
        let size = kind.size().ok_or_else(wrong)?;
        let at = |i: usize| place.range.start + i * size..place.range.start + (i + 1) * size;
        let value = |i| match self.decode(kind, at(i)) {
            Some(MetadataValue::Int(n)) => Ok(n),
            Some(MetadataValue::Flag(flag)) => Ok(i128::from(flag)),
            _ => Err(wrong()),
        };
        (0..count).map(value).collect::<Result<Vec<_>, _>>().map(Some)
    }
}
