mod prompts;
mod ranges;

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anemone_bundle::{Bundle, BundleWeights};
use anemone_checkpoint::Checkpoint;
use anemone_cpu::{Arithmetic, Layout, Model};
use anemone_models::Stack;
use anemone_session::Engine as _;
use anemone_verify::{Error, Options, Recording, Report, html, read_golden, verify};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use crate::args::{EngineArgs, ModelArgs};
use crate::cli::Shell;
use crate::engine::Engine;
use crate::model::{self, Loaded};
use crate::{demo, files, output};
use prompts::Prompt;

/// Most differences the table lists.
const DIFFERENCES: usize = 20;

/// Compare a bundle on an engine with the checkpoint it was made from
///
/// The reference is the checkpoint (--model) in exact f32, recorded outputs (--golden), or both. The same tokens go through
/// every function of the bundle: logits, best tokens and the residual stream after each layer are compared at every position,
/// then the greedy continuation. Without --bundle, the native engine is compared with itself in exact arithmetic. Exits
/// with 1 when a cosine is below --min-cos, or when another token is best and it is no tie: a tie is a difference of two
/// tokens that the reference holds closer together than the largest error of a logit over the prompts, where no cosine is below.
///
/// On the emulator each operation that sums products is listed with how far its sums are from where the profile's overflow, and
/// its products from where they are dropped: those nearest to either, and all of them with --json.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  anemone verify --bundle lfm2.bundle --engine emulator --model ./LFM2-350M\n  \
                  anemone verify --bundle lfm2.bundle --engine emulator --golden ./goldens --json --html report.html"
)]
pub(crate) struct Args {
    /// Bundle to verify
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    bundle: Option<PathBuf>,
    /// Recorded outputs: a JSON file, or a directory with goldens.json
    #[arg(long, value_name = "FILE|DIR", help_heading = "Model")]
    golden: Option<PathBuf>,
    /// Text to run; may be repeated [default: a few short texts]
    #[arg(long, short = 'p', value_name = "TEXT")]
    prompt: Vec<String>,
    /// Text file to run, cut into windows of 256 tokens
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens of --text that are used
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..), allow_negative_numbers = true)]
    max_tokens: usize,
    /// Greedy tokens compared after each text
    #[arg(long, short = 'n', value_name = "N", default_value_t = 16, allow_negative_numbers = true)]
    max_new_tokens: usize,
    /// Least cosine of the logits that passes
    #[arg(long, value_name = "X", default_value_t = 0.999, value_parser = cosine, allow_negative_numbers = true)]
    min_cos: f64,
    /// Do not read the bundle's files first to compare them with the manifest's hashes
    #[arg(long)]
    no_verify_hash: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a page with tables and a plot of the drift per layer
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Whether a bundle may be the reference.
    #[arg(skip)]
    bundle_as_reference: bool,
}

