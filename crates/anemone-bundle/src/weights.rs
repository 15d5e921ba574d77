use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;

use anemone_checkpoint::{Entry, Weights};
use anemone_mil::{BlobReader, DataType};
use anemone_tensor::{Bytes, DType, Shape, Tensor};
use half::f16;

use crate::manifest::Piece;
use crate::{Bundle, Error};

/// The checkpoint's tensors, read back from a bundle's packages as fp16.
///
/// A tensor stored whole and unscaled is shared with the mapped file; one that was cut or scaled is put together again, which
/// is exact and costs its size in memory.
pub struct BundleWeights {
    bundle: Bundle,
    blobs: BTreeMap<String, BlobReader>,
    shapes: BTreeMap<String, Shape>,
}

impl BundleWeights {
    /// Maps the weight files of a bundle.
    pub fn open(bundle: &Bundle) -> Result<Self, Error> {
        let tensors = &bundle.manifest().tensors;
        let shapes = tensors.iter().map(|(name, shape)| (name.clone(), Shape::new(shape.clone()))).collect();
        let mut blobs = BTreeMap::new();
        for package in &bundle.manifest().packages {
            let path = bundle.path(&package.file).join("Data/com.apple.CoreML/weights/weight.bin");
            let io = |source| Error::Io { path: path.clone(), source };
            let bytes = Bytes::map(&File::open(&path).map_err(io)?).map_err(io)?;
            blobs.insert(package.file.clone(), BlobReader::new(bytes)?);
        }
        Ok(Self { bundle: bundle.clone(), blobs, shapes })
    }

    fn read(&self, name: &str, pieces: &[Piece], shape: &Shape) -> Result<Tensor, String> {
        let count = shape.numel();
        let payload = |piece: &Piece| {
            let blob = self
                .blobs
                .get(&piece.package)
                .ok_or_else(|| format!("package `{}` is not there", piece.package))?;
            if piece.dtype != DataType::Float16.name() {
                return Err(format!("is stored as {}, expected fp16", piece.dtype));
            }
            let n = piece.record.shape.iter().product();
            blob.get(piece.offset, DataType::Float16, n).map_err(|e| e.to_string())
        };
        let whole =
            |p: &&Piece| p.record.log2_scale == 0 && p.record.shape.iter().product::<usize>() == count;
        if let Some(piece) = pieces.iter().find(whole) {
            return Tensor::new(DType::F16, shape.clone(), payload(piece)?).map_err(|e| e.to_string());
        }
        // One row is `width` elements; vectors are one row.
        let rows = pieces.iter().map(|p| p.record.rows.end).max().unwrap_or(0);
        let width = count
            .checked_div(rows)
            .filter(|w| w * rows == count)
            .ok_or("its pieces do not form its shape")?;
        let mut out = vec![0u8; count * 2];
        let mut covered = 0;
        for piece in pieces {
            let record = &piece.record;
            let (n, scale) = (record.columns.len(), f32::powi(2.0, -(record.log2_scale as i32)));
            if record.columns.end > width || record.rows.len() * n != record.shape.iter().product::<usize>() {
                return Err(format!(
                    "piece {:?} × {:?} does not fit its shape {shape}",
                    record.rows, record.columns
                ));
            }
            let bytes = payload(piece)?;
            for (row, line) in record.rows.clone().zip(bytes.chunks_exact(2 * n)) {
                let at = 2 * (row * width + record.columns.start);
                let target = &mut out[at..at + 2 * n];
                if record.log2_scale == 0 {
                    target.copy_from_slice(line);
                    continue;
                }
                for (o, b) in target.chunks_exact_mut(2).zip(line.chunks_exact(2)) {
                    let value = f16::from_le_bytes([b[0], b[1]]).to_f32() * scale;
                    o.copy_from_slice(&f16::from_f32(value).to_le_bytes());
                }
            }
            covered += record.rows.len() * n;
        }
        if covered != count {
            return Err(format!("its pieces cover {covered} of {count} elements of `{name}`"));
        }
        Tensor::new(DType::F16, shape.clone(), out.into()).map_err(|e| e.to_string())
    }
}

impl Weights for BundleWeights {
    fn entry(&self, name: &str) -> Option<Entry> {
        self.shapes.get(name).map(|shape| Entry { dtype: DType::F16, shape: shape.clone() })
    }

    fn tensor(&self, name: &str) -> Result<Tensor, anemone_checkpoint::Error> {
        let error = |problem: String| anemone_checkpoint::Error::Stored {
            store: self.bundle.dir().display().to_string(),
            tensor: name.to_string(),
            problem,
        };
        let shape = self.shapes.get(name).ok_or_else(|| error("is not part of the model".into()))?;
        if let Some((host, _)) = self.bundle.manifest().host.iter().find(|(_, h)| h.tensor == name) {
            return self.bundle.host_tensor(host).map_err(|e| error(e.to_string()));
        }
        let pieces = self.bundle.manifest().weights.get(name);
        let pieces = pieces.ok_or_else(|| error("is not in the bundle; convert the model again".into()))?;
        self.read(name, pieces, shape).map_err(error)
    }

    fn names(&self) -> Vec<String> {
        self.shapes.keys().cloned().collect()
    }
}

impl fmt::Debug for BundleWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BundleWeights({})", self.bundle.dir().display())
    }
}
