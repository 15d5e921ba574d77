//! Decision models: rows of tokens to scores of their options and of the actions.

mod action;
mod forward;
mod weights;

use std::sync::Arc;

use anemone_kernels::{Context, Level};
use anemone_models::{Laya, QUESTION_KINDS};

pub use action::ActionReadout;
pub use weights::LayaModel;

use crate::Error;
use crate::engine::default_threads;
use crate::laya::forward::Forward;
use crate::scratch::Observe;

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

impl Row<'_> {
    /// Whether a model can read the row; what is wrong and what is allowed if not.
    pub fn check(&self, laya: &Laya) -> Result<(), String> {
        let encoder = &laya.encoder;
        let (len, max) = (self.ids.len(), encoder.max_position_embeddings);
        if len == 0 || len > max {
            return Err(format!("has {len} tokens, expected 1 to {max} (max_position_embeddings)"));
        }
        if let Some(id) = self.ids.iter().find(|id| **id as usize >= encoder.vocab_size) {
            let rows = encoder.vocab_size;
            return Err(format!(
                "token id {id} is outside the vocabulary of {rows} rows; the tokenizer may belong to another model"
            ));
        }
        if self.markers.is_empty() {
            return Err("has no option".to_owned());
        }
        if let Some(marker) = self.markers.iter().find(|m| **m >= len) {
            return Err(format!("marker {marker} is outside its {len} tokens"));
        }
        if self.kind >= QUESTION_KINDS {
            return Err(format!("kind {} is not one of 0 to {}", self.kind, QUESTION_KINDS - 1));
        }
        match self.parallel {
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

    /// Shows the input of every linear map of encoder, head and scorer to `observe` from now on, or stops doing so; see
    /// [`crate::Engine::observe`]. The last head layer goes on with the tokens that are read.
    pub fn observe(&mut self, observe: Option<Observe>) {
        self.forward.observer.0 = observe;
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
        self.check_all(rows)?;
        let packed = self.model.packed(&self.context, self.forward.is_reduced())?;
        let mut scores = Vec::with_capacity(rows.len());
        for group in groups(rows) {
            let tap = tap.as_mut().map(|tap| -> Tap<'_> { *tap });
            self.forward.group(&self.context, &self.model, packed, group, tap, &mut scores);
        }
        let finite = |s: &Scores| s.logits.iter().chain(&s.action_logits).all(|v| v.is_finite());
        match scores.iter().position(|s| !finite(s)) {
            Some(row) => Err(Error::NonFiniteScores { row }),
            None => Ok(scores),
        }
    }

    /// The mean over its tokens of the encoder's output, `hidden` values for each text, in order. A text is its token ids, of any length
    /// up to the model's limit; a text's vector is the same in whatever company it comes.
    pub fn embed(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>, Error> {
        let rows: Vec<Row<'_>> =
            texts.iter().map(|ids| Row { ids, markers: &[0], kind: 0, parallel: None }).collect();
        self.check_all(&rows)?;
        let packed = self.model.packed(&self.context, self.forward.is_reduced())?;
        let mut means = Vec::with_capacity(rows.len());
        for group in groups(&rows) {
            self.forward.pooled(&self.context, &self.model, packed, group, &mut means);
        }
        match means.iter().position(|mean| !mean.iter().all(|v| v.is_finite())) {
            Some(row) => Err(Error::NonFiniteScores { row }),
            None => Ok(means),
        }
    }

    fn check_all(&self, rows: &[Row<'_>]) -> Result<(), Error> {
        let check = |(i, row): (usize, &Row<'_>)| {
            row.check(&self.model.laya).map_err(|problem| Error::Row { row: i, problem })
        };
        rows.iter().enumerate().try_for_each(check)
    }
}

/// Neighbouring rows that are computed together.
fn groups<'r, 'a>(rows: &'r [Row<'a>]) -> impl Iterator<Item = &'r [Row<'a>]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let mut tokens = rest.first()?.ids.len();
        let more = rest[1..].iter().take_while(|row| {
            tokens += row.ids.len();
            tokens <= CHUNK
        });
        let (group, others) = rest.split_at(1 + more.count());
        rest = others;
        Some(group)
    })
}
