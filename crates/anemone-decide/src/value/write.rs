use std::fmt::Write as _;

use super::Value;

/// What stands after a comma, and after a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Separators {
    item: &'static str,
    key: &'static str,
}

pub(super) const SPACED: Separators = Separators { item: ", ", key: ": " };
pub(super) const COMPACT: Separators = Separators { item: ",", key: ":" };

pub(super) fn dump(value: &Value, separators: Separators) -> String {
    let mut out = String::new();
    write(value, separators, &mut out);
    out
}

fn write(value: &Value, separators: Separators, out: &mut String) {
    match value {
        Value::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { separators.item } else { "" });
                write(item, separators, out);
            }
            out.push(']');
        }
        Value::Map(entries) => {
            out.push('{');
            for (i, (key, item)) in entries.iter().enumerate() {
                out.push_str(if i > 0 { separators.item } else { "" });
                string(key, out);
                out.push_str(separators.key);
                write(item, separators, out);
            }
            out.push('}');
        }
        scalar => write_scalar(scalar, out),
    }
}

pub(super) fn pretty(value: &Value) -> String {
    let mut out = String::new();
    write_lines(value, 0, &mut out);
    out
}

fn write_lines(value: &Value, depth: usize, out: &mut String) {
    let line = |depth: usize, out: &mut String| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    match value {
        Value::List(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                line(depth + 1, out);
                write_lines(item, depth + 1, out);
            }
            line(depth, out);
            out.push(']');
        }
        Value::Map(entries) if !entries.is_empty() => {
            out.push('{');
            for (i, (key, item)) in entries.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                line(depth + 1, out);
                string(key, out);
                out.push_str(": ");
                write_lines(item, depth + 1, out);
            }
            line(depth, out);
            out.push('}');
        }
        other => write(other, SPACED, out),
    }
}

fn write_scalar(value: &Value, out: &mut String) {
    match value {
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Int(digits) => out.push_str(digits),
        Value::Float(v) => float(*v, out),
        Value::Text(text) => string(text, out),
        _ => out.push_str("null"),
    }
}

/// The shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16.
fn float(v: f64, out: &mut String) {
    if v.is_nan() {
        return out.push_str("NaN");
    }
    if v.is_infinite() {
        return out.push_str(if v > 0.0 { "Infinity" } else { "-Infinity" });
    }
    let scientific = format!("{v:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if v != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs());
        return;
    }
    let plain = format!("{v}");
    out.push_str(&plain);
    if !plain.contains('.') {
        out.push_str(".0");
    }
}

fn string(text: &str, out: &mut String) {
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
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
