//! Packages through a backend: the path from a package to a prediction, with everything that can go wrong on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anemone_mil::{Array, Call, Calls, Executable, Executor, ExecutorError, Signature, States, read_package};

use crate::canary::{judge, not_finite, unfit};
use crate::worker::{Host, Worker};
use crate::{
    Backend, CompiledModels, ComputePlan, ComputeUnits, Error, Failure, FailureKind, Held, Require, Result,
};

/// Runs that a ratio is measured by.
const RATIO_RUNS: usize = 5;

/// How packages are run.
#[derive(Debug, Clone)]
pub struct Options {
    /// What of the machine may be used.
    pub units: ComputeUnits,
    /// Where compiled models lie.
    pub compiled: CompiledModels,
    /// What plans must be like.
    pub require: Option<Require>,
    /// Recorded inputs that functions are tried with when they are loaded.
    pub canaries: Calls,
    /// Predictions after which a function is tried again; never without.
    pub recheck: Option<u64>,
    /// Longest a function may take, as a share of its time on the processor alone; the sign of a Neural Engine that is not used.
    pub most_ratio: Option<f64>,
    /// Time a prediction may take.
    pub predict_timeout: Duration,
    /// Time that compiling, loading and planning may take, each; as long as it takes without.
    pub load_timeout: Option<Duration>,
    /// Whether packages that were compiled before are compiled again.
    pub compile_again: bool,
}

/// Time a step of loading is given: the longest published first compile, of a model of 4 B on an M6, took 80 minutes.
const LOAD_TIMEOUT: Duration = Duration::from_hours(3);

impl Options {
    /// Options over a directory of compiled models.
    pub fn new(compiled: CompiledModels) -> Self {
        Self {
            units: ComputeUnits::default(),
            compiled,
            require: None,
            canaries: Calls::new(),
            recheck: Some(32),
            most_ratio: None,
            predict_timeout: Duration::from_mins(1),
            load_timeout: Some(LOAD_TIMEOUT),
            compile_again: false,
        }
    }
}

/// What is known of a function that was loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Loading {
    /// The package's file name.
    pub package: String,
    /// The function.
    pub function: String,
    /// Seconds for compiling, 0 when it was compiled before, and loading.
    pub seconds: f64,
    /// Where its operations run, where the system tells.
    pub plan: Option<ComputePlan>,
    /// Its time as a share of that on the processor alone, where it was measured.
    pub ratio: Option<f64>,
}

/// What was loaded so far, shared with the executor it is of.
#[derive(Debug, Clone, Default)]
pub struct Loadings(Arc<Mutex<Vec<Loading>>>);

impl Loadings {
    /// All of them, in order.
    pub fn get(&self) -> Vec<Loading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, loading: Loading) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(loading);
    }
}

/// An [`Executor`] over a backend.
pub struct CoreMl<B: Backend> {
    worker: Worker<B>,
    options: Arc<Options>,
    signatures: BTreeMap<PathBuf, BTreeMap<String, Signature>>,
    loadings: Loadings,
}

