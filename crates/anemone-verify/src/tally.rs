use anemone_tensor::{compare, cosine, max_abs_diff};

use crate::report::{LayerDrift, PassReport, Place};

/// What was measured in one kind of pass.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) name: String,
    positions: usize,
    lowest: Option<(f64, Place)>,
    cosine_sum: f64,
    max_abs: f64,
    kl: f64,
    kl_sum: f64,
    /// Positions with logits or a recorded best token, and how many agree.
    judged: usize,
    agreed: usize,
    layers: Vec<LayerDrift>,
}

impl Tally {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Compares the logits after one position.
    pub(crate) fn logits(&mut self, place: Place, reference: &[f32], found: &[f32]) {
        let c = compare(reference, found);
        if self.lowest.as_ref().is_none_or(|(lowest, _)| c.cosine < *lowest || c.cosine.is_nan()) {
            self.lowest = Some((c.cosine, place));
        }
        self.positions += 1;
        self.cosine_sum += c.cosine;
        self.max_abs = self.max_abs.max(c.max_abs);
        self.kl = self.kl.max(c.kl);
        self.kl_sum += c.kl;
        self.argmax(c.argmax_equal);
    }

    /// Counts whether a best token is the reference's.
    pub(crate) fn argmax(&mut self, equal: bool) {
        self.judged += 1;
        self.agreed += usize::from(equal);
    }

    /// Compares the stream of a layer at one position.
    pub(crate) fn layer(&mut self, path: &str, last: bool, reference: &[f32], found: &[f32]) {
        let at = self.layers.iter().position(|l| l.path == path).unwrap_or_else(|| {
            self.layers.push(LayerDrift::new(path));
            self.layers.len() - 1
        });
        self.layers[at].add(cosine(reference, found), max_abs_diff(reference, found), last);
    }

    pub(crate) fn positions(&self) -> usize {
        self.positions
    }

    pub(crate) fn max_abs(&self) -> f64 {
        self.max_abs
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.judged == 0 && self.layers.is_empty()
    }

    pub(crate) fn report(self) -> PassReport {
        let mean = |sum: f64| if self.positions == 0 { None } else { Some(sum / self.positions as f64) };
        PassReport {
            positions: self.positions,
            cosine_mean: mean(self.cosine_sum),
            kl_mean: mean(self.kl_sum),
            cosine: self.lowest.as_ref().map(|(cosine, _)| *cosine),
            worst: self.lowest.map(|(_, place)| place),
            max_abs: self.max_abs,
            kl: self.kl,
            judged: self.judged,
            agreed: self.agreed,
            layers: self.layers,
            name: self.name,
        }
    }
}
