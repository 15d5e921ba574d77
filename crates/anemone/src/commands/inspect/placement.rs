//! Where Core ML would run a bundle's or package's functions, as far as published plans tell.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anemone_ane::placement::{Chip, Confidence, Finding, Placement, predict};
use anemone_bundle::{Bundle, DecisionBundle};
use anemone_mil::read_package;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::packages::is_package;
use crate::output;

/// Findings of a function that are shown; `--json` has all.
const SHOWN: usize = 8;

/// Predicts every function of what lies at `path` on a chip.
pub(super) fn show(path: Option<&Path>, chip: &str, as_json: bool) -> Result<()> {
    let chip = Chip::named(chip)?;
    let mut predicted = Vec::new();
    for package in packages(path)? {
        let program = read_package(&package)?;
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for function in program.functions.values() {
            predicted.push((name.clone(), predict(&program, function, &chip)));
        }
    }
    if as_json {
        let functions: Vec<Value> =
            predicted.iter().map(|(package, placement)| report(package, placement)).collect();
        return output::json(&json!({"chip": chip.name, "functions": functions}));
    }
    let mut text = format!(
        "as published for {}: nothing here was measured, and the compute plan on the machine itself has the last word\n",
        chip.name
    );
    for (package, placement) in &predicted {
        describe(&mut text, package, placement);
    }
    output::data(&text)
}

fn packages(path: Option<&Path>) -> Result<Vec<PathBuf>> {
    let path = path.context(
        "--placement: the built-in model is no bundle; make one with anemone convert --out DIR and pass it with --bundle",
    )?;
    if DecisionBundle::is_at(path) {
        return Ok(vec![DecisionBundle::open_candidate(path)?.package()]);
    }
    if Bundle::is_bundle(path) {
        let bundle = Bundle::open_candidate(path)?;
        return Ok(bundle.manifest().packages.iter().map(|package| bundle.path(&package.file)).collect());
    }
    if is_package(path) {
        return Ok(vec![path.to_path_buf()]);
    }
    bail!("--placement: {} is neither a bundle nor a package; convert the model first", path.display())
}

fn confidence(finding: &Finding) -> &'static str {
    match finding.rule.confidence() {
        Confidence::High => "high",
        Confidence::Medium => "medium",
        Confidence::Low => "low",
    }
}

fn report(package: &str, placement: &Placement) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "op": finding.op,
            "operator": finding.operator,
            "rule": format!("{:?}", finding.rule).to_lowercase(),
            "problem": finding.problem,
            "confidence": confidence(finding),
            "source": finding.rule.source(),
        })
    };
    json!({
        "package": package,
        "function": placement.function,
        "ops": placement.ops,
        "segments": placement.segments.iter().map(|s| json!({"neural_engine": s.neural_engine, "ops": s.ops})).collect::<Vec<_>>(),
        "away": placement.away.iter().map(finding).collect::<Vec<_>>(),
        "warnings": placement.warnings.iter().map(finding).collect::<Vec<_>>(),
        "weight_read_ms": placement.read_ms,
    })
}

fn describe(text: &mut String, package: &str, placement: &Placement) {
    let away = placement.away.len();
    let on = placement.segments.iter().filter(|segment| segment.neural_engine).count();
    let _ = writeln!(
        text,
        "\n{package} {}: {} of {} operations on the Neural Engine, in {on} segments; weights read in {:.2} ms at least",
        placement.function,
        placement.ops - away,
        placement.ops,
        placement.read_ms
    );
    let all =
        placement.away.iter().map(|f| ("leaves", f)).chain(placement.warnings.iter().map(|f| ("beware", f)));
    for (what, finding) in all.clone().take(SHOWN) {
        let _ = writeln!(
            text,
            "  {what}  {} ({}): {} [{} confidence; {}]",
            finding.op,
            finding.operator,
            finding.problem,
            confidence(finding),
            finding.rule.source()
        );
    }
    let more = all.count().saturating_sub(SHOWN);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more; --json has all");
    }
}
