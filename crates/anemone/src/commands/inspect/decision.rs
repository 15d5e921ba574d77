//! Decision models, as checkpoints and as bundles.

use std::fmt::Write as _;
use std::process::ExitCode;

use anemone_bundle::DecisionBundle;
use anemone_checkpoint::DecisionCheckpoint;
use anemone_decide::{Calibration, Kind};
use anemone_mil::{Program, print_program, read_package};
use anemone_models::{Config, Laya};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::{Args, check, dtypes, packages, tensor_lines, tensors, weights_and_files};
use crate::cli::Shell;
use crate::machine::bytes as size;
use crate::{model, output};

/// A decision model and where it lies.
pub(super) struct Source {
    bundle: Option<(DecisionBundle, Program)>,
    checkpoint: DecisionCheckpoint,
}

/// The decision model that `--model` or `--bundle` names, if it is one.
pub(super) fn find(args: &Args, shell: &Shell) -> Result<Option<Source>> {
    let bundle = args.bundle.bundle.clone().filter(|path| DecisionBundle::is_at(path));
    let named = args.model.model.clone().filter(|path| path.exists());
    let named = named.filter(|path| DecisionBundle::is_at(path) || DecisionCheckpoint::is_at(path));
    let path = if args.bundle.bundle.is_some() { bundle } else { named };
    let Some(path) = path else { return Ok(None) };
    model::locate(&args.model, shell)?;
    ensure!(args.ctx.is_none(), "--ctx: a decision model has no cache to size; leave it out");
    let label = || path.display().to_string();
    if DecisionBundle::is_at(&path) {
        let bundle = DecisionBundle::open(&path)?;
        if args.verify_hash {
            bundle.verify_hashes()?;
        }
        let program = read_package(&bundle.package())?;
        let checkpoint = bundle.checkpoint().with_context(label)?;
        return Ok(Some(Source { bundle: Some((bundle, program)), checkpoint }));
    }
    let flag = if args.mil { "--mil" } else { "--verify-hash" };
    if args.mil || args.verify_hash {
        bail!(
            "{flag}: {} is not a bundle; convert the model first, and pass the bundle with --bundle",
            path.display()
        );
    }
    Ok(Some(Source { bundle: None, checkpoint: DecisionCheckpoint::open(&path).with_context(label)? }))
}

