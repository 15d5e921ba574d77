//! What Core ML does, as a trait: implemented by the real one on a Mac and by a simulated one anywhere.

use std::fmt;
use std::path::Path;

use anemone_mil::{Array, Signature, States};

use crate::{ComputePlan, ComputeUnits};

/// Core ML, or what stands for it. It and its models stay on the thread that made it.
pub trait Backend {
    /// A loaded function.
    type Model;

    /// Compiles a package into a directory that does not exist yet.
    fn compile(&mut self, package: &Path, compiled: &Path) -> Result<(), Failure>;

    /// Loads a function of a compiled package, which may take from seconds to minutes the first time.
    fn load(
        &mut self,
        compiled: &Path,
        function: &str,
        signature: &Signature,
        units: ComputeUnits,
    ) -> Result<Self::Model, Failure>;

    /// Where each operation of a function would run; none where the system does not tell.
    fn plan(
        &mut self,
        compiled: &Path,
        function: &str,
        units: ComputeUnits,
    ) -> Result<Option<ComputePlan>, Failure>;

    /// Runs a function once. Inputs are complete and of the right shapes; outputs come in the order of the signature.
    fn predict(
        &mut self,
        model: &mut Self::Model,
        inputs: &[(String, Array)],
        states: &mut States,
    ) -> Result<Vec<Array>, Failure>;
}

/// What went wrong inside Core ML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure it is, as far as can be told.
    pub kind: FailureKind,
    /// Number of the error, where there is one.
    pub code: Option<i64>,
    /// What the system says of it; empty when it says nothing.
    pub message: String,
}

/// Kinds of failures, each with a remedy of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The system is too old.
    System,
    /// The package cannot be read or compiled.
    Compile,
    /// The disk is full.
    DiskFull,
    /// There is not enough memory.
    Memory,
    /// The function cannot be loaded.
    Load,
    /// The Neural Engine could not run the program (error -14 and its like).
    Execution,
    /// A prediction failed for another reason.
    Predict,
}

/// The oldest macOS whose Core ML has what is called here: functions by name, states, and plans of programs.
pub const LEAST_MACOS: (u64, u64) = (15, 0);

/// Errors for a macOS that is too old, by its version.
pub fn check_macos(major: u64, minor: u64) -> Result<(), Failure> {
    if (major, minor) >= LEAST_MACOS {
        return Ok(());
    }
    let (least, least_minor) = LEAST_MACOS;
    let problem = format!("macOS {least}.{least_minor} or later is needed, this is {major}.{minor}");
    Err(Failure::new(FailureKind::System, None, problem))
}

impl Failure {
    /// A failure of a kind, with what the system says.
    pub fn new(kind: FailureKind, code: Option<i64>, message: impl Into<String>) -> Self {
        Self { kind, code, message: message.into() }
    }

    /// The kind of an error of Core ML that happened while doing `what`, by its number and words.
    pub fn classify(what: FailureKind, code: i64, message: &str) -> Self {
        let lower = message.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        let kind = if says(&["no space left", "disk full", "disk is full", "out of space"]) || code == 640 {
            FailureKind::DiskFull
        } else if says(&["out of memory", "cannot allocate", "memory pressure", "insufficient memory"]) {
            FailureKind::Memory
        } else if what == FailureKind::Predict
            && (code == -14 || says(&["code: -14", "error code -14", "(-14)", "0x1d"]))
        {
            FailureKind::Execution
        } else {
            what
        };
        Self::new(kind, Some(code), message)
    }

    /// What can be done about it.
    pub fn remedy(&self) -> &'static str {
        match self.kind {
            FailureKind::System => "update the system, or use --engine cpu",
            FailureKind::Compile => {
                "check the package with anemone inspect, update macOS, or run it with --engine cpu"
            }
            FailureKind::DiskFull => {
                "free some space (anemone cache gc removes compiled models) and try again"
            }
            FailureKind::Memory => "end other programs, take a smaller model, or run it with --engine cpu",
            FailureKind::Load => {
                "try again with --compute-units cpu_only to see whether the Neural Engine is at fault, or use --engine cpu"
            }
            FailureKind::Execution => {
                "the compiled model may be stale: anemone cache gc --all and try again; convert with --cache io if it has states"
            }
            FailureKind::Predict => "try again, or use --engine cpu",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FailureKind::System => "this system's Core ML lacks what is needed",
            FailureKind::Compile => "Core ML cannot compile the package",
            FailureKind::DiskFull => "the disk is full",
            FailureKind::Memory => "there is not enough memory for the model",
            FailureKind::Load => "Core ML cannot load the function",
            FailureKind::Execution => "the Neural Engine could not run the program",
            FailureKind::Predict => "the prediction failed",
        };
        f.write_str(what)?;
        match (self.code, self.message.trim()) {
            (Some(code), "") => write!(f, " (error {code}, no reason given)")?,
            (None, "") => f.write_str(" (no reason given)")?,
            (Some(code), said) => write!(f, " (error {code}: {said})")?,
            (None, said) => write!(f, " ({said})")?,
        }
        write!(f, "; {}", self.remedy())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_that_is_too_old_is_told_what_is_needed() {
        assert!(check_macos(15, 0).is_ok() && check_macos(27, 1).is_ok());
        let error = check_macos(14, 7).unwrap_err().to_string();
        assert!(
            error.contains("macOS 15.0") && error.contains("14.7") && error.contains("update"),
            "{error}"
        );
    }

    #[test]
    fn errors_are_sorted_by_number_and_words() {
        let kind = |what, code, said| Failure::classify(what, code, said).kind;
        assert_eq!(kind(FailureKind::Predict, -14, ""), FailureKind::Execution);
        assert_eq!(
            kind(FailureKind::Predict, 0, "Unable to compute (error code: -14)."),
            FailureKind::Execution
        );
        assert_eq!(kind(FailureKind::Load, -14, ""), FailureKind::Load);
        assert_eq!(kind(FailureKind::Compile, 640, ""), FailureKind::DiskFull);
        assert_eq!(
            kind(FailureKind::Compile, 3, "write failed: No space left on device"),
            FailureKind::DiskFull
        );
        assert_eq!(kind(FailureKind::Load, 0, "Out of memory"), FailureKind::Memory);
        assert_eq!(kind(FailureKind::Predict, 11, "cancelled"), FailureKind::Predict);
        let text = Failure::classify(FailureKind::Compile, 0, " ").to_string();
        assert!(text.contains("no reason given") && text.contains("--engine cpu"), "{text}");
    }
}
