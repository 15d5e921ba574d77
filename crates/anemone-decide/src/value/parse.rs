use std::collections::HashMap;

use super::Value;

/// Objects and lists inside one another.
const MAX_DEPTH: usize = 200;
/// Python's own limit on the digits of a whole number.
const MAX_DIGITS: usize = 4300;

/// Why a text is not JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {offset}")]
pub struct ParseError {
    /// What is wrong.
    pub problem: &'static str,
    /// Where, in bytes from the start.
    pub offset: usize,
}

impl ParseError {
    /// Whether the text would be JSON but for half of a surrogate pair, which is no character.
    pub fn is_unpaired_surrogate(&self) -> bool {
        self.problem == UNPAIRED
    }
}

const UNPAIRED: &str = "an unpaired surrogate escape, which is no character,";

pub(super) fn parse(text: &str) -> Result<Value, ParseError> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    parser.blank();
    let value = parser.value()?;
    parser.blank();
    if parser.at < text.len() { Err(parser.error("something follows the value")) } else { Ok(value) }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn error(&self, problem: &'static str) -> ParseError {
        ParseError { problem, offset: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, ParseError> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.error("not a JSON value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn value(&mut self) -> Result<Value, ParseError> {
        match self.peek() {
            None => Err(self.error("the text ends where a value should begin")),
            Some(b'n') => self.word("null", Value::Null),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'N') => self.word("NaN", Value::Float(f64::NAN)),
            Some(b'I') => self.word("Infinity", Value::Float(f64::INFINITY)),
            Some(b'"') => Ok(Value::Text(self.string()?)),
            Some(b'[') => self.nested(Self::list),
            Some(b'{') => self.nested(Self::map),
            Some(b'-') if self.text.as_bytes().get(self.at + 1) == Some(&b'I') => {
                self.word("-Infinity", Value::Float(f64::NEG_INFINITY))
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.error("not a JSON value")),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, ParseError>) -> Result<Value, ParseError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error("values are nested more than 200 deep"));
        }
        self.depth += 1;
        self.at += 1;
        self.blank();
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    /// After an item: whether another follows, or the closing byte came.
    fn another(&mut self, close: u8) -> Result<bool, ParseError> {
        self.blank();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                self.blank();
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.error("expected a comma or the end of the object or list")),
        }
    }

    fn list(&mut self) -> Result<Value, ParseError> {
        let mut items = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::List(items));
        }
        loop {
            items.push(self.value()?);
            if !self.another(b']')? {
                return Ok(Value::List(items));
            }
        }
    }

    fn map(&mut self) -> Result<Value, ParseError> {
        let mut entries: Vec<(String, Value)> = Vec::new();
        let mut places = HashMap::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Map(entries));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a key in quotes"));
            }
            let key = self.string()?;
            self.blank();
            if self.peek() != Some(b':') {
                return Err(self.error("expected a colon after the key"));
            }
            self.at += 1;
            self.blank();
            let value = self.value()?;
            if let Some(&place) = places.get(&key) {
                let entry: &mut (String, Value) = &mut entries[place];
                entry.1 = value;
            } else {
                places.insert(key.clone(), entries.len());
                entries.push((key, value));
            }
            if !self.another(b'}')? {
                return Ok(Value::Map(entries));
            }
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Value, ParseError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let first = self.peek();
        let whole = self.digits();
        if whole == 0 {
            self.at = start;
            return Err(self.error("not a JSON value"));
        }
        if first == Some(b'0') && whole > 1 {
            self.at -= whole - 1;
            return Err(self.error("a number with a leading zero"));
        }
        let mut is_float = false;
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                self.at -= 1;
                return Err(self.error("a number without digits after its point"));
            }
            is_float = true;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            let exponent = self.at;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                self.at = exponent;
                return Err(self.error("a number without digits in its exponent"));
            }
            is_float = true;
        }
        let text = &self.text[start..self.at];
        if is_float {
            return text.parse().map(Value::Float).map_err(|_| self.error("not a number"));
        }
        if whole > MAX_DIGITS {
            self.at = start;
            return Err(self.error("a whole number of more than 4300 digits"));
        }
        Ok(Value::Int(if text == "-0" { "0" } else { text }.to_owned()))
    }

    fn string(&mut self) -> Result<String, ParseError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let plain = rest.iter().position(|b| matches!(b, b'"' | b'\\' | 0..0x20));
            let Some(plain) = plain else {
                self.at = self.text.len();
                return Err(self.error("the text ends inside a string"));
            };
            out.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain;
            match rest[plain] {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => out.push(self.escape()?),
                _ => return Err(self.error("a control character inside a string; escape it")),
            }
        }
    }

    /// The character of an escape; both halves of a surrogate pair.
    fn escape(&mut self) -> Result<char, ParseError> {
        let Some(&byte) = self.text.as_bytes().get(self.at + 1) else {
            return Err(self.error("the text ends inside an escape"));
        };
        let plain = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit(self.at)?;
                let pair = if (0xd800..0xdc00).contains(&first) { self.unit(self.at + 6).ok() } else { None };
                let mut units = std::iter::once(first).chain(pair);
                let decoded = char::decode_utf16(units.by_ref()).next();
                let Some(Ok(c)) = decoded else { return Err(self.error(UNPAIRED)) };
                self.at += 6 * c.len_utf16();
                return Ok(c);
            }
            _ => return Err(self.error("an escape JSON does not have")),
        };
        self.at += 2;
        Ok(plain)
    }

    /// The number of a `\uXXXX` at a place.
    fn unit(&self, at: usize) -> Result<u16, ParseError> {
        let digits = (self.text.as_bytes().get(at..at + 6)).filter(|b| b.starts_with(b"\\u"));
        let digits = digits.and_then(|b| std::str::from_utf8(&b[2..]).ok());
        let digits = digits.filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        digits
            .and_then(|d| u16::from_str_radix(d, 16).ok())
            .ok_or_else(|| self.error("an escape without four hexadecimal digits"))
    }
}
