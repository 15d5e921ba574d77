//! Two engines in one place: one that answers at once, and a better one that takes its time to come.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Block, Engine, EngineError};

/// An engine that comes later.
pub type Coming = Receiver<Result<Box<dyn Engine>, EngineError>>;

/// Runs a sequence on a first engine, moves it to a second one between two calls once that has come, and back when it fails.
///
/// The sequence moves with the tokens it holds, which the other engine computes anew, unless both have blocks of one format. While
/// nothing fails, and after it has, the logits are those of whichever engine is at work; which one is, [`Swaps`] tells.
#[allow(missing_debug_implementations, reason = "engines are none")]
pub struct HotSwap {
    first: Box<dyn Engine>,
    second: Second,
    tokens: Vec<u32>,
    /// Beginning of the tokens that the first engine holds.
    held: usize,
    logits: Vec<f32>,
    swaps: Swaps,
}

enum Second {
    Coming(Coming),
    Here(Box<dyn Engine>),
    Gone,
}

/// What happened to a sequence's engine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Swap {
    /// The second engine took over before the token of this position.
    Moved {
        /// Tokens held then.
        at: usize,
    },
    /// The second engine did not come.
    NotCome {
        /// Why.
        reason: String,
    },
    /// The second engine failed, and the first one went on from this position.
    Back {
        /// Tokens held then.
        at: usize,
        /// What failed.
        reason: String,
    },
}

/// What happened so far, shared with the engine it is of.
#[derive(Debug, Clone, Default)]
pub struct Swaps(Arc<Mutex<Vec<Swap>>>);

