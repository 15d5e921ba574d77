use std::borrow::Cow;
use std::fmt;
use std::io;

use minijinja::{Environment, Value as JinjaValue};
use serde_json::{Map, Value};

use crate::{Error, Message, Result, Timestamp, Tokenizer, ToolFormat};

mod environment;
mod generation_tag;
mod messages;
mod python;

/// The template used when a model has none: `ChatML`, tools listed in the system message, tool calls in Python
/// syntax.
const FALLBACK: &str = include_str!("template/fallback.jinja");

const MAX_SOURCE: usize = 1 << 20;
const MAX_OUTPUT: usize = 64 << 20;
const NAME: &str = "chat_template.jinja";

/// The texts of the special tokens a template may print.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TemplateTokens {
    /// Begins a text.
    pub bos: String,
    /// Ends a text.
    pub eos: String,
    /// Fills a batch.
    pub pad: String,
}

impl From<&Tokenizer> for TemplateTokens {
    fn from(tokenizer: &Tokenizer) -> Self {
        let text = |token: Option<&crate::SpecialToken>| token.map(|t| t.text.clone()).unwrap_or_default();
        Self { bos: text(tokenizer.bos()), eos: text(tokenizer.eos()), pad: text(tokenizer.pad()) }
    }
}

/// What else a rendering depends on.
#[derive(Debug, Clone)]
pub struct RenderOptions<'a> {
    /// Tools offered to the model, as they came: function objects or `OpenAI`'s wrapper around them.
    pub tools: Option<&'a [Value]>,
    /// Opens the assistant's turn at the end. On by default.
    pub add_generation_prompt: bool,
    /// Extra variables for the template, e.g. `keep_past_thinking`.
    pub kwargs: Map<String, Value>,
    /// What `strftime_now` tells; the system's time in UTC when `None`.
    pub now: Option<Timestamp>,
}

impl Default for RenderOptions<'_> {
    fn default() -> Self {
        Self { tools: None, add_generation_prompt: true, kwargs: Map::new(), now: None }
    }
}

/// A chat template: messages to the text a model was trained on.
///
/// The environment is that of the transformers library. Time and memory of a rendering are bounded, whatever the
/// template does.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: TemplateTokens,
    renders_tool_calls: bool,
    tool_format: ToolFormat,
}

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: &str, tokens: TemplateTokens) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(Error::TemplateSize { what: "the template", limit: MAX_SOURCE });
        }
        let mut environment = environment::new().map_err(syntax_error)?;
        let compiled = generation_tag::replace(source).into_owned();
        environment.add_template_owned(NAME, compiled).map_err(syntax_error)?;
        let renders_tool_calls = source.contains("tool_calls");
        let tool_format = ToolFormat::detect(source);
        Ok(Self { environment, source: source.to_owned(), tokens, renders_tool_calls, tool_format })
    }

    /// The built-in template.
    pub fn fallback(tokens: TemplateTokens) -> Result<Self> {
        Self::new(FALLBACK, tokens)
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template prints `tool_calls` itself; if not, calls are put into the content before rendering.
    pub fn renders_tool_calls(&self) -> bool {
        self.renders_tool_calls
    }

    /// How the model writes calls, as the template's source shows it.
    pub fn tool_format(&self) -> ToolFormat {
        self.tool_format
    }

    /// Renders a conversation; encode the text without adding special tokens.
    ///
    /// A missing content is the empty string. Whichever of `reasoning_content`, `thinking` and `reasoning` a
    /// message has is offered under the first two names. Arguments of tool calls given as JSON text are parsed.
    pub fn render(&self, messages: &[Message], options: &RenderOptions<'_>) -> Result<String> {
        let write_calls = (!self.renders_tool_calls).then_some(self.tool_format);
        let messages = (messages.iter().enumerate())
            .map(|(index, message)| messages::to_jinja(index, message, write_calls))
            .collect::<Result<Vec<_>>>()?;
        let tools = match options.tools {
            Some(tools) if !tools.is_empty() => tools.iter().map(messages::json_to_jinja).collect(),
            _ => JinjaValue::from(()),
        };
        let now = options.now.unwrap_or_else(Timestamp::now);
        let strftime = JinjaValue::from_function(move |format: String| {
            now.strftime(&format)
                .map_err(|e| minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, e))
        });
        let mut context: Vec<(Cow<'_, str>, JinjaValue)> = vec![
            ("messages".into(), JinjaValue::from(messages)),
            ("tools".into(), tools),
            ("add_generation_prompt".into(), options.add_generation_prompt.into()),
            ("bos_token".into(), self.tokens.bos.as_str().into()),
            ("eos_token".into(), self.tokens.eos.as_str().into()),
            ("pad_token".into(), self.tokens.pad.as_str().into()),
            ("strftime_now".into(), strftime),
        ];
        for (key, value) in &options.kwargs {
            context.retain(|(known, _)| known != key);
            context.push((key.as_str().into(), messages::json_to_jinja(value)));
        }
        let context = JinjaValue::from_pairs(context.iter().map(|(k, v)| (k.as_ref(), v.clone())));
        let mut out = Bounded { bytes: Vec::new(), overflow: false };
        let template = self.environment.get_template(NAME).map_err(syntax_error)?;
        let result = template.render_captured_to(context, &mut out).map(|_| ());
        match result {
            Ok(()) => Ok(String::from_utf8_lossy(&out.bytes).into_owned()),
            Err(_) if out.overflow => {
                Err(Error::TemplateSize { what: "the rendered text", limit: MAX_OUTPUT })
            }
            Err(error) => Err(match environment::refusal(&error) {
                Some(message) => Error::TemplateRefused { message },
                None => Error::TemplateRender { line: error.line().unwrap_or(0), source: error.into() },
            }),
        }
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("tokens", &self.tokens)
            .field("renders_tool_calls", &self.renders_tool_calls)
            .finish_non_exhaustive()
    }
}

fn syntax_error(error: minijinja::Error) -> Error {
    Error::TemplateSyntax { line: error.line().unwrap_or(0), source: error.into() }
}

struct Bounded {
    bytes: Vec<u8>,
    overflow: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + buf.len() > MAX_OUTPUT {
            self.overflow = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
