//! Drafts: guesses at the next tokens that one pass verifies together.
//!
//! A proposer only says what to try. Every token is still drawn from the model's own distribution at its place, with the same
//! random numbers as without drafts, and a draft counts as far as it is what was drawn; so drafts change neither the
//! distribution nor, on an engine whose logits do not depend on how tokens are grouped, a single token.

mod cost;
mod ngram;
mod suffix;

pub use cost::PassCost;
pub use ngram::ngram_simple;
pub use suffix::SuffixIndex;

use crate::{Constraint, Error, Result};

/// Most drafts of one pass.
pub const MOST_DRAFTS: usize = 64;

/// Whether and how the next tokens are guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// Token by token.
    #[default]
    Off,
    /// What followed the most recent earlier occurrence of the last `n` tokens, see [`ngram_simple`].
    Ngram {
        /// Tokens to find again.
        n: usize,
        /// Most tokens to draft.
        m: usize,
    },
    /// What followed the longest end of the text that occurred before, and what a constraint leaves no choice of; as many as pay
    /// by what was accepted so far and what passes have cost.
    Auto {
        /// Most tokens to draft.
        most: usize,
    },
}

impl Speculation {
    /// Errors for lengths that cannot be used.
    pub fn validate(self) -> Result<()> {
        let problem = match self {
            Self::Ngram { n, .. } if n == 0 || n > MOST_DRAFTS => {
                Some(("spec_n", format!("is {n}; give 1 to {MOST_DRAFTS}")))
            }
            Self::Ngram { m, .. } | Self::Auto { most: m } if m == 0 || m > MOST_DRAFTS => {
                Some(("spec_m", format!("is {m}; give 1 to {MOST_DRAFTS}")))
            }
            Self::Ngram { n, m } if m < n => Some((
                "spec_m",
                format!("is {m} and spec_n {n}: drafts shorter than spec_n are dropped; give {n} or more"),
            )),
            _ => None,
        };
        match problem {
            Some((option, problem)) => Err(Error::Options { option, problem }),
            None => Ok(()),
        }
    }
}

/// What became of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drafts {
    /// Tokens drafted.
    pub drafted: usize,
    /// Those of them that were what the model drew.
    pub accepted: usize,
    /// Passes after the first token, with drafts or without.
    pub passes: usize,
}

impl Drafts {
    /// Accepted of drafted, 0 to 1; 0 when nothing was drafted.
    pub fn acceptance(&self) -> f64 {
        if self.drafted == 0 { 0.0 } else { self.accepted as f64 / self.drafted as f64 }
    }
}

/// Someone else's guesses, a smaller model's for example.
pub trait Propose: Send {
    /// At most `most` tokens that may follow these.
    fn propose(&mut self, tokens: &[u32], most: usize) -> Vec<u32>;
}

impl<F: FnMut(&[u32], usize) -> Vec<u32> + Send> Propose for F {
    fn propose(&mut self, tokens: &[u32], most: usize) -> Vec<u32> {
        self(tokens, most)
    }
}

/// Proposes drafts for one sequence and learns from what became of them.
pub(crate) struct Drafter {
    kind: Speculation,
    pub(crate) proposer: Option<Box<dyn Propose>>,
    text: SuffixIndex,
    /// How often guesses of each kind were right, see [`class`].
    rates: [Rate; CLASSES],
    /// The latest guess, drafted or not, and its class.
    guess: Vec<u32>,
    class: usize,
}

const CLASSES: usize = 6;
/// The class of tokens a constraint leaves no choice of.
const FORCED: usize = 5;
/// Fewest tokens that must have occurred before.
const LEAST_MATCH: usize = 2;

/// Guesses are told apart by how many tokens occurred before.
fn class(matched: usize) -> usize {
    match matched {
        0..=2 => 0,
        3..=4 => 1,
        5..=8 => 2,
        9..=16 => 3,
        _ => 4,
    }
}

/// How often a guessed token was right, older guesses counting less.
#[derive(Debug, Clone, Copy)]
struct Rate {
    right: f64,
    wrong: f64,
}

impl Rate {
    fn of(expected: f64) -> Self {
        Self { right: 2.0 * expected, wrong: 2.0 * (1.0 - expected) }
    }

    fn add(&mut self, right: usize, wrong: usize) {
        const KEEP: f64 = 0.97;
        self.right = self.right * KEEP + right as f64;
        self.wrong = self.wrong * KEEP + wrong as f64;
    }

    fn get(self) -> f64 {
        self.right / (self.right + self.wrong)
    }
}

impl Drafter {
    pub(crate) fn new(kind: Speculation, prompt: &[u32]) -> Self {
        let mut text = SuffixIndex::new(matches!(kind, Speculation::Auto { .. }));
        for &token in prompt {
            text.push(token);
        }
        // Before anything is known: short matches are mostly chance, long ones mostly copies.
        let rates = [0.2, 0.35, 0.5, 0.7, 0.85, 0.99].map(Rate::of);
        Self { kind, proposer: None, text, rates, guess: Vec::new(), class: 0 }
    }

    /// Takes the tokens drawn since the latest guess.
    pub(crate) fn drawn(&mut self, tokens: &[u32]) {
        if !self.guess.is_empty() {
            let right = self.guess.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            let wrong = usize::from(right < self.guess.len().min(tokens.len()));
            self.rates[self.class].add(right, wrong);
            self.guess.clear();
        }
        if self.kind != Speculation::Off || self.proposer.is_some() {
            for &token in tokens {
                self.text.push(token);
            }
        }
    }

