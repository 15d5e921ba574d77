use std::fmt;
use std::sync::Arc;

use super::matched::Matched;
use super::vocabulary::{ConstraintVocabulary, Tokens};
use super::{Constraint, TokenMask, calls, grammar};
use crate::{Error, Grammar, Result, Tool, ToolChoice, ToolFormat, Tools};

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
/// Tokens of white space that may come between the reasoning and the text.
const MOST_SPACE: u8 = 3;
/// Most tools that are looked at to find the one that cannot be used.
const MOST_BLAMED: usize = 100;

/// Whether the model reasons before its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reasoning {
    /// It does not.
    #[default]
    None,
    /// It may begin with `<think>`.
    Allowed,
    /// The prompt ended inside `<think>`.
    Open,
}

/// What an output must be.
#[derive(Debug, Clone, Default)]
pub struct ConstraintOptions<'a> {
    /// The form of the answer's text; `None` leaves it free.
    pub answer: Option<&'a Grammar>,
    /// The functions offered.
    pub tools: Option<&'a Tools>,
    /// Whether they may or must be called.
    pub choice: ToolChoice,
    /// Allows several calls at once.
    pub parallel: bool,
    /// How the model writes calls.
    pub format: ToolFormat,
    /// Whether reasoning comes first, which is left free.
    pub reasoning: Reasoning,
}

/// Constrains an output as [`ConstraintOptions`] say: nothing while the model reasons, then its answer or its calls.
///
/// A clone begins where the original is, and shares nothing with it.
#[derive(Clone)]
pub struct Guide {
    tokens: Arc<Tokens>,
    goal: Goal,
    state: State,
    mask: TokenMask,
}

/// What comes after the reasoning, at its beginning.
#[derive(Clone)]
enum Goal {
    /// All of it follows one grammar.
    Grammar(Matched),
    /// Free text, in which this mark begins calls that follow a grammar.
    Watch { mark: &'static str, calls: Matched },
}

#[derive(Clone)]
enum State {
    /// The text so far may become `<think>`; and it may be the beginning of the answer, as far as it matches.
    Opening { seen: Vec<u8>, answer: Option<Matched> },
    /// Inside the reasoning: the end of its text.
    Reasoning(Vec<u8>),
    /// Behind the reasoning: white space so far.
    Space(u8, Matched),
    /// The end of free text.
    Free(Vec<u8>),
    /// In calls, behind which free text goes on.
    Calls(Matched),
    /// In what follows one grammar to its end.
    Answer(Matched),
}

impl ConstraintVocabulary {
    /// A constraint for one output; `None` when the options leave everything free.
    ///
    /// Errors name the part of a schema, the place in a grammar or the tool that cannot be used.
    pub fn guide(&self, options: &ConstraintOptions<'_>) -> Result<Option<Guide>> {
        let Some(goal) = self.goal(options)? else { return Ok(None) };
        let state = match options.reasoning {
            Reasoning::Open => State::Reasoning(Vec::new()),
            Reasoning::Allowed => State::Opening { seen: Vec::new(), answer: goal.answer() },
            Reasoning::None => goal.begin(),
        };
        Ok(Some(Guide { tokens: self.tokens.clone(), goal, state, mask: TokenMask::none(self.vocab_size()) }))
    }

    /// What is wrong with the tools, told of the first whose parameters cannot be used by themselves.
    fn blame(&self, tools: &[&Tool], error: Error) -> Error {
        for tool in tools.iter().take(MOST_BLAMED) {
            let parameters = Grammar::JsonSchema(tool.parameters.clone());
            let alone =
                parameters.named("answer").and_then(|g| grammar::compile(self, vec![g], Some(&parameters)));
            if let Err(Error::Grammar { problem, .. }) = alone {
                let problem = format!("the parameters of {:?}: {problem}", tool.name);
                return Error::Grammar { what: "tools", problem };
            }
        }
        error
    }

