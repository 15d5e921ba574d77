//! What a manifest says about compressed weights.

use serde::{Deserialize, Serialize};

/// How a piece's numbers are stored, where not one by one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PieceEncoding {
    /// Codes that look into tables of fp16 numbers, one table for equal runs of rows.
    Table {
        /// Offset of the tables' record; absent when the entries are few, which the program itself holds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offset: Option<u64>,
        /// The entries, where they are few.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        entries: Vec<f32>,
        /// Bits of a code.
        bits: u8,
        /// Number of tables.
        groups: usize,
        /// Consecutive rows a code stands for.
        vector: usize,
    },
    /// Signed integers times an fp16 scale for each row.
    Scaled {
        /// Offset of the scales' record; absent when they are few, which the program itself holds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offset: Option<u64>,
        /// The scales, where they are few.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        scales: Vec<f32>,
        /// Bits of an integer.
        bits: u8,
    },
}

/// How a bundle's weights were compressed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compression {
    /// The bundle it was made from; absent when the checkpoint itself was compressed.
    pub source_bundle: Option<SourceBundle>,
    /// `lut8`, `int4` and so on, as `--precision` spells it.
    pub precision: String,
    /// How the entries of tables were chosen; absent for integers.
    pub method: Option<String>,
    /// Rows asked for that share a table; absent for one table for each tensor.
    pub group: Option<usize>,
    /// Consecutive rows a code stands for.
    pub vector: usize,
    /// Weights with fewer elements were left as they are.
    pub threshold: usize,
    /// Patterns of tensors that were compressed; empty for all.
    pub only: Vec<String>,
    /// Patterns of tensors that were left as they are.
    pub skip: Vec<String>,
    /// What the weights were chosen by, where a model was run for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationRecord>,
    /// The judgement of a gate, where one was asked for.
    pub gate: Option<Gate>,
    /// What was lost in each weight, in order of the packages.
    pub tensors: Vec<TensorSummary>,
}

/// A bundle as a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceBundle {
    /// Name of its directory.
    pub name: String,
    /// SHA-256 of its manifest, which has the hashes of everything else.
    pub manifest_sha256: String,
}

/// The text or rows that a model was run over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    /// SHA-256 of the file.
    pub sha256: String,
    /// Tokens that a map met at most.
    pub tokens: u64,
    /// Whether later columns made up for the errors of those before them.
    pub feedback: bool,
    /// What mixed bits had to keep to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
}

/// Whether a candidate is good enough to be used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// What is measured.
    pub rule: String,
    /// The value it must keep to.
    pub bar: f64,
    /// What was found; absent when the gate did not come to an end.
    pub measured: Option<f64>,
    /// What did not pass.
    pub failures: Vec<String>,
    /// What it was compared with.
    pub reference: String,
    /// Arithmetic of the engine that ran the candidate.
    pub profile: String,
    /// Whether it may be used.
    pub passed: bool,
}

/// A compressed weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorSummary {
    /// Name of the checkpoint tensor it is a part of.
    pub tensor: String,
    /// Directory name of the package it is in.
    pub package: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Bits of a code or integer.
    pub bits: u8,
    /// Rows that share a table or a scale.
    pub group: usize,
    /// Bytes of its codes and tables.
    pub bytes: u64,
    /// Square root of the squared errors over the squared weights.
    pub rel_rmse: f64,
    /// Largest absolute error.
    pub max_abs: f64,
}
