use std::path::{Path, PathBuf};

use anemone_session::{
    ChatTemplate, Constraint, ConstraintOptions, ConstraintVocabulary, Grammar, OutputOptions, Reasoning,
    Tokenizer, ToolChoice, Tools,
};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::files;

/// What the model may call, and what its answer must be.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Structure")]
pub(crate) struct StructureArgs {
    /// Functions the model may call: a JSON list, each an object with name and parameters or in OpenAI's wrapper
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// Whether they are called: auto, none, required, or the name of the one to call [default: auto]
    #[arg(long, value_name = "CHOICE", requires = "tools")]
    pub(crate) tool_choice: Option<ToolChoice>,
    /// Answer with JSON that is valid under the JSON Schema in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["regex", "grammar"])]
    pub(crate) schema: Option<PathBuf>,
    /// Answer with a text that this regular expression matches as a whole
    #[arg(long, value_name = "REGEX", conflicts_with = "grammar")]
    pub(crate) regex: Option<String>,
    /// Answer with a text of the grammar in this file, in Lark's syntax
    #[arg(long, value_name = "FILE")]
    pub(crate) grammar: Option<PathBuf>,
    /// Show the reasoning too
    #[arg(long)]
    pub(crate) reasoning: bool,
}

/// The same, read.
#[derive(Debug)]
pub(crate) struct Structure {
    /// The tools as the template gets them.
    pub(crate) listed: Vec<Value>,
    tools: Tools,
    choice: ToolChoice,
    answer: Option<Grammar>,
    vocabulary: Option<ConstraintVocabulary>,
}

impl StructureArgs {
    /// Reads the files.
    pub(crate) fn read(&self) -> Result<Structure> {
        let listed = match &self.tools {
            Some(path) => match json("--tools", path)? {
                Value::Array(tools) => tools,
                tool @ Value::Object(_) => vec![tool],
                _ => bail!("--tools {}: not a list; write a JSON list of functions", path.display()),
            },
            None => Vec::new(),
        };
        let file = |path: &Option<PathBuf>| path.as_deref().unwrap_or(Path::new("")).display().to_string();
        let tools = Tools::from_json(&listed).with_context(|| format!("--tools {}", file(&self.tools)))?;
        let answer = match (&self.schema, &self.regex, &self.grammar) {
            (Some(path), ..) => Some(Grammar::JsonSchema(json("--schema", path)?)),
            (_, Some(regex), _) => Some(Grammar::Regex(regex.clone())),
            (_, _, Some(path)) => Some(Grammar::Lark(files::read_text("--grammar", path)?)),
            _ => None,
        };
        let choice = self.tool_choice.clone().unwrap_or_default();
        if let ToolChoice::Named(name) = &choice
            && tools.get(name).is_none()
        {
            let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
            bail!(
                "--tool-choice {name}: no such tool; give auto, none, required or one of: {}",
                known.join(", ")
            );
        }
        Ok(Structure { listed, tools, choice, answer, vocabulary: None })
    }
}

impl Structure {
    /// Tools as the template is to show them, if any.
    pub(crate) fn shown_tools(&self) -> Option<&[Value]> {
        (!self.listed.is_empty() && self.choice != ToolChoice::None).then_some(&*self.listed)
    }

    /// How the answer to a rendered prompt is read.
    pub(crate) fn output(&self, template: &ChatTemplate, prompt: &str) -> OutputOptions {
        OutputOptions {
            format: template.tool_format(),
            reasoning_open: OutputOptions::opens_reasoning(prompt),
            calls: !self.listed.is_empty() && self.choice != ToolChoice::None,
            tools: self.tools.clone(),
            ..OutputOptions::default()
        }
    }

    /// What the answer is held to; without a template it is plain text.
    pub(crate) fn constraint(
        &mut self,
        tokenizer: &Tokenizer,
        stop_ids: &[u32],
        template: Option<(&ChatTemplate, &str)>,
    ) -> Result<Option<Box<dyn Constraint>>> {
        let calls = !self.tools.is_empty() && self.choice != ToolChoice::None;
        if self.answer.is_none() && !calls {
            return Ok(None);
        }
        let reasoning = match template {
            Some((_, prompt)) if OutputOptions::opens_reasoning(prompt) => Reasoning::Open,
            Some((template, _)) if template.source().contains("<think>") => Reasoning::Allowed,
            _ => Reasoning::None,
        };
        let vocabulary = match &mut self.vocabulary {
            Some(vocabulary) => vocabulary,
            none => none.insert(ConstraintVocabulary::new(tokenizer, stop_ids)?),
        };
        let options = ConstraintOptions {
            answer: self.answer.as_ref(),
            tools: Some(&self.tools),
            choice: self.choice.clone(),
            parallel: true,
            format: template.map(|(template, _)| template.tool_format()).unwrap_or_default(),
            reasoning,
        };
        let guide = vocabulary.guide(&options).map_err(|error| anyhow!("--{error}"))?;
        Ok(guide.map(|guide| Box::new(guide) as Box<dyn Constraint>))
    }
}

fn json(option: &str, path: &Path) -> Result<Value> {
    let text = files::read_text(option, path)?;
    serde_json::from_str(&text)
        .map_err(|error| anyhow!("{option} {}: not JSON: {error}; repair the file", path.display()))
}
