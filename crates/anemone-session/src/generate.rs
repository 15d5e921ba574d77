use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::{Detokenizer, Engine, Error, History, Result, Sampler, SamplingParams, StopMatcher, Tokenizer};

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
    /// Goes on over `stop_ids`, for measurements.
    pub ignore_eos: bool,
    /// Tokens fed at once before the first is drawn; progress and cancellation come between.
    pub prefill_chunk: usize,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_new_tokens: None,
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
            skip_special: true,
            ignore_eos: false,
            prefill_chunk: 512,
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
    /// Tokens computed one by one after that.
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
    /// The seed the tokens were drawn with.
    pub seed: u64,
}

/// Generates from a prompt with an engine that forgets what it held.
///
/// `on_event` may break off at any event. Ids the tokenizer has no string for are never drawn.
pub fn generate(
    engine: &mut dyn Engine,
    tokenizer: &Tokenizer,
    prompt_ids: &[u32],
    options: &GenerateOptions,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Generation> {
    let plan = Plan::new(engine, tokenizer, prompt_ids, options)?;
    engine.reset();
    plan.run(engine, &mut Vec::new(), on_event)
}

/// A generation whose inputs are known to be good.
pub(crate) struct Plan<'a> {
    tokenizer: &'a Tokenizer,
    prompt: &'a [u32],
    options: &'a GenerateOptions,
    sampler: Sampler,
    stops: StopMatcher,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        engine: &dyn Engine,
        tokenizer: &'a Tokenizer,
        prompt: &'a [u32],
        options: &'a GenerateOptions,
    ) -> Result<Self> {
        let (vocab, context) = (engine.vocab_size(), engine.context_len());
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > context {
            return Err(Error::PromptTooLong { prompt: prompt.len(), context });
        }
        if let Some((index, &id)) = prompt.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
            return Err(Error::TokenOutOfRange { index, id, vocab });
        }
        if options.prefill_chunk == 0 {
            let problem = "is 0; give 1 or more".to_owned();
            return Err(Error::Options { option: "prefill_chunk", problem });
        }
        let allowed = tokenizer.vocab_size().min(vocab);
        let sampler = Sampler::new(options.sampling.clone())?.with_allowed_vocab(allowed);
        let stops = StopMatcher::new(&options.stop_strings)?;
        Ok(Self { tokenizer, prompt, options, sampler, stops })
    }

    /// Runs on an engine that holds exactly the tokens `held`, a beginning of the prompt but not all of it.
    ///
    /// `held` is kept equal to what the engine holds; on an error of the engine both are emptied.
    pub(crate) fn run(
        mut self,
        engine: &mut dyn Engine,
        held: &mut Vec<u32>,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let start = Instant::now();
        let seed = self.sampler.seed();
        let cached_tokens = held.len();
        let mut history = History::new(self.prompt);
        let mut output = Output {
            detokenizer: Detokenizer::new(self.tokenizer, self.options.skip_special),
            stops: self.stops,
            options: self.options,
            token_ids: Vec::new(),
            text: String::new(),
            on_event,
        };
        let total = self.prompt.len();
        let mut finish = None;
        let mut next = None;
        while held.len() < total && finish.is_none() {
            let end = total.min(held.len() + self.options.prefill_chunk);
            let chunk = &self.prompt[held.len()..end];
            let draw = end == total && self.options.max_new_tokens != Some(0);
            next = feed(engine, held, chunk, |logits| {
                draw.then(|| self.sampler.sample(logits, &history)).transpose()
            })?;
            let event = Event::Prefill { done: end, total };
            finish = (output.on_event)(event).is_break().then_some(FinishReason::Cancelled);
        }
        let prefill_tokens = held.len() - cached_tokens;
        let prefill = start.elapsed();
        let mut decode_tokens = 0;
        let finish_reason = loop {
            if let Some(reason) = finish {
                break reason;
            }
            let Some(sampled) = next else { break FinishReason::Length(LengthLimit::MaxNewTokens) };
            finish = output.accept(sampled.id, sampled.logprob)?;
            if finish.is_some() {
                continue;
            }
            if held.len() >= engine.context_len() {
                break output.end(FinishReason::Length(LengthLimit::Context))?;
            }
            history.push(sampled.id);
            let drawn = feed(engine, held, &[sampled.id], |logits| self.sampler.sample(logits, &history))?;
            decode_tokens += 1;
            next = Some(drawn);
        };
        let decode: Duration = start.elapsed().saturating_sub(prefill);
        let usage = Usage { prompt_tokens: total, cached_tokens, completion_tokens: output.token_ids.len() };
        let timings = Timings {
            prefill_tokens,
            prefill_seconds: prefill.as_secs_f64(),
            decode_tokens,
            decode_seconds: decode.as_secs_f64(),
        };
        Ok(Generation { token_ids: output.token_ids, text: output.text, finish_reason, usage, timings, seed })
    }
}

