//! JSON as Python reads and writes it: whole numbers of any size, NaN and infinities, keys in order.
//!
//! A prompt holds values as `json.dumps` spells them, so a number must come out as it went in, which a parser into f64 would not do.

mod parse;
mod write;

use std::borrow::Cow;

pub use parse::ParseError;

/// A JSON value in Python's dialect.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number, in its canonical digits.
    Int(String),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Value>),
    /// An object, keys in order, each once.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Reads one JSON text; of a repeated key the last value counts, at the place of the first.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        parse::parse(text)
    }

    /// A whole number.
    pub fn int(n: impl Into<i128>) -> Self {
        Self::Int(n.into().to_string())
    }

    /// A string.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// As `json.dumps` writes it: `", "` and `": "` between, characters beyond ASCII as they are.
    pub fn to_spaced(&self) -> String {
        write::dump(self, write::SPACED)
    }

    /// Without spaces, characters beyond ASCII as they are.
    pub fn to_compact(&self) -> String {
        write::dump(self, write::COMPACT)
    }

    /// On several lines.
    pub fn to_pretty(&self) -> String {
        write::pretty(self)
    }

    /// A string as it is, anything else as [`Value::to_spaced`].
    pub fn rendered(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            other => Cow::Owned(other.to_spaced()),
        }
    }

    /// As Python's `str` writes a string, number or boolean.
    pub(crate) fn python_str(&self) -> String {
        match self {
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Float(v) if v.is_nan() => "nan".to_owned(),
            Self::Float(v) if v.is_infinite() => if *v > 0.0 { "inf" } else { "-inf" }.to_owned(),
            other => other.rendered().into_owned(),
        }
    }

    /// As Python's `repr` shows it in a message, near enough.
    pub fn quoted(&self) -> String {
        match self {
            Self::Text(text) => format!("'{text}'"),
            Self::Null => "None".to_owned(),
            Self::Bool(_) => self.python_str(),
            other => other.to_spaced(),
        }
    }

    /// The key `json.dumps` makes of a string, number or boolean.
    pub(crate) fn as_key(&self) -> String {
        self.rendered().into_owned()
    }

    /// Whether Python's `==` holds between two strings, numbers or booleans.
    pub(crate) fn python_eq(&self, other: &Self) -> bool {
        match (self.number(), other.number()) {
            (Some(Number::Float(a)), Some(Number::Float(b))) => a == b,
            (Some(Number::Int(a)), Some(Number::Int(b))) => a == b,
            (Some(Number::Int(a)), Some(Number::Float(b)))
            | (Some(Number::Float(b)), Some(Number::Int(a))) => {
                // The digits of a whole f64 are exact; "-0" is the one spelling a whole number does not have.
                let digits = format!("{b:.0}");
                b.fract() == 0.0 && a == digits.strip_prefix("-0").map_or(digits.as_str(), |_| "0")
            }
            (None, None) => self == other,
            _ => false,
        }
    }

    fn number(&self) -> Option<Number<'_>> {
        match self {
            Self::Bool(b) => Some(Number::Int(if *b { "1" } else { "0" })),
            Self::Int(digits) => Some(Number::Int(digits)),
            Self::Float(v) => Some(Number::Float(*v)),
            _ => None,
        }
    }

    /// The value as f64 when it is a number; a boolean is none.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(digits) => digits.parse().ok(),
            Self::Float(v) => Some(*v),
            _ => None,
        }
    }

    /// The value as a count when it is a whole number in range.
    pub fn as_usize(&self) -> Option<usize> {
        match self {
            Self::Int(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The entries, if it is an object.
    pub fn as_map(&self) -> Option<&[(String, Self)]> {
        match self {
            Self::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The items, if it is an array.
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// The value of a key, if it is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_map()?.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match self {
            Self::Map(entries) => entries.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// An object with one more key at its end; anything else as it is.
    #[must_use]
    pub fn with(mut self, key: &str, value: Self) -> Self {
        if let Self::Map(entries) = &mut self {
            entries.push((key.to_owned(), value));
        }
        self
    }

    /// What it is, with its article.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

enum Number<'a> {
    Int(&'a str),
    Float(f64),
}

/// A number with the four decimals of answers, rounded as Python rounds: by its exact binary value, ties to even.
pub fn round4(v: f64) -> Value {
    if !v.is_finite() {
        return Value::Float(v);
    }
    Value::Float(format!("{v:.4}").parse().unwrap_or(v))
}

/// A text as Python's `repr` writes it.
pub(crate) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 0x100 && c.is_control() || c == '\u{A0}' || c == '\u{AD}' => {
                out.extend(format!("\\x{:02x}", c as u32).chars());
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Value {
        Value::parse(text).unwrap()
    }

    #[test]
    fn numbers_come_out_as_python_writes_them() {
        for (text, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("1.0", "1.0"),
            ("-0.0", "-0.0"),
            ("1e16", "1e+16"),
            ("1e15", "1000000000000000.0"),
            ("123456789012345680.0", "1.2345678901234568e+17"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("1e100", "1e+100"),
            ("5e-324", "5e-324"),
            ("0.1", "0.1"),
            ("1e400", "Infinity"),
            ("-Infinity", "-Infinity"),
            ("NaN", "NaN"),
        ] {
            assert_eq!(parse(text).to_spaced(), expected, "{text}");
        }
    }

    #[test]
    fn text_and_spacing() {
        let value = parse(r#"{"a":[1,true,null,{}],"b\u0001\n\"\\":"é\u00e9😀\ud83d\ude00/"}"#);
        assert_eq!(value.to_spaced(), r#"{"a": [1, true, null, {}], "b\u0001\n\"\\": "éé😀😀/"}"#);
        assert_eq!(value.to_compact(), r#"{"a":[1,true,null,{}],"b\u0001\n\"\\":"éé😀😀/"}"#);
        assert_eq!(parse(r#"{"a":1,"b":2,"a":3}"#).to_compact(), r#"{"a":3,"b":2}"#);
        assert_eq!(parse("[]").to_pretty(), "[]");
        assert_eq!(
            parse(r#"{"a":[1,{"b":2}]}"#).to_pretty(),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ]\n}"
        );
    }

    #[test]
    fn texts_are_quoted_as_python_does() {
        assert_eq!(repr("a'b"), "\"a'b\"");
        assert_eq!(repr("a'\"b"), r#"'a\'"b'"#);
        assert_eq!(repr("a\n\\\u{7f}é"), r"'a\n\\\x7fé'");
    }

    #[test]
    fn equality_is_pythons() {
        let same = |a: &str, b: &str| parse(a).python_eq(&parse(b));
        assert!(same("1", "1.0") && same("true", "1") && same("0.0", "false") && same("-0.0", "0"));
        assert!(
            same("9007199254740992", "9007199254740992.0") && !same("9007199254740993", "9007199254740992.0")
        );
        assert!(!same("1", "\"1\"") && !same("NaN", "NaN") && same("\"a\"", "\"a\"") && !same("1", "1.5"));
    }

    #[test]
    fn rounding_is_by_the_binary_value() {
        let rounded = |v: f64| round4(v).to_spaced();
        assert_eq!(rounded(0.03125), "0.0312", "a tie goes to even");
        assert_eq!(rounded(0.09375), "0.0938");
        assert_eq!(rounded(0.00005), "0.0001", "the nearest f64 lies above");
        assert_eq!(rounded(1.0), "1.0");
        assert_eq!(rounded(0.99996), "1.0");
        assert_eq!(rounded(0.40489), "0.4049");
    }

    #[test]
    fn what_is_not_json_is_named_with_its_place() {
        for (text, expected) in [
            ("", "ends"),
            ("{nope", "at byte 1"),
            ("[1,]", "at byte 3"),
            ("01", "at byte 1"),
            ("1 2", "at byte 2"),
            ("\"\u{1}\"", "control character"),
            (r#""\ud800""#, "unpaired surrogate"),
            (r#""\udc00\ud800""#, "unpaired surrogate"),
            (r#""\x""#, "escape"),
            ("-", "at byte 0"),
            ("1.", "at byte 1"),
            ("nul", "at byte 0"),
        ] {
            let error = Value::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(Value::parse(&"[".repeat(100_000)).unwrap_err().to_string().contains("nested"));
        assert!(Value::parse(&format!("{}1{}", "[".repeat(100), "]".repeat(100))).is_ok());
    }
}
