use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anemone_ane::{LayaFunctions, Options, Plan, WeightRecord, beyond_fp16};
use anemone_mil::{Program, Report, Type, WeightId, write_package};
use anemone_palettize::Scheme;
use anemone_tensor::{Bytes, DType, Tensor, append_fp16};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use crate::compress::{Compressor, Encoding, Place, Table, check, rewrite};
use crate::compression::{Compression, Gate, PieceEncoding, TensorSummary};
use crate::decision::{DECISION_FORMAT, DECISION_FORMAT_VERSION, DecisionManifest, DecisionOptions};
use crate::hash::digits;
use crate::manifest::{
    FORMAT, FORMAT_VERSION, FunctionEntry, HostTensor, Manifest, PackageEntry, Piece, Port, Role, Source,
};
use crate::parts::format_of;
use crate::{Error, content_hash, file_hash, package_hash};

/// The file whose lock says that a conversion is running.
const LOCK: &str = ".lock";

/// Builds a bundle beside its place; nothing loads before [`Writer::finish`].
#[derive(Debug)]
pub struct Writer {
    out: PathBuf,
    building: PathBuf,
    /// Held while the bundle is built, so that nobody else builds in the same place.
    _lock: File,
    force: bool,
    packages: Vec<PackageEntry>,
    host: BTreeMap<String, HostTensor>,
    weights: BTreeMap<String, Vec<Piece>>,
    files: BTreeMap<String, String>,
    compression: Option<Compression>,
}

/// A package in the unfinished bundle's directory.
#[derive(Debug)]
#[must_use = "it is not part of the bundle before it is added"]
pub struct WrittenPackage {
    entry: PackageEntry,
    weights: Vec<Piece>,
    compressed: Vec<TensorSummary>,
}

/// A host tensor in the unfinished bundle's directory.
#[derive(Debug)]
#[must_use = "it is not part of the bundle before it is added"]
pub struct WrittenTensor {
    name: String,
    entry: HostTensor,
    hash: String,
}

impl Writer {
    /// Starts a bundle for `out`; an existing one is replaced at the end when `force` is set.
    ///
    /// Errors when something else than a bundle or an empty directory is there.
    pub fn create(out: &Path, force: bool) -> Result<Self, Error> {
        check_place(out, force)?;
        let building = beside(out, "unfinished");
        let lock = claim(&building)?;
        Ok(Self {
            out: out.to_path_buf(),
            building,
            _lock: lock,
            force,
            packages: Vec::new(),
            host: BTreeMap::new(),
            weights: BTreeMap::new(),
            files: BTreeMap::new(),
            compression: None,
        })
    }

    /// Starts a candidate for `out`, which is built as `NAME.rejected` beside it and must be [judged](judge) to become the
    /// bundle; a candidate that was rejected before makes room.
    pub fn candidate(out: &Path, force: bool) -> Result<Self, Error> {
        check_place(out, force)?;
        let place = candidate_place(out);
        let again = place.exists() && gate_of(&place).is_some_and(|gate| !gate.passed);
        Self::create(&place, again)
    }

    /// Directory of the unfinished bundle, which the next conversion to the same place clears away when this one was broken off;
    /// whatever else lies in it must be gone before the end.
    pub fn dir(&self) -> &Path {
        &self.building
    }

    /// Says that the packages' weights are compressed, and how; `tensors` is filled in at the end.
    pub fn compressed(&mut self, compression: Compression) {
        self.compression = Some(compression);
    }

    /// What was compressed so far, where weights are.
    pub fn compression(&self) -> Option<&Compression> {
        self.compression.as_ref()
    }

    /// Writes a package; `records` say where each of the program's weights comes from, if from the
    /// checkpoint. It belongs to the bundle once it is
    /// [added](Writer::add); several may be written at once.
    pub fn package(
        &self,
        file: &str,
        role: Role,
        program: &Program,
        records: impl IntoIterator<Item = impl Into<Option<WeightRecord>>>,
    ) -> Result<WrittenPackage, Error> {
        let path = self.building.join(file);
        let report = write_package(program, &path)?;
        let weights = program.weights.iter().zip(records).zip(&report.offsets);
        let weights = weights.filter_map(|((weight, record), offset)| {
            let dtype = weight.ty.dtype.to_string();
            Some(Piece {
                package: file.into(),
                offset: *offset,
                dtype,
                encoding: None,
                record: record.into()?,
            })
        });
        let weights = weights.collect();
        let entry = entry(file, role, program, &report, &path)?;
        Ok(WrittenPackage { entry, weights, compressed: Vec::new() })
    }

