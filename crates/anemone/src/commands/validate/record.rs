//! References: what a checkpoint answered, in a file.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anemone_bundle::{DecisionBundle, Source};
use anemone_cpu::LayaOptions;
use anemone_decide::{Decider, Reference, Request};
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::Args;
use crate::cli::Shell;
use crate::commands::convert;
use crate::{files, model, output};

/// Reads a reference for a bundle made from `source`.
pub(super) fn read(path: &Path, source: &Source) -> Result<Reference> {
    let label = || format!("--reference {}", path.display());
    let reference = Reference::parse(&files::read_text("--reference", path)?).with_context(label)?;
    let differs = |(file, hash): &(&String, &String)| source.sha256.get(*file) != Some(*hash);
    if let Some((file, hash)) = reference.sha256.iter().find(differs) {
        bail!(
            "{}: recorded from `{}` with another {file}: its SHA-256 is {hash}, of `{}`, which the bundle was made from, {}; record \
             one from that with validate --record FILE --model DIR",
            label(),
            reference.model,
            source.name,
            source.sha256.get(file).map_or("unknown", String::as_str)
        );
    }
    Ok(reference)
}

/// Writes what a checkpoint answers.
pub(super) fn run(args: &Args, exact: LayaOptions, shell: &Shell) -> Result<ExitCode> {
    let path = args.record.as_ref().context("--bundle is missing; name the bundle to validate")?;
    let given = model::decision_path(&args.model, shell)?;
    ensure!(
        given.as_deref().is_none_or(|place| !DecisionBundle::is_at(place)),
        "--record is of a checkpoint, and --model names a bundle; give the checkpoint it was made from"
    );
    let cases = super::cases(args)?;
    let checkpoint = model::open_decision(&args.model, shell)?;
    let sha256 = convert::decision::sha256(&checkpoint)?;
    let mut decider = Decider::load(&checkpoint, exact)?;
    let request = Request { max_len: args.max_len, ..Request::default() };
    let mut recorded = Vec::with_capacity(cases.len());
    for case in cases {
        let decisions = decider.decide(&case.state, &case.questions, &request);
        let decisions = decisions.with_context(|| case.name.clone())?;
        recorded.push((case.name, case.state, case.definitions, decisions));
    }
    let with = format!("anemone {} on the CPU in f32", env!("CARGO_PKG_VERSION"));
    let value = Reference::record(checkpoint.name(), &with, &sha256, args.max_len, &recorded);
    files::write_whole("--record", path, |file| Ok(writeln!(file, "{}", value.to_compact())?))?;
    let rows: usize = recorded.iter().map(|(.., decisions)| decisions.0.len()).sum();
    if args.json {
        output::json(&json!({"out": path.display().to_string(), "model": checkpoint.name(), "rows": rows}))?;
    } else {
        output::data(&format!("recorded  {rows} rows of {} in {}\n", checkpoint.name(), path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
