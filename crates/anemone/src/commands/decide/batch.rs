use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anemone_decide::{Question, Request, Value};
use anyhow::{Context, Error, Result, anyhow, bail, ensure};

use super::input::Asked;
use super::models::{Answered, Models};
use super::score::Scores;
use super::{Args, ensure_one};
use crate::cli::Shell;
use crate::interrupt::{self, Guard};
use crate::{files, output};

/// Longest line that is read.
const LINE_LIMIT: usize = 16 << 20;

/// A line of the batch, ready to be asked.
struct Item {
    number: usize,
    line: Value,
    state: Value,
    questions: Vec<Question>,
}

pub(super) fn run(
    args: &Args,
    path: &Path,
    asked: Option<&Asked>,
    models: &mut Models,
    request: &Request,
    shell: &Shell,
) -> Result<ExitCode> {
    let label = format!("--batch {}", path.display());
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).with_context(|| format!("{label}: cannot open it; check the path"))?)
    };
    if let Some(asked) = asked {
        models.tell_cuts(&asked.questions, request, shell)?;
    }
    let mut batch = Batch {
        args,
        label,
        asked,
        models,
        request,
        bar: indicatif::ProgressBar::new_spinner(),
        scores: Scores::default(),
        failed: 0,
    };
    if shell.quiet || args.output.is_none() && !args.score {
        batch.bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let done = match &args.output {
        Some(target) => {
            files::distinct(path, "--output", target)?;
            interrupt::install()?;
            let _guard = Guard::new();
            files::write_whole("--output", target, |file| {
                let mut out = io::BufWriter::new(file);
                batch.answer_all(input, &mut |line| {
                    ensure!(!interrupt::asked(), "interrupted; --output {} is not written", target.display());
                    out.write_all(line.as_bytes()).with_context(|| format!("--output {}", target.display()))
                })?;
                out.flush().with_context(|| format!("--output {}", target.display()))
            })
        }
        None => batch.answer_all(input, &mut |line| output::data(line)),
    };
    batch.bar.finish_and_clear();
    match done {
        Err(error) if interrupt::asked() => {
            output::error(&error);
            return Ok(ExitCode::from(interrupt::EXIT_CODE));
        }
        done => done?,
    }
    if args.score {
        output::data(&batch.scores.report(args.json)?)?;
    }
    if batch.failed > 0 && !shell.quiet {
        output::note(&format!("{} lines could not be answered; their `error` says why", batch.failed));
    }
    Ok(if batch.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Batch<'a> {
    args: &'a Args,
    label: String,
    asked: Option<&'a Asked>,
    models: &'a mut Models,
    request: &'a Request,
    bar: indicatif::ProgressBar,
    scores: Scores,
    failed: usize,
}

impl Batch<'_> {
    fn answer_all(&mut self, input: impl Read, write: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let mut reader = BufReader::new(input);
        let mut number = 0;
        loop {
            let mut items = Vec::new();
            while items.len() < self.args.batch_size {
                let Some(text) = self.line(&mut reader, number + 1)? else { break };
                number += 1;
                match text {
                    Ok(text) if text.trim().is_empty() => {}
                    text => items.push((number, text.and_then(|text| self.item(number, &text)))),
                }
            }
            if items.is_empty() {
                ensure!(number > 0, "{}: it is empty; give one JSON object a line", self.label);
                return Ok(());
            }
            self.answer(items, write)?;
        }
    }

    /// The next line, itself an error where it is no text.
    fn line(&self, reader: &mut impl BufRead, number: usize) -> Result<Option<Result<String>>> {
        let mut bytes = Vec::new();
        let read = reader.by_ref().take(LINE_LIMIT as u64 + 1).read_until(b'\n', &mut bytes);
        read.with_context(|| format!("{}: cannot read line {number}", self.label))?;
        ensure!(
            bytes.len() <= LINE_LIMIT,
            "{}, line {number}: more than {} MiB; is it one JSON object a line?",
            self.label,
            LINE_LIMIT >> 20
        );
        if bytes.is_empty() {
            return Ok(None);
        }
        Ok(Some(String::from_utf8(bytes).map_err(|error| {
            anyhow!("not UTF-8 at byte {}; save the file as UTF-8", error.utf8_error().valid_up_to())
        })))
    }

    fn item(&self, number: usize, text: &str) -> Result<Item> {
        let line = Value::parse(text.trim())?;
        let state = line.get("state").context("has no `state`")?.clone();
        let asked = match (line.get("questions"), line.get("question")) {
            (Some(questions), _) => Asked::parse(questions)?,
            (None, Some(question)) => {
                Asked::parse(&Value::Map(vec![("question".to_owned(), question.clone())]))?
            }
            (None, None) => {
                self.asked.context("has no `questions`; add them, or give --questions for all lines")?.clone()
            }
        };
        ensure_one(asked.questions.len(), "`questions`")?;
        Ok(Item { number, state: asked.place(state), questions: asked.questions, line })
    }

    fn answer(
        &mut self,
        items: Vec<(usize, Result<Item>)>,
        write: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let asked: Vec<(&Value, &[Question])> = (items.iter().flat_map(|(_, item)| item))
            .map(|item| (&item.state, &item.questions[..]))
            .collect();
        let decided = self.models.decide_each(self.args, &asked, self.request)?;
        let mut decided = decided.into_iter();
        for (number, item) in items {
            let text = match item.map(|item| (decided.next(), item)) {
                Ok((Some(Ok(answered)), item)) => self.answered(&item, answered)?,
                Ok((Some(Err(error)), item)) => failure(&self.at(number, error)?, item.line.get("id")),
                Ok((None, _)) => bail!("{}: line {number} got no answer", self.label),
                Err(error) => failure(&self.at(number, error)?, None),
            };
            self.bar.inc(1);
            if !self.args.score {
                write(&text)?;
            }
        }
        Ok(())
    }

    /// An error of a line, which ends the run unless it is to go on.
    fn at(&mut self, number: usize, error: Error) -> Result<Error> {
        let error = error.context(format!("{}, line {number}", self.label));
        if !self.args.keep_going {
            return Err(error);
        }
        self.failed += 1;
        Ok(error)
    }

    fn answered(&mut self, item: &Item, (result, decisions): Answered) -> Result<String> {
        if self.args.score {
            let decisions = decisions.context("--score is for one model")?;
            let scored = self.scores.add(&item.line, &item.questions, &decisions);
            scored.with_context(|| format!("{}, line {}", self.label, item.number))?;
            return Ok(String::new());
        }
        let mut fields = Vec::new();
        if let Some(id) = item.line.get("id") {
            fields.push(("id".to_owned(), id.clone()));
        }
        fields.extend(result.as_map().unwrap_or_default().iter().cloned());
        Ok(format!("{}\n", Value::Map(fields).to_compact()))
    }
}

fn failure(error: &Error, id: Option<&Value>) -> String {
    let mut fields = Vec::new();
    if let Some(id) = id {
        fields.push(("id".to_owned(), id.clone()));
    }
    fields.push(("error".to_owned(), Value::Text(output::chain(error))));
    format!("{}\n", Value::Map(fields).to_compact())
}
