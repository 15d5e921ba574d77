use serde_json::Value;

/// Deepest nesting of a value; readers of JSON refuse more than 128.
const MAX_DEPTH: usize = 96;

/// What a literal is in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    String,
    Number,
    Bool,
    Null,
    Array,
    Object,
}

/// Where a value stands, which decides what may follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inside {
    /// The arguments of a call.
    Call,
    List,
    Tuple,
    /// Before the colon of a dict.
    Key,
    /// After it.
    Entry,
}

/// How the end of a string is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quotes {
    /// The next quote that is not escaped.
    Exact,
    /// The next such quote that is followed by what may follow the string.
    Guess,
}

/// Reads literals, in Python's spelling or JSON's, and writes them as JSON.
pub(super) struct Cursor<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    quotes: Quotes,
    /// Escapes are JSON's where they differ.
    json: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str, quotes: Quotes) -> Self {
        Self { text, at: 0, quotes, json: false }
    }

    pub(super) fn json(text: &'a str, quotes: Quotes) -> Self {
        Self { json: true, ..Self::new(text, quotes) }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Takes a character if it is next, behind any space.
    pub(super) fn take(&mut self, wanted: char) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(wanted);
        self.at += if found { wanted.len_utf8() } else { 0 };
        found
    }

    pub(super) fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// The next value, appended to `out` as JSON; `None` when there is none.
    pub(super) fn value(&mut self, inside: Inside, depth: usize, out: &mut String) -> Option<Kind> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip_space();
        match self.peek()? {
            '"' | '\'' => self.quoted(inside, false, out),
            '[' => self.items(']', Inside::List, depth, out),
            '(' => self.items(')', Inside::Tuple, depth, out),
            '{' => self.dict(depth, out),
            '0'..='9' | '-' | '+' | '.' => self.number(out),
            c if is_word(c) => self.word(inside, out),
            _ => None,
        }
    }

    fn word(&mut self, inside: Inside, out: &mut String) -> Option<Kind> {
        let word = self.take_while(is_word);
        let (json, kind) = match word {
            "True" | "true" => ("true", Kind::Bool),
            "False" | "false" => ("false", Kind::Bool),
            "None" | "null" => ("null", Kind::Null),
            "r" | "R" | "u" | "U" | "f" | "F" if self.rest().starts_with(['"', '\'']) => {
                return self.quoted(inside, matches!(word, "r" | "R"), out);
            }
            _ => return None,
        };
        out.push_str(json);
        Some(kind)
    }

    fn number(&mut self, out: &mut String) -> Option<Kind> {
        let source = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '-'));
        out.push_str(&number(source)?);
        Some(Kind::Number)
    }

    fn items(&mut self, close: char, inside: Inside, depth: usize, out: &mut String) -> Option<Kind> {
        self.at += 1;
        out.push('[');
        let mut first = true;
        while !self.take(close) {
            if !first && !self.take(',') {
                return None;
            }
            if !first && self.take(close) {
                break;
            }
            if !first {
                out.push(',');
            }
            self.value(inside, depth + 1, out)?;
            first = false;
        }
        out.push(']');
        Some(Kind::Array)
    }

    fn dict(&mut self, depth: usize, out: &mut String) -> Option<Kind> {
        let entries = self.entries(depth)?;
        write_object(&entries, out);
        Some(Kind::Object)
    }

    /// The entries of a dict, values as JSON with their kind; of equal keys the last one counts.
    pub(super) fn entries(&mut self, depth: usize) -> Option<Vec<Entry>> {
        if depth > MAX_DEPTH || !self.take('{') {
            return None;
        }
        let mut entries = Vec::new();
        while !self.take('}') {
            if !entries.is_empty() && !self.take(',') {
                return None;
            }
            if !entries.is_empty() && self.take('}') {
                break;
            }
            let mut key = String::new();
            match self.value(Inside::Key, depth + 1, &mut key)? {
                Kind::String => key = unquote(&key)?,
                Kind::Number => {}
                _ => return None,
            }
            if !self.take(':') {
                return None;
            }
            let mut json = String::new();
            let kind = self.value(Inside::Entry, depth + 1, &mut json)?;
            insert(&mut entries, Entry { key, json, kind });
        }
        Some(entries)
    }

    fn quoted(&mut self, inside: Inside, raw: bool, out: &mut String) -> Option<Kind> {
        let quote = self.peek()?;
        let triple = if quote == '"' { "\"\"\"" } else { "'''" };
        let long = self.rest().starts_with(triple);
        let mark = if long { triple } else { &triple[..1] };
        self.at += mark.len();
        let mut text = String::new();
        loop {
            let rest = self.rest();
            let c = rest.chars().next()?;
            if c == '\\' {
                self.at += 1;
                self.escape(raw, &mut text)?;
            } else if rest.starts_with(mark)
                && (long || self.quotes == Quotes::Exact || self.closes(self.at + 1, inside))
            {
                self.at += mark.len();
                break;
            } else {
                text.push(c);
                self.at += c.len_utf8();
            }
        }
        out.push_str(&quote_json(&text));
        Some(Kind::String)
    }

    /// Whether a string may end before `at`.
    fn closes(&self, at: usize, inside: Inside) -> bool {
        let rest = self.text[at..].trim_start();
        let Some(c) = rest.chars().next() else { return false };
        let after = rest[c.len_utf8()..].trim_start();
        match (inside, c) {
            (Inside::Key, ':') => true,
            (Inside::Call, ',') => after.starts_with(')') || parameter(after).is_some(),
            (Inside::Call, ')') => ends_call(after),
            (Inside::List | Inside::Tuple, ',') => begins_value(after) || after.starts_with([']', ')']),
            (Inside::Entry, ',') => after.starts_with(['"', '\'', '}']),
            (Inside::List, ']') | (Inside::Tuple, ')') | (Inside::Entry, '}') => {
                after.starts_with([',', ')', ']', '}'])
            }
            _ => false,
        }
    }

    /// What stands behind a backslash, as the text it means.
    fn escape(&mut self, raw: bool, text: &mut String) -> Option<()> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        if raw {
            text.extend(['\\', c]);
            return Some(());
        }
        let meant = match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'a' if !self.json => '\u{7}',
            'v' if !self.json => '\u{b}',
            '\\' | '\'' | '"' => c,
            '/' if self.json => '/',
            '\n' => return Some(()),
            'x' | 'u' | 'U' => {
                let digits = if c == 'x' { 2 } else { 4 + 4 * usize::from(c == 'U') };
                let Some(code) = self.hex(digits) else {
                    text.extend(['\\', c]);
                    return Some(());
                };
                self.code_point(code)
            }
            '0'..='7' => {
                self.at -= 1;
                let rest = self.rest();
                let len = rest.bytes().take(3).take_while(|b| matches!(b, b'0'..=b'7')).count();
                self.at += len;
                char::from_u32(u32::from_str_radix(&rest[..len], 8).ok()?)?
            }
            _ => {
                text.extend(['\\', c]);
                return Some(());
            }
        };
        text.push(meant);
        Some(())
    }

    /// Takes exactly so many hexadecimal digits, or nothing.
    fn hex(&mut self, digits: usize) -> Option<u32> {
        let found = self.rest().get(..digits)?;
        let code =
            found.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(found, 16).ok())??;
        self.at += digits;
        Some(code)
    }

    /// The character of a code; the second half of a surrogate pair is taken with the first.
    fn code_point(&mut self, code: u32) -> char {
        if (0xd800..0xdc00).contains(&code) && self.rest().starts_with("\\u") {
            let back = self.at;
            self.at += 2;
            match self.hex(4) {
                Some(low @ 0xdc00..0xe000) => {
                    let joined = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    return char::from_u32(joined).unwrap_or(char::REPLACEMENT_CHARACTER);
                }
                _ => self.at = back,
            }
        }
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}

