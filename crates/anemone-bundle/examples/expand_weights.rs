//! Writes the weights a bundle stands for as safetensors: `expand_weights BUNDLE OUT.safetensors`.
//!
//! Tensors have their checkpoint's names. What is stored as indices into tables is there a second time, looked up one by one, as
//! `tables:NAME`.

use std::path::Path;

use anemone_bundle::{Bundle, BundleWeights, DecisionBundle};
use anemone_checkpoint::Weights;
use safetensors::tensor::{Dtype, TensorView};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bundle, out] = &args[..] else { return Err("usage: expand_weights BUNDLE OUT.safetensors".into()) };
    let path = Path::new(bundle);
    let weights = if DecisionBundle::is_at(path) {
        BundleWeights::open_decision(&DecisionBundle::open(path)?)?
    } else {
        BundleWeights::open(&Bundle::open(path)?)?
    };
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for name in weights.names() {
        let tensor = weights.tensor(&name)?;
        tensors.push((name.clone(), tensor.shape().to_vec(), tensor.bytes().to_vec()));
        let Some(matrix) = weights.palettized(&name)? else { continue };
        let mut bytes = vec![0u8; matrix.rows() * matrix.cols() * 2];
        let mut top = 0;
        for band in matrix.bands() {
            let mut left = 0;
            for segment in band {
                for row in 0..segment.rows() {
                    for col in 0..segment.cols() {
                        let at = 2 * ((top + row) * matrix.cols() + left + col);
                        let entry = segment.table(row)[segment.index(row, col)];
                        bytes[at..at + 2].copy_from_slice(&entry.to_le_bytes());
                    }
                }
                left += segment.cols();
            }
            top += band.first().map_or(0, anemone_tensor::Segment::rows);
        }
        tensors.push((format!("tables:{name}"), vec![matrix.rows(), matrix.cols()], bytes));
    }
    let views: Result<Vec<_>, _> = (tensors.iter())
        .map(|(name, shape, bytes)| {
            Ok::<_, Failure>((name, TensorView::new(Dtype::F16, shape.clone(), bytes)?))
        })
        .collect();
    safetensors::serialize_to_file(views?, None, Path::new(out))?;
    Ok(())
}