    /// [`Writer::package`] with the weights that `compressor` chooses compressed; a weight may stand for several records.
    ///
    /// The package is read back, and every compressed weight decoded and compared, before this returns.
    pub fn compressed_package(
        &self,
        file: &str,
        role: Role,
        program: &Program,
        records: &[Vec<WeightRecord>],
        compressor: &Compressor,
    ) -> Result<WrittenPackage, Error> {
        let path = self.building.join(file);
        let rewritten = rewrite(program, records, compressor)?;
        let report = write_package(&rewritten.program, &path)?;
        check(&path, &rewritten)?;
        let (mut weights, mut compressed) = (Vec::new(), Vec::new());
        let offset = |id: WeightId| report.offsets[id.0];
        let stored = &rewritten.program.weights;
        for (place, records) in rewritten.places.iter().zip(records) {
            let (id, encoding) = match place {
                Place::Dense(id) => (*id, None),
                Place::Coded { codes, table, group_rows, slot } => {
                    let (offset, entries) = match table {
                        Table::Stored(id) => (Some(offset(*id)), Vec::new()),
                        Table::Immediate(_, entries) => (None, entries.clone()),
                    };
                    let encoding = match slot.encoding {
                        Encoding::Palette(Scheme { bits, vector, .. }) => {
                            let groups = slot.site.rows() / group_rows;
                            PieceEncoding::Table { offset, entries, bits, groups, vector }
                        }
                        Encoding::Affine(bits) => PieceEncoding::Scaled { offset, scales: entries, bits },
                    };
                    if let Some(outcome) = slot.outcome() {
                        compressed.push(TensorSummary {
                            tensor: slot.site.tensor().to_owned(),
                            package: file.into(),
                            shape: slot.site.shape.clone(),
                            bits: slot.encoding.bits(),
                            group: *group_rows,
                            bytes: outcome.bytes,
                            rel_rmse: outcome.distortion.rel_rmse(),
                            max_abs: outcome.distortion.max_abs,
                        });
                    }
                    (*codes, Some(encoding))
                }
            };
            weights.extend(records.iter().map(|record| Piece {
                package: file.into(),
                offset: offset(id),
                dtype: stored[id.0].ty.dtype.to_string(),
                encoding: encoding.clone(),
                record: record.clone(),
            }));
        }
        let entry = entry(file, role, &rewritten.program, &report, &path)?;
        Ok(WrittenPackage { entry, weights, compressed })
    }

    /// Makes a package part of the bundle, after those added before.
    pub fn add(&mut self, package: WrittenPackage) {
        for piece in package.weights {
            self.weights.entry(piece.record.tensor.clone()).or_default().push(piece);
        }
        self.packages.push(package.entry);
        if let Some(compression) = &mut self.compression {
            compression.tensors.extend(package.compressed);
        }
    }

    /// Copies the small files and host tensors of another bundle in `dir`.
    pub fn keep(
        &mut self,
        dir: &Path,
        files: &BTreeMap<String, String>,
        host: &BTreeMap<String, HostTensor>,
    ) -> Result<(), Error> {
        for (name, hash) in files {
            let (from, to) = (dir.join(name), self.building.join(name));
            fs::copy(&from, &to).map_err(|e| io(&from, e))?;
            let found = file_hash(&to)?;
            if found != *hash {
                return Err(Error::Hash { path: from, expected: hash.clone(), found });
            }
            self.files.insert(name.clone(), found);
        }
        self.host.extend(host.iter().map(|(name, entry)| (name.clone(), entry.clone())));
        Ok(())
    }

