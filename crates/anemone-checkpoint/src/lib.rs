//! A model snapshot on disk, in memory or on a hub: config, weights, tokenizer files.
//!
//! [`Checkpoint::open`] reads a Hugging Face snapshot directory, or a GGUF file as if it were one, and maps its weights; [`Weights`] is the seam the
//! engines read tensors through; [`hub`] brings a snapshot to this machine. The crate does not know what any tensor
//! or configuration key means, beyond the token ids and sampling defaults in [`GenerationConfig`].
//!
//! Every byte is treated as hostile: sizes are bounded, arithmetic is checked, and an error names the file, the
//! tensor or key, where it applies the byte offset, and what to do about it.

mod checkpoint;
mod decision;
mod error;
mod generation;
pub mod gguf;
#[cfg(feature = "hub")]
pub mod hub;
mod safetensors_file;
mod scan;
mod select;
mod shards;
mod source;
mod text;
mod tokenizer;
mod weights;

pub use checkpoint::{Checkpoint, FileInfo, open_weights};
pub use decision::DecisionCheckpoint;
pub use error::Error;
pub use generation::GenerationConfig;
pub use safetensors_file::{SafetensorsFile, StoredTensor, parse_safetensors};
pub use scan::scan_non_finite;
pub use weights::{Entry, Weights};

/// Whether a model spec is a hub id: `org/name` or `org/name@revision`, and not an existing local path.
pub fn is_hub_id(spec: &str) -> bool {
    let (name, revision) =
        spec.split_once('@').map_or((spec, None), |(name, revision)| (name, Some(revision)));
    let shape = name.split_once('/').is_some_and(|(org, repo)| {
        !org.is_empty() && !repo.is_empty() && !repo.contains('/') && !org.starts_with(['.', '~'])
    });
    shape && revision != Some("") && !spec.contains('\\') && !std::path::Path::new(spec).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_ids_have_one_slash_and_are_not_paths() {
        for id in ["LiquidAI/LFM2-350M", "a/b@main", "a/b@refs/pr/1"] {
            assert!(is_hub_id(id), "{id}");
        }
        for path in
            ["", "model", "a/b/c", "/model", "./model", "../model", "~/model", "a/", "a/b@", "src/lib.rs"]
        {
            assert!(!is_hub_id(path), "{path}");
        }
    }
}
