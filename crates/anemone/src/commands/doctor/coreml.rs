//! What Core ML will find on this machine: its version, the disk, what was compiled, and what others reported of such machines.

use std::path::{Path, PathBuf};
use std::process::Command;

use anemone_bundle::{Bundle, DecisionBundle, PackageEntry};
use anemone_coreml::{LEAST_MACOS, Report, Traits, check_macos, chip_of, known_bad};
use anyhow::Result;
use serde_json::{Value, json};

use super::{Finding, Status, info, size};
use crate::engine::compiled_models;
use crate::machine;

/// What a machine tells of itself for Core ML; what it does not is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mac {
    /// As `m4max`.
    pub(super) chip: Option<String>,
    pub(super) macos: Option<(u64, u64)>,
}

impl Mac {
    pub(super) fn here() -> Self {
        if !cfg!(target_os = "macos") {
            return Self::default();
        }
        let said = |program: &str, words: &[&str]| -> Option<String> {
            let output = Command::new(program).args(words).output().ok().filter(|o| o.status.success())?;
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        Self {
            chip: said("sysctl", &["-n", "machdep.cpu.brand_string"]).and_then(|name| chip_of(&name)),
            macos: said("sw_vers", &["-productVersion"]).and_then(|text| version(&text)),
        }
    }

    /// What was found, of the machine and of the bundle at `path`.
    pub(super) fn findings(&self, path: Option<&Path>) -> Vec<Finding> {
        let mut findings = vec![self.system(), cache()];
        if let Some((major, _)) = self.macos {
            let reports = known_bad(self.chip.as_deref(), Some(major), None);
            findings.extend(reports.iter().map(|report| warn("known problem", report)));
        }
        if let Some(bundle) = path.and_then(|path| of_bundle(path).ok().flatten()) {
            findings.push(disk(&bundle));
            let macos = self.macos.map(|(major, _)| major);
            let reports = known_bad(self.chip.as_deref(), macos, Some(&bundle.traits));
            findings.extend(reports.iter().map(|report| warn("bundle", report)));
        }
        findings
    }

    fn system(&self) -> Finding {
        let Some((major, minor)) = self.macos else {
            let (major, minor) = LEAST_MACOS;
            return info(
                "core ml",
                format!("not here; macOS {major}.{minor} or later has what bundles need"),
            );
        };
        let chip = self.chip.as_deref().unwrap_or("a chip it does not tell");
        match check_macos(major, minor) {
            Ok(()) => Finding {
                name: "core ml",
                status: Status::Ok,
                detail: format!("macOS {major}.{minor} on {chip}; anemone selftest tries it"),
            },
            Err(failure) => Finding { name: "core ml", status: Status::Fail, detail: failure.to_string() },
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({"chip": self.chip, "macos": self.macos.map(|(major, minor)| format!("{major}.{minor}"))})
    }
}

fn version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.trim().split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next().flatten().unwrap_or(0)))
}

fn warn(name: &'static str, report: &Report) -> Finding {
    let Report { problem, remedy, source, confidence } = report;
    let detail = format!("{problem}; {remedy} [{confidence} confidence; {source}]");
    Finding { name, status: Status::Warn, detail }
}

/// Compiled models, and the room for more.
fn cache() -> Finding {
    let models = match compiled_models(None, false) {
        Ok(models) => models,
        Err(error) => {
            return Finding { name: "compiled models", status: Status::Warn, detail: format!("{error:#}") };
        }
    };
    let listed = match models.list() {
        Ok(listed) => listed,
        Err(error) => {
            return Finding { name: "compiled models", status: Status::Warn, detail: error.to_string() };
        }
    };
    let bytes: u64 = listed.iter().map(|model| model.bytes).sum();
    let free = free(models.dir());
    let tight = free.is_some_and(|free| free < LEAST_FREE);
    let detail = format!(
        "{}, {} in {}{}{}",
        models.dir().display(),
        listed.len(),
        size(bytes),
        free.map(|free| format!(", {} free", size(free))).unwrap_or_default(),
        if tight {
            "; compiling needs more: anemone cache gc --all removes those, or name another disk with --compiled-models"
        } else {
            ""
        }
    );
    Finding { name: "compiled models", status: if tight { Status::Warn } else { Status::Ok }, detail }
}

