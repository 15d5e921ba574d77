use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::path::Path;

use crate::TensorType;

/// A failure of whatever runs packages, in its own words.
pub type ExecutorError = Box<dyn StdError + Send + Sync>;

/// Something that runs functions of packages: Core ML on a Mac, the emulator anywhere. The one seam to Apple.
pub trait Executor: Send {
    /// Loads a function of a package.
    fn load(&mut self, package: &Path, function: &str) -> Result<Box<dyn Executable>, ExecutorError>;
}

/// A loaded function.
pub trait Executable: Send {
    /// What it takes and gives.
    fn signature(&self) -> &Signature;

    /// Runs once. Every input must be given with its declared shape; outputs come in the order of the signature. States are read
    /// and written in place.
    fn predict(
        &mut self,
        inputs: &[(&str, &Array)],
        states: &mut States,
    ) -> Result<Vec<Array>, ExecutorError>;
}

/// Names and types of a function's inputs, outputs and states, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// Tensors it takes.
    pub inputs: Vec<(String, TensorType)>,
    /// Tensors it gives.
    pub outputs: Vec<(String, TensorType)>,
    /// States it reads or writes.
    pub states: Vec<(String, TensorType)>,
}

/// States by name; absent ones are zero.
pub type States = BTreeMap<String, Array>;

/// A dense row-major tensor of the host. Numbers are f32 whatever the declared type; an executor rounds to the type at its edge.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Array {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Vec<f32>,
}

impl Array {
    /// An array of zeros.
    pub fn zeros(shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), data: vec![0.0; shape.iter().product()] }
    }
}