impl<B: Backend> std::fmt::Debug for CoreMl<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoreMl").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<B: Backend + 'static> CoreMl<B> {
    /// An executor over the backend that `make` makes on a thread of its own.
    pub fn new(
        options: Options,
        make: impl FnOnce() -> std::result::Result<B, Failure> + Send + 'static,
    ) -> Result<Self> {
        Ok(Self {
            worker: Worker::start(make)?,
            options: Arc::new(options),
            signatures: BTreeMap::new(),
            loadings: Loadings::default(),
        })
    }

    /// What it loads, as it does.
    pub fn loadings(&self) -> Loadings {
        self.loadings.clone()
    }

    fn known(&mut self, package: &Path) -> Result<&BTreeMap<String, Signature>> {
        if !self.signatures.contains_key(package) {
            let program = read_package(package)?;
            let functions = program.functions.iter();
            let signatures =
                functions.map(|(name, function)| (name.clone(), Signature::of(function))).collect();
            self.signatures.insert(package.to_path_buf(), signatures);
        }
        Ok(&self.signatures[package])
    }

    fn open(&mut self, package: &Path, function: &str) -> Result<Loaded<B>> {
        let start = Instant::now();
        let name = file_name(package);
        let known = self.known(package)?;
        let Some(signature) = known.get(function).cloned() else {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let known = names.join(", ");
            return Err(Error::Function { package: name, function: function.to_owned(), known });
        };
        let canary = self.options.canaries.get(&(name.clone(), function.to_owned())).cloned();
        if let Some(problem) = canary.as_ref().and_then(|canary| unfit(canary, &signature)) {
            return Err(Error::Recorded { package: name, function: function.to_owned(), problem });
        }
        let (held, model) = self.compiled(package, &name, function, &signature)?;
        let model = Placed { worker: self.worker.clone(), number: model };
        let plan = self.plan(held.path(), &name, function)?;
        if let Some(require) = &self.options.require {
            require.check(function, plan.as_ref())?;
        }
        if canary.is_none() {
            tracing::warn!(
                "{name}: there is no recorded call of `{function}`, so what it gives is not tried"
            );
        }
        let mut loaded = Loaded {
            worker: self.worker.clone(),
            options: Arc::clone(&self.options),
            model,
            function: function.to_owned(),
            package: name.clone(),
            names: signature.outputs.iter().map(|(name, _)| name.clone()).collect(),
            signature,
            canary: canary.map(Arc::new),
            seen: Vec::new(),
            calls: 0,
            held,
        };
        loaded.meet_canary()?;
        let ratio = self.ratio(&loaded)?;
        let seconds = start.elapsed().as_secs_f64();
        tracing::debug!(package = name, function, seconds, "loaded by Core ML");
        let function = function.to_owned();
        self.loadings.push(Loading { package: name, function, seconds, plan, ratio });
        Ok(loaded)
    }

    /// Compiles a package where it is not yet, and loads a function. A compiled model that cannot be loaded is made again once, for it may
    /// be what an interrupted update of the system left.
    fn compiled(
        &self,
        package: &Path,
        name: &str,
        function: &str,
        signature: &Signature,
    ) -> Result<(Held, usize)> {
        let (patience, units) = (self.options.load_timeout, self.options.units);
        let core = |failure| Error::Core { package: name.to_owned(), failure };
        let mut again = true;
        if self.options.compile_again {
            // One that another function holds was compiled by this process.
            self.options.compiled.forget(package)?;
        }
        loop {
            let mut fresh = false;
            let held = self.options.compiled.get(package, |target| {
                fresh = true;
                let (from, to) = (package.to_path_buf(), target.to_path_buf());
                let what = format!("compiling {name}");
                tracing::info!("{what}, which is kept: the first time may take from seconds to many minutes");
                let compile =
                    self.worker.call(&what, patience, move |host| host.backend.compile(&from, &to))?;
                compile.map_err(core)
            })?;
            let what = format!("loading {function} of {name}");
            let failure = match self.place(&what, held.path(), function, signature, units)? {
                Ok(model) => return Ok((held, model)),
                Err(failure) => failure,
            };
            drop(held);
            let stale = failure.kind == FailureKind::Load && !fresh && again;
            // One that is in use elsewhere can be loaded there, so it is not stale.
            if !stale || !self.options.compiled.forget(package)? {
                return Err(core(failure));
            }
            tracing::warn!("{name}: the compiled model cannot be loaded and is made again: {failure}");
            again = false;
        }
    }

    /// Loads a function on the thread; its number there.
    fn place(
        &self,
        what: &str,
        compiled: &Path,
        function: &str,
        signature: &Signature,
        units: ComputeUnits,
    ) -> Result<std::result::Result<usize, Failure>> {
        let (at, wanted, ports) = (compiled.to_path_buf(), function.to_owned(), signature.clone());
        self.worker.call(what, self.options.load_timeout, move |host| {
            let model = host.backend.load(&at, &wanted, &ports, units)?;
            host.models.push(Some(model));
            Ok(host.models.len() - 1)
        })
    }

    fn plan(&self, compiled: &Path, name: &str, function: &str) -> Result<Option<ComputePlan>> {
        let (at, wanted, units) = (compiled.to_path_buf(), function.to_owned(), self.options.units);
        let what = format!("planning {function} of {name}");
        let plan = self
            .worker
            .call(&what, self.options.load_timeout, move |host| host.backend.plan(&at, &wanted, units))?;
        plan.map_err(|failure| Error::Core { package: name.to_owned(), failure })
    }

    /// Measures a function against itself on the processor alone, with its canary, where that is asked for.
    fn ratio(&self, loaded: &Loaded<B>) -> Result<Option<f64>> {
        let Some(most) = self.options.most_ratio else { return Ok(None) };
        let fails = |problem: String| Error::Ratio { function: loaded.function.clone(), problem };
        let canary = loaded.canary.clone();
        let canary = canary.ok_or_else(|| {
            fails(
                "there is no recorded call to measure it by; make the bundle again without --no-canary"
                    .into(),
            )
        })?;
        let what = format!("loading {} for the processor", loaded.function);
        let (at, units) = (loaded.held.path(), ComputeUnits::CpuOnly);
        let other = self.place(&what, at, &loaded.function, &loaded.signature, units)?;
        let other = other.map_err(|failure| Error::Core { package: loaded.package.clone(), failure })?;
        let other = Placed { worker: self.worker.clone(), number: other };
        let inputs = loaded.complete(&canary);
        let mut fastest = [f64::INFINITY; 2];
        for _ in 0..RATIO_RUNS {
            for (which, model) in [loaded.model.number, other.number].into_iter().enumerate() {
                let start = Instant::now();
                loaded.predict_on(model, inputs.clone(), &mut States::new())?;
                fastest[which] = fastest[which].min(start.elapsed().as_secs_f64());
            }
        }
        let ratio = fastest[0] / fastest[1];
        if ratio > most {
            return Err(fails(format!(
                "it takes {ratio:.2} of its time on the processor alone, at most {most:.2} is allowed: it does not run on the Neural \
                 Engine, whatever the plan says; use --engine cpu, or convert with fewer, larger packages"
            )));
        }
        Ok(Some(ratio))
    }
}

