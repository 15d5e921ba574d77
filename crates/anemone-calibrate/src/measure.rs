use anemone_cpu::Engine;
use anemone_tensor::compare;

use crate::Error;

/// What a candidate lost against its source over some text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measures {
    /// Predicted tokens.
    pub tokens: usize,
    /// Perplexity of the source.
    pub reference_perplexity: f64,
    /// Perplexity of the candidate.
    pub perplexity: f64,
    /// Mean divergence of the candidate's distribution from the source's, in nats.
    pub kl: f64,
    /// Mean cosine of the logits.
    pub cosine: f64,
    /// Least cosine of the logits.
    pub least_cosine: f64,
    /// Share of positions with the same best token.
    pub agreement: f64,
}

/// Runs both engines over each sequence from its start and compares their logits position by position.
///
/// Every token but a sequence's first is predicted. `part` tokens' logits of the source are held at a time. Both engines are left
/// empty.
pub fn measure(
    reference: &mut Engine,
    candidate: &mut Engine,
    sequences: &[Vec<u32>],
    part: usize,
) -> Result<Measures, Error> {
    let vocab = reference.model().stack().vocab_size;
    let mut sums = Measures { least_cosine: 1.0, ..Measures::default() };
    let (mut own, mut theirs, mut positions) = (0.0, 0.0, 0usize);
    let mut held = Vec::new();
    for ids in sequences.iter().filter(|ids| !ids.is_empty()) {
        reference.reset();
        candidate.reset();
        for (i, tokens) in ids.chunks(part.max(1)).enumerate() {
            held.clear();
            reference.feed_each(tokens, &mut |_, logits| held.extend_from_slice(logits))?;
            let first = i * part.max(1);
            candidate.feed_each(tokens, &mut |at, logits| {
                let expected = &held[at * vocab..(at + 1) * vocab];
                let compared = compare(expected, logits);
                sums.kl += compared.kl;
                sums.cosine += compared.cosine;
                sums.least_cosine = sums.least_cosine.min(compared.cosine);
                sums.agreement += f64::from(u8::from(compared.argmax_equal));
                positions += 1;
                if let Some(next) = ids.get(first + at + 1) {
                    theirs += surprise(expected, *next as usize);
                    own += surprise(logits, *next as usize);
                    sums.tokens += 1;
                }
            })?;
        }
    }
    reference.reset();
    candidate.reset();
    if sums.tokens == 0 {
        return Err(Error::NoTokens);
    }
    let (n, all) = (sums.tokens as f64, positions as f64);
    Ok(Measures {
        reference_perplexity: (theirs / n).exp(),
        perplexity: (own / n).exp(),
        kl: sums.kl / all,
        cosine: sums.cosine / all,
        agreement: sums.agreement / all,
        ..sums
    })
}

/// Negative log likelihood of a token.
fn surprise(logits: &[f32], token: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|v| f64::from(v - max).exp()).sum();
    sum.ln() - f64::from(logits[token] - max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surprise_is_the_negative_log_likelihood() {
        assert!((surprise(&[2.0, 2.0, 2.0, 2.0], 1) - 4f64.ln()).abs() < 1e-12);
        assert!((surprise(&[0.0, 3f32.ln()], 1) - (4.0f64 / 3.0).ln()).abs() < 1e-7);
    }
}
