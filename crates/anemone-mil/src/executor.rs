use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::path::Path;

use crate::{Function, TensorType, Type, VarId};

/// A failure of whatever runs packages, in its own words.
pub type ExecutorError = Box<dyn StdError + Send + Sync>;

/// Something that runs functions of packages: Core ML on a Mac, the emulator anywhere. The one seam to Apple.
pub trait Executor: Send {
    /// What each function of a package takes and gives, by name; loads none of them.
    fn signatures(&mut self, package: &Path) -> Result<BTreeMap<String, Signature>, ExecutorError>;

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

impl Signature {
    /// That of a function.
    pub fn of(function: &Function) -> Self {
        let mut signature = Self::default();
        for id in &function.inputs {
            let var = function.var(*id);
            match &var.ty {
                Type::Tensor(ty) => signature.inputs.push((var.name.clone(), ty.clone())),
                Type::State(ty) => signature.states.push((var.name.clone(), ty.clone())),
            }
        }
        let output = |id: &VarId| (function.var(*id).name.clone(), function.var(*id).ty.tensor().clone());
        signature.outputs = function.outputs.iter().map(output).collect();
        signature
    }
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