    fn goal(&self, options: &ConstraintOptions<'_>) -> Result<Option<Goal>> {
        let error = |problem: String| Error::Grammar { what: "tool_choice", problem };
        let none = Tools::default();
        let all = options.tools.unwrap_or(&none);
        let chosen: Vec<_> = match &options.choice {
            ToolChoice::None => Vec::new(),
            ToolChoice::Required if all.is_empty() => {
                return Err(error("is required and there are no tools; give at least one".into()));
            }
            ToolChoice::Auto | ToolChoice::Required => all.iter().collect(),
            ToolChoice::Named(name) => {
                let known = || all.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>().join(", ");
                let missing = || error(format!("names {name:?}, which is no tool; name one of: {}", known()));
                vec![all.get(name).ok_or_else(missing)?]
            }
        };
        let several = options.parallel && !matches!(options.choice, ToolChoice::Named(_));
        let rules = |marked| calls::rules(&chosen, options.format, marked, several, &self.tokens);
        let lark = |text: String| Grammar::Lark(text).named("main");
        let must = matches!(options.choice, ToolChoice::Required | ToolChoice::Named(_));
        let (grammars, blame) = match (options.answer, chosen.is_empty()) {
            (_, false) if must => (vec![lark(format!("start: calls\n{}", rules(true)))?], None),
            (Some(answer), true) => (vec![answer.named("answer")?], Some(answer)),
            (Some(answer), false) => {
                // Alone first, so that what is wrong with it is not blamed on the tools.
                grammar::compile(self, vec![answer.named("answer")?], Some(answer))?;
                let main = format!("start: @answer | calls\n{}", rules(true));
                (vec![lark(main)?, answer.named("answer")?], None)
            }
            (None, true) => return Ok(None),
            (None, false) => {
                let main = lark(format!("start: calls\n{}", rules(false)))?;
                let calls = grammar::compile(self, vec![main], None).map_err(|e| self.blame(&chosen, e))?;
                let calls = Matched::new(calls, self);
                return Ok(Some(Goal::Watch { mark: options.format.start(), calls }));
            }
        };
        let matcher = grammar::compile(self, grammars, blame);
        let matcher = if blame.is_none() { matcher.map_err(|e| self.blame(&chosen, e)) } else { matcher };
        Ok(Some(Goal::Grammar(Matched::new(matcher?, self))))
    }
}

impl Goal {
    fn begin(&self) -> State {
        match self {
            Self::Grammar(answer) => State::Answer(answer.clone()),
            Self::Watch { .. } => State::Free(Vec::new()),
        }
    }

    fn answer(&self) -> Option<Matched> {
        match self {
            Self::Grammar(answer) => Some(answer.clone()),
            Self::Watch { .. } => None,
        }
    }

    fn behind_reasoning(&self) -> State {
        match self {
            Self::Grammar(answer) => State::Space(0, answer.clone()),
            Self::Watch { .. } => State::Free(Vec::new()),
        }
    }
}

impl Guide {
    /// The mark that is watched for, with the end of the text before it.
    fn watched(&self) -> Option<(&'static str, &[u8])> {
        match (&self.state, &self.goal) {
            (State::Reasoning(tail), _) => Some((THINK_END, tail)),
            (State::Free(tail), Goal::Watch { mark, .. }) => Some((mark, tail)),
            _ => None,
        }
    }

    /// What a token does to a watched mark.
    fn watch(tokens: &Tokens, mark: &str, tail: &mut Vec<u8>, token: u32) -> Watched {
        tail.extend_from_slice(tokens.bytes(token));
        let found = tail.windows(mark.len()).position(|window| window == mark.as_bytes());
        if let Some(at) = found {
            let rest = &tail[at + mark.len()..];
            return if rest.iter().all(u8::is_ascii_whitespace) { Watched::Met } else { Watched::Overrun };
        }
        let keep = tail.len().min(mark.len() - 1);
        tail.drain(..tail.len() - keep);
        Watched::Not
    }

    /// Whether the output must not end here, because what was asked for is still to come.
    fn must_go_on(&self) -> bool {
        matches!((&self.state, &self.goal), (State::Reasoning(_), Goal::Grammar(_)))
    }