/// A key with its value in JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) json: String,
    pub(super) kind: Kind,
}

/// Adds an entry, in the place of an earlier one of the same key.
pub(super) fn insert(entries: &mut Vec<Entry>, entry: Entry) {
    match entries.iter_mut().find(|e| e.key == entry.key) {
        Some(earlier) => *earlier = entry,
        None => entries.push(entry),
    }
}

pub(super) fn write_object(entries: &[Entry], out: &mut String) {
    out.push('{');
    for (at, entry) in entries.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push_str(&quote_json(&entry.key));
        out.push(':');
        out.push_str(&entry.json);
    }
    out.push('}');
}

/// A whole text as one literal.
pub(super) fn whole(text: &str) -> Option<(String, Kind)> {
    let mut cursor = Cursor::json(text, Quotes::Exact);
    let mut json = String::new();
    let kind = cursor.value(Inside::List, 0, &mut json)?;
    cursor.skip_space();
    cursor.rest().is_empty().then_some((json, kind))
}

pub(super) fn quote_json(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// The text of a string in JSON.
pub(super) fn unquote(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether a name of a function may hold the character.
pub(super) fn is_name(c: char) -> bool {
    is_word(c) || matches!(c, '.' | '-' | '/' | ':')
}

/// The name of a parameter, up to behind its `=`; and what follows.
pub(super) fn parameter(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c| !(is_word(c) || matches!(c, '-' | '.' | '$')))?;
    let rest = text[end..].trim_start().strip_prefix('=')?;
    (end > 0 && !rest.starts_with('=')).then(|| (&text[..end], rest))
}

/// Whether what follows the parenthesis of a call lets it end there.
pub(super) fn ends_call(after: &str) -> bool {
    match after.chars().next() {
        None | Some(']') => true,
        Some(',' | ';') => {
            let next = after[1..].trim_start();
            let name = next.find(|c| !is_name(c)).unwrap_or(next.len());
            let call = name > 0 && next[name..].trim_start().starts_with('(');
            call || next.is_empty() || next.starts_with([']', '{'])
        }
        Some(_) => false,
    }
}

fn begins_value(text: &str) -> bool {
    text.starts_with(|c: char| matches!(c, '"' | '\'' | '[' | '{' | '(' | '-' | '0'..='9'))
        || ["True", "False", "None", "true", "false", "null"].iter().any(|word| text.starts_with(word))
}

/// A number in Python's spelling as JSON; zeros in front are dropped, digits are never rounded.
fn number(source: &str) -> Option<String> {
    let (sign, body) = match source.as_bytes().first()? {
        b'-' => ("-", &source[1..]),
        b'+' => ("", &source[1..]),
        _ => ("", source),
    };
    let body = body.replace('_', "");
    let radix = match body.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    if radix != 10 {
        let value = u128::from_str_radix(body[2..].trim_start_matches('+'), radix).ok()?;
        return Some(format!("{sign}{value}"));
    }
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (&*body, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !fraction.is_none_or(digits) || whole.len() + fraction.map_or(0, str::len) == 0 {
        return None;
    }
    let whole = whole.trim_start_matches('0');
    let mut out = format!("{sign}{}", if whole.is_empty() { "0" } else { whole });
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(if fraction.is_empty() { "0" } else { fraction });
    }
    if let Some(exponent) = exponent {
        let power = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if power.is_empty() || !digits(power) {
            return None;
        }
        out.push('e');
        out.push_str(exponent);
    }
    // A number no reader takes, such as one beyond the range of doubles, is none.
    serde_json::from_str::<Value>(&out).ok().map(|_| out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(text: &str) -> Option<String> {
        let mut cursor = Cursor::new(text, Quotes::Exact);
        let mut json = String::new();
        cursor.value(Inside::Call, 0, &mut json)?;
        cursor.rest().is_empty().then_some(json)
    }

    #[test]
    fn literals_become_json() {
        for (text, expected) in [
            ("'a'", r#""a""#),
            (r#""it's \"x\"""#, r#""it's \"x\"""#),
            (r"'it\'s \n\t\\ \x41\u00e9\U0001F642 \101\d'", "\"it's \\n\\t\\\\ Aé🙂 A\\\\d\""),
            (r"'\ud83d\ude42 \ud83d'", "\"🙂 \u{fffd}\""),
            ("'''a'b\n''c'''", r#""a'b\n''c""#),
            ("'a\nb\u{1}'", r#""a\nb\u0001""#),
            (r"r'a\n'", r#""a\\n""#),
            ("''", r#""""#),
            ("[1, 'a', [True, false], None, null,]", r#"[1,"a",[true,false],null,null]"#),
            ("(1, 2)", "[1,2]"),
            ("{'a': {\"b\": []}, 1: 2,}", r#"{"a":{"b":[]},"1":2}"#),
            ("{'a': 1, 'a': 2}", r#"{"a":2}"#),
            ("007", "7"),
            ("00", "0"),
            ("-007.50", "-7.50"),
            (".5", "0.5"),
            ("1.", "1.0"),
            ("+1e5", "1e5"),
            ("1_000", "1000"),
            ("0x1F", "31"),
            ("-0b11", "-3"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ] {
            assert_eq!(python(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_literal_is_refused() {
        for text in [
            "", "'", "'a", "abc", "[1 2]", "[1", "{1}", "{'a'}", "{[]: 1}", "1.2.3", "1e", "1e999", "0x",
            "--1", "b'x'", "1abc", "[,]", "-",
        ] {
            assert_eq!(python(text), None, "{text}");
        }
        assert_eq!(python(&"[".repeat(5000)), None);
        let deep = format!("{}{}", "[".repeat(90), "]".repeat(90));
        assert_eq!(python(&deep).as_deref(), Some(&*deep));
    }

    #[test]
    fn json_escapes_are_jsons() {
        let (json, kind) = whole(r#" {"u": "http:\/\/x\u00e9"} "#).unwrap();
        assert_eq!((json.as_str(), kind), (r#"{"u":"http://xé"}"#, Kind::Object));
        assert_eq!(whole("1 2"), None);
    }
}
