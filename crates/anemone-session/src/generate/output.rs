use std::ops::ControlFlow;

use super::{Event, FinishReason, GenerateOptions, LengthLimit, StopCause};
use crate::{Detokenizer, Result, Sampled, StopMatcher, Tokenizer};

/// What is told of a generation as it goes on.
pub(super) type OnEvent<'a> = &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>;

/// From drawn tokens to text, up to where it ends.
#[derive(Debug)]
pub(super) struct Output<'t> {
    detokenizer: Detokenizer<'t>,
    stops: StopMatcher,
    pub(super) token_ids: Vec<u32>,
    pub(super) text: String,
}

impl<'t> Output<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, options: &GenerateOptions) -> Result<Self> {
        Ok(Self {
            detokenizer: Detokenizer::new(tokenizer, options.skip_special).keeping(&options.keep_special),
            stops: StopMatcher::new(&options.stop_strings)?,
            token_ids: Vec::new(),
            text: String::new(),
        })
    }

    /// Takes a drawn token; gives the reason when it is the last.
    pub(super) fn accept(
        &mut self,
        options: &GenerateOptions,
        drawn: Sampled,
        top: &[(u32, f32)],
        on_event: OnEvent<'_>,
    ) -> Result<Option<FinishReason>> {
        let id = drawn.id;
        if !options.ignore_eos && options.stop_ids.contains(&id) {
            return self.end(options, FinishReason::Stop(StopCause::Token(id)), on_event).map(Some);
        }
        self.token_ids.push(id);
        if on_event(Event::Token { id, logprob: drawn.logprob, top }).is_break() {
            return Ok(Some(FinishReason::Cancelled));
        }
        let mut safe = String::new();
        let piece = self.detokenizer.push(id)?;
        let stopped = piece.and_then(|piece| self.stops.push(piece, &mut safe));
        let flow = self.emit(&safe, on_event);
        if let Some(stopped) = stopped {
            let text = options.stop_strings[stopped.index].clone();
            return Ok(Some(FinishReason::Stop(StopCause::Text(text))));
        }
        if flow.is_break() {
            return Ok(Some(FinishReason::Cancelled));
        }
        if options.max_new_tokens.is_some_and(|most| self.token_ids.len() >= most) {
            return self.end(options, FinishReason::Length(LengthLimit::MaxNewTokens), on_event).map(Some);
        }
        Ok(None)
    }

    /// Gives the text that was held back; a stop string it completes takes the place of `reason`.
    pub(super) fn end(
        &mut self,
        options: &GenerateOptions,
        reason: FinishReason,
        on_event: OnEvent<'_>,
    ) -> Result<FinishReason> {
        let mut safe = String::new();
        let piece = self.detokenizer.flush()?;
        let stopped = piece.and_then(|piece| self.stops.push(piece, &mut safe));
        self.stops.flush(&mut safe);
        // Nothing is left to break off.
        let _ = self.emit(&safe, on_event);
        Ok(match stopped {
            Some(stopped) => FinishReason::Stop(StopCause::Text(options.stop_strings[stopped.index].clone())),
            None => reason,
        })
    }

    fn emit(&mut self, text: &str, on_event: OnEvent<'_>) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.text.push_str(text);
        on_event(Event::Text(text))
    }
}
