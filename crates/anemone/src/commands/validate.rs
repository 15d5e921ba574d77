mod rows;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anemone_bundle::{Bundle, DecisionBundle};
use anemone_cpu::LayaOptions;
use anemone_decide::{Bar, Decider, Error, Question, Request, Validation, Value};
use anemone_emulator::Profile;
use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use crate::args::{EngineName, ModelArgs, ProfileName};
use crate::cli::Shell;
use crate::commands::{convert, decide};
use crate::{demo, model, output};

/// Most lines of each kind the table lists.
const LISTED: usize = 20;

/// Compare a decision model's bundle with the checkpoint it was made from
///
/// Every question goes through the bundle and through the checkpoint in f32. It passes when the best option is the same wherever
/// the reference's best two are at least twice --tolerance apart (others are listed as ties), when no calibrated probability and
/// no action probability is off by more than --tolerance, when repeated calls and token counts are equal, and when at least one
/// row was compared. Rows that fit no function are counted as not validated. Exits with 1 otherwise. For language models see
/// `verify`, whose prompts, passes and cosines a decision model has not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone validate --bundle laya.bundle --model ./laya\n  \
                  anemone validate --bundle laya.bundle --model ./laya --batch tickets.jsonl --repeats 10 --json")]
pub(crate) struct Args {
    /// Bundle to validate
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    bundle: PathBuf,
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
    /// Tokens of a question with its options and the state [default: the model's own limit]
    #[arg(long, value_name = "N")]
    max_len: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// What runs the bundle: auto is the emulator
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    engine: EngineName,
    /// Arithmetic of the emulator [default: fp16]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<ProfileName>,
    /// Threads, 1 to 512 [default: all the system offers]
    #[arg(long, short = 't', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=512), allow_negative_numbers = true)]
    threads: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 0.5 => Ok(value),
        _ => Err("give a number above 0 and below 0.5".into()),
    }
}

/// A state and one question about it.
struct Row {
    name: String,
    state: Value,
    question: Question,
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    match args.engine {
        EngineName::Auto | EngineName::Emulator => {}
        EngineName::Cpu => {
            bail!("--engine cpu runs the bundle's weights and not its package; use --engine emulator")
        }
        EngineName::Coreml => bail!("--engine coreml is not in this version; use --engine emulator"),
    }
    let label = || format!("--bundle {}", args.bundle.display());
    ensure!(
        DecisionBundle::is_at(&args.bundle) || !Bundle::is_bundle(&args.bundle),
        "{}: this is the bundle of a language model; use `verify`",
        label()
    );
    let bundle = DecisionBundle::open(&args.bundle).with_context(label)?;
    let source = &bundle.manifest().source;
    ensure!(
        args.model.model.is_some() || source.sha256 == demo::decision::sha256(),
        "no reference: the bundle was made from `{}`; give that checkpoint with --model",
        source.name
    );
    let rows = match &args.batch {
        Some(path) => rows::read(path, args.questions.as_deref())?,
        None => rows::own()?,
    };
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
    let threads = args.threads.unwrap_or_else(crate::machine::threads);
    let profile = if args.profile == Some(ProfileName::F32) { Profile::F32 } else { Profile::Fp16 };
    let mut subject = decide::emulated::open(bundle.clone(), profile, threads)?;
    let mut reference = Decider::load(&checkpoint, LayaOptions { threads, reduced: false })?;
    let validation = compare(args, &rows, &mut subject, &mut reference, shell)?;
    if args.json {
        output::json(&json!({
            "passed": validation.passed(),
            "rows": rows.len(),
            "validated": validation.validated,
            "not_validated": validation.skipped,
            "agreed": validation.agreed,
            "ties": validation.ties,
            "max_probability_error": validation.probability_error,
            "max_action_error": validation.action_error,
            "tolerance": args.tolerance,
            "repeats": args.repeats,
            "engine": "emulator",
            "profile": profile.name(),
            "source": source.name,
            "failures": validation.failures,
        }))?;
    } else {
        output::data(&table(args, rows.len(), profile, &validation))?;
    }
    Ok(if validation.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compare(
    args: &Args,
    rows: &[Row],
    subject: &mut Decider,
    reference: &mut Decider,
    shell: &Shell,
) -> Result<Validation> {
    let bar = indicatif::ProgressBar::new(rows.len() as u64);
    if shell.quiet {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let request = Request { max_len: args.max_len, ..Request::default() };
    let mut validation = Validation::new(Bar { tolerance: args.tolerance });
    for row in rows {
        bar.inc(1);
        let questions = std::slice::from_ref(&row.question);
        let expected = match reference.decide(&row.state, questions, &request) {
            Ok(expected) => expected,
            Err(error) if error.is_request() => {
                validation.skip(&row.name, &error.to_string());
                continue;
            }
            Err(error) => return Err(error).with_context(|| format!("{}, the reference", row.name)),
        };
        let prompt = &expected.0[0].prompt;
        if let Err(problem) = subject.engine().admits(prompt.ids.len(), prompt.markers.len()) {
            validation.skip(&row.name, &problem);
            continue;
        }
        let again = |_| subject.decide(&row.state, questions, &request);
        match (0..args.repeats).map(again).collect::<Result<Vec<_>, Error>>() {
            Ok(found) => validation.add(&row.name, &found, &expected),
            Err(error @ Error::NotFinite { .. }) => validation.fail(&row.name, &error.to_string()),
            Err(error) => return Err(error).context(row.name.clone()),
        }
    }
    bar.finish_and_clear();
    Ok(validation)
}

fn table(args: &Args, rows: usize, profile: Profile, validation: &Validation) -> String {
    let mut out = String::new();
    let v = validation;
    let _ = writeln!(out, "bundle         {}", args.bundle.display());
    let _ = writeln!(out, "engine         emulator, {profile}; {} calls for each row", args.repeats);
    let _ = writeln!(out, "validated      {} of {rows} rows", v.validated);
    let _ = writeln!(out, "best option    the same in {}, a tie in {}", v.agreed, v.ties.len());
    let _ = writeln!(
        out,
        "probabilities  off by {:.5} at most, {} is allowed",
        v.probability_error, args.tolerance
    );
    let _ = writeln!(out, "action         off by {:.5} at most", v.action_error);
    for (what, list) in [("tie", &v.ties), ("not validated", &v.skipped), ("failed", &v.failures)] {
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
