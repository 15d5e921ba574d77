//! Several sequences in one pass, so that a weight is read once for all of them.

use std::sync::Arc;

use crate::engine::LOGIT_ROWS;
use crate::forward;
use crate::scratch::sized;
use crate::state::State;
use crate::{Engine, Error, LogitsOf};

/// One sequence's share of [`feed_together`].
#[derive(Debug)]
pub struct Part<'a> {
    /// The sequence.
    pub engine: &'a mut Engine,
    /// Tokens to append, one or more.
    pub tokens: &'a [u32],
    /// Which of their logits are wanted.
    pub want: LogitsOf,
}

/// Appends tokens to several sequences of one model at once, [`siblings`](Engine::sibling) of each other.
///
/// `visit` is shown the logits wanted, `[vocab_size]`: the part's index, the token's index in the part, the values; tokens of a
/// part in order. Each sequence gets the bits it would have got alone. A part that is refused changes nothing, one whose
/// logits turn out not to be finite is emptied (some of its logits may have been shown before), and neither disturbs the others.
pub fn feed_together(
    parts: &mut [Part<'_>],
    visit: &mut dyn FnMut(usize, usize, &[f32]),
) -> Vec<Result<(), Error>> {
    let mut results: Vec<Result<(), Error>> = Vec::with_capacity(parts.len());
    let Some(first) = parts.first() else { return results };
    let shared = Arc::clone(&first.engine.shared);
    let (model, chunk) = (Arc::clone(&first.engine.model), first.engine.options.chunk);
    for part in &*parts {
        let related = Arc::ptr_eq(&part.engine.shared, &shared);
        results.push(if related { part.engine.check(part.tokens) } else { Err(Error::NotSiblings) });
    }
    let before: Vec<usize> = parts.iter().map(|p| p.engine.position()).collect();
    let mut done = vec![0; parts.len()];
    let mut scratch = shared.scratch();
    let mut logits = std::mem::take(&mut scratch.logits);
    loop {
        // What this pass takes of each part, and the tokens whose logits are due: part, token of the part, token of the pass.
        let (mut sequences, mut due) = (Vec::new(), Vec::new());
        let mut pass = 0;
        for (index, part) in parts.iter_mut().enumerate() {
            let take = (part.tokens.len() - done[index]).min(chunk - pass);
            if results[index].is_err() || take == 0 {
                continue;
            }
            let tokens = &part.tokens[done[index]..done[index] + take];
            let wanted = match part.want {
                LogitsOf::None => 0,
                LogitsOf::Last => usize::from(done[index] + take == part.tokens.len()),
                LogitsOf::All => take,
            };
            due.extend((take - wanted..take).map(|t| (index, done[index] + t, pass + t)));
            let state: &mut State = &mut part.engine.state;
            sequences.push((state, tokens));
            done[index] += take;
            pass += take;
        }
        if pass == 0 {
            break;
        }
        forward::blocks(&shared.context, &model, &mut sequences, &mut scratch, None);
        let vocab = model.stack.vocab_size;
        for due in due.chunks(LOGIT_ROWS) {
            let logits = sized(&mut logits, due.len() * vocab);
            forward::head(&shared.context, &model, &mut scratch, due.iter().map(|d| d.2), None, logits);
            for (&(index, token, _), logits) in due.iter().zip(logits.chunks_exact(vocab)) {
                if results[index].is_err() {
                    continue;
                }
                if logits.iter().all(|v| v.is_finite()) {
                    visit(index, token, logits);
                } else {
                    let position = before[index] + token;
                    let error = model.find_non_finite();
                    results[index] = Err(error.unwrap_or(Error::NonFiniteLogits { position }));
                    parts[index].engine.reset();
                }
            }
        }
    }
    scratch.logits = logits;
    drop(scratch);
    for (part, result) in parts.iter_mut().zip(&results) {
        if result.is_ok() {
            part.engine.fed(part.tokens.len());
        }
    }
    results
}
