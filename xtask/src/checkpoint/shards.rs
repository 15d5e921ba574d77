use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::preset::Spec;
use super::put_json;
use super::random::{DType, Values};

/// Four elements are made at a time; this many times four are written at once.
const CHUNK: u64 = 1 << 18;

/// Writes the tensors as one safetensors file or as numbered shards with an index; returns the bytes of data.
pub(super) fn write(dir: &Path, tensors: &[Spec], dtype: DType, seed: u64, shards: usize) -> Result<u64> {
    ensure!(
        (1..=tensors.len().min(99_999)).contains(&shards),
        "--shards must be from 1 to {}, the number of tensors",
        tensors.len().min(99_999)
    );
    let parts = split(tensors, shards);
    let mut map = Map::new();
    let mut total = 0;
    for (i, part) in parts.iter().enumerate() {
        let file = if shards == 1 {
            "model.safetensors".to_owned()
        } else {
            format!("model-{:05}-of-{shards:05}.safetensors", i + 1)
        };
        total += write_file(&dir.join(&file), part, dtype, seed)?;
        map.extend(part.iter().map(|spec| (spec.name.clone(), Value::from(file.as_str()))));
    }
    if shards > 1 {
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        put_json(&dir.join("model.safetensors.index.json"), &index)?;
    }
    Ok(total)
}

/// Consecutive parts of about equal size, none empty.
fn split(tensors: &[Spec], parts: usize) -> Vec<&[Spec]> {
    let mut rest = tensors;
    let mut out = Vec::new();
    for left in (1..=parts).rev() {
        let size: u64 = rest.iter().map(Spec::numel).sum::<u64>() / left as u64;
        let mut sum = 0;
        let reach = rest.iter().position(|spec| {
            sum += spec.numel();
            sum >= size
        });
        let end = if left == 1 { rest.len() } else { reach.map_or(1, |i| i + 1).min(rest.len() + 1 - left) };
        let (part, tail) = rest.split_at(end);
        out.push(part);
        rest = tail;
    }
    out
}

fn write_file(path: &Path, tensors: &[Spec], dtype: DType, seed: u64) -> Result<u64> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut offset = 0;
    for spec in tensors {
        let end = offset + spec.numel() * dtype.size();
        let entry = json!({"dtype": dtype.header_name(), "shape": spec.shape, "data_offsets": [offset, end]});
        header.insert(spec.name.clone(), entry);
        offset = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let context = || format!("cannot write {}", path.display());
    let mut file = File::create(path).with_context(context)?;
    file.write_all(&(header.len() as u64).to_le_bytes()).with_context(context)?;
    file.write_all(&header).with_context(context)?;
    let mut buffer = Vec::with_capacity((CHUNK * 4 * dtype.size()) as usize);
    for spec in tensors {
        let values = Values::new(spec, dtype, seed);
        let (mut at, end) = (0, spec.numel().div_ceil(4));
        while at < end {
            let next = (at + CHUNK).min(end);
            values.fill(at, next, &mut buffer);
            let bytes = (spec.numel() - at * 4).min((next - at) * 4) * dtype.size();
            file.write_all(&buffer[..bytes as usize]).with_context(context)?;
            at = next;
        }
    }
    Ok(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_never_empty_and_lose_nothing() {
        let spec = |n: u64| Spec { name: n.to_string(), shape: vec![n], mean: 0.0, std: 1.0 };
        for sizes in [vec![100, 1, 1, 1], vec![1, 1, 1, 100], vec![5, 5, 5, 5]] {
            let tensors: Vec<Spec> = sizes.iter().map(|&n| spec(n)).collect();
            for parts in 1..=4 {
                let split = split(&tensors, parts);
                assert_eq!(split.len(), parts);
                assert!(split.iter().all(|part| !part.is_empty()), "{sizes:?} {parts}");
                assert_eq!(split.concat_len(), tensors.len());
            }
        }
    }

    trait ConcatLen {
        fn concat_len(&self) -> usize;
    }

    impl ConcatLen for Vec<&[Spec]> {
        fn concat_len(&self) -> usize {
            self.iter().map(|part| part.len()).sum()
        }
    }
}
