use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anemone_checkpoint::SafetensorsFile;
use anemone_session::{EMBEDDING, FINAL_NORM};
use anemone_tensor::Bytes;
use serde_json::Value;

use crate::{Choice, Error, Recording, Rows};

/// Largest file of recordings that is read.
const LIMIT: u64 = 256 << 20;

/// Reads recorded outputs: a JSON file, or a directory with `goldens.json`.
///
/// The object's `prompts` or `cases` are a list of objects with `token_ids` and any of `name`, `last_logits`,
/// `argmax_per_position`, `last_hidden` (`embed`, `layers`, `final_norm`), `greedy_ids` and `min_margin`. A safetensors file of
/// the same name beside it may hold all positions as `NAME.logits`, `NAME.embed`, `NAME.layer.I` and `NAME.final_norm`.
/// `blocks` are the module paths of the model's blocks. At most `steps` greedy tokens are taken.
pub fn read_golden(path: &Path, blocks: &[String], steps: usize) -> Result<Vec<Recording>, Error> {
    let json = if path.is_dir() { path.join("goldens.json") } else { path.to_path_buf() };
    let not = |problem: String| Error::Golden { path: json.clone(), problem };
    let file = File::open(&json).map_err(|e| not(format!("cannot be read ({e}); check the path")))?;
    let mut bytes = Vec::new();
    // The size a file states may be none, as that of a device.
    file.take(LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| not(format!("cannot be read ({e}); check the path")))?;
    if bytes.len() as u64 > LIMIT {
        return Err(not(format!("is larger than {} MiB; split it", LIMIT >> 20)));
    }
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|e| not(format!("is not JSON ({e}); record it again")))?;
    let cases = value["prompts"].as_array().or_else(|| value["cases"].as_array());
    let cases = cases
        .ok_or_else(|| not("has no list `prompts` or `cases`; give recordings of a language model".into()))?;
    let tensors = tensors(&json.with_extension("safetensors"))?;
    let mut recordings = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        let name = case["name"].as_str().map_or_else(|| format!("case {i}"), str::to_owned);
        let case = Case { path: &json, name, value: case };
        recordings.push(case.recording(blocks, steps, tensors.as_ref())?);
    }
    Ok(recordings)
}

fn tensors(path: &PathBuf) -> Result<Option<SafetensorsFile>, Error> {
    if !path.is_file() {
        return Ok(None);
    }
    let not = |problem: String| Error::Golden { path: path.clone(), problem };
    let file = File::open(path).map_err(|e| not(format!("cannot be read ({e}); check the permissions")))?;
    let bytes = Bytes::map(&file).map_err(|e| not(format!("cannot be read ({e})")))?;
    SafetensorsFile::parse(&path.display().to_string(), bytes).map(Some).map_err(|e| not(e.to_string()))
}

struct Case<'a> {
    path: &'a Path,
    name: String,
    value: &'a Value,
}