pub(super) fn cosine(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (-1.0..=1.0).contains(&value) => Ok(value),
        _ => Err("give a number from -1 to 1".into()),
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let subject =
        ModelArgs { model: args.bundle.clone().or_else(|| args.model.model.clone()), ..args.model.clone() };
    if let Some(path) = &args.bundle {
        check_reference(args, &model::open_bundle(path)?)?;
    }
    if let Some(path) = subject.model.as_deref().filter(|p| !args.no_verify_hash && Bundle::is_bundle(p)) {
        Bundle::open(path)?.verify_hashes()?;
    }
    let mut loaded = Loaded::new(&subject, &args.engine, 0, true, shell)?;
    let golden = match &args.golden {
        None => Vec::new(),
        Some(path) => {
            let blocks: Vec<String> = loaded.stack().blocks.iter().map(|b| b.path.clone()).collect();
            read_golden(path, &blocks, args.max_new_tokens).map_err(|e| anyhow!("--golden {e}"))?
        }
    };
    let with_checkpoint = args.golden.is_none() || args.model.model.is_some();
    let Measured { report, tokens, notes } = measure(args, &mut loaded, golden, shell)?;
    let facts = facts(args, &loaded, with_checkpoint);
    let ranges = loaded.engine.ranges().map(|(profile, seen)| ranges::rows(profile, &seen));
    if let Some(path) = &args.html {
        let page = html(&report, &facts);
        files::write_whole("--html", path, |file| Ok(file.write_all(page.as_bytes())?))?;
    }
    if args.json {
        let mut object = report.to_json();
        for (key, value) in &facts {
            object[*key] = Value::from(value.as_str());
        }
        if let Some(ranges) = &ranges {
            object["ranges"] = ranges::json(ranges);
        }
        object["tokens"] = json!(tokens);
        output::json(&object)?;
    } else {
        let ranges = ranges.map_or_else(String::new, |rows| ranges::table(&rows));
        output::data(&table(&report, &facts, &ranges))?;
    }
    if !shell.quiet {
        for text in &notes {
            output::note(text);
        }
        for skipped in &report.skipped {
            output::note(&format!("not compared: {}: {}", skipped.prompt, skipped.reason));
        }
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Measured {
    report: Report,
    /// In the prompts.
    tokens: usize,
    notes: Vec<String>,
}

/// Compares the engine with recordings and the checkpoint.
fn measure(args: &Args, loaded: &mut Loaded, golden: Vec<Recording>, shell: &Shell) -> Result<Measured> {
    let room = loaded.engine.context_len();
    ensure!(
        args.max_new_tokens < room,
        "--max-new-tokens {} leaves no token of the context of {room} for a prompt; lower it",
        args.max_new_tokens
    );
    let with_checkpoint = args.golden.is_none() || args.model.model.is_some();
    ensure!(
        with_checkpoint || (args.prompt.is_empty() && args.text.is_none()),
        "--prompt and --text need a reference that can be run; add --model with the checkpoint"
    );
    let (prompts, notes) = if with_checkpoint {
        prompts(args, loaded, room - args.max_new_tokens)?
    } else {
        (Vec::new(), Vec::new())
    };
    let mut reference =
        if with_checkpoint { Some(reference(args, &prompts, loaded.stack(), shell)?) } else { None };
    let bar = indicatif::ProgressBar::new_spinner();
    if shell.quiet {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let recorded =
        prompts.iter().filter_map(|prompt| {
            let engine = reference.as_mut()?;
            let recording = Recording::of(engine, &prompt.name, &prompt.tokens, args.max_new_tokens);
            Some(recording.map_err(|source| Error::Engine {
                during: format!("`{}`, the reference", prompt.name),
                source,
            }))
        });
    let mut recordings = golden.into_iter().map(Ok).chain(recorded);
    let options = Options { min_cos: args.min_cos };
    let report = verify(&mut loaded.engine, &mut recordings, options, &mut |what| {
        bar.set_message(what.to_owned());
        bar.tick();
    });
    bar.finish_and_clear();
    let report = report.context("verify")?;
    let tokens = prompts.iter().map(|p| p.tokens.len()).sum();
    Ok(Measured { report, tokens, notes })
}

/// Judges a candidate on the emulator as `verify` does; the reference, `model`, may be a bundle.
pub(super) fn gate(
    candidate: &Path,
    model: ModelArgs,
    engine: EngineArgs,
    text: Option<PathBuf>,
    min_cos: f64,
    shell: &Shell,
) -> Result<Report> {
    let args = Args {
        bundle: Some(candidate.to_path_buf()),
        golden: None,
        prompt: Vec::new(),
        text,
        max_tokens: 1024,
        max_new_tokens: 16,
        min_cos,
        no_verify_hash: true,
        json: false,
        html: None,
        model,
        engine,
        bundle_as_reference: true,
    };
    let bundle = Bundle::open_candidate(candidate)?;
    let checkpoint = Checkpoint::with_weights(candidate, Arc::new(BundleWeights::open(&bundle)?))?;
    let engine = Engine::over(bundle, &args.engine, true)?;
    let mut loaded = Loaded { checkpoint, engine, load_seconds: 0.0 };
    Ok(measure(&args, &mut loaded, Vec::new(), shell)?.report)
}

/// The built-in model is only the reference of its own bundles.
fn check_reference(args: &Args, bundle: &Bundle) -> Result<()> {
    let source = &bundle.manifest().source;
    if args.model.model.is_some() || args.golden.is_some() || source.sha256 == demo::sha256() {
        return Ok(());
    }
    bail!(
        "no reference: the bundle was made from `{}`; give that checkpoint with --model, or recorded outputs with --golden",
        source.name
    );
}

/// What to run, and what is to be said about it.
fn prompts(args: &Args, loaded: &Loaded, room: usize) -> Result<(Vec<Prompt>, Vec<String>)> {
    let tokenizer = model::tokenizer(&loaded.checkpoint)?;
    let (mut prompts, mut notes) = (Vec::new(), Vec::new());
    if let Some(path) = &args.text {
        let text = files::read_text("--text", path)?;
        ensure!(!text.trim().is_empty(), "--text {}: there is no text in it; give some", path.display());
        let tokens = tokenizer.encode(&text, true).with_context(|| format!("--text {}", path.display()))?;
        let used = tokens.len().min(args.max_tokens);
        if used < tokens.len() {
            notes.push(format!(
                "--text: {used} of {} tokens are used; --max-tokens N takes more",
                tokens.len()
            ));
        }
        prompts.extend(prompts::windows(&tokens[..used], room));
    }
    let own = args.text.is_none() && args.prompt.is_empty();
    let texts = args.prompt.iter().map(String::as_str).chain(prompts::TEXTS.into_iter().filter(|_| own));
    for (i, text) in texts.enumerate() {
        let tokens = tokenizer.encode(text, true).context("--prompt")?;
        let prompt = prompts::cut(format!("prompt {}", i + 1), tokens, room);
        if prompt.left_out > 0 {
            notes.push(format!(
                "{}: its last {} tokens do not fit and are left out",
                prompt.name, prompt.left_out
            ));
        }
        prompts.push(prompt);
    }
    ensure!(
        prompts.iter().all(|p| !p.tokens.is_empty()) && !prompts.is_empty(),
        "a text has no tokens; give --prompt or --text with at least one"
    );
    Ok((prompts, notes))
}

/// The checkpoint in exact arithmetic.
fn reference(args: &Args, prompts: &[Prompt], subject: &Stack, shell: &Shell) -> Result<anemone_cpu::Engine> {
    if let Some(path) =
        args.model.model.as_ref().filter(|p| !args.bundle_as_reference && Bundle::is_bundle(p))
    {
        ensure!(
            args.bundle.is_none() && !args.engine.emulated()?,
            "--model {}: this is a bundle; name it with --bundle, and the checkpoint it was made from with --model",
            path.display()
        );
    }
    let checkpoint = model::open(&args.model, shell)?;
    let stack = model::stack(&checkpoint)?;
    if let Some(difference) = difference(subject, &stack) {
        bail!(
            "`{}` is another model than the bundle's: {difference}; give the checkpoint it was made from with --model",
            checkpoint.name()
        );
    }
    let model = Model::load(stack, &*checkpoint.weights(), Layout::Mapped)?;
    let longest = prompts.iter().map(|p| p.tokens.len()).max().unwrap_or(1);
    let options = anemone_cpu::Options {
        threads: args.engine.threads(),
        arithmetic: Arithmetic::Exact,
        layout: Layout::Mapped,
        context_len: Some(longest + args.max_new_tokens),
        ..anemone_cpu::Options::default()
    };
    anemone_cpu::Engine::new(Arc::new(model), options).context("the reference")
}

/// What shows at a glance that two models have nothing to do with each other.
fn difference(bundle: &Stack, checkpoint: &Stack) -> Option<String> {
    let numbers = [
        ("layers", bundle.blocks.len(), checkpoint.blocks.len()),
        ("channels", bundle.hidden_size, checkpoint.hidden_size),
        ("rows in its vocabulary", bundle.vocab_size, checkpoint.vocab_size),
    ];
    let number = numbers.iter().find(|(_, a, b)| a != b);
    let mixers = || bundle.blocks.iter().zip(&checkpoint.blocks);
    let kind = || mixers().position(|(a, b)| discriminant(&a.mixer) != discriminant(&b.mixer));
    number
        .map(|(what, a, b)| format!("it has {b} {what} instead of {a}"))
        .or_else(|| kind().map(|layer| format!("layer {layer} is of another kind")))
}

fn facts(args: &Args, loaded: &Loaded, with_checkpoint: bool) -> Vec<(&'static str, String)> {
    let mut references = Vec::new();
    if let Some(path) = &args.golden {
        references.push(format!("recordings {}", path.display()));
    }
    if with_checkpoint {
        let name =
            args.model.model.as_ref().map_or_else(|| demo::NAME.to_owned(), |p| p.display().to_string());
        references.push(format!("{name} in exact f32"));
    }
    vec![
        (
            "model",
            loaded.checkpoint.path().map_or_else(|| demo::NAME.to_owned(), |d| d.display().to_string()),
        ),
        ("engine", loaded.engine.name().to_owned()),
        ("arithmetic", loaded.engine.arithmetic(&args.engine).to_owned()),
        ("reference", references.join(", ")),
    ]
}

fn table(report: &Report, facts: &[(&str, String)], ranges: &str) -> String {
    let mut out = String::new();
    for (name, value) in facts {
        let _ = writeln!(out, "{name:<11} {value}");
    }
    let _ = writeln!(
        out,
        "\n{:<14} {:>9} {:>12} {:>12} {:>10} {:>10} {:>12}",
        "pass", "positions", "least cosine", "mean cosine", "max abs", "max KL", "best token"
    );
    let number = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.8}"));
    for p in &report.passes {
        let _ = writeln!(
            out,
            "{:<14} {:>9} {:>12} {:>12} {:>10.5} {:>10.3e} {:>12}",
            p.name,
            p.positions,
            number(p.cosine),
            number(p.cosine_mean),
            p.max_abs,
            p.kl,
            format!("{} of {}", p.agreed, p.judged)
        );
    }
    let layers = report.layers();
    if !layers.is_empty() {
        let _ =
            writeln!(out, "\n{:<24} {:>12} {:>14} {:>10}", "layer", "least cosine", "at the end", "max abs");
    }
    for l in layers {
        let last = number(l.cosine_last);
        let _ = writeln!(out, "{:<24} {:>12.8} {last:>14} {:>10.5}", l.path, l.cosine, l.max_abs);
    }
    out.push_str(ranges);
    let _ = writeln!(
        out,
        "\n{} greedy tokens, logits off by {:.5} at most over the prompts",
        report.generated, report.error
    );
    let mut differences: Vec<_> = report.divergences.iter().collect();
    differences.sort_by_key(|d| d.tie);
    let (shown, more) = differences.split_at(differences.len().min(DIFFERENCES));
    for d in shown {
        let margin = d.margin.map_or_else(String::new, |m| format!(", the best two {m:.5}"));
        let _ = writeln!(
            out,
            "{}: {}, position {} of `{}`: {} instead of {}, {:.5} apart{margin}",
            if d.tie { "tie" } else { "different" },
            d.pass,
            d.position,
            d.prompt,
            d.found,
            d.expected,
            d.gap
        );
    }
    if !more.is_empty() {
        let _ = writeln!(out, "and {} more, which --json and --html list", more.len());
    }
    for failure in &report.failures {
        let _ = writeln!(out, "failed: {failure}");
    }
    if report.passed() {
        out.push_str("passed\n");
    }
    out
}
