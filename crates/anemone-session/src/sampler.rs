#![allow(clippy::float_cmp, reason = "0 and 1 switch a step off, and a maximum is one of its values")]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::{Error, Result, TokenMask};

mod exp;
mod history;
mod params;

use exp::{exp, sum_exp};
pub use history::History;
pub use params::{SamplingParams, SamplingPreset};

/// A token drawn by a [`Sampler`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Natural logarithm of the probability the model itself gives it, before penalties and filters.
    pub logprob: f32,
}

/// Tokens that may not be drawn, whatever their logits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bars<'a> {
    /// Only tokens of this set may be drawn.
    pub mask: Option<&'a TokenMask>,
    /// These may not.
    pub banned: &'a [u32],
}

impl Bars<'_> {
    fn apply(&self, logits: &mut [f32]) {
        if let Some(mask) = self.mask {
            for (at, chunk) in logits.chunks_mut(32).enumerate() {
                match mask.words().get(at).copied().unwrap_or(0) {
                    u32::MAX => {}
                    0 => chunk.fill(f32::NEG_INFINITY),
                    word => {
                        for (bit, logit) in chunk.iter_mut().enumerate() {
                            *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                        }
                    }
                }
            }
        }
        for &id in self.banned {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Draws tokens from logits.
///
/// The steps are those of the transformers library: `logit_bias`, repetition penalty, frequency and presence
/// penalties, temperature, `top_k` (ties with the k-th stay), `top_p`, `min_p`, draw. The same seed and the same
/// logits give the same tokens on any platform.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    seed: u64,
    rng: ChaCha8Rng,
    allowed_vocab: Option<usize>,
    scratch: Scratch,
}

#[derive(Debug, Default)]
struct Scratch {
    logits: Vec<f32>,
    largest: Vec<f32>,
    /// Surviving tokens in id order and their weights; the largest weight is 1, some may be 0.
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler with its own generator, seeded from the parameters or from the system.
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.validate()?;
        // The standard library's hasher is keyed by the system's entropy.
        let seed = params.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = ChaCha8Rng::from_seed(bytes);
        Ok(Self { params, seed, rng, allowed_vocab: None, scratch: Scratch::default() })
    }

    /// Never draws ids at or above `size`, e.g. the rows beyond the tokenizer's.
    #[must_use]
    pub fn with_allowed_vocab(mut self, size: usize) -> Self {
        self.allowed_vocab = Some(size);
        self
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The seed in use, with which the run can be repeated.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Draws a token; `logits` is `[vocab]`.
    pub fn sample(&mut self, logits: &[f32], history: &History) -> Result<Sampled> {
        self.sample_under(logits, history, Bars::default())
    }

    /// Draws a token that is not barred; its log probability is that of the model without bars.
    pub fn sample_under(&mut self, logits: &[f32], history: &History, bars: Bars<'_>) -> Result<Sampled> {
        let logits = self.allowed(logits);
        let max = check(logits)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.candidates(logits, history, bars, &mut scratch);
        let id = result.map(|()| match scratch.candidates[..] {
            [(only, _)] => only,
            _ => self.draw(&scratch.candidates),
        });
        self.scratch = scratch;
        let id = id?;
        let logprob = f64::from(logits[id as usize] - max) - sum_exp(logits, max).ln();
        Ok(Sampled { id, logprob: logprob as f32 })
    }

    /// The distribution [`sample`](Self::sample) draws from: tokens in id order, probabilities that sum to 1.
    pub fn distribution(&self, logits: &[f32], history: &History) -> Result<Vec<(u32, f32)>> {
        let logits = self.allowed(logits);
        check(logits)?;
        let mut scratch = Scratch::default();
        self.candidates(logits, history, Bars::default(), &mut scratch)?;
        let total = total(&scratch.candidates);
        let mut candidates = scratch.candidates;
        candidates.retain(|&(_, weight)| weight > 0.0);
        for (_, weight) in &mut candidates {
            *weight = (f64::from(*weight) / total) as f32;
        }
        Ok(candidates)
    }

    /// The log probability the model gives a token, before penalties and filters; `-inf` for one it has no row for.
    pub fn logprob(&self, logits: &[f32], id: u32) -> Result<f32> {
        let logits = self.allowed(logits);
        let max = check(logits)?;
        let Some(logit) = logits.get(id as usize) else { return Ok(f32::NEG_INFINITY) };
        Ok((f64::from(logit - max) - sum_exp(logits, max).ln()) as f32)
    }

    /// The `count` most likely tokens with their log probabilities, as the model itself has them, the likeliest first (the lower
    /// id of a tie first).
    pub fn top_logprobs(&self, logits: &[f32], count: usize) -> Result<Vec<(u32, f32)>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let logits = self.allowed(logits);
        let max = check(logits)?;
        let floor = if count < logits.len() {
            kth_largest(logits, count, &mut Vec::new())
        } else {
            f32::NEG_INFINITY
        };
        let mut top: Vec<(u32, f32)> =
            logits.iter().enumerate().filter(|(_, l)| **l >= floor).map(|(id, &l)| (id as u32, l)).collect();
        top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        top.truncate(count);
        let total = sum_exp(logits, max).ln();
        for (_, logit) in &mut top {
            *logit = (f64::from(*logit - max) - total) as f32;
        }
        Ok(top)
    }

    /// Draws from tokens with weights that need not sum to 1; `candidates` must not be empty.
    pub fn draw(&mut self, candidates: &[(u32, f32)]) -> u32 {
        let mut left = self.uniform() * total(candidates);
        let mut chosen = 0;
        for &(id, weight) in candidates {
            if weight > 0.0 {
                chosen = id;
                left -= f64::from(weight);
                if left < 0.0 {
                    break;
                }
            }
        }
        chosen
    }

    /// The generator's next number in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn allowed<'a>(&self, logits: &'a [f32]) -> &'a [f32] {
        &logits[..self.allowed_vocab.unwrap_or(usize::MAX).min(logits.len())]
    }

    fn candidates(
        &self,
        raw: &[f32],
        history: &History,
        bars: Bars<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let p = &self.params;
        let Scratch { logits, largest, candidates } = scratch;
        logits.clear();
        logits.extend_from_slice(raw);
        self.penalise(logits, history)?;
        bars.apply(logits);
        candidates.clear();
        let max = check(logits)?;
        if p.temperature == 0.0 {
            let id = logits.iter().position(|&l| l == max).unwrap_or(0);
            candidates.push((id as u32, 1.0));
            return Ok(());
        }
        let mut floor = if p.top_k > 0 && p.top_k < logits.len() {
            kth_largest(logits, p.top_k, largest)
        } else {
            f32::MIN
        };
        if p.min_p > 0.0 && p.top_p >= 1.0 {
            // Only spares work: what it leaves out would fall to min_p below.
            floor = floor.max(max + p.temperature * (p.min_p.ln() - 0.01));
        }
        let weigh = |(id, &l): (usize, &f32)| (id as u32, exp((l - max) / p.temperature));
        if floor > f32::MIN {
            candidates.extend(logits.iter().enumerate().filter(|&(_, &l)| l >= floor).map(weigh));
        } else {
            candidates.extend(logits.iter().enumerate().map(weigh));
        }
        if p.top_p < 1.0 {
            keep_nucleus(candidates, p.top_p);
        }
        if p.min_p > 0.0 {
            candidates.retain(|&(_, weight)| weight >= p.min_p);
        }
        Ok(())
    }

    fn penalise(&self, logits: &mut [f32], history: &History) -> Result<()> {
        let p = &self.params;
        for &(id, bias) in &p.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            } else if self.allowed_vocab.is_none_or(|size| (id as usize) < size) {
                return Err(Error::Sampling {
                    field: "logit_bias",
                    value: format!("token {id}"),
                    allowed: "ids of the model's vocabulary",
                });
            }
        }
        if !p.has_penalties() {
            return Ok(());
        }
        for (id, generated) in history.tokens() {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            let scaled =
                if *logit > 0.0 { *logit / p.repetition_penalty } else { *logit * p.repetition_penalty };
            let presence = if generated > 0 { p.presence_penalty } else { 0.0 };
            *logit = scaled - p.frequency_penalty * generated as f32 - presence;
        }
        Ok(())
    }
}

