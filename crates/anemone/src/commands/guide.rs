//! What `--calibrate` adds to compression.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anemone_bundle::{CalibrationRecord, Site, file_sha256};
use anemone_calibrate::Calibration;
use anemone_kernels::Context as Kernels;
use anemone_palettize::{
    Feedback, Importance, Matrix, Palettized, Scheme, palettize, palettize_with_feedback,
};
use anyhow::{Context, Result};

use super::calibrate::Subject;
use super::mixed::{self, Goal};
use crate::cli::Shell;
use crate::output;

/// Times a table is fitted to what errors ask for.
const ROUNDS: usize = 3;

/// The moments of a model's inputs, and what follows from them.
pub(crate) struct Guide {
    calibration: Calibration,
    feedback: bool,
    /// Bits of each weight, where they differ.
    bits: Option<BTreeMap<String, u8>>,
    /// What a manifest says of it.
    pub(crate) record: CalibrationRecord,
}

/// What is asked of a guide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) feedback: bool,
    /// For mixed bits.
    pub(crate) goal: Option<Goal>,
}

impl Guide {
    /// Runs the subject over the text of `path`; plans the bits of the weights that `chosen` admits where a goal asks for it.
    pub(crate) fn new(
        path: &Path,
        subject: &Subject,
        wish: Wish,
        scheme: Option<&Scheme>,
        chosen: &dyn Fn(&Site) -> bool,
        kernels: &Kernels,
        shell: &Shell,
    ) -> Result<Self> {
        let label = || format!("--calibrate {}", path.display());
        let mut guide = Self {
            calibration: subject.calibration().with_context(label)?,
            feedback: wish.feedback && scheme.is_none_or(|s| s.vector == 1),
            bits: None,
            record: CalibrationRecord {
                sha256: file_sha256(path)?,
                tokens: 0,
                feedback: false,
                goal: wish.goal.map(|goal| goal.to_string()),
            },
        };
        guide.record.tokens = guide.calibration.tokens();
        guide.record.feedback = guide.feedback && scheme.is_some();
        if let (Some(goal), Some(scheme)) = (wish.goal, scheme) {
            guide.plan(subject, goal, scheme, chosen, kernels, shell)?;
        }
        Ok(guide)
    }

    fn plan(
        &mut self,
        subject: &Subject,
        goal: Goal,
        scheme: &Scheme,
        chosen: &dyn Fn(&Site) -> bool,
        kernels: &Kernels,
        shell: &Shell,
    ) -> Result<()> {
        let weights = subject.weights();
        let admits = |name: &String| {
            let Some(entry) = weights.entry(name).filter(|e| e.shape.len() == 2) else { return false };
            let record = anemone_ane::WeightRecord::whole(name, &entry.shape);
            chosen(&Site { records: vec![record], shape: entry.shape.to_vec() })
        };
        let names: Vec<String> = self.calibration.maps().into_iter().filter(admits).collect();
        let bar = indicatif::ProgressBar::new(names.len() as u64);
        if shell.quiet {
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
        let plan = mixed::plan(subject, self, &names, scheme, goal, kernels, &|| bar.inc(1))?;
        bar.finish_and_clear();
        if !shell.quiet {
            output::note(&format!(
                "bits chosen for {} weights; over the calibration: {}",
                names.len(),
                plan.lost.line()
            ));
        }
        self.bits = Some(plan.bits);
        Ok(())
    }

    /// The scheme of a weight, with its own bits where they were planned; those not met by the text keep the most.
    pub(crate) fn scheme(&self, site: &Site, scheme: Scheme) -> Scheme {
        let bits = self.bits.as_ref().map(|bits| bits.get(site.tensor()).copied().unwrap_or(8));
        Scheme { bits: bits.unwrap_or(scheme.bits), ..scheme }
    }

    /// What an error in each column costs; `None` where the text never met the map.
    pub(crate) fn importance(&self, tensor: &str, columns: Range<usize>) -> Result<Option<Vec<f32>>> {
        Ok(self.calibration.importance(tensor, columns)?)
    }

    /// Codes and tables that keep the map's output near; those nearest the weights where the text never met the map.
    pub(crate) fn palettize(
        &self,
        matrix: Matrix<'_>,
        scheme: &Scheme,
        (tensor, columns): (&str, Range<usize>),
        kernels: &Kernels,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Palettized> {
        if self.feedback
            && let Some(factor) = self.calibration.factor(tensor, columns.clone())?
        {
            let feedback = Feedback { factor: &factor, rounds: ROUNDS };
            return Ok(palettize_with_feedback(matrix, scheme, feedback, kernels, progress)?);
        }
        let importance = self.importance(tensor, columns)?;
        let importance = importance.as_deref().map_or(Importance::Equal, Importance::Columns);
        Ok(palettize(matrix, scheme, importance, kernels.pool(), progress)?)
    }
}
