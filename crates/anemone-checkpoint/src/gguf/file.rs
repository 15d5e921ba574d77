//! The file: header, metadata, table of tensors, data. Every length is checked before it is used.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anemone_tensor::{BlockFormat, Bytes, DType};

use super::metadata::{Kind, Metadata, Place};
use crate::Error;
use crate::text::{impostor, quote};

const MAGIC: &[u8] = b"GGUF";
/// More keys or tensors than any file has.
const MOST: u64 = 100_000;
/// Longest name of a key or tensor.
const LONGEST_NAME: usize = 1 << 16;
/// Deepest array of arrays.
const DEEPEST: usize = 4;
const DAMAGED: &str = "the file is damaged or was not downloaded whole; download it again";

/// How the elements of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorType {
    /// One after the other.
    Plain(DType),
    /// In coded blocks.
    Blocks(BlockFormat),
    /// A type that is not carried, by its number.
    Other(u32),
}

impl TensorType {
    fn of(id: u32) -> Self {
        match id {
            0 => Self::Plain(DType::F32),
            1 => Self::Plain(DType::F16),
            30 => Self::Plain(DType::BF16),
            26 => Self::Plain(DType::I32),
            27 => Self::Plain(DType::I64),
            2 => Self::Blocks(BlockFormat::Q4_0),
            3 => Self::Blocks(BlockFormat::Q4_1),
            6 => Self::Blocks(BlockFormat::Q5_0),
            7 => Self::Blocks(BlockFormat::Q5_1),
            8 => Self::Blocks(BlockFormat::Q8_0),
            12 => Self::Blocks(BlockFormat::Q4_K),
            13 => Self::Blocks(BlockFormat::Q5_K),
            14 => Self::Blocks(BlockFormat::Q6_K),
            other => Self::Other(other),
        }
    }

    /// The number of the type in the format.
    pub(super) fn id(self) -> u32 {
        if let Self::Other(id) = self {
            return id;
        }
        (0..=30).find(|id| Self::of(*id) == self).expect("every type that is carried has a number")
    }

    /// Name, as in GGUF.
    pub fn name(self) -> String {
        match self {
            Self::Plain(dtype) => dtype.name().to_owned(),
            Self::Blocks(format) => format.name().to_owned(),
            Self::Other(id) => match id {
                10 => "Q2_K".to_owned(),
                11 => "Q3_K".to_owned(),
                16 => "IQ2_XXS".to_owned(),
                17 => "IQ2_XS".to_owned(),
                18 => "IQ3_XXS".to_owned(),
                19 => "IQ1_S".to_owned(),
                20 => "IQ4_NL".to_owned(),
                21 => "IQ3_S".to_owned(),
                22 => "IQ2_S".to_owned(),
                23 => "IQ4_XS".to_owned(),
                29 => "IQ1_M".to_owned(),
                34 => "TQ1_0".to_owned(),
                35 => "TQ2_0".to_owned(),
                39 => "MXFP4".to_owned(),
                _ => format!("type {id}"),
            },
        }
    }

    /// What rows of `cols` elements take.
    pub(super) fn size(self, cols: usize, rows: usize) -> Size {
        let row = match self {
            Self::Plain(dtype) => cols.checked_mul(dtype.size()),
            Self::Blocks(format) => format.row_bytes(cols),
            Self::Other(_) => return Size::Unknown,
        };
        row.and_then(|row| row.checked_mul(rows)).map_or(Size::Impossible, Size::Bytes)
    }
}

/// What a tensor takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// So many bytes.
    Bytes(usize),
    /// The type is not carried.
    Unknown,
    /// Rows are no whole blocks, or there are more bytes than memory could hold.
    Impossible,
}

/// A tensor of a file.
#[derive(Debug, Clone)]
pub struct GgufTensor {
    /// Name.
    pub name: String,
    /// How its elements are stored.
    pub kind: TensorType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its bytes; none when the type is not carried.
    pub bytes: Bytes,
}

/// A GGUF file, mapped.
#[derive(Debug)]
pub struct GgufFile {
    metadata: Metadata,
    tensors: BTreeMap<String, GgufTensor>,
    len: u64,
}

