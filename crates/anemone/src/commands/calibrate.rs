//! The model that a calibration text, or rows of questions, is run through.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anemone_calibrate::{Calibration, Measures, measure};
use anemone_checkpoint::{Checkpoint, DecisionCheckpoint, Weights};
use anemone_cpu::{
    Arithmetic, Engine, LayaEngine, LayaModel, LayaOptions, Layout, LogitsOf, Model, Observe, Options, Scores,
};
use anemone_decide::{Decider, Question, Request, Value};
use anemone_models::{Laya, Stack};
use anemone_tensor::kl_divergence;
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::texts;
use super::validate;
use crate::model;

/// Tokens of a stretch of text that is run in one go.
const WINDOW: usize = 512;
/// Tokens whose logits are held at once.
const PART: usize = 128;
/// Bytes of moments held at a time.
const BUDGET: usize = 512 << 20;

/// A model and what it is run over.
pub(crate) struct Subject {
    kind: Kind,
    threads: usize,
}

enum Kind {
    Language { stack: Stack, weights: Arc<dyn Weights>, sequences: Vec<Vec<u32>> },
    Decision { checkpoint: Arc<DecisionCheckpoint>, cases: Vec<(Value, Vec<Question>)> },
}

/// What a candidate lost over text or rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lost {
    Language(Measures),
    /// Mean divergence of the probabilities of options and of actions, in nats, and the largest difference of a probability.
    Decision {
        kl: f64,
        largest: f64,
    },
}

impl Lost {
    /// As JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        match self {
            Self::Language(m) => json!({
                "tokens": m.tokens,
                "reference_perplexity": m.reference_perplexity,
                "perplexity": m.perplexity,
                "kl": m.kl,
                "cosine": m.cosine,
                "least_cosine": m.least_cosine,
                "agreement": m.agreement,
            }),
            Self::Decision { kl, largest } => json!({"kl": kl, "max_probability_error": largest}),
        }
    }

    /// As a line of a report.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Language(m) => format!(
                "perplexity {:.4} (source {:.4}), divergence {:.6}, cosine {:.6}, least {:.5}, same best token {:.2} %",
                m.perplexity,
                m.reference_perplexity,
                m.kl,
                m.cosine,
                m.least_cosine,
                100.0 * m.agreement
            ),
            Self::Decision { kl, largest } => {
                format!("divergence {kl:.6}, probabilities within {largest:.5}")
            }
        }
    }

    /// Mean divergence, in nats.
    pub(crate) fn kl(&self) -> f64 {
        match self {
            Self::Language(measures) => measures.kl,
            Self::Decision { kl, .. } => *kl,
        }
    }
}

impl Subject {
    /// A language model over the text of `flag`, of which at most `tokens` are used.
    pub(crate) fn language(
        (flag, path): (&str, &Path),
        tokens: usize,
        checkpoint: &Checkpoint,
        threads: usize,
    ) -> Result<Self> {
        let stack = model::stack(checkpoint)?;
        let tokenizer =
            model::tokenizer(checkpoint).with_context(|| format!("{flag} needs the model's tokenizer"))?;
        let window = WINDOW.min(stack.max_position_embeddings);
        let all = texts::read(flag, path)?;
        let sequences = texts::windows(&all, &tokenizer, tokens, window, stack.vocab_size)
            .with_context(|| format!("{flag} {}", path.display()))?;
        Ok(Self { kind: Kind::Language { stack, weights: checkpoint.weights(), sequences }, threads })
    }

    /// A decision model over rows of a JSONL file, as `validate --batch` reads them.
    pub(crate) fn decision(
        (flag, path): (&str, &Path),
        checkpoint: Arc<DecisionCheckpoint>,
        threads: usize,
    ) -> Result<Self> {
        let cases = validate::rows(flag, path)?;
        Ok(Self { kind: Kind::Decision { checkpoint, cases }, threads })
    }

    /// Tokens of the text, or states of the rows.
    pub(crate) fn size(&self) -> usize {
        match &self.kind {
            Kind::Language { sequences, .. } => sequences.iter().map(Vec::len).sum(),
            Kind::Decision { cases, .. } => cases.len(),
        }
    }

    /// Whether it is a language model.
    pub(crate) fn is_language(&self) -> bool {
        matches!(self.kind, Kind::Language { .. })
    }

    /// The model's weights.
    pub(crate) fn weights(&self) -> Arc<dyn Weights> {
        match &self.kind {
            Kind::Language { weights, .. } => Arc::clone(weights),
            Kind::Decision { checkpoint, .. } => checkpoint.weights(),
        }
    }

