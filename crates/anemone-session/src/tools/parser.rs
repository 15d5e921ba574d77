use super::block::{self, Block, Item};
use super::declared::Tools;
use super::format::{CallMarks, ToolFormat};
use crate::Tokenizer;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";

/// What an output is read with.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputOptions {
    /// How the model writes calls; decides which marks are looked for.
    pub format: ToolFormat,
    /// Splits reasoning from the answer. On by default.
    pub reasoning: bool,
    /// The prompt ended inside `<think>`, so that the output begins with reasoning.
    pub reasoning_open: bool,
    /// Looks for calls; off for `tool_choice: none`. On by default.
    pub calls: bool,
    /// The functions offered. With none, calls are taken of whatever name, but only between marks.
    pub tools: Tools,
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self {
            format: ToolFormat::default(),
            reasoning: true,
            reasoning_open: false,
            calls: true,
            tools: Tools::default(),
        }
    }
}

impl OutputOptions {
    /// The marks that are special tokens, which the text must keep to be read; see
    /// [`GenerateOptions::keep_special`](crate::GenerateOptions::keep_special).
    pub fn kept_special(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let reasoning = self.reasoning.then_some([THINK, THINK_END]).into_iter().flatten();
        let calls = self.format.marks().iter().flat_map(|marks| [marks.start(), marks.end()]);
        let calls = calls.filter(|_| self.calls);
        reasoning.chain(calls).filter_map(|mark| tokenizer.token_to_id(mark)).collect()
    }

    /// Whether a rendered prompt leaves `<think>` open at its end.
    pub fn opens_reasoning(prompt: &str) -> bool {
        prompt.trim_end().ends_with(THINK)
    }
}

/// A step of a message that comes piece by piece; none is ever taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delta {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the answer's text.
    Content(String),
    /// A call begins.
    CallStart {
        /// Its number in the message, from 0.
        index: usize,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments; all fragments of a call joined are a JSON object.
    CallArguments {
        /// The call's number.
        index: usize,
        /// A part of the JSON text.
        fragment: String,
    },
    /// A call is complete.
    CallEnd {
        /// The call's number.
        index: usize,
    },
}

/// Splits a model's output into reasoning, answer and calls while it comes.
///
/// The text must hold special tokens. Only what may be the beginning of a mark is held back, and white space before
/// it is known what follows. A call is given once it is complete, because a client may act on what it is given; a call
/// that cannot be read is given as content, marks included when nothing of its block could be read. How the text is cut
/// into pieces changes nothing in the result.
#[derive(Debug)]
pub struct OutputParser {
    options: OutputOptions,
    state: State,
    pending: String,
    /// White space at the next beginning of a text is dropped.
    trim: bool,
    /// Something but plain content was seen.
    structured: bool,
    /// An end mark here belongs to a block that was left before.
    left_block: Option<CallMarks>,
    /// White space behind the last text, for where more follows.
    gap: String,
    has_content: bool,
    calls: usize,
}

#[derive(Debug)]
enum State {
    Start,
    Reasoning,
    /// What may turn out to be calls without marks.
    Bare(Block, Vec<Item>),
    Content,
    Block(CallMarks, Block),
}

impl OutputParser {
    /// A parser at the beginning of an output.
    pub fn new(options: OutputOptions) -> Self {
        Self {
            options,
            state: State::Start,
            pending: String::new(),
            trim: false,
            structured: false,
            left_block: None,
            gap: String::new(),
            has_content: false,
            calls: 0,
        }
    }

    /// Whether a call was given.
    pub fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Whether the text so far ends inside the reasoning.
    pub fn is_reasoning(&self) -> bool {
        match self.state {
            State::Reasoning => true,
            State::Start => self.options.reasoning_open,
            _ => false,
        }
    }

