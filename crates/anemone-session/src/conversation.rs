use std::ops::ControlFlow;

use crate::{
    ChatTemplate, Constraint, Engine, Event, GenerateOptions, Generation, Message, PassCost, RenderOptions,
    Result, Sequence, Tokenizer,
};

/// A chat on one engine, of which each turn computes only what is new: what neither the engine holds nor
/// [`GenerateOptions::prefix_cache`] knows.
///
/// Between turns the engine must not be used for anything else; if its position shows that it was, the next turn
/// begins from nothing.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    held: Vec<u32>,
    cost: PassCost,
}

/// What turns of a conversation have in common.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Text to ids.
    pub tokenizer: &'a Tokenizer,
    /// Messages to text.
    pub template: &'a ChatTemplate,
    /// Tools and template variables.
    pub render: &'a RenderOptions<'a>,
    /// How to generate.
    pub generate: &'a GenerateOptions,
}

impl Conversation {
    /// A conversation nothing is held of.
    pub fn new() -> Self {
        Self::default()
    }

    /// The tokens the engine holds.
    pub fn held(&self) -> &[u32] {
        &self.held
    }

    /// Forgets everything.
    pub fn reset(&mut self, engine: &mut dyn Engine) {
        engine.reset();
        self.held.clear();
    }

    /// Renders all messages and generates the answer, feeding only what the engine does not hold.
    pub fn turn(
        &mut self,
        engine: &mut dyn Engine,
        turn: Turn<'_>,
        messages: &[Message],
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let text = turn.template.render(messages, turn.render)?;
        let prompt = turn.tokenizer.encode(&text, false)?;
        self.generate(engine, turn.tokenizer, &prompt, turn.generate, None, on_event)
    }

    /// Generates from a whole prompt, feeding only what the engine does not hold.
    pub fn generate(
        &mut self,
        engine: &mut dyn Engine,
        tokenizer: &Tokenizer,
        prompt_ids: &[u32],
        options: &GenerateOptions,
        constraint: Option<Box<dyn Constraint>>,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let sequence = Sequence::new(engine, tokenizer, prompt_ids, options.clone())?;
        let mut sequence = sequence.with_constraint(constraint);
        self.keep_prefix(engine, prompt_ids);
        sequence.begin_cached(engine, self.held.len());
        self.held.clear();
        crate::run(engine, &mut sequence, &mut self.cost, on_event)?;
        self.held.extend_from_slice(&sequence.tokens()[..sequence.held()]);
        Ok(sequence.into_generation().unwrap_or_else(|| unreachable!("it ran to its end")))
    }

