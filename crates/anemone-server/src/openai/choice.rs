use anemone_session::{Answer, Delta, FinishReason, Generation, OutputOptions, OutputParser, StopCause};

use super::unique;
use crate::language::Update;
use crate::openai::refusal::Checked;

/// Why a continuation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Stop,
    StopString(String),
    Length,
    Calls,
}

/// A continuation on its way to a message.
#[derive(Debug)]
pub(crate) struct Choice {
    parser: OutputParser,
    pub(crate) answer: Answer,
    /// Names of the calls.
    pub(crate) call_ids: Vec<String>,
    pub(crate) reasoning_tokens: usize,
    pub(crate) end: Option<End>,
}

/// What a step came to.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Nothing that is told.
    Nothing,
    /// A token.
    Token { id: u32, logprob: f32, top: Vec<(u32, f32)> },
    /// More of the message.
    Deltas(Vec<Delta>),
    /// The last of it.
    Ended(Vec<Delta>, Box<Generation>),
}

impl Choice {
    /// A continuation that has not begun; calls are named with `prefix` in front.
    pub(crate) fn new(output: OutputOptions) -> Self {
        Self {
            parser: OutputParser::new(output),
            answer: Answer::default(),
            call_ids: Vec::new(),
            reasoning_tokens: 0,
            end: None,
        }
    }

    /// Takes a step.
    pub(crate) fn take(&mut self, update: Update, prefix: &str) -> Checked<Taken> {
        match update {
            Update::Prefill | Update::PromptToken { .. } => Ok(Taken::Nothing),
            Update::Token { id, logprob, top } => {
                self.reasoning_tokens += usize::from(self.parser.is_reasoning());
                Ok(Taken::Token { id, logprob, top })
            }
            Update::Text(text) => {
                let deltas = self.parser.push(&text);
                self.add(&deltas, prefix);
                Ok(Taken::Deltas(deltas))
            }
            Update::Finished(generation) => {
                let deltas = match generation.finish_reason {
                    FinishReason::Length(_) => self.parser.finish_cut(),
                    _ => self.parser.finish(),
                };
                self.add(&deltas, prefix);
                self.end = Some(match &generation.finish_reason {
                    FinishReason::Length(_) => End::Length,
                    _ if self.parser.has_calls() => End::Calls,
                    FinishReason::Stop(StopCause::Text(text)) => End::StopString(text.clone()),
                    _ => End::Stop,
                });
                Ok(Taken::Ended(deltas, generation))
            }
            Update::Failed(error) => Err(error),
        }
    }

    fn add(&mut self, deltas: &[Delta], prefix: &str) {
        for delta in deltas {
            if matches!(delta, Delta::CallStart { .. }) {
                self.call_ids.push(unique(prefix));
            }
            self.answer.push(delta);
        }
    }
}
