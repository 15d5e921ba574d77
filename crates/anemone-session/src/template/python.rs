use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

const MAX_DEPTH: usize = 200;

/// How `json.dumps` lays its text out.
#[derive(Debug, Clone)]
pub(super) struct JsonStyle {
    pub(super) item: String,
    pub(super) key: String,
    pub(super) indent: Option<String>,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        Self { item: ", ".into(), key: ": ".into(), indent: None, ensure_ascii: false, sort_keys: false }
    }
}

/// Writes what Python's `json.dumps` gives.
pub(super) fn write_json(value: &Value, style: &JsonStyle, out: &mut String) -> Result<(), Error> {
    json(value, style, 0, out)
}

fn json(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(value, ["NaN", "Infinity", "-Infinity"], out),
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked();
            container(['[', ']'], items, style, depth, out, |item, out| json(&item, style, depth + 1, out))?;
        }
        ValueKind::Map => {
            let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
            if style.sort_keys {
                keys.sort();
            }
            container(['{', '}'], keys.into_iter().map(Ok), style, depth, out, |key, out| {
                let mut name = String::new();
                match key.kind() {
                    ValueKind::String => name.push_str(key.as_str().unwrap_or_default()),
                    ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                        json(&key, style, depth + 1, &mut name)?;
                    }
                    kind => {
                        return Err(invalid(format!(
                            "tojson: a key is of type {kind}; keys must be strings"
                        )));
                    }
                }
                json_string(&name, style, out);
                out.push_str(&style.key);
                json(&value.get_item(&key)?, style, depth + 1, out)
            })?;
        }
        kind => return Err(invalid(format!("tojson: a value of type {kind} has no JSON form"))),
    }
    Ok(())
}

fn container(
    ends: [char; 2],
    items: impl Iterator<Item = Result<Value, Error>>,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    };
    out.push(ends[0]);
    let mut empty = true;
    for item in items {
        if !empty {
            out.push_str(&style.item);
        }
        empty = false;
        line(depth + 1, out);
        write(item?, out)?;
    }
    if !empty {
        line(depth, out);
    }
    out.push(ends[1]);
    Ok(())
}

fn json_string(text: &str, style: &JsonStyle, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Writes what Python's `str()` gives.
pub(super) fn write_str(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => {
            out.push_str(value.as_str().unwrap_or_default());
            Ok(())
        }
        _ => repr(value, 0, out),
    }
}

fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, ["nan", "inf", "-inf"], out),
        ValueKind::String => repr_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let ends = if value.is_tuple() { ['(', ')'] } else { ['[', ']'] };
            let items = value.try_iter()?.checked();
            container(ends, items, &JsonStyle::default(), depth, out, |item, out| {
                repr(&item, depth + 1, out)
            })?;
            if value.is_tuple() && value.len() == Some(1) {
                out.insert(out.len() - 1, ',');
            }
        }
        ValueKind::Map => {
            let keys = value.try_iter()?.checked();
            container(['{', '}'], keys, &JsonStyle::default(), depth, out, |key, out| {
                repr(&key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, depth + 1, out)
            })?;
        }
        ValueKind::Invalid => return Err(invalid(value.to_string())),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() || c == '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn number(value: &Value, special: [&str; 3], out: &mut String) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return;
    }
    let Ok(float) = f64::try_from(value.clone()) else { return };
    if float.is_nan() {
        out.push_str(special[0]);
    } else if float.is_infinite() {
        out.push_str(special[if float > 0.0 { 1 } else { 2 }]);
    } else {
        float_repr(float, out);
    }
}

/// The shortest text that reads back as the same float, in Python's choice of notation.
fn float_repr(float: f64, out: &mut String) {
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs());
    } else {
        let _ = write!(out, "{float:?}");
    }
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("a value is nested more than {MAX_DEPTH} deep")));
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_like_python() {
        for (float, text) in [
            (1.0, "1.0"),
            (1.5, "1.5"),
            (-0.0, "-0.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e-5, "1.25e-05"),
            (0.0001, "0.0001"),
            (1e-7, "1e-07"),
            (1.5e300, "1.5e+300"),
            (123456789.125, "123456789.125"),
        ] {
            let mut out = String::new();
            float_repr(float, &mut out);
            assert_eq!(out, text);
        }
    }

    #[test]
    fn strings_are_quoted_like_python() {
        for (text, expected) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("a\n\t\\\u{1}\u{7f}é", "'a\\n\\t\\\\\\x01\\x7fé'"),
        ] {
            let mut out = String::new();
            repr_string(text, &mut out);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn depth_is_bounded() {
        let mut value = Value::from(1);
        for _ in 0..300 {
            value = Value::from(vec![value]);
        }
        assert!(write_json(&value, &JsonStyle::default(), &mut String::new()).is_err());
        assert!(write_str(&value, &mut String::new()).is_err());
    }
}
