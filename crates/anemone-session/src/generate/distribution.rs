//! What is drawn with drafts has the distribution of what is drawn without, whatever the drafts.

use std::ops::ControlFlow;

use super::*;
use crate::fake::{FakeEngine, VOCAB, tokenizer};
use crate::{History, Sampler};

const SAMPLES: u64 = 20_000;

/// The value a chi-square statistic exceeds in one case of a hundred (Wilson and Hilferty's approximation, 1 % off at most here).
fn critical(freedom: f64) -> f64 {
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + 2.326_348 * part.sqrt()).powi(3)
}

/// Chi-square of counts against probabilities; cells that expect fewer than five are taken together.
fn statistic(counts: &[u64], probabilities: &[f64]) -> (f64, f64) {
    let total = counts.iter().sum::<u64>() as f64;
    let (mut sum, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    for (&count, p) in counts.iter().zip(probabilities) {
        let expected = p * total;
        if expected < 5.0 {
            rest = (rest.0 + count as f64, rest.1 + expected);
        } else {
            sum += (count as f64 - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if rest.1 > 0.0 {
        sum += (rest.0 - rest.1).powi(2) / rest.1;
        cells += 1;
    } else {
        assert!(rest.0 == 0.0, "a token of no probability was drawn");
    }
    (sum, f64::from(cells - 1))
}

/// The distribution of the token after these.
fn distribution(tokens: &[u32], prompt: usize, params: &SamplingParams) -> Vec<f64> {
    let mut engine = FakeEngine::new(64);
    let logits = engine.feed_all(tokens).unwrap()[(tokens.len() - 1) * VOCAB..].to_vec();
    let mut history = History::new(&tokens[..prompt]);
    for &id in &tokens[prompt..] {
        history.push(id);
    }
    let mut probabilities = vec![0.0; 32];
    let sampler = Sampler::new(params.clone()).unwrap().with_allowed_vocab(32);
    for (id, p) in sampler.distribution(&logits, &history).unwrap() {
        probabilities[id as usize] = f64::from(p);
    }
    probabilities
}

#[test]
fn drafts_keep_the_distribution() {
    let tokenizer = tokenizer();
    let prompt = [3, 1, 4];
    for (temperature, top_p) in [(0.7, 0.9), (1.0, 0.8)] {
        let base = SamplingParams { temperature, top_p, presence_penalty: 0.5, ..SamplingParams::default() };
        let first = distribution(&prompt, 3, &base);
        let best = (0..32).max_by(|&a, &b| first[a as usize].total_cmp(&first[b as usize])).unwrap();
        // A row without a string, which is never drawn.
        let never = 33;
        for proposer in ["right", "wrong", "half"] {
            // The first token comes with the prompt; the second is where drafts may be.
            let (mut one, mut pairs) = (vec![0; 32], vec![0; 32 * 32]);
            let lead =
                GenerateOptions { stop_ids: vec![], max_new_tokens: Some(2), ..GenerateOptions::default() };
            let mut accepted = 0;
            for seed in 0..SAMPLES {
                let sampling = SamplingParams { seed: Some(seed), ..base.clone() };
                let mut engine = FakeEngine::new(64);
                let options = GenerateOptions { sampling, max_new_tokens: Some(3), ..lead.clone() };
                let propose = move |tokens: &[u32], most: usize| {
                    let good = match proposer {
                        "right" => true,
                        "wrong" => false,
                        _ => seed % 2 == 0,
                    };
                    let guess = if good { best } else { never };
                    vec![guess, tokens[0]].into_iter().take(most).collect::<Vec<u32>>()
                };
                let mut sequence = Sequence::new(&engine, &tokenizer, &prompt, options)
                    .unwrap()
                    .with_proposer(Box::new(propose));
                engine.reset();
                run(&mut engine, &mut sequence, &mut PassCost::default(), &mut |_| ControlFlow::Continue(()))
                    .unwrap();
                let drawn = sequence.into_generation().unwrap();
                accepted += drawn.drafts.accepted;
                let [a, b, _] = drawn.token_ids[..] else { panic!("three tokens") };
                one[b as usize] += 1;
                pairs[(a * 32 + b) as usize] += 1;
            }
            assert_eq!(accepted > 0, proposer != "wrong", "{proposer}");
            let mut joint = vec![0.0; 32 * 32];
            for a in (0..32).filter(|&a| first[a as usize] > 0.0) {
                let next = distribution(&[3, 1, 4, a], 3, &base);
                for b in 0..32 {
                    joint[(a * 32 + b) as usize] = first[a as usize] * next[b as usize];
                }
            }
            let alone: Vec<f64> = (0..32).map(|b| (0..32).map(|a| joint[a * 32 + b]).sum()).collect();
            for (counts, probabilities) in [(&one, &alone), (&pairs, &joint)] {
                let (found, freedom) = statistic(counts, probabilities);
                assert!(freedom >= 10.0, "{freedom} cells");
                assert!(
                    found < critical(freedom),
                    "{proposer} at {temperature}: {found} of {}",
                    critical(freedom)
                );
            }
        }
    }
}

#[test]
fn the_statistic_notices_a_wrong_distribution() {
    // The draft drawn once more after it was rejected, as if nothing had been taken from the target.
    let probabilities = vec![1.0 / 32.0; 32];
    let mut counts = vec![SAMPLES / 32; 32];
    assert!(statistic(&counts, &probabilities).0 < critical(31.0));
    counts[3] *= 2;
    assert!(statistic(&counts, &probabilities).0 > critical(31.0));
    // Tables: 6.63 at 1, 50.89 at 30 degrees of freedom.
    assert!((critical(1.0) - 6.63).abs() < 0.1 && (critical(30.0) - 50.89).abs() < 0.1);
}
