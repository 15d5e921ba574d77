//! Memory over many predictions. A process of its own, since it is measured.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[path = "../../anemone-emulator/tests/support/mod.rs"]
#[allow(dead_code, reason = "fixtures are for other tests")]
mod support;

use std::path::Path;

use anemone_ane::{Options as Lowering, Pass};
use anemone_coreml::simulated::Simulated;
use anemone_coreml::{CompiledModels, CoreMl, Options};
use anemone_emulator::{Emulator, Profile};
use anemone_session::{Engine as _, GraphEngine};

#[test]
fn ten_thousand_predictions_leave_memory_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../anemone/assets/stories-lfm2");
    let lowering =
        Lowering { ctx: 64, passes: vec![Pass::Decode], layers_per_chunk: Some(3), ..Lowering::default() };
    let bundle = support::convert(&model, &dir.path().join("m.bundle"), &lowering);
    let options = Options::new(CompiledModels::new(dir.path().join("compiled")));
    let make = || Ok(Simulated::new(Emulator::new("fp16".parse::<Profile>().unwrap(), 2), &[]));
    let executor = CoreMl::new(options, make).unwrap();
    let per_token = bundle.manifest().packages.len();
    let mut engine = GraphEngine::new(bundle, Box::new(executor)).unwrap();
    let mut run = |predictions: usize| {
        for token in 0..predictions / per_token {
            if engine.position() + 1 > 60 {
                engine.reset();
            }
            engine.feed(&[(token % 1000) as u32]).unwrap();
        }
        resident()
    };
    let warm = run(2000);
    let after = run(10_000);
    // What one prediction holds is a few hundred KiB; a leak of 1 KiB a prediction would be 10 MiB.
    assert!(after < warm + (4 << 10), "from {warm} to {after} KiB");
}

/// Private memory in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}