/// Feeds tokens and gives the logits to `then`; after a failure neither engine nor `held` holds anything.
fn feed<T>(
    engine: &mut dyn Engine,
    held: &mut Vec<u32>,
    tokens: &[u32],
    then: impl FnOnce(&[f32]) -> Result<T>,
) -> Result<T> {
    let expected = engine.vocab_size();
    let outcome = match engine.feed(tokens) {
        Ok(logits) if logits.len() == expected => Ok(then(logits)),
        Ok(logits) => Err(Error::LogitsLength { expected, found: logits.len() }),
        Err(e) => Err(Error::Engine(e)),
    };
    match outcome {
        Ok(result) => {
            held.extend_from_slice(tokens);
            result
        }
        Err(error) => {
            engine.reset();
            held.clear();
            Err(error)
        }
    }
}

struct Output<'a, 'e> {
    detokenizer: Detokenizer<'a>,
    stops: StopMatcher,
    options: &'a GenerateOptions,
    token_ids: Vec<u32>,
    text: String,
    on_event: &'e mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
}

impl Output<'_, '_> {
    /// Takes a drawn token; gives the reason when it is the last.
    fn accept(&mut self, id: u32, logprob: f32) -> Result<Option<FinishReason>> {
        if !self.options.ignore_eos && self.options.stop_ids.contains(&id) {
            return self.end(FinishReason::Stop(StopCause::Token(id))).map(Some);
        }
        self.token_ids.push(id);
        if (self.on_event)(Event::Token { id, logprob }).is_break() {
            return Ok(Some(FinishReason::Cancelled));
        }
        let mut safe = String::new();
        let piece = self.detokenizer.push(id)?;
        let stopped = piece.and_then(|piece| self.stops.push(piece, &mut safe));
        let flow = self.emit(&safe);
        if let Some(stopped) = stopped {
            let text = self.options.stop_strings[stopped.index].clone();
            return Ok(Some(FinishReason::Stop(StopCause::Text(text))));
        }
        if flow.is_break() {
            return Ok(Some(FinishReason::Cancelled));
        }
        if self.options.max_new_tokens.is_some_and(|most| self.token_ids.len() >= most) {
            return self.end(FinishReason::Length(LengthLimit::MaxNewTokens)).map(Some);
        }
        Ok(None)
    }

    /// Gives the text that was held back; a stop string it completes takes the place of `reason`.
    fn end(&mut self, reason: FinishReason) -> Result<FinishReason> {
        let mut safe = String::new();
        let piece = self.detokenizer.flush()?;
        let stopped = piece.and_then(|piece| self.stops.push(piece, &mut safe));
        self.stops.flush(&mut safe);
        // Nothing is left to break off.
        let _ = self.emit(&safe);
        Ok(match stopped {
            Some(stopped) => {
                FinishReason::Stop(StopCause::Text(self.options.stop_strings[stopped.index].clone()))
            }
            None => reason,
        })
    }

    fn emit(&mut self, text: &str) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.text.push_str(text);
        (self.on_event)(Event::Text(text))
    }
}

#[cfg(test)]
mod tests;
