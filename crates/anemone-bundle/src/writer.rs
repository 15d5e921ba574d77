use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anemone_ane::{Options, Plan, WeightRecord};
use anemone_mil::{Program, Type, write_package};
use anemone_tensor::{DType, Tensor};
use half::{bf16, f16};
use sha2::{Digest, Sha256};

use crate::hash::hex;
use crate::manifest::{
    FORMAT, FORMAT_VERSION, FunctionEntry, HostTensor, Manifest, PackageEntry, Piece, Port, Role, Source,
};
use crate::{Error, package_sha256};

/// Builds a bundle beside its place; nothing loads before [`Writer::finish`].
#[derive(Debug)]
pub struct Writer {
    out: PathBuf,
    building: PathBuf,
    force: bool,
    packages: Vec<PackageEntry>,
    host: BTreeMap<String, HostTensor>,
    weights: BTreeMap<String, Vec<Piece>>,
    files: BTreeMap<String, String>,
}

impl Writer {
    /// Starts a bundle for `out`; an existing one is replaced at the end when `force` is set.
    ///
    /// Errors when something else than a bundle or an empty directory is there.
    pub fn create(out: &Path, force: bool) -> Result<Self, Error> {
        check_place(out, force)?;
        let mut name = std::ffi::OsString::from(".");
        name.push(out.file_name().unwrap_or_default());
        name.push(".unfinished");
        let building = out.with_file_name(name);
        if building.exists() {
            fs::remove_dir_all(&building).map_err(|e| io(&building, e))?;
        }
        fs::create_dir_all(&building).map_err(|e| io(&building, e))?;
        Ok(Self {
            out: out.to_path_buf(),
            building,
            force,
            packages: Vec::new(),
            host: BTreeMap::new(),
            weights: BTreeMap::new(),
            files: BTreeMap::new(),
        })
    }

    /// Writes a package; `records` say where each of the program's weights comes from.
    pub fn package(
        &mut self,
        file: &str,
        role: Role,
        program: &Program,
        records: Vec<WeightRecord>,
    ) -> Result<(), Error> {
        let path = self.building.join(file);
        let report = write_package(program, &path)?;
        for ((weight, record), offset) in program.weights.iter().zip(records).zip(&report.offsets) {
            let dtype = weight.ty.dtype.to_string();
            let piece = Piece { package: file.into(), offset: *offset, dtype, record };
            self.weights.entry(piece.record.tensor.clone()).or_default().push(piece);
        }
        let port = |f: &anemone_mil::Function, id: &anemone_mil::VarId| {
            let var = f.var(*id);
            let ty: &Type = &var.ty;
            Port {
                name: var.name.clone(),
                dtype: ty.tensor().dtype.to_string(),
                shape: ty.tensor().shape.clone(),
            }
        };
        let functions = program.functions.values().map(|f| {
            let inputs = f.inputs.iter().map(|id| port(f, id)).collect();
            let outputs = f.outputs.iter().map(|id| port(f, id)).collect();
            (f.name.clone(), FunctionEntry { inputs, outputs })
        });
        self.packages.push(PackageEntry {
            file: file.into(),
            role,
            functions: functions.collect(),
            weight_bytes: report.weight_bytes,
            sha256: package_sha256(&path)?,
        });
        Ok(())
    }

    /// Writes the checkpoint's tensor `of`, which the host reads itself, as fp16.
    pub fn host_tensor(&mut self, name: &str, of: &str, tensor: &Tensor) -> Result<(), Error> {
        let file = format!("{name}.f16");
        let path = self.building.join(&file);
        let mut hash = Sha256::new();
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(|e| io(&path, e))?);
        let mut buffer = Vec::with_capacity(1 << 20);
        let size = tensor.dtype().size();
        for (chunk_idx, chunk) in tensor.bytes().chunks(size << 18).enumerate() {
            buffer.clear();
            for (i, b) in chunk.chunks_exact(size).enumerate() {
                let value = match tensor.dtype() {
                    DType::F16 => f16::from_le_bytes([b[0], b[1]]),
                    DType::BF16 => f16::from_f32(bf16::from_le_bytes([b[0], b[1]]).to_f32()),
                    _ => f16::from_f32(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                };
                if !value.is_finite() {
                    let element = (chunk_idx << 18) + i;
                    let problem = format!(
                        "element {element} of `{name}` is beyond fp16; this model cannot be converted"
                    );
                    return Err(Error::NotABundle { path: self.building.clone(), problem });
                }
                buffer.extend_from_slice(&value.to_le_bytes());
            }
            hash.update(&buffer);
            out.write_all(&buffer).map_err(|e| io(&path, e))?;
        }
        out.flush().map_err(|e| io(&path, e))?;
        self.files.insert(file.clone(), hex(&hash.finalize()));
        let shape = tensor.shape().to_vec();
        let dtype = DType::F16.name().into();
        self.host.insert(name.into(), HostTensor { file, tensor: of.into(), dtype, shape });
        Ok(())
    }

