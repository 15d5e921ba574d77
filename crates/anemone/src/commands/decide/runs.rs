//! What runs decision models: the native engine, or their bundles' packages on the emulator or by Core ML.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use anemone_bundle::{Bundle, DecisionBundle};
use anemone_coreml::Loadings;
use anemone_cpu::LayaOptions;
use anemone_decide::{Decider, GraphScorer, Scorer, Turns, Vocabulary};
use anemone_emulator::{Emulator, Profile};
use anemone_mil::Executor;
use anyhow::{Context, Result, anyhow, bail, ensure};

use super::Args;
use crate::args::EngineName;
use crate::engine::{CoreMlArgs, core_ml_notes};

/// What is to run a decision model.
#[derive(Debug, Clone)]
pub(in crate::commands) enum Runs {
    /// The native engine, on a bundle's weights, too.
    Native,
    /// The native engine, and Core ML for bundles once it has loaded them.
    Swap(Packages, Story),
    /// A bundle's packages.
    Packages(Packages),
}

/// What runs packages.
#[derive(Debug, Clone)]
pub(in crate::commands) enum Packages {
    Emulator(Profile),
    /// With the profile of what stands for it, and what was loaded so far.
    CoreMl(Box<CoreMlArgs>, Profile, Heard),
}

/// What Core ML loaded for all models.
pub(in crate::commands) type Heard = Arc<Mutex<Vec<Loadings>>>;
/// How engines took turns in all models.
pub(in crate::commands) type Story = Arc<Mutex<Vec<Turns>>>;

impl Packages {
    /// As `--engine` has it.
    pub(in crate::commands) fn name(&self) -> &'static str {
        match self {
            Self::Emulator(_) => "emulator",
            Self::CoreMl(args, ..) if args.is_simulated() => "coreml (simulated)",
            Self::CoreMl(..) => "coreml",
        }
    }

    /// The emulator's profile, or what of the machine Core ML may use.
    pub(in crate::commands) fn arithmetic(&self) -> String {
        match self {
            Self::Emulator(profile) => profile.to_string(),
            Self::CoreMl(args, ..) => args.units().name().to_owned(),
        }
    }

    fn executor(&self, bundle: &DecisionBundle, threads: usize) -> Result<Box<dyn Executor>> {
        Ok(match self {
            Self::Emulator(profile) => Box::new(Emulator::new(profile.clone(), threads)),
            Self::CoreMl(args, profile, heard) => {
                let calls = bundle.calls()?.unwrap_or_default();
                let (executor, loadings) = args.executor(calls, profile.clone(), threads)?;
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(loadings);
                executor
            }
        })
    }

    /// A bundle on it.
    pub(in crate::commands) fn open(&self, bundle: DecisionBundle, threads: usize) -> Result<Decider> {
        let label = bundle.dir().display().to_string();
        let executor = self.executor(&bundle, threads).with_context(|| label.clone())?;
        Decider::open(bundle, executor).context(label)
    }

    /// The decision model's bundle at `path`, which it can run.
    pub(in crate::commands) fn bundle(&self, path: Option<&Path>) -> Result<DecisionBundle> {
        let engine = if matches!(self, Self::Emulator(_)) { "emulator" } else { "coreml" };
        let needs = format!("--engine {engine} runs bundles");
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
}