/// The largest logit; errors when there is none or one is not a number below infinity.
fn check(logits: &[f32]) -> Result<f32> {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut nan = false;
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &l) in lanes.iter_mut().zip(chunk) {
            nan |= l.is_nan();
            *lane = if l > *lane { l } else { *lane };
        }
    }
    nan |= rest.iter().any(|l| l.is_nan());
    let max = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    if nan || max == f32::INFINITY {
        let found = logits.iter().enumerate().find(|(_, l)| l.is_nan() || **l == f32::INFINITY);
        let (id, value) = found.map_or((0, f32::NAN), |(id, &l)| (id, l));
        return Err(Error::BadLogit { id, value });
    }
    if max == f32::NEG_INFINITY {
        return Err(Error::NoCandidate { candidates: logits.len() });
    }
    Ok(max)
}

/// The k-th largest of more than k values, `k > 0`; -inf counts as the smallest finite number.
fn kth_largest(logits: &[f32], k: usize, buffer: &mut Vec<f32>) -> f32 {
    let capacity = 2 * k + 256;
    let shrink = |buffer: &mut Vec<f32>| {
        let (_, &mut kth, _) = buffer.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        buffer.truncate(k);
        kth
    };
    buffer.clear();
    let mut floor = f32::MIN;
    for &l in logits {
        if l > floor {
            buffer.push(l);
            if buffer.len() == capacity {
                floor = shrink(buffer);
            }
        }
    }
    if buffer.len() < k { f32::MIN } else { shrink(buffer) }
}

/// Keeps the fewest most likely tokens whose probability reaches `top_p`, in id order; the lower id of a tie first.
fn keep_nucleus(candidates: &mut Vec<(u32, f32)>, top_p: f32) {
    let total = total(candidates);
    // Tokens below an equal share of the tail are in the tail, so they need no sorting.
    let share = (1.0 - f64::from(top_p)) * total / candidates.len() as f64;
    candidates.retain(|&(_, weight)| weight == 1.0 || f64::from(weight) >= share);
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let mut before = 0.0;
    let mut kept = 0;
    let mut sorted = 0;
    while kept < candidates.len() && (kept == 0 || before < f64::from(top_p) * total) {
        if kept == sorted {
            // Most nuclei are small, so the order is found a part at a time.
            let part = &mut candidates[sorted..];
            let more = part.len().min(sorted.max(32) * 7);
            if more < part.len() {
                part.select_nth_unstable_by(more, order);
            }
            part[..more].sort_unstable_by(order);
            sorted += more;
        }
        before += f64::from(candidates[kept].1);
        kept += 1;
    }
    candidates.truncate(kept);
    candidates.sort_unstable_by_key(|&(id, _)| id);
}

fn total(candidates: &[(u32, f32)]) -> f64 {
    candidates.iter().map(|&(_, weight)| f64::from(weight)).sum()
}

#[cfg(test)]
mod tests;
