use std::ops::ControlFlow;

use super::*;
use crate::fake::{Call, FakeEngine, tokenizer};
use crate::{Conversation, GenerateOptions, Generation, SamplingParams, generate};

const B: usize = BLOCK_TOKENS;

fn model() -> ModelId {
    ModelId::of([&b"a model"[..]])
}

/// Letters that differ with `seed` from the first on.
fn text(seed: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|i| ((i * i + i / 9 + seed) % 26 + 1) as u32).collect()
}

fn held(tokens: &[u32]) -> FakeEngine {
    let mut engine = FakeEngine::new(16 * B);
    engine.feed(tokens).unwrap();
    engine.calls.clear();
    engine
}

fn options(cache: Option<&PrefixCache>) -> GenerateOptions {
    GenerateOptions {
        sampling: SamplingParams::greedy(),
        max_new_tokens: Some(3),
        prefix_cache: cache.cloned(),
        ..GenerateOptions::default()
    }
}

fn run(engine: &mut FakeEngine, prompt: &[u32], cache: Option<&PrefixCache>) -> Generation {
    engine.calls.clear();
    let quiet = &mut |_: crate::Event<'_>| ControlFlow::Continue(());
    generate(engine, &tokenizer(), prompt, &options(cache), quiet).unwrap()
}

#[test]
fn the_longest_beginning_comes_back() {
    let cache = PrefixCache::new(model(), 1 << 20);
    let tokens = text(1, 3 * B + 7);
    cache.keep(&held(&tokens), &tokens);
    assert_eq!(cache.in_use().blocks, 3);
    let mut engine = FakeEngine::new(16 * B);
    assert_eq!(cache.restore(&mut engine, &tokens, 0), Some(3 * B));
    assert_eq!(engine.held, tokens[..3 * B]);
    // Another continuation, a shorter text, more that is held already, another text, another model.
    let mut other = tokens.clone();
    other[2 * B + 3] += 1;
    assert_eq!(cache.restore(&mut engine, &other, 0), Some(2 * B));
    assert_eq!(cache.restore(&mut engine, &tokens[..2 * B - 1], 0), Some(B));
    assert_eq!(cache.restore(&mut engine, &other, 2 * B - 1), Some(2 * B));
    engine.calls.clear();
    assert_eq!(cache.restore(&mut engine, &other, 2 * B), None);
    assert_eq!(cache.restore(&mut engine, &text(2, 3 * B), 0), None);
    let elsewhere = cache.for_model(ModelId::of([&b"another"[..]]));
    assert_eq!(elsewhere.restore(&mut engine, &tokens, 0), None);
    let mut mute = FakeEngine::new(16 * B);
    mute.complete_every = 0;
    assert_eq!(cache.restore(&mut mute, &tokens, 0), None);
    assert!(engine.calls.is_empty() && mute.calls.is_empty());
    // What the other model keeps lies in the same memory.
    elsewhere.keep(&held(&tokens), &tokens);
    assert_eq!((cache.in_use().blocks, cache.in_use()), (6, elsewhere.in_use()));
    // An engine with less room takes what fits.
    assert_eq!(cache.restore(&mut FakeEngine::new(2 * B + 5), &tokens, 0), Some(2 * B));
}

#[test]
fn a_sequence_goes_on_only_where_blocks_are_complete() {
    let cache = PrefixCache::new(model(), 1 << 20);
    let tokens = text(1, 5 * B);
    let mut engine = held(&tokens);
    engine.complete_every = 2;
    cache.keep(&engine, &tokens);
    assert_eq!(cache.in_use().blocks, 5);
    assert_eq!(cache.restore(&mut engine, &tokens, 0), Some(4 * B));
    assert_eq!(cache.restore(&mut engine, &tokens[..4 * B - 1], 0), Some(2 * B));
    assert_eq!(cache.restore(&mut engine, &tokens[..2 * B - 1], 0), None);
    // Computed in other passes, they may be complete.
    cache.keep(&held(&tokens), &tokens);
    assert_eq!(cache.restore(&mut engine, &tokens[..4 * B - 1], 0), Some(3 * B));
    let format = BlockFormat { needed: 2, ..engine.block_format().unwrap() };
    let chain = |complete: &[bool]| -> Vec<Arc<Block>> {
        complete.iter().map(|&complete| Arc::new(Block { bytes: Vec::new(), complete })).collect()
    };
    for (complete, usable) in [
        (&[true][..], 1),
        (&[true, true, false], 2),
        (&[false, true, false, true], 0),
        (&[false, true, true, false], 3),
        (&[], 0),
    ] {
        assert_eq!(format.usable(&chain(complete)), usable, "{complete:?}");
    }
}

#[test]
fn generation_begins_behind_what_is_known_and_says_the_same() {
    let cache = PrefixCache::new(model(), 1 << 20);
    let prompt = text(3, 2 * B + 10);
    let plain = run(&mut FakeEngine::new(16 * B), &prompt, None);
    let first = run(&mut FakeEngine::new(16 * B), &prompt, Some(&cache));
    let mut engine = FakeEngine::new(16 * B);
    let second = run(&mut engine, &prompt, Some(&cache));
    assert_eq!((plain.usage.cached_tokens, first.usage.cached_tokens), (0, 0));
    assert_eq!(second.usage.cached_tokens, 2 * B);
    assert_eq!(second.timings.prefill_tokens, 10);
    assert_eq!(engine.calls[..3], [Call::Reset, Call::Import(2), Call::Feed(prompt[2 * B..].to_vec())]);
    assert!(plain.token_ids == first.token_ids && first.token_ids == second.token_ids);
    // The logits after the last token are needed, so it is fed.
    let short = run(&mut engine, &prompt[..2 * B], Some(&cache));
    assert_eq!((short.usage.cached_tokens, short.timings.prefill_tokens), (B, B));
    // With log probabilities of the prompt all of it is.
    let looked_at = GenerateOptions { prompt_logprobs: Some(0), ..options(Some(&cache)) };
    let quiet = &mut |_: crate::Event<'_>| ControlFlow::Continue(());
    let whole = generate(&mut engine, &tokenizer(), &prompt, &looked_at, quiet).unwrap();
    assert_eq!((whole.usage.cached_tokens, whole.token_ids), (0, plain.token_ids));
}