impl Runs {
    /// What an engine's flags ask for; errors for those of another engine.
    pub(in crate::commands) fn chosen(
        engine: EngineName,
        profile: Option<&Profile>,
        bf16: bool,
        coreml: &CoreMlArgs,
    ) -> Result<Self> {
        ensure!(
            profile.is_none() || engine == EngineName::Emulator || coreml.is_simulated(),
            "--profile is the emulator's arithmetic; add --engine emulator, or leave it out"
        );
        if matches!(engine, EngineName::Cpu | EngineName::Emulator)
            && let Some(flag) = coreml.given()
        {
            bail!("{flag} is of Core ML; use --engine coreml, or leave it out");
        }
        let profile = profile.cloned().unwrap_or_default();
        let core_ml = || Packages::CoreMl(Box::new(coreml.clone()), profile.clone(), Heard::default());
        match engine {
            EngineName::Cpu => Ok(Self::Native),
            EngineName::Auto if coreml.is_here() => {
                ensure!(
                    !coreml.demands(),
                    "--require: --engine auto lets the CPU engine answer, too; use --engine coreml, or leave it out"
                );
                Ok(Self::Swap(core_ml(), Story::default()))
            }
            EngineName::Auto => match coreml.given() {
                Some(flag) => bail!("{flag}: Core ML is on Macs only; leave it out"),
                None => Ok(Self::Native),
            },
            EngineName::Coreml => {
                ensure!(!bf16, "--bf16 is of the native engine; leave it out, or use --engine cpu");
                coreml.check_here()?;
                Ok(Self::Packages(core_ml()))
            }
            EngineName::Emulator => {
                ensure!(!bf16, "--bf16 is of the native engine; leave it out, or use --engine cpu");
                Ok(Self::Packages(Packages::Emulator(profile)))
            }
        }
    }

    /// [`Runs::chosen`] by the options of `decide`.
    pub(super) fn of(args: &Args) -> Result<Self> {
        ensure!(
            !args.exact || !matches!(args.engine, EngineName::Emulator | EngineName::Coreml),
            "--exact is of the native engine; use --profile f32 with the emulator, or --engine cpu"
        );
        Self::chosen(args.engine, args.profile.as_ref(), args.bf16, &args.coreml)
    }

    /// What runs packages, where the native engine runs none.
    pub(in crate::commands) fn packages(&self) -> Option<&Packages> {
        match self {
            Self::Packages(packages) => Some(packages),
            _ => None,
        }
    }

    /// A bundle for the native engine, which Core ML takes over from where it is to.
    pub(in crate::commands) fn native(
        &self,
        bundle: &DecisionBundle,
        options: LayaOptions,
    ) -> Result<Decider> {
        let checkpoint = bundle.verified_checkpoint()?;
        let Self::Swap(packages, story) = self else { return Ok(Decider::load(&checkpoint, options)?) };
        let (send, coming) = channel();
        let (packages, own) = (packages.clone(), bundle.clone());
        let load = move || {
            let loaded = scorer(&packages, &own, options.threads).map_err(|error| format!("{error:#}"));
            // Nobody waits for it when all is answered.
            let _ = send.send(loaded);
        };
        let thread = std::thread::Builder::new().name("core-ml-load".to_owned()).spawn(load);
        thread.map_err(|error| anyhow!("cannot start the thread that loads Core ML: {error}"))?;
        let (decider, turns) = Decider::load_until(&checkpoint, options, coming)?;
        story.lock().unwrap_or_else(PoisonError::into_inner).push(turns);
        Ok(decider)
    }

    /// What a user should know of where models ran.
    pub(in crate::commands) fn notes(&self) -> Vec<String> {
        let (packages, mut notes) = match self {
            Self::Native => return Vec::new(),
            Self::Packages(packages) => (packages, Vec::new()),
            Self::Swap(packages, story) => {
                let story = story.lock().unwrap_or_else(PoisonError::into_inner);
                (packages, story.iter().flat_map(Turns::get).collect())
            }
        };
        if let Packages::CoreMl(args, _, heard) = packages {
            let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            notes.extend(heard.iter().flat_map(|loadings| core_ml_notes(loadings, args.units())));
        }
        notes
    }
}

/// A bundle's functions, all loaded and run once.
fn scorer(packages: &Packages, bundle: &DecisionBundle, threads: usize) -> Result<Box<dyn Scorer>> {
    let executor = packages.executor(bundle, threads)?;
    let checkpoint = bundle.checkpoint()?;
    let vocabulary = Vocabulary::new(&checkpoint.tokenizer_json()?, checkpoint.tokenizer_config())?;
    let mut scorer = GraphScorer::open(bundle.clone(), &checkpoint, executor, vocabulary.pad())?;
    scorer.run_each()?;
    Ok(Box::new(scorer))
}