impl Source {
    pub(super) fn show(&self, args: &Args) -> Result<ExitCode> {
        if let Some((bundle, program)) = self.bundle.as_ref().filter(|_| args.mil) {
            let name = &bundle.manifest().packages[0].file;
            output::data(&format!("// {name}\n{}", print_program(program)))?;
            return Ok(ExitCode::SUCCESS);
        }
        let report = self.report(args)?;
        if args.json {
            output::json(&Value::Object(report))?;
        } else {
            output::data(&text(&report))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn report(&self, args: &Args) -> Result<Map<String, Value>> {
        let checkpoint = &self.checkpoint;
        let (agent, weights) = (checkpoint.agent_config(), checkpoint.weights());
        let checked = args.check.then(|| check(&*weights)).transpose()?;
        let laya = Laya::load(agent, checkpoint.encoder_config(), &*weights)
            .with_context(|| checkpoint.name().to_owned())?;
        let config = Config::of(agent, "rl_agent_config.json");
        let mut report = Map::new();
        let mut put = |key: &str, value: Value| report.insert(key.to_owned(), value);
        put("model", checkpoint.name().into());
        put("model_type", "laya".into());
        put("parameters", laya.parameters().into());
        put("hidden_size", laya.encoder.hidden_size.into());
        put("vocab_size", laya.encoder.vocab_size.into());
        put("max_position_embeddings", laya.encoder.max_position_embeddings.into());
        put("max_len", config.count("max_len")?.unwrap_or(512).into());
        put("head_max_len", config.count("head_max_len")?.unwrap_or(192).into());
        put("option_layout", config.text("option_layout")?.unwrap_or("sequential").into());
        put("actions", laya.actions().into());
        put("calibration", calibration(&Calibration::of_config(agent)?));
        let layer = |layer: &anemone_models::EncoderLayer| {
            json!({"path": layer.path, "heads": layer.attention.heads, "head_dim": layer.attention.head_dim,
                "window": layer.attention.radius, "rope_theta": layer.attention.rope.as_ref().map(|rope| rope.theta)})
        };
        put("layers", laya.encoder.layers.iter().map(layer).collect());
        put("head_layers", laya.head.iter().map(layer).collect());
        put("dtypes", dtypes(&*weights));
        let files = checkpoint.files().iter().map(|f| json!({"name": f.name, "bytes": f.bytes}));
        put("files", files.collect());
        if args.tensors {
            put("tensors", tensors(&*weights));
        }
        if let Some(count) = checked {
            put("check", json!({"tensors": count, "finite": true}));
        }
        if let Some((bundle, program)) = &self.bundle {
            put("bundle", bundle_report(bundle, program, args.verify_hash)?);
        }
        Ok(report)
    }
}

/// Temperatures as they are used, inside their bounds.
fn calibration(calibration: &Calibration) -> Value {
    let temperatures = calibration.temperatures();
    let kinds =
        Kind::ALL.iter().zip(temperatures.kinds()).map(|(kind, t)| (kind.name().to_owned(), t.into()));
    let buckets = temperatures.buckets().iter().map(|(key, t)| (key.clone(), (*t).into()));
    json!({"temperature": kinds.collect::<Map<_, Value>>(), "temperature_by_options": buckets.collect::<Map<_, Value>>()})
}

fn bundle_report(bundle: &DecisionBundle, program: &Program, verified: bool) -> Result<Value> {
    let manifest = bundle.manifest();
    let entry = &manifest.packages[0];
    let operations = |name: &str| program.functions.get(name).map(|f| f.compute_ops().count());
    let function = |f: &anemone_ane::LayaFunctions| {
        json!({"length": f.length, "name": f.name, "operations": operations(&f.name),
            "packed": f.packed.as_ref().map(|name| json!({"name": name, "operations": operations(name)}))})
    };
    let host = |name: &String| bundle.dir().join(name).metadata().map(|meta| meta.len());
    let mut host_files: Vec<&String> = manifest.host.values().map(|tensor| &tensor.file).collect();
    host_files.sort();
    host_files.dedup();
    let host_bytes = host_files.into_iter().map(host).sum::<std::io::Result<u64>>();
    Ok(json!({
        "format": manifest.format,
        "format_version": manifest.format_version,
        "written_by": manifest.written_by,
        "source": manifest.source,
        "options": manifest.options,
        "lengths": manifest.functions.iter().map(function).collect::<Vec<_>>(),
        "weight_file_bytes": entry.weight_bytes,
        "host_bytes": host_bytes.with_context(|| bundle.dir().display().to_string())?,
        "host": manifest.host,
        "files": manifest.files,
        "package_hash": entry.hash,
        "hashes_verified": verified,
        "packages": [packages::package(&entry.file, program)],
    }))
}

/// The report for people.
fn text(report: &Map<String, Value>) -> String {
    let mut out = String::new();
    let get = |key: &str| report.get(key).unwrap_or(&Value::Null);
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let list = |value: &Value| -> String {
        let entries = value.as_object().into_iter().flatten();
        entries.map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
    };
    let _ = writeln!(out, "{} (laya)", plain(get("model")));
    let _ = writeln!(
        out,
        "{} parameters, hidden {}, vocabulary {}, positions {}",
        get("parameters"),
        get("hidden_size"),
        get("vocab_size"),
        get("max_position_embeddings")
    );
    let _ = writeln!(
        out,
        "rows of {} tokens, {} of them for a question, options {}, {} actions",
        get("max_len"),
        get("head_max_len"),
        plain(get("option_layout")),
        get("actions")
    );
    let temperatures = get("calibration");
    let _ = writeln!(out, "temperatures: {}", list(&temperatures["temperature"]));
    let buckets = list(&temperatures["temperature_by_options"]);
    if !buckets.is_empty() {
        let _ = writeln!(out, "by options: {buckets}");
    }
    for (title, key) in [("layers", "layers"), ("decision head", "head_layers")] {
        let _ = writeln!(out, "\n{title}");
        for (i, layer) in get(key).as_array().into_iter().flatten().enumerate() {
            let sees =
                layer["window"].as_u64().map_or("all".to_owned(), |radius| format!("{radius} to each side"));
            let rope =
                layer["rope_theta"].as_f64().map_or("no rope".to_owned(), |theta| format!("rope {theta:?}"));
            let _ = writeln!(
                out,
                "  {i:>3}  {} heads of {}, sees {sees}, {rope}",
                layer["heads"], layer["head_dim"]
            );
        }
    }
    weights_and_files(report, &mut out);
    if let Some(bundle) = report.get("bundle") {
        let _ = writeln!(out, "\nlengths");
        for f in bundle["lengths"].as_array().into_iter().flatten() {
            let _ = writeln!(
                out,
                "  {:>5} tokens  {}, {} operations",
                f["length"].to_string(),
                plain(&f["name"]),
                f["operations"]
            );
            if let Some(packed) = f["packed"].as_object() {
                let _ = writeln!(
                    out,
                    "  {:>5}         {}, several questions in a row, {} operations",
                    "",
                    plain(&packed["name"]),
                    packed["operations"]
                );
            }
        }
        let bytes = |key: &str| size(bundle[key].as_u64().unwrap_or(0));
        let _ = writeln!(
            out,
            "weights in the package {}, on the host {}\n",
            bytes("weight_file_bytes"),
            bytes("host_bytes")
        );
        for (file, hash) in bundle["files"].as_object().into_iter().flatten() {
            let _ = writeln!(out, "{file} sha256 {}", plain(hash));
        }
        packages::describe(bundle, &mut out);
    }
    tensor_lines(report, &mut out);
    out
}
