use std::fmt::Write;

use serde_json::{Map, Value};

use super::grammar::in_one_line;
use super::vocabulary::Tokens;
use crate::tools::may_be_text;
use crate::{CallMarks, CallSyntax, Tool, ToolFormat};

/// A grammar of calls of these tools, as rules behind `calls`: with the start mark when `marked`, to the end mark.
///
/// `several` allows more than one call, up to sixteen.
pub(super) fn rules(
    tools: &[&Tool],
    format: ToolFormat,
    marked: bool,
    several: bool,
    tokens: &Tokens,
) -> String {
    let mut rules = Rules { lark: String::new(), format };
    let mark = |mark: &str| if tokens.is_special(mark) { mark.to_owned() } else { quoted(mark) };
    let (start, end) = (mark(format.start()), mark(format.end()));
    let start = if marked { start } else { "SPACE".to_owned() };
    let alternatives: Vec<String> = (0..tools.len()).map(|index| format!("call_{index}")).collect();
    let list = |separator: &str| {
        if several {
            format!("call ({} call){{0,{}}}", quoted(separator), MOST_CALLS - 1)
        } else {
            "call".into()
        }
    };
    let calls = match (format.marks, format.syntax) {
        (CallMarks::Tags, CallSyntax::Json | CallSyntax::Xml) => {
            let block = format!("{start} \"\\n\" call \"\\n\" {end}");
            // What follows a block whose start mark was free text may be another one.
            match (several && marked, marked) {
                (true, _) => format!("{block} (\"\\n\" {block}){{0,{}}}", MOST_CALLS - 1),
                (false, true) => block,
                (false, false) => format!("{start} call \"\\n\" {end}"),
            }
        }
        (CallMarks::Special, CallSyntax::Xml) => format!("{start} {} {end}", list("\n")),
        _ => format!("{start} \"[\" {} \"]\" {end}", list(", ")),
    };
    rules.rule("calls", &calls);
    rules.rule("call", &alternatives.join(" | "));
    rules.lark.push_str(TERMINALS);
    for (index, tool) in tools.iter().enumerate() {
        rules.tool(index, tool);
    }
    rules.lark
}

/// Most calls at once, lest a weak model goes on for ever.
const MOST_CALLS: usize = 16;

const TERMINALS: &str = r#"SPACE: /[ \n]{0,4}/
SINGLE: /'([^'\\\x00-\x1F\x7F]|\\['"\\nrt])*'/
DOUBLE: /"([^"\\\x00-\x1F\x7F]|\\['"\\nrt])*"/
"#;

struct Rules {
    lark: String,
    format: ToolFormat,
}

impl Rules {
    fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.lark, "{name}: {body}");
    }

    fn tool(&mut self, index: usize, tool: &Tool) {
        let name = &tool.name;
        let rule = format!("call_{index}");
        match self.format.syntax {
            CallSyntax::Json => {
                let mut schema = tool.parameters.clone();
                if let Value::Object(map) = &mut schema {
                    map.entry("type").or_insert_with(|| "object".into());
                }
                let head = format!("{{\"name\": {}, \"arguments\": ", Value::from(name.as_str()));
                let body = format!("{} {} \"}}\"", quoted(&head), json(&schema));
                self.rule(&rule, &body);
            }
            CallSyntax::Pythonic => {
                let arguments = self.arguments(index, tool, ", ");
                self.rule(&rule, &format!("{} {arguments} \")\"", quoted(&format!("{name}("))));
            }
            CallSyntax::Xml => {
                let arguments = self.arguments(index, tool, "");
                self.rule(
                    &rule,
                    &format!("{} {arguments} \"</function>\"", quoted(&format!("<function={name}>\n"))),
                );
            }
        }
    }

    /// The declared parameters in their order, required ones always; what stands for them in a rule.
    fn arguments(&mut self, index: usize, tool: &Tool, separator: &str) -> String {
        let none = Map::new();
        let properties = tool.parameters.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required: Vec<&str> = (tool.parameters.get("required").and_then(Value::as_array))
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let count = properties.len();
        if count == 0 {
            return String::new();
        }
        // `rest_i`: from parameter i on when one was written before; `first_i`: when none was.
        for (at, (key, schema)) in properties.iter().enumerate() {
            let prefix = format!("arg_{index}_{at}");
            let value = self.value(&prefix, schema, &tool.parameters);
            let argument = match self.format.syntax {
                CallSyntax::Xml => format!("{} {value}", quoted(&format!("<parameter={key}>\n"))),
                _ => format!("{} {value}", quoted(&format!("{key}="))),
            };
            self.rule(&prefix, &argument);
            let last = at + 1 == count;
            let rest = if last { String::new() } else { format!("rest_{index}_{}", at + 1) };
            let first = if last { String::new() } else { format!("first_{index}_{}", at + 1) };
            let joint = if separator.is_empty() { String::new() } else { quoted(separator) };
            if required.contains(&key.as_str()) {
                self.rule(&format!("first_{index}_{at}"), &format!("{prefix} {rest}"));
                self.rule(&format!("rest_{index}_{at}"), &format!("{joint} {prefix} {rest}"));
            } else {
                let skipped = if last { "\"\"" } else { &*first };
                self.rule(&format!("first_{index}_{at}"), &format!("{prefix} {rest} | {skipped}"));
                self.rule(&format!("rest_{index}_{at}"), &format!("({joint} {prefix})? {rest}"));
            }
        }
        format!("first_{index}_0")
    }

    /// What a value of the schema is written as.
    fn value(&mut self, prefix: &str, schema: &Value, root: &Value) -> String {
        let xml = self.format.syntax == CallSyntax::Xml;
        let end = quoted("\n</parameter>\n");
        let keys: Vec<&str> = (schema.as_object().into_iter().flatten())
            .map(|(key, _)| key.as_str())
            .filter(|key| !matches!(*key, "title" | "description" | "default" | "examples" | "$comment"))
            .collect();
        let plain = keys == ["type"];
        let kind = schema.get("type").and_then(Value::as_str);
        if let Some(texts) = texts(schema) {
            let texts: Vec<String> = texts.iter().map(|text| self.text(text)).collect();
            let choice = format!("({})", texts.join(" | "));
            return if xml { format!("{choice} {end}") } else { choice };
        }
        match kind {
            _ if xml && may_be_text(resolved(schema, root)) => {
                let rule = format!("text_{prefix}");
                let suffix = quoted("</parameter>");
                self.rule(&format!("{rule}[suffix={suffix}]"), &format!("/{}/", text_regex(schema)));
                format!("{rule} \"\\n\"")
            }
            Some("string") if plain => "(SINGLE | DOUBLE)".into(),
            Some("boolean") if plain && !xml => "(\"True\" | \"False\")".into(),
            Some("null") if plain && !xml => "\"None\"".into(),
            _ => {
                let mut schema = if schema.is_object() { schema.clone() } else { Value::Object(Map::new()) };
                if let Value::Object(map) = &mut schema {
                    for key in ["$defs", "definitions"] {
                        if let Some(definitions) = root.get(key) {
                            map.entry(key).or_insert_with(|| definitions.clone());
                        }
                    }
                }
                let body = json(&schema);
                if xml { format!("{body} {end}") } else { body }
            }
        }
    }

    /// A given text, in either kind of quotes where it needs quotes.
    fn text(&self, text: &str) -> String {
        if self.format.syntax == CallSyntax::Xml {
            return quoted(text);
        }
        let escape = |mark: char| {
            let mut out = String::from(mark);
            for c in text.chars() {
                match c {
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    '\\' => out.push_str("\\\\"),
                    c if c == mark => out.extend(['\\', c]),
                    c => out.push(c),
                }
            }
            out.push(mark);
            out
        };
        format!("{} | {}", quoted(&escape('\'')), quoted(&escape('"')))
    }
}

