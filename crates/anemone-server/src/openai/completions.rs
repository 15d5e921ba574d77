//! `/v1/completions`.

pub(crate) mod reply;

use anemone_session::{Detokenizer, FinishReason, Generation, Job};
use axum::extract::Request;
use axum::response::Response;
use serde_json::Value;
use tokio::sync::mpsc;

use super::fields::Fields;
use super::generation::{self, Common, Usage};
use super::refusal::{ApiError, Checked, respond};
use super::replies::Ordered;
use super::stream::{self, Chunks, Piece};
use super::{now, tokens, unique};
use crate::app::App;
use crate::language::{Language, Update, Updates};
use crate::reading::read;
use crate::requests::completions::REQUEST;
use crate::requests::generation::MOST_CHOICES;
use reply::{Reply, TextChoice, TextLogprobs};

/// Tokens where a request does not say how many.
const MAX_TOKENS: usize = 16;

pub(crate) async fn create(app: &App, request: Request) -> Checked<Response> {
    let (completion, prompts, common) = read(app, request, &REQUEST, Completion::read).await?;
    let per_job = completion.best_of;
    let mut all = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        // Made when it is handed over, because options may be large.
        let continuations = common.each(per_job).into_iter().map(|options| (options, None)).collect();
        let updates = completion.language.submit(Job { prompt, continuations }).await;
        all.push(updates.map_err(|r| ApiError::rejected(&r, "prompt"))?);
    }
    let updates = join(all, per_job);
    if completion.stream {
        let count = completion.choices.len();
        return Ok(stream::respond(updates, count, completion));
    }
    completion.collect(updates).await
}

/// The steps of several jobs as those of one, whose continuations are numbered on.
fn join(mut all: Vec<Updates>, per_job: usize) -> Updates {
    if all.len() == 1 {
        return all.remove(0);
    }
    let (sender, joined) = mpsc::unbounded_channel();
    for (job, mut updates) in all.into_iter().enumerate() {
        let sender = sender.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    // Whoever listened has gone: so do these, which cancels the job.
                    () = sender.closed() => return,
                    update = updates.recv() => {
                        let Some((number, update)) = update else { return };
                        let failed = matches!(update, Update::Failed(_));
                        let _ = sender.send((job * per_job + number, update));
                        if failed {
                            return;
                        }
                    }
                }
            }
        });
    }
    joined.into()
}

struct Completion {
    language: Language,
    id: String,
    created: u64,
    stream: bool,
    include_usage: bool,
    /// How many alternatives were asked for; `None` for no log probabilities at all.
    logprobs: Option<usize>,
    n: usize,
    best_of: usize,
    choices: Vec<Choice>,
    usage: Usage,
}

/// A token with its log probability, if it has one, and those of the likeliest at its place.
type Token = (u32, Option<f32>, Vec<(u32, f32)>);

#[derive(Default)]
struct Choice {
    text: String,
    /// Text that was streamed.
    sent: usize,
    tokens: Vec<Token>,
    /// Characters of the tokens that were told of, and the last of these.
    offset: usize,
    last: Option<u32>,
    total: f32,
    drawn: usize,
    finish: Option<&'static str>,
}

impl Completion {
    fn read(mut fields: Fields, language: Language) -> Checked<(Self, Vec<Vec<u32>>, Common)> {
        let prompts = prompts(fields.value("prompt"), &language)?;
        let most = fields.count("max_tokens").unwrap_or(MAX_TOKENS);
        let mut common = Common::read(&mut fields, &language)?;
        common.options.max_new_tokens = Some(most);
        let logprobs = fields.count("logprobs");
        let echo = fields.flag("echo").unwrap_or(false);
        let (best_of, most) =
            (fields.count("best_of").unwrap_or(common.n), MOST_CHOICES.min(language.max_sequences()));
        if best_of > most {
            return Err(ApiError::field(
                "best_of",
                &format!("must be an integer from 1 to {most} on this server"),
            ));
        }
        if best_of < common.n {
            return Err(ApiError::field("best_of", &format!("must be 'n' ({}) or more", common.n)));
        }
        if best_of > common.n && common.stream {
            return Err(ApiError::field("best_of", "must be 'n' when 'stream' is true"));
        }
        if prompts.len() * best_of > MOST_CHOICES {
            let most = MOST_CHOICES / best_of;
            let each =
                if best_of == 1 { String::new() } else { format!(" where each has {best_of} continuations") };
            return Err(ApiError::field("prompt", &format!("must be 1 to {most} prompts{each}")));
        }
        let (asked, room) = (prompts.len() * best_of, language.room());
        if asked > room {
            let problem = format!(
                "asks for {asked} continuations and this server holds {room} at once; send fewer in a request"
            );
            return Err(ApiError::field("prompt", &problem));
        }
        // Choosing the best needs the log probabilities, which come with every token anyway.
        common.options.top_logprobs = logprobs.unwrap_or(0);
        common.options.prompt_logprobs = (echo && logprobs.is_some()).then(|| logprobs.unwrap_or(0));
        let mut choices = Vec::new();
        for ids in &prompts {
            for _ in 0..best_of {
                let mut choice = Choice::default();
                if echo {
                    let text = language.tokenizer().decode(ids, true);
                    choice.text = text.map_err(|error| ApiError::session(&error, "prompt"))?;
                    if let (Some(first), Some(_)) = (ids.first(), logprobs) {
                        choice.tokens.push((*first, None, Vec::new()));
                    }
                }
                choices.push(choice);
            }
        }
        let completion = Self {
            language,
            id: unique("cmpl-"),
            created: now(),
            stream: common.stream,
            include_usage: common.include_usage,
            logprobs,
            n: common.n,
            best_of,
            choices,
            usage: Usage::default(),
        };
        Ok((completion, prompts, common))
    }

