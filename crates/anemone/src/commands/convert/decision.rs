//! Decision models: one package, a function for each length.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anemone_ane::{LayaFunctions, LayaOptions, LocalAttention, OPTION_SLOTS, lower_laya, multiply_adds};
use anemone_bundle::{DECISION_FILES, DecisionBundle, DecisionOptions, Role, Source, Writer, file_sha256};
use anemone_checkpoint::DecisionCheckpoint;
use anemone_decide::{Calibration, Vocabulary};
use anemone_kernels::Context as Kernels;
use anemone_mil::{DataType, Program};
use anemone_models::Laya;
use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;

use super::super::calibrate::Subject;
use super::super::compress::{check_some, line, summary};
use super::{Args, AttentionName, Written, canary, directory_bytes};
use crate::cli::Shell;
use crate::{demo, machine, model, output};

const LENGTHS: [usize; 3] = [64, 96, 128];
const TILE: usize = 128;

pub(super) fn run(args: &Args, start: Instant, shell: &Shell) -> Result<ExitCode> {
    let checkpoint = Arc::new(model::open_decision(&args.model, shell)?);
    let agent = checkpoint.agent_config();
    if agent.get("option_layout").and_then(serde_json::Value::as_str) == Some("parallel") {
        bail!(
            "rl_agent_config.json: `option_layout` is `parallel`, which has no Neural Engine form here; run the model with \
             decide, on the CPU engine"
        );
    }
    let options = options(args)?;
    let weights = checkpoint.weights();
    let laya = Laya::load(agent, checkpoint.encoder_config(), &*weights)
        .with_context(|| checkpoint.name().to_owned())?;
    args.compress.check_names(&laya.weights().iter().map(|w| w.name.as_str()).collect::<Vec<_>>())?;
    let (program, records) = lower_laya(&laya, &|w| w.load(&*weights), &options)?;
    let host_bytes: usize = laya.host_weights().iter().map(|(_, w)| 2 * w.shape.numel()).sum();
    if args.dry_run {
        report(args, &checkpoint, &laya, &options, &program, host_bytes, None)?;
        return Ok(ExitCode::SUCCESS);
    }
    // What the bundle could not be asked with is found before it is written.
    Calibration::of_config(agent)?;
    Vocabulary::new(&checkpoint.tokenizer_json()?, checkpoint.tokenizer_config())
        .with_context(|| checkpoint.name().to_owned())?;
    let mut writer =
        Writer::create(&args.out, args.force).with_context(|| format!("--out {}", args.out.display()))?;
    let compressor = args.compress.encoding()?.map(|encoding| -> Result<_> {
        let threads = machine::threads();
        let subject =
            |path: &Path, _| Subject::decision(("--calibrate", path), Arc::clone(&checkpoint), threads);
        let guide = args.compress.guide(encoding, threads, subject, shell)?;
        writer.compressed(args.compress.record(encoding, None, guide.as_ref()));
        Ok(args.compress.compressor(encoding, Kernels::new(threads), guide, |_| ()))
    });
    let compressor = compressor.transpose()?;
    let sha256 = std::thread::scope(|scope| -> Result<_> {
        // Hashing the source reads every byte once more, so it runs beside the writing.
        let hashes = scope.spawn(|| sha256(&checkpoint));
        let package = match &compressor {
            None => writer.package("body.mlpackage", Role::Body, &program, records)?,
            Some(compressor) => {
                let records: Vec<_> = records.into_iter().map(|r| r.into_iter().collect()).collect();
                writer.compressed_package("body.mlpackage", Role::Body, &program, &records, compressor)?
            }
        };
        writer.add(package);
        for (name, weight) in laya.host_weights() {
            let tensor = writer.host_tensor(name, &weight.name, &weight.load(&*weights)?)?;
            writer.add_host_tensor(tensor);
        }
        hashes.join().map_err(|_| anyhow!("the conversion ended early; please report this"))?
    })?;
    for (kept, name) in DECISION_FILES {
        let bytes = checkpoint.file(name)?.with_context(|| format!("{}: no {name}", checkpoint.name()))?;
        writer.file(kept, &bytes)?;
    }
    let source = Source { name: checkpoint.name().into(), model_type: "laya".into(), sha256 };
    let tensors = laya.weights().into_iter().map(|w| (w.name.clone(), w.shape.to_vec())).collect();
    let written_by = format!("anemone {}", env!("CARGO_PKG_VERSION"));
    let kept = DecisionOptions {
        tile: tile(options.local),
        option_slots: OPTION_SLOTS,
        spec_version: options.spec_version,
    };
    if let Some(compression) = writer.compression() {
        check_some(compression)?;
    }
    let manifest = writer.finish_decision(source, kept, options.functions(), tensors, &written_by)?;
    if !args.no_canary {
        canary::record_decision(&DecisionBundle::open(&args.out)?, machine::threads())?;
    }
    let done = Written { seconds: start.elapsed().as_secs_f64(), compression: manifest.compression };
    report(args, &checkpoint, &laya, &options, &program, host_bytes, Some(&done))?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &Args) -> Result<LayaOptions> {
    let local = match (args.attention, args.tile) {
        (Some(AttentionName::Tiled), tile) => LocalAttention::Tiled(tile.unwrap_or(TILE)),
        (_, None) => LocalAttention::Dense,
        (_, Some(_)) => bail!("--tile is of --attention tiled; add that, or leave it out"),
    };
    let mut lengths = if args.length.is_empty() { LENGTHS.to_vec() } else { args.length.clone() };
    lengths.sort_unstable();
    Ok(LayaOptions {
        lengths,
        spec_version: args.target.spec_version(),
        local,
        precision: DataType::Float16,
        pack: args.pack,
    })
}