impl<B: Backend + 'static> Executor for CoreMl<B> {
    fn signatures(
        &mut self,
        package: &Path,
    ) -> std::result::Result<BTreeMap<String, Signature>, ExecutorError> {
        Ok(self.known(package)?.clone())
    }

    fn load(
        &mut self,
        package: &Path,
        function: &str,
    ) -> std::result::Result<Box<dyn Executable>, ExecutorError> {
        Ok(Box::new(self.open(package, function)?))
    }
}

/// The number of a function on the thread of Core ML, which unloads it when this is dropped.
struct Placed<B: Backend + 'static> {
    worker: Worker<B>,
    number: usize,
}

impl<B: Backend + 'static> Drop for Placed<B> {
    fn drop(&mut self) {
        let number = self.number;
        self.worker.post(move |host| host.models[number] = None);
    }
}

/// A function on the thread of Core ML.
struct Loaded<B: Backend + 'static> {
    worker: Worker<B>,
    options: Arc<Options>,
    model: Placed<B>,
    package: String,
    function: String,
    names: Vec<String>,
    signature: Signature,
    canary: Option<Arc<Call>>,
    /// What it gave for the canary when it was loaded.
    seen: Vec<Array>,
    calls: u64,
    /// Keeps others from removing what it was loaded from.
    held: Held,
}

impl<B: Backend + 'static> Loaded<B> {
    fn predict_on(
        &self,
        model: usize,
        inputs: Vec<(String, Array)>,
        states: &mut States,
    ) -> Result<Vec<Array>> {
        let mut own = std::mem::take(states);
        let what = format!("a prediction of {}", self.function);
        let call = move |host: &mut Host<B>| {
            let Some(model) = host.models[model].as_mut() else {
                let gone = Failure::new(FailureKind::Predict, None, "the function was unloaded");
                return (Err(gone), own);
            };
            let outputs = host.backend.predict(model, &inputs, &mut own);
            (outputs, own)
        };
        let (outputs, own) = self.worker.call(&what, Some(self.options.predict_timeout), call)?;
        *states = own;
        outputs.map_err(|failure| Error::Core { package: self.package.clone(), failure })
    }

    /// The canary's inputs with the zeros it leaves out.
    fn complete(&self, canary: &Call) -> Vec<(String, Array)> {
        let input = |(name, ty): &(String, anemone_mil::TensorType)| {
            let array = canary.inputs.get(name).cloned().unwrap_or_else(|| Array::zeros(&ty.shape));
            (name.clone(), array)
        };
        self.signature.inputs.iter().map(input).collect()
    }

    /// Runs the canary twice and keeps what it gave.
    fn meet_canary(&mut self) -> Result<()> {
        let Some(canary) = self.canary.clone() else { return Ok(()) };
        self.seen = self.predict_on(self.model.number, self.complete(&canary), &mut States::new())?;
        self.try_canary(&canary)
    }

    /// Runs the canary again, with states of its own: it must give what it gave before.
    fn try_canary(&self, canary: &Call) -> Result<()> {
        let now = self.predict_on(self.model.number, self.complete(canary), &mut States::new())?;
        match judge(canary, &self.names, &self.seen, &now) {
            None => Ok(()),
            Some(problem) => Err(Error::Canary { function: self.function.clone(), problem }),
        }
    }

    fn run(&mut self, inputs: &[(&str, &Array)], states: &mut States) -> Result<Vec<Array>> {
        let mut complete = Vec::with_capacity(self.signature.inputs.len());
        for (name, ty) in &self.signature.inputs {
            let wrong = |problem: String| Error::Input {
                function: self.function.clone(),
                input: name.clone(),
                problem,
            };
            let given = inputs.iter().find(|(given, _)| given == name).map(|(_, array)| *array);
            let given = given.ok_or_else(|| wrong("is missing".to_owned()))?;
            if given.shape != ty.shape {
                return Err(wrong(format!("has the shape {:?}, expected {:?}", given.shape, ty.shape)));
            }
            complete.push((name.clone(), given.clone()));
        }
        let due = |every: u64| self.calls > 0 && self.calls.is_multiple_of(every);
        if let Some(canary) = self.canary.as_ref().filter(|_| self.options.recheck.is_some_and(due)) {
            self.try_canary(canary)?;
        }
        self.calls += 1;
        let outputs = self.predict_on(self.model.number, complete, states)?;
        for (name, output) in self.names.iter().zip(&outputs) {
            if let Some(problem) = not_finite(name, output) {
                return Err(Error::Canary { function: self.function.clone(), problem });
            }
        }
        Ok(outputs)
    }
}

impl<B: Backend + 'static> Executable for Loaded<B> {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn predict(
        &mut self,
        inputs: &[(&str, &Array)],
        states: &mut States,
    ) -> std::result::Result<Vec<Array>, ExecutorError> {
        Ok(self.run(inputs, states)?)
    }
}

fn file_name(package: &Path) -> String {
    package.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
