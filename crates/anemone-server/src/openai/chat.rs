//! `/v1/chat/completions`.

pub(crate) mod reply;

use anemone_session::{Delta, Grammar, Job, ToolChoice};
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Map, Value};

use super::choice::{Choice, End, Taken};
use super::fields::Fields;
use super::generation::{Common, Usage};
use super::prompt::{self, Prompt, Wishes};
use super::refusal::{ApiError, Checked, respond};
use super::stream::{self, Chunks, Piece};
use super::{now, tokens, unique};
use crate::app::App;
use crate::language::{Language, Update};
use crate::reading::read;
use crate::requests::chat::REQUEST;
use reply::{
    CallDelta, ChatChoice, ChatChunk, ChatCompletion, ChatDelta, ChatLogprobs, ChatReply, ChunkChoice,
    FinishReason, Function, FunctionDelta, TokenLogprob, ToolCall,
};

pub(crate) async fn create(app: &App, request: Request) -> Checked<Response> {
    let (chat, job) = read(app, request, &REQUEST, Chat::read).await?;
    let updates = chat.language.submit(job).await.map_err(|r| ApiError::rejected(&r, "messages"))?;
    if chat.stream {
        let count = chat.choices.len();
        return Ok(stream::respond(updates, count, chat));
    }
    chat.collect(updates).await
}

/// The form an answer must have.
fn form(format: &Value) -> Option<Grammar> {
    match format["type"].as_str()? {
        "json_object" => Some(Grammar::JsonObject),
        "json_schema" => Some(Grammar::JsonSchema(format["json_schema"]["schema"].clone())),
        _ => None,
    }
}

fn finish_reason(end: &End) -> FinishReason {
    match end {
        End::Stop | End::StopString(_) => FinishReason::Stop,
        End::Length => FinishReason::Length,
        End::Calls => FinishReason::ToolCalls,
    }
}

/// A request that is being answered.
struct Chat {
    language: Language,
    id: String,
    created: u64,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
    choices: Vec<Choice>,
    /// Log probabilities that were not sent yet.
    tokens: Vec<Vec<TokenLogprob>>,
    usage: Usage,
}

impl Chat {
    fn read(mut fields: Fields, language: Language) -> Checked<(Self, Job)> {
        let messages = prompt::messages(fields.list("messages").unwrap_or_default())?;
        let (tools, declared) = prompt::tools(&mut fields)?;
        let choice = fields.value("tool_choice").unwrap_or(Value::Null);
        let choice =
            ToolChoice::from_json(&choice).map_err(|error| ApiError::session(&error, "tool_choice"))?;
        let parallel = fields.flag("parallel_tool_calls").unwrap_or(true);
        let answer = fields.value("response_format").as_ref().and_then(form);
        let completion = fields.count("max_completion_tokens");
        let mut common = Common::read(&mut fields, &language)?;
        common.options.max_new_tokens = completion.or(common.options.max_new_tokens);
        let logprobs = fields.flag("logprobs").unwrap_or(false);
        let top = fields.count("top_logprobs");
        if top.is_some() && !logprobs {
            return Err(ApiError::field("top_logprobs", "is only allowed when 'logprobs' is true"));
        }
        common.options.top_logprobs = top.unwrap_or(0);
        let kwargs: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
        let wishes = Wishes { tools, declared, choice, parallel, answer, kwargs };
        let prompt = Prompt::render(&language, &messages, wishes)?;
        let job = prompt.job(&language, common.each(common.n));
        let chat = Self {
            choices: (0..common.n).map(|_| Choice::new(prompt.output.clone())).collect(),
            tokens: (0..common.n).map(|_| Vec::new()).collect(),
            language,
            id: unique("chatcmpl-"),
            created: now(),
            stream: common.stream,
            include_usage: common.include_usage,
            logprobs,
            usage: Usage::default(),
        };
        Ok((chat, job))
    }

    /// Takes a step; gives the deltas of the message, or what went wrong.
    fn take(&mut self, number: usize, update: Update) -> Checked<Vec<Delta>> {
        let choice = &mut self.choices[number];
        match choice.take(update, "call_")? {
            Taken::Nothing => Ok(Vec::new()),
            Taken::Token { id, logprob, top } => {
                if self.logprobs {
                    self.tokens[number].push(tokens::logprob(self.language.tokenizer(), id, logprob, &top));
                }
                Ok(Vec::new())
            }
            Taken::Deltas(deltas) => Ok(deltas),
            Taken::Ended(deltas, generation) => {
                self.usage.add(&generation, number == 0, choice.reasoning_tokens);
                Ok(deltas)
            }
        }
    }

