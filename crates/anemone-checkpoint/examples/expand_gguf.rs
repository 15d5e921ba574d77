//! Writes every tensor of a GGUF file in f32, by its name in the file, as safetensors: `expand_gguf FILE.gguf OUT.safetensors`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anemone_checkpoint::gguf::{GgufFile, GgufTensor, TensorType};
use anemone_tensor::{Blocks, Tensor};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = &arguments[..] else {
        return Err("usage: expand_gguf FILE.gguf OUT.safetensors".into());
    };
    let file = GgufFile::open(Path::new(from))?;
    let (mut header, mut data) = (BTreeMap::new(), Vec::new());
    for tensor in file.tensors() {
        let start = data.len();
        data.extend(elements(tensor)?.iter().flat_map(|v| v.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(&tensor.name, entry);
    }
    let header = serde_json::to_vec(&header)?;
    let mut out = std::fs::File::create(to)?;
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    out.write_all(&data)?;
    Ok(())
}

fn elements(tensor: &GgufTensor) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let cols = tensor.shape.last().copied().unwrap_or(1);
    match tensor.kind {
        TensorType::Plain(dtype) => {
            Ok(Tensor::new(dtype, tensor.shape.as_slice(), tensor.bytes.clone())?.to_f32()?)
        }
        TensorType::Blocks(format) => {
            let rows = tensor.shape.iter().product::<usize>() / cols;
            Ok(Blocks::new(format, (rows, cols), tensor.bytes.clone())?.expand())
        }
        TensorType::Other(_) => Err(format!("{} is of {}", tensor.name, tensor.kind.name()).into()),
    }
}
