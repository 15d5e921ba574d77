use std::path::Path;
use std::sync::Arc;

use anemone_bundle::Bundle;
use anemone_coreml::{ComputeUnits, Loading, Loadings};
use anemone_emulator::{Emulator, Profile, Range, Ranges};
use anemone_mil::Executor;
use anemone_session::{Engine as _, GraphEngine, LayerStates};
use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::Engine;
use crate::args::EngineArgs;

/// A bundle on whatever runs packages.
#[derive(Debug)]
pub(crate) struct OnGraph {
    pub(super) graph: GraphEngine,
    pub(super) runner: Runner,
    pub(super) threads: usize,
    pub(super) context_len: usize,
}

/// What runs packages.
#[derive(Debug)]
pub(super) enum Runner {
    /// An interpreter.
    Emulator {
        profile: Profile,
        /// Of sums of products, when traced.
        ranges: Ranges,
    },
    /// Core ML.
    CoreMl {
        units: ComputeUnits,
        loadings: Loadings,
        /// Whether it only stands for it.
        simulated: bool,
    },
}

impl Runner {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Emulator { .. } => "emulator",
            Self::CoreMl { simulated: false, .. } => "coreml",
            Self::CoreMl { simulated: true, .. } => "coreml (simulated)",
        }
    }

    /// The emulator's profile, or what of the machine Core ML may use.
    pub(super) fn arithmetic(&self) -> &str {
        match self {
            Self::Emulator { profile, .. } => profile.name(),
            Self::CoreMl { units, .. } => units.name(),
        }
    }

    pub(super) fn ranges(&self) -> Option<(&Profile, Vec<Range>)> {
        match self {
            Self::Emulator { profile, ranges } => Some((profile, ranges.get())),
            Self::CoreMl { .. } => None,
        }
    }

    /// All of it that decides bits.
    pub(super) fn id(&self) -> String {
        match self {
            Self::Emulator { profile, .. } => format!("in {profile:?}"),
            Self::CoreMl { units, simulated, .. } => format!("by {units:?} {simulated}"),
        }
    }
}

impl OnGraph {
    /// Functions of which a part is not on the Neural Engine, with the first operation elsewhere.
    pub(super) fn notes(&self) -> Vec<String> {
        let Runner::CoreMl { loadings, units, .. } = &self.runner else { return Vec::new() };
        super::core_ml_notes(loadings, *units)
    }

    /// What Core ML loaded so far; `None` on another engine.
    pub(super) fn report(&self) -> Option<Value> {
        let Runner::CoreMl { loadings, units, simulated } = &self.runner else { return None };
        let function = |loading: &Loading| {
            json!({
                "package": loading.package,
                "function": loading.function,
                "load_seconds": loading.seconds,
                "ratio_to_cpu_only": loading.ratio,
                "plan": loading.plan.as_ref().map(anemone_coreml::ComputePlan::summary),
            })
        };
        let functions: Vec<Value> = loadings.get().iter().map(function).collect();
        Some(json!({"compute_units": units.name(), "simulated": simulated, "functions": functions}))
    }

    /// A bundle on an executor.
    pub(super) fn new(
        bundle: Bundle,
        args: &EngineArgs,
        runner: Runner,
        executor: Box<dyn Executor>,
    ) -> Result<Self> {
        let path = bundle.dir().to_path_buf();
        let held = bundle.manifest().options.ctx;
        let context_len = args.ctx.unwrap_or(held);
        ensure!(
            context_len <= held,
            "--ctx {context_len}: the bundle was converted for {held} tokens; lower it, or convert with --ctx {context_len}"
        );
        let graph = GraphEngine::new(bundle, executor).with_context(|| path.display().to_string())?;
        Ok(Self { graph, runner, threads: args.threads(), context_len })
    }
}

/// The bundle at a path, which `engine` runs.
pub(super) fn bundle(path: Option<&Path>, engine: &str) -> Result<Bundle> {
    let needs = format!("--engine {engine} runs bundles");
    let path = path.ok_or_else(|| {
        anyhow!("{needs}, and the built-in model is none; make one with anemone convert --out DIR and name it with --bundle")
    })?;
    ensure!(
        Bundle::is_bundle(path),
        "{needs}, and {} is none; make one with anemone convert --model {} --out DIR and name it with --bundle",
        path.display(),
        path.display()
    );
    Ok(Bundle::open(path)?)
}

impl Engine {
    /// The emulator over the bundle at `path`; `traced` shows the layers inside of packages, which costs time.
    pub(crate) fn emulator(path: Option<&Path>, args: &EngineArgs, traced: bool) -> Result<Self> {
        Self::over(bundle(path, "emulator")?, args, traced)
    }

    /// [`Engine::emulator`] over an open bundle.
    pub(crate) fn over(bundle: Bundle, args: &EngineArgs, traced: bool) -> Result<Self> {
        let profile = args.profile();
        let mut emulator = Emulator::new(profile.clone(), args.threads());
        let (states, ranges) = (LayerStates::default(), Ranges::default());
        if traced {
            let states = states.clone();
            let tap = move |o: &anemone_emulator::Observed<'_>| states.offer(o.name, &o.ty.shape, o.values);
            emulator = emulator.with_tap(Arc::new(tap)).with_ranges(ranges.clone());
        }
        let runner = Runner::Emulator { profile, ranges };
        let mut on = OnGraph::new(bundle, args, runner, Box::new(emulator))?;
        if traced {
            on.graph = on.graph.with_layer_states(states);
        }
        Ok(Self::Graph(Box::new(on)))
    }

    /// Loads what single tokens need, which Core ML does when it is first used.
    pub(crate) fn load_now(&mut self) -> Result<()> {
        self.feed(&[0])?;
        self.reset();
        Ok(())
    }
}
