use serde::Serialize;
use serde_json::{Map, Value, json};

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The least cosine that passes.
    pub min_cos: f64,
    /// Each kind of pass, in order; the last is the generation.
    pub passes: Vec<PassReport>,
    /// Largest difference of two logits over the prompts: how far apart two tokens must be to be told apart.
    pub error: f64,
    /// Greedy tokens compared.
    pub generated: usize,
    /// Places where another token is best, in order.
    pub divergences: Vec<Divergence>,
    /// Recordings that were not compared, and why.
    pub skipped: Vec<Skipped>,
    /// What did not pass; empty when all did.
    pub failures: Vec<String>,
}

/// What was measured in one kind of pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PassReport {
    /// Name of the function, `all` for an engine without, or `generation`.
    pub name: String,
    /// Positions whose logits were compared.
    pub positions: usize,
    /// Least cosine of the logits.
    pub cosine: Option<f64>,
    /// Mean cosine of the logits.
    pub cosine_mean: Option<f64>,
    /// Where the cosine is least.
    pub worst: Option<Place>,
    /// Largest difference of two logits.
    pub max_abs: f64,
    /// Largest divergence KL(reference ‖ engine), in nats.
    pub kl: f64,
    /// Mean divergence.
    pub kl_mean: Option<f64>,
    /// Positions whose best token is known.
    pub judged: usize,
    /// Those of them where it is the reference's.
    pub agreed: usize,
    /// Drift of the residual stream, in order of the model.
    pub layers: Vec<LayerDrift>,
}

/// A position of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The recording.
    pub prompt: String,
    /// Its position, from 0.
    pub position: usize,
}

/// How far a layer's output is from the reference's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerDrift {
    /// Module path.
    pub path: String,
    /// Least cosine over all positions.
    pub cosine: f64,
    /// Least cosine over the last positions of the recordings.
    pub cosine_last: Option<f64>,
    /// Largest difference.
    pub max_abs: f64,
}

/// A place where the engine's best token is not the reference's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Divergence {
    /// The kind of pass.
    pub pass: String,
    /// The recording.
    pub prompt: String,
    /// Position of the token that would come next.
    pub position: usize,
    /// Which token of the continuation it is, from 0; absent within the prompt.
    pub step: Option<usize>,
    /// The reference's token.
    pub expected: u32,
    /// The engine's.
    pub found: u32,
    /// The reference's lead of its best token over its second best, where its logits are recorded.
    pub margin: Option<f64>,
    /// By how much the reference prefers its token to the engine's; without its logits, the engine the other way round.
    pub gap: f64,
    /// Whether the gap is within the error of the logits, and their cosines pass.
    pub tie: bool,
}

/// A recording that was not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The recording.
    pub prompt: String,
    /// Why.
    pub reason: String,
}

impl LayerDrift {
    pub(crate) fn new(path: &str) -> Self {
        Self { path: path.to_owned(), cosine: 1.0, cosine_last: None, max_abs: 0.0 }
    }

    pub(crate) fn add(&mut self, cosine: f64, max_abs: f64, last: bool) {
        // A NaN is as far as can be.
        let cosine = if cosine.is_nan() { 0.0 } else { cosine };
        self.cosine = self.cosine.min(cosine);
        self.max_abs = self.max_abs.max(max_abs);
        if last {
            self.cosine_last = Some(self.cosine_last.map_or(cosine, |c| c.min(cosine)));
        }
    }
}

impl Report {
    /// Whether everything is within bounds.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// Least cosine of the logits of all passes.
    pub fn cosine(&self) -> Option<f64> {
        self.passes.iter().filter_map(|p| p.cosine).reduce(f64::min)
    }

    /// Mean cosine of the logits of all passes.
    pub fn cosine_mean(&self) -> Option<f64> {
        self.mean(|p| p.cosine_mean)
    }

    /// Largest difference of two logits in all passes.
    pub fn max_abs(&self) -> f64 {
        self.passes.iter().map(|p| p.max_abs).fold(0.0, f64::max)
    }

    /// Largest divergence of all passes.
    pub fn kl(&self) -> f64 {
        self.passes.iter().map(|p| p.kl).fold(0.0, f64::max)
    }

    /// Share of positions with the reference's best token.
    pub fn argmax_agreement(&self) -> Option<f64> {
        let judged: usize = self.passes.iter().map(|p| p.judged).sum();
        let agreed: usize = self.passes.iter().map(|p| p.agreed).sum();
        (judged > 0).then(|| agreed as f64 / judged as f64)
    }

    /// The first place of a continuation where another token is best.
    pub fn first_divergence(&self) -> Option<&Divergence> {
        self.divergences.iter().filter(|d| d.step.is_some()).min_by_key(|d| d.step)
    }

    /// Drift of each layer over all passes.
    pub fn layers(&self) -> Vec<LayerDrift> {
        let mut layers: Vec<LayerDrift> = Vec::new();
        for drift in self.passes.iter().flat_map(|p| &p.layers) {
            let Some(layer) = layers.iter_mut().find(|l| l.path == drift.path) else {
                layers.push(drift.clone());
                continue;
            };
            layer.cosine = layer.cosine.min(drift.cosine);
            layer.max_abs = layer.max_abs.max(drift.max_abs);
            layer.cosine_last = layer.cosine_last.into_iter().chain(drift.cosine_last).reduce(f64::min);
        }
        layers
    }

    /// The report as one object.
    pub fn to_json(&self) -> Value {
        let layers: Map<String, Value> = (self.layers().into_iter())
            .map(|l| {
                let values = json!({"cosine": l.cosine, "cosine_last": l.cosine_last, "max_abs": l.max_abs});
                (l.path, values)
            })
            .collect();
        json!({
            "passed": self.passed(),
            "min_cos": self.min_cos,
            "cosine": self.cosine(),
            "cosine_mean": self.cosine_mean(),
            "max_abs": self.max_abs(),
            "kl": self.kl(),
            "kl_mean": self.mean(|p| p.kl_mean),
            "argmax_equal": self.passes.iter().all(|p| p.agreed == p.judged),
            "argmax_agreement": self.argmax_agreement(),
            "positions": self.passes.iter().map(|p| p.positions).sum::<usize>(),
            "layers": layers,
            "first_divergence": self.first_divergence(),
            "divergences": self.divergences,
            "error": self.error,
            "generated": self.generated,
            "passes": self.passes,
            "skipped": self.skipped,
            "failures": self.failures,
        })
    }

    fn mean(&self, of: impl Fn(&PassReport) -> Option<f64>) -> Option<f64> {
        let positions: usize = self.passes.iter().map(|p| p.positions).sum();
        let sum: f64 = self.passes.iter().filter_map(|p| of(p).map(|m| m * p.positions as f64)).sum();
        (positions > 0).then(|| sum / positions as f64)
    }
}