    /// Writes the checkpoint's tensor `of`, which the host reads itself, as fp16; it belongs to the bundle once it is
    /// [added](Writer::add_host_tensor).
    pub fn host_tensor(&self, name: &str, of: &str, tensor: &Tensor) -> Result<WrittenTensor, Error> {
        /// Elements converted at once.
        const BLOCK: usize = 1 << 19;
        let file = format!("{name}.f16");
        let path = self.building.join(&file);
        let mut hash = Xxh3::new();
        let mut out = File::create(&path).map_err(|e| io(&path, e))?;
        let size = tensor.dtype().size();
        let mut buffer = Vec::with_capacity(2 * BLOCK);
        for (block, bytes) in tensor.bytes().chunks(size * BLOCK).enumerate() {
            buffer.clear();
            append_fp16(bytes, tensor.dtype(), 1.0, &mut buffer).map_err(|b| {
                let source = beyond_fp16(of, block * BLOCK + b.index, b.value, 0);
                anemone_mil::Error::Weight { name: name.into(), source }
            })?;
            hash.update(&buffer);
            out.write_all(&buffer).map_err(|e| io(&path, e))?;
            let start = block * BLOCK * size;
            tensor.bytes().slice(start..start + bytes.len()).iter().for_each(Bytes::release);
        }
        let shape = tensor.shape().to_vec();
        let dtype = DType::F16.name().into();
        let entry = HostTensor { file, tensor: of.into(), dtype, shape };
        Ok(WrittenTensor { name: name.into(), entry, hash: digits(hash.digest128()) })
    }

    /// Makes a host tensor part of the bundle.
    pub fn add_host_tensor(&mut self, tensor: WrittenTensor) {
        self.files.insert(tensor.entry.file.clone(), tensor.hash);
        self.host.insert(tensor.name, tensor.entry);
    }

