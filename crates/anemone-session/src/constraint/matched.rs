use llguidance::Matcher;

use super::{TokenMask, grammar, vocabulary::ConstraintVocabulary};
use crate::{Error, Result};

/// A grammar and how far a text has come in it.
pub(super) struct Matched {
    matcher: Matcher,
    mask: TokenMask,
    known: bool,
}

impl Clone for Matched {
    /// A copy that shares nothing, so that several threads do not wait for each other.
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), mask: self.mask.clone(), known: self.known }
    }
}

impl Matched {
    pub(super) fn new(matcher: Matcher, vocabulary: &ConstraintVocabulary) -> Self {
        Self { matcher, mask: TokenMask::none(vocabulary.vocab_size()), known: false }
    }

    pub(super) fn mask(&mut self) -> Result<&TokenMask> {
        if !self.known {
            let words = self.matcher.compute_mask_or_eos().map_err(|e| failed(&e.to_string()))?;
            self.mask.set_words(words.as_slice());
            self.known = true;
        }
        Ok(&self.mask)
    }

    /// Whether a token may come next.
    pub(super) fn allows(&mut self, token: u32, stop: bool) -> Result<bool> {
        if self.matcher.is_stopped() {
            return Ok(stop && self.is_complete());
        }
        if self.known {
            return Ok(self.mask.allows(token));
        }
        Ok(self.valid_prefix(&[token])? == 1)
    }

    /// Takes a token that may come next.
    pub(super) fn take(&mut self, token: u32) -> Result<()> {
        if self.matcher.is_stopped() {
            return Ok(());
        }
        self.known = false;
        self.matcher.consume_token(token).map_err(|e| failed(&e.to_string()))
    }

    pub(super) fn valid_prefix(&mut self, tokens: &[u32]) -> Result<usize> {
        if self.matcher.is_stopped() {
            return Ok(0);
        }
        self.matcher.validate_tokens(tokens).map_err(|e| failed(&e.to_string()))
    }

    pub(super) fn forced(&mut self) -> Result<Vec<u32>> {
        if self.matcher.is_stopped() {
            return Ok(Vec::new());
        }
        let mut tokens = self.matcher.compute_ff_tokens();
        if let Some(problem) = self.matcher.get_error() {
            return Err(failed(&problem));
        }
        let valid = self.valid_prefix(&tokens)?;
        tokens.truncate(valid);
        Ok(tokens)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()
    }
}

fn failed(problem: &str) -> Error {
    let problem = format!("{}; simplify it, or generate without it", grammar::message(problem));
    Error::Grammar { what: "constraint", problem }
}
