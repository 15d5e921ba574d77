//! Drafts, company and constraints on the CPU engine: what is generated stays what one token at a time generates.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anemone_checkpoint::Checkpoint;
use anemone_cpu::{Arithmetic, Layout, Model, Options};
use anemone_session::{
    Batch, BatchOptions, Event, GenerateOptions, Generation, Job, PassCost, Progress, SamplingParams,
    Sequence, Speculation, Tokenizer, generate, run,
};

const FIXTURES: [&str; 5] =
    ["lfm2-tiny-tied", "lfm2-tiny-untied-sharded", "lfm3-tiny", "lfm3-tiny-options-sharded", "lfm2-moe-tiny"];

/// Tokens of one pass, and how far an engine can step back; the windows of the fixtures are 5 and 8, so rings wrap all the time.
const CHUNK: usize = 24;
const REWIND: usize = 32;

struct Loaded {
    model: Arc<Model>,
    tokenizer: Tokenizer,
}

fn load(dir: &Path) -> Loaded {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let weights = checkpoint.weights();
    let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
    let tokenizer = std::fs::read(dir.join("tokenizer.json")).unwrap();
    Loaded {
        model: Arc::new(Model::load(stack, &*weights, Layout::Mapped).unwrap()),
        tokenizer: Tokenizer::from_bytes(&tokenizer, None).unwrap(),
    }
}

fn fixtures() -> Vec<(&'static str, Loaded)> {
    let shared = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/lfm-tiny");
    if !shared.is_dir() {
        let _ = writeln!(std::io::stderr(), "skipped: shared/ is not present");
        return Vec::new();
    }
    FIXTURES.iter().map(|name| (*name, load(&shared.join(name)))).collect()
}

