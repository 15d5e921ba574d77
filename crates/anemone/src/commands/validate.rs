mod record;
mod rows;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anemone_bundle::{DecisionBundle, Source};
use anemone_cpu::LayaOptions;
use anemone_decide::{
    Answer, Bar, Decider, Decision, Error, Expected, Question, RecordedCase, RecordedRow, Request, Rule,
    Validation, Value,
};
use anemone_emulator::Profile;
use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use crate::args::{DECISION_MODEL_HELP, EngineName, ModelArgs};
use crate::cli::Shell;
use crate::commands::convert;
use crate::commands::decide::input::Asked;
use crate::commands::decide::runs::{Packages, Runs};
use crate::engine::CoreMlArgs;
use crate::{demo, model, output};

/// Most lines of each kind the table lists.
const LISTED: usize = 20;

/// Compare a decision model's bundle with the checkpoint it was made from, or with a recorded reference
///
/// Every question goes through the bundle, --repeats times, and through the checkpoint in f32, or --reference says what came out
/// there. It passes when the best option is the same wherever the reference's best two are at least twice --tolerance apart
/// (others are listed as ties), when no calibrated probability and no action probability is off by more than --tolerance, when
/// everything is finite and repeated calls, tokens and usage are equal, and when at least one row was compared. Rows that fit no
/// function are counted as not validated. Exits with 1 otherwise. For language models see `verify`, whose prompts, passes and
/// cosines a decision model has not.
///
/// A reference is JSON: `source_weights_sha256` (of model.safetensors) or `source_files_sha256` (by file name), and `cases`, each with
/// `state`, `questions` and in their order `items` ({`ids`, `markers`, `qtype`, and `usage` where it was kept}), `logits`,
/// `action_logits`, and `answers` by id where they were kept. --record writes one; one of another source is refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone validate --bundle laya.bundle --model ./laya\n  \
                  anemone validate --bundle laya.bundle --model ./laya --batch tickets.jsonl --repeats 10 --json\n  \
                  anemone validate --record laya.reference.json --model ./laya --batch tickets.jsonl\n  \
                  anemone validate --bundle laya.bundle --reference laya.reference.json")]
#[command(mut_arg("model", |arg| arg.help(DECISION_MODEL_HELP)))]
pub(crate) struct Args {
    /// Bundle to validate
    #[arg(long, value_name = "DIR", help_heading = "Model", required_unless_present = "record")]
    bundle: Option<PathBuf>,
    /// Compare with this recorded reference, and not with a checkpoint
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "batch", "max_len"])]
    reference: Option<PathBuf>,
    /// Write what the checkpoint answers in f32 as a reference; validate nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["bundle", "reference", "profile", "repeats", "pack", "tolerance"])]
    record: Option<PathBuf>,
    /// JSONL file of rows: {"state", "questions" or "question"} [default: some of our own]
    #[arg(long, short = 'b', value_name = "FILE")]
    batch: Option<PathBuf>,
    /// Questions of lines that have none: JSON or a file of it
    #[arg(long, short = 'Q', value_name = "JSON|FILE", requires = "batch")]
    questions: Option<String>,
    /// Most a probability may be off
    #[arg(long, value_name = "X", default_value_t = 0.02, value_parser = share, allow_negative_numbers = true)]
    tolerance: f64,
    /// Calls for each row, which must be identical
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000), allow_negative_numbers = true)]
    repeats: usize,
    /// Let the questions about a state share rows, as decide --pack does
    #[arg(long)]
    pack: bool,
    /// Tokens of a question with its options and the state [default: the model's own limit]
    #[arg(long, value_name = "N")]
    max_len: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// What runs the bundle's package: the emulator, or Core ML; auto is Core ML on a Mac, unless there is a --profile
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    engine: EngineName,
    /// Arithmetic of the emulator [default: fp16]
    #[arg(long, value_name = "PROFILE", value_parser = crate::args::profile)]
    profile: Option<Profile>,
    #[command(flatten)]
    coreml: CoreMlArgs,
    /// Threads, 1 to 512 [default: all the system offers]
    #[arg(long, short = 't', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=512), allow_negative_numbers = true)]
    threads: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 0.5 => Ok(value),
        _ => Err("give a number above 0 and below 0.5".into()),
    }
}

