//! Questions and states as rows of tokens.

use anemone_session::Tokenizer;
use serde_json::{Map, Value as Json};

use crate::question::Question;
use crate::value::Value;
use crate::{Error, Result};

/// Tokens of an option's text that are kept.
const OPTION_TOKENS: usize = 48;
/// Tokens the instructions should have; below it every option is cut.
const MIN_HEAD: usize = 16;
/// Tokens of the instructions that are kept whatever the options take.
const KEPT_HEAD: usize = 8;
/// Tokens of an option that are kept whatever their number, its marker included.
const KEPT_OPTION: usize = 4;

/// Tokens a row may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The whole row.
    pub max_len: usize,
    /// Instructions and options.
    pub head_max_len: usize,
}

/// The tokenizer of a decision model with the tokens its prompts are made of.
#[derive(Debug)]
pub struct Vocabulary {
    tokenizer: Tokenizer,
    cls: u32,
    sep: u32,
    pad: u32,
    mask: u32,
    mask_text: String,
}

/// The state of a request as tokens.
#[derive(Debug, Clone)]
pub struct StateTokens {
    ids: Vec<u32>,
    /// A conversation, which keeps its end when it is cut.
    keeps_end: bool,
}

/// A question as tokens, up to where the state begins.
#[derive(Debug, Clone)]
pub(crate) struct QuestionTokens {
    id: String,
    ids: Vec<u32>,
    markers: Vec<usize>,
    options_end: usize,
    distinct_options: usize,
    tokens_per_option: Option<usize>,
    /// Tokens of instructions and options that were left out.
    pub(crate) cut: usize,
    sep: u32,
}

/// A question about a state, ready for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The row.
    pub ids: Vec<u32>,
    /// Place of each slot's marker.
    pub markers: Vec<usize>,
    /// Place of the separator after the options.
    pub options_end: usize,
    /// Tokens of the whole state.
    pub state_tokens: usize,
    /// Those in the row.
    pub state_tokens_used: usize,
    /// Options that still differ from one another.
    pub distinct_options: usize,
    /// What each option was cut to, its marker included, if they had to be.
    pub tokens_per_option: Option<usize>,
}

impl Vocabulary {
    /// Reads `tokenizer.json`; `config` is `tokenizer_config.json`, which names the special tokens.
    pub fn new(tokenizer_json: &[u8], config: &Map<String, Json>) -> Result<Self> {
        let tokenizer = Tokenizer::from_bytes(tokenizer_json, None)?;
        let special = |key: &'static str| {
            let text = match config.get(key) {
                Some(Json::Object(token)) => token.get("content").and_then(Json::as_str),
                other => other.and_then(Json::as_str),
            };
            let Some(text) = text else {
                let problem = "is missing; it must name a token".to_owned();
                let file = "tokenizer_config.json".to_owned();
                return Err(Error::Config { file, key: key.to_owned(), problem });
            };
            let id = tokenizer.token_to_id(text);
            let id = id.ok_or_else(|| Error::Token { key, token: text.to_owned() })?;
            Ok((id, text.to_owned()))
        };
        let (mask, mask_text) = special("mask_token")?;
        let (cls, sep, pad) = (special("cls_token")?.0, special("sep_token")?.0, special("pad_token")?.0);
        Ok(Self { tokenizer, cls, sep, pad, mask, mask_text })
    }

    /// The id that fills a row up to a fixed length.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Ids of a text in which the marker's own spelling is a space.
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(&text.replace(&self.mask_text, " "), false)?)
    }

    /// A text on its own as a row of at most `max_len` tokens.
    pub(crate) fn text(&self, text: &str, max_len: usize) -> Result<Vec<u32>> {
        let mut ids = vec![self.cls];
        ids.extend(self.encode(text)?.into_iter().take(max_len.saturating_sub(2)));
        ids.push(self.sep);
        Ok(ids)
    }

    /// A state as tokens: a text as it is, anything else as JSON.
    pub fn state(&self, state: &Value) -> Result<StateTokens> {
        if *state == Value::Null {
            return Err(Error::NoState);
        }
        let ids = self.encode(&state.rendered())?;
        Ok(StateTokens { ids, keeps_end: state.as_list().is_some() })
    }

    /// The row of a question about a state.
    pub fn prompt(&self, question: &Question, state: &StateTokens, limits: Limits) -> Result<Prompt> {
        self.question(question, limits)?.about(state, limits)
    }

    /// What the rows of a question begin with, whatever the state.
    pub(crate) fn question(&self, question: &Question, limits: Limits) -> Result<QuestionTokens> {
        let (mut spans, mut whole) = (Vec::with_capacity(question.options.len()), 0);
        for option in question.slots() {
            let text = self.encode(&format!(" {}", question.options[option]))?;
            whole += text.len() + 1;
            let mut span = vec![self.mask];
            span.extend(text.into_iter().take(OPTION_TOKENS));
            spans.push(span);
        }
        let taken = |spans: &[Vec<u32>]| spans.iter().map(Vec::len).sum::<usize>();
        let mut tokens_per_option = None;
        if limits.head_max_len < taken(&spans) + MIN_HEAD {
            let per = (limits.head_max_len.saturating_sub(MIN_HEAD) / spans.len()).max(KEPT_OPTION);
            for span in &mut spans {
                span.truncate(per);
            }
            tokens_per_option = Some(per);
        }
        let budget = limits.head_max_len.saturating_sub(taken(&spans));
        let mut head =
            self.encode(&format!("{} question: {}", question.kind.name(), question.instructions))?;
        whole += head.len();
        head.truncate(budget.max(KEPT_HEAD));
        let cut = whole - head.len() - taken(&spans);

        let mut distinct: Vec<&Vec<u32>> = spans.iter().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let distinct_options = distinct.len();
        let mut ids = vec![self.cls];
        ids.append(&mut head);
        ids.push(self.sep);
        let mut markers = Vec::with_capacity(spans.len());
        for span in &spans {
            markers.push(ids.len());
            ids.extend_from_slice(span);
        }
        let options_end = ids.len();
        ids.push(self.sep);
        let id = question.id.clone();
        Ok(QuestionTokens {
            id,
            ids,
            markers,
            options_end,
            distinct_options,
            tokens_per_option,
            cut,
            sep: self.sep,
        })
    }
}

impl QuestionTokens {
    /// The row with a state; `limits` are those the question was made for.
    pub(crate) fn about(&self, state: &StateTokens, limits: Limits) -> Result<Prompt> {
        let (mut ids, mut markers) = (self.ids.clone(), self.markers.clone());
        let room = limits.max_len.saturating_sub(ids.len() + 1).min(state.ids.len());
        let kept = if state.keeps_end { &state.ids[state.ids.len() - room..] } else { &state.ids[..room] };
        ids.extend_from_slice(kept);
        ids.push(self.sep);
        ids.truncate(limits.max_len);
        markers.retain(|marker| *marker < limits.max_len);
        if markers.len() < self.markers.len() {
            return Err(Error::Budget {
                id: self.id.clone(),
                fit: markers.len(),
                options: self.markers.len(),
                max_len: limits.max_len,
            });
        }
        Ok(Prompt {
            ids,
            markers,
            options_end: self.options_end,
            state_tokens: state.ids.len(),
            state_tokens_used: room,
            distinct_options: self.distinct_options,
            tokens_per_option: self.tokens_per_option,
        })
    }
}

impl StateTokens {
    /// No state at all.
    pub(crate) fn empty() -> Self {
        Self { ids: Vec::new(), keeps_end: false }
    }

    /// Its ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }
}