    /// Writes a small file: tokenizer, template, configs.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.building.join(name);
        fs::write(&path, bytes).map_err(|e| io(&path, e))?;
        self.files.insert(name.into(), content_hash(bytes));
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
            compression: self.compression.take(),
            plan: plan.clone(),
            packages: std::mem::take(&mut self.packages),
            host: std::mem::take(&mut self.host),
            tensors,
            weights: std::mem::take(&mut self.weights),
            files: std::mem::take(&mut self.files),
        };
        self.place(&manifest)?;
        Ok(manifest)
    }

    /// [`Writer::finish`] for a decision model's bundle; `functions` come shortest first.
    pub fn finish_decision(
        mut self,
        source: Source,
        options: DecisionOptions,
        functions: Vec<LayaFunctions>,
        tensors: BTreeMap<String, Vec<usize>>,
        written_by: &str,
    ) -> Result<DecisionManifest, Error> {
        let manifest = DecisionManifest {
            format: DECISION_FORMAT.into(),
            format_version: DECISION_FORMAT_VERSION,
            written_by: written_by.into(),
            source,
            options,
            compression: self.compression.take(),
            functions,
            packages: std::mem::take(&mut self.packages),
            host: std::mem::take(&mut self.host),
            tensors,
            weights: std::mem::take(&mut self.weights),
            files: std::mem::take(&mut self.files),
        };
        self.place(&manifest)?;
        Ok(manifest)
    }

    /// Writes the manifest and renames the directory to its place.
    fn place(&self, manifest: &impl Serialize) -> Result<(), Error> {
        let path = self.building.join("manifest.json");
        let text = serde_json::to_string_pretty(manifest).map_err(|e| io(&path, e.into()))?;
        fs::write(&path, text + "\n").map_err(|e| io(&path, e))?;
        check_place(&self.out, self.force)?;
        let lock = self.building.join(LOCK);
        fs::remove_file(&lock).map_err(|e| io(&lock, e))?;
        move_to(&self.building, &self.out)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish` the directory has moved and there is nothing here; after a failure it goes.
        let _ = fs::remove_dir_all(&self.building);
    }
}

/// What a manifest says of a written package.
fn entry(
    file: &str,
    role: Role,
    program: &Program,
    report: &Report,
    path: &Path,
) -> Result<PackageEntry, Error> {
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
        let is_state = |id: &&anemone_mil::VarId| matches!(f.var(**id).ty, Type::State(_));
        let inputs = f.inputs.iter().filter(|id| !is_state(id)).map(|id| port(f, id)).collect();
        let outputs = f.outputs.iter().map(|id| port(f, id)).collect();
        let states = f.inputs.iter().filter(is_state).map(|id| port(f, id)).collect();
        (f.name.clone(), FunctionEntry { inputs, outputs, states })
    });
    Ok(PackageEntry {
        file: file.into(),
        role,
        functions: functions.collect(),
        weight_bytes: report.weight_bytes,
        hash: package_hash(path)?,
    })
}

/// Where a candidate for `out` lies until it is judged, and stays when it is rejected.
pub fn candidate_place(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_os_string();
    name.push(".rejected");
    out.with_file_name(name)
}

/// The gate that a bundle's manifest tells of.
fn gate_of(dir: &Path) -> Option<Gate> {
    let manifest = fs::read(dir.join("manifest.json")).ok()?;
    let value: serde_json::Value = serde_json::from_slice(&manifest).ok()?;
    serde_json::from_value(value.get("compression")?.get("gate")?.clone()).ok()
}

/// Writes a gate's verdict into the manifest of the finished candidate for `out` and, where it passed, puts it in its place.
/// Returns where it lies.
pub fn judge(out: &Path, force: bool, gate: &Gate) -> Result<PathBuf, Error> {
    let candidate = candidate_place(out);
    let path = candidate.join("manifest.json");
    let text = fs::read(&path).map_err(|e| io(&path, e))?;
    let mut manifest: serde_json::Value = serde_json::from_slice(&text).map_err(|e| io(&path, e.into()))?;
    manifest["compression"]["gate"] = serde_json::to_value(gate).map_err(|e| io(&path, e.into()))?;
    let text = serde_json::to_string_pretty(&manifest).map_err(|e| io(&path, e.into()))?;
    let beside = candidate.join(".manifest.json");
    fs::write(&beside, text + "\n").map_err(|e| io(&beside, e))?;
    fs::rename(&beside, &path).map_err(|e| io(&path, e))?;
    if !gate.passed {
        return Ok(candidate);
    }
    check_place(out, force)?;
    move_to(&candidate, out)?;
    Ok(out.to_path_buf())
}

/// Renames a complete bundle to its place; one that is there is replaced.
fn move_to(from: &Path, out: &Path) -> Result<(), Error> {
    let old = beside(out, "replaced");
    if out.exists() {
        // The old bundle is out of the way for a moment only, and whole until the new one is there.
        let _ = fs::remove_dir_all(&old);
        fs::rename(out, &old).map_err(|e| io(out, e))?;
    }
    if let Err(error) = fs::rename(from, out) {
        let _ = fs::rename(&old, out);
        return Err(io(out, error));
    }
    let _ = fs::remove_dir_all(&old);
    Ok(())
}

/// `DIR/.NAME.what` for `DIR/NAME`.
fn beside(out: &Path, what: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(out.file_name().unwrap_or_default());
    name.push(".");
    name.push(what);
    out.with_file_name(name)
}

/// Makes an empty directory to build in and locks it; what a broken-off run left there is removed.
fn claim(building: &Path) -> Result<File, Error> {
    let path = building.join(LOCK);
    let taken = || Error::Busy(building.to_path_buf());
    if let Ok(lock) = File::open(&path) {
        lock.try_lock().map_err(|_| taken())?;
    }
    if building.exists() {
        fs::remove_dir_all(building).map_err(|e| io(building, e))?;
    }
    let place = |path: &Path, source| Error::Place { path: path.to_path_buf(), source };
    if let Some(parent) = building.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(|e| place(parent, e))?;
    }
    fs::create_dir(building).map_err(|e| place(building, e))?;
    let lock = File::create_new(&path).map_err(|e| io(&path, e))?;
    lock.try_lock().map_err(|_| taken())?;
    Ok(lock)
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
    let bundle = format_of(out).is_some_and(|format| format == FORMAT || format == DECISION_FORMAT);
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
    fn one_conversion_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("b");
        let first = Writer::create(&out, false).unwrap();
        assert!(matches!(Writer::create(&out, false), Err(Error::Busy(_))));
        drop(first);
        assert!(!beside(&out, "unfinished").exists());
        // What a killed run leaves is no lock.
        fs::create_dir(beside(&out, "unfinished")).unwrap();
        fs::write(beside(&out, "unfinished").join(LOCK), "").unwrap();
        drop(Writer::create(&out, false).unwrap());
    }

    #[test]
    fn a_place_below_a_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        let error = Writer::create(&file.join("b"), false).unwrap_err().to_string();
        let expected = format!("no directory can be made at {}; choose", file.display());
        assert!(error.starts_with(&expected), "{error}");
        assert_eq!(fs::read(&file).unwrap(), b"x");
    }

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
