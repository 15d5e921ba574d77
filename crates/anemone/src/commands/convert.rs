pub(super) mod canary;
pub(super) mod decision;
mod jobs;
mod limits;
mod scales;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anemone_ane::{CacheKind, Options, Pass, Plan, Rules, Silu, plan};
use anemone_bundle::{Bundle, Compression, Source, Writer};
use anemone_checkpoint::{Checkpoint, DecisionCheckpoint};
use anemone_models::Stack;
use anemone_session::Tokenizer;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use super::compress::{CompressArgs, check_some, line, summary};
use crate::args::ModelArgs;
use crate::cli::Shell;
use crate::{machine, model, output};

/// Convert a checkpoint to a Core ML bundle laid out for the Neural Engine
///
/// Each chunk of layers and each slice of the output head becomes one package whose functions (one token, each prefill
/// length, each verification length) share one weight file. A decision model (Laya) becomes one package with a function for each --length. Nothing is written in place before all of it is complete.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone convert --out stories.bundle --ctx 512 --prefill 64\n  \
                  anemone convert --model ./LFM2-350M --out lfm2.bundle --prefill 64 --prefill 256 --spec-drafts 16 --dry-run\n  \
                  anemone convert --model ./LFM2-350M --out lfm2-lut8.bundle --precision lut8\n  \
                  anemone convert --model ./laya --out laya.bundle --length 96 --length 1024 --attention tiled")]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch of the command")]
