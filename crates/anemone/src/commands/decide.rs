mod batch;
pub(super) mod input;
mod models;
pub(super) mod runs;
mod score;
mod table;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;

use anemone_decide::{Gate, Preset, Question, Request, Shortlist, Tournament, Value};
use anemone_emulator::Profile;
use anemone_table::Format;
use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser;

use crate::args::{EngineName, HubArgs};
use crate::cli::Shell;
use crate::engine::CoreMlArgs;
use crate::{demo, output};
use models::Models;
use runs::Runs;

/// Answer typed questions about a text or JSON with a decision model
///
/// A question is a choice (one of several labels), a score (a level of a scale) or a noul (whether a statement holds). All questions
/// about a state are answered in one pass, each with probabilities and a calibrated confidence.
///
/// --questions is JSON, or a file of it: an object of id to an object with `type`, `instructions` and `criteria`. It may also be an
/// object with such `questions` and a `state_key`, the name the state is put under.
///
/// --input reads a table (Parquet, CSV, TSV, JSONL) of a state a row and --output writes it with its answers as more columns: for a
/// question `q`, `q` (label of a choice, level of a score, probability that a noul holds), `q.confidence`, `q.answer_confidence`,
/// `q.act_probability`, `q.probabilities` (not of a noul; an object by option, in CSV its JSON), and with --min-confidence
/// `q.abstention`; then `usage.input_tokens`, `usage.state_tokens`, `usage.state_tokens_dropped`, with several models
/// `routing.model`, and `error`. Numbers are those of --json. A state that is a number, a list or a struct is read as the JSON of it.
/// A row whose state is null (in CSV, empty) is not asked about: its answers are null and `error` says so. Columns of JSONL that hold
/// objects, lists or values of several types become texts of JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone decide\n  \
    anemone decide --state 'the parcel is late again' --questions \
    '{\"angry\": {\"type\": \"noul\", \"instructions\": \"Is the sender angry?\"}}'\n  \
    anemone decide --model ./laya --state @ticket.txt --questions questions.json --json\n  \
    anemone decide --batch tickets.jsonl --questions questions.json > answers.jsonl\n  \
    anemone decide --input tickets.parquet --state-column body --preset triage --output answered.parquet")]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch of the command")]
pub(crate) struct Args {
    /// The state: a text, JSON (an object or a list of turns), @FILE, or - for stdin
    #[arg(long, short = 's', value_name = "TEXT|@FILE|-", conflicts_with = "many")]
    state: Option<String>,
    /// Take --state as text even where it is JSON
    #[arg(long, requires = "state")]
    text: bool,
    /// The questions: JSON or a file of it
    #[arg(long, short = 'Q', value_name = "JSON|FILE")]
    questions: Option<String>,
    /// Ask a ready-made set of questions: email, guard, moderation, router or triage
    #[arg(long, value_name = "NAME", conflicts_with = "questions", value_parser = Preset::NAMES)]
    preset: Option<String>,
    /// Answer every line of a JSONL file (or - for stdin): {"state", "questions" where they differ, "id"}
    #[arg(long, short = 'b', value_name = "FILE|-", group = "many")]
    batch: Option<PathBuf>,
    /// Answer every row of a table: a file of Parquet, CSV, TSV or JSONL
    #[arg(long, short = 'i', value_name = "FILE", group = "many", requires = "output")]
    input: Option<PathBuf>,
    /// Column of --input that holds the states [default: state]
    #[arg(long, value_name = "NAME", requires = "input")]
    state_column: Option<String>,
    /// Format of --input [default: what its name ends in]
    #[arg(long, value_name = "FORMAT", requires = "input", value_parser = Format::ALL.map(Format::name))]
    input_format: Option<String>,
    /// Write the answers of --batch here instead of stdout, or the table with those of --input
    #[arg(long, short = 'o', value_name = "FILE", requires = "many")]
    output: Option<PathBuf>,
    /// Format of the table in --output [default: what its name ends in]
    #[arg(long, value_name = "FORMAT", requires = "input", value_parser = Format::ALL.map(Format::name))]
    output_format: Option<String>,
    /// Lines of --batch or rows of --input read at once
    #[arg(long, value_name = "N", default_value_t = 64, requires = "many", value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    batch_size: usize,
    /// Answer the lines of --batch or rows of --input that can be, and put an `error` in the place of the others
    #[arg(long, requires = "many")]
    keep_going: bool,
    /// Compare the answers of --batch with each line's `label` and print accuracies instead
    #[arg(long, requires = "batch", conflicts_with_all = ["output", "state"])]
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
    #[arg(long, conflicts_with_all = ["many", "min_confidence"])]
    long: bool,
    /// Tokens of a window [default: what the questions leave room for]
    #[arg(long, value_name = "N", requires = "long", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    window: Option<usize>,
    /// Tokens from one window to the next [default: half a window]
    #[arg(long, value_name = "N", requires = "long", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    stride: Option<usize>,
    /// Hold a choice among more than N labels in rounds of at most N
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "16", conflicts_with_all = ["many", "long", "raw"], value_parser = RangedU64ValueParser::<usize>::new().range(2..=100))]
    tournament: Option<usize>,
    /// Narrow a choice to the N labels whose texts are nearest by the model's own encoder
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20", conflicts_with_all = ["many", "long", "raw", "tournament"], value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    shortlist: Option<usize>,
    /// Tokens of a question with its options and the state [default: the model's own limit]
    #[arg(long, value_name = "N")]
    max_len: Option<usize>,
    /// Tokens of a question with its options [default: the model's own limit]
    #[arg(long, value_name = "N")]
    head_max_len: Option<usize>,
    /// Print the result as one JSON object
    #[arg(long, conflicts_with = "input")]
    json: bool,
    /// Add each question's tokens and scores to the JSON
    #[arg(long, conflicts_with_all = ["long", "input"])]
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
    /// Decision model: a directory or a hub id `org/name[@revision]` [default: the built-in model laya-demo]. Several as NAME=PATH,
    /// of which each state gets the one for its language; english, multilingual and typed-decisions are names with a meaning
    #[arg(long = "model", short = 'm', value_name = "[NAME=]PATH|ID", help_heading = "Model")]
    models: Vec<String>,
    /// Task of the state, which chooses among several models
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    task: Option<String>,
    /// Language the state is probably in, which chooses among several models where nothing else does
    #[arg(long, value_name = "CODE", help_heading = "Model")]
    lang_guess: Option<String>,
    /// Say which of several models the state would go to, and why; ask nothing
    #[arg(long, requires = "state", help_heading = "Model")]
    explain: bool,
    /// What runs the model: cpu reads a bundle's weights back, the emulator interprets its package, coreml runs it on a Mac; auto is
    /// cpu, and for a bundle on a Mac coreml as soon as it has loaded it
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    engine: EngineName,
    /// Arithmetic of the emulator [default: fp16]
    #[arg(long, value_name = "PROFILE", value_parser = crate::args::profile)]
    profile: Option<Profile>,
    #[command(flatten)]
    coreml: CoreMlArgs,
    /// Let questions share a row of the bundle's functions, which convert --pack makes; the answers are the same
    #[arg(long)]
    pack: bool,
    #[command(flatten)]
    hub: HubArgs,
}

