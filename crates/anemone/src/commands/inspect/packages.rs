//! Core ML packages, alone or in a bundle.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anemone_bundle::Bundle;
use anemone_mil::{Function, Program, Type, VarId, print_program, read_package};
use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::Args;
use crate::machine::bytes as size;
use crate::output;

/// The programs of a bundle's packages, or of one package.
pub(super) struct Packages {
    bundle: Option<Bundle>,
    programs: Vec<(String, Program)>,
    verified: bool,
}

/// What `path` holds, when it is a bundle or a package; hashes are verified when asked for.
pub(super) fn of(args: &Args, path: Option<&Path>) -> Result<Option<Packages>> {
    let bundle = path.filter(|p| Bundle::is_bundle(p)).map(Bundle::open).transpose()?;
    let package = path.filter(|p| bundle.is_none() && is_package(p));
    let flag = if args.mil { "--mil" } else { "--verify-hash" };
    if bundle.is_none() && package.is_none() {
        if args.mil || args.verify_hash {
            let what = path.map_or_else(|| "the built-in model".to_owned(), |p| p.display().to_string());
            bail!(
                "{flag}: {what} is not a bundle; convert the model first, and pass the bundle with --bundle"
            );
        }
        return Ok(None);
    }
    if let Some(path) = package {
        for (given, flag) in [
            (args.verify_hash, "--verify-hash"),
            (args.tensors, "--tensors"),
            (args.check, "--check"),
            (args.ctx.is_some(), "--ctx"),
        ] {
            if given {
                bail!("{flag}: {} is one package; pass the bundle it belongs to", path.display());
            }
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let programs = vec![(name, read_package(path)?)];
        return Ok(Some(Packages { bundle: None, programs, verified: false }));
    }
    let Some(bundle) = bundle else { return Ok(None) };
    if args.verify_hash {
        bundle.verify_hashes()?;
    }
    let entries = bundle.manifest().packages.iter();
    let programs = entries.map(|p| Ok((p.file.clone(), read_package(&bundle.path(&p.file))?)));
    let programs = programs.collect::<Result<_>>()?;
    Ok(Some(Packages { bundle: Some(bundle), programs, verified: args.verify_hash }))
}

pub(super) fn is_package(path: &Path) -> bool {
    path.join("Manifest.json").is_file() && path.join("Data").is_dir()
}

impl Packages {
    /// Whether there is no model around it to describe.
    pub(super) fn is_alone(&self) -> bool {
        self.bundle.is_none()
    }

    /// Prints the programs' text or report and nothing else.
    pub(super) fn show(&self, args: &Args) -> Result<()> {
        if args.mil {
            for (name, program) in &self.programs {
                output::data(&format!("// {name}\n{}", print_program(program)))?;
            }
            return Ok(());
        }
        if args.json {
            return output::json(&self.report());
        }
        let mut out = String::new();
        describe(&self.report(), &mut out);
        output::data(&out)
    }

    pub(super) fn report(&self) -> Value {
        let packages: Vec<Value> =
            self.programs.iter().map(|(name, program)| package(name, program)).collect();
        let Some(bundle) = &self.bundle else { return json!({"packages": packages}) };
        let manifest = bundle.manifest();
        json!({
            "format_version": manifest.format_version,
            "written_by": manifest.written_by,
            "source": manifest.source,
            "options": manifest.options,
            "host": manifest.host,
            "files": manifest.files,
            "hashes_verified": self.verified,
            "packages": packages,
        })
    }
}

/// What there is to say about one package.
pub(super) fn package(name: &str, program: &Program) -> Value {
    let used: Vec<_> = program.functions.values().map(Function::weights).collect();
    let bytes = |id: usize| {
        let ty = &program.weights[id].ty;
        ty.dtype.byte_len(ty.numel()).unwrap_or(0) as u64
    };
    let users = |id: usize| used.iter().filter(|ids| ids.contains(&anemone_mil::WeightId(id))).count();
    let all = 0..program.weights.len();
    let mut dtypes: BTreeMap<&str, u64> = BTreeMap::new();
    for id in all.clone() {
        *dtypes.entry(program.weights[id].ty.dtype.name()).or_default() += bytes(id);
    }
    json!({
        "package": name,
        "specification_version": program.spec_version,
        "default_function": program.default_function,
        "weights": program.weights.len(),
        "weight_bytes": all.clone().map(bytes).sum::<u64>(),
        "weight_bytes_by_dtype": dtypes,
        "shared_weight_bytes": all.filter(|id| users(*id) > 1).map(bytes).sum::<u64>(),
        "functions": program.functions.values().map(function).collect::<Vec<_>>(),
    })
}

fn function(f: &Function) -> Value {
    let port = |id: &VarId| {
        let var = f.var(*id);
        let ty = var.ty.tensor();
        json!({
            "name": var.name,
            "dtype": ty.dtype.name(),
            "shape": ty.shape,
            "state": matches!(var.ty, Type::State(_)),
        })
    };
    json!({
        "name": f.name,
        "inputs": f.inputs.iter().map(port).collect::<Vec<_>>(),
        "outputs": f.outputs.iter().map(port).collect::<Vec<_>>(),
        "ops": f.compute_ops().count(),
        "op_counts": f.op_counts(),
    })
}

/// The report for people.
pub(super) fn describe(report: &Value, out: &mut String) {
    let text = |value: &Value| value.as_str().unwrap_or("").to_string();
    let bytes = |value: &Value| size(value.as_u64().unwrap_or(0));
    if let Some(options) = report.get("options") {
        let source = &report["source"];
        let _ = writeln!(
            out,
            "bundle format {} by {}, from {} ({})",
            report["format_version"],
            text(&report["written_by"]),
            text(&source["name"]),
            text(&source["model_type"])
        );
        let _ = writeln!(out, "options {options}");
        for (file, hash) in source["sha256"].as_object().into_iter().flatten() {
            let _ = writeln!(out, "source {file} sha256 {}", text(hash));
        }
        if report["hashes_verified"] == true {
            let _ = writeln!(out, "every file is what the manifest's hashes say");
        }
        out.push('\n');
    }
    for (i, package) in report["packages"].as_array().into_iter().flatten().enumerate() {
        let gap = if i > 0 { "\n" } else { "" };
        let _ = writeln!(
            out,
            "{gap}{} (specification {}): {} weights, {}, {} of them used by several functions",
            text(&package["package"]),
            package["specification_version"],
            package["weights"],
            bytes(&package["weight_bytes"]),
            bytes(&package["shared_weight_bytes"])
        );
        for function in package["functions"].as_array().into_iter().flatten() {
            let _ = writeln!(out, "  {}: {} operations", text(&function["name"]), function["ops"]);
            for (label, key) in [("in ", "inputs"), ("out", "outputs")] {
                for port in function[key].as_array().into_iter().flatten() {
                    let state = if port["state"] == true { " state" } else { "" };
                    let (name, dtype) = (text(&port["name"]), text(&port["dtype"]));
                    let _ = writeln!(out, "    {label} {name} {dtype}{}{state}", port["shape"]);
                }
            }
            let counts = function["op_counts"].as_object().into_iter().flatten();
            let counts: Vec<String> = counts.map(|(kind, n)| format!("{kind} {n}")).collect();
            let _ = writeln!(out, "    ops {}", counts.join(", "));
        }
    }
}
