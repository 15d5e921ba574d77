mod gate;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anemone_ane::WeightRecord;
use anemone_bundle::{
    Bundle, BundleWeights, Compression, Compressor, DecisionBundle, Encoding, Error, Gate, HostTensor,
    PackageEntry, Piece, SourceBundle, Writer, WrittenPackage, sha256,
};
use anemone_checkpoint::Checkpoint;
use anemone_emulator::Profile;
use anemone_kernels::Context as Kernels;
use anemone_mil::read_package_with_offsets;
use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::calibrate::{Lost, Subject};
use super::compress::{CompressArgs, check_some, in_parallel, line, summary};
use super::convert::canary;
use super::guide::Guide;
use crate::args::ModelArgs;
use crate::cli::Shell;
use crate::{machine, output};

/// Make a bundle with compressed weights of a bundle
///
/// Weights of convolutions are replaced by codes into tables, or by scaled integers, one after the other, so that memory does not
/// grow with the model; norms, rotary tables, embeddings and everything the host reads stay as they are. Each compressed weight is
/// decoded from the finished package and compared before the bundle counts. With --gate the candidate is run on the emulator against
/// the bundle it was made from (or --model): what fails is kept as OUT.rejected, which no command runs, and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("precision", |arg| arg.default_value(None::<&str>).required(true)),
    mut_arg("model", |arg| arg.help("Checkpoint that --gate compares with [default: the bundle in f32]")),
    after_help = "Example:\n  anemone palettize --bundle lfm2.bundle --out lfm2-lut6.bundle --precision lut6 --gate 0.999\n  \
                  anemone palettize --bundle laya.bundle --out laya-w8.bundle --precision lut8 --palette exact --gate 0.02 --json"
)]
pub(crate) struct Args {
    /// Bundle with fp16 weights
    #[arg(long, value_name = "DIR")]
    bundle: PathBuf,
    /// Directory to create
    #[arg(long, short = 'o', value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    compress: CompressArgs,
    /// Use the result only when it keeps to this: the least cosine of logits for a language model (as `verify --min-cos`), the
    /// largest error of a probability for a decision model (as `validate --tolerance`)
    #[arg(long, value_name = "X", help_heading = "Gate", allow_negative_numbers = true)]
    gate: Option<f64>,
    /// What the gate runs: a text for a language model (as `verify --text`), JSONL rows for a decision model (as `validate --batch`)
    /// [default: a few short ones]
    #[arg(long, value_name = "FILE", help_heading = "Gate", requires = "gate")]
    gate_input: Option<PathBuf>,
    /// Arithmetic of the emulator in the gate [default: fp16]
    #[arg(long, value_name = "PROFILE", help_heading = "Gate", requires = "gate", value_parser = crate::args::profile)]
    profile: Option<Profile>,
    /// Say what the result lost over this, on the CPU in f32: perplexity, divergence and cosine over a text, or JSONL with a "text" in
    /// each line; divergence and probabilities over JSONL rows for a decision model
    #[arg(long, value_name = "TEXT|JSONL", help_heading = "Calibration")]
    measure: Option<PathBuf>,
    /// Threads, 1 to 512 [default: all the system offers]
    #[arg(long, short = 't', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=512), allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Do not run each function of the result once on the emulator to record what it gives, which Core ML is tried with before it is
    /// trusted
    #[arg(long)]
    no_canary: bool,
    /// Replace an existing bundle, and nothing else, when the new one is complete
    #[arg(long)]
    force: bool,
    /// Print one JSON object, with a row for each weight
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// A bundle of either kind.
enum Source {
    Language(Bundle),
    Decision(DecisionBundle),
}

impl Source {
    fn open(path: &Path) -> Result<Self> {
        let label = || format!("--bundle {}", path.display());
        if DecisionBundle::is_at(path) {
            return Ok(Self::Decision(DecisionBundle::open(path).with_context(label)?));
        }
        Ok(Self::Language(crate::model::open_bundle(path)?))
    }

    fn dir(&self) -> &Path {
        match self {
            Self::Language(bundle) => bundle.dir(),
            Self::Decision(bundle) => bundle.dir(),
        }
    }

    fn compression(&self) -> Option<&Compression> {
        match self {
            Self::Language(bundle) => bundle.manifest().compression.as_ref(),
            Self::Decision(bundle) => bundle.manifest().compression.as_ref(),
        }
    }

    fn packages(&self) -> &[PackageEntry] {
        match self {
            Self::Language(bundle) => &bundle.manifest().packages,
            Self::Decision(bundle) => &bundle.manifest().packages,
        }
    }

    fn weights(&self) -> &BTreeMap<String, Vec<Piece>> {
        match self {
            Self::Language(bundle) => &bundle.manifest().weights,
            Self::Decision(bundle) => &bundle.manifest().weights,
        }
    }