/// How choices among many labels are made.
enum Narrowing {
    Tournament(Tournament),
    Shortlist(Shortlist),
}

impl Args {
    fn narrowing(&self) -> Option<Narrowing> {
        let tournament = self.tournament.map(|group_size| Narrowing::Tournament(Tournament { group_size }));
        tournament.or_else(|| self.shortlist.map(|k| Narrowing::Shortlist(Shortlist { k })))
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let runs = Runs::of(args)?;
    let code = answer(args, &runs, shell)?;
    if !shell.quiet {
        runs.notes().iter().for_each(|note| output::note(note));
    }
    Ok(code)
}

fn answer(args: &Args, runs: &Runs, shell: &Shell) -> Result<ExitCode> {
    let asked = match (&args.questions, &args.preset) {
        (Some(given), _) => Some(input::questions(given)?),
        (None, Some(name)) => Some(input::Asked::preset(name)?),
        (None, None) => None,
    };
    let request = request(args)?;
    if let Some(path) = &args.batch {
        let mut models = Models::load(args, runs, shell)?;
        return batch::run(args, path, asked.as_ref(), &mut models, &request, shell);
    }
    if let Some(path) = &args.input {
        return tables::run(args, path, asked.as_ref(), &request, runs, shell);
    }
    let (state, asked) = match (&args.state, asked) {
        (Some(state), Some(asked)) => (input::state(state, args.text)?, asked),
        (Some(state), None) if args.explain => (input::state(state, args.text)?, input::Asked::default()),
        (None, None) => {
            if !shell.quiet {
                output::note(&format!("state: {}", demo::decision::STATE));
            }
            (Value::text(demo::decision::STATE), input::questions(demo::decision::QUESTIONS)?)
        }
        (Some(_), None) => bail!("--state without --questions or --preset; say what is asked"),
        (None, Some(_)) => {
            let flag = if args.preset.is_some() { "--preset" } else { "--questions" };
            bail!("{flag} without --state, --batch or --input; say what it is about")
        }
    };
    let state = asked.place(state);
    let mut models = Models::load(args, runs, shell)?;
    if args.explain {
        return explain(args, &models.explain(&state, &asked.questions)?);
    }
    let (result, note) = models.decide(args, &state, &asked.questions, &request)?;
    if let Some(note) = note.filter(|_| !shell.quiet) {
        output::note(&note);
    }
    show(args, &result, &asked.questions, shell)
}

fn explain(args: &Args, route: &Value) -> Result<ExitCode> {
    if args.json {
        output::data(&format!("{}\n", route.to_compact()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = |key: &str| route.get(key).map(|value| value.rendered().into_owned()).unwrap_or_default();
    output::data(&format!("model   {} ({})\nreason  {}\n", text("model"), text("repo"), text("reason")))?;
    Ok(ExitCode::SUCCESS)
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

fn ensure_one(count: usize, label: &str) -> Result<()> {
    ensure!(count > 0, "{label}: no questions; ask at least one");
    Ok(())
}
