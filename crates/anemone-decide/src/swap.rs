//! Two engines of a decision model: one that answers at once, and a better one that takes its time to come.

use std::fmt;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use anemone_cpu::{Row, Scores};
use anemone_models::Laya;

use crate::Result;
use crate::scorer::Scorer;

/// An engine that comes later, or why it does not.
pub type Coming = Receiver<std::result::Result<Box<dyn Scorer>, String>>;

/// What happened to the second engine so far, in words; shared with the engine it is of.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<Vec<String>>>);

impl Turns {
    /// All of it, in order.
    pub fn get(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, told: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(told);
    }
}

/// Runs rows on a first engine until a second one has come, and those that one cannot take, and all when it has failed.
pub(crate) struct SwapScorer {
    first: Box<dyn Scorer>,
    second: Second,
    turns: Turns,
}

enum Second {
    Coming(Coming),
    Here(Box<dyn Scorer>),
    Gone,
}

impl SwapScorer {
    pub(crate) fn new(first: Box<dyn Scorer>, coming: Coming) -> Self {
        Self { first, second: Second::Coming(coming), turns: Turns::default() }
    }

    pub(crate) fn turns(&self) -> Turns {
        self.turns.clone()
    }

    fn look(&mut self) {
        let Second::Coming(coming) = &self.second else { return };
        let come = match coming.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err("its loading ended without a word".to_owned()),
            Ok(come) => come,
        };
        self.second = match come {
            Ok(engine) => {
                self.turns.push("Core ML has taken over".to_owned());
                Second::Here(engine)
            }
            Err(reason) => {
                self.turns.push(format!("Core ML is not used: {reason}"));
                Second::Gone
            }
        };
    }
}

impl Scorer for SwapScorer {
    fn laya(&self) -> &Laya {
        self.first.laya()
    }

    fn admits(&self, tokens: usize, options: usize) -> std::result::Result<(), String> {
        self.first.admits(tokens, options)
    }

    fn score(&mut self, rows: &[Row<'_>]) -> Result<Vec<Scores>> {
        self.look();
        if let Second::Here(engine) = &mut self.second
            && rows
                .iter()
                .all(|row| row.parallel.is_none() && engine.admits(row.ids.len(), row.markers.len()).is_ok())
        {
            match engine.score(rows) {
                Ok(scores) => return Ok(scores),
                Err(error) => {
                    let mut reason = error.to_string();
                    let mut source = std::error::Error::source(&error);
                    while let Some(error) = source {
                        reason = format!("{reason}: {error}");
                        source = error.source();
                    }
                    self.turns.push(format!("Core ML failed, the CPU engine goes on: {reason}"));
                    self.second = Second::Gone;
                }
            }
        }
        self.first.score(rows)
    }

    fn pack(&mut self) -> Result<()> {
        self.first.pack()
    }

    fn embed(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        self.first.embed(texts)
    }

    fn has_reduced_products(&self) -> bool {
        self.first.has_reduced_products()
    }
}

impl fmt::Debug for SwapScorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SwapScorer({:?}, {:?})", self.first, self.turns)
    }
}
