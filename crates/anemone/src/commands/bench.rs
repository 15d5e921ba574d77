mod bandwidth;
mod decision;
mod measure;
mod plot;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anemone_session::Engine as _;
use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use serde_json::{Map, Value, json};

use crate::args::{BundleArg, EngineArgs, LayoutName, ModelArgs};
use crate::cli::Shell;
use crate::energy::Watch;
use crate::model::Loaded;
use crate::{files, machine, output};
use measure::{Kind, Test};

/// Measure prefill and decode rates, or how long a decision takes
///
/// Prefill (pp) feeds N tokens at once, decode (tg) N tokens one by one, both after --depth tokens; token ids are
/// random. Everything runs once unmeasured before it is measured, with the weights where a long run has them
/// (--layout); what moving them there takes is shown. The bandwidth probe reads a private buffer with
/// all threads, to show which part of the memory's speed the decoding uses.
///
/// Of a decision model (or --decision, the built-in one) whole decisions are measured, from state and questions to answers, and apart
/// from that its body: on the CPU from tokens to scores, of a bundle on the emulator the functions alone. Each is called --warmup
/// times first; --json has every time, the tokens of each row and a hash of the rows.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone bench --model ./LFM2-350M\n  \
                        anemone bench --model ./LFM2-350M --pp 128,512 --tg 64 --depth 1024 --json --svg bench.svg\n  \
                        anemone bench --decision --calls 50")]
pub(crate) struct Args {
    /// Prompt lengths, separated by commas; 0 for none
    #[arg(
        long,
        value_name = "N,N",
        default_value = "512",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    pp: Vec<usize>,
    /// Numbers of decoded tokens, separated by commas; 0 for none
    #[arg(
        long,
        value_name = "N,N",
        default_value = "64",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    tg: Vec<usize>,
    /// Numbers of tokens verified in one pass, with logits after each, as drafts are (vf); tok/s counts them all
    #[arg(long, value_name = "N,N", value_delimiter = ',', allow_negative_numbers = true)]
    vf: Vec<usize>,
    /// Numbers of sequences that decode together, 16 tokens each (bt), on the native engine; tok/s counts all sequences
    #[arg(long, value_name = "N,N", value_delimiter = ',', allow_negative_numbers = true)]
    batch: Vec<usize>,
    /// Measurements of each test
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000), allow_negative_numbers = true)]
    repeat: usize,
    /// Tokens held before each measurement
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    depth: usize,
    /// Size of the bandwidth probe's buffer; 0 skips the probe
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = RangedU64ValueParser::<usize>::new().range(0..=1 << 20), allow_negative_numbers = true)]
    probe_mib: usize,
    /// Seed of the token ids
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    /// Draw the rates into an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    decision: decision::DecisionArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Tell the energy that the machine's parts take in each phase, where the system tells it (RAPL on Linux, `IOReport` on a Mac), with and
    /// without what they take at rest, which is watched for half a second first
    #[arg(long)]
    energy: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    bundle: BundleArg,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Most sequences of `--batch`.
const MOST_SEQUENCES: usize = 256;

