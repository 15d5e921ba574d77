use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anemone_kernels::Context;
use anemone_mil::{Executable, Executor, ExecutorError, Program, Signature, TensorType, read_package};

use crate::accumulate::Accumulator;
use crate::constants::Constants;
use crate::plan::Plan;
use crate::value::Rules;
use crate::{Error, Profile, Ranges};

/// Interprets packages. Functions of a package share its weights; all functions share the threads.
pub struct Emulator {
    rules: Rules,
    context: Arc<Context>,
    packages: BTreeMap<PathBuf, Package>,
    tap: Option<Tap>,
}

struct Package {
    program: Program,
    constants: Constants,
}

/// Sees the result of every operation.
pub type Tap = Arc<dyn Fn(&Observed<'_>) + Send + Sync>;

/// A result as a [`Tap`] sees it.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// Type of the operation.
    pub op: &'a str,
    /// Name of the result.
    pub name: &'a str,
    /// Its declared type.
    pub ty: &'a TensorType,
    /// Its elements after rounding, row-major.
    pub values: &'a [f32],
}

impl Emulator {
    /// An emulator on `threads` threads, the caller's included.
    pub fn new(profile: Profile, threads: usize) -> Self {
        let accumulator = Accumulator::new(&profile);
        let rules = Rules { profile, accumulator, ranges: None };
        Self { rules, context: Arc::new(Context::new(threads)), packages: BTreeMap::new(), tap: None }
    }

    /// Shows every result of functions loaded from now on to `tap`.
    #[must_use]
    pub fn with_tap(self, tap: Tap) -> Self {
        Self { tap: Some(tap), ..self }
    }

    /// Notes in `ranges` what sums of products declared fp16 come to in functions loaded from now on, which costs time.
    #[must_use]
    pub fn with_ranges(mut self, ranges: Ranges) -> Self {
        self.rules.ranges = Some(ranges);
        self
    }

    /// The arithmetic in use.
    pub fn profile(&self) -> &Profile {
        &self.rules.profile
    }

    fn package(&mut self, path: &Path) -> Result<&mut Package, Error> {
        match self.packages.entry(path.to_path_buf()) {
            Entry::Occupied(e) => Ok(e.into_mut()),
            Entry::Vacant(e) => {
                let program = read_package(path)
                    .map_err(|source| Error::Package { path: path.to_path_buf(), source })?;
                let constants = Constants::new(&program);
                Ok(e.insert(Package { program, constants }))
            }
        }
    }

    fn plan(&mut self, path: &Path, function: &str) -> Result<Plan, Error> {
        let (rules, context, tap) = (self.rules.clone(), Arc::clone(&self.context), self.tap.clone());
        let stem = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let no_function = |present: &Program| Error::NoFunction {
            path: path.to_path_buf(),
            function: function.to_string(),
            present: present.functions.keys().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "),
        };
        let package = self.package(path)?;
        let found = package.program.functions.get(function).ok_or_else(|| no_function(&package.program))?;
        Plan::new(found, &mut package.constants, stem, rules, context, tap)
    }
}

impl Executor for Emulator {
    fn signatures(&mut self, package: &Path) -> Result<BTreeMap<String, Signature>, ExecutorError> {
        let functions = &self.package(package)?.program.functions;
        Ok(functions.iter().map(|(name, f)| (name.clone(), Signature::of(f))).collect())
    }

    fn load(&mut self, package: &Path, function: &str) -> Result<Box<dyn Executable>, ExecutorError> {
        Ok(Box::new(self.plan(package, function)?))
    }
}

impl fmt::Debug for Emulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Emulator({}, {:?}, {} packages)", self.rules.profile, self.context, self.packages.len())
    }
}
