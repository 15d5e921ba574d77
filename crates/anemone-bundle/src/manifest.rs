use std::collections::BTreeMap;

use anemone_ane::{Options, Plan, WeightRecord};
use serde::{Deserialize, Serialize};

use crate::compression::{Compression, PieceEncoding};

/// `format` of a manifest.
pub const FORMAT: &str = "anemone-bundle";
/// `format_version` written and read here.
pub const FORMAT_VERSION: u64 = 1;

/// `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`FORMAT_VERSION`].
    pub format_version: u64,
    /// Version of the program that wrote it.
    pub written_by: String,
    /// What was converted.
    pub source: Source,
    /// Choices of the conversion, arithmetic rules included.
    pub options: Options,
    /// How its weights were compressed; absent when they are fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// How the stack was cut.
    pub plan: Plan,
    /// Packages, chunks first, then head slices.
    pub packages: Vec<PackageEntry>,
    /// Tensors the host reads itself.
    pub host: BTreeMap<String, HostTensor>,
    /// Shape of each checkpoint tensor the model uses.
    pub tensors: BTreeMap<String, Vec<usize>>,
    /// Where each checkpoint tensor is stored.
    pub weights: BTreeMap<String, Vec<Piece>>,
    /// Hash of every other file, by name; see [`crate::content_hash`].
    pub files: BTreeMap<String, String>,
}

/// A converted checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Directory or hub name.
    pub name: String,
    /// `model_type` of its config.
    pub model_type: String,
    /// SHA-256 of its weight files and config, by file name.
    pub sha256: BTreeMap<String, String>,
}

/// What a package does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A run of layers.
    Chunk,
    /// A slice of the output head.
    Head,
    /// Everything of a decision model between the embedding table and the action head.
    Body,
}

/// One package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageEntry {
    /// Directory name.
    pub file: String,
    /// What it does.
    pub role: Role,
    /// Its functions by name.
    pub functions: BTreeMap<String, FunctionEntry>,
    /// Bytes of its weight file.
    pub weight_bytes: u64,
    /// Hash over its files, see [`crate::package_hash`].
    pub hash: String,
}

/// Inputs, outputs and states of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionEntry {
    /// In order.
    pub inputs: Vec<Port>,
    /// In order.
    pub outputs: Vec<Port>,
    /// In order.
    #[serde(default)]
    pub states: Vec<Port>,
}

/// One input, output or state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Element type as MIL writes it.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// A tensor in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTensor {
    /// File name.
    pub file: String,
    /// Name of the checkpoint tensor it is.
    pub tensor: String,
    /// Element type, `F16`.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// Part of a checkpoint tensor in a package's weight file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// Directory name of the package.
    pub package: String,
    /// Offset of its record; that of its codes where they are compressed.
    pub offset: u64,
    /// Element type as MIL writes it, as stored.
    pub dtype: String,
    /// How it is compressed; absent when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<PieceEncoding>,
    /// Which part, in which shape, at which scale.
    #[serde(flatten)]
    pub record: WeightRecord,
}
