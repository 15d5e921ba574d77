use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anemone_ane::{LayaOptions, LayaPart, LocalAttention, OPTION_SLOTS, lower_laya, lower_laya_part};
use anemone_bundle::file_sha256;
use anemone_mil::{DataType, Program, Signature, TensorType, write_package};
use anemone_models::Laya;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::args::{DECISION_MODEL_HELP, ModelArgs};
use crate::cli::Shell;
use crate::commands::convert;
use crate::{machine, model, output};

const PACKAGE: &str = "model.mlpackage";
const TILE: usize = 128;

/// Write a part of a decision model as a Core ML package of its own
///
/// For experiments with what runs where: one MLP, one encoder layer, or everything between the embedding table and the action head.
/// The directory holds model.mlpackage and manifest.json: the SHA-256 of the source's and the package's files, inputs and outputs
/// with their shapes, versions. What exists already is never written over.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone probe --kind layer --length 96 --output layer96\n  \
                  anemone probe --model ./laya --kind body --length 1024 --attention tiled --output body1024")]
#[command(mut_arg("model", |arg| arg.help(DECISION_MODEL_HELP)))]
pub(crate) struct Args {
    /// What to write
    #[arg(long, value_name = "KIND")]
    kind: Kind,
    /// Tokens of a row
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    length: usize,
    /// Directory to create
    #[arg(long, short = 'o', value_name = "DIR")]
    output: PathBuf,
    /// Encoder layer of an mlp or layer [default: 1, the first with all its norms]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    layer: Option<usize>,
    /// How layers with a window attend
    #[arg(long, value_name = "KIND", default_value = "dense")]
    attention: Attention,
    /// Queries of a tile of --attention tiled [default: 128]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    tile: Option<usize>,
    /// Print one JSON object, the manifest
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Norm, MLP and sum of one layer
    Mlp,
    /// One encoder layer
    Layer,
    /// The whole body
    Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Attention {
    Dense,
    Tiled,
}

impl Args {
    fn options(&self) -> Result<LayaOptions> {
        let local = match (self.attention, self.tile) {
            (Attention::Tiled, tile) => LocalAttention::Tiled(tile.unwrap_or(TILE)),
            (Attention::Dense, None) => LocalAttention::Dense,
            (Attention::Dense, Some(_)) => bail!("--tile is of --attention tiled; add that, or leave it out"),
        };
        ensure!(
            self.kind != Kind::Body || self.layer.is_none(),
            "--layer is of --kind mlp and layer; the body has all of them"
        );
        let (lengths, precision) = (vec![self.length], DataType::Float16);
        Ok(LayaOptions { lengths, spec_version: 9, local, precision, pack: false })
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let out = &args.output;
    let exists = || format!("--output {} exists; give another directory, or remove that one", out.display());
    ensure!(std::fs::symlink_metadata(out).is_err(), exists());
    let options = args.options()?;
    let checkpoint = model::open_decision(&args.model, shell)?;
    let from_bundle = model::decision_path(&args.model, shell)?;
    ensure!(
        from_bundle.is_none_or(|path| !anemone_bundle::DecisionBundle::is_at(&path)),
        "--model names a bundle, whose packages are there already; give the checkpoint it was made from"
    );
    let weights = checkpoint.weights();
    let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights)
        .with_context(|| checkpoint.name().to_owned())?;
    let layer = args.layer.unwrap_or(usize::from(laya.encoder.layers.len() > 1));
    let load = |w: &anemone_models::WeightRef| w.load(&*weights);
    let program = match args.kind {
        Kind::Mlp => lower_laya_part(&laya, &load, &options, LayaPart::Mlp(layer))?,
        Kind::Layer => lower_laya_part(&laya, &load, &options, LayaPart::Layer(layer))?,
        Kind::Body => lower_laya(&laya, &load, &options)?.0,
    };
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = || format!("--output {}", out.display());
    std::fs::create_dir_all(parent).with_context(place)?;
    let building = building(parent).with_context(place)?;
    let report = write_package(&program, &building.path().join(PACKAGE))?;
    let manifest = json!({
        "format": "anemone-probe",
        "format_version": 1,
        "kind": args.kind.to_possible_value().map(|v| v.get_name().to_owned()),
        "layer": (args.kind != Kind::Body).then_some(layer),
        "shape": {"batch": 1, "length": args.length, "channels": laya.encoder.hidden_size, "options": OPTION_SLOTS},
        "tile": if let LocalAttention::Tiled(tile) = options.local { Some(tile) } else { None },
        "source": checkpoint.name(),
        "source_files_sha256": convert::decision::sha256(&checkpoint)?,
        "package": PACKAGE,
        "package_files_sha256": hashes(&building.path().join(PACKAGE))?,
        "weight_bytes": report.weight_bytes,
        "functions": functions(&program),
        "versions": {"anemone": env!("CARGO_PKG_VERSION"), "specification": options.spec_version},
    });
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    std::fs::write(building.path().join("manifest.json"), text).with_context(place)?;
    ensure!(std::fs::symlink_metadata(out).is_err(), exists());
    std::fs::rename(building.path(), out).with_context(place)?;
    if args.json {
        output::json(&manifest)?;
    } else {
        output::data(&shown(args, &program, &manifest))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A directory that goes away unless it is given its name.
fn building(parent: &Path) -> Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".anemone-probe-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o777));
    }
    Ok(builder.tempdir_in(parent)?)
}

/// SHA-256 of every file below a directory, by its path there.
fn hashes(root: &Path) -> Result<BTreeMap<String, String>> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
                found.insert(name, file_sha256(&path)?);
            }
        }
    }
    Ok(found)
}

fn functions(program: &Program) -> Value {
    let side = |tensors: &[(String, TensorType)]| -> Value {
        let row = |(name, ty): &(String, TensorType)| {
            (name.clone(), json!({"dtype": ty.dtype.to_string(), "shape": ty.shape}))
        };
        tensors.iter().map(row).collect::<serde_json::Map<_, _>>().into()
    };
    let of = |function: &anemone_mil::Function| {
        let signature = Signature::of(function);
        let operations: usize = function.op_counts().values().sum();
        json!({"inputs": side(&signature.inputs), "outputs": side(&signature.outputs), "operations": operations})
    };
    program.functions.iter().map(|(name, f)| (name.clone(), of(f))).collect::<serde_json::Map<_, _>>().into()
}

fn shown(args: &Args, program: &Program, manifest: &Value) -> String {
    let mut lines = vec![format!("source     {}", manifest["source"].as_str().unwrap_or_default())];
    for (name, function) in &program.functions {
        let signature = Signature::of(function);
        let operations: usize = function.op_counts().values().sum();
        lines.push(format!("function   {name}: {operations} operations"));
        for (what, side) in [("input", &signature.inputs), ("output", &signature.outputs)] {
            lines.extend(side.iter().map(|(name, ty)| format!("{what:<10} {name} {:?}", ty.shape)));
        }
    }
    lines.push(format!("weights    {}", machine::bytes(manifest["weight_bytes"].as_u64().unwrap_or(0))));
    lines.push(format!("written    {}", args.output.display()));
    lines.join("\n") + "\n"
}
