//! `/v1/chat/completions`.

use anemone_session::{Delta, Grammar, Job, ToolChoice};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};

use super::choice::{Choice, End, Taken};
use super::fields::Fields;
use super::generation::{Common, Usage};
use super::prompt::{self, Prompt, Wishes};
use super::refusal::{ApiError, Checked, respond};
use super::stream::{self, Chunks};
use super::{now, tokens, unique};
use crate::app::App;
use crate::language::{Language, Update};

/// Most alternatives of a token.
const MOST_TOP: usize = 20;

pub(crate) async fn create(app: &App, request: Request) -> Checked<Response> {
    let (permit, bytes) = app.admit_bytes(request).await?;
    let reader = app.clone();
    let read = tokio::task::spawn_blocking(move || Chat::read(&reader, &bytes));
    let (chat, job) = read.await.map_err(|_| ApiError::failed())??;
    drop(permit);
    let updates = chat.language.submit(job).await.map_err(|r| ApiError::rejected(&r, "messages"))?;
    if chat.stream {
        let count = chat.choices.len();
        return Ok(stream::respond(updates, count, chat));
    }
    chat.collect(updates).await
}

/// The form an answer must have.
fn form(format: &Value) -> Checked<Option<Grammar>> {
    let wrong = |problem: &str| Err(ApiError::field("response_format", problem));
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::JsonObject)),
        Some("json_schema") => match format.get("json_schema").and_then(|spec| spec.get("schema")) {
            Some(schema) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
            None => wrong("has no json_schema.schema; give the schema there"),
        },
        _ => wrong("must have the type 'text', 'json_object' or 'json_schema'"),
    }
}

fn finish_reason(end: &End) -> &'static str {
    match end {
        End::Stop | End::StopString(_) => "stop",
        End::Length => "length",
        End::Calls => "tool_calls",
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
    tokens: Vec<Vec<Value>>,
    usage: Usage,
}

impl Chat {
    fn read(app: &App, bytes: &[u8]) -> Checked<(Self, Job)> {
        let mut fields = Fields::parse(bytes)?;
        let language = app.language(fields.take::<String>("model", "a string")?.as_deref())?;
        let messages = prompt::messages(fields.value("messages"))?;
        let (tools, declared) = prompt::tools(&mut fields)?;
        let choice = fields.value("tool_choice").unwrap_or(Value::Null);
        let choice =
            ToolChoice::from_json(&choice).map_err(|error| ApiError::session(&error, "tool_choice"))?;
        let parallel = fields.take("parallel_tool_calls", "true or false")?.unwrap_or(true);
        let answer = fields.value("response_format").as_ref().map_or(Ok(None), form)?;
        let completion = fields.count("max_completion_tokens", 0..=usize::MAX)?;
        let mut common = Common::read(&mut fields, &language)?;
        common.options.max_new_tokens = completion.or(common.options.max_new_tokens);
        let logprobs = fields.flag("logprobs")?;
        let top = fields.count("top_logprobs", 0..=MOST_TOP)?;
        if top.is_some() && !logprobs {
            return Err(ApiError::field("top_logprobs", "is only allowed when 'logprobs' is true"));
        }
        common.options.top_logprobs = top.unwrap_or(0);
        let kwargs: Map<String, Value> =
            fields.take("chat_template_kwargs", "an object")?.unwrap_or_default();
        fields.refuse("functions", "is not supported; use 'tools'")?;
        fields.refuse("function_call", "is not supported; use 'tool_choice'")?;
        for key in ["audio", "web_search_options"] {
            fields.refuse(key, "is not supported by this model; leave it out")?;
        }
        if let Some(modalities) = fields.take::<Vec<String>>("modalities", "a list of strings")?
            && modalities != ["text"]
        {
            return Err(ApiError::field("modalities", "must be [\"text\"]"));
        }
        fields.ignore(&["prediction", "reasoning_effort", "verbosity"]);
        fields.finish()?;
        let wishes = Wishes { tools, declared, choice, parallel, answer, kwargs };
        let prompt = Prompt::render(&language, &messages, wishes)?;
        let job = prompt.job(&language, common.each(common.n));
        let chat = Self {
            choices: (0..common.n).map(|_| Choice::new(prompt.output.clone())).collect(),
            tokens: vec![Vec::new(); common.n],
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

    fn take_logprobs(&mut self, number: usize) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        json!({"content": std::mem::take(&mut self.tokens[number]), "refusal": null})
    }

    async fn collect(mut self, mut updates: crate::language::Updates) -> Checked<Response> {
        while self.choices.iter().any(|choice| choice.end.is_none()) {
            let (number, update) = updates.recv().await.ok_or_else(ApiError::failed)?;
            self.take(number, update)?;
        }
        let mut choices = Vec::with_capacity(self.choices.len());
        for index in 0..self.choices.len() {
            let logprobs = self.take_logprobs(index);
            let choice = &self.choices[index];
            let ids = &choice.call_ids;
            let calls = choice.answer.tool_calls(|i| ids[i].clone());
            let answer = &choice.answer;
            let content = (!answer.content.is_empty() || calls.is_empty()).then_some(&answer.content);
            let mut message = json!({"role": "assistant", "content": content, "refusal": null});
            if let Value::Object(message) = &mut message {
                if !answer.reasoning.is_empty() {
                    message.insert("reasoning_content".into(), answer.reasoning.as_str().into());
                }
                if !calls.is_empty() {
                    message.insert("tool_calls".into(), calls.into());
                }
            }
            choices.push(json!({
                "index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.end.as_ref().map(finish_reason),
            }));
        }
        Ok(respond(&json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.language.name(),
            "choices": choices,
            "usage": self.usage.json(),
            "service_tier": "default",
        }))
        .into_response())
    }

    fn chunk(&self, choices: &Value) -> Value {
        stream::chunk(
            "chat.completion.chunk",
            (&self.id, self.created),
            self.language.name(),
            choices,
            self.include_usage,
        )
    }

    fn delta(&mut self, index: usize, delta: &Value, finish: Option<&str>) -> Value {
        let logprobs = self.take_logprobs(index);
        self.chunk(&json!([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]))
    }
}

impl Chunks for Chat {
    fn begin(&mut self) -> Vec<Value> {
        let role = json!({"role": "assistant", "content": ""});
        (0..self.choices.len()).map(|i| self.delta(i, &role, None)).collect()
    }

    fn update(&mut self, number: usize, update: Update) -> Checked<Vec<Value>> {
        let deltas = self.take(number, update)?;
        let mut chunks = Vec::with_capacity(deltas.len());
        for delta in deltas {
            let delta = match delta {
                Delta::Reasoning(text) => json!({"reasoning_content": text}),
                Delta::Content(text) => json!({"content": text}),
                Delta::CallStart { index, name } => {
                    let id = &self.choices[number].call_ids[index];
                    let function = json!({"name": name, "arguments": ""});
                    json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
                }
                Delta::CallArguments { index, fragment } => {
                    json!({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]})
                }
                _ => continue,
            };
            chunks.push(self.delta(number, &delta, None));
        }
        if let Some(finish) = self.choices[number].end.as_ref().map(finish_reason) {
            chunks.push(self.delta(number, &json!({}), Some(finish)));
        }
        Ok(chunks)
    }

    fn end(&mut self) -> Vec<Value> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut chunk = self.chunk(&json!([]));
        chunk["usage"] = self.usage.json();
        vec![chunk]
    }
}
