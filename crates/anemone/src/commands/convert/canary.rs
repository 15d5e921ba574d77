//! Recorded calls of a bundle's functions, by the emulator: what Core ML is tried with before its numbers are used.

use anemone_bundle::{Bundle, DecisionBundle};
use anemone_decide::{GraphScorer, Vocabulary};
use anemone_emulator::{Emulator, Profile};
use anemone_mil::Recording;
use anemone_session::{Engine as _, GraphEngine, Traced as _};
use anyhow::Result;

/// Tokens fed to each function; passes of more are padded.
const TOKENS: usize = 3;

/// Runs every function of a bundle once and keeps what it took and gave beside the manifest.
pub(in crate::commands) fn record(bundle: &Bundle, threads: usize) -> Result<()> {
    let executor = Recording::new(Emulator::new(Profile::fp16(), threads));
    let recorded = executor.recorded();
    let mut engine = GraphEngine::new(bundle.clone(), Box::new(executor))?;
    let vocab = engine.vocab_size();
    let tokens: Vec<u32> = (1..=TOKENS).map(|i| (i * i * 31 % vocab) as u32).collect();
    for pass in engine.passes().to_vec() {
        engine.reset();
        engine.restrict(Some(pass))?;
        engine.feed_all(&tokens)?;
    }
    Ok(bundle.write_calls(&recorded.get())?)
}

/// [`record`] of a decision model's bundle.
pub(in crate::commands) fn record_decision(bundle: &DecisionBundle, threads: usize) -> Result<()> {
    let executor = Recording::new(Emulator::new(Profile::fp16(), threads));
    let recorded = executor.recorded();
    let checkpoint = bundle.checkpoint()?;
    let vocabulary = Vocabulary::new(&checkpoint.tokenizer_json()?, checkpoint.tokenizer_config())?;
    let mut scorer = GraphScorer::open(bundle.clone(), &checkpoint, Box::new(executor), vocabulary.pad())?;
    scorer.run_each()?;
    Ok(bundle.write_calls(&recorded.get())?)
}