    /// Brings the engine back to what it has in common with the prompt, but short of all of it: the logits after
    /// the last token are needed.
    fn keep_prefix(&mut self, engine: &mut dyn Engine, prompt: &[u32]) {
        if engine.position() != self.held.len() {
            self.reset(engine);
        }
        let common = self.held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let common = common.min(prompt.len() - 1);
        if common == self.held.len() {
            return;
        }
        // An engine may only be able to go back to some positions; what lies between is fed again.
        let target = engine.nearest(common);
        if target > 0 && engine.rewind(target).is_ok() && engine.position() == target {
            self.held.truncate(target);
        } else {
            self.reset(engine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Call, FakeEngine, tokenizer};
    use crate::{SamplingParams, TemplateTokens};

    fn options() -> GenerateOptions {
        GenerateOptions {
            sampling: SamplingParams::greedy(),
            max_new_tokens: Some(3),
            ..GenerateOptions::default()
        }
    }

    fn go(chat: &mut Conversation, engine: &mut FakeEngine, prompt: &[u32]) -> Generation {
        engine.calls.clear();
        chat.generate(engine, &tokenizer(), prompt, &options(), None, &mut |_| ControlFlow::Continue(()))
            .unwrap()
    }

    #[test]
    fn only_new_tokens_are_fed() {
        let (mut chat, mut engine) = (Conversation::new(), FakeEngine::new(64));
        let first = go(&mut chat, &mut engine, &[1, 2, 3]);
        assert_eq!(first.usage.cached_tokens, 0);
        let mut prompt = vec![1, 2, 3];
        prompt.extend(&first.token_ids);
        prompt.extend([7, 8]);
        let second = go(&mut chat, &mut engine, &prompt);
        // The last generated token was never fed.
        assert_eq!(engine.calls[0], Call::Feed(prompt[5..].to_vec()));
        assert_eq!((second.usage.cached_tokens, second.usage.prompt_tokens), (5, 8));
        assert_eq!(chat.held(), engine.held);
    }

    #[test]
    fn a_changed_history_is_rewound() {
        let (mut chat, mut engine) = (Conversation::new(), FakeEngine::new(64));
        go(&mut chat, &mut engine, &[1, 2, 3, 4]);
        let changed = go(&mut chat, &mut engine, &[1, 2, 9, 9]);
        assert_eq!(engine.calls[..2], [Call::Rewind(2), Call::Feed(vec![9, 9])]);
        let fresh = go(&mut Conversation::new(), &mut FakeEngine::new(64), &[1, 2, 9, 9]);
        assert_eq!(changed.token_ids, fresh.token_ids);
        // The same prompt again needs its last token once more.
        go(&mut chat, &mut engine, &[1, 2, 9, 9]);
        assert_eq!(engine.calls[..2], [Call::Rewind(3), Call::Feed(vec![9])]);
    }

    #[test]
    fn an_engine_that_goes_back_in_steps_feeds_the_rest_again() {
        let (mut chat, mut engine) = (Conversation::new(), FakeEngine::new(64));
        engine.rewind_step = 4;
        go(&mut chat, &mut engine, &[1, 2, 3, 4, 5, 6, 7]);
        let changed = go(&mut chat, &mut engine, &[1, 2, 3, 4, 5, 6, 9]);
        assert_eq!(engine.calls[..2], [Call::Rewind(4), Call::Feed(vec![5, 6, 9])]);
        assert_eq!(changed.usage.cached_tokens, 4);
    }

    #[test]
    fn an_engine_that_cannot_rewind_begins_anew() {
        let (mut chat, mut engine) = (Conversation::new(), FakeEngine::new(64));
        engine.most_rewind = 1;
        go(&mut chat, &mut engine, &[1, 2, 3, 4]);
        let again = go(&mut chat, &mut engine, &[1, 2, 5]);
        assert_eq!(engine.calls[..3], [Call::Rewind(2), Call::Reset, Call::Feed(vec![1, 2, 5])]);
        assert_eq!(again.usage.cached_tokens, 0);
    }

    #[test]
    fn a_foreign_use_of_the_engine_is_noticed() {
        let (mut chat, mut engine) = (Conversation::new(), FakeEngine::new(64));
        go(&mut chat, &mut engine, &[1, 2, 3]);
        engine.feed(&[9]).unwrap();
        go(&mut chat, &mut engine, &[1, 2, 3, 4]);
        assert_eq!(engine.calls[..2], [Call::Reset, Call::Feed(vec![1, 2, 3, 4])]);
    }

    #[test]
    fn an_error_leaves_the_conversation_as_it_was_or_empty() {
        let (mut chat, mut engine) = (Conversation::new(), FakeEngine::new(8));
        go(&mut chat, &mut engine, &[1, 2, 3]);
        let held = chat.held().to_vec();
        let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
        assert!(chat.generate(&mut engine, &tokenizer(), &[1; 9], &options(), None, quiet).is_err());
        assert_eq!((chat.held(), engine.position()), (&held[..], held.len()));
        engine.fail_at = Some(6);
        assert!(chat.generate(&mut engine, &tokenizer(), &[1, 2, 3, 4, 5], &options(), None, quiet).is_err());
        assert_eq!((chat.held().len(), engine.position()), (0, 0));
    }

    #[test]
    fn a_turn_renders_without_adding_specials() {
        let (mut chat, mut engine) = (Conversation::new(), FakeEngine::new(512));
        let tokenizer = tokenizer();
        let template = ChatTemplate::new(
            "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}",
            TemplateTokens::default(),
        )
        .unwrap();
        let (render, generate) = (RenderOptions::default(), options());
        let turn = Turn { tokenizer: &tokenizer, template: &template, render: &render, generate: &generate };
        let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
        let mut messages = vec![Message::user("ab")];
        let answer = chat.turn(&mut engine, turn, &messages, quiet).unwrap();
        assert_eq!(chat.held()[..3], tokenizer.encode("uab", false).unwrap());
        messages.push(Message::assistant(answer.text));
        messages.push(Message::user("c"));
        let second = chat.turn(&mut engine, turn, &messages, quiet).unwrap();
        assert_eq!(second.usage.prompt_tokens, tokenizer.encode("uab", false).unwrap().len() + 1 + 3 + 2);
    }
}
