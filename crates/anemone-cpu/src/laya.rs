//! Decision models: rows of tokens to scores of their options and of the actions.

mod forward;
mod weights;

use std::sync::Arc;

use anemone_kernels::{Context, Level};
use anemone_models::QUESTION_KINDS;

pub use weights::LayaModel;

use crate::Error;
use crate::engine::default_threads;
use crate::laya::forward::Forward;

/// Tokens computed together: enough to use each weight many times, few enough to stay near the cores.
const CHUNK: usize = 1024;

/// Choices made when an engine is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Threads, the caller's included; as many as the system runs at once when 0.
    pub threads: usize,
    /// Rounds the inputs of products to bf16 where the machine multiplies those natively. It is about twice as fast, and moves
    /// probabilities by up to a hundredth; without it, products are of f32 with the weights as stored.
    pub reduced: bool,
}

/// One question about one state, as tokens.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Token ids; the first is the classification token.
    pub ids: &'a [u32],
    /// Place of each option's marker among the ids.
    pub markers: &'a [usize],
    /// Kind of the question: 0 choice, 1 score, 2 yes or no.
    pub kind: usize,
    /// Where options stand side by side instead of one after the other.
    pub parallel: Option<Parallel<'a>>,
}

/// Options that do not see each other and share positions.
#[derive(Debug, Clone, Copy)]
pub struct Parallel<'a> {
    /// Position of each token.
    pub positions: &'a [u32],
    /// Option each token belongs to, from 1; 0 outside.
    pub options: &'a [u32],
}

/// What a model makes of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// One for each marker.
    pub logits: Vec<f32>,
    /// One for each action; the first is to act on the answer.
    pub action_logits: Vec<f32>,
}

/// A decision model ready to run.
#[derive(Debug)]
pub struct LayaEngine {
    model: Arc<LayaModel>,
    context: Context,
    forward: Forward,
}

/// Receives the residual stream of a group of rows: a stage and `[tokens, hidden]` values.
pub(crate) type Tap<'a> = &'a mut dyn FnMut(&str, &[f32]);

impl LayaEngine {
    /// Makes an engine over a model.
    pub fn new(model: Arc<LayaModel>, options: Options) -> Self {
        Self::with_level(model, options, Level::best())
    }

    /// [`LayaEngine::new`] at a given instruction set, which the machine must have.
    pub fn with_level(model: Arc<LayaModel>, options: Options, level: Level) -> Self {
        let threads = if options.threads == 0 { default_threads() } else { options.threads };
        let reduced = options.reduced && level.has_bf16_products();
        Self { model, context: Context::with_level(threads, level), forward: Forward::new(reduced) }
    }

    /// The model.
    pub fn model(&self) -> &Arc<LayaModel> {
        &self.model
    }

    /// Instruction set and threads in use.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether products round their inputs to bf16.
    pub fn has_reduced_products(&self) -> bool {
        self.forward.is_reduced()
    }

    /// Scores of every row, in order. Rows may have any lengths; a row's result is the same in whatever company it comes.
    pub fn score(&mut self, rows: &[Row<'_>]) -> Result<Vec<Scores>, Error> {
        self.run(rows, None)
    }

    /// [`LayaEngine::score`] with the residual stream shown to `tap`, group of rows by group: a stage and
    /// `[tokens of the group, hidden]` values. Stages are `embeddings`, each layer's path, `encoder.final_norm`, `typed` and each head layer's path.
    pub fn score_tapped(
        &mut self,
        rows: &[Row<'_>],
        tap: &mut dyn FnMut(&str, &[f32]),
    ) -> Result<Vec<Scores>, Error> {
        self.run(rows, Some(tap))
    }

    fn run(&mut self, rows: &[Row<'_>], mut tap: Option<Tap<'_>>) -> Result<Vec<Scores>, Error> {
        for (i, row) in rows.iter().enumerate() {
            self.check(row).map_err(|problem| Error::Row { row: i, problem })?;
        }
        let mut scores = Vec::with_capacity(rows.len());
        let mut first = 0;
        while first < rows.len() {
            let mut tokens = rows[first].ids.len();
            let mut end = first + 1;
            while end < rows.len() && tokens + rows[end].ids.len() <= CHUNK {
                tokens += rows[end].ids.len();
                end += 1;
            }
            let tap = tap.as_mut().map(|tap| -> Tap<'_> { *tap });
            self.forward.group(&self.context, &self.model, &rows[first..end], tap, &mut scores);
            first = end;
        }
        let finite = |s: &Scores| s.logits.iter().chain(&s.action_logits).all(|v| v.is_finite());
        match scores.iter().position(|s| !finite(s)) {
            Some(row) => Err(Error::NonFiniteScores { row }),
            None => Ok(scores),
        }
    }

    fn check(&self, row: &Row<'_>) -> Result<(), String> {
        let encoder = &self.model.laya.encoder;
        let (len, max) = (row.ids.len(), encoder.max_position_embeddings);
        if len == 0 || len > max {
            return Err(format!("has {len} tokens, expected 1 to {max} (max_position_embeddings)"));
        }
        if let Some(id) = row.ids.iter().find(|id| **id as usize >= encoder.vocab_size) {
            let rows = encoder.vocab_size;
            return Err(format!(
                "token id {id} is outside the vocabulary of {rows} rows; the tokenizer may belong to another model"
            ));
        }
        if row.markers.is_empty() {
            return Err("has no option".to_owned());
        }
        if let Some(marker) = row.markers.iter().find(|m| **m >= len) {
            return Err(format!("marker {marker} is outside its {len} tokens"));
        }
        if row.kind >= QUESTION_KINDS {
            return Err(format!("kind {} is not one of 0 to {}", row.kind, QUESTION_KINDS - 1));
        }
        match row.parallel {
            Some(p) if p.positions.len() != len || p.options.len() != len => Err(format!(
                "has {} positions and {} options for {len} tokens",
                p.positions.len(),
                p.options.len()
            )),
            Some(p) if p.positions.iter().any(|p| *p as usize >= max) => {
                Err(format!("has a position of {max} or more (max_position_embeddings)"))
            }
            _ => Ok(()),
        }
    }
}
