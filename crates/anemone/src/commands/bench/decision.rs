//! How long decisions take: whole ones, and the model's body alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anemone_bundle::DecisionBundle;
use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::LayaOptions;
use anemone_decide::{Decider, Prompt, Question, Request, Value};
use anemone_emulator::{Emulator, Profile};
use anemone_kernels::Level;
use anemone_mil::{Array, Executable, Executor, ExecutorError, Signature, States};
use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use super::Args;
use crate::args::{LayoutName, ModelArgs};
use crate::cli::Shell;
use crate::commands::decide::input;
use crate::{demo, machine, model, output};

const WARMUP: usize = 5;
const CALLS: usize = 30;

/// What is decided, and how often.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Decision models")]
pub(super) struct DecisionArgs {
    /// Measure the built-in decision model (one that --model names is known by its files)
    #[arg(long, conflicts_with_all = ["model", "bundle"])]
    decision: bool,
    /// The state: a text, JSON, @FILE, or - for stdin [default: one of our own]
    #[arg(long, value_name = "TEXT|@FILE|-", requires = "questions")]
    state: Option<String>,
    /// The questions: JSON or a file of it [default: two of our own]
    #[arg(long, short = 'Q', value_name = "JSON|FILE", requires = "state")]
    questions: Option<String>,
    /// Calls before those that count [default: 5]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000), allow_negative_numbers = true)]
    warmup: Option<usize>,
    /// Calls that count, of whole decisions and again of the body [default: 30]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000), allow_negative_numbers = true)]
    calls: Option<usize>,
    /// Let the questions share rows of the bundle's functions
    #[arg(long)]
    pack: bool,
    /// Round the inputs of products to bf16 on the CPU engine, as decide --bf16 does
    #[arg(long)]
    bf16: bool,
}

/// Whether a decision model is to be measured; errors for options of the other kind.
pub(super) fn is_asked(args: &Args, shell: &Shell) -> Result<bool> {
    let path = match &args.bundle.bundle {
        Some(path) => Some(path.clone()),
        None => model::locate(&args.model, shell)?,
    };
    let at = |path: &Path| DecisionCheckpoint::is_at(path) || DecisionBundle::is_at(path);
    let DecisionArgs { decision, state, questions, warmup, calls, pack, bf16 } = &args.decision;
    if path.as_deref().map_or(*decision, at) {
        let given = [
            ("--pp", args.pp != [512]),
            ("--tg", args.tg != [64]),
            ("--repeat", args.repeat != 5),
            ("--depth", args.depth != 0),
            ("--svg", args.svg.is_some()),
            ("--ctx", args.engine.ctx.is_some()),
            ("--chunk", args.engine.chunk.is_some()),
            ("--layout", args.engine.layout != LayoutName::Auto),
        ];
        if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
            bail!("{flag} is for language models, and this is a decision model; leave it out");
        }
        return Ok(true);
    }
    let given = [
        ("--state", state.is_some()),
        ("--questions", questions.is_some()),
        ("--warmup", warmup.is_some()),
        ("--calls", calls.is_some()),
        ("--pack", *pack),
        ("--bf16", *bf16),
    ];
    if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
        bail!(
            "{flag} is for decision models, and this is a language model; leave it out, or name a decision model (--decision \
             alone is the built-in one)"
        );
    }
    Ok(false)
}

/// What the calls of an executor's functions took.
#[derive(Debug, Default)]
struct Spent {
    time: Duration,
    functions: Vec<String>,
}

type Shared = Arc<Mutex<Spent>>;

fn take(spent: &Shared) -> Spent {
    std::mem::take(&mut *spent.lock().unwrap_or_else(PoisonError::into_inner))
}

/// An executor whose functions' calls are timed.
struct Timed(Emulator, Shared);

struct TimedFunction {
    inner: Box<dyn Executable>,
    name: String,
    spent: Shared,
}

impl Executor for Timed {
    fn signatures(&mut self, package: &Path) -> Result<BTreeMap<String, Signature>, ExecutorError> {
        self.0.signatures(package)
    }

    fn load(&mut self, package: &Path, function: &str) -> Result<Box<dyn Executable>, ExecutorError> {
        let inner = self.0.load(package, function)?;
        Ok(Box::new(TimedFunction { inner, name: function.to_owned(), spent: Arc::clone(&self.1) }))
    }
}

