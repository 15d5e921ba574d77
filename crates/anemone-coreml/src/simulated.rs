//! Core ML as it can go wrong, over any other executor: what a Mac does to a program, where there is no Mac.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anemone_mil::{Array, Executable, Executor, ExecutorError, Signature, States};

use crate::{Backend, ComputePlan, ComputeUnits, Device, Failure, FailureKind, PlannedOp};

/// What goes wrong, and when.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// Compiling takes so long.
    SlowCompile(Duration),
    /// Compiling fails without a reason.
    CompileFails,
    /// Compiling fills the disk.
    DiskFull,
    /// Loading needs more memory than there is.
    MemoryPressure,
    /// Outputs are those of another program, from the first call on.
    WrongOutputs,
    /// One element of an output is NaN from this call on.
    Nan {
        /// Calls that go well before.
        after: u64,
    },
    /// Outputs move away from this call on.
    Drift {
        /// Calls that go well before.
        after: u64,
    },
    /// Two calls with the same inputs differ.
    Unsteady,
    /// The plan has operations on the processor.
    OnCpu,
    /// It runs as fast as the processor, whatever the plan says.
    SilentFallback,
    /// Predictions fail with error -14 from this call on.
    Execution {
        /// Calls that go well before.
        after: u64,
    },
    /// A prediction does not come back.
    Hang {
        /// Calls that go well before.
        after: u64,
    },
}

impl FromStr for Fault {
    type Err = String;

    /// Reads a name, and behind `=` the milliseconds of a slow compile or the calls that go well before.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = match text.split_once('=') {
            Some((name, number)) => {
                let number: u64 = number
                    .parse()
                    .map_err(|_| format!("{text}: write a whole number below 2^64 behind ="))?;
                (name, number)
            }
            None => (text, 0),
        };
        Ok(match name {
            "slow-compile" => Self::SlowCompile(Duration::from_millis(number)),
            "compile-fails" => Self::CompileFails,
            "disk-full" => Self::DiskFull,
            "memory-pressure" => Self::MemoryPressure,
            "wrong-outputs" => Self::WrongOutputs,
            "nan" => Self::Nan { after: number },
            "drift" => Self::Drift { after: number },
            "unsteady" => Self::Unsteady,
            "on-cpu" => Self::OnCpu,
            "silent-fallback" => Self::SilentFallback,
            "execution" => Self::Execution { after: number },
            "hang" => Self::Hang { after: number },
            _ => return Err(format!("'{name}' is no fault; see --help for those there are")),
        })
    }
}

/// A backend whose functions are run by another executor.
pub struct Simulated {
    inner: Box<dyn Executor>,
    faults: Vec<Fault>,
    calls: u64,
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulated").field("faults", &self.faults).finish_non_exhaustive()
    }
}

/// A function on the other executor.
pub struct SimulatedModel {
    executable: Box<dyn Executable>,
    units: ComputeUnits,
}

impl std::fmt::Debug for SimulatedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedModel").field("units", &self.units).finish_non_exhaustive()
    }
}

impl Fault {
    /// Whether it happens while a package is compiled, which one that was compiled before would hide.
    pub fn is_of_compiling(self) -> bool {
        matches!(self, Self::SlowCompile(_) | Self::CompileFails | Self::DiskFull)
    }
}

