//! The judgement of a candidate.

use std::path::PathBuf;

use anemone_bundle::judge;
use anyhow::{Context, Result, ensure};

use super::{Args, Gate, Source};
use crate::args::{EngineArgs, EngineName, LayoutName, ModelArgs};
use crate::cli::Shell;
use crate::commands::{validate, verify};
use crate::engine::CoreMlArgs;
use crate::{files, machine, model};

/// Lines of failures a manifest keeps.
const KEPT: usize = 5;

/// Errors for flags that the gate could not use.
pub(super) fn check(args: &Args, source: &Source, shell: &Shell) -> Result<()> {
    let Some(bar) = args.gate else {
        ensure!(
            args.model.model.is_none(),
            "--model is the checkpoint that --gate compares with; add --gate, or leave it out"
        );
        return Ok(());
    };
    let problem = match source {
        Source::Language(_) => verify::cosine(&bar.to_string()),
        Source::Decision(_) => validate::share(&bar.to_string()),
    };
    if let Err(problem) = problem {
        anyhow::bail!("--gate {bar}: {problem}");
    }
    // What is missing is said before the work, which may be long.
    if let Some(path) = &args.gate_input {
        ensure!(path.is_file(), "--gate-input {}: no such file; name a text or JSONL file", path.display());
        match source {
            Source::Language(_) => {
                let text = files::read_text("--gate-input", path)?;
                let some = !text.trim().is_empty();
                ensure!(some, "--gate-input {}: there is no text in it; give some", path.display());
            }
            Source::Decision(_) => {
                validate::rows("--gate-input", path)?;
            }
        }
    }
    match source {
        _ if args.model.model.is_none() => drop(model::locate(&args.model, shell)?),
        Source::Language(_) => drop(model::open(&args.model, shell)?),
        Source::Decision(_) => drop(model::open_decision(&args.model, shell)?),
    }
    Ok(())
}

/// What the manifest says while the gate has not ended.
pub(super) fn pending(args: &Args, source: &Source) -> Option<Gate> {
    let bar = args.gate?;
    let rule = match source {
        Source::Language(_) => "least cosine of logits",
        Source::Decision(_) => "largest error of a probability",
    };
    let of = args.model.model.as_deref().unwrap_or(source.dir());
    let reference = format!("{} in f32", of.file_name().unwrap_or(of.as_os_str()).to_string_lossy());
    let profile = args.profile.clone().unwrap_or_default().to_string();
    Some(Gate {
        rule: rule.into(),
        bar,
        measured: None,
        failures: Vec::new(),
        reference,
        profile,
        passed: false,
    })
}

/// Runs the candidate, writes the verdict and puts it where it belongs.
pub(super) fn run(args: &Args, source: &Source, shell: &Shell) -> Result<(Option<Gate>, PathBuf)> {
    let Some(mut gate) = pending(args, source) else { return Ok((None, args.out.clone())) };
    let candidate = anemone_bundle::candidate_place(&args.out);
    let threads = args.threads.unwrap_or_else(machine::threads);
    let profile = args.profile.clone().unwrap_or_default();
    let label = || format!("the gate could not judge {}", candidate.display());
    let failures: Vec<String>;
    match source {
        Source::Language(bundle) => {
            let engine = EngineArgs {
                threads: Some(threads),
                ctx: None,
                exact: false,
                layout: LayoutName::Auto,
                engine: EngineName::Emulator,
                profile: Some(profile),
                chunk: None,
                coreml: CoreMlArgs::default(),
            };
            let model = args.model.model.clone().unwrap_or_else(|| bundle.dir().to_path_buf());
            let model = ModelArgs { model: Some(model), ..args.model.clone() };
            let report = verify::gate(&candidate, model, engine, args.gate_input.clone(), gate.bar, shell)
                .with_context(label)?;
            gate.measured = report.cosine();
            gate.passed = report.passed();
            failures = report.failures;
        }
        Source::Decision(bundle) => {
            let model = args.model.clone();
            let how = (profile, threads);
            let input = args.gate_input.clone();
            let found =
                validate::gate(&candidate, bundle, model, how, input, gate.bar, shell).with_context(label)?;
            gate.measured = (found.validated > 0).then_some(found.probability_error);
            gate.passed = found.passed();
            failures = if found.validated == 0 {
                vec!["no row was compared".into()]
            } else {
                found.failures.into_iter().map(|failure| failure.line).collect()
            };
        }
    }
    gate.failures = failures.into_iter().take(KEPT).collect();
    let at = judge(&args.out, args.force, &gate)?;
    Ok((Some(gate), at))
}

/// Lines of a report.
pub(super) fn text(gate: &Gate) -> String {
    let measured = gate.measured.map_or_else(|| "nothing".to_owned(), |m| format!("{m:.6}"));
    let mut out = format!(
        "gate       {} {measured}, asked for {}; emulator, {}, against {}\n",
        gate.rule, gate.bar, gate.profile, gate.reference
    );
    for failure in &gate.failures {
        out.push_str("failed: ");
        out.push_str(failure);
        out.push('\n');
    }
    out
}
