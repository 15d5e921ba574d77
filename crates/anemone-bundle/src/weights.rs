use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

use anemone_checkpoint::{Entry, Weights};
use anemone_mil::{BlobReader, DataType};
use anemone_tensor::{Bytes, DType, PaletteError, Palettized, Segment, Shape, Tensor};
use half::f16;

use crate::compress::{Form, Packed};
use crate::compression::PieceEncoding;
use crate::manifest::Piece;
use crate::parts::Parts;
use crate::{Bundle, DecisionBundle, Error};

/// The checkpoint's tensors, read back from a bundle's packages as fp16.
///
/// A tensor stored whole and unscaled is shared with the mapped file; one that was cut, scaled or compressed is put together
/// again, which is exact (compressed weights are what their codes stand for) and costs its size in memory. A tensor that is the
/// host's too, as tied embeddings are, is the host's fp16. Codes of tables are shared with the file as [`Weights::palettized`].
pub struct BundleWeights {
    dir: PathBuf,
    stored: BTreeMap<String, Stored>,
}

struct Stored {
    shape: Shape,
    place: Place,
    /// What products can read without expanding it.
    palettized: Option<Palettized>,
}

enum Place {
    /// A host tensor's file, whole.
    Host(Tensor),
    Whole(Bytes),
    /// Parts that cover the tensor, each element once, with the elements of a row.
    Parts(usize, Vec<Part>),
}

struct Part {
    rows: Range<usize>,
    columns: Range<usize>,
    log2_scale: i32,
    numbers: Numbers,
}

enum Numbers {
    /// fp16, one for each element.
    Plain(Bytes),
    Coded(Packed<Bytes>),
}

impl Numbers {
    /// fp16 bytes; a text of what does not fit.
    fn bytes(&self) -> Result<Bytes, String> {
        match self {
            Self::Plain(bytes) => Ok(bytes.clone()),
            Self::Coded(packed) => {
                let values = packed.expand()?;
                Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into())
            }
        }
    }
}

impl BundleWeights {
    /// Maps the weight files of a bundle and checks that every tensor is in them.
    pub fn open(bundle: &Bundle) -> Result<Self, Error> {
        Self::of(bundle.parts())
    }

    /// [`BundleWeights::open`] for the bundle of a decision model.
    pub fn open_decision(bundle: &DecisionBundle) -> Result<Self, Error> {
        Self::of(bundle.parts())
    }

    fn of(bundle: Parts<'_>) -> Result<Self, Error> {
        let mut blobs = BTreeMap::new();
        for package in bundle.packages {
            let path = bundle.weight_file(&package.file);
            let io = |source| Error::Io { path: path.clone(), source };
            let bytes = Bytes::map(&File::open(&path).map_err(io)?).map_err(io)?;
            let blob = BlobReader::new(bytes).map_err(|e| e.in_file(&path))?;
            blobs.insert(package.file.as_str(), blob);
        }
        let mut stored = BTreeMap::new();
        for (name, shape) in bundle.tensors {
            let shape = Shape::new(shape.clone());
            let host = bundle.host.iter().find(|(_, h)| h.tensor == *name);
            // A tied embedding is the host's and, as the head, a package's too.
            let packed = match host {
                Some(_) if !bundle.weights.contains_key(name) => None,
                _ => Some(place(&bundle, &blobs, name, &shape)?),
            };
            let palettized = match &packed {
                Some(Place::Parts(_, parts)) => palettized(parts)
                    .transpose()
                    .map_err(|e| bundle.wrong(&format!("weights.{name}"), format!("has {e}")))?,
                _ => None,
            };
            let place = match (host, packed) {
                (Some((host, _)), _) => Place::Host(bundle.host_tensor(host)?),
                (None, Some(place)) => place,
                (None, None) => unreachable!("what is not the host's was looked for"),
            };
            stored.insert(name.clone(), Stored { shape, place, palettized });
        }
        Ok(Self { dir: bundle.dir.to_path_buf(), stored })
    }
}

