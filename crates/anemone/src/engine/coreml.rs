use std::path::{Path, PathBuf};

use anemone_bundle::Bundle;
use anemone_coreml::simulated::{Fault, Simulated};
use anemone_coreml::{CompiledModels, ComputeUnits, CoreMl, Loadings, Options, Require};
use anemone_emulator::Emulator;
use anemone_mil::Executor;
use anyhow::{Context, Result, ensure};

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
    /// Where compiled models are kept [default: anemone/coreml in the user's cache directory]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    compiled_models: Option<PathBuf>,
    /// Run as if Core ML were here, on the emulator and with faults: none, or several of slow-compile=MS, compile-fails, disk-full,
    /// memory-pressure, wrong-outputs, nan=N, drift=N, unsteady, on-cpu, silent-fallback, execution=N, hang=N with commas between;
    /// for tests of what then happens
    #[arg(long, value_name = "FAULTS", value_delimiter = ',', value_parser = fault, hide_short_help = true)]
    simulate: Vec<Option<Fault>>,
}

/// Compiled models in a directory, the user's own where none is named.
pub(crate) fn compiled_models(dir: Option<&PathBuf>) -> Result<CompiledModels> {
    let dir = dir.cloned().or_else(|| env::cache_dir().map(|dir| dir.join("coreml")));
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
            (self.compiled_models.is_some(), "--compiled-models"),
            (self.is_simulated(), "--simulate"),
        ];
        flags.into_iter().find(|(given, _)| *given).map(|(_, flag)| flag)
    }

    fn options(&self, bundle: &Bundle) -> Result<Options> {
        ensure!(
            self.require.is_none() || self.compute_units != Some(ComputeUnits::CpuOnly),
            "--require asks for the Neural Engine and --compute-units cpu_only leaves it out; leave one of them out"
        );
        let options = Options::new(compiled_models(self.compiled_models.as_ref())?);
        Ok(Options {
            units: self.compute_units.unwrap_or_default(),
            require: self.require,
            canaries: bundle.calls()?.unwrap_or_default(),
            ..options
        })
    }

    /// What runs packages here, and what it loads.
    fn executor(&self, options: Options, args: &EngineArgs) -> Result<(Box<dyn Executor>, Loadings)> {
        if self.is_simulated() {
            let (profile, threads) = (args.profile(), args.threads());
            let faults: Vec<Fault> = self.simulate.iter().copied().flatten().collect();
            let make = move || Ok(Simulated::new(Emulator::new(profile, threads), &faults));
            let executor = CoreMl::new(options, make)?;
            let loadings = executor.loadings();
            return Ok((Box::new(executor), loadings));
        }
        system(options)
    }
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

/// Whether Core ML is here, or stands here.
pub(crate) fn is_here(args: &EngineArgs) -> bool {
    cfg!(target_vendor = "apple") || args.coreml.is_simulated()
}

impl Engine {
    /// Core ML over the bundle at `path`.
    pub(crate) fn core_ml(path: Option<&Path>, args: &EngineArgs) -> Result<Self> {
        if !is_here(args) {
            system(Options::new(CompiledModels::new("")))?;
        }
        Self::core_ml_over(bundle(path, "coreml")?, args)
    }

    /// [`Engine::core_ml`] over an open bundle.
    pub(super) fn core_ml_over(bundle: Bundle, args: &EngineArgs) -> Result<Self> {
        let options = args.coreml.options(&bundle)?;
        let units = options.units;
        let (executor, loadings) = args.coreml.executor(options, args)?;
        let runner = Runner::CoreMl { units, loadings, simulated: args.coreml.is_simulated() };
        Ok(Self::Graph(Box::new(OnGraph::new(bundle, args, runner, executor)?)))
    }
}
