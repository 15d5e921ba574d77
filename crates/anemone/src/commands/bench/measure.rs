use std::time::Instant;

use anemone_session::{Engine as _, Part, Together as _};
use anyhow::{Context as _, Result};

use crate::energy::Watch;
use crate::engine::Engine;

/// What a test times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Tokens fed at once.
    Prefill,
    /// Tokens fed one by one.
    Decode,
    /// Tokens fed at once, with logits after each.
    Verify,
    /// Sequences that decode together, [`ROUNDS`] tokens each.
    Batch,
}

/// Tokens each sequence decodes in a test of several.
const ROUNDS: usize = 16;

/// A test and its measurements.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Test {
    pub(super) kind: Kind,
    /// Tokens, or sequences.
    pub(super) tokens: usize,
    /// Tokens per second, in the order measured.
    pub(super) samples: Vec<f64>,
}

impl Test {
    pub(super) fn new(kind: Kind, tokens: usize) -> Self {
        Self { kind, tokens, samples: Vec::new() }
    }

    /// `pp512`, `tg64`, `vf17` or `bt16`.
    pub(super) fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Prefill => "pp",
            Kind::Decode => "tg",
            Kind::Verify => "vf",
            Kind::Batch => "bt",
        };
        format!("{kind}{}", self.tokens)
    }

    /// Tokens a sequence holds at the end, beyond those it began with.
    pub(super) fn held(&self) -> usize {
        if self.kind == Kind::Batch { ROUNDS } else { self.tokens }
    }

    pub(super) fn mean(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len().max(1) as f64
    }

    /// Standard deviation of the sample, 0 for a single one.
    pub(super) fn sd(&self) -> f64 {
        if self.samples.len() < 2 {
            return 0.0;
        }
        let mean = self.mean();
        let squares: f64 = self.samples.iter().map(|s| (s - mean).powi(2)).sum();
        (squares / (self.samples.len() - 1) as f64).sqrt()
    }

    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => 0.0,
            n if n % 2 == 1 => sorted[n / 2],
            n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        }
    }

    pub(super) fn min(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(super) fn max(&self) -> f64 {
        self.samples.iter().copied().fold(0.0, f64::max)
    }
}

/// Runs every test once to warm up and `repeat` times to measure, each after the first `depth` tokens.
pub(super) fn run(
    engine: &mut Engine,
    tests: &mut [Test],
    tokens: &[u32],
    depth: usize,
    repeat: usize,
    watch: &mut Watch,
) -> Result<()> {
    let start = engine.start(&tokens[..depth])?;
    for test in tests {
        let fed = &tokens[depth..depth + test.held()];
        let mut siblings = Vec::new();
        if test.kind == Kind::Batch {
            let sibling = || {
                engine
                    .sibling()
                    .context("--batch: a bundle on the emulator holds one sequence only; leave it out")
            };
            siblings = (1..test.tokens).map(|_| sibling()).collect::<Result<_>>()?;
        }
        for round in 0..=repeat {
            engine.restart(&start)?;
            for sibling in &mut siblings {
                sibling.copy_from(engine)?;
            }
            watch.skip();
            let clock = Instant::now();
            match test.kind {
                Kind::Prefill => {
                    engine.feed(fed)?;
                }
                Kind::Decode => {
                    for token in fed {
                        engine.feed(std::slice::from_ref(token))?;
                    }
                }
                Kind::Verify => {
                    engine.feed_all(fed)?;
                }
                Kind::Batch => {
                    for tokens in fed.chunks(1) {
                        let all = std::iter::once(&mut *engine).chain(&mut siblings);
                        let mut parts: Vec<Part<'_, Engine>> =
                            all.map(|engine| Part { engine, tokens, rows: 1 }).collect();
                        Engine::feed_together(&mut parts, &mut |_, _, _| ())
                            .into_iter()
                            .collect::<Result<(), _>>()?;
                    }
                }
            }
            let seconds = clock.elapsed().as_secs_f64().max(1e-9);
            let computed = if test.kind == Kind::Batch { test.tokens * ROUNDS } else { test.tokens };
            if round > 0 {
                watch.mark(&test.name(), computed);
                test.samples.push(computed as f64 / seconds);
            }
        }
    }
    Ok(())
}

/// Token ids below `vocab` that depend on the seed alone.
pub(super) fn random_tokens(seed: u64, count: usize, vocab: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (0..count).map(|_| (next() % vocab.max(1)) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics() {
        let test = Test { samples: vec![4.0, 1.0, 7.0, 2.0], ..Test::new(Kind::Decode, 64) };
        assert_eq!((test.name().as_str(), test.mean(), test.median()), ("tg64", 3.5, 3.0));
        assert_eq!((test.min(), test.max()), (1.0, 7.0));
        assert!((test.sd() - 7.0f64.sqrt()).abs() < 1e-12);
        let one = Test { samples: vec![5.0], ..Test::new(Kind::Prefill, 8) };
        assert_eq!((one.sd(), one.median()), (0.0, 5.0));
    }

    #[test]
    fn tokens_depend_on_the_seed() {
        let tokens = random_tokens(1, 1000, 50);
        assert_eq!(tokens, random_tokens(1, 1000, 50));
        assert_ne!(tokens, random_tokens(2, 1000, 50));
        assert!(tokens.iter().all(|&t| t < 50) && tokens.contains(&0) && tokens.contains(&49));
    }
}