    fn take_logprobs(&mut self, number: usize) -> Option<ChatLogprobs> {
        let content = self.logprobs.then(|| std::mem::take(&mut self.tokens[number]))?;
        Some(ChatLogprobs { content, refusal: None })
    }

    async fn collect(mut self, mut updates: crate::language::Updates) -> Checked<Response> {
        while self.choices.iter().any(|choice| choice.end.is_none()) {
            let (number, update) = updates.recv().await.ok_or_else(ApiError::failed)?;
            self.take(number, update)?;
        }
        let logprobs: Vec<_> = (0..self.choices.len()).map(|index| self.take_logprobs(index)).collect();
        let choices = self.choices.iter().zip(logprobs).enumerate();
        Ok(respond(&ChatCompletion {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: self.language.name(),
            choices: choices.map(|(index, (choice, logprobs))| answered(index, choice, logprobs)).collect(),
            usage: self.usage.into(),
            service_tier: "default",
        }))
    }

    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>, usage: Option<Usage>) -> Piece {
        Piece::new(&ChatChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: self.language.name(),
            choices,
            usage: self.include_usage.then(|| usage.into()),
        })
    }

    fn delta(&mut self, index: usize, delta: ChatDelta<'_>, finish_reason: Option<FinishReason>) -> Piece {
        let logprobs = self.take_logprobs(index);
        self.chunk(vec![ChunkChoice { index, delta, logprobs, finish_reason }], None)
    }
}

fn answered(index: usize, choice: &Choice, logprobs: Option<ChatLogprobs>) -> ChatChoice<'_> {
    let answer = &choice.answer;
    let calls = answer.calls.iter().zip(&choice.call_ids);
    let tool_calls: Vec<ToolCall<'_>> = calls
        .map(|(call, id)| {
            let function = Function { name: &call.name, arguments: &call.arguments };
            ToolCall { id, kind: "function", function }
        })
        .collect();
    let content = (!answer.content.is_empty() || tool_calls.is_empty()).then_some(answer.content.as_str());
    let reasoning_content = &answer.reasoning;
    let message = ChatReply { role: "assistant", content, refusal: None, reasoning_content, tool_calls };
    ChatChoice { index, message, logprobs, finish_reason: choice.end.as_ref().map(finish_reason) }
}

impl Chunks for Chat {
    fn begin(&mut self) -> Vec<Piece> {
        let choices = self.choices.len();
        let first = |i| {
            let delta = ChatDelta { role: Some("assistant"), content: Some(""), ..ChatDelta::default() };
            self.delta(i, delta, None)
        };
        (0..choices).map(first).collect()
    }

    fn update(&mut self, number: usize, update: Update) -> Checked<Vec<Piece>> {
        let deltas = self.take(number, update)?;
        let mut pieces = Vec::with_capacity(deltas.len());
        for delta in &deltas {
            let id;
            let mut added = ChatDelta::default();
            match delta {
                Delta::Reasoning(text) => added.reasoning_content = Some(text),
                Delta::Content(text) => added.content = Some(text),
                Delta::CallStart { index, name } => {
                    id = self.choices[number].call_ids[*index].clone();
                    let function = FunctionDelta { name: Some(name), arguments: "" };
                    added.tool_calls =
                        Some([CallDelta { index: *index, id: Some(&id), kind: Some("function"), function }]);
                }
                Delta::CallArguments { index, fragment } => {
                    let function = FunctionDelta { name: None, arguments: fragment };
                    added.tool_calls = Some([CallDelta { index: *index, id: None, kind: None, function }]);
                }
                _ => continue,
            }
            pieces.push(self.delta(number, added, None));
        }
        if let Some(finish) = self.choices[number].end.as_ref().map(finish_reason) {
            pieces.push(self.delta(number, ChatDelta::default(), Some(finish)));
        }
        Ok(pieces)
    }

    fn end(&mut self) -> Vec<Piece> {
        if self.include_usage { vec![self.chunk(Vec::new(), Some(self.usage))] } else { Vec::new() }
    }
}