pub(crate) struct Args {
    /// Directory to create
    #[arg(long, short = 'o', value_name = "DIR")]
    out: PathBuf,
    /// Most tokens a sequence may hold [default: 2048]
    #[arg(long, short = 'c', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..), allow_negative_numbers = true)]
    ctx: Option<usize>,
    /// Tokens of a prefill pass; may be given several times [default: 64]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(2..=4096), allow_negative_numbers = true)]
    prefill: Vec<usize>,
    /// Add a pass that verifies this many drafted tokens at once
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256), allow_negative_numbers = true)]
    spec_drafts: Option<usize>,
    /// Only the one-token function
    #[arg(long, conflicts_with_all = ["prefill", "prefill_only", "spec_drafts"])]
    decode_only: bool,
    /// No one-token function
    #[arg(long)]
    prefill_only: bool,
    /// Keep a ring of the window for sliding layers (the default)
    #[arg(long, conflicts_with = "no_ring")]
    ring: bool,
    /// Keep the whole context for sliding layers too
    #[arg(long)]
    no_ring: bool,
    /// Where keys and values are kept: inputs and outputs of each pass, or Core ML states with rows rounded up to 32
    /// [default: io]
    #[arg(long, value_name = "KIND")]
    cache: Option<CacheName>,
    /// Layers of a package, or those that cost least by Core ML's planner as published, within the size limit [default: auto]
    #[arg(long, value_name = "auto|N", alias = "layers-per-model", value_parser = chunk)]
    chunk: Option<Chunk>,
    /// Slices of the output head, fewer where rounding their rows up to 64 leaves less; 0, the default, chooses by size
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    head_chunks: Option<usize>,
    /// Oldest system the packages must load on
    #[arg(long, value_name = "SYSTEM", default_value = "macos15")]
    target: Target,
    /// Form of x · sigmoid(x) [default: exact]
    #[arg(long, value_name = "FORM")]
    silu: Option<SiluName>,
    /// Switch an arithmetic rule off; may be given several times
    #[arg(long, value_name = "RULE")]
    no_rule: Vec<RuleName>,
    /// Choose a power of two for each linear map and for attention's probabilities, from what the text of --calibrate needs,
    /// in place of the rules scale-wide and scaled-pv
    #[arg(long, value_name = "auto", requires = "calibrate")]
    scales: Option<ScalesName>,
    /// Do not say which known limits of the Neural Engine the plan reaches
    #[arg(long)]
    no_plan: bool,
    /// Do not run each function once on the emulator to record what it gives, which Core ML is tried with before it is trusted
    #[arg(long)]
    no_canary: bool,
    /// Convert the built-in decision model (a decision model that --model names is known by its files)
    #[arg(long, help_heading = "Decision models")]
    decision: bool,
    /// Tokens of a row, one function for each; may be given several times [default: 64, 96, 128]
    #[arg(long, value_name = "N", help_heading = "Decision models", allow_negative_numbers = true)]
    length: Vec<usize>,
    /// How layers with a window attend: every query with every key by mask, or in tiles with the keys they may see [default: dense]
    #[arg(long, value_name = "KIND", help_heading = "Decision models")]
    attention: Option<AttentionName>,
    /// Queries of a tile of --attention tiled [default: 128]
    #[arg(long, value_name = "N", help_heading = "Decision models", allow_negative_numbers = true)]
    tile: Option<usize>,
    /// Add to each length a function for several questions in one row, which decide --pack uses
    #[arg(long, help_heading = "Decision models")]
    pack: bool,
    /// Show the plan, sizes, memory and limits; write nothing
    #[arg(long)]
    dry_run: bool,
    /// Replace an existing bundle, and nothing else, when the new one is complete
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compress: CompressArgs,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Target {
    Macos15,
    Macos26,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CacheName {
    Io,
    State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AttentionName {
    Dense,
    Tiled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SiluName {
    Exact,
    Tanh,
    Fused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScalesName {
    Auto,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RuleName {
    /// Cut feed-forward contractions beyond 4096 and head contractions beyond 1024
    SplitWide,
    /// Scale contractions beyond 1024 by 2^4 and back
    ScaleWide,
    /// Scale attention's probabilities by 2^6 before the values, and back
    ScaledPv,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Auto,
    Layers(usize),
}

impl Target {
    fn spec_version(self) -> i32 {
        if self == Self::Macos26 { 10 } else { 9 }
    }
}

fn chunk(text: &str) -> Result<Chunk, String> {
    match text.parse() {
        _ if text == "auto" => Ok(Chunk::Auto),
        Ok(n) if n > 0 => Ok(Chunk::Layers(n)),
        _ => Err("expected `auto` or a number of layers from 1".into()),
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    ensure!(
        args.compress.encoding()?.is_some() || args.scales.is_some() || args.compress.calibrate.is_none(),
        "--calibrate is for --scales and for tables; add --scales auto or --precision lut6, or leave it out"
    );
    let start = Instant::now();
    let Some(checkpoint) = open(args, shell)? else { return decision::run(args, start, shell) };
    let stack = model::stack(&checkpoint)?;
    let mut options = options(args);
    args.compress.check_names(&stack.weights().iter().map(|w| w.name.as_str()).collect::<Vec<_>>())?;
    let plan = plan(&stack, &options).with_context(|| checkpoint.name().to_string())?;
    if args.dry_run {
        report(args, &checkpoint, &stack, &options, &plan, None)?;
        return Ok(ExitCode::SUCCESS);
    }
    check_tokenizer(&checkpoint, shell)?;
    let mut writer =
        Writer::create(&args.out, args.force).with_context(|| format!("--out {}", args.out.display()))?;
    if let Some(path) = args.compress.calibrate.as_ref().filter(|_| args.scales.is_some()) {
        let tokens = args.compress.calibrate_tokens;
        options.scales =
            Some(scales::choose(path, tokens, writer.dir(), &checkpoint, &stack, &options, shell)?);
    }
    let sha256 = jobs::run(&checkpoint, &stack, &options, &plan, Some(&args.compress), &mut writer, shell)?;
    let source = Source { name: checkpoint.name().into(), model_type: stack.model_type.clone(), sha256 };
    let tensors = stack.weights().into_iter().map(|w| (w.name.clone(), w.shape.to_vec())).collect();
    let written_by = format!("anemone {}", env!("CARGO_PKG_VERSION"));
    if let Some(compression) = writer.compression() {
        check_some(compression)?;
    }
    let manifest = writer.finish(source, &options, &plan, tensors, &written_by)?;
    if !args.no_canary {
        canary::record(&Bundle::open(&args.out)?, machine::threads())?;
    }
    let done = Written { seconds: start.elapsed().as_secs_f64(), compression: manifest.compression };
    report(args, &checkpoint, &stack, &options, &plan, Some(&done))?;
    Ok(ExitCode::SUCCESS)
}

/// The language model to convert; none when it is a decision model. Flags of the other kind are refused.
fn open(args: &Args, shell: &Shell) -> Result<Option<Checkpoint>> {
    let path = model::locate(&args.model, shell)?;
    let decision = path.as_deref().map_or(args.decision, DecisionCheckpoint::is_at);
    if decision {
        let given = [
            ("--ctx", args.ctx.is_some()),
            ("--prefill", !args.prefill.is_empty()),
            ("--spec-drafts", args.spec_drafts.is_some()),
            ("--decode-only", args.decode_only),
            ("--prefill-only", args.prefill_only),
            ("--ring", args.ring),
            ("--no-ring", args.no_ring),
            ("--cache", args.cache.is_some()),
            ("--chunk", args.chunk.is_some()),
            ("--head-chunks", args.head_chunks.is_some()),
            ("--silu", args.silu.is_some()),
            ("--no-rule", !args.no_rule.is_empty()),
            ("--scales", args.scales.is_some()),
            ("--no-plan", args.no_plan),
        ];
        if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
            bail!("{flag} is for language models, and this is a decision model; leave it out");
        }
        return Ok(None);
    }
    let given = [
        ("--decision", args.decision),
        ("--length", !args.length.is_empty()),
        ("--attention", args.attention.is_some()),
        ("--tile", args.tile.is_some()),
        ("--pack", args.pack),
    ];
    if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
        bail!(
            "{flag} is for decision models, and this is a language model; leave it out, or name a decision model (--decision \
             alone is the built-in one)"
        );
    }
    model::open(&args.model, shell).map(Some)
}

/// Errors for a tokenizer that the bundle could not use; without one it reads token ids only, which is said.
fn check_tokenizer(checkpoint: &Checkpoint, shell: &Shell) -> Result<()> {
    if let Ok(json) = checkpoint.tokenizer_json() {
        Tokenizer::check(&json).with_context(|| checkpoint.name().to_string())?;
    } else if !shell.quiet {
        output::note("the checkpoint has no tokenizer.json, so the bundle will run token ids and no text");
    }
    Ok(())
}

fn options(args: &Args) -> Options {
    let ctx = args.ctx.unwrap_or(Options::default().ctx);
    let mut passes = Vec::new();
    if !args.prefill_only {
        passes.push(Pass::Decode);
    }
    if !args.decode_only {
        let lengths = if args.prefill.is_empty() { vec![64.min(ctx.max(2))] } else { args.prefill.clone() };
        passes.extend(lengths.into_iter().map(Pass::Prefill));
    }
    passes.extend(args.spec_drafts.map(|n| Pass::Verify(n + 1)));
    let off = |rule| args.no_rule.contains(&rule);
    let mut rules = Rules {
        silu: match args.silu.unwrap_or(SiluName::Exact) {
            SiluName::Exact => Silu::Exact,
            SiluName::Tanh => Silu::Tanh,
            SiluName::Fused => Silu::Fused,
        },
        ..Rules::default()
    };
    if off(RuleName::SplitWide) {
        (rules.split_wide, rules.split_head) = (None, None);
    }
    if off(RuleName::ScaleWide) {
        rules.scale_wide = None;
    }
    if off(RuleName::ScaledPv) {
        rules.scaled_pv = None;
    }
    Options {
        ctx,
        passes,
        ring: !args.no_ring,
        cache: match args.cache.unwrap_or(CacheName::Io) {
            CacheName::Io => CacheKind::Io,
            CacheName::State => CacheKind::State,
        },
        spec_version: args.target.spec_version(),
        rules,
        scales: None,
        layers_per_chunk: match args.chunk.unwrap_or(Chunk::Auto) {
            Chunk::Auto => None,
            Chunk::Layers(n) => Some(n),
        },
        head_slices: args.head_chunks.filter(|n| *n > 0),
    }
}

/// What was written.
struct Written {
    seconds: f64,
    compression: Option<Compression>,
}

/// What the conversion makes, and what running it will need.
fn report(
    args: &Args,
    checkpoint: &Checkpoint,
    stack: &Stack,
    options: &Options,
    plan: &Plan,
    written: Option<&Written>,
) -> Result<()> {
    let seconds = written.map(|w| w.seconds);
    let compression = written.and_then(|w| w.compression.as_ref());
    let chunk_bytes: usize = plan.chunks.iter().map(|c| c.weight_bytes).sum();
    let table = 2 * stack.vocab_size * stack.hidden_size;
    let cache_bytes: usize = plan.chunks.iter().flat_map(|c| &c.caches).map(cache_bytes).sum();
    let functions: Vec<String> = options.passes.iter().map(|p| p.name()).collect();
    let limits = if args.no_plan { Vec::new() } else { limits::reached(stack, plan, options) };
    if args.json {
        let object = json!({
            "out": if args.dry_run { None } else { Some(args.out.display().to_string()) },
            "source": checkpoint.name(),
            "model_type": stack.model_type,
            "functions": functions,
            "chunks": plan.chunks.iter().map(|c| json!({"layers": [c.layers.start, c.layers.end], "weight_bytes": c.weight_bytes})).collect::<Vec<_>>(),
            "head_slices": plan.head.iter().map(|r| json!([r.start, r.end])).collect::<Vec<_>>(),
            "weight_bytes": chunk_bytes + table,
            "embedding_bytes": table,
            "cache_bytes": cache_bytes,
            "states": plan.chunks.iter().map(|c| &c.states).collect::<Vec<_>>(),
            "rules": options.rules,
            "scales": options.scales,
            "limits": if args.no_plan { serde_json::Value::Null } else { json!(limits) },
            "bundle_bytes": if args.dry_run { None } else { Some(directory_bytes(&args.out)?) },
            "precision": args.compress.name(),
            "compression": compression.map(summary),
            "seconds": seconds,
        });
        return output::json(&object);
    }
    let mut lines = vec![
        format!("source     {} ({})", checkpoint.name(), stack.model_type),
        format!("functions  {}", functions.join(", ")),
    ];
    for (i, chunk) in plan.chunks.iter().enumerate() {
        let layers = format!("layers {}..{}", chunk.layers.start, chunk.layers.end - 1);
        lines.push(format!("chunk {i}    {layers}, {}", machine::bytes(chunk.weight_bytes as u64)));
    }
    lines.push(format!("head       {} slices, {}", plan.head.len(), machine::bytes(table as u64)));
    lines.push(format!("embedding  {} on the host", machine::bytes(table as u64)));
    lines.push(format!("caches     {} at ctx {}", machine::bytes(cache_bytes as u64), options.ctx));
    for (i, chunk) in plan.chunks.iter().enumerate() {
        for state in &chunk.states {
            let (layers, kind) = (state.layers.len(), if state.ring { "a ring" } else { "the context" });
            lines.push(format!(
                "state      chunk {i} {}: {layers} layers, {} channels, {} rows for {kind}, a multiple of 32",
                state.name, state.channels, state.rows
            ));
        }
    }
    if let Some(scales) = &options.scales {
        lines.push(format!("scales     {}", scales::summary(scales)));
    }
    lines.extend(compression.map(line));
    lines.extend(limits.iter().map(|limit| format!("limit      {limit}")));
    if limits.is_empty() && !args.no_plan {
        lines.push("limits     none of those known is reached".into());
    }
    match seconds {
        None => lines.push("dry run    nothing was written".into()),
        Some(seconds) => {
            let size = machine::bytes(directory_bytes(&args.out)?);
            lines.push(format!("written    {} ({size}) in {seconds:.2} s", args.out.display()));
        }
    }
    output::data(&(lines.join("\n") + "\n"))
}

fn cache_bytes(cache: &anemone_ane::CachePlan) -> usize {
    match cache {
        anemone_ane::CachePlan::Attention { rows, width, .. } => 4 * rows * width,
        anemone_ane::CachePlan::ShortConv { width, reach, .. } => 2 * width * reach,
    }
}

pub(super) fn directory_bytes(dir: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        total += if meta.is_dir() { directory_bytes(&entry.path())? } else { meta.len() };
    }
    Ok(total)
}