impl Case<'_> {
    fn recording(
        &self,
        blocks: &[String],
        steps: usize,
        tensors: Option<&SafetensorsFile>,
    ) -> Result<Recording, Error> {
        let tokens = self.ids("token_ids")?;
        let tokens = tokens.filter(|t| !t.is_empty()).ok_or_else(|| {
            self.wrong("token_ids", "is absent or empty; give recordings of a language model")
        })?;
        let last = tokens.len() - 1;
        let mut logits: Rows = self.floats(&["last_logits"])?.map(|row| (last, row)).into_iter().collect();
        let hidden = &self.value["last_hidden"];
        let mut layers: Vec<(String, Rows)> = Vec::new();
        if !hidden.is_null() {
            let recorded = hidden["layers"].as_array().map_or(0, Vec::len);
            if recorded != blocks.len() {
                let problem =
                    format!("has {recorded} layers and the model {}; it is of another model", blocks.len());
                return Err(self.wrong("last_hidden.layers", &problem));
            }
            let mut add = |path: &str, row: Option<Vec<f32>>| {
                layers.extend(row.map(|row| (path.to_owned(), vec![(last, row)])));
            };
            add(EMBEDDING, self.floats(&["last_hidden", "embed"])?);
            for (i, path) in blocks.iter().enumerate() {
                add(path, self.floats(&["last_hidden", "layers", &i.to_string()])?);
            }
            add(FINAL_NORM, self.floats(&["last_hidden", "final_norm"])?);
        }
        if let Some(tensors) = tensors {
            if let Some(rows) = self.rows(tensors, "logits", tokens.len())? {
                logits = rows;
            }
            for (path, rows) in &mut layers {
                let key = match (path.as_str(), blocks.iter().position(|b| b == path)) {
                    (_, Some(i)) => format!("layer.{i}"),
                    (EMBEDDING, None) => "embed".to_owned(),
                    _ => "final_norm".to_owned(),
                };
                if let Some(all) = self.rows(tensors, &key, tokens.len())? {
                    *rows = all;
                }
            }
        }
        let argmax = self.ids("argmax_per_position")?;
        if let Some(argmax) = argmax.as_ref().filter(|a| a.len() != tokens.len()) {
            let problem = format!("has {} ids for {} tokens; record it again", argmax.len(), tokens.len());
            return Err(self.wrong("argmax_per_position", &problem));
        }
        let greedy = self.ids("greedy_ids")?.unwrap_or_default();
        Ok(Recording {
            name: self.name.clone(),
            logits,
            argmax,
            layers,
            greedy: greedy.into_iter().take(steps).map(|id| Choice { id, logits: None }).collect(),
            min_margin: self.value["min_margin"].as_f64(),
            tokens,
        })
    }

    fn wrong(&self, key: &str, problem: &str) -> Error {
        Error::Golden { path: self.path.to_path_buf(), problem: format!("`{}`: {key} {problem}", self.name) }
    }

    fn ids(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        let value = &self.value[key];
        if value.is_null() {
            return Ok(None);
        }
        let ids = value.as_array().and_then(|list| {
            list.iter()
                .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
                .collect::<Option<Vec<u32>>>()
        });
        ids.map(Some).ok_or_else(|| self.wrong(key, "is not a list of token ids; record it again"))
    }

    fn floats(&self, keys: &[&str]) -> Result<Option<Vec<f32>>, Error> {
        let mut value = self.value;
        for key in keys {
            value = key.parse::<usize>().map_or_else(|_| &value[*key], |i| &value[i]);
        }
        if value.is_null() {
            return Ok(None);
        }
        let floats = value
            .as_array()
            .and_then(|list| list.iter().map(|v| v.as_f64().map(|v| v as f32)).collect::<Option<Vec<f32>>>());
        floats
            .map(Some)
            .ok_or_else(|| self.wrong(&keys.join("."), "is not a list of numbers; record it again"))
    }

    fn rows(&self, tensors: &SafetensorsFile, key: &str, tokens: usize) -> Result<Option<Rows>, Error> {
        let name = format!("{}.{key}", self.name);
        if tensors.get(&name).is_none() {
            return Ok(None);
        }
        let not = |problem: String| Error::Golden { path: PathBuf::from(tensors.label()), problem };
        let tensor = tensors.tensor(&name).map_err(|e| not(e.to_string()))?;
        let dims = tensor.shape().to_vec();
        if dims.len() != 2 || dims[0] != tokens || dims[1] == 0 {
            return Err(not(format!("`{name}` has shape {dims:?}, expected {tokens} rows; record it again")));
        }
        let values = tensor.to_f32().map_err(|e| not(format!("`{name}`: {e}")))?;
        Ok(Some(values.chunks_exact(dims[1]).map(<[f32]>::to_vec).enumerate().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Recording>, Error> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("goldens.json"), text).unwrap();
        read_golden(dir.path(), &["model.layers.0".to_owned()], 2)
    }

    #[test]
    fn what_is_recorded_is_read() {
        let text = r#"{"prompts": [{"name": "a", "token_ids": [1, 2], "last_logits": [0.5, 1], "greedy_ids": [1, 0, 1],
            "argmax_per_position": [0, 1], "min_margin": 0.25,
            "last_hidden": {"embed": [1], "layers": [[2]], "final_norm": [3]}}, {"token_ids": [0]}]}"#;
        let read = read(text).unwrap();
        let layer = |path: &str, v: f32| (path.to_owned(), vec![(1, vec![v])]);
        let expected = Recording {
            name: "a".into(),
            tokens: vec![1, 2],
            logits: vec![(1, vec![0.5, 1.0])],
            argmax: Some(vec![0, 1]),
            layers: vec![layer(EMBEDDING, 1.0), layer("model.layers.0", 2.0), layer(FINAL_NORM, 3.0)],
            greedy: vec![Choice { id: 1, logits: None }, Choice { id: 0, logits: None }],
            min_margin: Some(0.25),
        };
        assert_eq!(read[0], expected);
        assert_eq!((read[1].name.as_str(), read[1].logits.len()), ("case 1", 0));
    }

    #[test]
    fn all_positions_are_read_from_the_file_beside() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"prompts": [{"name": "a", "token_ids": [1, 2], "last_logits": [9, 9], "last_hidden": {"layers": [[9]]}}]}"#;
        std::fs::write(dir.path().join("goldens.json"), text).unwrap();
        let header = r#"{"a.logits": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            "a.layer.0": {"dtype": "F32", "shape": [2, 1], "data_offsets": [16, 24]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.extend([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|v| v.to_le_bytes()));
        std::fs::write(dir.path().join("goldens.safetensors"), bytes).unwrap();
        let read = read_golden(dir.path(), &["model.layers.0".to_owned()], 2).unwrap();
        assert_eq!(read[0].logits, [(0, vec![1.0, 2.0]), (1, vec![3.0, 4.0])]);
        assert_eq!(read[0].layers, [("model.layers.0".to_owned(), vec![(0, vec![5.0]), (1, vec![6.0])])]);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let cases = [
            ("{", "is not JSON"),
            ("{}", "no list `prompts` or `cases`"),
            (r#"{"cases": [{"name": "x", "state": "s"}]}"#, "`x`: token_ids is absent"),
            (r#"{"cases": [{"token_ids": [-1]}]}"#, "`case 0`: token_ids is not a list of token ids"),
            (
                r#"{"cases": [{"token_ids": [1], "last_logits": ["a"]}]}"#,
                "last_logits is not a list of numbers",
            ),
            (
                r#"{"cases": [{"token_ids": [1], "last_hidden": {"layers": []}}]}"#,
                "has 0 layers and the model 1",
            ),
            (r#"{"cases": [{"token_ids": [1], "argmax_per_position": []}]}"#, "0 ids for 1 tokens"),
        ];
        for (text, expected) in cases {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("goldens.json"), "{text}: {error}");
        }
    }
}