    /// Takes the next text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.pending.push_str(text);
        let mut out = Vec::new();
        while self.advance(&mut out) {}
        out
    }

    /// The same for an output that was cut off by a limit: a call that had begun is given as far as it is complete, its arguments being
    /// the beginning of a JSON object, without a [`Delta::CallEnd`]; of what cannot be read nothing is given.
    pub fn finish_cut(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        while self.advance(&mut out) {}
        let State::Block(_, block) = &mut self.state else {
            out.extend(self.finish());
            return out;
        };
        let (mut items, tools) = (Vec::new(), &self.options.tools);
        // What may be the beginning of the end mark is nothing else.
        self.pending.clear();
        let begun = block.unfinished().and_then(|text| super::call::begun(text, tools));
        if block.unfinished().is_none() {
            block.finish(false, tools, &mut items);
            items.retain(|item| matches!(item, Item::Call(_)));
        }
        self.items(items, &mut out);
        if let Some(call) = begun {
            let index = self.calls;
            self.calls += 1;
            out.push(Delta::CallStart { index, name: call.name });
            if !call.arguments.is_empty() {
                out.push(Delta::CallArguments { index, fragment: call.arguments });
            }
        }
        *self = Self { calls: self.calls, ..Self::new(std::mem::take(&mut self.options)) };
        out
    }

    /// Ends the output and gives what was held back; a new output begins.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        while self.advance(&mut out) {}
        let pending = std::mem::take(&mut self.pending);
        match std::mem::replace(&mut self.state, State::Start) {
            State::Reasoning => self.reasoning(pending.trim_end(), &mut out),
            State::Start if self.options.reasoning_open => self.reasoning(pending.trim_end(), &mut out),
            State::Start | State::Content => self.last_content(&pending, &mut out),
            State::Bare(mut block, mut items) => {
                let text = block.text().to_owned();
                let closed = block.is_closed();
                block.finish(false, &self.options.tools, &mut items);
                if closed && block.has_calls() && block::all_declared(&items, &self.options.tools) {
                    self.items(items, &mut out);
                } else {
                    self.last_content(&text, &mut out);
                }
            }
            State::Block(marks, mut block) => {
                let mut items = Vec::new();
                let rest = block.push(&pending, &self.options.tools, &mut items);
                let text = block.text().to_owned();
                match rest {
                    Some(at) => {
                        self.items(items, &mut out);
                        (self.trim, self.structured) = (true, true);
                        self.last_content(&text[at..], &mut out);
                    }
                    None => self.end_block(marks, block, items, false, &mut out),
                }
            }
        }
        *self = Self { calls: self.calls, ..Self::new(std::mem::take(&mut self.options)) };
        out
    }

    /// One step; false when more text is needed.
    fn advance(&mut self, out: &mut Vec<Delta>) -> bool {
        match std::mem::replace(&mut self.state, State::Content) {
            State::Start => self.start(),
            State::Reasoning => self.read_reasoning(out),
            State::Bare(block, items) => self.read_bare(block, items),
            State::Content => self.read_content(out),
            State::Block(marks, block) => self.read_block(marks, block, out),
        }
    }

    fn start(&mut self) -> bool {
        let text = self.pending.trim_start();
        if self.options.reasoning && text.starts_with(THINK) {
            self.pending.drain(..self.pending.len() - text.len() + THINK.len());
            self.begin_reasoning();
        } else if self.options.reasoning && THINK.starts_with(text) {
            self.state = State::Start;
            return false;
        } else if self.options.reasoning && self.options.reasoning_open {
            self.begin_reasoning();
        } else {
            self.begin_content();
        }
        true
    }

    fn begin_reasoning(&mut self) {
        self.state = State::Reasoning;
        (self.trim, self.structured) = (true, true);
    }

    fn begin_content(&mut self) {
        self.state = if self.options.calls && !self.options.tools.is_empty() {
            State::Bare(Block::default(), Vec::new())
        } else {
            State::Content
        };
    }

    fn read_reasoning(&mut self, out: &mut Vec<Delta>) -> bool {
        if let Some(at) = self.pending.find(THINK_END) {
            let text: String = self.pending.drain(..at + THINK_END.len()).collect();
            self.reasoning(text[..at].trim_end(), out);
            self.trim = true;
            self.begin_content();
            return true;
        }
        let safe = safe_len(&self.pending, &[THINK_END]);
        let text: String = self.pending.drain(..safe).collect();
        self.reasoning(&text, out);
        self.state = State::Reasoning;
        false
    }

    fn read_bare(&mut self, mut block: Block, mut items: Vec<Item>) -> bool {
        let fresh = block.text().trim_start().is_empty();
        let begins = self.pending.trim_start().chars().next();
        let tools = &self.options.tools;
        if fresh && begins.is_some_and(|c| c != '[' && c != '{') {
            self.pending.insert_str(0, block.text());
            return true;
        }
        let text = std::mem::take(&mut self.pending);
        let prose = block.push(&text, tools, &mut items).is_some();
        let possible = !prose
            && !block.is_broken()
            && block::all_declared(&items, tools)
            && block.begun().is_none_or(|begun| block::may_become_declared(begun, tools))
            && (block.has_calls()
                || !block.is_closed()
                || block.text().trim().is_empty()
                || block.begun().is_some());
        if possible {
            self.state = State::Bare(block, items);
            return false;
        }
        block.text().clone_into(&mut self.pending);
        true
    }

    fn marks(&self) -> &'static [CallMarks] {
        if self.options.calls { self.options.format.marks() } else { &[] }
    }

    fn read_content(&mut self, out: &mut Vec<Delta>) -> bool {
        let starts = self.marks().iter().map(|marks| (marks.start(), Some(*marks)));
        let end = self.left_block.map(|marks| (marks.end(), None));
        let met = starts
            .clone()
            .chain(end)
            .filter_map(|(mark, opens)| self.pending.find(mark).map(|at| (at, mark.len(), opens)))
            .min_by_key(|&(at, ..)| at);
        if let Some((at, len, opens)) = met {
            let text: String = self.pending.drain(..at + len).collect();
            let before = text[..at].trim_end();
            self.content(before, out);
            self.left_block = None;
            if !self.trim {
                text[before.len()..at].clone_into(&mut self.gap);
            }
            match opens {
                Some(marks) => self.state = State::Block(marks, Block::default()),
                None => self.trim = true,
            }
            return true;
        }
        let marks: Vec<&str> = starts.chain(end).map(|(mark, _)| mark).collect();
        let safe = safe_len(&self.pending, &marks);
        let text: String = self.pending.drain(..safe).collect();
        self.content(&text, out);
        false
    }

    fn read_block(&mut self, marks: CallMarks, mut block: Block, out: &mut Vec<Delta>) -> bool {
        let met = [(marks.end(), true), (marks.start(), false)]
            .into_iter()
            .filter_map(|(mark, ends)| self.pending.find(mark).map(|at| (at, mark.len(), ends)))
            .min_by_key(|&(at, ..)| at);
        let take = match met {
            Some((at, ..)) => at,
            None => self.pending.len() - overlap(&self.pending, &[marks.end(), marks.start()]),
        };
        let text: String = self.pending.drain(..take).collect();
        let mut items = Vec::new();
        if let Some(at) = block.push(&text, &self.options.tools, &mut items) {
            self.items(items, out);
            self.pending.insert_str(0, &block.text()[at..]);
            self.left_block = Some(marks);
            (self.trim, self.structured) = (true, true);
            return true;
        }
        let Some((_, len, ends)) = met else {
            self.items(items, out);
            self.state = State::Block(marks, block);
            return false;
        };
        self.end_block(marks, block, items, ends, out);
        if ends {
            self.pending.drain(..len);
        }
        true
    }

    fn end_block(
        &mut self,
        marks: CallMarks,
        mut block: Block,
        mut items: Vec<Item>,
        marked: bool,
        out: &mut Vec<Delta>,
    ) {
        let text = block.text().to_owned();
        let empty = text.chars().all(|c| c.is_whitespace() || matches!(c, '[' | ']'));
        block.finish(marked, &self.options.tools, &mut items);
        if block.has_calls() || (empty && marked) {
            self.items(items, out);
            (self.trim, self.structured) = (true, true);
        } else {
            let end = if marked { marks.end() } else { "" };
            // Nothing was taken out, so the white space in front stays as it was.
            let gap = if self.trim { String::new() } else { std::mem::take(&mut self.gap) };
            self.content(&format!("{gap}{}{text}{end}", marks.start()), out);
        }
    }

    fn items(&mut self, items: Vec<Item>, out: &mut Vec<Delta>) {
        for item in items {
            match item {
                Item::Text(text) => {
                    if self.gap.is_empty() {
                        self.gap.push('\n');
                    }
                    self.trim = true;
                    self.content(&text, out);
                    self.gap.clear();
                }
                Item::Call(call) => {
                    let index = self.calls;
                    self.calls += 1;
                    out.push(Delta::CallStart { index, name: call.name });
                    out.push(Delta::CallArguments { index, fragment: call.arguments });
                    out.push(Delta::CallEnd { index });
                }
            }
        }
    }

    fn last_content(&mut self, text: &str, out: &mut Vec<Delta>) {
        let text = if self.structured { text.trim_end() } else { text };
        self.content(text, out);
    }

    fn content(&mut self, text: &str, out: &mut Vec<Delta>) {
        let lead = text;
        let text = self.begun(text);
        if text.is_empty() {
            return;
        }
        let lead = &lead[..lead.len() - text.len()];
        let gap = std::mem::take(&mut self.gap);
        let gap = match self.has_content {
            false => "",
            true if gap.is_empty() => lead,
            true => &gap,
        };
        self.has_content = true;
        match out.last_mut() {
            Some(Delta::Content(earlier)) => earlier.extend([gap, text]),
            _ => out.push(Delta::Content(format!("{gap}{text}"))),
        }
    }

    fn reasoning(&mut self, text: &str, out: &mut Vec<Delta>) {
        let text = self.begun(text);
        match out.last_mut() {
            _ if text.is_empty() => {}
            Some(Delta::Reasoning(earlier)) => earlier.push_str(text),
            _ => out.push(Delta::Reasoning(text.to_owned())),
        }
    }

    /// The text without white space where it begins.
    fn begun<'t>(&mut self, text: &'t str) -> &'t str {
        let text = if self.trim { text.trim_start() } else { text };
        self.trim &= text.is_empty();
        text
    }
}

/// How much of a text can be given: not the white space and the possible beginning of a mark at its end.
fn safe_len(text: &str, marks: &[&str]) -> usize {
    text[..text.len() - overlap(text, marks)].trim_end().len()
}

/// Length of the longest end of a text that is the beginning of a mark, but not all of it.
fn overlap(text: &str, marks: &[&str]) -> usize {
    let longest = |mark: &&str| (1..mark.len()).rev().find(|&len| text.ends_with(&mark[..len])).unwrap_or(0);
    marks.iter().map(longest).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