/// A state and the questions about it.
struct Case {
    name: String,
    state: Value,
    questions: Vec<Question>,
    /// The questions as they were given.
    definitions: Value,
    /// The row of each question, where a reference has it.
    rows: Vec<RecordedRow>,
}

impl Case {
    fn new(name: String, state: Value, asked: &Asked) -> Self {
        let definitions = asked.definitions.clone().unwrap_or(Value::Null);
        Self { name, state, questions: asked.questions.clone(), definitions, rows: Vec::new() }
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let engine = match args.engine {
        // A validation is of one engine.
        EngineName::Auto if args.coreml.is_here() && args.profile.is_none() => EngineName::Coreml,
        EngineName::Auto | EngineName::Emulator => EngineName::Emulator,
        EngineName::Coreml => EngineName::Coreml,
        EngineName::Cpu => {
            bail!("--engine cpu runs the bundle's weights and not its package; use --engine emulator")
        }
    };
    let runs = Runs::chosen(engine, args.profile.as_ref(), false, &args.coreml)?;
    let packages = runs.packages().context("no engine runs packages here; use --engine emulator")?;
    let threads = args.threads.unwrap_or_else(crate::machine::threads);
    let exact = LayaOptions { threads, reduced: false };
    let Some(path) = &args.bundle else { return record::run(args, exact, shell) };
    let label = || format!("--bundle {}", path.display());
    let bundle = DecisionBundle::open(path).with_context(label)?;
    let source = bundle.manifest().source.clone();
    let (cases, max_len, mut live) = if let Some(path) = &args.reference {
        let reference = record::read(path, &source)?;
        let case = |case: RecordedCase| Case {
            name: case.name,
            state: case.state,
            questions: case.questions,
            definitions: Value::Null,
            rows: case.rows,
        };
        (reference.cases.into_iter().map(case).collect(), reference.max_len, None)
    } else {
        let cases = cases(args)?;
        ensure!(
            args.model.model.is_some() || source.sha256 == demo::decision::sha256(),
            "no reference: the bundle was made from `{}`; give that checkpoint with --model, or a recorded --reference",
            source.name
        );
        (cases, args.max_len, Some(checkpoint(args, &source, exact, shell)?))
    };
    let mut subject = packages.open(bundle, threads)?;
    if args.pack {
        subject.pack()?;
    }
    let request = Request { max_len, ..Request::default() };
    let comparison =
        Comparison { args, request, validation: Validation::new(Bar { tolerance: args.tolerance }) };
    let validation = comparison.run(&cases, &mut subject, live.as_mut(), shell)?;
    let rows = cases.iter().map(|case| case.questions.len()).sum();
    if args.json {
        output::json(&report(args, rows, packages, &source.name, &validation))?;
    } else {
        output::data(&table(args, path, rows, packages, &validation))?;
    }
    if !shell.quiet {
        runs.notes().iter().for_each(|note| output::note(note));
    }
    Ok(if validation.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Judges a candidate on the emulator as `validate` does, against the checkpoint that `model` names or else `source`, the bundle
/// it was made from.
pub(super) fn gate(
    candidate: &Path,
    source: &DecisionBundle,
    model: ModelArgs,
    (profile, threads): (Profile, usize),
    batch: Option<PathBuf>,
    tolerance: f64,
    shell: &Shell,
) -> Result<Validation> {
    let args = Args {
        bundle: Some(candidate.to_path_buf()),
        reference: None,
        record: None,
        batch,
        questions: None,
        tolerance,
        repeats: 2,
        pack: false,
        max_len: None,
        json: false,
        engine: EngineName::Emulator,
        profile: Some(profile.clone()),
        coreml: CoreMlArgs::default(),
        threads: Some(threads),
        model,
    };
    let cases = cases(&args)?;
    let exact = LayaOptions { threads, reduced: false };
    let mut live = match &args.model.model {
        Some(_) => checkpoint(&args, &source.manifest().source, exact, shell)?,
        None => Decider::load(&source.checkpoint()?, exact)?,
    };
    let packages = Packages::Emulator(profile);
    let mut subject = packages.open(DecisionBundle::open_candidate(candidate)?, threads)?;
    let validation = Validation::new(Bar { tolerance });
    let comparison = Comparison { args: &args, request: Request::default(), validation };
    comparison.run(&cases, &mut subject, Some(&mut live), shell)
}

/// States and questions of the JSONL file that `flag` names, as --batch reads it.
pub(crate) fn rows(flag: &str, path: &Path) -> Result<Vec<(Value, Vec<Question>)>> {
    let cases = rows::read(flag, path, None)?;
    Ok(cases.into_iter().map(|case| (case.state, case.questions)).collect())
}

fn cases(args: &Args) -> Result<Vec<Case>> {
    match &args.batch {
        Some(path) => rows::read("--batch", path, args.questions.as_deref()),
        None => rows::own(),
    }
}

/// The checkpoint a bundle was made from, in f32.
fn checkpoint(args: &Args, source: &Source, exact: LayaOptions, shell: &Shell) -> Result<Decider> {
    let checkpoint = model::open_decision(&args.model, shell)?;
    let sha256 = convert::decision::sha256(&checkpoint)?;
    let names = sha256.keys().chain(source.sha256.keys());
    if let Some(file) = names.clone().find(|name| sha256.get(*name) != source.sha256.get(*name)) {
        bail!(
            "`{}` is not what the bundle was made from: the SHA-256 of {file} differs; give the checkpoint it was made from \
             with --model, or convert this one",
            checkpoint.name()
        );
    }
    Ok(Decider::load(&checkpoint, exact)?)
}

/// Rows that are compared, and how it goes.
struct Comparison<'a> {
    args: &'a Args,
    request: Request,
    validation: Validation,
}

/// What is expected of a question.
enum Known<'a> {
    Given(Decision),
    Recorded(&'a RecordedRow),
}

impl Comparison<'_> {
    /// Compares every question with its recorded row, or with what `live` gives.
    fn run(
        mut self,
        cases: &[Case],
        subject: &mut Decider,
        mut live: Option<&mut Decider>,
        shell: &Shell,
    ) -> Result<Validation> {
        let bar = indicatif::ProgressBar::new(cases.len() as u64);
        if shell.quiet {
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
        for case in cases {
            bar.inc(1);
            let (mut asked, mut known) = (Vec::new(), Vec::new());
            for (i, question) in case.questions.iter().enumerate() {
                let name = format!("{} `{}`", case.name, question.id);
                let one = std::slice::from_ref(question);
                let prompt = match subject.prompts(&case.state, one, &self.request) {
                    Ok(mut prompts) => prompts.remove(0),
                    Err(error) if error.is_request() => {
                        self.validation.skip(&name, &error.to_string());
                        continue;
                    }
                    Err(error) => return Err(error).context(name),
                };
                let expected = match &mut live {
                    Some(live) => {
                        let given = live.decide(&case.state, one, &self.request);
                        Known::Given(given.with_context(|| format!("{name}, the reference"))?.0.remove(0))
                    }
                    None => Known::Recorded(&case.rows[i]),
                };
                if let Known::Recorded(row) = &expected
                    && row.ids != prompt.ids
                {
                    self.validation.validated += 1;
                    self.validation.fail(Rule::Tokens, &name, "the tokens differ");
                    continue;
                }
                if let Err(problem) = subject.engine().admits(prompt.ids.len(), prompt.markers.len()) {
                    self.validation.skip(&name, &problem);
                    continue;
                }
                asked.push(question.clone());
                known.push((name, expected));
            }
            if !asked.is_empty() {
                self.compare(&case.state, &asked, &known, subject)?;
            }
        }
        bar.finish_and_clear();
        Ok(self.validation)
    }

    /// Asks all questions together, as often as asked for.
    fn compare(
        &mut self,
        state: &Value,
        asked: &[Question],
        known: &[(String, Known<'_>)],
        subject: &mut Decider,
    ) -> Result<()> {
        let again = |_| subject.decide(state, asked, &self.request);
        let found = match (0..self.args.repeats).map(again).collect::<Result<Vec<_>, Error>>() {
            Ok(found) => found,
            // One of several: each alone shows which.
            Err(Error::NotFinite { .. }) if asked.len() > 1 => {
                for (question, known) in asked.iter().zip(known) {
                    let (question, known) = (std::slice::from_ref(question), std::slice::from_ref(known));
                    self.compare(state, question, known, subject)?;
                }
                return Ok(());
            }
            Err(error @ Error::NotFinite { .. }) => {
                self.validation.validated += 1;
                self.validation.fail(Rule::Finite, &known[0].0, &error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error).context(known.first().map_or(String::new(), |k| k.0.clone())),
        };
        for (i, (name, known)) in known.iter().enumerate() {
            let found: Vec<Decision> = found.iter().map(|decisions| decisions.0[i].clone()).collect();
            match known {
                Known::Given(decision) => self.validation.add(name, &found, &Expected::of(decision)),
                Known::Recorded(row) => {
                    let language = self.request.language.as_deref();
                    let answer = Answer::new(
                        &asked[i],
                        &row.logits,
                        &row.action_logits,
                        subject.calibration(),
                        language,
                        None,
                    );
                    if !row.agrees(&answer) {
                        let problem = "the recorded answer is not the one its scores give with the bundle's calibration";
                        self.validation.fail(Rule::Calibration, name, problem);
                    }
                    let (ids, markers, usage) = (&row.ids[..], &row.markers[..], row.usage.clone());
                    self.validation.add(name, &found, &Expected { ids, markers, usage, answer: &answer });
                }
            }
        }
        Ok(())
    }
}

fn report(args: &Args, rows: usize, packages: &Packages, source: &str, v: &Validation) -> serde_json::Value {
    let rules: serde_json::Map<String, serde_json::Value> =
        Rule::ALL.into_iter().map(|rule| (rule.name().to_owned(), v.keeps(rule).into())).collect();
    let lines: Vec<&str> = v.failures.iter().map(|failure| failure.line.as_str()).collect();
    json!({
        "passed": v.passed(),
        "rows": rows,
        "validated": v.validated,
        "not_validated": v.skipped,
        "agreed": v.agreed,
        "ties": v.ties,
        "tie_margin": v.tie_margin(),
        "max_probability_error": v.probability_error,
        "max_action_error": v.action_error,
        "tolerance": args.tolerance,
        "rules": rules,
        "repeats": args.repeats,
        "packed": args.pack,
        "engine": packages.name(),
        "profile": packages.arithmetic(),
        "source": source,
        "reference": args.reference.as_ref().map(|path| path.display().to_string()),
        "failures": lines,
    })
}

fn table(args: &Args, bundle: &Path, rows: usize, packages: &Packages, v: &Validation) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "bundle         {}", bundle.display());
    let packed = if args.pack { ", questions sharing rows" } else { "" };
    let (engine, arithmetic) = (packages.name(), packages.arithmetic());
    let _ =
        writeln!(out, "engine         {engine}, {arithmetic}; {} calls for each row{packed}", args.repeats);
    let _ = writeln!(out, "validated      {} of {rows} rows", v.validated);
    let _ = writeln!(
        out,
        "best option    the same in {}, a tie in {} (the reference's best two less than {} apart)",
        v.agreed,
        v.ties.len(),
        v.tie_margin()
    );
    let _ = writeln!(
        out,
        "probabilities  off by {:.5} at most, {} is allowed",
        v.probability_error, args.tolerance
    );
    let _ = writeln!(out, "action         off by {:.5} at most", v.action_error);
    let broken: Vec<&str> = Rule::ALL.into_iter().filter(|rule| !v.keeps(*rule)).map(Rule::name).collect();
    if !broken.is_empty() {
        let _ = writeln!(out, "rules broken   {}", broken.join(", "));
    }
    let failures: Vec<String> = v.failures.iter().map(|failure| failure.line.clone()).collect();
    for (what, list) in [("tie", &v.ties), ("not validated", &v.skipped), ("failed", &failures)] {
        for line in list.iter().take(LISTED) {
            let _ = writeln!(out, "{what}: {line}");
        }
        if list.len() > LISTED {
            let _ = writeln!(out, "{what}: {} more, which --json lists", list.len() - LISTED);
        }
    }
    if v.validated == 0 {
        out.push_str("failed: no row was compared\n");
    }
    if v.passed() {
        out.push_str("passed\n");
    }
    out
}