impl Executable for TimedFunction {
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn predict(
        &mut self,
        inputs: &[(&str, &Array)],
        states: &mut States,
    ) -> Result<Vec<Array>, ExecutorError> {
        let clock = Instant::now();
        let outputs = self.inner.predict(inputs, states);
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.time += clock.elapsed();
        spent.functions.push(self.name.clone());
        outputs
    }
}

/// A model to measure.
struct Subject {
    decider: Decider,
    name: String,
    /// Of a bundle on the emulator.
    emulated: Option<(Profile, Shared)>,
    threads: usize,
}

fn open(args: &Args, shell: &Shell) -> Result<Subject> {
    let given = args.bundle.bundle.clone().or_else(|| args.model.model.clone());
    let place = ModelArgs { model: given, ..args.model.clone() };
    let threads = args.engine.threads.unwrap_or_else(machine::threads);
    let DecisionArgs { pack, bf16, .. } = args.decision;
    let mut subject = if args.engine.emulated()? {
        ensure!(!bf16, "--bf16 is of the native engine; leave it out, or use --engine cpu");
        let path = model::decision_path(&place, shell)?.filter(|path| DecisionBundle::is_at(path)).context(
            "--engine emulator runs bundles, and this is none; make one with anemone convert and name it with --bundle",
        )?;
        let profile = args.engine.profile();
        let bundle = DecisionBundle::open(&path).with_context(|| path.display().to_string())?;
        let (name, spent) = (bundle.manifest().source.name.clone(), Shared::default());
        let executor = Timed(Emulator::new(profile.clone(), threads), Arc::clone(&spent));
        let decider =
            Decider::open(bundle, Box::new(executor)).with_context(|| path.display().to_string())?;
        Subject { decider, name, emulated: Some((profile, spent)), threads }
    } else {
        ensure!(!(bf16 && args.engine.exact), "--exact is f32 throughout, and --bf16 is not; leave one out");
        let checkpoint = model::open_decision(&place, shell)?;
        let name = checkpoint.name().to_owned();
        let decider = Decider::load(&checkpoint, LayaOptions { threads, reduced: bf16 })?;
        Subject { decider, name, emulated: None, threads }
    };
    if pack {
        subject.decider.pack()?;
    }
    Ok(subject)
}

