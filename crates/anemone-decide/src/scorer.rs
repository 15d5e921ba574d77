//! What runs the rows of a decision model.

use std::fmt;

use anemone_cpu::{LayaEngine, Row, Scores};
use anemone_models::Laya;

use crate::{Error, Result};

/// An engine for decision models: the native one, or a [`GraphScorer`](crate::GraphScorer).
pub trait Scorer: fmt::Debug + Send {
    /// The model.
    fn laya(&self) -> &Laya;

    /// Whether it takes rows of that many tokens and options; what is allowed and what to do instead if not.
    fn admits(&self, tokens: usize, options: usize) -> std::result::Result<(), String>;

    /// Scores of every row, in order.
    fn score(&mut self, rows: &[Row<'_>]) -> Result<Vec<Scores>>;

    /// Lets rows share passes from now on; an error when it cannot, or need not, run several as one.
    fn pack(&mut self) -> Result<()>;

    /// The mean over its tokens of the encoder's output for each text, given as its token ids.
    fn embed(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>>;

    /// Whether products round their inputs to bf16.
    fn has_reduced_products(&self) -> bool {
        false
    }
}

impl Scorer for LayaEngine {
    fn laya(&self) -> &Laya {
        self.model().laya()
    }

    fn admits(&self, _: usize, _: usize) -> std::result::Result<(), String> {
        Ok(())
    }

    fn score(&mut self, rows: &[Row<'_>]) -> Result<Vec<Scores>> {
        Ok(LayaEngine::score(self, rows)?)
    }

    fn pack(&mut self) -> Result<()> {
        let problem = "is for bundles on an engine that runs their package: the native engine runs rows of different lengths \
                       without padding; leave it out, or use --engine emulator";
        Err(Error::Argument { name: "--pack", problem: problem.to_owned() })
    }

    fn embed(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        Ok(LayaEngine::embed(self, texts)?)
    }

    fn has_reduced_products(&self) -> bool {
        LayaEngine::has_reduced_products(self)
    }
}
