//! The prefix cache on the CPU engine: what it gives back is what would have been computed.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anemone_checkpoint::Checkpoint;
use anemone_cpu::{Arithmetic, Layout, LogitsOf, Model, Options};
use anemone_session::{
    BLOCK_TOKENS, Conversation, Engine, Event, GenerateOptions, Generation, ModelId, PrefixCache,
    SamplingParams, Speculation, Tokenizer, generate,
};

const FIXTURES: [&str; 5] =
    ["lfm2-tiny-tied", "lfm2-tiny-untied-sharded", "lfm3-tiny", "lfm3-tiny-options-sharded", "lfm2-moe-tiny"];

struct Loaded {
    name: String,
    id: ModelId,
    model: Arc<Model>,
    tokenizer: Tokenizer,
}

fn load(dir: &Path) -> Loaded {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let weights = checkpoint.weights();
    let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
    let tokenizer = std::fs::read(dir.join("tokenizer.json")).unwrap();
    Loaded {
        name: checkpoint.name().to_owned(),
        id: ModelId::of_weights(&stack, &*weights).unwrap(),
        model: Arc::new(Model::load(stack, &*weights, Layout::Mapped).unwrap()),
        tokenizer: Tokenizer::from_bytes(&tokenizer, None).unwrap(),
    }
}

/// The built-in model, and the fixtures if they are there.
fn models() -> Vec<Loaded> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut models = vec![load(&here.join("../anemone/assets/stories-lfm2"))];
    let shared = here.join("../../../shared/fixtures/lfm-tiny");
    if shared.is_dir() {
        models.extend(FIXTURES.iter().map(|name| load(&shared.join(name))));
    } else {
        let _ = writeln!(std::io::stderr(), "skipped: shared/ is not present");
    }
    models
}

impl Loaded {
    /// Windows are 5 and 8, so that rings of such passes wrap many times.
    fn engine(&self, arithmetic: Arithmetic, context: usize) -> anemone_cpu::Engine {
        let options = Options {
            threads: 2,
            arithmetic,
            context_len: Some(context),
            chunk: 160,
            rewind: 16,
            ..Options::default()
        };
        anemone_cpu::Engine::new(self.model.clone(), options).unwrap()
    }

    fn tokens(&self, random: &mut Random, count: usize) -> Vec<u32> {
        (0..count).map(|_| random.below(self.tokenizer.vocab_size()) as u32).collect()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

fn quiet(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn restored_logits_are_those_of_fed_tokens() {
    let mut random = Random(3);
    let mut ids = Vec::new();
    for loaded in models() {
        ids.push(loaded.id);
        for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
            let tokens = loaded.tokens(&mut random, 4 * BLOCK_TOKENS + 30);
            let what = format!("{} {arithmetic:?}", loaded.name);
            let cache = PrefixCache::new(loaded.id, 64 << 20);
            let mut fed = loaded.engine(arithmetic, 600);
            let vocab = Engine::vocab_size(&fed);
            let mut expected = Vec::new();
            for part in tokens.chunks(101) {
                expected.extend(bits(fed.feed(part, LogitsOf::All).unwrap()));
                cache.keep(&fed, &tokens[..fed.position()]);
            }
            assert_eq!(cache.in_use().blocks, 4);
            let mut other = loaded.engine(arithmetic, 600);
            for blocks in [3, 1, 4, 2] {
                let at = blocks * BLOCK_TOKENS;
                assert_eq!(cache.restore(&mut other, &tokens[..=at], 0), Some(at), "{what}");
                for part in tokens[at..].chunks(23) {
                    let from = other.position();
                    let logits = bits(other.feed(part, LogitsOf::All).unwrap());
                    let rows = &expected[from * vocab..(from + part.len()) * vocab];
                    assert!(logits == rows, "{what}: {blocks} blocks, from {from}");
                }
            }
            // The other arithmetic finds nothing.
            let wrong = if arithmetic == Arithmetic::Exact { Arithmetic::Fast } else { Arithmetic::Exact };
            assert_eq!(cache.restore(&mut loaded.engine(wrong, 600), &tokens, 0), None, "{what}");
        }
    }
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "every model has an identity of its own");
}

#[test]
fn the_second_turn_of_a_long_chat_computes_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(9);
    for loaded in models() {
        let context = 2048;
        let open = || PrefixCache::with_dir(loaded.id, 0, dir.path(), 1 << 30).unwrap();
        let options = |cache: Option<PrefixCache>| GenerateOptions {
            sampling: SamplingParams::greedy(),
            max_new_tokens: Some(5),
            ignore_eos: true,
            prefix_cache: cache,
            ..GenerateOptions::default()
        };
        let turn = |chat: &mut Conversation, engine: &mut anemone_cpu::Engine, prompt: &[u32], cache| {
            chat.generate(engine, &loaded.tokenizer, prompt, &options(cache), None, &mut quiet).unwrap()
        };
        let first = loaded.tokens(&mut random, 1970);
        let new = loaded.tokens(&mut random, 40);
        let (mut chat, mut engine) = (Conversation::new(), loaded.engine(Arithmetic::Fast, context));
        let answer = turn(&mut chat, &mut engine, &first, Some(open()));
        let second = [&first[..], &answer.token_ids, &new].concat();
        // A template that rewrites the end of the history, as where reasoning is left out.
        let mut rewritten = second.clone();
        rewritten.drain(1900..1930);
        let within = turn(&mut chat, &mut engine, &second, Some(open()));
        assert!(within.timings.prefill_tokens <= new.len() + 1, "{}", loaded.name);
        let back = turn(&mut chat, &mut engine, &rewritten, Some(open()));
        let changed = rewritten.len() - 1900;
        assert!(back.timings.prefill_tokens <= changed + BLOCK_TOKENS, "{}: {back:?}", loaded.name);
        // Another process, with nothing but the directory.
        let (mut chat, mut engine) = (Conversation::new(), loaded.engine(Arithmetic::Fast, context));
        let restarted = turn(&mut chat, &mut engine, &second, Some(open()));
        assert!(
            restarted.timings.prefill_tokens <= new.len() + answer.token_ids.len() + BLOCK_TOKENS,
            "{}: {restarted:?}",
            loaded.name
        );
        let fresh = |prompt: &[u32]| {
            let mut engine = loaded.engine(Arithmetic::Fast, context);
            generate(&mut engine, &loaded.tokenizer, prompt, &options(None), &mut quiet).unwrap().token_ids
        };
        assert_eq!((&within.token_ids, &restarted.token_ids), (&fresh(&second), &fresh(&second)));
        assert_eq!(back.token_ids, fresh(&rewritten), "{}", loaded.name);
    }
}

