use std::collections::BTreeMap;

use anemone_session::{GenerateOptions, Generation, SamplingParams};
use serde::Deserialize;
use serde_json::{Value, json};

use super::fields::Fields;
use super::refusal::{ApiError, Checked};
use crate::language::Language;

/// Most continuations of a request, those of all its prompts together.
pub(super) const MOST_CHOICES: usize = 128;

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// What both ways to generate have in common.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) options: GenerateOptions,
    pub(super) n: usize,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

impl Common {
    /// Reads the fields that say how to generate, over what the model itself has for them.
    pub(super) fn read(fields: &mut Fields, language: &Language) -> Checked<Self> {
        let defaults = language.defaults();
        let mut sampling = defaults.sampling.clone();
        let set = |target: &mut f32, value: Option<f32>| *target = value.unwrap_or(*target);
        set(&mut sampling.temperature, fields.number("temperature", 0.0..=2.0)?);
        set(&mut sampling.top_p, fields.number("top_p", 0.0..=1.0)?);
        set(&mut sampling.min_p, fields.number("min_p", 0.0..=1.0)?);
        set(&mut sampling.repetition_penalty, fields.number("repetition_penalty", 0.001..=100.0)?);
        set(&mut sampling.frequency_penalty, fields.number("frequency_penalty", -2.0..=2.0)?);
        set(&mut sampling.presence_penalty, fields.number("presence_penalty", -2.0..=2.0)?);
        sampling.top_k = fields.count("top_k", 0..=usize::MAX)?.unwrap_or(sampling.top_k);
        let seed: Option<i64> = fields.take("seed", "an integer")?;
        sampling.seed = seed.map(i64::cast_unsigned);
        sampling.logit_bias = bias(fields, language)?;
        let stop = match fields.take("stop", "a string or a list of strings")? {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text],
            Some(Stop::Several(texts)) => texts,
        };
        let max_new_tokens = match fields.count("max_tokens", 0..=usize::MAX)? {
            Some(most) => Some(most),
            None => defaults.max_new_tokens,
        };
        let options = GenerateOptions {
            sampling,
            max_new_tokens,
            stop_strings: stop,
            ignore_eos: fields.flag("ignore_eos")?,
            min_new_tokens: fields.count("min_tokens", 0..=usize::MAX)?.unwrap_or(0),
            ..defaults.clone()
        };
        let n = fields.count("n", 1..=MOST_CHOICES.min(language.max_sequences()))?.unwrap_or(1);
        let stream = fields.flag("stream")?;
        let asked: Option<StreamOptions> =
            fields.take("stream_options", "an object like {\"include_usage\": true}")?;
        if asked.is_some() && !stream {
            return Err(ApiError::field("stream_options", "is only allowed when 'stream' is true"));
        }
        fields.ignore(&[
            "user",
            "metadata",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
        ]);
        Ok(Self { options, n, stream, include_usage: asked.is_some_and(|a| a.include_usage) })
    }

    /// The options of each continuation: the same, with a seed of its own.
    pub(super) fn each(&self, count: usize) -> Vec<GenerateOptions> {
        let one = |i: usize| {
            let seed = self.options.sampling.seed.map(|seed| seed.wrapping_add(i as u64));
            let sampling = SamplingParams { seed, ..self.options.sampling.clone() };
            GenerateOptions { sampling, ..self.options.clone() }
        };
        (0..count).map(one).collect()
    }
}

fn bias(fields: &mut Fields, language: &Language) -> Checked<Vec<(u32, f32)>> {
    let expected = "an object of token ids with numbers from -100 to 100";
    let given: BTreeMap<String, f32> = fields.take("logit_bias", expected)?.unwrap_or_default();
    let vocab = language.tokenizer().vocab_size();
    let mut bias = Vec::with_capacity(given.len());
    for (id, value) in given {
        let wrong = |problem: &str| ApiError::field(format!("logit_bias.{id}"), problem);
        if !(-100.0..=100.0).contains(&value) {
            return Err(wrong("must be a number from -100 to 100"));
        }
        let known = id.parse::<u32>().ok().filter(|id| (*id as usize) < vocab);
        bias.push((known.ok_or_else(|| wrong(&format!("is no token; ids are 0 to {}", vocab - 1)))?, value));
    }
    Ok(bias)
}

/// What a request's prompt and continuations came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) completion: usize,
    pub(crate) reasoning: usize,
}

impl Usage {
    /// Adds a continuation of a prompt; `first` counts the prompt too.
    pub(crate) fn add(&mut self, generation: &Generation, first: bool, reasoning: usize) {
        if first {
            self.prompt += generation.usage.prompt_tokens;
            self.cached += generation.usage.cached_tokens;
        }
        self.completion += generation.usage.completion_tokens;
        self.reasoning += reasoning;
    }

    pub(crate) fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }
}
