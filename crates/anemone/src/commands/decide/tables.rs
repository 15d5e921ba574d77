//! Tables: a state a row in, the row with its answers out.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use anemone_decide::{Question, Request, Value};
use anemone_table::{Answers, Format, Outcome, Reader, Rows, Writer};
use anyhow::{Context, Error, Result, anyhow, bail, ensure};

use super::Args;
use super::input::Asked;
use super::models::Models;
use super::runs::Runs;
use crate::cli::Shell;
use crate::interrupt::{self, Guard};
use crate::{files, output};

/// What became of a table's rows.
#[derive(Default)]
struct Counts {
    without_state: u64,
    failed: u64,
}

pub(super) fn run(
    args: &Args,
    input: &Path,
    asked: Option<&Asked>,
    request: &Request,
    runs: &Runs,
    shell: &Shell,
) -> Result<ExitCode> {
    let label = format!("--input {}", input.display());
    let asked = asked
        .with_context(|| format!("{label}: no questions; say with --questions or --preset what is asked"))?;
    let target =
        args.output.as_deref().with_context(|| format!("{label}: name the table to write with --output"))?;
    let from = format(&label, "--input-format", input, args.input_format.as_deref())?;
    let to = format(
        &format!("--output {}", target.display()),
        "--output-format",
        target,
        args.output_format.as_deref(),
    )?;
    let state = args.state_column.as_deref().unwrap_or("state");
    // Damaged Parquet files make panics that are told as errors.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !anemone_table::is_guarded() {
            told(info);
        }
    }));
    let mut reader = open(&label, input, target, from, state, args.batch_size)?;
    let routed = args.models.len() > 1;
    let answers = Answers::new(reader.schema(), &asked.questions, request.gate.is_some(), routed)
        .with_context(|| label.clone())?;
    // Faults of the table are told before a model is loaded.
    let mut models = Models::load(args, runs, shell)?;
    models.tell_cuts(&asked.questions, request, shell)?;
    interrupt::install()?;
    let _guard = Guard::new();
    let bar = bar(reader.rows(), shell);
    let mut counts = Counts::default();
    let written = files::write_whole("--output", target, |file| {
        let mut writer = Writer::new(file, to, answers.schema().clone()).map_err(writing)?;
        while let Some(rows) = reader.next_rows().map_err(|error| reading(&label, error))? {
            let outcomes = answer(args, &label, &mut models, &rows, asked, request, &mut counts)?;
            writer.write(&answers.join(&rows.batch, &outcomes)?).map_err(writing)?;
            bar.inc(rows.states.len() as u64);
            ensure!(!interrupt::asked(), "interrupted; --output {} is not written", target.display());
        }
        writer.finish().map_err(writing)
    });
    bar.finish_and_clear();
    match written {
        Err(error) if interrupt::asked() => {
            output::error(&error);
            return Ok(ExitCode::from(interrupt::EXIT_CODE));
        }
        written => written?,
    }
    if !shell.quiet {
        if counts.without_state > 0 {
            output::note(&format!("{} rows have no state and were not asked about", counts.without_state));
        }
        if counts.failed > 0 {
            output::note(&format!("{} rows could not be answered; their `error` says why", counts.failed));
        }
    }
    Ok(if counts.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn format(label: &str, flag: &str, path: &Path, named: Option<&str>) -> Result<Format> {
    let format = named.map_or_else(|| Format::of_path(path), Format::named);
    format.with_context(|| {
        let names = Format::ALL.map(Format::name).join(", ");
        format!("{label}: its name does not say what it is; end it in one of {names}, or give {flag}")
    })
}

fn open(
    label: &str,
    input: &Path,
    target: &Path,
    format: Format,
    state: &str,
    rows: usize,
) -> Result<Reader> {
    let file = File::open(input).with_context(|| format!("{label}: cannot open it; check the path"))?;
    let meta = file.metadata().with_context(|| format!("{label}: cannot read it"))?;
    ensure!(
        meta.is_file(),
        "{label}: not a regular file; name a file, or read JSONL from a pipe with --batch -"
    );
    files::distinct(input, "--output", target)?;
    Reader::open(file, format, state, rows).map_err(|error| reading(label, error))
}

fn bar(rows: Option<u64>, shell: &Shell) -> indicatif::ProgressBar {
    let bar = rows.map_or_else(indicatif::ProgressBar::new_spinner, indicatif::ProgressBar::new);
    if shell.quiet {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    bar
}

/// What became of each row: all that have a state are asked about in one pass.
fn answer(
    args: &Args,
    label: &str,
    models: &mut Models,
    rows: &Rows,
    asked: &Asked,
    request: &Request,
    counts: &mut Counts,
) -> Result<Vec<Outcome>> {
    let placed: Vec<Option<Value>> = (rows.states.iter())
        .map(|state| (*state != Value::Null).then(|| asked.place(state.clone())))
        .collect();
    let questions: &[Question] = &asked.questions;
    let states: Vec<(&Value, &[Question])> =
        placed.iter().flatten().map(|state| (state, questions)).collect();
    let mut decided = models.decide_each(args, &states, request)?.into_iter();
    let mut outcomes = Vec::with_capacity(placed.len());
    for (i, state) in placed.iter().enumerate() {
        let at = |error: Error| error.context(format!("{label}, row {}", rows.before + i as u64 + 1));
        outcomes.push(match state.as_ref().map(|_| decided.next()) {
            None => {
                counts.without_state += 1;
                Outcome::Error("the state is null".to_owned())
            }
            Some(Some(Ok((result, _)))) => Outcome::Result(result),
            Some(Some(Err(error))) if args.keep_going => {
                counts.failed += 1;
                Outcome::Error(output::chain(&error))
            }
            Some(Some(Err(error))) => return Err(at(error)),
            Some(None) => bail!("{label}: row {} got no answer", rows.before + i as u64 + 1),
        });
    }
    Ok(outcomes)
}

/// An error of the input, whose root is not what the system says, since that is how errors of the output are known.
fn reading(label: &str, error: anemone_table::Error) -> Error {
    match error {
        anemone_table::Error::Read(source) => anyhow!("{label}: cannot read it: {source}; check the file"),
        other => Error::new(other).context(label.to_owned()),
    }
}

/// An error of the output, with what the system says at its root.
fn writing(error: anemone_table::Error) -> Error {
    match error {
        anemone_table::Error::Write(source) => source.into(),
        other => other.into(),
    }
}
