use std::ops::ControlFlow;
use std::time::Instant;

use crate::{Drafts, Engine, Error, PassCost, PrefixCache, Result, SamplingParams, Speculation, Tokenizer};

mod output;
mod sequence;

pub use sequence::{Sequence, Step};

/// How a generation is run.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None` goes on to the end of the context.
    pub max_new_tokens: Option<usize>,
    /// Tokens that end the generation; see [`Tokenizer::stop_ids`].
    pub stop_ids: Vec<u32>,
    /// Strings that end the generation; neither they nor what follows is given.
    pub stop_strings: Vec<String>,
    /// Leaves special tokens out of the text.
    pub skip_special: bool,
    /// Special tokens that stay in the text all the same; see [`OutputOptions::kept_special`](crate::OutputOptions::kept_special).
    pub keep_special: Vec<u32>,
    /// Goes on over `stop_ids`, for measurements.
    pub ignore_eos: bool,
    /// Tokens fed at once before the first is drawn; progress and cancellation come between.
    pub prefill_chunk: usize,
    /// Does not draw one of `stop_ids` before so many tokens.
    pub min_new_tokens: usize,
    /// So many of the likeliest tokens come with each one drawn.
    pub top_logprobs: usize,
    /// Tells the log probabilities of the prompt's tokens, with so many of the likeliest at each place.
    pub prompt_logprobs: Option<usize>,
    /// How the next tokens are guessed, for speed alone.
    pub speculation: Speculation,
    /// Where beginnings computed before are found, and this one is kept.
    pub prefix_cache: Option<PrefixCache>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_new_tokens: None,
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
            skip_special: true,
            keep_special: Vec::new(),
            ignore_eos: false,
            prefill_chunk: 512,
            min_new_tokens: 0,
            top_logprobs: 0,
            prompt_logprobs: None,
            speculation: Speculation::Off,
            prefix_cache: None,
        }
    }
}

/// What happens during a generation.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A chunk of the prompt was fed.
    Prefill {
        /// Tokens fed, those held from before included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was generated; not reported for the stop token.
    Token {
        /// The token.
        id: u32,
        /// Its log probability, see [`Sampled::logprob`](crate::Sampled::logprob).
        logprob: f32,
        /// The likeliest tokens at its place with their log probabilities, as many as were asked for.
        top: &'a [(u32, f32)],
    },
    /// What the model thought of a token of the prompt; there is none for the first, or for tokens held from before.
    PromptToken {
        /// Its place in the prompt.
        index: usize,
        /// The token.
        id: u32,
        /// Its log probability.
        logprob: f32,
        /// The likeliest tokens at its place.
        top: &'a [(u32, f32)],
    },
    /// Text is complete; all of these joined are [`Generation::text`].
    Text(&'a str),
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model stopped.
    Stop(StopCause),
    /// There was no room for more.
    Length(LengthLimit),
    /// The caller broke off.
    Cancelled,
}

/// What made a generation stop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopCause {
    /// One of the stop ids.
    Token(u32),
    /// One of the stop strings.
    Text(String),
    /// The constraint's text is complete.
    Constraint,
}

/// Which limit a generation ran into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LengthLimit {
    /// `max_new_tokens`.
    MaxNewTokens,
    /// The engine's context.
    Context,
}

impl FinishReason {
    /// `stop`, `length` or `cancelled`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Stop(_) => "stop",
            Self::Length(_) => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Tokens counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were held from before and not computed again.
    pub cached_tokens: usize,
    /// Tokens generated, without the stop token.
    pub completion_tokens: usize,
}

/// Time measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timings {
    /// Tokens of the prompt that were computed.
    pub prefill_tokens: usize,
    /// Seconds until the first token was drawn.
    pub prefill_seconds: f64,
    /// Tokens drawn after the first.
    pub decode_tokens: usize,
    /// Seconds from the first draw to the end.
    pub decode_seconds: f64,
}

impl Timings {
    /// Prompt tokens per second, 0 when nothing was measured.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill_seconds)
    }

    /// Generated tokens per second, 0 when nothing was measured.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_tokens, self.decode_seconds)
    }
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

/// A generation that came to an end.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Tokens generated, without the stop token.
    pub token_ids: Vec<u32>,
    /// Their text, up to the stop string.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens counted.
    pub usage: Usage,
    /// Time measured.
    pub timings: Timings,
    /// What became of drafts.
    pub drafts: Drafts,
    /// The seed the tokens were drawn with.
    pub seed: u64,
}

/// Generates from a prompt with an engine that forgets what it held, beginning behind what the prefix cache knows of it.
///
/// `on_event` may break off at any event. Ids the tokenizer has no string for are never drawn.
pub fn generate(
    engine: &mut dyn Engine,
    tokenizer: &Tokenizer,
    prompt_ids: &[u32],
    options: &GenerateOptions,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Generation> {
    let mut sequence = Sequence::new(engine, tokenizer, prompt_ids, options.clone())?;
    engine.reset();
    sequence.begin_cached(engine, 0);
    run(engine, &mut sequence, &mut PassCost::default(), on_event)?;
    Ok(sequence.into_generation().unwrap_or_else(|| unreachable!("it ran to its end")))
}

/// Runs a sequence to its end on an engine that holds the tokens the sequence begins behind.
///
/// The engine holds [`Sequence::held`] tokens afterwards, on an error none.
pub fn run(
    engine: &mut dyn Engine,
    sequence: &mut Sequence<'_>,
    cost: &mut PassCost,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let result = rounds(engine, sequence, cost, on_event);
    if result.is_err() {
        engine.reset();
    }
    result
}

fn rounds(
    engine: &mut dyn Engine,
    sequence: &mut Sequence<'_>,
    cost: &mut PassCost,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let (vocab, most_drafts) = (engine.vocab_size(), engine.most_drafts());
    let mut tokens = Vec::new();
    while let Some(step) = sequence.step(usize::MAX, most_drafts, 0, cost)? {
        tokens.clear();
        tokens.extend_from_slice(step.tokens);
        let (rows, start) = (step.rows, Instant::now());
        let decodes = sequence.prefill_left() == 0;
        let logits = if rows > 1 { engine.feed_all(&tokens) } else { engine.feed(&tokens) };
        let logits = logits.map_err(Error::Engine)?;
        if decodes {
            cost.record(tokens.len(), start.elapsed().as_secs_f64());
        }
        let expected = rows.max(1) * vocab;
        if logits.len() != expected {
            return Err(Error::LogitsLength { expected, found: logits.len() });
        }
        for row in logits.chunks_exact(vocab).take(rows) {
            if !sequence.row(row, on_event)? {
                break;
            }
        }
        let keep = sequence.complete(on_event)?;
        if keep < tokens.len() {
            step_back(engine, sequence)?;
        }
        sequence.keep_blocks(engine);
    }
    Ok(())
}

/// Leaves in the engine what the sequence wants held of it; what cannot be gone back to exactly is fed again.
pub(crate) fn step_back(engine: &mut dyn Engine, sequence: &Sequence<'_>) -> Result<()> {
    let held = sequence.held();
    let nearest = engine.nearest(held);
    engine.rewind(nearest).map_err(Error::Engine)?;
    if nearest < held {
        engine.feed(&sequence.tokens()[nearest..held]).map_err(Error::Engine)?;
    }
    Ok(())
}

#[cfg(test)]
mod distribution;
#[cfg(test)]
mod tests;
