//! Bundles of decision models on the emulator.

use std::path::Path;

use anemone_bundle::{Bundle, DecisionBundle};
use anemone_decide::Decider;
use anemone_emulator::{Emulator, Profile};
use anyhow::{Context, Result, bail, ensure};

use super::Args;
use crate::args::EngineName;

/// The emulator's arithmetic when it is to run the model; errors for options of another engine.
pub(super) fn profile(args: &Args) -> Result<Option<Profile>> {
    ensure!(
        !args.exact || args.engine != EngineName::Emulator,
        "--exact is of the native engine; use --profile f32 with the emulator, or --engine cpu"
    );
    chosen(args.engine, args.profile.as_ref(), args.bf16)
}

/// [`profile`] of any command's options.
pub(in crate::commands) fn chosen(
    engine: EngineName,
    profile: Option<&Profile>,
    bf16: bool,
) -> Result<Option<Profile>> {
    match engine {
        EngineName::Auto | EngineName::Cpu => {
            ensure!(
                profile.is_none(),
                "--profile is the emulator's arithmetic; add --engine emulator, or leave it out"
            );
            Ok(None)
        }
        EngineName::Coreml => bail!(
            "--engine coreml runs language models by `run`, `chat` and `bench` in this version; use --engine cpu or emulator"
        ),
        EngineName::Emulator => {
            ensure!(!bf16, "--bf16 is of the native engine; leave it out, or use --engine cpu");
            Ok(Some(profile.cloned().unwrap_or_default()))
        }
    }
}

/// The decision model's bundle at `path`, which the emulator can run.
pub(in crate::commands) fn bundle(path: Option<&Path>) -> Result<DecisionBundle> {
    let needs = "--engine emulator runs bundles";
    let path = path.with_context(|| {
        format!("{needs}, and the built-in model is none; make one with anemone convert --decision --out DIR and name it with --model")
    })?;
    ensure!(
        Bundle::is_bundle(path),
        "{needs}, and {} is none; make one with anemone convert --model {} --out DIR and name it with --model",
        path.display(),
        path.display()
    );
    DecisionBundle::open(path).with_context(|| format!("--model {}", path.display()))
}

/// The emulator over a bundle.
pub(in crate::commands) fn open(bundle: DecisionBundle, profile: Profile, threads: usize) -> Result<Decider> {
    let label = bundle.dir().display().to_string();
    Decider::open(bundle, Box::new(Emulator::new(profile, threads))).context(label)
}
