//! The action head, which stays in f32 on the host wherever the rest of a decision model runs.

use anemone_checkpoint::Weights;
use anemone_kernels::{Activation, Context, Input, Output, activate, matmul};
use anemone_models::{ActionHead, Laya};

use crate::Error;
use crate::layer::product;
use crate::model::{LinearWeight, Loader};

/// The weights of the action head.
#[derive(Debug)]
pub(super) struct ActionWeights {
    dense: LinearWeight,
    out: LinearWeight,
}

impl ActionWeights {
    pub(super) fn load(loader: &Loader<'_>, head: &ActionHead) -> Result<Self, Error> {
        Ok(Self { dense: loader.linear(&head.dense)?, out: loader.linear(&head.out)? })
    }

    /// Scores of the actions of `count` rows of `[first token | features]`.
    pub(super) fn logits(&self, context: &Context, inputs: &[f32], count: usize) -> Vec<f32> {
        let mut inner = vec![0.0; count * self.dense.weight.rows()];
        matmul(context, Input::F32(inputs), count, &mut [product(&self.dense, &mut inner)]);
        let mut activated = vec![0.0; inner.len()];
        activate(context, Activation::Gelu, &inner, Output::F32(&mut activated));
        let mut logits = vec![0.0; count * self.out.weight.rows()];
        matmul(context, Input::F32(&activated), count, &mut [product(&self.out, &mut logits)]);
        logits
    }
}

/// The action head of a decision model on its own, for one whose other parts run elsewhere.
#[derive(Debug)]
pub struct ActionReadout {
    weights: ActionWeights,
    context: Context,
}

impl ActionReadout {
    /// Reads the head's weights.
    pub fn load(laya: &Laya, weights: &dyn Weights) -> Result<Self, Error> {
        let weights = ActionWeights::load(&Loader::of_tensors(weights), &laya.action)?;
        Ok(Self { weights, context: Context::new(1) })
    }

    /// Scores of the actions from a row's first token after the model's head, of `hidden` channels, and its options' scores.
    ///
    /// Panics when there are fewer or more channels.
    pub fn score(&self, first: &[f32], logits: &[f32]) -> Vec<f32> {
        let inputs = [first, &features(logits)].concat();
        self.weights.logits(&self.context, &inputs, 1)
    }
}

/// What the action head sees of the options' scores: the largest probability, its lead, the entropy and the number of options.
pub(super) fn features(logits: &[f32]) -> [f32; 4] {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let terms: Vec<f32> = logits.iter().map(|v| (v - max).exp()).collect();
    let sum: f32 = terms.iter().sum();
    let (mut best, mut second, mut entropy) = (0.0f32, 0.0f32, 0.0f32);
    for p in terms.iter().map(|t| t / sum) {
        (best, second) = if p > best { (p, best) } else { (best, second.max(p)) };
        entropy -= p * p.max(1e-9).ln();
    }
    let count = logits.len().max(2) as f32;
    [best, best - second, entropy / count.ln(), count / 255.0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_known_distributions() {
        let [best, lead, entropy, count] = features(&[0.0, 0.0, 0.0, 0.0]);
        assert!((best - 0.25).abs() < 1e-6 && lead == 0.0);
        assert!((entropy - 1.0).abs() < 1e-6 && count == 4.0 / 255.0);
        // A single option counts as two.
        assert_eq!(features(&[3.0]), [1.0, 1.0, 0.0, 2.0 / 255.0]);
        let [best, lead, _, _] = features(&[2f32.ln(), 0.0]);
        assert!((best - 2.0 / 3.0).abs() < 1e-6 && (lead - 1.0 / 3.0).abs() < 1e-6);
    }
}