/// Free bytes below which compiling a model is likely to fail.
const LEAST_FREE: u64 = 4 << 30;

/// Free bytes where a directory is, or will be.
fn free(dir: &Path) -> Option<u64> {
    let there = dir.ancestors().find(|dir| dir.is_dir())?;
    let output = Command::new("df").arg("-Pk").arg(there).output().ok().filter(|o| o.status.success())?;
    free_of(&String::from_utf8_lossy(&output.stdout))
}

/// The fourth column of what `df -Pk` prints, in bytes.
fn free_of(table: &str) -> Option<u64> {
    let line = table.lines().nth(1)?;
    let kib: u64 = line.split_whitespace().rev().nth(2)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// A bundle's packages as Core ML meets them.
struct Needs {
    traits: Traits,
    bytes: u64,
}

fn of_bundle(path: &Path) -> Result<Option<Needs>> {
    let needs = |packages: &[PackageEntry], precision: Option<String>, states: usize| {
        let (largest, bytes) = packages.iter().fold((0, 0), |(most, sum), package| {
            (package.weight_bytes.max(most), sum + package.weight_bytes)
        });
        Some(Needs { traits: Traits { precision, states, largest }, bytes })
    };
    if DecisionBundle::is_at(path) {
        let bundle = DecisionBundle::open(path)?;
        let m = bundle.manifest();
        return Ok(needs(&m.packages, m.compression.as_ref().map(|c| c.precision.clone()), 0));
    }
    if !Bundle::is_bundle(path) {
        return Ok(None);
    }
    let bundle = Bundle::open(path)?;
    let m = bundle.manifest();
    let states = m.plan.chunks.iter().map(|chunk| chunk.states.len()).max().unwrap_or(0);
    Ok(needs(&m.packages, m.compression.as_ref().map(|c| c.precision.clone()), states))
}

/// What compiling a bundle takes of the disk: its packages compiled, and as much again while the compiler is at work.
fn disk(needs: &Needs) -> Finding {
    let wanted = 2 * needs.bytes;
    let dir: Option<PathBuf> = compiled_models(None, false).ok().map(|models| models.dir().to_path_buf());
    let free = dir.as_deref().and_then(free);
    let short = free.is_some_and(|free| free < wanted);
    let remedy = if short { "; free some, or name another disk with --compiled-models" } else { "" };
    let detail = format!(
        "compiling it takes about {} of disk{}{remedy}",
        size(wanted),
        free.map(|free| format!(", {} are free", machine::bytes(free))).unwrap_or_default()
    );
    Finding { name: "bundle", status: if short { Status::Fail } else { Status::Ok }, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_told_what_is_missing_and_what_was_reported() {
        let of = |chip: &str, macos| {
            let mac = Mac { chip: Some(chip.into()), macos: Some(macos) };
            mac.findings(None)
                .iter()
                .map(|f| format!("{} {} {}", f.status.name(), f.name, f.detail))
                .collect::<Vec<_>>()
        };
        let old = of("m1", (14, 7));
        assert!(
            old[0].starts_with("fail core ml") && old[0].contains("macOS 15.0") && old[0].contains("update"),
            "{old:?}"
        );
        let new = of("m4", (27, 0));
        assert!(
            new[0].starts_with("ok core ml") && new.iter().any(|f| f.starts_with("warn known problem")),
            "{new:?}"
        );
        let none = Mac::default().findings(None);
        assert!(none.len() == 2 && none[0].detail.contains("not here"), "{none:?}");
    }

    #[test]
    fn versions_and_disks_are_read() {
        assert_eq!((version("15.3.1\n"), version("27"), version("x")), (Some((15, 3)), Some((27, 0)), None));
        let table = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/disk3s1 100 60 40 60% /Volumes/a\n";
        assert_eq!((free_of(table), free_of("nothing")), (Some(40 << 10), None));
        assert!(free(Path::new("/")).is_some());
    }
}
