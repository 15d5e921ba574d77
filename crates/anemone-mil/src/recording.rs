use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Array, Executable, Executor, ExecutorError, Signature, States};

/// Inputs of a function that was run without states, and what it gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Call {
    /// Inputs by name; those of zeros are left out.
    pub inputs: BTreeMap<String, Array>,
    /// Outputs by name.
    pub outputs: BTreeMap<String, Array>,
}

/// Calls by the package's file name and the function.
pub type Calls = BTreeMap<(String, String), Call>;

/// An executor that remembers the first call of every function whose states were zero.
#[derive(Debug)]
pub struct Recording<E> {
    inner: E,
    calls: Recorded,
}

/// What a [`Recording`] remembers, shared with it.
#[derive(Debug, Clone, Default)]
pub struct Recorded(Arc<Mutex<Calls>>);

impl Recorded {
    /// The calls so far.
    pub fn get(&self) -> Calls {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<E: Executor> Recording<E> {
    /// An executor over another one.
    pub fn new(inner: E) -> Self {
        Self { inner, calls: Recorded::default() }
    }

    /// What it remembers, as it does.
    pub fn recorded(&self) -> Recorded {
        self.calls.clone()
    }
}

impl<E: Executor> Executor for Recording<E> {
    fn signatures(&mut self, package: &Path) -> Result<BTreeMap<String, Signature>, ExecutorError> {
        self.inner.signatures(package)
    }

    fn load(&mut self, package: &Path, function: &str) -> Result<Box<dyn Executable>, ExecutorError> {
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let inner = self.inner.load(package, function)?;
        Ok(Box::new(Recorder { inner, key: (name, function.to_owned()), calls: self.calls.clone() }))
    }
}

struct Recorder {
    inner: Box<dyn Executable>,
    key: (String, String),
    calls: Recorded,
}

impl Executable for Recorder {
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn predict(
        &mut self,
        inputs: &[(&str, &Array)],
        states: &mut States,
    ) -> Result<Vec<Array>, ExecutorError> {
        let is_zero = |array: &Array| array.data.iter().all(|v| *v == 0.0);
        let begins = states.values().all(is_zero);
        let outputs = self.inner.predict(inputs, states)?;
        let mut calls = self.calls.0.lock().unwrap_or_else(PoisonError::into_inner);
        if begins && !calls.contains_key(&self.key) {
            let kept = inputs.iter().filter(|(_, array)| !is_zero(array));
            let names = self.inner.signature().outputs.iter().map(|(name, _)| name.clone());
            let call = Call {
                inputs: kept.map(|(name, array)| ((*name).to_owned(), (*array).clone())).collect(),
                outputs: names.zip(outputs.iter().cloned()).collect(),
            };
            calls.insert(self.key.clone(), call);
        }
        Ok(outputs)
    }
}
