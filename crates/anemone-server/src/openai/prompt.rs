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
pub(crate) fn messages(list: Vec<Value>) -> Checked<Vec<Message>> {
    list.into_iter().enumerate().map(|(i, value)| message(i, value)).collect()
}

fn message(index: usize, value: Value) -> Checked<Message> {
    let mut message: Message = serde_json::from_value(value).map_err(|error| {
        ApiError::field(format!("messages[{index}]"), &format!("cannot be read: {error}"))
    })?;
    if message.role == "developer" {
        "system".clone_into(&mut message.role);
    }
    if matches!(message.content, Some(Value::Array(_))) {
        // Templates may know parts of text in their own way; joined, every template reads them.
        message.content = Some(Value::String(message.text()));
    }
    Ok(message)
}

/// The functions offered.
pub(crate) fn tools(fields: &mut Fields) -> Checked<(Vec<Value>, Tools)> {
    let list = fields.list("tools").unwrap_or_default();
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