pub(super) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let asked = &args.decision;
    let questions = asked.questions.as_deref().unwrap_or(demo::decision::QUESTIONS);
    let questions = input::questions(questions)?;
    let state = match &asked.state {
        Some(given) => input::state(given, false)?,
        None => Value::text(demo::decision::STATE),
    };
    let state = questions.place(state);
    let questions = questions.questions;
    let clock = Instant::now();
    let mut subject = open(args, shell)?;
    let load_seconds = clock.elapsed().as_secs_f64();
    let decider = &mut subject.decider;
    let request = Request::default();
    let prompts = decider.prompts(&state, &questions, &request)?;
    let (warmup, calls) = (asked.warmup.unwrap_or(WARMUP), asked.calls.unwrap_or(CALLS));
    let bar = indicatif::ProgressBar::new(2 * (warmup + calls) as u64);
    if shell.quiet {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let mut whole = Vec::with_capacity(calls);
    for i in 0..warmup + calls {
        let clock = Instant::now();
        decider.decide(&state, &questions, &request)?;
        whole.extend((i >= warmup).then(|| clock.elapsed().as_secs_f64()));
        bar.inc(1);
    }
    let (mut body, mut functions) = (Vec::with_capacity(calls), Vec::new());
    for i in 0..warmup + calls {
        if let Some((_, spent)) = &subject.emulated {
            take(spent);
        }
        let clock = Instant::now();
        decider.scores(&prompts, &questions)?;
        let mut time = clock.elapsed();
        if let Some((_, spent)) = &subject.emulated {
            let spent = take(spent);
            (time, functions) = (spent.time, spent.functions);
        }
        body.extend((i >= warmup).then_some(time.as_secs_f64()));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let measured = Measured {
        prompts: &prompts,
        hash: input_hash(&prompts, &questions)?,
        warmup,
        whole,
        body,
        functions,
        load_seconds,
    };
    if args.json {
        output::json(&report(args, &subject, &measured))?;
    } else {
        output::data(&table(&subject, &measured))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// SHA-256 of the rows: tokens, markers and kind of each, as JSON.
fn input_hash(prompts: &[Prompt], questions: &[Question]) -> Result<String> {
    let row = |(prompt, question): (&Prompt, &Question)| json!({"ids": prompt.ids, "markers": prompt.markers, "qtype": question.kind.index()});
    let rows: Vec<serde_json::Value> = prompts.iter().zip(questions).map(row).collect();
    Ok(anemone_bundle::sha256(&serde_json::to_vec(&rows)?))
}

struct Measured<'a> {
    prompts: &'a [Prompt],
    hash: String,
    warmup: usize,
    /// Seconds of each call.
    whole: Vec<f64>,
    body: Vec<f64>,
    /// Those a call runs.
    functions: Vec<String>,
    load_seconds: f64,
}

/// The smallest time that `share` of all do not exceed.
fn percentile(seconds: &[f64], share: f64) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

fn times(seconds: &[f64]) -> serde_json::Value {
    json!({"p50_ms": 1e3 * percentile(seconds, 0.5), "p95_ms": 1e3 * percentile(seconds, 0.95), "seconds": seconds})
}

fn arithmetic(subject: &Subject) -> String {
    match &subject.emulated {
        Some((profile, _)) => profile.name().to_owned(),
        None if subject.decider.engine().has_reduced_products() => "bf16 products".to_owned(),
        None => "f32".to_owned(),
    }
}

/// What the times of the body are of.
fn covers(subject: &Subject) -> &'static str {
    if subject.emulated.is_some() { "the bundle's functions" } else { "rows of tokens to scores" }
}

fn report(args: &Args, subject: &Subject, measured: &Measured<'_>) -> serde_json::Value {
    let tokens: Vec<usize> = measured.prompts.iter().map(|prompt| prompt.ids.len()).collect();
    let mut body = times(&measured.body);
    body["covers"] = covers(subject).into();
    json!({
        "model": subject.name,
        "engine": if subject.emulated.is_some() { "emulator" } else { "cpu" },
        "arithmetic": arithmetic(subject),
        "threads": subject.threads,
        "level": Level::best().name(),
        "questions": tokens.len(),
        "row_tokens": tokens,
        "input_sha256": measured.hash,
        "packed": args.decision.pack,
        "functions": measured.functions,
        "warmup": measured.warmup,
        "calls": measured.whole.len(),
        "end_to_end": times(&measured.whole),
        "body": body,
        "load_seconds": measured.load_seconds,
        "rss_bytes": machine::rss().total,
    })
}

fn table(subject: &Subject, measured: &Measured<'_>) -> String {
    let engine = if subject.emulated.is_some() { "emulator" } else { "cpu" };
    let (threads, level) = (subject.threads, Level::best().name());
    let mut out =
        format!("{}, {engine}, {threads} threads, {level}, {}\n", subject.name, arithmetic(subject));
    let tokens: Vec<String> = measured.prompts.iter().map(|prompt| prompt.ids.len().to_string()).collect();
    let _ = writeln!(
        out,
        "rows of {} tokens; {} calls, {} before",
        tokens.join(", "),
        measured.whole.len(),
        measured.warmup
    );
    if !measured.functions.is_empty() {
        let _ = writeln!(out, "functions  {}", measured.functions.join(", "));
    }
    let _ = writeln!(out, "\n{:<12} {:>10} {:>10} {:>10}", "ms", "p50", "p95", "min");
    for (name, seconds) in [("end to end", &measured.whole), ("body", &measured.body)] {
        let [p50, p95, least] = [0.5, 0.95, 0.0].map(|share| 1e3 * percentile(seconds, share));
        let _ = writeln!(out, "{name:<12} {p50:>10.3} {p95:>10.3} {least:>10.3}");
    }
    let _ = writeln!(out, "\nthe body is {}; load {:.3} s", covers(subject), measured.load_seconds);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.95, 1.0].map(|share| percentile(&times, share)), [1.0, 10.0, 19.0, 20.0]);
        assert_eq!((percentile(&[3.0], 0.95), percentile(&[], 0.5)), (3.0, 0.0));
    }
}
