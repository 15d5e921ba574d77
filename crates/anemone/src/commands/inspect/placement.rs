//! Where Core ML would run a bundle's or package's functions, as far as published plans tell.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anemone_ane::placement::{Chip, Confidence, Finding, Placement, Segment, predict};
use anemone_bundle::{Bundle, DecisionBundle};
use anemone_mil::read_package;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::packages::is_package;
use crate::output;

/// Where the costs come from.
const PLANNER: &str = "published for an M4 on macOS 27 and taken for every chip";
/// Segments and findings of a function that are shown; `--json` has all.
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
        return output::json(&json!({
            "chip": chip.name,
            "axis": {"longest": chip.axis, "confidence": if chip.axis_is_seen { "high" } else { "inferred" }},
            "planned_by": PLANNER,
            "functions": functions,
        }));
    }
    let mut text = format!(
        "as published for {}: nothing here was measured, and the compute plan on the machine itself has the last word\n\
         times are the planner's own estimates, {PLANNER}; they say what is placed where, not how fast it runs\n",
        chip.name
    );
    if !chip.axis_is_seen {
        let _ =
            writeln!(text, "that {} takes axes up to {} is inferred from another chip", chip.name, chip.axis);
    }
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
    match finding.confidence {
        Confidence::Inferred => "inferred",
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
    let segment = |s: &Segment| json!({"neural_engine": s.neural_engine, "ops": s.ops, "planned_ms": s.ms});
    json!({
        "package": package,
        "function": placement.function,
        "ops": placement.ops,
        "segments": placement.segments.iter().map(segment).collect::<Vec<_>>(),
        "planned_ms": placement.planned_ms,
        "planned_ms_on_cpu": placement.cpu_ms,
        "away": placement.away.iter().map(finding).collect::<Vec<_>>(),
        "warnings": placement.warnings.iter().map(finding).collect::<Vec<_>>(),
        "weight_read_ms": placement.read_ms,
    })
}

fn describe(text: &mut String, package: &str, placement: &Placement) {
    let on: usize =
        placement.segments.iter().filter(|segment| segment.neural_engine).map(|segment| segment.ops).sum();
    let _ = writeln!(
        text,
        "\n{package} {}: {on} of {} operations on the Neural Engine, {} in all in {:.3} ms ({:.3} ms on the CPU alone); weights read in {:.2} ms at least",
        placement.function,
        placement.ops,
        if placement.segments.len() == 1 {
            "1 segment".to_owned()
        } else {
            format!("{} segments", placement.segments.len())
        },
        placement.planned_ms,
        placement.cpu_ms,
        placement.read_ms
    );
    for segment in placement.segments.iter().take(SHOWN) {
        let place = if segment.neural_engine { "ane" } else { "cpu" };
        let _ = writeln!(text, "  segment {place}  {} operations, {:.3} ms", segment.ops, segment.ms);
    }
    if placement.segments.len() > SHOWN {
        let _ = writeln!(text, "  and {} more segments; --json has all", placement.segments.len() - SHOWN);
    }
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
