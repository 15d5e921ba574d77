use std::ops::ControlFlow;
use std::time::Instant;

use anemone_checkpoint::Checkpoint;
use anemone_session::{
    Answer, Event, FinishReason, GenerateOptions, Generation, LengthLimit, SamplingParams, SamplingPreset,
    StopCause, Tokenizer,
};
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use crate::answer::Shown;
use crate::args::SamplingArgs;
use crate::interrupt::{self, Guard};
use crate::output;

/// Most tokens generated when neither the caller nor the model says.
const MAX_NEW_TOKENS: usize = 512;
/// Bytes from which a text's beginning shows whether it can fit before all of it is encoded.
const LONG_TEXT: usize = 1 << 20;
/// Tokens of a prompt from which its progress is shown.
const LONG_PROMPT: usize = 1024;

/// The options of a generation: the command line over the model's own over those recommended for its family.
pub(crate) fn options(
    args: &SamplingArgs,
    checkpoint: &Checkpoint,
    model_type: &str,
    tokenizer: &Tokenizer,
) -> Result<GenerateOptions> {
    let config = checkpoint.generation_config();
    let mut sampling = if args.greedy { SamplingParams::greedy() } else { defaults(checkpoint, model_type) };
    let set = |target: &mut f32, value: Option<f32>| *target = value.unwrap_or(*target);
    set(&mut sampling.temperature, args.temperature);
    set(&mut sampling.top_p, args.top_p);
    set(&mut sampling.min_p, args.min_p);
    set(&mut sampling.repetition_penalty, args.repetition_penalty);
    set(&mut sampling.frequency_penalty, args.frequency_penalty);
    set(&mut sampling.presence_penalty, args.presence_penalty);
    sampling.top_k = args.top_k.unwrap_or(sampling.top_k);
    sampling.seed = args.seed;
    sampling.logit_bias.clone_from(&args.logit_bias);
    if let Some((id, _)) = args.logit_bias.iter().find(|(id, _)| *id as usize >= tokenizer.vocab_size()) {
        bail!("--logit-bias: {id} is no token; tokenizer.json has ids below {}", tokenizer.vocab_size());
    }
    if let Some(at) = args.stop.iter().position(String::is_empty) {
        bail!("--stop: text {} is empty; leave it out", at + 1);
    }
    let ends = checkpoint.eos_token_ids();
    for id in ends.iter().filter(|&&id| id as usize >= tokenizer.vocab_size()) {
        tracing::warn!(
            "eos_token_id {id} is no token of tokenizer.json and ends nothing; correct it in generation_config.json or config.json"
        );
    }
    let own = config.max_new_tokens.map_or(MAX_NEW_TOKENS, |n| n as usize);
    Ok(GenerateOptions {
        sampling,
        max_new_tokens: Some(args.max_new_tokens.unwrap_or(own)),
        stop_ids: tokenizer.stop_ids(&ends),
        stop_strings: args.stop.clone(),
        ignore_eos: args.ignore_eos,
        min_new_tokens: args.min_new_tokens,
        speculation: args.speculation.speculation()?,
        ..GenerateOptions::default()
    })
}

/// The options of a generation on a server, where requests say the rest.
pub(crate) fn served(checkpoint: &Checkpoint, model_type: &str, tokenizer: &Tokenizer) -> GenerateOptions {
    GenerateOptions {
        sampling: defaults(checkpoint, model_type),
        max_new_tokens: checkpoint.generation_config().max_new_tokens.map(|n| n as usize),
        stop_ids: tokenizer.stop_ids(&checkpoint.eos_token_ids()),
        ..GenerateOptions::default()
    }
}

/// Errors for a text that is far too long, because encoding it takes a hundred times its size.
pub(crate) fn refuse_hopeless(tokenizer: &Tokenizer, text: &str, context: usize) -> Result<()> {
    let beginning = LONG_TEXT.max(context.saturating_mul(16));
    if text.len() <= beginning {
        return Ok(());
    }
    let tokens = tokenizer.encode(&text[..text.floor_char_boundary(beginning)], false)?.len();
    // Where a text is cut changes only the tokens near the cut, so half of them is a safe bound.
    if tokens / 2 > context {
        bail!(
            "the text is more than {} tokens and the context holds {context}; give a part of it",
            tokens / 2
        );
    }
    Ok(())
}

