use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc;
use std::thread;

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
    generate(tensors, dtype, seed, |bytes| file.write_all(bytes)).with_context(context)?;
    Ok(offset)
}

/// Makes the values chunk by chunk on this thread while another one writes them.
fn generate(
    tensors: &[Spec],
    dtype: DType,
    seed: u64,
    mut write: impl FnMut(&[u8]) -> io::Result<()> + Send,
) -> io::Result<()> {
    thread::scope(|scope| {
        let (full, to_write) = mpsc::sync_channel::<Vec<u8>>(1);
        let (empty, to_fill) = mpsc::channel::<Vec<u8>>();
        let writer = scope.spawn(move || {
            to_write.iter().try_for_each(|buffer| {
                write(&buffer)?;
                // The maker may be done and gone.
                let _ = empty.send(buffer);
                Ok(())
            })
        });
        'all: for spec in tensors {
            let values = Values::new(spec, dtype, seed);
            let (mut at, end) = (0, spec.numel().div_ceil(4));
            while at < end {
                let next = (at + CHUNK).min(end);
                let mut buffer = to_fill.try_recv().unwrap_or_default();
                values.fill(at, next, &mut buffer);
                let elements = (spec.numel() - at * 4).min((next - at) * 4);
                buffer.truncate((elements * dtype.size()) as usize);
                // The writer hangs up only on an error, which joining it gives.
                if full.send(buffer).is_err() {
                    break 'all;
                }
                at = next;
            }
        }
        drop(full);
        writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_and_a_full_disk_is_an_error() {
        let spec = |n: u64| Spec { name: n.to_string(), shape: vec![n], mean: 0.0, std: 1.0 };
        let tensors = [spec(3), spec(4 * CHUNK + 5), spec(1)];
        let mut written = 0;
        generate(&tensors, DType::F16, 0, |bytes| {
            written += bytes.len() as u64;
            Ok(())
        })
        .unwrap();
        assert_eq!(written, 2 * (3 + 4 * CHUNK + 5 + 1));
        let error = generate(&tensors, DType::F16, 0, |_| Err(io::Error::other("disk full"))).unwrap_err();
        assert_eq!(error.to_string(), "disk full");
    }

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
