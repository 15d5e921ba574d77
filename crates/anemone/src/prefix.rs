//! The prefix cache of `run` and `chat`.

use std::path::PathBuf;

use anemone_bundle::Bundle;
use anemone_session::{ModelId, PrefixCache};
use anyhow::{Context, Result};

use crate::model::Loaded;

/// Bytes a directory may hold when nobody says.
const DISK: u64 = 4 << 30;

/// Where beginnings computed before are looked for and kept.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Prefix cache")]
pub(crate) struct PrefixArgs {
    /// Keep what texts left in the engine in this directory, so that a later run with the same beginning need not compute
    /// it again; it tells what was said, and is made readable for you alone
    #[arg(long, value_name = "DIR")]
    prefix_cache: Option<PathBuf>,
    /// Most the directory may hold, as in 500M or 4G; what was used longest ago goes first [default: 4G]
    #[arg(long, value_name = "SIZE", requires = "prefix_cache", value_parser = size)]
    prefix_cache_size: Option<u64>,
}

impl PrefixArgs {
    /// The cache with up to `memory` bytes of its own; `None` when there would be nothing to keep anything in.
    pub(crate) fn open(&self, loaded: &Loaded, memory: u64) -> Result<Option<PrefixCache>> {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        let Some(dir) = &self.prefix_cache else {
            // One process has one model, which needs no name.
            return Ok((memory > 0).then(|| PrefixCache::new(ModelId::of([]), memory)));
        };
        let disk = self.prefix_cache_size.unwrap_or(DISK);
        Ok(Some(PrefixCache::with_dir(model_id(loaded)?, memory, dir, disk)?))
    }
}

/// Which model it is: a bundle by its manifest, which names the hashes of its files, another by its weights.
fn model_id(loaded: &Loaded) -> Result<ModelId> {
    if let Some(dir) = loaded.checkpoint.dir().filter(|dir| Bundle::is_bundle(dir)) {
        let path = dir.join("manifest.json");
        let manifest = std::fs::read(&path).with_context(|| path.display().to_string())?;
        return Ok(ModelId::of([&b"bundle"[..], &manifest]));
    }
    Ok(ModelId::of_weights(loaded.stack(), &*loaded.checkpoint.weights())?)
}

/// A number of bytes: digits, and K, M, G or T for the powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "give a size such as 500M or 4G".to_owned();
    let upper = text.trim_end_matches(['b', 'B']).trim_end_matches(['i', 'I']).to_ascii_uppercase();
    let digits = upper.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &upper[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("123", 123), ("4k", 4096), ("500M", 500 << 20), ("4GiB", 4 << 30), ("1tb", 1 << 40)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "G", "-1", "1.5G", "4X", "4GG", "99999999999T", "1 G", "é"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