#[test]
fn random_prompts_say_the_same_with_and_without_a_cache() {
    let mut random = Random(17);
    let models = models();
    let (mut hits, mut runs) = (0, 0);
    for loaded in &models {
        let dir = tempfile::tempdir().unwrap();
        let arithmetic = if random.below(2) == 0 { Arithmetic::Exact } else { Arithmetic::Fast };
        // Neither budget holds all of it.
        let mut engine = loaded.engine(arithmetic, 512);
        let bytes = engine.block_bytes();
        let cache = PrefixCache::with_dir(loaded.id, 6 * bytes, dir.path(), 9 * bytes as u64).unwrap();
        let bases: Vec<Vec<u32>> = (0..3).map(|_| loaded.tokens(&mut random, 400)).collect();
        let mut chat = Conversation::new();
        for _ in 0..=200 / models.len() {
            let base = &bases[random.below(bases.len())];
            let cut = 1 + random.below(base.len());
            let own = random.below(40);
            let prompt = [&base[..cut], &loaded.tokens(&mut random, own)].concat();
            let options = GenerateOptions {
                sampling: SamplingParams {
                    seed: Some(random.0),
                    temperature: 0.8,
                    ..SamplingParams::default()
                },
                max_new_tokens: Some(1 + random.below(20)),
                ignore_eos: true,
                prefill_chunk: 1 + random.below(300),
                speculation: if random.below(2) == 0 {
                    Speculation::Auto { most: 8 }
                } else {
                    Speculation::Off
                },
                ..GenerateOptions::default()
            };
            let cached = GenerateOptions { prefix_cache: Some(cache.clone()), ..options.clone() };
            let mut fresh = loaded.engine(arithmetic, 512);
            let plain = generate(&mut fresh, &loaded.tokenizer, &prompt, &options, &mut quiet).unwrap();
            let same: Generation = if random.below(3) == 0 {
                let generation =
                    generate(&mut engine, &loaded.tokenizer, &prompt, &cached, &mut quiet).unwrap();
                chat.reset(&mut engine);
                generation
            } else {
                chat.generate(&mut engine, &loaded.tokenizer, &prompt, &cached, None, &mut quiet).unwrap()
            };
            assert_eq!(same.token_ids, plain.token_ids, "{} {arithmetic:?}", loaded.name);
            runs += 1;
            hits += usize::from(same.usage.cached_tokens >= BLOCK_TOKENS);
        }
    }
    assert!(runs >= 200 && hits * 3 > runs, "{hits} of {runs}");
}