    /// A mask of all tokens but those that would go on behind the mark in the same token, or end the output where it must go
    /// on; `None` when there is none.
    fn unbarred(&mut self) -> Option<()> {
        let (mark, tail) = self.watched()?;
        let mut barred: Vec<u32> = (self.tokens.closing.iter().copied())
            .filter(|&id| matches!(Self::watch(&self.tokens, mark, &mut tail.to_vec(), id), Watched::Overrun))
            .collect();
        if self.must_go_on() {
            barred.extend(self.tokens.stops());
        }
        if barred.is_empty() {
            return None;
        }
        self.mask.fill();
        for id in barred {
            self.mask.remove(id);
        }
        Some(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    Not,
    Met,
    /// Met, with text behind it.
    Overrun,
}

/// Whether these bytes, behind those seen, are `<think>` or on the way to it.
fn opens(seen: &[u8], more: &[u8]) -> bool {
    let text = [seen, more].concat();
    let text = text.trim_ascii_start();
    THINK.as_bytes().starts_with(text) || text.starts_with(THINK.as_bytes())
}

impl Constraint for Guide {
    fn mask(&mut self) -> Result<Option<&TokenMask>> {
        if self.watched().is_some() {
            return Ok(self.unbarred().map(|()| &self.mask));
        }
        match &mut self.state {
            State::Answer(matched) | State::Calls(matched) => return matched.mask().map(Some),
            State::Opening { .. } if matches!(self.goal, Goal::Watch { .. }) => return Ok(None),
            State::Opening { seen, answer } => {
                match answer {
                    Some(answer) => self.mask.clone_from(answer.mask()?),
                    None => self.mask.set_words(&[]),
                }
                let next = THINK.as_bytes().get(seen.trim_ascii_start().len());
                for id in 0..self.mask.len() as u32 {
                    let bytes = self.tokens.bytes(id);
                    if bytes.first() == next && opens(seen, bytes) {
                        self.mask.insert(id);
                    }
                }
            }
            State::Space(count, answer) => {
                self.mask.clone_from(answer.mask()?);
                if *count < MOST_SPACE {
                    for &id in &self.tokens.space {
                        self.mask.insert(id);
                    }
                }
            }
            State::Reasoning(_) | State::Free(_) => return Ok(None),
        }
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        let stop = self.tokens.is_stop(token);
        let refused = || Error::Grammar {
            what: "constraint",
            problem: format!(
                "token {token} was drawn and is not allowed here; draw only what the mask allows"
            ),
        };
        let next = match &mut self.state {
            State::Answer(matched) | State::Calls(matched) => {
                if !matched.allows(token, stop)? {
                    return Err(refused());
                }
                matched.take(token)?;
                let back = matches!(self.state, State::Calls(ref calls) if calls.is_complete());
                back.then(|| State::Free(Vec::new()))
            }
            State::Opening { seen, answer } => {
                let bytes = self.tokens.bytes(token);
                let opening = opens(seen, bytes);
                let free = matches!(self.goal, Goal::Watch { .. });
                let matches = match answer {
                    Some(answer) => answer.allows(token, stop)?,
                    None => false,
                };
                if !(opening || matches || free) {
                    return Err(refused());
                }
                seen.extend_from_slice(bytes);
                let text = seen.trim_ascii_start();
                if let Some(rest) = text.strip_prefix(THINK.as_bytes()) {
                    Some(State::Reasoning(rest.to_vec()))
                } else {
                    let mut kept = answer.take().filter(|_| matches);
                    if let Some(kept) = &mut kept {
                        kept.take(token)?;
                    }
                    match (opening, kept) {
                        (true, kept) => {
                            *answer = kept;
                            None
                        }
                        (false, Some(kept)) => Some(State::Answer(kept)),
                        (false, None) => Some(State::Free(std::mem::take(seen))),
                    }
                }
            }
            State::Space(count, answer) => {
                if answer.allows(token, stop)? {
                    let mut answer = answer.clone();
                    answer.take(token)?;
                    Some(State::Answer(answer))
                } else if *count < MOST_SPACE && self.tokens.space.binary_search(&token).is_ok() {
                    *count += 1;
                    None
                } else {
                    return Err(refused());
                }
            }
            State::Reasoning(tail) => {
                if stop && matches!(self.goal, Goal::Grammar(_)) {
                    return Err(refused());
                }
                let mut tail = tail.clone();
                match Self::watch(&self.tokens, THINK_END, &mut tail, token) {
                    Watched::Not => Some(State::Reasoning(tail)),
                    Watched::Met => Some(self.goal.behind_reasoning()),
                    Watched::Overrun => return Err(refused()),
                }
            }
            State::Free(tail) => {
                let Goal::Watch { mark, calls } = &self.goal else { return Err(refused()) };
                let mut tail = tail.clone();
                match Self::watch(&self.tokens, mark, &mut tail, token) {
                    Watched::Not => Some(State::Free(tail)),
                    Watched::Met => Some(State::Calls(calls.clone())),
                    Watched::Overrun => return Err(refused()),
                }
            }
        };
        if let Some(next) = next {
            self.state = next;
        }
        Ok(())
    }

    fn valid_prefix(&mut self, tokens: &[u32]) -> Result<usize> {
        if let Some((mark, tail)) = self.watched() {
            let mut tail = tail.to_vec();
            let mut valid = 0;
            let goes_on = self.must_go_on();
            for &token in tokens {
                if goes_on && self.tokens.is_stop(token) {
                    return Ok(valid);
                }
                match Self::watch(&self.tokens, mark, &mut tail, token) {
                    Watched::Not => valid += 1,
                    // What follows the mark is not looked into.
                    Watched::Met => return Ok(valid + 1),
                    Watched::Overrun => return Ok(valid),
                }
            }
            return Ok(valid);
        }
        if let State::Answer(matched) | State::Calls(matched) = &mut self.state {
            return matched.valid_prefix(tokens);
        }
        let Some(&first) = tokens.first() else { return Ok(0) };
        let allowed = self.mask()?.is_none_or(|mask| mask.allows(first));
        Ok(usize::from(allowed))
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        match &mut self.state {
            State::Answer(matched) | State::Calls(matched) => matched.forced(),
            _ => Ok(Vec::new()),
        }
    }

    fn is_complete(&self) -> bool {
        matches!(&self.state, State::Answer(matched) if matched.is_complete())
    }
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Opening { .. } => "opening",
            State::Reasoning(_) => "reasoning",
            State::Space(..) => "behind reasoning",
            State::Free(_) => "free",
            State::Calls(_) => "calls",
            State::Answer(_) => "answer",
        };
        f.debug_struct("Guide").field("state", &state).finish_non_exhaustive()
    }
}