/// A recommended set is taken whole: from the model's file if it names any of it, else from its family's makers.
fn defaults(checkpoint: &Checkpoint, model_type: &str) -> SamplingParams {
    let config = checkpoint.generation_config();
    let names_any = config.temperature.is_some()
        || config.top_k.is_some()
        || config.top_p.is_some()
        || config.min_p.is_some()
        || config.repetition_penalty.is_some();
    if config.do_sample == Some(false) {
        let penalty = config.repetition_penalty.unwrap_or(1.0);
        return SamplingParams { repetition_penalty: penalty, ..SamplingParams::greedy() };
    }
    if !names_any {
        let preset = SamplingPreset::for_model(model_type, checkpoint.name());
        return preset.map_or_else(SamplingParams::greedy, SamplingPreset::params);
    }
    let base = SamplingParams::default();
    SamplingParams {
        temperature: config.temperature.unwrap_or(base.temperature),
        top_k: config.top_k.map_or(base.top_k, |k| k as usize),
        top_p: config.top_p.unwrap_or(base.top_p),
        min_p: config.min_p.unwrap_or(base.min_p),
        repetition_penalty: config.repetition_penalty.unwrap_or(base.repetition_penalty),
        ..base
    }
}

/// Shows a generation as it comes: text to stdout, and the end when stdout fails or Ctrl-C is pressed.
#[derive(Debug)]
pub(crate) struct Stream {
    _interrupt: Guard,
    start: Instant,
    first_token: Option<f64>,
    shown: bool,
    answer: Option<Shown>,
    quiet: bool,
    bar: Option<ProgressBar>,
    failed: Option<anyhow::Error>,
}

impl Stream {
    /// `shown` streams the text; otherwise only time and Ctrl-C are watched. `quiet` shows no progress.
    pub(crate) fn new(shown: bool, quiet: bool) -> Self {
        let (start, first_token, bar, failed) = (Instant::now(), None, None, None);
        Self { _interrupt: Guard::new(), start, first_token, shown, answer: None, quiet, bar, failed }
    }

    /// Reads the text as an answer, which shows itself.
    pub(crate) fn reading(mut self, answer: Shown) -> Self {
        self.answer = Some(answer);
        self
    }

    pub(crate) fn on_event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Prefill { done, total } if total > LONG_PROMPT && !self.quiet => self.prefill(done, total),
            Event::Token { .. } => {
                self.first_token.get_or_insert_with(|| self.start.elapsed().as_secs_f64());
                if let Some(answer) = &mut self.answer {
                    answer.token();
                }
            }
            Event::Text(text) if self.answer.is_some() => {
                self.failed = self.answer.as_mut().and_then(|answer| answer.text(text).err());
            }
            Event::Text(text) if self.shown => self.failed = output::data(text).err(),
            _ => {}
        }
        if self.failed.is_some() || interrupt::asked() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// A long prompt's progress, where stderr is a terminal.
    fn prefill(&mut self, done: usize, total: usize) {
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("prefill {wide_bar} {pos}/{len} tok, {eta} left");
            ProgressBar::new(total as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_position(done as u64);
        if done == total {
            bar.finish_and_clear();
        }
    }

    /// Ends what is shown; seconds to the first token and the answer that was read, or the failure to show it.
    pub(crate) fn end(mut self) -> Result<(Option<f64>, Option<Answer>)> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        let answer = match self.answer {
            Some(answer) => Some(answer.end()?),
            None if self.shown => output::data("\n").map(|()| None)?,
            None => None,
        };
        Ok((self.first_token, answer))
    }
}

/// What `--json` tells of a generation.
pub(crate) fn report(generation: &Generation, first_token: Option<f64>) -> Map<String, Value> {
    let (usage, timings) = (generation.usage, generation.timings);
    let mut report = Map::new();
    report.insert("text".into(), generation.text.as_str().into());
    report.insert("token_ids".into(), json!(generation.token_ids));
    report.insert("finish_reason".into(), generation.finish_reason.as_str().into());
    match &generation.finish_reason {
        FinishReason::Stop(StopCause::Token(id)) => {
            report.insert("stop".into(), (*id).into());
        }
        FinishReason::Stop(StopCause::Text(text)) => {
            report.insert("stop".into(), text.as_str().into());
        }
        FinishReason::Stop(StopCause::Constraint) => {
            report.insert("stop".into(), Value::Null);
        }
        _ => {}
    }
    report.insert(
        "usage".into(),
        json!({
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }),
    );
    report.insert(
        "timings".into(),
        json!({
            "prefill_tokens": timings.prefill_tokens,
            "prefill_seconds": timings.prefill_seconds,
            "prefill_tokens_per_second": timings.prefill_rate(),
            "decode_seconds": timings.decode_seconds,
            "decode_tokens_per_second": timings.decode_rate(),
            "time_to_first_token_seconds": first_token,
        }),
    );
    let drafts = generation.drafts;
    if drafts.drafted > 0 {
        report.insert(
            "speculation".into(),
            json!({
                "drafted": drafts.drafted,
                "accepted": drafts.accepted,
                "acceptance": drafts.acceptance(),
                "passes": drafts.passes,
                "tokens_per_pass": generation.timings.decode_tokens as f64 / drafts.passes.max(1) as f64,
            }),
        );
    }
    report
}

/// Whether an answer was cut off by the context.
pub(crate) fn ran_out_of_context(generation: &Generation) -> bool {
    generation.finish_reason == FinishReason::Length(LengthLimit::Context)
}