impl Swaps {
    /// All of it, in order.
    pub fn get(&self) -> Vec<Swap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the second engine was given up, if it was.
    fn last_back(&self) -> Option<String> {
        let swaps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        swaps.iter().rev().find_map(|swap| match swap {
            Swap::Back { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    }

    fn push(&self, swap: Swap) {
        match &swap {
            Swap::Moved { at } => tracing::info!(at, "the second engine has taken over"),
            Swap::NotCome { reason } => tracing::warn!("the second engine did not come: {reason}"),
            Swap::Back { at, reason } => {
                tracing::warn!(at, "the second engine failed, the first one goes on: {reason}");
            }
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(swap);
    }
}

impl HotSwap {
    /// An empty engine that runs on `first` until another one comes.
    pub fn new(mut first: Box<dyn Engine>, second: Coming) -> Self {
        first.reset();
        Self {
            first,
            second: Second::Coming(second),
            tokens: Vec::new(),
            held: 0,
            logits: Vec::new(),
            swaps: Swaps::default(),
        }
    }

    /// What happens to it, as it does.
    pub fn swaps(&self) -> Swaps {
        self.swaps.clone()
    }

    /// Whether the second engine is at work.
    pub fn is_second(&self) -> bool {
        matches!(self.second, Second::Here(_))
    }

    fn current(&self) -> &dyn Engine {
        match &self.second {
            Second::Here(engine) => &**engine,
            _ => &*self.first,
        }
    }

    /// Lets the second engine take over if it has come.
    fn look(&mut self) {
        let Second::Coming(coming) = &self.second else { return };
        let come = match coming.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err(EngineError::new("its loading ended without a word")),
            Ok(come) => come,
        };
        self.second = Second::Gone;
        let taken = come.and_then(|mut engine| {
            if engine.vocab_size() != self.first.vocab_size() {
                return Err(EngineError::new("it is of another model"));
            }
            take_over(&mut *engine, &*self.first, &self.tokens, self.held)?;
            Ok(engine)
        });
        match taken {
            Ok(engine) => {
                self.second = Second::Here(engine);
                self.swaps.push(Swap::Moved { at: self.tokens.len() });
            }
            Err(error) => self.swaps.push(Swap::NotCome { reason: error.to_string() }),
        }
    }

    /// Gives the second engine up.
    fn back(&mut self, error: &EngineError) {
        self.second = Second::Gone;
        self.swaps.push(Swap::Back { at: self.tokens.len(), reason: error.to_string() });
    }

    /// Whether the first engine holds all tokens, and nothing else.
    fn is_level(&self) -> bool {
        self.held == self.tokens.len() && self.first.position() == self.held
    }

    /// Feeds the first engine what it lacks. When that fails it is empty, and the next call tries again from the beginning.
    fn level(&mut self) -> Result<(), EngineError> {
        if self.is_level() {
            return Ok(());
        }
        let at = self.first.position();
        let held = if at == self.held { at } else { self.first.nearest(self.held.min(at)) };
        let mut given = if held < at { self.first.rewind(held) } else { Ok(()) };
        if given.is_ok() && held < self.tokens.len() {
            given = self.first.feed(&self.tokens[held..]).map(drop);
        }
        self.held = self.tokens.len();
        self.kept(given)
    }

    /// A result of the first engine; after an error it is empty, for what it holds is not known.
    fn kept(&mut self, result: Result<(), EngineError>) -> Result<(), EngineError> {
        result.map_err(|error| {
            self.first.reset();
            self.held = 0;
            match self.swaps.last_back() {
                None => error,
                Some(reason) => {
                    EngineError::new(format!("{error}; the other engine had failed before: {reason}"))
                }
            }
        })
    }

    fn run(&mut self, tokens: &[u32], all: bool) -> Result<&[f32], EngineError> {
        self.look();
        let run = |engine: &mut dyn Engine, logits: &mut Vec<f32>| -> Result<(), EngineError> {
            let given = if all { engine.feed_all(tokens) } else { engine.feed(tokens) }?;
            logits.clear();
            logits.extend_from_slice(given);
            Ok(())
        };
        if let Second::Here(engine) = &mut self.second {
            let fits = self.tokens.len() + tokens.len() <= engine.context_len();
            let ran = if fits {
                run(&mut **engine, &mut self.logits)
            } else {
                Err(EngineError::new(format!("it holds {} tokens only", engine.context_len())))
            };
            match ran {
                Ok(()) => {
                    self.tokens.extend_from_slice(tokens);
                    return Ok(&self.logits);
                }
                Err(error) => self.back(&error),
            }
        }
        self.level()?;
        let ran = run(&mut *self.first, &mut self.logits);
        self.kept(ran)?;
        self.tokens.extend_from_slice(tokens);
        self.held = self.tokens.len();
        Ok(&self.logits)
    }
}

/// Gives an engine a sequence that another one holds the first `held` tokens of.
fn take_over(
    engine: &mut dyn Engine,
    other: &dyn Engine,
    tokens: &[u32],
    held: usize,
) -> Result<(), EngineError> {
    engine.reset();
    if tokens.len() > engine.context_len() {
        return Err(EngineError::new(format!("it holds {} tokens only", engine.context_len())));
    }
    let format = engine.block_format().filter(|format| other.block_format().as_ref() == Some(format));
    if let Some(format) = format {
        let whole = tokens.len().min(held) / crate::BLOCK_TOKENS;
        let mut blocks: Vec<Arc<Block>> =
            (0..whole).map_while(|index| other.export(index)).map(Arc::new).collect();
        blocks.truncate(format.usable(&blocks));
        if !blocks.is_empty() {
            engine.import(&blocks)?;
        }
    }
    let done = engine.position();
    if done < tokens.len() {
        engine.feed(&tokens[done..])?;
    }
    Ok(())
}

// It gives and takes no blocks: which engine they would be of may change, and the tokens they stand for are needed for the way back.
impl Engine for HotSwap {
    fn vocab_size(&self) -> usize {
        self.first.vocab_size()
    }

    fn context_len(&self) -> usize {
        self.first.context_len()
    }

    fn position(&self) -> usize {
        self.tokens.len()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.run(tokens, false)
    }

    fn feed_all(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.run(tokens, true)
    }

    fn nearest(&self, position: usize) -> usize {
        // What the first engine lacks it is fed again anyway, up to any position.
        if !self.is_second() && !self.is_level() { position } else { self.current().nearest(position) }
    }

    fn most_drafts(&self) -> usize {
        // The one that comes may be able to take fewer back.
        match &self.second {
            Second::Coming(_) => 0,
            _ => self.current().most_drafts(),
        }
    }

    fn rewind(&mut self, position: usize) -> Result<(), EngineError> {
        match &mut self.second {
            Second::Here(engine) => engine.rewind(position)?,
            _ if self.held == self.tokens.len() && self.first.position() == self.held => {
                self.first.rewind(position)?;
            }
            _ => {}
        }
        self.tokens.truncate(position);
        self.held = self.held.min(position);
        Ok(())
    }

    fn reset(&mut self) {
        if let Second::Here(engine) = &mut self.second {
            engine.reset();
        }
        self.first.reset();
        self.tokens.clear();
        self.held = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::fake::FakeEngine;

    fn logits(engine: &mut dyn Engine, tokens: &[u32]) -> Vec<u32> {
        engine.feed(tokens).unwrap().iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn a_sequence_moves_between_any_two_tokens_and_back_from_any_failure() {
        let tokens: Vec<u32> = (0..20).map(|i| i * 7 % 31).collect();
        let mut alone = FakeEngine::new(64);
        let expected: Vec<Vec<u32>> = tokens.iter().map(|t| logits(&mut alone, &[*t])).collect();
        for comes in 0..=20 {
            for fails in (comes + 1..=21).step_by(3) {
                let (send, coming) = channel();
                let mut engine = HotSwap::new(Box::new(FakeEngine::new(64)), coming);
                let mut second = FakeEngine::new(64);
                second.fail_at = Some(fails);
                let mut second = Some(second);
                for (at, token) in tokens.iter().enumerate() {
                    if at == comes {
                        send.send(Ok(Box::new(second.take().unwrap()) as Box<dyn Engine>)).unwrap();
                    }
                    assert_eq!(logits(&mut engine, &[*token]), expected[at], "{comes} {fails} {at}");
                    assert_eq!(engine.is_second(), at >= comes && at + 1 < fails, "{comes} {fails} {at}");
                }
                let swaps = engine.swaps().get();
                assert_eq!(swaps.first(), (comes < 20).then_some(&Swap::Moved { at: comes }), "{comes}");
                let back = matches!(swaps.last(), Some(Swap::Back { at, .. }) if *at == fails - 1);
                assert_eq!(back, comes < 20 && fails <= 20, "{comes} {fails}: {swaps:?}");
            }
        }
    }

    #[test]
    fn what_is_taken_back_is_forgotten_by_both() {
        let (send, coming) = channel();
        let mut engine = HotSwap::new(Box::new(FakeEngine::new(64)), coming);
        engine.feed(&[1, 2, 3, 4]).unwrap();
        let mut second = FakeEngine::new(64);
        second.fail_at = Some(6);
        send.send(Ok(Box::new(second))).unwrap();
        engine.feed(&[5]).unwrap();
        assert!(engine.is_second());
        engine.rewind(2).unwrap();
        engine.feed(&[9, 9, 9]).unwrap();
        let got = logits(&mut engine, &[7]);
        assert!(!engine.is_second(), "it failed at the sixth token");
        assert_eq!(got, logits(&mut FakeEngine::new(64), &[1, 2, 9, 9, 9, 7]));
        engine.reset();
        assert_eq!(
            (engine.position(), logits(&mut engine, &[3])),
            (0, logits(&mut FakeEngine::new(64), &[3]))
        );
    }

    #[test]
    fn what_does_not_come_or_does_not_fit_changes_nothing() {
        let comes = |come: Result<Box<dyn Engine>, EngineError>| {
            let (send, coming) = channel();
            let mut engine = HotSwap::new(Box::new(FakeEngine::new(64)), coming);
            engine.feed(&[1, 2, 3, 4, 5]).unwrap();
            send.send(come).unwrap();
            let got = logits(&mut engine, &[6]);
            assert_eq!(got, logits(&mut FakeEngine::new(64), &[1, 2, 3, 4, 5, 6]));
            engine.swaps().get()
        };
        let failed = comes(Err(EngineError::new("no compiler")));
        assert_eq!(failed, [Swap::NotCome { reason: "no compiler".into() }]);
        assert!(
            matches!(&comes(Ok(Box::new(FakeEngine::new(4))))[..], [Swap::NotCome { reason }] if reason.contains("4 tokens"))
        );
        // It takes over, and is too short a moment later.
        assert!(matches!(
            &comes(Ok(Box::new(FakeEngine::new(5))))[..],
            [Swap::Moved { at: 5 }, Swap::Back { at: 5, .. }]
        ));
        let (send, coming) = channel();
        drop(send);
        let mut engine = HotSwap::new(Box::new(FakeEngine::new(64)), coming);
        engine.feed(&[1]).unwrap();
        assert!(matches!(&engine.swaps().get()[..], [Swap::NotCome { .. }]));
    }

    #[test]
    fn a_first_engine_that_fails_too_says_so_and_loses_nothing() {
        let (send, coming) = channel();
        let mut first = FakeEngine::new(64);
        first.fail_at = Some(4);
        let mut engine = HotSwap::new(Box::new(first), coming);
        engine.feed(&[1, 2]).unwrap();
        let mut second = FakeEngine::new(64);
        second.fail_at = Some(6);
        send.send(Ok(Box::new(second))).unwrap();
        engine.feed(&[3, 4, 5]).unwrap();
        for _ in 0..2 {
            let error = engine.feed(&[6]).unwrap_err().to_string();
            assert!(error.contains("fake cache is full; the other engine had failed before"), "{error}");
            assert_eq!((engine.position(), engine.is_second()), (5, false));
        }
        assert_eq!(engine.swaps().get().len(), 2);
        // What it can hold, it holds right.
        engine.rewind(2).unwrap();
        let got = logits(&mut engine, &[9]);
        assert_eq!(got, logits(&mut FakeEngine::new(64), &[1, 2, 9]));
        assert!(engine.feed(&[9]).is_err());
        engine.reset();
        assert_eq!(logits(&mut engine, &[7]), logits(&mut FakeEngine::new(64), &[7]));
    }
}
