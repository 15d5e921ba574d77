use super::call::{self, Call};
use super::declared::Tools;
use super::literal::{Quotes, is_name};
use super::xml;

/// How many places a damaged block is searched for further calls.
const MAX_RETRIES: usize = 64;

/// A part of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    Call(Call),
    /// What could not be read.
    Text(String),
}

impl Item {
    /// A text without what separates calls, if anything is left of it.
    pub(super) fn text(text: &str) -> Option<Self> {
        let text = text.trim_matches(|c: char| c.is_whitespace() || matches!(c, ',' | ';'));
        let text = text.strip_suffix(']').filter(|t| !t.contains('[')).unwrap_or(text).trim_end();
        (!text.is_empty()).then(|| Self::Text(text.to_owned()))
    }
}

/// What stands between the marks of calls, as it comes.
///
/// A call is given when it is complete and well formed. From the first that is not, everything waits for the end, where
/// what is left is read with less rigour. So the result does not depend on how the text is cut.
#[derive(Debug, Default)]
pub(super) struct Block {
    text: String,
    /// Up to here the text is understood.
    at: usize,
    /// Up to here it was looked at.
    seen: usize,
    /// Where the call that has begun begins.
    begun: Option<usize>,
    scan: Scan,
    /// A call ended at `seen`; what follows decides whether it did.
    ended: bool,
    lists: usize,
    in_list: bool,
    waits: bool,
    calls: usize,
}

impl Block {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether a call was given.
    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Whether all there is so far are calls in closed lists, or objects.
    pub(super) fn is_closed(&self) -> bool {
        !self.waits && !self.in_list && (self.begun.is_none() || self.ended)
    }

    /// Whether something was met that is no well-formed call.
    pub(super) fn is_broken(&self) -> bool {
        self.waits
    }

    /// The call that has begun, as far as it has come.
    pub(super) fn begun(&self) -> Option<&str> {
        self.begun.map(|start| &self.text[start..])
    }

    /// The call that has begun and not ended, where all before it was well formed.
    pub(super) fn unfinished(&self) -> Option<&str> {
        self.begun().filter(|_| !self.waits && !self.ended)
    }

    /// Takes text and gives the calls it completes; and where prose begins behind a closed list.
    pub(super) fn push(&mut self, text: &str, tools: &Tools, items: &mut Vec<Item>) -> Option<usize> {
        self.text.push_str(text);
        while !self.waits && self.seen < self.text.len() {
            let c = self.text[self.seen..].chars().next()?;
            match self.begun {
                None => {
                    if self.between(c) {
                        return Some(self.seen);
                    }
                }
                Some(start) if self.ended => self.behind(start, c, tools, items),
                Some(_) => {
                    self.seen += c.len_utf8();
                    match self.scan.step(c) {
                        Step::Inside => {}
                        Step::End => self.ended = true,
                        Step::Wrong => self.waits = true,
                    }
                }
            }
        }
        None
    }

    /// A character between calls; true when the block was over before it.
    fn between(&mut self, c: char) -> bool {
        match c {
            '[' if !self.in_list => (self.in_list, self.lists) = (true, self.lists + 1),
            ']' if self.in_list => self.in_list = false,
            ',' | ';' => {}
            c if c.is_whitespace() => {}
            _ if self.lists > 0 && !self.in_list => return true,
            c if is_name(c) || c == '{' => {
                self.begun = Some(self.seen);
                self.scan = Scan::default();
                return false;
            }
            _ => {
                self.waits = true;
                return false;
            }
        }
        self.seen += c.len_utf8();
        self.at = self.seen;
        false
    }

    /// A character behind the end of a call, which shows whether it was one.
    fn behind(&mut self, start: usize, c: char, tools: &Tools, items: &mut Vec<Item>) {
        if c.is_whitespace() {
            self.seen += c.len_utf8();
            return;
        }
        let body = self.text[start..self.seen].trim_end();
        let space = body.len() < self.seen - start;
        let may_end = matches!(c, ',' | ';' | ']') || (space && !self.in_list && (is_name(c) || c == '{'));
        match call::read_whole(body, tools).filter(|_| may_end) {
            Some(call) => {
                items.push(Item::Call(call));
                self.calls += 1;
                (self.begun, self.ended, self.at) = (None, false, self.seen);
            }
            None => self.waits = true,
        }
    }

