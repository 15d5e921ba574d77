use std::time::Instant;

use super::output::{OnEvent, Output};
use super::{Event, FinishReason, GenerateOptions, Generation, LengthLimit, StopCause, Timings, Usage};
use crate::speculate::Drafter;
use crate::{
    BLOCK_TOKENS, Bars, Constraint, Drafts, Engine, Error, History, PassCost, Propose, Result, Sampler,
    TokenMask, Tokenizer,
};

/// Tokens of a prompt computed at once when all their logits are looked at, which bounds the memory for them.
const LOOKED_AT: usize = 64;

/// One generation, step by step, for whoever owns the engine.
///
/// Each round: [`step`](Self::step) says what to feed, [`row`](Self::row) takes the logits wanted in order,
/// [`complete`](Self::complete) says how many of the tokens the engine is to keep. The outcome does not depend on how rounds of
/// several sequences are mixed, nor on what is drafted.
pub struct Sequence<'t> {
    options: GenerateOptions,
    sampler: Sampler,
    history: History,
    output: Output<'t>,
    constraint: Option<Box<dyn Constraint>>,
    drafter: Drafter,
    /// The prompt and everything drawn; the last drawn token is not fed yet.
    tokens: Vec<u32>,
    prompt: usize,
    /// How many of `tokens` the engine holds.
    held: usize,
    cached: usize,
    /// Blocks of it that the prefix cache was given.
    kept: usize,
    context_len: usize,
    vocab: usize,
    /// The tokens of this round: a piece of the prompt, or the token drawn last and its drafts.
    fed: Vec<u32>,
    /// Rows seen in this round.
    rows: usize,
    /// Whether the progress of a prompt was told in this round.
    told: bool,
    /// Tokens drawn in this round.
    drawn: Vec<u32>,
    drafts: Drafts,
    finish: Option<FinishReason>,
    started: Option<Instant>,
    prefilled: Option<Instant>,
    ended: Option<Instant>,
}

/// What a sequence wants computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// Tokens to append.
    pub tokens: &'a [u32],
    /// The last so many of them need logits.
    pub rows: usize,
}

