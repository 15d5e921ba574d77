//! The parts of a conversion, which are independent, on all cores.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anemone_ane::{Options, Plan, lower_chunk, lower_head};
use anemone_bundle::{Role, Writer, WrittenPackage, WrittenTensor, file_sha256};
use anemone_checkpoint::Checkpoint;
use anemone_models::Stack;
use anyhow::{Result, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::Shell;
use crate::demo;

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
    let shared: &Writer = writer;
    let weights = checkpoint.weights();
    let load = |w: &anemone_models::WeightRef| w.load(&*weights);
    let perform = |job: &Job| -> Result<Done> {
        Ok(match job {
            Job::Chunk(i) => {
                let (program, records) = lower_chunk(stack, &load, &plan.chunks[*i], options)?;
                Done::Package(shared.package(
                    &format!("chunk_{i}.mlpackage"),
                    Role::Chunk,
                    &program,
                    records,
                )?)
            }
            Job::Head(i) => {
                let (program, records) = lower_head(stack, &load, plan.head[*i].clone(), options)?;
                Done::Package(shared.package(
                    &format!("head_{i}.mlpackage"),
                    Role::Head,
                    &program,
                    records,
                )?)
            }
            Job::Embedding => {
                let name = &stack.embedding.name;
                Done::Tensor(shared.host_tensor("embedding", name, &stack.embedding.load(&*weights)?)?)
            }
            Job::Hash(name, path) => Done::Hash(name.clone(), file_sha256(path)?),
        })
    };

    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Done>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(jobs.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < jobs.len()) {
                    let (job, bytes) = &jobs[i];
                    let result = perform(job);
                    if result.is_err() {
                        // What has not begun need not.
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                    bar.inc(*bytes);
                    *results[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(result);
                }
            });
        }
    });
    bar.finish_and_clear();

    let mut done = Vec::with_capacity(jobs.len());
    for result in results {
        done.extend(result.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).transpose()?);
    }
    if done.len() < jobs.len() {
        return Err(anyhow!("the conversion ended early; please report this"));
    }
    let mut sha256 = if checkpoint.dir().is_some() { BTreeMap::new() } else { demo::sha256() };
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
    jobs.push((Job::Embedding, row * stack.vocab_size as u64));
    jobs.extend(plan.head.iter().enumerate().map(|(i, rows)| (Job::Head(i), row * rows.len() as u64)));
    Ok(jobs)
}