    /// Ends the block; `marked` tells whether its end mark came.
    pub(super) fn finish(&mut self, marked: bool, tools: &Tools, items: &mut Vec<Item>) {
        let rest = std::mem::take(&mut self.text);
        let rest = &rest[self.begun.unwrap_or(self.at)..];
        let found = if self.ended && !self.waits {
            match call::read_whole(rest.trim_end(), tools) {
                Some(call) => vec![Item::Call(call)],
                None => recover(rest, tools),
            }
        } else if self.calls == 0 && rest.trim_start().starts_with('<') {
            xml::read(rest, marked, tools)
        } else {
            recover(rest, tools)
        };
        self.calls += found.iter().filter(|item| matches!(item, Item::Call(_))).count();
        items.extend(found);
    }
}

/// Reads what it can of a text that holds something broken.
fn recover(text: &str, tools: &Tools) -> Vec<Item> {
    let mut items = Vec::new();
    let mut at = 0;
    let mut broken = 0;
    let mut retries = 0;
    loop {
        let separators = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '[' | ']');
        let start = text.len() - text[at..].trim_start_matches(separators).len();
        let body = &text[start..];
        let read = call::read(body, Quotes::Exact, tools).or_else(|| call::read(body, Quotes::Guess, tools));
        match read {
            Some((call, len)) => {
                items.extend(Item::text(text[broken..start].trim_end_matches('[')));
                items.push(Item::Call(call));
                at = start + len;
                broken = at;
            }
            None => match next_call(text, start).filter(|_| retries < MAX_RETRIES) {
                Some(next) => {
                    retries += 1;
                    at = next;
                }
                None => break,
            },
        }
    }
    items.extend(Item::text(&text[broken..]));
    items
}

/// Where the next call may begin behind the broken one at `start`: behind a comma, not inside a string unless the string
/// has no end.
fn next_call(text: &str, start: usize) -> Option<usize> {
    let mut scan = Scan::default();
    let mut fallback = None;
    let mut last = (' ', ' ');
    for (at, c) in text[start..].char_indices() {
        let at = start + at;
        if at > start && matches!(last.0, ',' | ';' | '\n') && begins_call(&text[at..]) {
            if !scan.in_string() {
                return Some(at);
            }
            if last.1 == ')' || last.1 == '}' {
                fallback = fallback.or(Some(at));
            }
        }
        scan.step(c);
        if !c.is_whitespace() || c == '\n' {
            last = (c, if c.is_whitespace() { last.1 } else { last.0 });
        }
    }
    fallback.filter(|_| scan.in_string())
}

fn begins_call(text: &str) -> bool {
    let name = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let called = name > 0 && text[name..].trim_start().starts_with('(');
    called
        || text
            .strip_prefix('{')
            .is_some_and(|t| t.trim_start().trim_start_matches(['"', '\'']).starts_with("name"))
}

/// Follows quotes and brackets through one call.
#[derive(Debug, Default)]
struct Scan {
    state: State,
    depth: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Plain,
    /// Behind one or two quotes that may become three.
    Opening(char, u8),
    Inside(char),
    InsideEscape(char),
    /// In a string of three quotes, behind so many that may end it.
    Long(char, u8),
    LongEscape(char),
}

enum Step {
    Inside,
    End,
    Wrong,
}

impl Scan {
    fn in_string(&self) -> bool {
        !matches!(self.state, State::Plain | State::Opening(_, 2))
    }

    fn step(&mut self, c: char) -> Step {
        self.state = match self.state {
            State::Opening(q, 1) if c == q => State::Opening(q, 2),
            State::Opening(q, 1) | State::Inside(q) => Self::inside(q, c),
            State::Opening(q, _) if c == q => State::Long(q, 0),
            State::InsideEscape(q) => State::Inside(q),
            State::Long(q, _) if c == '\\' => State::LongEscape(q),
            State::Long(q, 2) if c == q => State::Plain,
            State::Long(q, n) if c == q => State::Long(q, n + 1),
            State::Long(q, _) | State::LongEscape(q) => State::Long(q, 0),
            State::Plain | State::Opening(..) => return self.plain(c),
        };
        Step::Inside
    }

    fn inside(quote: char, c: char) -> State {
        match c {
            '\\' => State::InsideEscape(quote),
            c if c == quote => State::Plain,
            _ => State::Inside(quote),
        }
    }

    fn plain(&mut self, c: char) -> Step {
        self.state = State::Plain;
        match c {
            '"' | '\'' => self.state = State::Opening(c, 1),
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' if self.depth == 1 => {
                self.depth = 0;
                return Step::End;
            }
            ')' | ']' | '}' if self.depth == 0 => return Step::Wrong,
            ')' | ']' | '}' => self.depth -= 1,
            c if self.depth == 0 && !is_name(c) && !c.is_whitespace() => return Step::Wrong,
            _ => {}
        }
        Step::Inside
    }
}

