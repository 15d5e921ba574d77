use std::fmt::Write;

use serde_json::{Map, Value};

use super::format::{CallMarks, CallSyntax, ToolFormat};

impl ToolFormat {
    /// Calls, as names with arguments, as the model would have written them; the parser reads them back.
    pub fn write(&self, calls: &[(&str, &Map<String, Value>)]) -> String {
        let (start, end) = (self.start(), self.end());
        let texts: Vec<String> = calls.iter().map(|(name, arguments)| self.call(name, arguments)).collect();
        match (self.marks, self.syntax) {
            (CallMarks::Tags, CallSyntax::Json | CallSyntax::Xml) => {
                texts.iter().map(|text| format!("{start}\n{text}\n{end}")).collect::<Vec<_>>().join("\n")
            }
            (CallMarks::Special, CallSyntax::Xml) => format!("{start}{}{end}", texts.join("\n")),
            _ => format!("{start}[{}]{end}", texts.join(", ")),
        }
    }

    fn call(self, name: &str, arguments: &Map<String, Value>) -> String {
        let mut out = String::new();
        match self.syntax {
            CallSyntax::Pythonic => {
                let arguments: Vec<String> =
                    arguments.iter().map(|(key, value)| format!("{key}={}", literal(value))).collect();
                out = format!("{name}({})", arguments.join(", "));
            }
            CallSyntax::Json => {
                out.push_str("{\"name\": ");
                json(&Value::from(name), &mut out);
                out.push_str(", \"arguments\": {");
                for (at, (key, value)) in arguments.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    json(&Value::from(key.as_str()), &mut out);
                    out.push_str(": ");
                    json(value, &mut out);
                }
                out.push_str("}}");
            }
            CallSyntax::Xml => {
                out = format!("<function={name}>\n");
                for (key, value) in arguments {
                    let text = match value {
                        Value::String(text) => text.clone(),
                        value => {
                            let mut text = String::new();
                            json(value, &mut text);
                            text
                        }
                    };
                    let _ = write!(out, "<parameter={key}>\n{text}\n</parameter>\n");
                }
                out.push_str("</function>");
            }
        }
        out
    }
}

/// A value of an argument in Python's spelling; what is inside a list or an object is written as JSON.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let mut out = String::with_capacity(text.len() + 2);
            out.push('\'');
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '\'' => out.push_str("\\'"),
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    c => out.push(c),
                }
            }
            out.push('\'');
            out
        }
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Null => "None".into(),
        other => {
            let mut out = String::new();
            json(other, &mut out);
            out
        }
    }
}

/// JSON with a space behind commas and colons, as Python writes it.
fn json(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                json(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (at, (key, value)) in map.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                json(&Value::from(key.as_str()), out);
                out.push_str(": ");
                json(value, out);
            }
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}