    fn take(&mut self, number: usize, update: Update) -> Checked<()> {
        let choice = &mut self.choices[number];
        match update {
            Update::Prefill => {}
            Update::PromptToken { id, logprob, top } => choice.tokens.push((id, Some(logprob), top)),
            Update::Token { id, logprob, top } => {
                choice.total += logprob;
                choice.drawn += 1;
                if self.logprobs.is_some() {
                    choice.tokens.push((id, Some(logprob), top));
                }
            }
            Update::Text(text) => choice.text.push_str(&text),
            Update::Finished(generation) => {
                choice.finish = Some(finish(&generation));
                self.usage.add(&generation, number.is_multiple_of(self.best_of), 0);
            }
            Update::Failed(error) => return Err(error),
        }
        Ok(())
    }

    async fn collect(mut self, mut updates: Updates) -> Checked<Response> {
        while self.choices.iter().any(|choice| choice.finish.is_none()) {
            let (number, update) = updates.recv().await.ok_or_else(ApiError::failed)?;
            self.take(number, update)?;
        }
        let mut choices = Vec::new();
        for group in self.choices.chunks_mut(self.best_of) {
            // The likeliest by the mean of its tokens' log probabilities.
            group.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
            for choice in group.iter_mut().take(self.n) {
                let logprobs = self.logprobs.map(|_| choice.logprobs(&self.language));
                let finish_reason = choice.finish;
                choices.push(TextChoice {
                    index: choices.len(),
                    text: &choice.text,
                    logprobs,
                    finish_reason,
                });
            }
        }
        Ok(respond(&Reply {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: self.language.name(),
            choices,
            usage: self.usage.into(),
        }))
    }

    fn chunk<'a>(&'a self, choices: Vec<TextChoice<'a>>, usage: Option<Usage>) -> Piece {
        Piece::new(&reply::Chunk {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: self.language.name(),
            choices,
            usage: self.include_usage.then(|| usage.into()),
        })
    }

    fn piece(&mut self, index: usize) -> Piece {
        let choice = &mut self.choices[index];
        let logprobs = self.logprobs.map(|_| choice.logprobs(&self.language));
        let from = std::mem::replace(&mut choice.sent, choice.text.len());
        let choice = &self.choices[index];
        let text = &choice.text[from..];
        self.chunk(vec![TextChoice { index, text, logprobs, finish_reason: choice.finish }], None)
    }
}

/// The tokens of each prompt.
fn prompts(value: Option<Value>, language: &Language) -> Checked<Vec<Vec<u32>>> {
    let encode = |text: &str| {
        let ids = language.tokenizer().encode(text, true);
        ids.map_err(|error| ApiError::session(&error, "prompt"))
    };
    let list = match value {
        Some(Value::String(text)) => return Ok(vec![encode(&text)?]),
        Some(Value::Array(list)) => list,
        _ => return Ok(Vec::new()),
    };
    match list.first() {
        Some(Value::String(_)) => generation::strings(list).iter().map(|text| encode(text)).collect(),
        Some(Value::Array(_)) => {
            let lists = list.iter().map(|ids| generation::tokens(ids.as_array().map_or(&[], Vec::as_slice)));
            Ok(lists.collect())
        }
        _ => Ok(vec![generation::tokens(&list)]),
    }
}

fn finish(generation: &Generation) -> &'static str {
    if matches!(generation.finish_reason, FinishReason::Length(_)) { "length" } else { "stop" }
}

impl Choice {
    fn mean(&self) -> f32 {
        if self.drawn == 0 { 0.0 } else { self.total / self.drawn as f32 }
    }

    /// OpenAI's four lists, of the tokens that were not told of yet. Offsets are characters of the choice's text, in which
    /// special tokens have none.
    fn logprobs(&mut self, language: &Language) -> TextLogprobs {
        let tokenizer = language.tokenizer();
        let mut told = TextLogprobs::default();
        let mut decoder = Detokenizer::new(tokenizer, true);
        let mut width = |id| decoder.push(id).ok().flatten().map_or(0, |text| text.chars().count());
        // What a token adds depends on the one before it.
        if let Some(last) = self.last {
            width(last);
        }
        for (id, logprob, top) in self.tokens.drain(..) {
            told.text_offset.push(self.offset);
            self.offset += width(id);
            self.last = Some(id);
            told.tokens.push(tokens::text(tokenizer, id));
            told.token_logprobs.push(logprob.map(tokens::finite));
            let top = top.iter().map(|(id, p)| (tokens::text(tokenizer, *id), tokens::finite(*p)));
            told.top_logprobs.push(logprob.map(|_| Ordered(top.collect())));
        }
        told
    }
}

impl Chunks for Completion {
    fn begin(&mut self) -> Vec<Piece> {
        let echoes: Vec<usize> =
            (0..self.choices.len()).filter(|&i| !self.choices[i].text.is_empty()).collect();
        if self.logprobs.is_some() {
            // The prompt's text goes with its log probabilities, which are not known yet.
            return Vec::new();
        }
        echoes.into_iter().map(|i| self.piece(i)).collect()
    }

    fn update(&mut self, number: usize, update: Update) -> Checked<Vec<Piece>> {
        let shown = matches!(update, Update::Text(_) | Update::Finished(_));
        self.take(number, update)?;
        Ok(if shown { vec![self.piece(number)] } else { Vec::new() })
    }

    fn end(&mut self) -> Vec<Piece> {
        if self.include_usage { vec![self.chunk(Vec::new(), Some(self.usage))] } else { Vec::new() }
    }
}