/// Whether the beginning of a call could still become one of a declared tool.
pub(super) fn may_become_declared(begun: &str, tools: &Tools) -> bool {
    let named = |name: &str, complete: bool| {
        tools.iter().any(|tool| if complete { tool.name == name } else { tool.name.starts_with(name) })
    };
    if !begun.starts_with('{') {
        return match begun.split_once('(') {
            Some((name, _)) => named(name.trim_end(), true),
            None => named(begun.trim_end(), false),
        };
    }
    let mut rest = begun;
    for piece in ["{", "\"name\"", ":", "\""] {
        rest = rest.trim_start();
        match rest.strip_prefix(piece) {
            Some(after) => rest = after,
            None => return piece.starts_with(rest),
        }
    }
    match rest.split_once('"') {
        Some((name, _)) => named(name, true),
        None => named(rest, false),
    }
}

/// Whether all items are calls of declared tools.
pub(super) fn all_declared(items: &[Item], tools: &Tools) -> bool {
    items.iter().all(|item| matches!(item, Item::Call(call) if tools.get(&call.name).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pieces: &[&str], marked: bool) -> Vec<String> {
        let tools = Tools::default();
        let (mut block, mut items) = (Block::default(), Vec::new());
        for piece in pieces {
            if let Some(at) = block.push(piece, &tools, &mut items) {
                items.push(Item::Text(format!("prose: {}", &block.text()[at..])));
                return show(items);
            }
        }
        block.finish(marked, &tools, &mut items);
        show(items)
    }

    fn show(items: Vec<Item>) -> Vec<String> {
        let show = |item| match item {
            Item::Call(call) => format!("{} {}", call.name, call.arguments),
            Item::Text(text) => text,
        };
        items.into_iter().map(show).collect()
    }

    #[test]
    fn blocks_of_every_kind() {
        let cases: [(&str, &[&str]); 19] = [
            ("[f(a=1), g.h(b='x)')]", &[r#"f {"a":1}"#, r#"g.h {"b":"x)"}"#]),
            ("[]", &[]),
            ("f(a=1)", &[r#"f {"a":1}"#]),
            ("f(a=1)\ng()", &[r#"f {"a":1}"#, "g {}"]),
            ("[f()]\n[g()]", &["f {}", "g {}"]),
            ("[f(a=1", &["f(a=1"]),
            ("[f(a=1), g(b=", &[r#"f {"a":1}"#, "g(b="]),
            ("[f(a=1)", &[r#"f {"a":1}"#]),
            ("[f(a=), g(b=2)]", &["f(a=)", r#"g {"b":2}"#]),
            ("[f(a=1), g(b=), h()]", &[r#"f {"a":1}"#, "g(b=)", "h {}"]),
            ("[f(a=, g(b=2)]", &["f(a=", r#"g {"b":2}"#]),
            ("[f(c='x g(a=1), h()' y=), k()]", &["f(c='x g(a=1), h()' y=)", "k {}"]),
            ("[f(c='open), g(b=2)]", &["f(c='open)", r#"g {"b":2}"#]),
            (r"[f(c='grep 'a' b'), g(x=1)]", &[r#"f {"c":"grep 'a' b"}"#, r#"g {"x":1}"#]),
            (r#"[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]"#, &[r#"f {"a":1}"#, "g {}"]),
            (r#"{"name": "f", "arguments": {}}"#, &["f {}"]),
            (r#"[{"name": }, {"name": "g"}]"#, &[r#"{"name": }"#, "g {}"]),
            ("<function=f></function>", &["f {}"]),
            ("[f(a=1)] and prose", &[r#"f {"a":1}"#, "prose: and prose"]),
        ];
        for (text, expected) in cases {
            assert_eq!(run(&[text], true), expected, "{text}");
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
            if !expected.iter().any(|e| e.starts_with("prose")) {
                assert_eq!(run(&chars, true), expected, "{text}, char by char");
            }
        }
    }

    #[test]
    fn a_call_comes_before_the_block_ends() {
        let (mut block, mut items) = (Block::default(), Vec::new());
        let tools = Tools::default();
        block.push("[f(a='x')", &tools, &mut items);
        assert!(items.is_empty());
        block.push(", g(", &tools, &mut items);
        assert_eq!(items.len(), 1);
        block.push(r"b='it\'s (', c=[1]), h(", &tools, &mut items);
        assert_eq!(items.len(), 2);
    }

    #[test]
    fn damage_costs_bounded_time() {
        let start = std::time::Instant::now();
        for text in ["f(a='", "g(, ", "[[[[", "f(a='x', b=", "\n{\"name", "f(a='b'c,f("] {
            run(&[&text.repeat(20_000)], true);
        }
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
