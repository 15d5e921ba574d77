use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, json};

/// A safetensors file of f32 matrices whose rows are appended as they are computed.
#[derive(Debug)]
pub(super) struct Store<'a> {
    file: &'a mut File,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    /// Byte of the file the next row goes to.
    next: u64,
    end: u64,
}

impl<'a> Store<'a> {
    /// Writes the header for matrices of the given names and shapes.
    pub(super) fn new(file: &'a mut File, shapes: &[(String, [usize; 2])]) -> Result<Self> {
        let mut header = Map::new();
        let mut start = 0u64;
        let mut tensors = Vec::new();
        for (name, [rows, width]) in shapes {
            let end = start + 4 * (*rows as u64) * (*width as u64);
            header.insert(
                name.clone(),
                json!({"dtype": "F32", "shape": [rows, width], "data_offsets": [start, end]}),
            );
            tensors.push(Tensor { name: name.clone(), next: start, end });
            start = end;
        }
        let mut header = serde_json::to_vec(&header)?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let data = 8 + header.len() as u64;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for tensor in &mut tensors {
            tensor.next += data;
            tensor.end += data;
        }
        Ok(Self { file, tensors })
    }

    /// Writes the next rows of a matrix.
    pub(super) fn append(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let tensor = self.tensors.iter_mut().find(|t| t.name == name);
        let tensor = tensor.with_context(|| format!("`{name}` was not announced in the header"))?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        ensure!(
            tensor.next + bytes.len() as u64 <= tensor.end,
            "`{name}` has more rows than its header says"
        );
        self.file.seek(SeekFrom::Start(tensor.next))?;
        self.file.write_all(&bytes)?;
        tensor.next += bytes.len() as u64;
        Ok(())
    }

    /// Checks that every matrix is complete.
    pub(super) fn finish(&self) -> Result<()> {
        for tensor in &self.tensors {
            ensure!(tensor.next == tensor.end, "`{}` has fewer rows than its header says", tensor.name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use anemone_checkpoint::parse_safetensors;
    use anemone_tensor::Bytes;

    use super::*;

    #[test]
    fn rows_appended_in_turns_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let mut file = File::create(&path).unwrap();
        let mut store = Store::new(&mut file, &[("a".into(), [3, 2]), ("b".into(), [3, 1])]).unwrap();
        store.append("a", &[1.0, 2.0]).unwrap();
        store.append("b", &[9.0]).unwrap();
        assert!(store.finish().is_err());
        store.append("a", &[3.0, 4.0, 5.0, 6.0]).unwrap();
        store.append("b", &[8.0, 7.0]).unwrap();
        store.finish().unwrap();
        assert!(store.append("b", &[0.0]).is_err() && store.append("c", &[0.0]).is_err());
        let read = parse_safetensors(Bytes::from(std::fs::read(&path).unwrap())).unwrap();
        assert_eq!(read.tensor("a").unwrap().to_f32().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(read.tensor("b").unwrap().to_f32().unwrap(), [9.0, 8.0, 7.0]);
    }
}