impl GgufFile {
    /// Maps and parses a file. It must not be changed while in use.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mapped = File::open(path).and_then(|file| Bytes::map(&file));
        let bytes = mapped.map_err(|source| Error::Io { action: "map", path: path.to_owned(), source })?;
        Self::parse(&path.display().to_string(), &bytes)
    }

    /// Parses the bytes of a file that messages call `label`.
    pub fn parse(label: &str, bytes: &Bytes) -> Result<Self, Error> {
        let mut at = Cursor { label, bytes, at: 0 };
        let version = at.header()?;
        if version == 1 {
            let remedy = "convert the model again, with a converter of 2023-10 or later";
            return Err(at.error(4, "GGUF version 1, which nothing writes any more;".to_owned(), remedy));
        }
        let tensor_count = at.table("tensors")?;
        let key_count = at.table("keys")?;
        let mut places = BTreeMap::new();
        for _ in 0..key_count {
            let start = at.at;
            let key = at.name("key")?;
            let place = at.place(&key)?;
            if places.insert(key.clone(), place).is_some() {
                return Err(at.error(start, format!("key {} is there twice", quote(&key)), DAMAGED));
            }
        }
        let metadata = Metadata { label: label.to_owned(), bytes: bytes.clone(), places };
        let alignment = match metadata.count("general.alignment")? {
            None => 32,
            Some(n) if n.is_power_of_two() && (8..=1 << 20).contains(&n) => n,
            Some(n) => {
                let problem = format!("is {n}, expected a power of two from 8 to 1048576");
                return Err(metadata.wrong("general.alignment", problem));
            }
        };
        let mut infos = Vec::new();
        for _ in 0..tensor_count {
            infos.push(at.info()?);
        }
        let data = at.at.checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
        let tensors = place_tensors(&at, infos, data, alignment)?;
        let len = bytes.len() as u64;
        Ok(Self { metadata, tensors, len })
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    /// Every tensor, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &GgufTensor> {
        self.tensors.values()
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.get(name)
    }

    /// The file as messages call it.
    pub fn label(&self) -> &str {
        &self.metadata.label
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file holds no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}

struct Info {
    name: String,
    /// Where its entry in the table starts.
    entry: usize,
    kind: TensorType,
    shape: Vec<usize>,
    offset: u64,
    /// `None` when the type is not carried.
    len: Option<usize>,
}

fn place_tensors(
    at: &Cursor<'_>,
    infos: Vec<Info>,
    data: usize,
    alignment: usize,
) -> Result<BTreeMap<String, GgufTensor>, Error> {
    let mut tensors = BTreeMap::new();
    let mut ranges = Vec::new();
    for info in infos {
        let name = quote(&info.name);
        if !info.offset.is_multiple_of(alignment as u64) {
            let problem = format!("tensor {name} has offset {}, no multiple of {alignment},", info.offset);
            return Err(at.error(info.entry, problem, DAMAGED));
        }
        let start = usize::try_from(info.offset).ok().and_then(|o| o.checked_add(data));
        let range = start.and_then(|s| s.checked_add(info.len.unwrap_or(0)).map(|end| s..end));
        let bytes = range.clone().and_then(|range| at.bytes.slice(range));
        let (Some(range), Some(bytes)) = (range, bytes) else {
            let problem = format!(
                "tensor {name} of {} bytes at offset {} reaches beyond the file's {} bytes, by its entry",
                info.len.unwrap_or(0),
                info.offset,
                at.bytes.len()
            );
            return Err(at.error(info.entry, problem, DAMAGED));
        };
        ranges.push((range.start, range.end, info.name.clone()));
        let tensor = GgufTensor { name: info.name.clone(), kind: info.kind, shape: info.shape, bytes };
        if tensors.insert(info.name, tensor).is_some() {
            return Err(at.error(info.entry, format!("tensor {name} is there twice"), DAMAGED));
        }
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if pair[1].0 < pair[0].1 {
            let problem = format!("tensors {} and {} overlap", quote(&pair[0].2), quote(&pair[1].2));
            return Err(at.error(pair[1].0, problem, DAMAGED));
        }
    }
    Ok(tensors)
}

struct Cursor<'a> {
    label: &'a str,
    bytes: &'a Bytes,
    at: usize,
}

