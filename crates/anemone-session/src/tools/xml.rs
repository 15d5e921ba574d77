use super::block::Item;
use super::call::Call;
use super::declared::Tools;
use super::literal::{self, Cursor, Entry, Kind, Quotes, insert, write_object};

/// Calls written as tags; what is none of them comes back as text.
///
/// `ended` tells whether the block had its end mark: only then may the last end tag be missing.
pub(super) fn read(text: &str, ended: bool, tools: &Tools) -> Vec<Item> {
    let mut items = Vec::new();
    let mut at = 0;
    let mut broken = 0;
    while let Some(start) = next_function(text, at) {
        match function(&text[start..], ended, tools) {
            Some((call, len)) => {
                items.extend(Item::text(&text[broken..start]));
                items.push(Item::Call(call));
                at = start + len;
                broken = at;
            }
            None => at = start + 1,
        }
    }
    items.extend(Item::text(&text[broken..]));
    items
}

fn next_function(text: &str, from: usize) -> Option<usize> {
    let rest = &text[from..];
    ["<function", "<invoke"].iter().filter_map(|tag| rest.find(tag)).min().map(|at| from + at)
}

/// The name in a tag such as `<function=NAME>` or `<function name="NAME">`, and what follows it.
fn tag<'a>(text: &'a str, names: &[&str]) -> Option<(&'a str, &'a str)> {
    let rest = names.iter().find_map(|name| text.strip_prefix('<')?.strip_prefix(name))?;
    let (head, rest) = rest.split_once('>')?;
    let value = match head.strip_prefix('=') {
        Some(value) => value,
        None => head
            .strip_prefix(char::is_whitespace)?
            .trim()
            .strip_prefix("name")?
            .trim_start()
            .strip_prefix('=')?,
    };
    let name = value.trim().trim_matches(['"', '\'']);
    (!name.is_empty() && !name.contains(['<', '\n'])).then_some((name, rest))
}

fn function(text: &str, ended: bool, tools: &Tools) -> Option<(Call, usize)> {
    let close = if text.starts_with("<invoke") { "</invoke>" } else { "</function>" };
    let (name, mut rest) = tag(text, &["function", "invoke"])?;
    let mut arguments = Vec::new();
    let mut object = None;
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(close) {
            rest = after;
            break;
        }
        if rest.is_empty() || next_function(rest, 0) == Some(0) {
            if ended {
                break;
            }
            return None;
        }
        if let Some((key, after)) = tag(rest, &["parameter", "param"]) {
            let (value, after) = value(after, close, ended)?;
            let (json, kind) = typed(value, name, key, tools);
            insert(&mut arguments, Entry { key: key.to_owned(), json, kind });
            rest = after;
        } else if rest.starts_with('{') && arguments.is_empty() && object.is_none() {
            let mut cursor = Cursor::json(rest, Quotes::Exact);
            let mut json = String::new();
            write_object(&cursor.entries(1)?, &mut json);
            object = Some(json);
            rest = cursor.rest();
        } else {
            return None;
        }
    }
    let arguments = object.unwrap_or_else(|| {
        let mut json = String::new();
        write_object(&arguments, &mut json);
        json
    });
    Some((Call { name: name.to_owned(), arguments }, text.len() - rest.len()))
}

/// A parameter's text, and what follows its end tag, which may be missing before the next tag.
fn value<'a>(text: &'a str, close: &str, ended: bool) -> Option<(&'a str, &'a str)> {
    let end = ["</parameter>", "</param>"]
        .iter()
        .filter_map(|tag| text.find(tag).map(|at| (at, at + tag.len())))
        .min();
    let next = ["\n<parameter", "\n<param", close].iter().filter_map(|tag| text.find(tag)).min();
    let (end, after) = match (end, next) {
        (Some((end, after)), _) => (end, after),
        (None, Some(next)) => (next, next),
        (None, None) if ended => (text.len(), text.len()),
        (None, None) => return None,
    };
    let value = &text[..end];
    let value = value.strip_prefix("\r\n").or_else(|| value.strip_prefix('\n')).unwrap_or(value);
    let value = value.strip_suffix("\r\n").or_else(|| value.strip_suffix('\n')).unwrap_or(value);
    Some((value, &text[after..]))
}

/// The text of a parameter as the type its schema declares; without one, whatever but a string it can be.
fn typed(text: &str, tool: &str, key: &str, tools: &Tools) -> (String, Kind) {
    let types = tools.types(tool, key);
    let literal = literal::whole(text.trim()).filter(|(_, kind)| *kind != Kind::String && types.has(*kind));
    match literal {
        Some(literal) if !types.is_text() => literal,
        _ => (literal::quote_json(text), Kind::String),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn calls(text: &str, ended: bool) -> Vec<String> {
        let tools = Tools::from_json(&[json!({"name": "f", "parameters": {"properties": {
            "s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}}})])
        .unwrap();
        let show = |item| match item {
            Item::Call(call) => format!("{} {}", call.name, call.arguments),
            Item::Text(text) => text,
        };
        read(text, ended, &tools).into_iter().map(show).collect()
    }

    #[test]
    fn tags_are_calls() {
        for (text, expected) in [
            (
                "<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>",
                r#"f {"s":"12","n":12}"#,
            ),
            (
                "<function name=\"f\"><parameter name='o'>{\"a\": [True]}</parameter></function>",
                r#"f {"o":{"a":[true]}}"#,
            ),
            ("<function=g></function>", "g {}"),
            ("<invoke name=\"g\"><parameter name=\"x\">false</parameter></invoke>", r#"g {"x":false}"#),
            ("<function=g>{\"x\": 1}</function>", r#"g {"x":1}"#),
            (
                "<function=f><parameter=s>\n\n a <b> & \"c\"\n\n</parameter></function>",
                "f {\"s\":\"\\n a <b> & \\\"c\\\"\\n\"}",
            ),
            ("<function=f><parameter=n>many</parameter></function>", r#"f {"n":"many"}"#),
            (
                "<function=g><parameter=a>1\n<parameter=b>x</parameter></function>",
                r#"g {"a":"1\n<parameter=b>x"}"#,
            ),
            ("<function=g><parameter=x>\"q\"</parameter></function>", r#"g {"x":"\"q\""}"#),
        ] {
            assert_eq!(calls(text, false), [expected], "{text}");
        }
    }

    #[test]
    fn a_broken_one_keeps_its_siblings() {
        let text =
            "<function=g></function> <function=h oops <function=f><parameter=n>1</parameter></function>";
        assert_eq!(calls(text, true), ["g {}", "<function=h oops", r#"f {"n":1}"#]);
        assert_eq!(calls("<function=f><parameter=n>1</parameter>", true), [r#"f {"n":1}"#]);
        assert_eq!(
            calls("<function=f><parameter=n>1</parameter>", false),
            ["<function=f><parameter=n>1</parameter>"]
        );
    }
}