impl Simulated {
    /// Core ML over an executor, with these faults.
    pub fn new(inner: impl Executor + 'static, faults: &[Fault]) -> Self {
        Self { inner: Box::new(inner), faults: faults.to_vec(), calls: 0 }
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

fn own(kind: FailureKind, error: &ExecutorError) -> Failure {
    Failure::new(kind, None, error.to_string())
}

impl Backend for Simulated {
    type Model = SimulatedModel;

    fn compile(&mut self, package: &Path, compiled: &Path) -> Result<(), Failure> {
        for fault in &self.faults {
            match fault {
                Fault::SlowCompile(time) => std::thread::sleep(*time),
                Fault::CompileFails => return Err(Failure::classify(FailureKind::Compile, 0, "")),
                Fault::DiskFull => {
                    return Err(Failure::classify(FailureKind::Compile, 640, "No space left on device"));
                }
                _ => {}
            }
        }
        let fail = |error: std::io::Error| Failure::new(FailureKind::Compile, None, error.to_string());
        std::fs::create_dir(compiled).map_err(fail)?;
        // What is compiled here is where the package lies.
        let package = package.canonicalize().map_err(fail)?;
        std::fs::write(compiled.join("package"), package.to_string_lossy().as_bytes()).map_err(fail)
    }

    fn load(
        &mut self,
        compiled: &Path,
        function: &str,
        _: &Signature,
        units: ComputeUnits,
    ) -> Result<SimulatedModel, Failure> {
        if self.has(Fault::MemoryPressure) {
            return Err(Failure::classify(FailureKind::Load, 0, "out of memory"));
        }
        let package = source(compiled)?;
        let executable =
            self.inner.load(&package, function).map_err(|error| own(FailureKind::Load, &error))?;
        Ok(SimulatedModel { executable, units })
    }

    fn plan(
        &mut self,
        compiled: &Path,
        function: &str,
        units: ComputeUnits,
    ) -> Result<Option<ComputePlan>, Failure> {
        let package = source(compiled)?;
        let read = anemone_mil::read_package(&package);
        let program = read.map_err(|error| Failure::new(FailureKind::Load, None, error.to_string()))?;
        let Some(function) = program.functions.get(function) else { return Ok(None) };
        let ne = matches!(units, ComputeUnits::CpuAndNe | ComputeUnits::All);
        let ops: Vec<PlannedOp> = function
            .ops
            .iter()
            .enumerate()
            .map(|(index, op)| {
                let operator = op.kind.clone();
                let is_constant = operator == "const" || operator.starts_with("constexpr_");
                let away = self.has(Fault::OnCpu) && index % 3 == 0;
                let device = if ne && !away { Device::Ane } else { Device::Cpu };
                let supported = if away { vec![Device::Cpu] } else { vec![Device::Cpu, Device::Ane] };
                PlannedOp {
                    name: op.outputs.first().map(|id| function.var(*id).name.clone()).unwrap_or_default(),
                    operator,
                    device: (!is_constant).then_some(device),
                    supported,
                    cost: None,
                }
            })
            .collect();
        Ok(Some(ComputePlan { ops }))
    }

    fn predict(
        &mut self,
        model: &mut SimulatedModel,
        inputs: &[(String, Array)],
        states: &mut States,
    ) -> Result<Vec<Array>, Failure> {
        let number = self.calls;
        self.calls += 1;
        let borrowed: Vec<(&str, &Array)> =
            inputs.iter().map(|(name, array)| (name.as_str(), array)).collect();
        let start = Instant::now();
        let predicted = model.executable.predict(&borrowed, states);
        let took = start.elapsed();
        let mut outputs = predicted.map_err(|error| own(FailureKind::Predict, &error))?;
        for fault in &self.faults {
            let first = outputs.iter_mut().find(|output| !output.data.is_empty());
            match (fault, first) {
                (Fault::Execution { after }, _) if number >= *after => {
                    let said =
                        "Unable to compute the prediction using a neural network model (error code: -14).";
                    return Err(Failure::classify(FailureKind::Predict, -14, said));
                }
                (Fault::Hang { after }, _) if number >= *after => loop {
                    std::thread::park();
                },
                (Fault::Nan { after }, Some(output)) if number >= *after => {
                    let middle = output.data.len() / 2;
                    output.data[middle] = f32::NAN;
                }
                (Fault::WrongOutputs, Some(output)) => output.data.reverse(),
                (Fault::Drift { after }, Some(output)) if number >= *after => {
                    for (index, value) in output.data.iter_mut().enumerate() {
                        *value += 0.5 * if index % 2 == 0 { 1.0 } else { -1.0 };
                    }
                }
                (Fault::Unsteady, Some(output)) => output.data[0] += number as f32 * 1e-3,
                _ => {}
            }
        }
        if model.units != ComputeUnits::CpuOnly && !self.has(Fault::SilentFallback) {
            return Ok(outputs);
        }
        // The processor alone takes four times as long; a function that falls back to it takes as long.
        std::thread::sleep(took * 3);
        Ok(outputs)
    }
}

fn source(compiled: &Path) -> Result<PathBuf, Failure> {
    let text = std::fs::read_to_string(compiled.join("package"));
    text.map(PathBuf::from).map_err(|error| Failure::new(FailureKind::Load, None, error.to_string()))
}
