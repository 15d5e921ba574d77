use std::collections::BTreeMap;

use anemone_tensor::Tensor;
use serde_json::{Map, Value};

use crate::safetensors_file::{SafetensorsFile, StoredTensor};
use crate::select::{INDEX, SINGLE, Selection, select};
use crate::source::{Source, kind};
use crate::{Entry, Error, Weights};

/// [`Weights`] over one or several safetensors files.
#[derive(Debug)]
pub(crate) struct Shards {
    label: String,
    files: Vec<SafetensorsFile>,
    place: BTreeMap<String, usize>,
}

/// Weights found in a source, and the files they came from.
pub(crate) struct Found {
    pub(crate) shards: Shards,
    pub(crate) files: Vec<String>,
}

impl Shards {
    /// Chooses, maps and parses the weight files of a source. `only` names one file to use whatever else there is.
    pub(crate) fn open(source: &Source, only: Option<&str>) -> Result<Found, Error> {
        if let Some(only) = only {
            let shards = Self::load(source, &[only.to_owned()])?;
            return Ok(Found { shards, files: vec![only.to_owned()] });
        }
        let names = source.names()?;
        let index = read_index(source)?;
        let indexed = index.as_ref().map(files_of);
        let dir = source.label();
        let files = match select(&names, indexed.as_deref()) {
            Selection::Files(files) => files,
            Selection::MissingShard(shard) => return Err(Error::MissingShard { dir, shard, tensor: None }),
            Selection::Ambiguous(present, remedy) => {
                return Err(Error::AmbiguousWeights { dir, present, remedy });
            }
            Selection::Nothing(present, remedy) => return Err(Error::NoWeights { dir, present, remedy }),
        };
        let shards = Self::load(source, &files)?;
        if let Some(index) = index {
            shards.reconcile(source, &index, &names)?;
        }
        Ok(Found { shards, files })
    }

    fn load(source: &Source, names: &[String]) -> Result<Self, Error> {
        let mut shards = Self { label: source.label(), files: Vec::new(), place: BTreeMap::new() };
        for (i, name) in names.iter().enumerate() {
            let file = SafetensorsFile::parse(&source.file_label(name), source.map(name)?)?;
            for tensor in file.tensors() {
                if let Some(first) = shards.place.insert(tensor.name.clone(), i) {
                    return Err(Error::TensorInTwoShards {
                        dir: shards.label,
                        tensor: tensor.name.clone(),
                        first: names[first].clone(),
                        second: name.clone(),
                    });
                }
            }
            shards.files.push(file);
        }
        Ok(shards)
    }

    /// Holds the index against what the shards really contain; the shards are right.
    fn reconcile(
        &self,
        source: &Source,
        index: &BTreeMap<String, String>,
        names: &[String],
    ) -> Result<(), Error> {
        let mut moved = 0usize;
        for (tensor, shard) in index {
            match self.place.get(tensor) {
                Some(&i) if self.files[i].label() == source.file_label(shard) => {}
                Some(_) => moved += 1,
                None if !names.contains(shard) => {
                    return Err(Error::MissingShard {
                        dir: self.label.clone(),
                        shard: shard.clone(),
                        tensor: Some(tensor.clone()),
                    });
                }
                None if !self.files.iter().any(|file| file.label() == source.file_label(shard)) => {
                    return Err(Error::AmbiguousWeights {
                        dir: self.label.clone(),
                        present: format!("`{SINGLE}` lacks a tensor that `{INDEX}` places in `{shard}`"),
                        remedy: "remove the file or the index that belongs to another download",
                    });
                }
                None => {
                    return Err(Error::IndexedTensorAbsent {
                        index: source.file_label(INDEX),
                        tensor: tensor.clone(),
                        shard: shard.clone(),
                    });
                }
            }
        }
        if moved > 0 {
            tracing::warn!(
                checkpoint = self.label,
                moved,
                "the index names the wrong shard for some tensors"
            );
        }
        Ok(())
    }

    fn stored(&self, name: &str) -> Option<&StoredTensor> {
        self.place.get(name).and_then(|&i| self.files[i].get(name))
    }
}

impl Weights for Shards {
    fn entry(&self, name: &str) -> Option<Entry> {
        let stored = self.stored(name)?;
        Some(Entry { dtype: stored.known_dtype()?, shape: stored.shape.clone() })
    }

    fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        match self.place.get(name) {
            Some(&i) => self.files[i].tensor(name),
            None => Err(Error::NoTensor { name: name.to_owned(), checkpoint: self.label.clone() }),
        }
    }

    fn names(&self) -> Vec<String> {
        self.place.keys().cloned().collect()
    }

    fn stored_dtype(&self, name: &str) -> Option<String> {
        self.stored(name).map(|stored| stored.dtype.clone())
    }
}

/// The files an index names, sorted; `None` when there is no index.
#[cfg(feature = "hub")]
pub(crate) fn indexed_files(source: &Source) -> Result<Option<Vec<String>>, Error> {
    Ok(read_index(source)?.as_ref().map(files_of))
}

fn files_of(index: &BTreeMap<String, String>) -> Vec<String> {
    let mut files: Vec<String> = index.values().cloned().collect();
    files.sort_unstable();
    files.dedup();
    files
}

/// Tensor to file name, from the index; `None` when there is no index.
fn read_index(source: &Source) -> Result<Option<BTreeMap<String, String>>, Error> {
    let Some(object) = source.object(INDEX)? else { return Ok(None) };
    let file = || source.file_label(INDEX);
    let empty = Map::new();
    let map = match object.get("weight_map") {
        Some(Value::Object(map)) => map,
        None => &empty,
        Some(other) => {
            let (key, found) = ("weight_map".to_owned(), kind(other).to_owned());
            return Err(Error::Key {
                file: file(),
                key,
                expected: "an object of tensor to file name",
                found,
            });
        }
    };
    if map.is_empty() {
        return Err(Error::Key {
            file: file(),
            key: "weight_map".to_owned(),
            expected: "an object of tensor to file name",
            found: "absent or empty".to_owned(),
        });
    }
    let mut index = BTreeMap::new();
    for (tensor, shard) in map {
        match shard.as_str() {
            Some(shard) if !shard.is_empty() && !shard.contains(['/', '\\', '\0']) && shard != ".." => {
                index.insert(tensor.clone(), shard.to_owned());
            }
            _ => {
                return Err(Error::Key {
                    file: file(),
                    key: format!("weight_map.{}", tensor.chars().take(80).collect::<String>().escape_debug()),
                    expected: "the name of a file in the same directory",
                    found: shard.to_string(),
                });
            }
        }
    }
    Ok(Some(index))
}