/// The strings a schema allows, where it lists them.
fn texts(schema: &Value) -> Option<Vec<&str>> {
    let listed = match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(values)), None) if !values.is_empty() => values.iter().collect(),
        (None, Some(value)) => vec![value],
        _ => return None,
    };
    let others = schema.as_object()?.keys().any(|key| {
        !matches!(key.as_str(), "type" | "enum" | "const" | "title" | "description" | "default" | "examples")
    });
    if others || schema.get("type").is_some_and(|kind| kind != "string") {
        return None;
    }
    listed.into_iter().map(Value::as_str).collect()
}

/// The schema a schema refers to, where it is a reference into its root.
fn resolved<'a>(mut schema: &'a Value, root: &'a Value) -> &'a Value {
    for _ in 0..8 {
        let pointer = schema.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#'));
        match pointer.and_then(|pointer| root.pointer(pointer)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

/// What a text without quotes must match before its end tag: its pattern or its length, where a schema asks for one of
/// these alone.
///
/// A line's end may precede the tag. Where the length counts, the text holds no `<`, lest it hold the tag.
fn text_regex(schema: &Value) -> String {
    let asks = |key: &str| schema.get(key).is_some();
    let number = |key: &str| schema.get(key).and_then(Value::as_u64);
    let pattern = schema.get("pattern").and_then(Value::as_str);
    match (pattern, asks("minLength") || asks("maxLength")) {
        _ if schema.get("type").is_none_or(|kind| kind != "string") => "(?s:.*)".into(),
        (Some(pattern), false) => {
            let open = |at_edge: bool| if at_edge { "" } else { "(?s:.*)" };
            let (left, right) = (pattern.starts_with('^'), pattern.ends_with('$'));
            let inner = pattern.strip_prefix('^').unwrap_or(pattern);
            let inner = inner.strip_suffix('$').unwrap_or(inner).replace('/', "\\/");
            format!("{}({inner}){}\\n", open(left), open(right))
        }
        (None, true) => {
            let most = number("maxLength").map(|most| most.to_string()).unwrap_or_default();
            format!("[^<]{{{},{most}}}\\n", number("minLength").unwrap_or(0))
        }
        _ => "(?s:.*)".into(),
    }
}

fn json(schema: &Value) -> String {
    format!("%json {}", in_one_line(schema.clone()))
}

/// A text as a literal of Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
