mod decision;
mod describe;
mod packages;
mod placement;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use anemone_checkpoint::{Checkpoint, Weights, scan_non_finite};
use anemone_cpu::{Arithmetic, Layout, Model, Options};
use anemone_models::Stack;
use anyhow::{Result, bail};
use clap::builder::RangedU64ValueParser;
use serde_json::{Map, Value, json};

use crate::args::{BundleArg, DEFAULT_CONTEXT, ModelArgs};
use crate::cli::Shell;
use crate::machine::bytes as size;
use crate::{model, output};

/// Show what a checkpoint, a bundle or a Core ML package holds
///
/// Of a checkpoint: architecture, layers, tensors, sizes, tokenizer, memory needed. Of a bundle also its packages: functions with
/// their inputs and outputs, operations by type, weights and what functions share of them. Of a decision model, as a checkpoint or a
/// bundle, also its limits and temperatures. A package, of anemone or of coremltools, is shown alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone inspect --model ./LFM2-350M\n  \
                        anemone inspect --model ./LFM2-350M --tensors --check --json\n  \
                        anemone inspect --bundle ./lfm2.bundle --verify-hash\n  \
                        anemone inspect --model ./lfm2.bundle/head_0.mlpackage --mil")]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch of the command")]
pub(crate) struct Args {
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Read all weights and look for NaN and infinity
    #[arg(long)]
    check: bool,
    /// Print the programs of a bundle or package as MIL text
    #[arg(long, conflicts_with = "json")]
    mil: bool,
    /// Read every file of a bundle and compare it with the manifest's hashes
    #[arg(long)]
    verify_hash: bool,
    /// Predict which operations of a bundle or package Core ML would run on the Neural Engine, from what others have published
    #[arg(long, conflicts_with_all = ["tensors", "check", "mil", "verify_hash", "ctx"])]
    placement: bool,
    /// Chip to predict for: m1, m2, m3, m3max, m4, m4max, m5 or m6 [default: m4]
    #[arg(long, value_name = "CHIP", requires = "placement")]
    chip: Option<String>,
    /// Context to size the memory for [default: the model's limit, but at most 4096]
    #[arg(long, short = 'c', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..), allow_negative_numbers = true)]
    ctx: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    bundle: BundleArg,
}

/// Memory a model needs, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Tokens the cache holds.
    pub(crate) context: usize,
    /// Weight files.
    pub(crate) weights: u64,
    /// Caches in exact arithmetic.
    pub(crate) exact_cache: u64,
    /// Caches in fast arithmetic.
    pub(crate) fast_cache: u64,
}

impl Memory {
    /// Sizes a checked model; errors when `--ctx` is beyond its limit.
    pub(crate) fn of(checkpoint: &Checkpoint, stack: &Stack, ctx: Option<usize>) -> Result<Self> {
        let max = stack.max_position_embeddings;
        let context = ctx.unwrap_or(max.min(DEFAULT_CONTEXT));
        if context > max {
            bail!("--ctx {context} is longer than the model's {max} (max_position_embeddings); lower it");
        }
        let model = Model::load(stack.clone(), &*checkpoint.weights(), Layout::Mapped)?;
        let cache = |arithmetic| model.state_bytes(&Options { arithmetic, ..Options::default() }, context);
        Ok(Self {
            context,
            weights: checkpoint.weight_bytes(),
            exact_cache: cache(Arithmetic::Exact),
            fast_cache: cache(Arithmetic::Fast),
        })
    }