fn place(
    bundle: &Parts<'_>,
    blobs: &BTreeMap<&str, BlobReader>,
    name: &str,
    shape: &Shape,
) -> Result<Place, Error> {
    let key = format!("weights.{name}");
    let wrong = |problem: String| bundle.wrong(&key, problem);
    let pieces = bundle.weights.get(name).ok_or_else(|| wrong("is absent".into()))?;
    let count = shape
        .checked_numel()
        .filter(|n| *n <= usize::MAX / 2)
        .ok_or_else(|| bundle.wrong(&format!("tensors.{name}"), format!("is {shape}, which is too large")))?;
    let mut parts = Vec::with_capacity(pieces.len());
    for (i, piece) in pieces.iter().enumerate() {
        let part = part(bundle, blobs, piece).map_err(|e| match e {
            Unfit::Entry(problem) => bundle.wrong(&format!("{key}[{i}]"), problem),
            Unfit::File(error) => error,
        })?;
        if let (0, Numbers::Plain(bytes)) = (part.log2_scale, &part.numbers)
            && bytes.len() == 2 * count
        {
            return Ok(Place::Whole(bytes.clone()));
        }
        parts.push(part);
    }
    parts.sort_by_key(|p| (p.rows.start, p.columns.start));
    let width = parts.last().map_or(0, |p| p.columns.end);
    let height = parts.last().map_or(0, |p| p.rows.end);
    if width.checked_mul(height) != Some(count) || !covers(&parts, width, height) {
        return Err(wrong(format!("has pieces that do not form the tensor's {shape}")));
    }
    Ok(Place::Parts(width, parts))
}

/// Whether sorted parts lie in bands of rows, each of them full, one after the other.
fn covers(parts: &[Part], width: usize, height: usize) -> bool {
    let (mut band, mut column) = (0..0, width);
    for part in parts {
        if column == width && part.rows.start == band.end {
            (band, column) = (part.rows.clone(), 0);
        }
        if part.rows != band || part.columns.start != column || part.columns.end > width {
            return false;
        }
        column = part.columns.end;
    }
    column == width && band.end == height
}

/// Sorted parts that cover a tensor, as one matrix of indices; `None` when one of them is stored in another way.
fn palettized(parts: &[Part]) -> Option<Result<Palettized, PaletteError>> {
    let mut bands: Vec<Vec<Segment>> = Vec::new();
    for part in parts {
        let Numbers::Coded(packed) = &part.numbers else { return None };
        let segment = match packed.segment(part.log2_scale)? {
            Ok(segment) => segment,
            Err(error) => return Some(Err(error)),
        };
        match bands.last_mut().filter(|_| part.columns.start > 0) {
            Some(band) => band.push(segment),
            None => bands.push(vec![segment]),
        }
    }
    Some(Palettized::new(bands))
}

enum Unfit {
    Entry(String),
    File(Error),
}

fn part(bundle: &Parts<'_>, blobs: &BTreeMap<&str, BlobReader>, piece: &Piece) -> Result<Part, Unfit> {
    let (record, entry) = (&piece.record, Unfit::Entry);
    let blob = blobs
        .get(piece.package.as_str())
        .ok_or_else(|| entry(format!("is in package `{}`, which is not among `packages`", piece.package)))?;
    if record.log2_scale.unsigned_abs() > 24 {
        return Err(entry(format!("has log2_scale {}, at most 24 is possible", record.log2_scale)));
    }
    let n = Shape::new(record.shape.clone()).checked_numel();
    let n = n.filter(|n| *n > 0 && record.rows.len().checked_mul(record.columns.len()) == Some(*n));
    let n = n.ok_or_else(|| {
        let (rows, columns) = (&record.rows, &record.columns);
        entry(format!(
            "has rows {rows:?} and columns {columns:?}, which do not fit its shape {:?}",
            record.shape
        ))
    })?;
    let numbers = match &piece.encoding {
        None if piece.dtype == DataType::Float16.name() => {
            let bytes = blob.get(piece.offset, DataType::Float16, n);
            Numbers::Plain(
                bytes.map_err(|e| Unfit::File(e.in_file(&bundle.weight_file(&piece.package)).into()))?,
            )
        }
        None => return Err(entry(format!("has dtype `{}`, expected `fp16`", piece.dtype))),
        Some(encoding) => Numbers::Coded(coded(bundle, blob, piece, encoding, n)?),
    };
    Ok(Part {
        rows: record.rows.clone(),
        columns: record.columns.clone(),
        log2_scale: record.log2_scale,
        numbers,
    })
}

