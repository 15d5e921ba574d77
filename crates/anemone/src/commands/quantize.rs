mod metadata;
mod tensors;

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anemone_checkpoint::gguf::{GgufPlan, GgufWriter, TensorType};
use anemone_checkpoint::{Checkpoint, Weights};
use anemone_models::WeightRef;
use anemone_tensor::{BlockFormat, DType, append_fp16};
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::json;
use tensors::{Role, Stored};

use crate::args::ModelArgs;
use crate::cli::Shell;
use crate::{files, model, output};

/// Write a checkpoint as a GGUF file
///
/// Matrices take the type named, norms, filters, routers and biases stay in F32. Tensors are written one after the other, so that
/// memory does not grow with the model. A GGUF file as the model is coded anew from its elements: what was lost stays lost.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  anemone quantize --model ./lfm2-350m --type q8_0 --out lfm2-350m.gguf\n  \
                        anemone run --model lfm2-350m.gguf --prompt \"once upon a time\""
)]
pub(crate) struct Args {
    /// File to write
    #[arg(long, short = 'o', value_name = "FILE")]
    out: PathBuf,
    /// Type of matrices
    #[arg(long = "type", short = 'y', value_name = "TYPE", value_enum)]
    kind: Kind,
    /// Type of the embedding and the head [default: the one of --type, but 8 bits where it has fewer]
    #[arg(long, value_name = "TYPE", value_enum)]
    embedding: Option<Kind>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
#[allow(non_camel_case_types, reason = "the names the formats have everywhere")]
enum Kind {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q5_1")]
    Q5_1,
    #[value(name = "q5_0")]
    Q5_0,
    #[value(name = "q4_1")]
    Q4_1,
    #[value(name = "q4_0")]
    Q4_0,
}

impl Kind {
    fn stored(self) -> TensorType {
        match self {
            Self::F32 => TensorType::Plain(DType::F32),
            Self::F16 => TensorType::Plain(DType::F16),
            Self::Bf16 => TensorType::Plain(DType::BF16),
            Self::Q8_0 => TensorType::Blocks(BlockFormat::Q8_0),
            Self::Q5_1 => TensorType::Blocks(BlockFormat::Q5_1),
            Self::Q5_0 => TensorType::Blocks(BlockFormat::Q5_0),
            Self::Q4_1 => TensorType::Blocks(BlockFormat::Q4_1),
            Self::Q4_0 => TensorType::Blocks(BlockFormat::Q4_0),
        }
    }

    /// What the embedding and the head take where nothing else is said.
    fn for_embedding(self) -> Self {
        match self {
            Self::Q5_1 | Self::Q5_0 | Self::Q4_1 | Self::Q4_0 => Self::Q8_0,
            other => other,
        }
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let checkpoint = model::open(&args.model, shell)?;
    let stack = model::stack(&checkpoint)?;
    if let Some(source) = checkpoint.gguf() {
        files::distinct(source, "--out", &args.out)?;
    }
    let stored = tensors::list(&stack);
    let plans: Vec<GgufPlan> = stored.iter().map(|s| plan(s, args)).collect();
    let metadata = metadata::write(&checkpoint, &stack, args.kind.stored())?;
    let bar = ProgressBar::new(stored.len() as u64);
    if shell.quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let mut bytes = 0;
    files::write_whole("--out", &args.out, |file| {
        let mut writer = GgufWriter::new(BufWriter::new(file), &metadata, &plans)?;
        let mut data = Vec::new();
        for (stored, plan) in stored.iter().zip(&plans) {
            data.clear();
            for weight in &stored.weights {
                append(&checkpoint, weight, plan.kind, &mut data)
                    .with_context(|| format!("{}: tensor {}", checkpoint.name(), weight.name))?;
            }
            writer.tensor(&data)?;
            bytes += data.len() as u64;
            bar.inc(1);
        }
        writer.finish()?.flush()?;
        Ok(())
    })?;
    bar.finish_and_clear();
    let kept: Vec<&str> = plans
        .iter()
        .zip(&stored)
        .filter(|(plan, stored)| stored.role != Role::Small && plan.kind != wanted(stored, args))
        .map(|(plan, _)| plan.name.as_str())
        .collect();
    if args.json {
        output::json(
            &json!({"file": args.out.display().to_string(), "tensors": plans.len(), "bytes": bytes,
            "type": args.kind.stored().name(), "not_of_whole_blocks": kept}),
        )?;
    } else {
        output::data(&format!("{}: {} tensors, {bytes} bytes\n", args.out.display(), plans.len()))?;
    }
    if !kept.is_empty() && !shell.quiet {
        output::note(&format!("{} tensors have rows of no whole blocks and are F16", kept.len()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The type a tensor is to have, if its rows allow it.
fn wanted(stored: &Stored<'_>, args: &Args) -> TensorType {
    match stored.role {
        Role::Small => TensorType::Plain(DType::F32),
        Role::Embedding => args.embedding.unwrap_or(args.kind.for_embedding()).stored(),
        Role::Matrix => args.kind.stored(),
    }
}

fn plan(stored: &Stored<'_>, args: &Args) -> GgufPlan {
    let name = stored.name.clone();
    let plan = GgufPlan { name, kind: wanted(stored, args), shape: stored.shape.clone() };
    if plan.len().is_some() { plan } else { GgufPlan { kind: TensorType::Plain(DType::F16), ..plan } }
}

/// Appends the elements of a weight in the type given.
fn append(checkpoint: &Checkpoint, weight: &WeightRef, kind: TensorType, out: &mut Vec<u8>) -> Result<()> {
    let weights = checkpoint.weights();
    let tensor = weight.load(&*weights as &dyn Weights)?;
    match kind {
        TensorType::Plain(dtype) if dtype == tensor.dtype() => out.extend_from_slice(tensor.bytes()),
        TensorType::Plain(DType::F16) => {
            let beyond = |b: anemone_tensor::BeyondFp16| {
                anyhow::anyhow!(
                    "element {} is {}, which F16 cannot hold; use --type bf16 or f32",
                    b.index,
                    b.value
                )
            };
            append_fp16(tensor.bytes(), tensor.dtype(), 1.0, out).map_err(beyond)?;
        }
        TensorType::Plain(DType::BF16) => {
            out.extend(tensor.to_f32()?.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()));
        }
        TensorType::Plain(_) => out.extend(tensor.to_f32()?.iter().flat_map(|v| v.to_le_bytes())),
        TensorType::Blocks(format) => {
            let values = tensor.to_f32()?;
            let bad = values.iter().position(|v| !v.is_finite());
            ensure!(bad.is_none(), "element {} is no finite number", bad.unwrap_or(0));
            let cols = weight.shape.last().copied().unwrap_or(1);
            values.chunks_exact(cols).for_each(|row| format.encode_row(row, out));
        }
        TensorType::Other(_) => anyhow::bail!("type {} is not written", kind.name()),
    }
    Ok(())
}
