mod batch;
mod input;
mod score;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anemone_cpu::LayaOptions;
use anemone_decide::{Calibration, Decider, Gate, Question, Request, Value, Windows};
use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser;

use crate::args::ModelArgs;
use crate::cli::Shell;
use crate::{demo, files, model, output};

/// Answer typed questions about a text or JSON with a decision model
///
/// A question is a choice (one of several labels), a score (a level of a scale) or a noul (whether a statement holds). All questions
/// about a state are answered in one pass, each with probabilities and a calibrated confidence.
///
/// --questions is JSON, or a file of it: an object of id to an object with `type`, `instructions` and `criteria`. It may also be an
/// object with such `questions` and a `state_key`, the name the state is put under.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone decide\n  \
    anemone decide --state 'the parcel is late again' --questions \
    '{\"angry\": {\"type\": \"noul\", \"instructions\": \"Is the sender angry?\"}}'\n  \
    anemone decide --model ./laya --state @ticket.txt --questions questions.json --json\n  \
    anemone decide --batch tickets.jsonl --questions questions.json > answers.jsonl")]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch of the command")]
pub(crate) struct Args {
    /// The state: a text, JSON (an object or a list of turns), @FILE, or - for stdin
    #[arg(long, short = 's', value_name = "TEXT|@FILE|-", conflicts_with = "batch")]
    state: Option<String>,
    /// Take --state as text even where it is JSON
    #[arg(long, requires = "state")]
    text: bool,
    /// The questions: JSON or a file of it
    #[arg(long, short = 'Q', value_name = "JSON|FILE")]
    questions: Option<String>,
    /// Answer every line of a JSONL file (or - for stdin): {"state", "questions" where they differ, "id"}
    #[arg(long, short = 'b', value_name = "FILE|-")]
    batch: Option<PathBuf>,
    /// Write the answers of --batch here instead of stdout
    #[arg(long, short = 'o', value_name = "FILE", requires = "batch")]
    output: Option<PathBuf>,
    /// Lines of --batch read at once
    #[arg(long, value_name = "N", default_value_t = 64, requires = "batch", value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    batch_size: usize,
    /// Answer the lines of --batch that can be, and put an `error` in the place of the others
    #[arg(long, requires = "batch")]
    keep_going: bool,
    /// Compare the answers of --batch with each line's `label` and print accuracies instead
    #[arg(long, requires = "batch", conflicts_with = "output")]
    score: bool,
    /// The least confidence an answer should have, from 0 to 1, or JSON by kind and number of options
    #[arg(long, value_name = "P|JSON")]
    min_confidence: Option<String>,
    /// Language of the state, as in `de` or `pt-BR`, for calibrations by language
    #[arg(long, value_name = "CODE")]
    lang: Option<String>,
    /// A calibration file, in the place of the model's own
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Read a state that is too long window by window, and answer by the clearest one
    #[arg(long, conflicts_with_all = ["batch", "min_confidence"])]
    long: bool,
    /// Tokens of a window [default: what the questions leave room for]
    #[arg(long, value_name = "N", requires = "long", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    window: Option<usize>,
    /// Tokens from one window to the next [default: half a window]
    #[arg(long, value_name = "N", requires = "long", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    stride: Option<usize>,
    /// Tokens of a question with its options and the state [default: the model's own limit]
    #[arg(long, value_name = "N")]
    max_len: Option<usize>,
    /// Tokens of a question with its options [default: the model's own limit]
    #[arg(long, value_name = "N")]
    head_max_len: Option<usize>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Add each question's tokens and scores to the JSON
    #[arg(long, conflicts_with = "long")]
    raw: bool,
    /// Multiply in f32, which is the default
    #[arg(long, conflicts_with = "bf16")]
    exact: bool,
    /// Multiply in bf16 where the processor does so natively: faster, and probabilities move by up to a hundredth
    #[arg(long)]
    bf16: bool,
    /// Threads, 1 to 512 [default: all the system offers]
    #[arg(long, short = 't', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=512), allow_negative_numbers = true)]
    threads: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let asked = args.questions.as_deref().map(input::questions).transpose()?;
    let request = request(args)?;
    if let Some(path) = &args.batch {
        let mut decider = decider(args, shell)?;
        return batch::run(args, path, asked.as_ref(), &mut decider, &request, shell);
    }
    let (state, asked) = match (&args.state, asked) {
        (Some(state), Some(asked)) => (input::state(state, args.text)?, asked),
        (None, None) => {
            if !shell.quiet {
                output::note(&format!("state: {}", demo::decision::STATE));
            }
            (Value::text(demo::decision::STATE), input::questions(demo::decision::QUESTIONS)?)
        }
        (Some(_), None) => bail!("--state without --questions; say what is asked"),
        (None, Some(_)) => bail!("--questions without --state or --batch; say what they are about"),
    };
    let state = asked.place(state);
    let mut decider = decider(args, shell)?;
    if args.long {
        let windows = Windows { window: args.window, stride: args.stride };
        let (result, note) = decider.decide_long(&state, &asked.questions, windows, &request)?;
        if let Some(note) = note.filter(|_| !shell.quiet) {
            output::note(&note);
        }
        return show(args, &result, &asked.questions, shell);
    }
    let decisions = decider.decide(&state, &asked.questions, &request)?;
    let mut result = decisions.to_value();
    if let (true, Value::Map(fields)) = (args.raw, &mut result) {
        fields.push(("rows".to_owned(), decisions.rows()));
    }
    show(args, &result, &asked.questions, shell)
}

fn show(args: &Args, result: &Value, questions: &[Question], shell: &Shell) -> Result<ExitCode> {
    if args.json || args.raw {
        output::data(&format!("{}\n", result.to_compact()))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::data(&table::table(result, questions))?;
    let dropped = result.get("usage").and_then(|usage| usage.get("state_tokens_dropped"));
    if let Some(dropped) = dropped.and_then(Value::as_usize).filter(|n| *n > 0 && !shell.quiet) {
        output::note(&format!("{dropped} tokens of the state did not fit; --long reads all of it"));
    }
    Ok(ExitCode::SUCCESS)
}

fn request(args: &Args) -> Result<Request> {
    let gate = args.min_confidence.as_deref().map(|text| {
        let value = Value::parse(text.trim())
            .with_context(|| format!("--min-confidence {text}: give a number from 0 to 1, or JSON"))?;
        Gate::parse(&value).with_context(|| format!("--min-confidence {text}"))
    });
    Ok(Request {
        max_len: args.max_len,
        head_max_len: args.head_max_len,
        language: args.lang.clone(),
        gate: gate.transpose()?,
    })
}

fn decider(args: &Args, shell: &Shell) -> Result<Decider> {
    let checkpoint = model::open_decision(&args.model, shell)?;
    let threads = args.threads.unwrap_or_else(crate::machine::threads);
    let options = LayaOptions { threads, reduced: args.bf16 };
    let mut decider = Decider::load(&checkpoint, options).with_context(|| checkpoint.name().to_owned())?;
    if args.bf16 && !decider.engine().has_reduced_products() && !shell.quiet {
        output::note("this processor has no bf16 products; f32 is used");
    }
    if let Some(path) = &args.calibration {
        let label = format!("--calibration {}", path.display());
        let text = files::read_text("--calibration", path)?;
        let map = serde_json::from_str(&text).with_context(|| format!("{label}: not a JSON object"))?;
        *decider.calibration_mut() = Calibration::of_file(&map, &label)?;
    }
    Ok(decider)
}

fn ensure_one(count: usize, label: &str) -> Result<()> {
    ensure!(count > 0, "{label}: no questions; ask at least one");
    Ok(())
}
