//! The `.mlpackage` directory: a manifest, the model file and the weight file.

mod decode;
mod encode;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anemone_tensor::Bytes;
use prost::Message;
use sha2::{Digest, Sha256};

use crate::proto::model::Model;
use crate::{BlobReader, BlobWriter, Error, Program};

const MODEL: &str = "com.apple.CoreML/model.mlmodel";
const WEIGHTS: &str = "com.apple.CoreML/weights";
const AUTHOR: &str = "com.apple.CoreML";

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Bytes of the model file.
    pub model_bytes: u64,
    /// Bytes of the weight file; 0 when there is none.
    pub weight_bytes: u64,
    /// Offset of each weight's record, in the order of [`Program::weights`].
    pub offsets: Vec<u64>,
}

/// Writes a program as a package at `path`, which must not exist.
///
/// The package is built beside its place and renamed when complete. Weights stream through in order; equal content is stored
/// once. The same program gives the same bytes.
pub fn write_package(program: &Program, path: &Path) -> Result<Report, Error> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    };
    if path.exists() {
        return Err(Error::Package {
            path: path.into(),
            problem: "exists already; remove it or choose another place".into(),
        });
    }
    let building = sibling(path);
    if building.exists() {
        fs::remove_dir_all(&building).map_err(io(&building))?;
    }
    let guard = Unfinished(building.clone());
    let data = building.join("Data");
    let model_path = data.join(MODEL);
    fs::create_dir_all(data.join(AUTHOR)).map_err(io(&data))?;

    let mut offsets = Vec::new();
    let mut weight_bytes = 0;
    if !program.weights.is_empty() {
        let dir = data.join(WEIGHTS);
        fs::create_dir_all(&dir).map_err(io(&dir))?;
        let mut blob = BlobWriter::create(&dir.join("weight.bin"))?;
        for weight in &program.weights {
            offsets.push(blob.put(weight)?);
        }
        weight_bytes = blob.finish()?;
    }
    let model = encode::model(program, &offsets)?.encode_to_vec();
    fs::write(&model_path, &model).map_err(io(&model_path))?;
    let manifest = manifest(&model, !offsets.is_empty());
    fs::write(building.join("Manifest.json"), manifest).map_err(io(&building))?;
    fs::rename(&building, path).map_err(io(path))?;
    std::mem::forget(guard);
    Ok(Report { model_bytes: model.len() as u64, weight_bytes, offsets })
}

/// Removes an unfinished package when writing it fails.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Nothing more can be done about a failure here; the name says the package is unfinished.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Before version 9 the inputs of `constexpr` operations are written as attributes.
fn inputs_are_attributes(kind: &str, spec_version: i32) -> bool {
    spec_version < 9 && kind.starts_with("constexpr_")
}

fn sibling(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".unfinished");
    path.with_file_name(name)
}

fn manifest(model: &[u8], has_weights: bool) -> String {
    let entry = |description: &str, name: &str, path: &str| serde_json::json!({"author": AUTHOR, "description": description, "name": name, "path": path});
    let root = uuid(&[b"model", model]);
    let mut items = BTreeMap::new();
    items.insert(root.clone(), entry("CoreML Model Specification", "model.mlmodel", MODEL));
    if has_weights {
        items.insert(uuid(&[b"weights", model]), entry("CoreML Model Weights", "weights", WEIGHTS));
    }
    let manifest = serde_json::json!({
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": items,
        "rootModelIdentifier": root,
    });
    format!("{manifest:#}\n")
}

/// A UUID made of content, so that the same package always has the same bytes.
fn uuid(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let mut b: [u8; 16] = hash.finalize()[..16].try_into().expect("sixteen bytes");
    b[6] = b[6] & 0x0f | 0x80;
    b[8] = b[8] & 0x3f | 0x80;
    let hex: Vec<String> = b.iter().map(|b| format!("{b:02x}")).collect();
    let part = |r: std::ops::Range<usize>| hex[r].concat();
    format!("{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16))
}

/// Reads a package, of this project or of coremltools; weights are mapped.
pub fn read_package(path: &Path) -> Result<Program, Error> {
    Ok(read_package_with_offsets(path)?.0)
}

/// [`read_package`], and the offset of each weight's record in the order of [`Program::weights`].
pub fn read_package_with_offsets(path: &Path) -> Result<(Program, Vec<u64>), Error> {
    let package = Files::of(path)?;
    let bytes = map(&package.model)?;
    let model =
        Model::decode(&bytes[..]).map_err(|source| Error::Decode { path: package.model.clone(), source })?;
    let mut weights = None;
    if let Some(file) = &package.weights {
        weights = Some(BlobReader::new(map(file)?).map_err(|e| e.in_file(file))?);
    }
    let file = package.weights.as_ref().unwrap_or(&package.model);
    decode::program(model, weights.as_ref(), &package.model).map_err(|e| e.in_file(file))
}

/// Checks that the model file of a package of [`write_package`] is the one it was written with; weights are not read.
///
/// Packages of other writers carry nothing to tell it by, and fail.
pub fn check_model(path: &Path) -> Result<(), Error> {
    let package = Files::of(path)?;
    if uuid(&[b"model", &map(&package.model)?]) == package.root {
        return Ok(());
    }
    let problem = "is not the file that Manifest.json beside it was written for".into();
    Err(Error::Package { path: package.model, problem })
}

/// The parts of a package on disk.
struct Files {
    /// Identifier of the model in the manifest.
    root: String,
    model: PathBuf,
    weights: Option<PathBuf>,
}

impl Files {
    fn of(path: &Path) -> Result<Self, Error> {
        let manifest_path = path.join("Manifest.json");
        let problem = |problem: String| Error::Package { path: manifest_path.clone(), problem };
        let text =
            fs::read(&manifest_path).map_err(|source| Error::Io { path: manifest_path.clone(), source })?;
        let manifest: serde_json::Value =
            serde_json::from_slice(&text).map_err(|e| problem(format!("not JSON: {e}")))?;
        let root = manifest["rootModelIdentifier"]
            .as_str()
            .ok_or_else(|| problem("has no `rootModelIdentifier`".into()))?;
        let items = &manifest["itemInfoEntries"];
        let model = items[root]["path"]
            .as_str()
            .ok_or_else(|| problem("names no model file under its root identifier".into()))?;
        let inside = |item: &str| -> Result<PathBuf, Error> {
            let plain = Path::new(item).components().all(|c| matches!(c, std::path::Component::Normal(_)));
            if plain {
                Ok(path.join("Data").join(item))
            } else {
                Err(problem(format!("names `{item}`, which leads outside the package")))
            }
        };
        let entries = items.as_object().into_iter().flatten();
        let weights = entries.filter_map(|(_, item)| item["path"].as_str()).find(|p| *p != model);
        let weights = weights.map(inside).transpose()?.map(|dir| dir.join("weight.bin"));
        Ok(Self { root: root.into(), model: inside(model)?, weights: weights.filter(|file| file.exists()) })
    }
}

fn map(path: &Path) -> Result<Bytes, Error> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    Bytes::map(&fs::File::open(path).map_err(io)?).map_err(io)
}