#[test]
fn what_is_generated_is_kept_as_blocks_fill() {
    let cache = PrefixCache::new(model(), 1 << 20);
    let prompt = text(3, B - 2);
    let mut engine = FakeEngine::new(16 * B);
    let long = GenerateOptions { max_new_tokens: Some(B + 10), ..options(Some(&cache)) };
    let quiet = &mut |_: crate::Event<'_>| ControlFlow::Continue(());
    let answer = generate(&mut engine, &tokenizer(), &prompt, &long, quiet).unwrap();
    assert_eq!(cache.in_use().blocks, 2);
    let all = [prompt, answer.token_ids].concat();
    let next = run(&mut engine, &all, Some(&cache));
    assert_eq!(next.usage.cached_tokens, 2 * B);
}

#[test]
fn a_chat_takes_the_longer_of_what_engine_and_cache_have() {
    let cache = PrefixCache::new(model(), 1 << 20);
    let mut engine = FakeEngine::new(16 * B);
    let mut chat = Conversation::new();
    let mut turn = |engine: &mut FakeEngine, prompt: &[u32]| {
        engine.calls.clear();
        let quiet = &mut |_: crate::Event<'_>| ControlFlow::Continue(());
        let options = options(Some(&cache));
        let answer = chat.generate(engine, &tokenizer(), prompt, &options, None, quiet).unwrap();
        assert_eq!(chat.held(), engine.held);
        answer.usage.cached_tokens
    };
    let first = text(1, 3 * B);
    assert_eq!(turn(&mut engine, &first), 0);
    let second = [engine.held.clone(), text(2, 20)].concat();
    assert_eq!(turn(&mut engine, &second), 3 * B + 2, "the engine has more");
    assert_eq!(turn(&mut engine, &text(5, 2 * B)), 0);
    assert_eq!(turn(&mut engine, &second), 3 * B, "the cache has more");
    // History is rewritten where the engine cannot go back to.
    engine.most_rewind = 1;
    let mut rewritten = second;
    rewritten[2 * B + 9] = 26;
    assert_eq!(turn(&mut engine, &rewritten), 2 * B);
}

#[test]
fn a_full_cache_keeps_the_beginning_and_disturbs_nothing() {
    let tokens = text(1, 6 * B);
    let one = PrefixCache::new(model(), 4 * B + 4 * B + 256);
    one.keep(&held(&tokens), &tokens);
    assert_eq!(one.restore(&mut FakeEngine::new(16 * B), &tokens, 0), Some(B));
    // What goes for another text is the end of this one, not its beginning.
    let three = PrefixCache::new(model(), 3 * (4 * B + 4 * B + 256));
    three.keep(&held(&tokens[..3 * B]), &tokens[..3 * B]);
    let other = text(2, B);
    three.keep(&held(&other), &other);
    assert_eq!(three.restore(&mut FakeEngine::new(16 * B), &tokens, 0), Some(2 * B));
    let none = PrefixCache::new(model(), 0);
    let mut engine = held(&tokens);
    none.keep(&engine, &tokens);
    assert_eq!(none.in_use(), PrefixCacheUse::default());
    assert_eq!(none.restore(&mut engine, &tokens, 0), None);
}

#[test]
fn a_directory_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("deep/cache");
    let open = |memory| PrefixCache::with_dir(model(), memory, &at, 1 << 20).unwrap();
    let prompt = text(3, 2 * B + 10);
    let first = run(&mut FakeEngine::new(16 * B), &prompt, Some(&open(0)));
    for memory in [0, 1 << 20] {
        let cache = open(memory);
        let again = run(&mut FakeEngine::new(16 * B), &prompt, Some(&cache));
        assert_eq!((again.usage.cached_tokens, &again.token_ids), (2 * B, &first.token_ids));
        assert_eq!(cache.in_use().blocks, if memory > 0 { 2 } else { 0 });
    }
    // Two at once, each with its own eyes.
    let (a, b) = (open(0), open(0));
    let other = text(4, B + 1);
    run(&mut FakeEngine::new(16 * B), &other, Some(&a));
    assert_eq!(run(&mut FakeEngine::new(16 * B), &other, Some(&b)).usage.cached_tokens, B);
}

#[test]
fn threads_share_a_cache() {
    let dir = tempfile::tempdir().unwrap();
    let cache = PrefixCache::with_dir(model(), 8 << 10, dir.path(), 64 << 10).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..20 {
                    let prompt = text(seed + round % 3, 2 * B + 5 + round);
                    let plain = run(&mut FakeEngine::new(16 * B), &prompt, None);
                    let cached = run(&mut FakeEngine::new(16 * B), &prompt, Some(cache));
                    assert_eq!(plain.token_ids, cached.token_ids);
                }
            });
        }
    });
    assert!(cache.in_use().bytes <= 8 << 10);
}