impl Cursor<'_> {
    fn error(&self, offset: usize, problem: String, remedy: &'static str) -> Error {
        Error::Gguf { file: self.label.to_owned(), problem, offset, remedy }
    }

    fn take(&mut self, len: usize, what: &str) -> Result<&[u8], Error> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            let left = self.bytes.len() - self.at;
            return Err(self.error(
                self.at,
                format!("{what} of {len} bytes where {left} are left,"),
                DAMAGED,
            ));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn u32(&mut self, what: &str) -> Result<u32, Error> {
        let bytes = self.take(4, what)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn u64(&mut self, what: &str) -> Result<u64, Error> {
        let mut wide = [0; 8];
        wide.copy_from_slice(self.take(8, what)?);
        Ok(u64::from_le_bytes(wide))
    }

    /// Magic and version.
    fn header(&mut self) -> Result<u32, Error> {
        if !self.bytes.starts_with(MAGIC) {
            if let Some((found, remedy)) = impostor(self.bytes) {
                return Err(Error::Impostor { file: self.label.to_owned(), found, remedy });
            }
            let problem = "no GGUF file: it does not begin with `GGUF`".to_owned();
            return Err(self.error(0, problem, "pass a GGUF file, or download it again"));
        }
        self.at = MAGIC.len();
        let version = self.u32("the version")?;
        match version {
            1..=3 => Ok(version),
            n if (1..=3).contains(&n.swap_bytes()) => {
                Err(self.error(4, "a big-endian file".to_owned(), "use the little-endian file of this model"))
            }
            n => Err(self.error(4, format!("GGUF version {n}, and 2 and 3 are known,"), "update anemone")),
        }
    }

    /// A number of entries.
    fn table(&mut self, what: &str) -> Result<u64, Error> {
        let start = self.at;
        let count = self.u64(what)?;
        if count > MOST {
            return Err(self.error(start, format!("{count} {what}, more than {MOST},"), DAMAGED));
        }
        Ok(count)
    }

    fn name(&mut self, what: &str) -> Result<String, Error> {
        let range = self.text(what)?;
        if range.len() > LONGEST_NAME {
            return Err(self.error(range.start, format!("{what} of {} bytes,", range.len()), DAMAGED));
        }
        // Checked to be UTF-8 when it was passed.
        Ok(String::from_utf8_lossy(&self.bytes[range]).into_owned())
    }

    /// Passes a string and gives where its characters are.
    fn text(&mut self, what: &str) -> Result<std::ops::Range<usize>, Error> {
        let length = self.u64(what)?;
        let start = self.at;
        let taken = self.take(usize::try_from(length).unwrap_or(usize::MAX), what)?;
        if std::str::from_utf8(taken).is_err() {
            return Err(self.error(start, format!("{what} that is not UTF-8"), DAMAGED));
        }
        Ok(start..self.at)
    }

    fn kind(&mut self, key: &str) -> Result<Kind, Error> {
        let start = self.at;
        let id = self.u32("a value's type")?;
        Kind::of(id).ok_or_else(|| {
            self.error(start, format!("key {} has a value of type {id},", quote(key)), DAMAGED)
        })
    }

    /// Passes the value of a key.
    fn place(&mut self, key: &str) -> Result<Place, Error> {
        let kind = self.kind(key)?;
        if kind == Kind::Array {
            let (element, count) = (self.kind(key)?, self.u64("an array's length")?);
            let start = self.at;
            self.elements(key, element, count, 1)?;
            return Ok(Place { kind, array: Some((element, count as usize)), range: start..self.at });
        }
        let what = format!("the value of {}", quote(key));
        let range = match kind.size() {
            Some(size) => {
                let start = self.at;
                self.take(size, &what)?;
                start..self.at
            }
            None => self.text(&what)?,
        };
        Ok(Place { kind, array: None, range })
    }

    fn elements(&mut self, key: &str, kind: Kind, count: u64, depth: usize) -> Result<(), Error> {
        let what = format!("the values of {}", quote(key));
        if let Some(size) = kind.size() {
            let len = usize::try_from(count).ok().and_then(|n| n.checked_mul(size)).unwrap_or(usize::MAX);
            return self.take(len, &what).map(|_| ());
        }
        // Each takes eight bytes at least, so a false count soon meets the end.
        for _ in 0..count {
            if kind == Kind::Text {
                self.text(&what)?;
                continue;
            }
            if depth == DEEPEST {
                return Err(self.error(self.at, format!("arrays {DEEPEST} deep in {}", quote(key)), DAMAGED));
            }
            let (element, count) = (self.kind(key)?, self.u64("an array's length")?);
            self.elements(key, element, count, depth + 1)?;
        }
        Ok(())
    }

    /// An entry of the table of tensors.
    fn info(&mut self) -> Result<Info, Error> {
        let entry = self.at;
        let name = self.name("a tensor's name")?;
        let dims = self.u32("a tensor's number of dimensions")?;
        if !(1..=4).contains(&dims) {
            let problem = format!("tensor {} has {dims} dimensions, expected 1 to 4,", quote(&name));
            return Err(self.error(entry, problem, DAMAGED));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            let dim = self.u64("a dimension")?;
            shape.push(usize::try_from(dim).unwrap_or(usize::MAX));
        }
        let kind = TensorType::of(self.u32("a tensor's type")?);
        let offset = self.u64("a tensor's offset")?;
        let cols = shape[0];
        let rows = shape[1..].iter().try_fold(1usize, |n, dim| n.checked_mul(*dim));
        let rows = rows.filter(|rows| *rows > 0 && cols > 0);
        let size = rows.map_or(Size::Impossible, |rows| kind.size(cols, rows));
        if size == Size::Impossible {
            let problem =
                format!("tensor {} of {} has impossible dimensions {shape:?}", quote(&name), kind.name());
            return Err(self.error(entry, problem, DAMAGED));
        }
        let len = if let Size::Bytes(len) = size { Some(len) } else { None };
        shape.reverse();
        Ok(Info { name, entry, kind, shape, offset, len })
    }
}