/// The stored bytes of a compressed piece of `n` elements.
fn coded(
    bundle: &Parts<'_>,
    blob: &BlobReader,
    piece: &Piece,
    encoding: &PieceEncoding,
    n: usize,
) -> Result<Packed<Bytes>, Unfit> {
    let entry = Unfit::Entry;
    let rows = piece.record.rows.len();
    let (offset, few, form, elements, entries) = match encoding {
        PieceEncoding::Table { offset, entries: few, bits, groups, vector } => {
            let (bits, groups, vector) = (*bits, *groups, *vector);
            let entries = groups
                .checked_mul(vector)
                .filter(|n| *n > 0 && bits <= 8)
                .and_then(|n| n.checked_mul(1 << bits));
            let entries = entries.ok_or_else(|| entry("has tables that are impossible".into()))?;
            (offset, few, Form::Table { bits, groups, vector }, n / vector, entries)
        }
        PieceEncoding::Scaled { offset, scales, bits } => {
            (offset, scales, Form::Scaled { bits: *bits }, n, rows)
        }
    };
    let bits = match form {
        Form::Table { bits, .. } | Form::Scaled { bits } => usize::from(bits),
    };
    let dtype = DataType::from_name(&piece.dtype)
        .ok_or_else(|| entry(format!("has dtype `{}`, which is none of codes", piece.dtype)))?;
    // Codes before version 9 are packed into bytes.
    let count = match dtype {
        DataType::Uint8 => elements.saturating_mul(bits).div_ceil(8),
        _ => elements,
    };
    let get = |offset, dtype, count| {
        let bytes = blob.get(offset, dtype, count);
        bytes.map_err(|e| Unfit::File(e.in_file(&bundle.weight_file(&piece.package)).into()))
    };
    let codes = get(piece.offset, dtype, count)?;
    let table = match offset {
        Some(offset) => get(*offset, DataType::Float16, entries)?,
        None if few.len() == entries => {
            few.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect::<Vec<u8>>().into()
        }
        None => return Err(entry(format!("has {} numbers in its tables, expected {entries}", few.len()))),
    };
    Ok(Packed { codes, table, form, rows, columns: n / rows })
}

/// Puts a tensor of rows of `width` elements together.
fn join(width: usize, parts: &[Part], count: usize) -> Result<Vec<u8>, String> {
    let mut out = vec![0u8; count * 2];
    for part in parts {
        let bytes = part.numbers.bytes()?;
        let (n, scale) = (part.columns.len(), f32::powi(2.0, -part.log2_scale));
        let rows = out.chunks_exact_mut(2 * width).skip(part.rows.start);
        for (row, line) in rows.zip(bytes.chunks_exact(2 * n)) {
            let target = &mut row[2 * part.columns.start..2 * part.columns.end];
            if part.log2_scale == 0 {
                target.copy_from_slice(line);
                continue;
            }
            for (o, b) in target.chunks_exact_mut(2).zip(line.chunks_exact(2)) {
                let value = f16::from_le_bytes([b[0], b[1]]).to_f32() * scale;
                o.copy_from_slice(&f16::from_f32(value).to_le_bytes());
            }
        }
    }
    Ok(out)
}

impl Weights for BundleWeights {
    fn entry(&self, name: &str) -> Option<Entry> {
        self.stored.get(name).map(|s| Entry { dtype: DType::F16, shape: s.shape.clone() })
    }

    fn tensor(&self, name: &str) -> Result<Tensor, anemone_checkpoint::Error> {
        let error = |problem: String| anemone_checkpoint::Error::Stored {
            store: self.dir.display().to_string(),
            tensor: name.to_string(),
            problem,
        };
        let stored = self.stored.get(name).ok_or_else(|| error("is not part of the model".into()))?;
        let bytes = match &stored.place {
            Place::Host(tensor) => return Ok(tensor.clone()),
            Place::Whole(bytes) => bytes.clone(),
            Place::Parts(width, parts) => join(*width, parts, stored.shape.numel()).map_err(error)?.into(),
        };
        Tensor::new(DType::F16, stored.shape.clone(), bytes).map_err(|e| error(e.to_string()))
    }

    fn palettized(&self, name: &str) -> Result<Option<Palettized>, anemone_checkpoint::Error> {
        Ok(self.stored.get(name).and_then(|stored| stored.palettized.clone()))
    }

    fn names(&self) -> Vec<String> {
        self.stored.keys().cloned().collect()
    }
}

impl fmt::Debug for BundleWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BundleWeights({})", self.dir.display())
    }
}
