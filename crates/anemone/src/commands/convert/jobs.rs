//! The parts of a conversion, which are independent, on all cores.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anemone_ane::{Options, Plan, WeightRecord, lower_chunk, lower_head};
use anemone_bundle::{Role, Writer, WrittenPackage, WrittenTensor, file_sha256};
use anemone_checkpoint::Checkpoint;
use anemone_kernels::Context;
use anemone_mil::Program;
use anemone_models::Stack;
use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::calibrate::Subject;
use super::super::compress::{CompressArgs, in_parallel};
use crate::cli::Shell;
use crate::{demo, machine};

/// Files of the checkpoint a bundle keeps, where they are there.
const KEPT: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// What is to be done, and the bytes it passes over.
enum Job {
    Chunk(usize),
    Head(usize),
    Embedding,
    Hash(String, PathBuf),
}

enum Done {
    Package(WrittenPackage),
    Tensor(WrittenTensor),
    Hash(String, String),
}

/// Writes packages, host tensors and small files into the bundle; gives the SHA-256 of the checkpoint's files.
pub(super) fn run(
    checkpoint: &Checkpoint,
    stack: &Stack,
    options: &Options,
    plan: &Plan,
    compress: Option<&CompressArgs>,
    writer: &mut Writer,
    shell: &Shell,
) -> Result<BTreeMap<String, String>> {
    let jobs = jobs(checkpoint, stack, plan)?;
    let bar = ProgressBar::new(jobs.iter().map(|(_, bytes)| bytes).sum());
    if shell.quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left") {
        bar.set_style(style);
    }
    bar.set_message("converting");
    let encoding = compress.map(CompressArgs::encoding).transpose()?.flatten();
    let threads = machine::threads();
    let mut guided = false;
    let compressor = compress.zip(encoding).map(|(compress, encoding)| -> Result<_> {
        let subject =
            |path: &Path, tokens| Subject::language(("--calibrate", path), tokens, checkpoint, threads);
        let guide = compress.guide(encoding, threads, subject, shell)?;
        guided = guide.is_some();
        writer.compressed(compress.record(encoding, None, guide.as_ref()));
        let bar = bar.clone();
        Ok(compress.compressor(encoding, Context::new(threads), guide, move |n| bar.inc(2 * n as u64)))
    });
    let compressor = compressor.transpose()?;
    let shared: &Writer = writer;
    let weights = checkpoint.weights();
    let load = |w: &anemone_models::WeightRef| w.load(&*weights);
    let package = |file: String, role, lowered: (Program, Vec<WeightRecord>)| -> Result<Done> {
        let (program, records) = lowered;
        let package = match &compressor {
            None => shared.package(&file, role, &program, records),
            Some(compressor) => {
                let records: Vec<_> = records.into_iter().map(|record| vec![record]).collect();
                shared.compressed_package(&file, role, &program, &records, compressor)
            }
        };
        Ok(Done::Package(package?))
    };
    let perform = |job: &Job| -> Result<Done> {
        Ok(match job {
            Job::Chunk(i) => {
                let lowered = lower_chunk(stack, &load, &plan.chunks[*i], options)?;
                package(format!("chunk_{i}.mlpackage"), Role::Chunk, lowered)?
            }
            Job::Head(i) => {
                let lowered = lower_head(stack, &load, plan.head[*i].clone(), options)?;
                package(format!("head_{i}.mlpackage"), Role::Head, lowered)?
            }
            Job::Embedding => {
                let name = &stack.embedding.name;
                Done::Tensor(shared.host_tensor("embedding", name, &stack.embedding.load(&*weights)?)?)
            }
            Job::Hash(name, path) => Done::Hash(name.clone(), file_sha256(path)?),
        })
    };

    let done = in_parallel(jobs.len(), guided, &|i| {
        let (job, bytes) = &jobs[i];
        let done = perform(job)?;
        // Compressed weights have counted themselves.
        if compressor.is_none() || matches!(job, Job::Embedding | Job::Hash(..)) {
            bar.inc(*bytes);
        }
        Ok(done)
    });
    bar.finish_and_clear();
    let done = done?;
    let mut sha256 = if checkpoint.path().is_some() { BTreeMap::new() } else { demo::sha256() };
    for done in done {
        match done {
            Done::Package(package) => writer.add(package),
            Done::Tensor(tensor) => writer.add_host_tensor(tensor),
            Done::Hash(name, hash) => drop(sha256.insert(name, hash)),
        }
    }
    for name in KEPT {
        if let Some(bytes) = checkpoint.file(name)? {
            writer.file(name, &bytes)?;
        }
    }
    Ok(sha256)
}

/// The jobs in the order they start: long ones first, so that the cores end together.
fn jobs(checkpoint: &Checkpoint, stack: &Stack, plan: &Plan) -> Result<Vec<(Job, u64)>> {
    let row = 2 * stack.hidden_size as u64;
    let mut jobs: Vec<(Job, u64)> =
        plan.chunks.iter().enumerate().map(|(i, c)| (Job::Chunk(i), c.weight_bytes as u64)).collect();
    if let Some(dir) = checkpoint.dir() {
        // Hashing the source reads every byte once more, so it runs beside the writing.
        let weights =
            checkpoint.files().iter().map(|f| f.name.as_str()).filter(|n| n.ends_with(".safetensors"));
        for name in weights.chain(["config.json"]) {
            let path = dir.join(name);
            let bytes = std::fs::metadata(&path)?.len();
            jobs.insert(jobs.len().min(1), (Job::Hash(name.into(), path), bytes));
        }
    }
    if let Some(path) = checkpoint.gguf() {
        let name = checkpoint.files().first().map_or_else(String::new, |file| file.name.clone());
        jobs.insert(jobs.len().min(1), (Job::Hash(name, path.to_owned()), checkpoint.weight_bytes()));
    }
    jobs.push((Job::Embedding, row * stack.vocab_size as u64));
    jobs.extend(plan.head.iter().enumerate().map(|(i, rows)| (Job::Head(i), row * rows.len() as u64)));
    Ok(jobs)
}
