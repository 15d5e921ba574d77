use anemone_session::{
    Constraint, ConstraintOptions, GenerateOptions, Grammar, Guide, Job, Message, OutputOptions, Reasoning,
    RenderOptions, ToolChoice, Tools,
};
use serde_json::{Map, Value};

use super::fields::Fields;
use super::refusal::{ApiError, Checked};
use crate::language::Language;

/// A conversation as a model reads it.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    /// How its answer is read.
    pub(crate) output: OutputOptions,
    /// What its answer must be.
    guide: Option<Guide>,
}

/// The messages of a request, those of developers as those of the system.
pub(crate) fn messages(value: Option<Value>) -> Checked<Vec<Message>> {
    let expected = || ApiError::field("messages", "must be a list of messages, not empty");
    let Some(Value::Array(list)) = value else { return Err(expected()) };
    if list.is_empty() {
        return Err(expected());
    }
    list.into_iter().enumerate().map(|(i, value)| message(i, value)).collect()
}

/// What is wrong with a message, without the names our types have.
fn plain(error: &serde_json::Error) -> String {
    error
        .to_string()
        .replace("struct Message", "an object with role and content")
        .replace("a sequence", "a list")
}

fn message(index: usize, value: Value) -> Checked<Message> {
    let at = format!("messages[{index}]");
    let mut message: Message = serde_json::from_value(value)
        .map_err(|error| ApiError::field(at.as_str(), &format!("is no message: {}", plain(&error))))?;
    match message.role.as_str() {
        "developer" => "system".clone_into(&mut message.role),
        "system" | "user" | "assistant" | "tool" => {}
        other => {
            let problem = format!("is '{other}'; use system, developer, user, assistant or tool");
            return Err(ApiError::field(format!("{at}.role"), &problem));
        }
    }
    let expected =
        |place: String| ApiError::field(place, "must be a string, or a list of parts of type 'text'");
    match &message.content {
        None if message.role == "assistant" => {}
        None | Some(Value::Null) if message.role != "assistant" => {
            return Err(expected(format!("{at}.content")));
        }
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            for (part, value) in parts.iter().enumerate() {
                let place = format!("{at}.content[{part}]");
                match value.get("type").and_then(Value::as_str) {
                    Some("text" | "refusal")
                        if value.get("text").or(value.get("refusal")).is_some_and(Value::is_string) => {}
                    Some("text") | None => return Err(expected(place)),
                    Some(other) => {
                        return Err(ApiError::field(
                            place,
                            &format!("is of type '{other}', which this model cannot read; give text"),
                        ));
                    }
                }
            }
            // Templates may know parts of text in their own way; joined, every template reads them.
            message.content = Some(Value::String(message.text()));
        }
        Some(_) => return Err(expected(format!("{at}.content"))),
    }
    Ok(message)
}

/// The functions offered.
pub(crate) fn tools(fields: &mut Fields) -> Checked<(Vec<Value>, Tools)> {
    let list: Vec<Value> = fields.take("tools", "a list of functions")?.unwrap_or_default();
    for (i, tool) in list.iter().enumerate() {
        if tool.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "function") {
            return Err(ApiError::field(format!("tools[{i}].type"), "must be 'function'"));
        }
    }
    let tools = Tools::from_json(&list).map_err(|error| ApiError::session(&error, "tools"))?;
    Ok((list, tools))
}

/// What a conversation asks for beside its answer.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    /// Functions as they came, for the template.
    pub(crate) tools: Vec<Value>,
    /// The same, read.
    pub(crate) declared: Tools,
    pub(crate) choice: ToolChoice,
    pub(crate) parallel: bool,
    /// The form of the answer's text.
    pub(crate) answer: Option<Grammar>,
    /// Variables for the template.
    pub(crate) kwargs: Map<String, Value>,
}

impl Prompt {
    /// Renders and encodes a conversation.
    pub(crate) fn render(language: &Language, messages: &[Message], wishes: Wishes) -> Checked<Self> {
        let Wishes { tools, declared, choice, parallel, answer, kwargs } = wishes;
        if declared.is_empty() && matches!(choice, ToolChoice::Required | ToolChoice::Named(_)) {
            return Err(ApiError::field(
                "tool_choice",
                "asks for a call and there are no 'tools'; give at least one",
            ));
        }
        let options = RenderOptions {
            tools: (!tools.is_empty()).then_some(&tools),
            kwargs,
            ..RenderOptions::default()
        };
        let of = |error: &anemone_session::Error| ApiError::session(error, "messages");
        let text = language.template().render(messages, &options).map_err(|error| of(&error))?;
        let ids = language.tokenizer().encode(&text, false).map_err(|error| of(&error))?;
        let reasoning_open = OutputOptions::opens_reasoning(&text);
        let reasoning = match reasoning_open {
            true => Reasoning::Open,
            false if language.reasons() => Reasoning::Allowed,
            false => Reasoning::None,
        };
        let guide = if answer.is_none() && (declared.is_empty() || choice == ToolChoice::None) {
            None
        } else {
            let asked = ConstraintOptions {
                answer: answer.as_ref(),
                tools: Some(&declared),
                choice: choice.clone(),
                parallel,
                format: language.format(),
                reasoning,
            };
            language.constraints().and_then(|c| c.guide(&asked)).map_err(|error| of(&error))?
        };
        let output = OutputOptions {
            format: language.format(),
            reasoning_open,
            calls: !declared.is_empty() && choice != ToolChoice::None,
            tools: declared,
            ..OutputOptions::default()
        };
        Ok(Self { ids, output, guide })
    }

    /// The job of continuations with these options.
    pub(crate) fn job(&self, language: &Language, mut each: Vec<GenerateOptions>) -> Job {
        // Of the special tokens, the answer's text needs those its parts are told apart by.
        let kept = self.output.kept_special(language.tokenizer());
        for options in &mut each {
            options.skip_special = true;
            options.keep_special.clone_from(&kept);
        }
        let constraint = || self.guide.clone().map(|guide| Box::new(guide) as Box<dyn Constraint>);
        let continuations = each.into_iter().map(|options| (options, constraint())).collect();
        Job { prompt: self.ids.clone(), continuations }
    }
}