fn built_in() -> Loaded {
    load(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../anemone/assets/stories-lfm2"))
}

impl Loaded {
    fn engine(&self, arithmetic: Arithmetic) -> anemone_cpu::Engine {
        let options = Options {
            threads: 2,
            arithmetic,
            context_len: Some(256),
            chunk: CHUNK,
            rewind: REWIND,
            ..Options::default()
        };
        anemone_cpu::Engine::new(self.model.clone(), options).unwrap()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    /// Random tokens, or some that repeat.
    fn prompt(&mut self, vocab: usize) -> Vec<u32> {
        let len = 1 + self.below(60);
        let period = 1 + self.below(len);
        let piece: Vec<u32> = (0..period).map(|_| self.below(vocab) as u32).collect();
        (0..len).map(|i| piece[i % period]).collect()
    }

    fn sampling(&mut self) -> SamplingParams {
        let seed = Some(self.0);
        match self.below(3) {
            0 => SamplingParams::greedy(),
            1 => SamplingParams { repetition_penalty: 1.3, ..SamplingParams::greedy() },
            _ => SamplingParams {
                seed,
                temperature: 0.8,
                top_k: 40,
                top_p: 0.9,
                min_p: 0.02,
                presence_penalty: 0.3,
                ..SamplingParams::default()
            },
        }
    }
}

fn quiet(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// All passes cost the same, so that whatever is guessed is drafted.
fn free() -> PassCost {
    let mut cost = PassCost::default();
    for tokens in [1, 2, 4, 8, 16, 32, 64] {
        cost.record(tokens, 1.0);
    }
    cost
}

fn same(found: &Generation, expected: &Generation, what: &str) {
    assert_eq!(found.token_ids, expected.token_ids, "{what}");
    assert_eq!((&found.text, &found.finish_reason), (&expected.text, &expected.finish_reason), "{what}");
}

#[test]
fn drafts_change_no_token_whoever_proposes_them() {
    let mut total = (0, 0);
    for (name, loaded) in fixtures() {
        let mut random = Random(name.len() as u64);
        for round in 0..40 {
            let arithmetic = [Arithmetic::Exact, Arithmetic::Fast][round % 2];
            let mut engine = loaded.engine(arithmetic);
            let prompt = random.prompt(loaded.tokenizer.vocab_size());
            let options = GenerateOptions {
                sampling: random.sampling(),
                max_new_tokens: Some(40 + random.below(40)),
                ..GenerateOptions::default()
            };
            let expected = generate(&mut engine, &loaded.tokenizer, &prompt, &options, &mut quiet).unwrap();
            let held = loaded_tokens(&prompt, &expected, &engine);

            // Drafts of 1 to 32 tokens, of which a random number is what will be drawn.
            let (most, truth) = (1 + random.below(32), expected.token_ids.clone());
            let (start, mut errs) = (prompt.len(), Random(round as u64));
            let propose = move |tokens: &[u32], room: usize| {
                let right = errs.below(most + 1);
                let guess = |i: usize| match truth.get(tokens.len() - start + i) {
                    Some(&token) if i < right => token,
                    _ => (i * 7) as u32 % 1000,
                };
                (0..room.min(most)).map(guess).collect::<Vec<u32>>()
            };
            let mut drafted = Sequence::new(&engine, &loaded.tokenizer, &prompt, options.clone())
                .unwrap()
                .with_proposer(Box::new(propose));
            engine.reset();
            run(&mut engine, &mut drafted, &mut free(), &mut quiet).unwrap();
            assert_eq!(drafted.tokens()[..drafted.held()], held, "{name} {round}");
            // What the engine holds is what it would hold: the next logits have the same bits.
            let next = bits(engine.feed(&[5], anemone_cpu::LogitsOf::Last).unwrap());
            let mut fresh = loaded.engine(arithmetic);
            fresh.feed(&held, anemone_cpu::LogitsOf::None).unwrap();
            assert_eq!(next, bits(fresh.feed(&[5], anemone_cpu::LogitsOf::Last).unwrap()), "{name} {round}");
            let drafted = drafted.into_generation().unwrap();
            total = (total.0 + drafted.drafts.drafted, total.1 + drafted.drafts.accepted);
            same(&drafted, &expected, name);

            for speculation in [Speculation::Ngram { n: 2, m: 16 }, Speculation::Auto { most: 32 }] {
                let options = GenerateOptions { speculation, ..options.clone() };
                let mut sequence = Sequence::new(&engine, &loaded.tokenizer, &prompt, options).unwrap();
                engine.reset();
                run(&mut engine, &mut sequence, &mut free(), &mut quiet).unwrap();
                same(&sequence.into_generation().unwrap(), &expected, name);
            }
        }
        assert!(total.1 > 1000 && total.0 > total.1 + 1000, "{total:?}");
    }
}

/// The tokens an engine holds after a generation.
fn loaded_tokens(prompt: &[u32], generation: &Generation, engine: &anemone_cpu::Engine) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    tokens.extend(&generation.token_ids);
    tokens.truncate(engine.position());
    tokens
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|l| l.to_bits()).collect()
}

#[test]
fn company_changes_no_token() {
    for (name, loaded) in fixtures().into_iter().chain([("built-in", built_in())]) {
        let mut random = Random(7 + name.len() as u64);
        let mut alone = loaded.engine(Arithmetic::Fast);
        let limits = BatchOptions { max_sequences: 6, prefill_tokens: 10, ..BatchOptions::default() };
        let mut batch = Batch::new(loaded.engine(Arithmetic::Fast), &loaded.tokenizer, limits);
        let (mut expected, mut found) = (BTreeMap::new(), BTreeMap::new());
        for round in 0..16 {
            let prompt = random.prompt(loaded.tokenizer.vocab_size());
            let each: Vec<GenerateOptions> = (0..=round % 3)
                .map(|_| GenerateOptions {
                    sampling: random.sampling(),
                    max_new_tokens: Some(random.below(40)),
                    speculation: [Speculation::Off, Speculation::Auto { most: 12 }][random.below(2)],
                    ..GenerateOptions::default()
                })
                .collect();
            let continuations = each.iter().map(|options| (options.clone(), None)).collect();
            let ids = batch.submit(Job { prompt: prompt.clone(), continuations }).unwrap();
            for (id, options) in ids.into_iter().zip(&each) {
                let plain = GenerateOptions { speculation: Speculation::Off, ..options.clone() };
                expected.insert(
                    id,
                    generate(&mut alone, &loaded.tokenizer, &prompt, &plain, &mut quiet).unwrap(),
                );
            }
            for _ in 0..random.below(4) {
                batch.step(&mut |id, progress| collect(&mut found, id, progress));
            }
        }
        while batch.step(&mut |id, progress| collect(&mut found, id, progress)) {}
        assert_eq!(found.len(), expected.len());
        for (id, expected) in &expected {
            same(&found[id], expected, name);
        }
    }
}

fn collect<K: Ord>(found: &mut BTreeMap<K, Generation>, id: K, progress: Progress<'_>) -> ControlFlow<()> {
    match progress {
        Progress::Finished(generation) => drop(found.insert(id, generation)),
        Progress::Failed(error) => panic!("{error}"),
        Progress::Event(_) => {}
    }
    ControlFlow::Continue(())
}