    /// Writes a small file: tokenizer, template, configs.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.building.join(name);
        fs::write(&path, bytes).map_err(|e| io(&path, e))?;
        self.files.insert(name.into(), hex(&Sha256::digest(bytes)));
        Ok(())
    }

    /// Writes the manifest and puts the bundle in its place.
    pub fn finish(
        mut self,
        source: Source,
        options: &Options,
        plan: &Plan,
        tensors: BTreeMap<String, Vec<usize>>,
        written_by: &str,
    ) -> Result<Manifest, Error> {
        let manifest = Manifest {
            format: FORMAT.into(),
            format_version: FORMAT_VERSION,
            written_by: written_by.into(),
            source,
            options: options.clone(),
            plan: plan.clone(),
            packages: std::mem::take(&mut self.packages),
            host: std::mem::take(&mut self.host),
            tensors,
            weights: std::mem::take(&mut self.weights),
            files: std::mem::take(&mut self.files),
        };
        let path = self.building.join("manifest.json");
        let text = serde_json::to_string_pretty(&manifest).map_err(|e| io(&path, e.into()))?;
        fs::write(&path, text + "\n").map_err(|e| io(&path, e))?;
        check_place(&self.out, self.force)?;
        if self.out.exists() {
            fs::remove_dir_all(&self.out).map_err(|e| io(&self.out, e))?;
        }
        fs::rename(&self.building, &self.out).map_err(|e| io(&self.out, e))?;
        Ok(manifest)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish` the directory has moved and there is nothing here; after a failure it goes.
        let _ = fs::remove_dir_all(&self.building);
    }
}

/// Whether a bundle may be put at `out`: what it would remove must be a bundle, of whatever version, or empty.
fn check_place(out: &Path, force: bool) -> Result<(), Error> {
    if !out.exists() {
        return Ok(());
    }
    if !force {
        return Err(Error::Exists(out.to_path_buf()));
    }
    let empty = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    let manifest = fs::read(out.join("manifest.json")).ok();
    let format = manifest.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    let bundle = format.is_some_and(|manifest| manifest["format"] == FORMAT);
    // `.` and `..` have no name to build a bundle beside.
    if out.file_name().is_none() || !(empty || bundle) {
        return Err(Error::NotReplaceable(out.to_path_buf()));
    }
    Ok(())
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bundles_and_empty_directories_are_replaced() {
        let dir = std::env::temp_dir().join(format!("anemone-bundle-place-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let at = |name: &str| dir.join(name);
        for name in ["empty", "bundle", "other", "foreign"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("bundle").join("manifest.json"), r#"{"format": "anemone-bundle", "format_version": 0}"#)
            .unwrap();
        fs::write(at("foreign").join("manifest.json"), r#"{"name": "a web page"}"#).unwrap();
        fs::write(at("other").join("letter.txt"), "dear").unwrap();
        fs::write(at("file"), "x").unwrap();
        check_place(&at("new"), false).unwrap();
        check_place(&at("empty"), true).unwrap();
        check_place(&at("bundle"), true).unwrap();
        assert!(matches!(check_place(&at("bundle"), false), Err(Error::Exists(_))));
        for name in ["other", "foreign", "file", "bundle/.."] {
            assert!(matches!(check_place(&at(name), true), Err(Error::NotReplaceable(_))), "{name}");
            assert!(matches!(Writer::create(&at(name), true), Err(Error::NotReplaceable(_))), "{name}");
        }
        assert_eq!(fs::read_to_string(at("other").join("letter.txt")).unwrap(), "dear");
        fs::remove_dir_all(&dir).unwrap();
    }
}