    /// The model whose weights it has, to be run over a text or rows.
    fn subject(&self, input: (&str, &Path), tokens: usize, threads: usize) -> Result<Subject> {
        match self {
            Self::Language(bundle) => {
                let weights = BundleWeights::open(bundle)?;
                let checkpoint = Checkpoint::with_weights(bundle.dir(), Arc::new(weights))?;
                Subject::language(input, tokens, &checkpoint, threads)
            }
            Self::Decision(bundle) => Subject::decision(input, Arc::new(bundle.checkpoint()?), threads),
        }
    }

    /// What the result at `at` lost over the text or rows of `subject`.
    fn lost(&self, subject: &Subject, at: &Path) -> Result<Lost> {
        let weights = match self {
            Self::Language(_) => BundleWeights::open(&Bundle::open_candidate(at)?)?,
            Self::Decision(_) => BundleWeights::open_decision(&DecisionBundle::open_candidate(at)?)?,
        };
        subject.judge()?.lost(&weights, 1.0)
    }

    /// Runs every function of the result at `at` once on the emulator and keeps what it took and gave.
    fn record_calls(&self, at: &Path, threads: usize) -> Result<()> {
        match self {
            Self::Language(_) => canary::record(&Bundle::open(at)?, threads),
            Self::Decision(_) => canary::record_decision(&DecisionBundle::open(at)?, threads),
        }
    }

    fn kept(&self) -> (&BTreeMap<String, String>, &BTreeMap<String, HostTensor>) {
        match self {
            Self::Language(bundle) => (&bundle.manifest().files, &bundle.manifest().host),
            Self::Decision(bundle) => (&bundle.manifest().files, &bundle.manifest().host),
        }
    }

    fn verify_hashes(&self) -> Result<(), Error> {
        match self {
            Self::Language(bundle) => bundle.verify_hashes(),
            Self::Decision(bundle) => bundle.verify_hashes(),
        }
    }

    /// The name and hash that the result's manifest has of it.
    fn record(&self) -> Result<SourceBundle> {
        let name = self.dir().file_name().unwrap_or(self.dir().as_os_str()).to_string_lossy().into_owned();
        let path = self.dir().join("manifest.json");
        let manifest = std::fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(SourceBundle { name, manifest_sha256: sha256(&manifest) })
    }