    /// Drafts at most `most` tokens; `others` tokens of other sequences run in the same pass.
    pub(crate) fn draft(
        &mut self,
        most: usize,
        others: usize,
        cost: &mut PassCost,
        constraint: Option<&mut (dyn Constraint + 'static)>,
    ) -> Result<Vec<u32>> {
        if let Some(proposer) = &mut self.proposer {
            let mut drafts = proposer.propose(self.text.tokens(), most.min(MOST_DRAFTS));
            drafts.truncate(most);
            if let Some(constraint) = constraint {
                drafts.truncate(constraint.valid_prefix(&drafts)?);
            }
            return Ok(drafts);
        }
        let own = match self.kind {
            Speculation::Off => 0,
            Speculation::Ngram { m, .. } => m,
            Speculation::Auto { most } => most,
        };
        let most = most.min(own);
        if most == 0 {
            return Ok(Vec::new());
        }
        let mut drafts = match self.kind {
            Speculation::Ngram { n, m } => ngram_simple(self.text.tokens(), n, m),
            _ => Vec::new(),
        };
        drafts.truncate(most);
        if let Some(constraint) = constraint {
            if matches!(self.kind, Speculation::Auto { .. }) {
                drafts = constraint.forced()?;
                self.class = FORCED;
            }
            if drafts.is_empty() {
                drafts = self.guess(most);
            }
            let valid = constraint.valid_prefix(&drafts)?;
            drafts.truncate(valid.min(most));
        } else if matches!(self.kind, Speculation::Auto { .. }) {
            drafts = self.guess(most);
        }
        if matches!(self.kind, Speculation::Auto { .. }) && !drafts.is_empty() {
            self.guess.clone_from(&drafts);
            let worth = best_length(self.rates[self.class].get(), drafts.len(), others, cost);
            if worth == 0 {
                cost.age();
            }
            drafts.truncate(worth);
        }
        Ok(drafts)
    }

    fn guess(&mut self, most: usize) -> Vec<u32> {
        if !matches!(self.kind, Speculation::Auto { .. }) {
            return Vec::new();
        }
        let (matched, guess) = self.text.continuation(most);
        self.class = class(matched);
        if matched < LEAST_MATCH { Vec::new() } else { guess }
    }
}

/// The number of drafts with the most tokens per second, when each is right with probability `right` after those before it.
fn best_length(right: f64, most: usize, others: usize, cost: &PassCost) -> usize {
    let Some(single) = cost.seconds(others + 1) else {
        // Nothing is known of this engine yet; a pass without drafts will tell.
        return 0;
    };
    let mut best = (0, (others as f64 + 1.0) / single);
    let (mut expected, mut chain) = (1.0, 1.0);
    for drafts in 1..=most {
        chain *= right;
        expected += chain;
        let Some(seconds) = cost.seconds(others + 1 + drafts) else { break };
        let rate = (others as f64 + expected) / seconds;
        if rate > best.1 {
            best = (drafts, rate);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(single: f64, per_token: f64) -> PassCost {
        let mut cost = PassCost::default();
        for tokens in [1, 2, 4, 8, 16, 33] {
            cost.record(tokens, single + per_token * (tokens - 1) as f64);
        }
        cost
    }

    #[test]
    fn lengths_follow_acceptance_and_cost() {
        // Free drafts: all of them. Drafts as dear as tokens: none, unless every one is right for less.
        assert_eq!(best_length(0.5, 32, 0, &cost(1.0, 0.0)), 32);
        assert_eq!(best_length(0.9, 32, 0, &cost(1.0, 1.0)), 0);
        assert_eq!(best_length(0.02, 32, 0, &cost(1.0, 0.05)), 0);
        let (sure, unsure) =
            (best_length(0.95, 32, 0, &cost(1.0, 0.05)), best_length(0.6, 32, 0, &cost(1.0, 0.05)));
        assert!(sure > unsure && unsure > 0, "{sure} {unsure}");
        assert_eq!(best_length(0.99, 32, 0, &PassCost::default()), 0);
    }

    #[test]
    fn auto_drafts_where_the_text_repeats_and_learns() {
        let mut cost = cost(1.0, 0.02);
        let text: Vec<u32> = (0..20).chain(0..6).collect();
        let mut drafter = Drafter::new(Speculation::Auto { most: 8 }, &text);
        assert_eq!(drafter.draft(64, 0, &mut cost, None).unwrap(), [6, 7, 8, 9]);
        assert_eq!(drafter.draft(3, 0, &mut cost, None).unwrap(), [6, 7, 8]);
        drafter.drawn(&[6, 7, 8, 9]);
        assert_eq!(drafter.draft(2, 0, &mut cost, None).unwrap(), [10, 11]);
        // A text whose every guess is wrong is no longer drafted for, and again when guesses would have been right.
        let mut declined = 0;
        for i in 0..60 {
            drafter.drawn(&[0, 1, 2, 1000 + i]);
            drafter.drawn(&[0, 1, 2]);
            declined += usize::from(drafter.draft(8, 0, &mut cost, None).unwrap().is_empty());
        }
        assert!(declined > 30, "{declined}");
        for _ in 0..60 {
            drafter.drawn(&[0, 1, 2, 77]);
            drafter.drawn(&[0, 1, 2]);
            drafter.draft(8, 0, &mut cost, None).unwrap();
            drafter.drawn(&[77]);
            drafter.drawn(&[0, 1, 2]);
        }
        assert!(!drafter.draft(8, 0, &mut cost, None).unwrap().is_empty());
    }

    #[test]
    fn lengths_are_checked() {
        assert!(Speculation::Ngram { n: 0, m: 4 }.validate().unwrap_err().to_string().contains("spec_n"));
        assert!(Speculation::Ngram { n: 5, m: 4 }.validate().unwrap_err().to_string().contains("spec_m"));
        assert!(Speculation::Auto { most: 65 }.validate().is_err());
        assert!(Speculation::Ngram { n: 12, m: 16 }.validate().is_ok());
    }
}