    /// The moments of the model's inputs.
    pub(crate) fn calibration(&self) -> Result<Calibration> {
        let run: anemone_calibrate::Run = match &self.kind {
            Kind::Language { stack, weights, sequences } => {
                let mut engine = language(stack, &**weights, self.threads)?;
                let sequences = sequences.clone();
                Box::new(move |observe| {
                    engine.observe(Some(observe));
                    for ids in &sequences {
                        engine.reset();
                        engine.feed(ids, LogitsOf::All)?;
                    }
                    engine.observe(None);
                    Ok(())
                })
            }
            Kind::Decision { checkpoint, cases } => {
                let (mut decider, slot) = observed(checkpoint, self.threads)?;
                let cases = cases.clone();
                Box::new(move |observe| {
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(observe);
                    let done = scores(&mut decider, &cases);
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    done.map(|_| ()).map_err(|e| anemone_calibrate::Error::Run(format!("{e:#}")))
                })
            }
        };
        Ok(Calibration::new(run, BUDGET, self.threads)?)
    }

    /// What compares candidates with the model.
    pub(crate) fn judge(&self) -> Result<Judge<'_>> {
        let reference = match &self.kind {
            Kind::Language { stack, weights, .. } => {
                Reference::Language(Box::new(language(stack, &**weights, self.threads)?))
            }
            Kind::Decision { checkpoint, cases } => {
                let (mut decider, _) = observed(checkpoint, self.threads)?;
                Reference::Decision(scores(&mut decider, cases)?)
            }
        };
        Ok(Judge { subject: self, reference })
    }
}

/// Compares candidates with a model over its text or rows.
pub(crate) struct Judge<'a> {
    subject: &'a Subject,
    reference: Reference,
}

enum Reference {
    Language(Box<Engine>),
    Decision(Vec<Scores>),
}

impl Judge<'_> {
    /// What the model loses with other weights, over the first `share` of the text.
    pub(crate) fn lost(&mut self, weights: &dyn Weights, share: f64) -> Result<Lost> {
        let part = |n: usize| ((n as f64 * share).ceil() as usize).clamp(1, n.max(1));
        match (&self.subject.kind, &mut self.reference) {
            (Kind::Language { stack, sequences, .. }, Reference::Language(reference)) => {
                let mut candidate = language(stack, weights, self.subject.threads)?;
                let sequences = &sequences[..part(sequences.len())];
                Ok(Lost::Language(measure(reference, &mut candidate, sequences, PART)?))
            }
            (Kind::Decision { checkpoint, cases }, Reference::Decision(reference)) => {
                let mut decider = decider(checkpoint, weights, self.subject.threads, None)?;
                let found = scores(&mut decider, &cases[..part(cases.len())])?;
                Ok(apart(reference, &found))
            }
            _ => unreachable!("a judge is made for its subject"),
        }
    }
}

fn language(stack: &Stack, weights: &dyn Weights, threads: usize) -> Result<Engine> {
    let options = Options { arithmetic: Arithmetic::Exact, threads, ..Options::default() };
    let model = Model::load(stack.clone(), weights, Layout::Mapped)?;
    Ok(Engine::new(Arc::new(model), options)?)
}

type Slot = Arc<Mutex<Option<Observe>>>;

fn observed(checkpoint: &DecisionCheckpoint, threads: usize) -> Result<(Decider, Slot)> {
    let slot = Slot::default();
    let decider = decider(checkpoint, &*checkpoint.weights(), threads, Some(Arc::clone(&slot)))?;
    Ok((decider, slot))
}

/// The checkpoint with other weights, in f32; `slot` may hold what is shown its inputs.
fn decider(
    checkpoint: &DecisionCheckpoint,
    weights: &dyn Weights,
    threads: usize,
    slot: Option<Slot>,
) -> Result<Decider> {
    let made = Decider::with_engine(checkpoint, |_| {
        let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), weights)?;
        let model = Arc::new(LayaModel::load(laya, weights)?);
        let mut engine = LayaEngine::new(model, LayaOptions { threads, reduced: false });
        if let Some(slot) = slot {
            engine.observe(Some(Box::new(move |names, tokens, x| {
                if let Some(observe) = &mut *slot.lock().unwrap_or_else(PoisonError::into_inner) {
                    observe(names, tokens, x);
                }
            })));
        }
        Ok(Box::new(engine))
    });
    Ok(made?)
}

fn scores(decider: &mut Decider, cases: &[(Value, Vec<Question>)]) -> Result<Vec<Scores>> {
    let mut all = Vec::new();
    for (state, questions) in cases {
        let prompts = decider.prompts(state, questions, &Request::default())?;
        all.extend(decider.scores(&prompts, questions)?);
    }
    ensure!(!all.is_empty(), "there is no question to answer; give some");
    Ok(all)
}

fn apart(reference: &[Scores], found: &[Scores]) -> Lost {
    let (mut kl, mut largest) = (0.0, 0.0f64);
    for (expected, found) in reference.iter().zip(found) {
        for (a, b) in [(&expected.logits, &found.logits), (&expected.action_logits, &found.action_logits)] {
            kl += kl_divergence(a, b);
            let (a, b) = (softmax(a), softmax(b));
            largest = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(largest, f64::max);
        }
    }
    Lost::Decision { kl: kl / found.len() as f64, largest }
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let terms: Vec<f64> = logits.iter().map(|v| f64::from(v - max).exp()).collect();
    let sum: f64 = terms.iter().sum();
    terms.into_iter().map(|t| t / sum).collect()
}