impl<'t> Sequence<'t> {
    /// A generation on an engine of these dimensions. Ids the tokenizer has no string for are never drawn.
    pub fn new(
        engine: &dyn Engine,
        tokenizer: &'t Tokenizer,
        prompt: &[u32],
        options: GenerateOptions,
    ) -> Result<Self> {
        let (vocab, context_len) = (engine.vocab_size(), engine.context_len());
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > context_len {
            return Err(Error::PromptTooLong { prompt: prompt.len(), context: context_len });
        }
        if let Some((index, &id)) = prompt.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
            return Err(Error::TokenOutOfRange { index, id, vocab });
        }
        if options.prefill_chunk == 0 {
            let problem = "is 0; give 1 or more".to_owned();
            return Err(Error::Options { option: "prefill_chunk", problem });
        }
        options.speculation.validate()?;
        let allowed = tokenizer.vocab_size().min(vocab);
        Ok(Self {
            sampler: Sampler::new(options.sampling.clone())?.with_allowed_vocab(allowed),
            history: History::new(prompt),
            output: Output::new(tokenizer, &options)?,
            constraint: None,
            drafter: Drafter::new(options.speculation, prompt),
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            held: 0,
            cached: 0,
            kept: 0,
            context_len,
            vocab,
            fed: Vec::new(),
            rows: 0,
            told: false,
            drawn: Vec::new(),
            drafts: Drafts::default(),
            finish: None,
            started: None,
            prefilled: None,
            ended: None,
            options,
        })
    }

    /// Draws only what the constraint allows, and ends when its text is complete.
    #[must_use]
    pub fn with_constraint(mut self, constraint: Option<Box<dyn Constraint>>) -> Self {
        self.constraint = constraint;
        self
    }

    /// Drafts what a proposer says in place of what [`GenerateOptions::speculation`] would; ids without a row end the drafts.
    #[must_use]
    pub fn with_proposer(mut self, proposer: Box<dyn Propose>) -> Self {
        self.drafter.proposer = Some(proposer);
        self
    }

    /// Begins behind the first `held` tokens of the prompt, which the engine holds; less than all of them, since the logits
    /// after the last are needed.
    pub fn begin_behind(&mut self, held: usize) {
        debug_assert!(held < self.prompt && self.started.is_none());
        self.held = held.min(self.prompt - 1);
        self.cached = self.held;
    }

    /// Begins behind the first `held` tokens of the prompt, which the engine holds, or further on where the prefix cache knows
    /// more of them, which the engine then takes in.
    ///
    /// Where the log probabilities of the prompt are wanted, nothing is taken from the cache.
    pub fn begin_cached(&mut self, engine: &mut dyn Engine, held: usize) {
        let cache = self.options.prefix_cache.as_ref().filter(|_| self.options.prompt_logprobs.is_none());
        let restored = cache.and_then(|c| c.restore(engine, &self.tokens[..self.prompt - 1], held));
        let held = restored.unwrap_or(held);
        self.begin_behind(held);
        self.kept = held / BLOCK_TOKENS;
    }

    /// Keeps what the engine holds of it in the prefix cache, if there is one; only where a block was filled since the last time
    /// does this take time.
    pub fn keep_blocks(&mut self, engine: &dyn Engine) {
        let blocks = self.held / BLOCK_TOKENS;
        if let Some(cache) = &self.options.prefix_cache
            && blocks > self.kept
        {
            cache.keep(engine, &self.tokens[..self.held]);
            self.kept = blocks;
        }
    }

    /// The tokens an engine at [`held`](Self::held) holds, and those drawn since.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of the tokens the engine holds.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Tokens of the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt
    }

    /// Tokens of the prompt that are still to be fed.
    pub fn prefill_left(&self) -> usize {
        self.prompt.saturating_sub(self.held)
    }

    /// Whether it has come to an end.
    pub fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Breaks off.
    pub fn cancel(&mut self) {
        if self.finish.is_none() {
            self.finish(FinishReason::Cancelled);
        }
    }

    /// What to feed next; `None` when the generation has ended.
    ///
    /// `room` bounds the tokens of a prompt and `drafts` those beyond the next; `others` tokens of other sequences share the pass,
    /// and `cost` knows what passes take.
    pub fn step(
        &mut self,
        room: usize,
        drafts: usize,
        others: usize,
        cost: &mut PassCost,
    ) -> Result<Option<Step<'_>>> {
        if self.finish.is_some() {
            return Ok(None);
        }
        self.started.get_or_insert_with(Instant::now);
        self.fed.clear();
        self.drawn.clear();
        (self.rows, self.told) = (0, false);
        let rows = if self.held < self.prompt {
            let looked_at = if self.options.prompt_logprobs.is_some() { LOOKED_AT } else { usize::MAX };
            let most = self.options.prefill_chunk.min(room.max(1)).min(looked_at);
            let end = self.prompt.min(self.held + most);
            self.fed.extend_from_slice(&self.tokens[self.held..end]);
            if self.options.prompt_logprobs.is_some() {
                self.fed.len()
            } else {
                usize::from(end == self.prompt && self.options.max_new_tokens != Some(0))
            }
        } else {
            self.fed.push(self.tokens[self.held]);
            let left = (self.options.max_new_tokens)
                .map_or(usize::MAX, |most| most.saturating_sub(self.output.token_ids.len()));
            let most = drafts.min(left - 1).min(self.context_len - self.held - 1);
            let guess = self.drafter.draft(most, others, cost, self.constraint.as_deref_mut())?;
            self.fed.extend(guess.into_iter().take_while(|&id| (id as usize) < self.vocab));
            self.fed.len()
        };
        Ok(Some(Step { tokens: &self.fed, rows }))
    }

    /// Takes the logits after the next token of the step that needs them; `false` when those that follow are of no use.
    pub fn row(&mut self, logits: &[f32], on_event: OnEvent<'_>) -> Result<bool> {
        if self.held < self.prompt && !self.told && self.tell_progress(on_event) {
            return Ok(false);
        }
        self.rows += 1;
        let after = self.held + self.rows - 1;
        if self.held < self.prompt {
            if let Some(top) = self.options.prompt_logprobs {
                let last = after + 1 == self.prompt;
                if !last && self.prompt_row(logits, after + 1, top, on_event)? {
                    return Ok(true);
                }
                if !last || self.options.max_new_tokens == Some(0) || self.finish.is_some() {
                    return Ok(false);
                }
            }
            self.draw(logits, on_event)?;
            return Ok(false);
        }
        let drawn = self.draw(logits, on_event)?;
        // The draft was right: the row after it is that of the text.
        Ok(self.finish.is_none() && self.fed.get(self.rows) == Some(&drawn))
    }

    /// Tells how far the prompt is read with this round; whether that broke it off.
    fn tell_progress(&mut self, on_event: OnEvent<'_>) -> bool {
        self.told = true;
        let event = Event::Prefill { done: self.held + self.fed.len(), total: self.prompt };
        let broken = on_event(event).is_break();
        if broken {
            self.finish(FinishReason::Cancelled);
        }
        broken
    }

    /// Tells of a token of the prompt; whether to go on.
    fn prompt_row(
        &mut self,
        logits: &[f32],
        index: usize,
        top: usize,
        on_event: OnEvent<'_>,
    ) -> Result<bool> {
        let id = self.tokens[index];
        let logprob = self.sampler.logprob(logits, id)?;
        let top = self.sampler.top_logprobs(logits, top)?;
        if on_event(Event::PromptToken { index, id, logprob, top: &top }).is_break() {
            self.finish(FinishReason::Cancelled);
            return Ok(false);
        }
        Ok(true)
    }

    fn draw(&mut self, logits: &[f32], on_event: OnEvent<'_>) -> Result<u32> {
        let early = self.output.token_ids.len() < self.options.min_new_tokens;
        let banned: &[u32] = if early { &self.options.stop_ids } else { &[] };
        let mask: Option<&TokenMask> = match &mut self.constraint {
            Some(constraint) => constraint.mask()?,
            None => None,
        };
        let drawn = self.sampler.sample_under(logits, &self.history, Bars { mask, banned })?;
        let top = self.sampler.top_logprobs(logits, self.options.top_logprobs)?;
        self.prefilled.get_or_insert_with(Instant::now);
        self.drawn.push(drawn.id);
        let mut finish = self.output.accept(&self.options, drawn, &top, on_event)?;
        if let Some(constraint) = &mut self.constraint
            && !matches!(finish, Some(FinishReason::Stop(StopCause::Token(_))))
        {
            constraint.accept(drawn.id)?;
            if finish.is_none() && constraint.is_complete() {
                let complete = FinishReason::Stop(StopCause::Constraint);
                finish = Some(self.output.end(&self.options, complete, on_event)?);
            }
        }
        match finish {
            Some(reason) => self.finish(reason),
            None => self.history.push(drawn.id),
        }
        Ok(drawn.id)
    }

    /// Ends the round; gives how many of the tokens fed the engine is to keep, from the first.
    pub fn complete(&mut self, on_event: OnEvent<'_>) -> Result<usize> {
        let keep = if self.held < self.prompt {
            if !self.told {
                self.tell_progress(on_event);
            }
            self.fed.len()
        } else {
            let (drafted, drawn) = (self.fed.len() - 1, self.drawn.len());
            let right = self.fed[1..].iter().zip(&self.drawn).take_while(|(a, b)| a == b).count();
            self.drafts.passes += 1;
            self.drafts.drafted += drafted;
            self.drafts.accepted += right;
            // The last token drawn is not fed, as without drafts.
            drawn.clamp(1, self.fed.len())
        };
        self.held += keep;
        self.drafter.drawn(&self.drawn);
        self.tokens.extend(&self.drawn);
        if self.finish.is_none() && self.held >= self.prompt {
            if self.drawn.is_empty() {
                self.finish(FinishReason::Length(LengthLimit::MaxNewTokens));
            } else if self.held >= self.context_len {
                let full = FinishReason::Length(LengthLimit::Context);
                let reason = self.output.end(&self.options, full, on_event)?;
                self.finish(reason);
            }
        }
        Ok(keep)
    }

    fn finish(&mut self, reason: FinishReason) {
        self.finish = Some(reason);
        self.ended = Some(Instant::now());
    }

    /// What came of it; `None` before the end.
    pub fn into_generation(self) -> Option<Generation> {
        let finish_reason = self.finish?;
        let end = self.ended?;
        let start = self.started.unwrap_or(end);
        let prefilled = self.prefilled.unwrap_or(end);
        let drawn = self.output.token_ids.len()
            + usize::from(matches!(finish_reason, FinishReason::Stop(StopCause::Token(_))));
        Some(Generation {
            usage: Usage {
                prompt_tokens: self.prompt,
                cached_tokens: self.cached,
                completion_tokens: self.output.token_ids.len(),
            },
            timings: Timings {
                prefill_tokens: self.held.min(self.prompt) - self.cached,
                prefill_seconds: (prefilled - start).as_secs_f64(),
                decode_tokens: drawn.saturating_sub(1),
                decode_seconds: (end - prefilled).as_secs_f64(),
            },
            drafts: self.drafts,
            seed: self.sampler.seed(),
            token_ids: self.output.token_ids,
            text: self.output.text,
            finish_reason,
        })
    }
}

impl std::fmt::Debug for Sequence<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sequence")
            .field("prompt", &self.prompt)
            .field("held", &self.held)
            .field("tokens", &self.tokens.len())
            .field("finish", &self.finish)
            .finish_non_exhaustive()
    }
}
