//! Random checkpoints: real shapes and config spellings, reproducible values, streamed to disk.

mod preset;
mod random;
mod shards;
mod tokenizer;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use preset::Preset;
use random::DType;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which model's dimensions.
    #[arg(long)]
    pub(crate) preset: PresetName,
    /// Element type of the weights.
    #[arg(long, default_value = "bf16")]
    pub(crate) dtype: DType,
    /// Seed of all values.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Directory to create.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Number of weight files; above one an index is written too.
    #[arg(long, default_value_t = 1)]
    pub(crate) shards: usize,
    /// Copy the tokenizer and chat template of this directory instead of writing a byte-level one.
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Replace an existing checkpoint at `--out`.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PresetName {
    #[value(name = "lfm2-350m")]
    Lfm2M350,
    #[value(name = "lfm2.5-230m")]
    Lfm25M230,
    #[value(name = "lfm2-1.2b")]
    Lfm2B12,
    #[value(name = "lfm3-1.7b")]
    Lfm3B17,
    #[value(name = "tiny")]
    Tiny,
}

/// Writes the checkpoint beside its destination and renames it when complete.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let start = Instant::now();
    let preset = Preset::new(args.preset);
    let parent = args.out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = args.out.file_name().context("--out must end in a directory name")?.to_string_lossy();
    if args.out.exists() {
        ensure!(args.force, "{} exists; pass --force to replace it", args.out.display());
        ensure!(
            args.out.join("config.json").exists(),
            "{} is not a checkpoint; remove it by hand or choose another --out",
            args.out.display()
        );
    }
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let partial = Partial(parent.join(format!(".{name}.partial-{}", std::process::id())));
    fs::create_dir(&partial.0).with_context(|| format!("cannot create {}", partial.0.display()))?;
    let bytes = write(args, &preset, &partial.0)?;
    if args.out.exists() {
        fs::remove_dir_all(&args.out).with_context(|| format!("cannot replace {}", args.out.display()))?;
    }
    fs::rename(&partial.0, &args.out).with_context(|| format!("cannot rename to {}", args.out.display()))?;
    let seconds = start.elapsed().as_secs_f64();
    let parameters: u64 = preset.tensors.iter().map(preset::Spec::numel).sum();
    println!(
        "{}: {parameters} parameters, {:.1} MB in {seconds:.2} s ({:.0} MB/s)",
        args.out.display(),
        bytes as f64 / 1e6,
        bytes as f64 / 1e6 / seconds
    );
    Ok(true)
}

/// Removes what an interrupted or failed run leaves; after the rename there is nothing to remove.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write(args: &Args, preset: &Preset, dir: &Path) -> Result<u64> {
    let mut config = preset.config.clone();
    let ids = match &args.tokenizer {
        Some(from) => {
            let ids = tokenizer::copy(from, dir)?;
            if let Some(largest) = ids.largest.filter(|&id| id >= preset.vocab) {
                bail!("{}: token id {largest} is outside the preset's {} rows", from.display(), preset.vocab);
            }
            ids
        }
        None => tokenizer::write(dir, preset.first_special, preset.first_byte)?,
    };
    let dtype_key = if preset.old_spelling { "torch_dtype" } else { "dtype" };
    config.insert(dtype_key.to_owned(), args.dtype.config_name().into());
    for (key, id) in [("bos_token_id", ids.bos), ("eos_token_id", ids.eos), ("pad_token_id", ids.pad)] {
        config.insert(key.to_owned(), id.into());
    }
    let generation = serde_json::json!({
        "_from_model_config": true, "bos_token_id": ids.bos, "eos_token_id": ids.eos, "pad_token_id": ids.pad,
    });
    put_json(&dir.join("config.json"), &config.into())?;
    put_json(&dir.join("generation_config.json"), &generation)?;
    shards::write(dir, &preset.tensors, args.dtype, args.seed, args.shards)
}

fn put_json(path: &Path, value: &serde_json::Value) -> Result<()> {
    put(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

fn put(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use anemone_checkpoint::{Checkpoint, scan_non_finite};

    use super::*;

    fn tiny(out: PathBuf) -> Args {
        let (preset, dtype) = (PresetName::Tiny, DType::Bf16);
        Args { preset, dtype, seed: 1, out, shards: 1, tokenizer: None, force: false }
    }

    #[test]
    fn a_checkpoint_opens_and_is_reproducible() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, change: &dyn Fn(&mut Args)| {
            let mut args = tiny(dir.path().join(name));
            change(&mut args);
            run(&args).unwrap();
            args.out
        };
        let (one, same) = (make("one", &|_| {}), make("same", &|_| {}));
        let read = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
        assert_eq!(read(&one), read(&same));
        assert_ne!(read(&one), read(&make("other", &|a| a.seed = 2)));

        let whole = Checkpoint::open(&one).unwrap();
        let sharded = Checkpoint::open(&make("sharded", &|a| a.shards = 3)).unwrap();
        assert_eq!(whole.weights().names(), sharded.weights().names());
        for name in whole.weights().names() {
            let (a, b) = (whole.weights().tensor(&name).unwrap(), sharded.weights().tensor(&name).unwrap());
            assert_eq!(**a.bytes(), **b.bytes(), "{name} depends on the sharding");
            assert_eq!(scan_non_finite(&a), None);
        }
        assert!(whole.chat_template().unwrap().contains("<|im_start|>"));
        assert_eq!(whole.eos_token_ids(), [7]);
        assert!(whole.tokenizer_json().is_ok());
        let copied = Checkpoint::open(&make("copied", &|a| a.tokenizer = Some(one.clone()))).unwrap();
        assert_eq!(*copied.tokenizer_json().unwrap(), *whole.tokenizer_json().unwrap());
        assert_eq!(copied.config(), whole.config());
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
    }

    #[test]
    fn nothing_is_overwritten_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let mut args = tiny(dir.path().join("m"));
        run(&args).unwrap();
        assert!(run(&args).unwrap_err().to_string().contains("pass --force"));
        args.force = true;
        run(&args).unwrap();
        fs::create_dir(dir.path().join("precious")).unwrap();
        args.out = dir.path().join("precious");
        assert!(run(&args).unwrap_err().to_string().contains("is not a checkpoint"));
        args.out = dir.path().join("n");
        args.shards = 0;
        assert!(run(&args).unwrap_err().to_string().contains("--shards"));
        assert!(!args.out.exists());
    }
}
