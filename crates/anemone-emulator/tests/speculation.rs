//! Drafts through the functions of a bundle: verified together, they are what single steps give.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod support;

use std::ops::ControlFlow;

use anemone_ane::{CacheKind, Options, Pass};
use anemone_emulator::{Emulator, Profile};
use anemone_session::{
    Engine as _, Event, GenerateOptions, GraphEngine, PassCost, SamplingParams, Sequence, Speculation,
    Tokenizer, generate, run,
};

use support::{convert, fixture};

fn quiet(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The emulator sums without regard to how tokens are grouped, so the bits are the same: no margin is needed.
#[test]
fn drafts_change_no_token_on_the_emulator() {
    for (name, cache) in [
        ("lfm2-tiny-tied", CacheKind::Io),
        ("lfm3-tiny", CacheKind::Io),
        ("lfm3-tiny", CacheKind::State),
        ("lfm3-tiny-options-sharded", CacheKind::State),
    ] {
        let Some(dir) = fixture(name) else { continue };
        let tokenizer =
            Tokenizer::from_bytes(&std::fs::read(dir.join("tokenizer.json")).unwrap(), None).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let passes = vec![Pass::Decode, Pass::Prefill(8), Pass::Verify(6)];
        let options = Options { ctx: 128, passes, cache, layers_per_chunk: Some(3), ..Options::default() };
        let bundle = convert(&dir, &temp.path().join("bundle"), &options);
        let mut engine = GraphEngine::new(bundle, Box::new(Emulator::new(Profile::fp16(), 2))).unwrap();
        // A prompt that repeats itself; windows of 5 and 8 wrap.
        let prompt: Vec<u32> = (0..30).map(|i| 20 + i % 7).collect();
        for (sampling, seed) in [(SamplingParams::greedy(), 1), (SamplingParams::default(), 2)] {
            let sampling = SamplingParams { seed: Some(seed), ..sampling };
            let options =
                GenerateOptions { sampling, max_new_tokens: Some(30), ..GenerateOptions::default() };
            let expected = generate(&mut engine, &tokenizer, &prompt, &options, &mut quiet).unwrap();
            let truth = expected.token_ids.clone();
            let mut wrong = seed as usize;
            let propose = move |tokens: &[u32], room: usize| {
                wrong = wrong * 5 % 7;
                let guess = |i: usize| match truth.get(tokens.len() - 30 + i) {
                    Some(&token) if i < wrong => token,
                    _ => i as u32,
                };
                (0..room).map(guess).collect::<Vec<u32>>()
            };
            for by_proposer in [true, false] {
                let options =
                    GenerateOptions { speculation: Speculation::Auto { most: 8 }, ..options.clone() };
                let mut sequence = Sequence::new(&engine, &tokenizer, &prompt, options).unwrap();
                if by_proposer {
                    sequence = sequence.with_proposer(Box::new(propose.clone()));
                }
                let mut cost = PassCost::default();
                for tokens in [1, 2, 4, 8] {
                    cost.record(tokens, 1.0);
                }
                engine.reset();
                run(&mut engine, &mut sequence, &mut cost, &mut quiet).unwrap();
                let found = sequence.into_generation().unwrap();
                assert_eq!(found.token_ids, expected.token_ids, "{name} {cache:?}");
                if by_proposer {
                    let drafts = found.drafts;
                    assert!(drafts.accepted > 10 && drafts.drafted > drafts.accepted, "{name} {drafts:?}");
                    // A pass verifies five drafts at most.
                    assert!(drafts.drafted <= 5 * drafts.passes);
                }
            }
        }
    }
}
