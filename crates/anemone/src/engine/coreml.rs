use std::path::{Path, PathBuf};
use std::time::Duration;

use anemone_bundle::Bundle;
use anemone_coreml::simulated::{Fault, Simulated};
use anemone_coreml::{CompiledModels, ComputeUnits, CoreMl, Loading, Loadings, Options, Require};
use anemone_emulator::{Emulator, Profile};
use anemone_mil::{Calls, Executor};
use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser;

use super::Engine;
use super::graph::{OnGraph, Runner, bundle};
use crate::args::EngineArgs;
use crate::env;

/// How Core ML is used.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Core ML")]
pub(crate) struct CoreMlArgs {
    /// What of the machine may be used: `cpu_and_ne`, `cpu_and_gpu`, `cpu_only` or all [default: `cpu_and_ne`]
    #[arg(long, value_name = "UNITS")]
    compute_units: Option<ComputeUnits>,
    /// Refuse to run where less than all, or PERCENT of the estimated cost, of a function is placed on the Neural Engine
    #[arg(long, value_name = "ane[=PERCENT]")]
    require: Option<Require>,
    /// Refuse to run a function that takes more than this share of its time on the processor alone, which no plan tells: 0.8 is what
    /// others ask for; needs the bundle's recorded calls, and measures each function when it is loaded
    #[arg(long, value_name = "X", value_parser = ratio)]
    max_ratio: Option<f64>,
    /// Seconds that compiling or loading a model may take [default: 10800]
    #[arg(long, value_name = "S", hide_short_help = true, value_parser = RangedU64ValueParser::<u64>::new().range(1..=604_800))]
    load_timeout: Option<u64>,
    /// Where compiled models are kept [default: anemone/coreml in the user's cache directory]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    compiled_models: Option<PathBuf>,
    /// Run as if Core ML were here, on the emulator and with faults: none, or several of slow-compile=MS, compile-fails, disk-full,
    /// memory-pressure, wrong-outputs, nan=N, drift=N, unsteady, on-cpu, silent-fallback, execution=N, hang=N with commas between;
    /// for tests of what then happens
    #[arg(long, value_name = "FAULTS", value_delimiter = ',', value_parser = fault, hide_short_help = true)]
    simulate: Vec<Option<Fault>>,
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if ratio > 0.0 && ratio <= 10.0 => Ok(ratio),
        _ => Err("give a number above 0 and up to 10".into()),
    }
}

/// Compiled models in a directory, the user's own where none is named. What a simulation compiles is nothing Core ML could load, and
/// has a place of its own there.
pub(crate) fn compiled_models(dir: Option<&PathBuf>, simulated: bool) -> Result<CompiledModels> {
    let own = if simulated { "coreml-simulated" } else { "coreml" };
    let dir = dir.cloned().or_else(|| env::cache_dir().map(|dir| dir.join(own)));
    let dir =
        dir.context("no home directory is known; say where compiled models are with --compiled-models DIR")?;
    Ok(CompiledModels::new(dir))
}

/// A fault by name; `none` is none.
pub(crate) fn fault(text: &str) -> Result<Option<Fault>, String> {
    if text == "none" { Ok(None) } else { text.parse().map(Some) }
}

impl CoreMlArgs {
    /// Whether something stands for Core ML.
    pub(crate) fn is_simulated(&self) -> bool {
        !self.simulate.is_empty()
    }

    /// Whether something is demanded of the placement.
    pub(crate) fn demands(&self) -> bool {
        self.require.is_some()
    }

