use anemone_session::{Answer, Delta, Generation, Message, OutputOptions, OutputParser, ToolCall};
use anyhow::Result;
use serde_json::{Map, Value};

use crate::output;

/// Where stdout is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the beginning of a line of text.
    Text,
    /// In the middle of one.
    Middle,
    /// Behind a call and its line's end.
    Call,
}

/// What is shown of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fold {
    /// All of it, on stdout.
    Open,
    /// How long it was, on stderr.
    Line,
    Nothing,
}

/// Shows an answer as it comes: its text, its reasoning folded, its calls one a line.
#[derive(Debug)]
pub(crate) struct Shown {
    parser: OutputParser,
    answer: Answer,
    shown: bool,
    fold: Fold,
    thought: usize,
    told: bool,
    at: Place,
}

impl Shown {
    /// `shown` writes the answer to stdout; `reasoning` writes the reasoning too, which otherwise is one line on stderr, or none
    /// when `quiet`.
    pub(crate) fn new(options: OutputOptions, shown: bool, reasoning: bool, quiet: bool) -> Self {
        Self {
            parser: OutputParser::new(options),
            answer: Answer::default(),
            shown,
            fold: match (shown, reasoning, quiet) {
                (true, true, _) => Fold::Open,
                (true, false, false) => Fold::Line,
                _ => Fold::Nothing,
            },
            thought: 0,
            told: false,
            at: Place::Text,
        }
    }

    /// Counts a token.
    pub(crate) fn token(&mut self) {
        self.thought += usize::from(self.parser.is_reasoning());
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        let deltas = self.parser.push(text);
        self.deltas(&deltas)
    }

    /// Shows what was held back and gives the whole answer.
    pub(crate) fn end(mut self) -> Result<Answer> {
        let deltas = self.parser.finish();
        self.deltas(&deltas)?;
        self.fold()?;
        if self.shown && self.at != Place::Call {
            output::data("\n")?;
        }
        Ok(self.answer)
    }

    fn deltas(&mut self, deltas: &[Delta]) -> Result<()> {
        for delta in deltas {
            self.answer.push(delta);
            match delta {
                Delta::Reasoning(text) if self.fold == Fold::Open => {
                    let text = if output::stdout_has_colour() {
                        format!("\x1b[2m{text}\x1b[0m")
                    } else {
                        text.clone()
                    };
                    output::data(&text)?;
                    self.at = Place::Middle;
                }
                Delta::Content(text) => {
                    self.fold()?;
                    if self.shown {
                        output::data(text)?;
                        self.at = if text.ends_with('\n') { Place::Text } else { Place::Middle };
                    }
                }
                Delta::CallEnd { index } => {
                    self.fold()?;
                    if self.shown
                        && let Some(call) = self.answer.calls.get(*index)
                    {
                        let gap = if self.at == Place::Middle { "\n" } else { "" };
                        output::data(&format!("{gap}{}\n", pretty(call)))?;
                        self.at = Place::Call;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Tells, once, how long the reasoning was.
    fn fold(&mut self) -> Result<()> {
        if self.told || self.answer.reasoning.is_empty() {
            return Ok(());
        }
        self.told = true;
        match self.fold {
            Fold::Open => {
                self.at = Place::Text;
                output::data("\n\n")?;
            }
            Fold::Line => {
                let tokens = if self.thought == 1 { "token" } else { "tokens" };
                output::note(&format!("thought for {} {tokens}", self.thought));
            }
            Fold::Nothing => {}
        }
        Ok(())
    }
}

/// A call on one line: `→ name(key: value, …)`, values in JSON.
fn pretty(call: &ToolCall) -> String {
    let arguments: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_default();
    let arguments: Vec<String> = arguments.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    let line = format!("→ {}({})", call.name, arguments.join(", "));
    line.chars().filter(|c| !c.is_control()).collect()
}

/// Adds what an answer consists of to what `--json` tells of its generation.
pub(crate) fn report(answer: &Answer, report: &mut Map<String, Value>) {
    let message = message(answer.clone());
    report.insert("content".into(), message.content.unwrap_or(Value::Null));
    report.insert("reasoning_content".into(), message.reasoning_content.map_or(Value::Null, Value::String));
    report.insert("tool_calls".into(), message.tool_calls.map_or(Value::Null, Value::Array));
    if !answer.calls.is_empty() && report.get("finish_reason").is_some_and(|reason| reason == "stop") {
        report.insert("finish_reason".into(), "tool_calls".into());
    }
}

/// The assistant's message.
pub(crate) fn message(answer: Answer) -> Message {
    answer.into_message(|index| format!("call_{index}"))
}

/// Whether a generation was broken off before there was anything.
pub(crate) fn is_nothing(generation: &Generation) -> bool {
    generation.finish_reason == anemone_session::FinishReason::Cancelled && generation.token_ids.is_empty()
}