    /// Ends the writer with what the source says of itself.
    fn finish(&self, writer: Writer) -> Result<Option<Compression>> {
        let written_by = format!("anemone {}", env!("CARGO_PKG_VERSION"));
        Ok(match self {
            Self::Language(bundle) => {
                let m = bundle.manifest();
                writer
                    .finish(m.source.clone(), &m.options, &m.plan, m.tensors.clone(), &written_by)?
                    .compression
            }
            Self::Decision(bundle) => {
                let m = bundle.manifest().clone();
                let manifest =
                    writer.finish_decision(m.source, m.options, m.functions, m.tensors, &written_by)?;
                manifest.compression
            }
        })
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let start = Instant::now();
    let Some(encoding) = args.compress.encoding()? else {
        bail!("--precision fp16: that is what the bundle has; give lut8, lut6, lut4 or another format");
    };
    let source = Source::open(&args.bundle)?;
    if let Some(compression) = source.compression() {
        let (path, precision) = (args.bundle.clone(), compression.precision.clone());
        return Err(Error::Compressed { path, precision }.into());
    }
    check_apart(args)?;
    args.compress.check_names(&source.weights().keys().map(String::as_str).collect::<Vec<_>>())?;
    gate::check(args, &source, shell)?;
    let threads = args.threads.unwrap_or_else(machine::threads);
    // A file that cannot be used is found before the work.
    let measured = args.measure.as_deref();
    let measured =
        measured.map(|path| source.subject(("--measure", path), usize::MAX, threads)).transpose()?;
    source.verify_hashes()?;
    let place = || format!("--out {}", args.out.display());
    let mut writer = if args.gate.is_some() {
        Writer::candidate(&args.out, args.force)
    } else {
        Writer::create(&args.out, args.force)
    }
    .with_context(place)?;
    let subject = |path: &Path, tokens| source.subject(("--calibrate", path), tokens, threads);
    let guide = args.compress.guide(encoding, threads, subject, shell)?;
    let mut compression = args.compress.record(encoding, Some(source.record()?), guide.as_ref());
    compression.gate = gate::pending(args, &source);
    writer.compressed(compression);
    for package in packages(args, encoding, guide, &source, &writer, shell)? {
        writer.add(package);
    }
    if let Some(compression) = writer.compression() {
        check_some(compression)?;
    }
    let (files, host) = source.kept();
    writer.keep(source.dir(), files, host)?;
    let mut compression =
        source.finish(writer)?.context("the bundle has no compressed weights; please report this")?;
    let seconds = start.elapsed().as_secs_f64();
    let mut at = args.out.clone();
    if compression.gate.is_some() {
        (compression.gate, at) = gate::run(args, &source, shell)?;
    }
    let passed = compression.gate.as_ref().is_none_or(|gate| gate.passed);
    // A rejected candidate is run by nothing.
    if passed && !args.no_canary {
        source.record_calls(&at, threads)?;
    }
    let lost = measured.map(|subject| source.lost(&subject, &at)).transpose().context("--measure")?;
    report(args, &source, &compression, &at, lost, seconds)?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Errors when the result would replace what it is made from, or lie in it.
fn check_apart(args: &Args) -> Result<()> {
    let here = |at: &Path| if at.as_os_str().is_empty() { PathBuf::from(".") } else { at.to_owned() };
    let there = args.out.ancestors().find_map(|at| here(at).canonicalize().ok());
    let inside = there.zip(args.bundle.canonicalize().ok()).is_some_and(|(out, of)| out.starts_with(of));
    ensure!(
        !inside,
        "--out {}: this is the bundle that is read, or a place in it; name another place",
        args.out.display()
    );
    Ok(())
}

/// Rewrites every package.
fn packages(
    args: &Args,
    encoding: Encoding,
    guide: Option<Guide>,
    source: &Source,
    writer: &Writer,
    shell: &Shell,
) -> Result<Vec<WrittenPackage>> {
    let entries = source.packages();
    let bar = ProgressBar::new(entries.iter().map(|p| p.weight_bytes).sum());
    if shell.quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left") {
        bar.set_style(style);
    }
    bar.set_message("compressing");
    // The moments of an input are found for the maps that follow one another.
    let guided = guide.is_some();
    let kernels = Kernels::new(args.threads.unwrap_or_else(machine::threads));
    let progress = bar.clone();
    let compressor = args.compress.compressor(encoding, kernels, guide, move |n| progress.inc(2 * n as u64));
    let written =
        in_parallel(entries.len(), guided, &|i| Ok(package(&entries[i], source, writer, &compressor)?));
    bar.finish_and_clear();
    written
}

fn package(
    entry: &PackageEntry,
    source: &Source,
    writer: &Writer,
    compressor: &Compressor,
) -> Result<WrittenPackage, Error> {
    let (program, offsets) = read_package_with_offsets(&source.dir().join(&entry.file))?;
    let mut at: BTreeMap<u64, Vec<WeightRecord>> = BTreeMap::new();
    for piece in source.weights().values().flatten().filter(|p| p.package == entry.file) {
        at.entry(piece.offset).or_default().push(piece.record.clone());
    }
    let records: Vec<_> = offsets.iter().map(|offset| at.remove(offset).unwrap_or_default()).collect();
    writer.compressed_package(&entry.file, entry.role, &program, &records, compressor)
}

fn report(
    args: &Args,
    source: &Source,
    compression: &Compression,
    at: &Path,
    lost: Option<Lost>,
    seconds: f64,
) -> Result<()> {
    let (before, after) =
        (super::convert::directory_bytes(source.dir())?, super::convert::directory_bytes(at)?);
    let rejected = compression.gate.as_ref().is_some_and(|gate| !gate.passed);
    if args.json {
        return output::json(&json!({
            "out": at.display().to_string(),
            "passed": compression.gate.as_ref().map(|gate| gate.passed),
            "source_bundle": compression.source_bundle,
            "compression": summary(compression),
            "gate": compression.gate,
            "measured": lost.map(|lost| lost.json()),
            "source_bytes": before,
            "bundle_bytes": after,
            "seconds": seconds,
            "tensors": compression.tensors,
        }));
    }
    let mut out = format!(
        "{:<48} {:>16} {:>4} {:>6} {:>10} {:>10}\n",
        "weight", "shape", "bits", "group", "rel. error", "bytes"
    );
    for t in &compression.tensors {
        let shape = t.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("×");
        let shape = shape.strip_suffix("×1×1").unwrap_or(&shape);
        let _ = writeln!(
            out,
            "{:<48} {shape:>16} {:>4} {:>6} {:>10.6} {:>10}",
            t.tensor, t.bits, t.group, t.rel_rmse, t.bytes
        );
    }
    let _ = writeln!(out, "\n{}", line(compression));
    if let Some(lost) = lost {
        let _ = writeln!(out, "measured   {}", lost.line());
    }
    if let Some(gate) = &compression.gate {
        out.push_str(&gate::text(gate));
    }
    let what = if rejected { "rejected " } else { "written  " };
    let (before, after) = (machine::bytes(before), machine::bytes(after));
    let _ = writeln!(out, "{what}  {} ({before} to {after}) in {seconds:.2} s", at.display());
    output::data(&out)
}