fn tile(local: LocalAttention) -> Option<usize> {
    match local {
        LocalAttention::Dense => None,
        LocalAttention::Tiled(tile) => Some(tile),
    }
}

/// SHA-256 of the checkpoint's files, by name.
pub(in crate::commands) fn sha256(checkpoint: &DecisionCheckpoint) -> Result<BTreeMap<String, String>> {
    let Some(dir) = checkpoint.dir() else { return Ok(demo::decision::sha256()) };
    checkpoint.files().iter().map(|f| Ok((f.name.clone(), file_sha256(&dir.join(&f.name))?))).collect()
}

fn report(
    args: &Args,
    checkpoint: &DecisionCheckpoint,
    laya: &Laya,
    options: &LayaOptions,
    program: &Program,
    host_bytes: usize,
    written: Option<&Written>,
) -> Result<()> {
    let seconds = written.map(|w| w.seconds);
    let compression = written.and_then(|w| w.compression.as_ref());
    let weight_bytes: usize = program.weights.iter().map(|w| 2 * w.ty.shape.iter().product::<usize>()).sum();
    // Tiles as large as asked for, or as they would be.
    let tiles = LocalAttention::Tiled(tile(options.local).unwrap_or(TILE));
    let operations_of =
        |name: &str| -> usize { program.functions.get(name).map_or(0, |f| f.op_counts().values().sum()) };
    let of = |function: &LayaFunctions| {
        let operations = operations_of(&function.name);
        let (linear, dense) = multiply_adds(laya, function.length, LocalAttention::Dense);
        (operations, linear, dense, multiply_adds(laya, function.length, tiles).1)
    };
    let functions = options.functions();
    if args.json {
        let rows: Vec<serde_json::Value> = (functions.iter())
            .map(|f| {
                let (operations, linear, dense, tiled) = of(f);
                json!({"name": f.name, "length": f.length, "operations": operations, "linear_multiply_adds": linear,
                    "attention_multiply_adds": {"dense": dense, "tiled": tiled},
                    "packed": f.packed.as_ref().map(|name| json!({"name": name, "operations": operations_of(name)}))})
            })
            .collect();
        return output::json(&json!({
            "out": if args.dry_run { None } else { Some(args.out.display().to_string()) },
            "source": checkpoint.name(),
            "model_type": "laya",
            "functions": rows,
            "tile": tile(options.local),
            "option_slots": OPTION_SLOTS,
            "weight_bytes": weight_bytes,
            "host_bytes": host_bytes,
            "bundle_bytes": if args.dry_run { None } else { Some(directory_bytes(&args.out)?) },
            "precision": args.compress.name(),
            "compression": compression.map(summary),
            "seconds": seconds,
        }));
    }
    let mut lines = vec![format!("source     {} (laya)", checkpoint.name())];
    for f in &functions {
        let (operations, linear, dense, tiled) = of(f);
        let millions = |n: u64| format!("{:.1} M", n as f64 / 1e6);
        lines.push(format!(
            "function   {}: {} tokens, {operations} operations, multiply-adds {} linear, attention {} dense, {} in tiles",
            f.name,
            f.length,
            millions(linear),
            millions(dense),
            millions(tiled)
        ));
        if let Some(name) = &f.packed {
            lines.push(format!(
                "           {name}: several questions in a row, {} operations",
                operations_of(name)
            ));
        }
    }
    lines.push(match tile(options.local) {
        None => "attention  dense".to_owned(),
        Some(tile) => format!("attention  tiles of {tile} queries in layers with a window"),
    });
    lines.push(format!("body       {}", machine::bytes(weight_bytes as u64)));
    lines.push(format!("host       {}", machine::bytes(host_bytes as u64)));
    lines.extend(compression.map(line));
    match seconds {
        None => lines.push("dry run    nothing was written".into()),
        Some(seconds) => {
            let size = machine::bytes(directory_bytes(&args.out)?);
            lines.push(format!("written    {} ({size}) in {seconds:.2} s", args.out.display()));
        }
    }
    output::data(&(lines.join("\n") + "\n"))
}