    /// The first flag that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let flags = [
            (self.compute_units.is_some(), "--compute-units"),
            (self.require.is_some(), "--require"),
            (self.max_ratio.is_some(), "--max-ratio"),
            (self.load_timeout.is_some(), "--load-timeout"),
            (self.compiled_models.is_some(), "--compiled-models"),
            (self.is_simulated(), "--simulate"),
        ];
        flags.into_iter().find(|(given, _)| *given).map(|(_, flag)| flag)
    }

    fn options(&self, canaries: Calls) -> Result<Options> {
        ensure!(
            self.require.is_none() || self.compute_units != Some(ComputeUnits::CpuOnly),
            "--require asks for the Neural Engine and --compute-units cpu_only leaves it out; leave one of them out"
        );
        ensure!(
            self.max_ratio.is_none() || self.compute_units != Some(ComputeUnits::CpuOnly),
            "--max-ratio compares with the processor alone, which --compute-units cpu_only is; leave one of them out"
        );
        let options = Options::new(compiled_models(self.compiled_models.as_ref(), self.is_simulated())?);
        Ok(Options {
            units: self.compute_units.unwrap_or_default(),
            require: self.require,
            most_ratio: self.max_ratio,
            load_timeout: self.load_timeout.map(Duration::from_secs).or(options.load_timeout),
            compile_again: self.simulate.iter().flatten().any(|fault| fault.is_of_compiling()),
            canaries,
            ..options
        })
    }

    /// What runs packages here with these recorded calls, and what it loads; `profile` and `threads` are of what stands for Core ML.
    pub(crate) fn executor(
        &self,
        canaries: Calls,
        profile: Profile,
        threads: usize,
    ) -> Result<(Box<dyn Executor>, Loadings)> {
        let options = self.options(canaries)?;
        if self.is_simulated() {
            let faults: Vec<Fault> = self.simulate.iter().copied().flatten().collect();
            let make = move || Ok(Simulated::new(Emulator::new(profile, threads), &faults));
            let executor = CoreMl::new(options, make)?;
            let loadings = executor.loadings();
            return Ok((Box::new(executor), loadings));
        }
        system(options)
    }

    /// What of the machine may be used.
    pub(crate) fn units(&self) -> ComputeUnits {
        self.compute_units.unwrap_or_default()
    }

    /// Whether Core ML is here, or stands here.
    pub(crate) fn is_here(&self) -> bool {
        cfg!(target_vendor = "apple") || self.is_simulated()
    }

    /// Errors where it is not.
    pub(crate) fn check_here(&self) -> Result<()> {
        if !self.is_here() {
            system(Options::new(CompiledModels::new("")))?;
        }
        Ok(())
    }
}

/// Functions of which a part is not on the Neural Engine, with the first operation elsewhere.
pub(crate) fn notes(loadings: &Loadings, units: ComputeUnits) -> Vec<String> {
    if units == ComputeUnits::CpuOnly {
        return Vec::new();
    }
    let note = |loading: &Loading| {
        let plan = loading.plan.as_ref()?;
        let summary = plan.summary();
        let (op, reason) = plan.away().next()?;
        Some(format!(
            "{} of {}: {} of {} operations are not on the Neural Engine, the first is {} ({}): {reason}",
            loading.function,
            loading.package,
            summary.cpu_ops + summary.gpu_ops,
            summary.cpu_ops + summary.gpu_ops + summary.ane_ops,
            op.name,
            op.operator
        ))
    };
    loadings.get().iter().filter_map(note).collect()
}

#[cfg(target_vendor = "apple")]
fn system(options: Options) -> Result<(Box<dyn Executor>, Loadings)> {
    let executor = CoreMl::new(options, anemone_coreml::System::new)?;
    let loadings = executor.loadings();
    Ok((Box::new(executor), loadings))
}

#[cfg(not(target_vendor = "apple"))]
fn system(_: Options) -> Result<(Box<dyn Executor>, Loadings)> {
    anyhow::bail!(
        "--engine coreml: Core ML is on Macs only; use --engine cpu, which runs bundles too, or --engine emulator"
    )
}

impl Engine {
    /// Core ML over the bundle at `path`.
    pub(crate) fn core_ml(path: Option<&Path>, args: &EngineArgs) -> Result<Self> {
        args.coreml.check_here()?;
        Self::core_ml_over(bundle(path, "coreml")?, args)
    }

    /// [`Engine::core_ml`] over an open bundle.
    pub(super) fn core_ml_over(bundle: Bundle, args: &EngineArgs) -> Result<Self> {
        let calls = bundle.calls()?.unwrap_or_default();
        let (executor, loadings) = args.coreml.executor(calls, args.profile(), args.threads())?;
        let units = args.coreml.units();
        let runner = Runner::CoreMl { units, loadings, simulated: args.coreml.is_simulated() };
        Ok(Self::Graph(Box::new(OnGraph::new(bundle, args, runner, executor)?)))
    }
}
