use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anemone_kernels::Context;
use anemone_mil::{Executable, Executor, ExecutorError, Program, Signature, TensorType, read_package};

use crate::constants::Constants;
use crate::plan::Plan;
use crate::{Error, Profile};

/// Interprets packages. Functions of a package share its weights; all functions share the threads.
pub struct Emulator {
    profile: Profile,
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
        Self { profile, context: Arc::new(Context::new(threads)), packages: BTreeMap::new(), tap: None }
    }

    /// Shows every result of functions loaded from now on to `tap`.
    #[must_use]
    pub fn with_tap(self, tap: Tap) -> Self {
        Self { tap: Some(tap), ..self }
    }

    /// The arithmetic in use.
    pub fn profile(&self) -> Profile {
        self.profile
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
        let (profile, context, tap) = (self.profile, Arc::clone(&self.context), self.tap.clone());
        let no_function = |present: &Program| Error::NoFunction {
            path: path.to_path_buf(),
            function: function.to_string(),
            present: present.functions.keys().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "),
        };
        let package = self.package(path)?;
        let found = package.program.functions.get(function).ok_or_else(|| no_function(&package.program))?;
        Plan::new(found, &mut package.constants, profile, context, tap)
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
        write!(f, "Emulator({}, {:?}, {} packages)", self.profile, self.context, self.packages.len())
    }
}
