//! Tiny checkpoints beside the repository, and their conversion.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anemone_ane::{Options, lower_chunk, lower_head, plan};
use anemone_bundle::{Bundle, Role, Source, Writer};
use anemone_checkpoint::Checkpoint;

/// A tiny checkpoint, if it is there.
pub(crate) fn fixture(name: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/lfm-tiny").join(name);
    if !dir.exists() {
        // Not `eprintln!`, which the test runner swallows.
        let _ = writeln!(std::io::stderr(), "skipped: shared/ not present (fixtures/lfm-tiny/{name})");
        return None;
    }
    Some(dir)
}

/// Converts a checkpoint as the command does.
pub(crate) fn convert(dir: &Path, out: &Path, options: &Options) -> Bundle {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let weights = checkpoint.weights();
    let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
    let plan = plan(&stack, options).unwrap();
    let mut writer = Writer::create(out, false).unwrap();
    for (i, chunk) in plan.chunks.iter().enumerate() {
        let (program, records) = lower_chunk(&stack, &|w| w.load(&*weights), chunk, options).unwrap();
        let name = format!("chunk_{i}.mlpackage");
        writer.add(writer.package(&name, Role::Chunk, &program, records).unwrap());
    }
    for (i, rows) in plan.head.iter().enumerate() {
        let (program, records) = lower_head(&stack, &|w| w.load(&*weights), rows.clone(), options).unwrap();
        let name = format!("head_{i}.mlpackage");
        writer.add(writer.package(&name, Role::Head, &program, records).unwrap());
    }
    let embedding = stack.embedding.load(&*weights).unwrap();
    writer.add_host_tensor(writer.host_tensor("embedding", &stack.embedding.name, &embedding).unwrap());
    writer.file("config.json", &std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let source =
        Source { name: "fixture".into(), model_type: stack.model_type.clone(), sha256: BTreeMap::new() };
    let tensors = stack.weights().into_iter().map(|w| (w.name.clone(), w.shape.to_vec())).collect();
    writer.finish(source, options, &plan, tensors, "a test").unwrap();
    Bundle::open(out).unwrap()
}
