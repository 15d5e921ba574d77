//! A converted model on disk: Core ML packages, host weights, tokenizer files and a manifest that says what is where.
//!
//! A [`Writer`] builds the directory beside its place, writes the manifest last and renames it when complete, so that an
//! interrupted conversion leaves nothing that loads. A [`Bundle`] reads it back; [`BundleWeights`] gives the checkpoint's own
//! tensors from the packages' weight files, for the native engine. A [`DecisionBundle`] is the same for a decision model.
//!
//! Weights may be compressed on the way ([`Compressor`]): codes and tables, or integers and scales, which the packages expand.
//!
//! The crate does not know how a bundle runs.

mod bundle;
mod canary;
mod compress;
mod compression;
mod decision;
mod error;
mod hash;
mod manifest;
mod parts;
mod weights;
mod writer;

pub use bundle::Bundle;
pub use compress::{Choose, Compressor, Encode, Encoded, Encoding, Site};
pub use compression::{CalibrationRecord, Compression, Gate, PieceEncoding, SourceBundle, TensorSummary};
pub use decision::{
    DECISION_FILES, DECISION_FORMAT, DECISION_FORMAT_VERSION, DecisionBundle, DecisionManifest,
    DecisionOptions,
};
pub use error::Error;
pub use hash::{content_hash, file_hash, file_sha256, package_hash, sha256};
pub use manifest::{
    FORMAT, FORMAT_VERSION, FunctionEntry, HostTensor, Manifest, PackageEntry, Piece, Port, Role, Source,
};
pub use weights::BundleWeights;
pub use writer::{Writer, WrittenPackage, WrittenTensor, candidate_place, judge};