    fn json(self) -> Value {
        let mode = |cache: u64| json!({"cache_bytes": cache, "total_bytes": cache + self.weights});
        json!({
            "context": self.context,
            "weight_bytes": self.weights,
            "fast": mode(self.fast_cache),
            "exact": mode(self.exact_cache),
        })
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    if args.placement {
        let path = args.bundle.bundle.as_deref().or(args.model.model.as_deref());
        placement::show(path, args.chip.as_deref().unwrap_or("m4"), args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(source) = decision::find(args, shell)? {
        return source.show(args);
    }
    let model = args.model.or_bundle(&args.bundle)?;
    let packages = packages::of(args, model.model.as_deref())?;
    if let Some(packages) = packages.as_ref().filter(|p| args.mil || p.is_alone()) {
        packages.show(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    let checkpoint = model::open(&model, shell)?;
    let checked = args.check.then(|| check(&*checkpoint.weights())).transpose()?;
    let stack = model::stack(&checkpoint)?;
    let memory = Memory::of(&checkpoint, &stack, args.ctx)?;
    let tokenizer = checkpoint.tokenizer_json().is_ok().then(|| model::tokenizer(&checkpoint)).transpose()?;
    let mut report = Map::new();
    report.insert("model".into(), checkpoint.name().into());
    report.insert("model_type".into(), stack.model_type.as_str().into());
    report.insert(
        "architectures".into(),
        checkpoint.config().get("architectures").cloned().unwrap_or(Value::Null),
    );
    report.insert("parameters".into(), stack.parameters().into());
    report.insert("hidden_size".into(), stack.hidden_size.into());
    report.insert("vocab_size".into(), stack.vocab_size.into());
    report.insert("max_position_embeddings".into(), stack.max_position_embeddings.into());
    report.insert("tied_head".into(), stack.is_tied().into());
    report.insert("layers".into(), describe::layers(&stack));
    report.insert("dtypes".into(), dtypes(&*checkpoint.weights()));
    report.insert("weight_bytes".into(), checkpoint.weight_bytes().into());
    let files = checkpoint.files().iter().map(|f| json!({"name": f.name, "bytes": f.bytes}));
    report.insert("files".into(), files.collect());
    report.insert("tokenizer".into(), tokenizer.as_ref().map_or(Value::Null, describe::tokenizer));
    report.insert("chat_template".into(), checkpoint.chat_template().is_some().into());
    let configured = checkpoint.eos_token_ids();
    let stops = tokenizer.as_ref().map_or(configured.clone(), |t| t.stop_ids(&configured));
    report.insert("eos_token_ids".into(), json!(stops));
    report.insert("memory".into(), memory.json());
    if args.tensors {
        report.insert("tensors".into(), tensors(&*checkpoint.weights()));
    }
    if let Some(count) = checked {
        report.insert("check".into(), json!({"tensors": count, "finite": true}));
    }
    if let Some(packages) = &packages {
        report.insert("bundle".into(), packages.report());
    }
    if args.json {
        output::json(&Value::Object(report))?;
    } else {
        output::data(&text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads every tensor; gives their number, or the first that holds NaN or infinity as an error.
fn check(weights: &dyn Weights) -> Result<usize> {
    let names = weights.names();
    for name in &names {
        if let Some(index) = scan_non_finite(&weights.tensor(name)?) {
            return Err(anemone_cpu::Error::NonFiniteWeight { name: name.clone(), index }.into());
        }
    }
    Ok(names.len())
}

fn tensors(weights: &dyn Weights) -> Value {
    let row = |name: String| {
        let entry = weights.entry(&name);
        let shape: Vec<usize> = entry.as_ref().map(|e| e.shape.to_vec()).unwrap_or_default();
        let bytes = entry.map(|e| e.shape.numel() * e.dtype.size());
        json!({"name": name, "dtype": weights.stored_dtype(&name), "shape": shape, "bytes": bytes})
    };
    weights.names().into_iter().map(row).collect()
}

fn dtypes(weights: &dyn Weights) -> Value {
    let mut sums: BTreeMap<String, (usize, usize, usize)> = BTreeMap::new();
    for name in weights.names() {
        let Some(dtype) = weights.stored_dtype(&name) else { continue };
        let (elements, bytes) =
            weights.entry(&name).map_or((0, 0), |e| (e.shape.numel(), e.shape.numel() * e.dtype.size()));
        let sum = sums.entry(dtype).or_default();
        *sum = (sum.0 + 1, sum.1 + elements, sum.2 + bytes);
    }
    let row = |(dtype, (tensors, elements, bytes))| {
        (dtype, json!({"tensors": tensors, "elements": elements, "bytes": bytes}))
    };
    Value::Object(sums.into_iter().map(row).collect())
}

/// The report for people.
fn text(report: &Map<String, Value>) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let plain = |key: &str| report.get(key).map(ToString::to_string).unwrap_or_default();
    let get = |key: &str| report.get(key).unwrap_or(&Value::Null);
    let mut out = String::new();
    let _ = writeln!(out, "{} ({})", plain("model").trim_matches('"'), plain("model_type").trim_matches('"'));
    let _ = writeln!(
        out,
        "{} parameters, hidden {}, vocabulary {}, context {}, head {}",
        plain("parameters"),
        plain("hidden_size"),
        plain("vocab_size"),
        plain("max_position_embeddings"),
        if get("tied_head") == &Value::Bool(true) { "tied to the embedding" } else { "of its own" }
    );
    let _ = writeln!(out, "\nlayers");
    for layer in get("layers").as_array().into_iter().flatten() {
        let _ = writeln!(out, "  {}", describe::layer_line(layer));
    }
    weights_and_files(report, &mut out);
    let _ = writeln!(out, "\ntokenizer: {}", describe::tokenizer_line(get("tokenizer")));
    let _ = writeln!(
        out,
        "chat template: {}",
        if get("chat_template") == &Value::Bool(true) { "its own" } else { "none; the built-in one is used" }
    );
    let _ = writeln!(out, "end of text: ids {}", plain("eos_token_ids"));
    let memory = get("memory");
    let _ = writeln!(out, "\nmemory at a context of {}", memory["context"]);
    for mode in ["fast", "exact"] {
        let _ = writeln!(
            out,
            "  {mode:<6} weights {} + cache {} = {}",
            size(number(&memory["weight_bytes"])),
            size(number(&memory[mode]["cache_bytes"])),
            size(number(&memory[mode]["total_bytes"]))
        );
    }
    if let Some(bundle) = report.get("bundle") {
        out.push('\n');
        packages::describe(bundle, &mut out);
    }
    tensor_lines(report, &mut out);
    out
}

/// The lines on weights and files, of any model.
fn weights_and_files(report: &Map<String, Value>, out: &mut String) {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let get = |key: &str| report.get(key).unwrap_or(&Value::Null);
    let _ = writeln!(out, "\nweights");
    for (dtype, sum) in get("dtypes").as_object().into_iter().flatten() {
        let _ = writeln!(
            out,
            "  {dtype}: {} tensors, {} elements, {}",
            sum["tensors"],
            sum["elements"],
            size(number(&sum["bytes"]))
        );
    }
    let _ = writeln!(out, "\nfiles");
    for file in get("files").as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "  {:<32} {:>12}",
            file["name"].as_str().unwrap_or(""),
            size(number(&file["bytes"]))
        );
    }
}

/// The lines on single tensors, where they were asked for.
fn tensor_lines(report: &Map<String, Value>, out: &mut String) {
    let get = |key: &str| report.get(key).unwrap_or(&Value::Null);
    if let Some(tensors) = get("tensors").as_array() {
        let _ = writeln!(out, "\ntensors");
        for t in tensors {
            let name = t["name"].as_str().unwrap_or("");
            let dtype = t["dtype"].as_str().unwrap_or("");
            let _ = writeln!(
                out,
                "  {name:<56} {dtype:<5} {:<16} {:>10}",
                t["shape"].to_string(),
                t["bytes"].to_string()
            );
        }
    }
    if let Some(check) = report.get("check") {
        let _ = writeln!(out, "\nall {} tensors are finite", check["tensors"]);
    }
}
