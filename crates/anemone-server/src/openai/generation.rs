use anemone_session::{GenerateOptions, Generation, SamplingParams};
use serde_json::{Map, Value};

use super::fields::Fields;
use super::refusal::{ApiError, Checked};
use crate::language::Language;
use crate::requests::generation::MOST_CHOICES;

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
        set(&mut sampling.temperature, fields.number("temperature"));
        set(&mut sampling.top_p, fields.number("top_p"));
        set(&mut sampling.min_p, fields.number("min_p"));
        set(&mut sampling.repetition_penalty, fields.number("repetition_penalty"));
        set(&mut sampling.frequency_penalty, fields.number("frequency_penalty"));
        set(&mut sampling.presence_penalty, fields.number("presence_penalty"));
        sampling.top_k = fields.count("top_k").unwrap_or(sampling.top_k);
        sampling.seed = fields.integer("seed").map(i64::cast_unsigned);
        sampling.logit_bias = bias(fields, language)?;
        let stop_strings = match fields.value("stop") {
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(texts)) => strings(texts),
            _ => Vec::new(),
        };
        let own = stop_ids(fields, language)?;
        let mut ignore_eos = fields.flag("ignore_eos").unwrap_or(false);
        let stop_ids = match own.is_empty() {
            true => defaults.stop_ids.clone(),
            // The model's own ends are ignored, those that were asked for are not.
            false if std::mem::take(&mut ignore_eos) => own,
            false => [&defaults.stop_ids[..], &own].concat(),
        };
        let options = GenerateOptions {
            sampling,
            max_new_tokens: fields.count("max_tokens").or(defaults.max_new_tokens),
            stop_strings,
            stop_ids,
            ignore_eos,
            min_new_tokens: fields.count("min_tokens").unwrap_or(0),
            ..defaults.clone()
        };
        let (n, most) = (fields.count("n").unwrap_or(1), MOST_CHOICES.min(language.max_sequences()));
        if n > most {
            return Err(ApiError::field("n", &format!("must be an integer from 1 to {most} on this server")));
        }
        let stream = fields.flag("stream").unwrap_or(false);
        let asked = fields.value("stream_options");
        if asked.is_some() && !stream {
            return Err(ApiError::field("stream_options", "is only allowed when 'stream' is true"));
        }
        let include_usage = asked.and_then(|asked| asked.get("include_usage")?.as_bool()).unwrap_or(false);
        Ok(Self { options, n, stream, include_usage })
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

/// The texts of a list of them.
pub(crate) fn strings(list: Vec<Value>) -> Vec<String> {
    let text = |value| match value {
        Value::String(text) => Some(text),
        _ => None,
    };
    list.into_iter().filter_map(text).collect()
}

fn bias(fields: &mut Fields, language: &Language) -> Checked<Vec<(u32, f32)>> {
    let given: Map<String, Value> = fields.take("logit_bias")?.unwrap_or_default();
    let vocab = language.tokenizer().vocab_size();
    let mut bias = Vec::with_capacity(given.len());
    for (id, value) in given {
        let known = id.parse::<u32>().ok().filter(|id| (*id as usize) < vocab);
        let known = known.ok_or_else(|| {
            ApiError::field(format!("logit_bias.{id}"), &format!("is no token; ids are 0 to {}", vocab - 1))
        })?;
        bias.push((known, value.as_f64().unwrap_or_default() as f32));
    }
    Ok(bias)
}

fn stop_ids(fields: &mut Fields, language: &Language) -> Checked<Vec<u32>> {
    let ids = tokens(&fields.list("stop_token_ids").unwrap_or_default());
    in_vocabulary(&ids, language, "stop_token_ids")?;
    Ok(ids)
}

/// The ids of a list of them.
pub(crate) fn tokens(list: &[Value]) -> Vec<u32> {
    list.iter().filter_map(|id| crate::shape::integer(id)?.try_into().ok()).collect()
}

/// Errors when one of the ids is no token of the model.
pub(crate) fn in_vocabulary(ids: &[u32], language: &Language, of: &str) -> Checked<()> {
    let vocab = language.tokenizer().vocab_size();
    match ids.iter().position(|id| *id as usize >= vocab) {
        Some(at) => {
            let problem = format!("is {}, which is no token; ids are 0 to {}", ids[at], vocab - 1);
            Err(ApiError::field(format!("{of}[{at}]"), &problem))
        }
        None => Ok(()),
    }
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
}