/// What was measured besides the rates.
#[derive(Debug)]
struct Figures {
    bytes_per_token: u64,
    /// Bytes per second.
    bandwidth: Option<f64>,
    /// Share of the bandwidth that the first decode test used.
    share: Option<f64>,
    rss: machine::Rss,
    /// Seconds to move the weights to large pages, where they were moved.
    settle_seconds: Option<f64>,
    first_token: Option<f64>,
    /// As JSON and in words, where the machine tells it.
    energy: (Option<Value>, Option<String>),
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    if decision::is_asked(args, shell)? {
        return decision::run(args, shell);
    }
    let mut tests: Vec<Test> = Vec::new();
    let kinds = [
        (Kind::Prefill, &args.pp),
        (Kind::Decode, &args.tg),
        (Kind::Verify, &args.vf),
        (Kind::Batch, &args.batch),
    ];
    for (kind, counts) in kinds {
        tests.extend(counts.iter().filter(|&&n| n > 0).map(|&n| Test::new(kind, n)));
    }
    let longest = tests.iter().map(Test::held).max().unwrap_or(0);
    ensure!(longest > 0, "--pp, --tg, --vf and --batch name no test; give one of them a number above 0");
    let widest = args.batch.iter().copied().max().unwrap_or(0);
    ensure!(widest <= MOST_SEQUENCES, "--batch {widest}: give {MOST_SEQUENCES} sequences or fewer");
    let needed = args.depth.saturating_add(longest);
    let mut watch = Watch::begin(args.energy);
    let mut loaded = Loaded::new(&args.model.or_bundle(&args.bundle)?, &args.engine, needed, false, shell)?;
    if tests.iter().any(|t| t.kind == Kind::Decode) {
        loaded.engine.check_decodes()?;
    }
    let context = loaded.engine.context_len();
    ensure!(
        needed <= context,
        "--depth {} and a test of {longest} tokens do not fit the context of {context}; lower --depth, --pp, --tg or --vf, or {}",
        args.depth,
        loaded.longer_context()
    );
    let vocab = loaded.stack().vocab_size as u64;
    let tokens = measure::random_tokens(args.seed, needed, vocab);
    let clock = Instant::now();
    let settled = args.engine.layout == LayoutName::Auto && loaded.engine.settle();
    let settle_seconds = settled.then(|| clock.elapsed().as_secs_f64());
    measure::run(&mut loaded.engine, &mut tests, &tokens, args.depth, args.repeat, &mut watch)?;
    let rss = machine::rss();
    let threads = loaded.engine.threads();
    let bandwidth = bandwidth::probe(args.probe_mib, threads);
    let bytes_per_token = loaded.engine.bytes_per_token();
    let decode = tests.iter().find(|t| t.kind == Kind::Decode);
    let figures = Figures {
        bytes_per_token,
        bandwidth,
        share: decode.zip(bandwidth).map(|(t, b)| t.mean() * bytes_per_token as f64 / b),
        rss,
        settle_seconds,
        first_token: tests.iter().find(|t| t.kind == Kind::Prefill).map(|t| t.tokens as f64 / t.median()),
        energy: (watch.report(), watch.line()),
    };
    if let Some(path) = &args.svg {
        let title =
            format!("{} on {} threads, {}", loaded.checkpoint.name(), threads, loaded.engine.level().name());
        let svg = plot::draw(&title, &tests)?;
        files::write_whole("--svg", path, |file| Ok(file.write_all(svg.as_bytes())?))?;
    }
    if args.json {
        output::json(&report(args, &loaded, &tests, &figures))?;
    } else {
        output::data(&table(args, &loaded, &tests, &figures))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn layout(args: &Args, figures: &Figures) -> &'static str {
    match args.engine.layout {
        LayoutName::Auto if figures.settle_seconds.is_some() => "auto (packed)",
        LayoutName::Auto => "auto (mapped)",
        LayoutName::Mapped => "mapped",
        LayoutName::Packed => "packed",
    }
}

fn report(args: &Args, loaded: &Loaded, tests: &[Test], figures: &Figures) -> Value {
    let mut report = Map::new();
    report.insert("model".into(), loaded.checkpoint.name().into());
    report.insert("threads".into(), loaded.engine.threads().into());
    report.insert("level".into(), loaded.engine.level().name().into());
    report.insert("engine".into(), loaded.engine.name().into());
    report.insert("arithmetic".into(), loaded.engine.arithmetic(&args.engine).into());
    report.insert("layout".into(), layout(args, figures).into());
    report.insert("depth".into(), args.depth.into());
    report.insert("repeat".into(), args.repeat.into());
    let row = |t: &Test| {
        json!({
            "name": t.name(), "tokens": t.tokens, "samples": t.samples,
            "mean": t.mean(), "sd": t.sd(), "median": t.median(),
        })
    };
    report.insert("tests".into(), tests.iter().map(row).collect());
    for (key, kind) in [("pp", Kind::Prefill), ("tg", Kind::Decode)] {
        let first = tests.iter().find(|t| t.kind == kind);
        report.insert(key.into(), first.map_or(Value::Null, |t| json!({"mean": t.mean(), "sd": t.sd()})));
    }
    report.insert("bytes_per_token".into(), figures.bytes_per_token.into());
    report.insert("bandwidth_gbs".into(), json!(figures.bandwidth.map(|b| b / 1e9)));
    report.insert("bandwidth_share".into(), json!(figures.share));
    report.insert("rss_bytes".into(), json!(figures.rss.total));
    report.insert("rss_anon_bytes".into(), json!(figures.rss.anon));
    report.insert("rss_file_bytes".into(), json!(figures.rss.file));
    report.insert("load_seconds".into(), loaded.load_seconds.into());
    report.insert("settle_seconds".into(), json!(figures.settle_seconds));
    report.insert("time_to_first_token_seconds".into(), json!(figures.first_token));
    report.insert("energy".into(), json!(figures.energy.0));
    Value::Object(report)
}

fn table(args: &Args, loaded: &Loaded, tests: &[Test], figures: &Figures) -> String {
    let mut out = format!(
        "{}, {}, {} threads, {}, {}, {}, depth {}\n\n",
        loaded.checkpoint.name(),
        loaded.engine.name(),
        loaded.engine.threads(),
        loaded.engine.level().name(),
        loaded.engine.arithmetic(&args.engine),
        layout(args, figures),
        args.depth
    );
    let _ = writeln!(out, "{:<10} {:>22} {:>10} {:>10} {:>10}", "test", "tok/s", "median", "min", "max");
    for t in tests {
        let rate = format!("{:.1} ± {:.1}", t.mean(), t.sd());
        let _ = writeln!(
            out,
            "{:<10} {rate:>22} {:>10.1} {:>10.1} {:>10.1}",
            t.name(),
            t.median(),
            t.min(),
            t.max()
        );
    }
    let _ = write!(out, "\nweights read per token {}", machine::bytes(figures.bytes_per_token));
    if let Some(decode) = tests.iter().find(|t| t.kind == Kind::Decode) {
        let _ = write!(
            out,
            ", {:.1} GB/s at {}",
            decode.mean() * figures.bytes_per_token as f64 / 1e9,
            decode.name()
        );
    }
    if let Some(bandwidth) = figures.bandwidth {
        let _ = write!(out, "; memory reads {:.1} GB/s", bandwidth / 1e9);
    }
    if let Some(share) = figures.share {
        let _ = if share > 1.0 {
            write!(out, " (less than the decode used: the weights fit a cache, or the machine was busy)")
        } else {
            write!(out, " ({:.0}% used)", 100.0 * share)
        };
    }
    let _ = write!(out, "\nload {:.3} s", loaded.load_seconds);
    if let Some(seconds) = figures.settle_seconds {
        let _ = write!(out, ", {seconds:.3} s more to large pages, after the first tokens");
    }
    if let Some(seconds) = figures.first_token {
        let _ = write!(out, ", first token after {seconds:.3} s");
    }
    if let machine::Rss { total: Some(total), anon: Some(anon), file: Some(file) } = figures.rss {
        let (total, anon, file) = (machine::bytes(total), machine::bytes(anon), machine::bytes(file));
        let _ = write!(out, ", mem {total} ({anon} own, {file} mapped)");
    }
    out.push('\n');
    if let Some(line) = &figures.energy.1 {
        let _ = writeln!(out, "{line}");
    }
    out
}
