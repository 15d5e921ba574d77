use super::declared::Tools;
use super::literal::{self, Cursor, Entry, Inside, Kind, Quotes, insert, is_name, write_object};

/// A call that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    /// A JSON object.
    pub(super) arguments: String,
}

/// A call at the beginning of a text, in Python's syntax or as a JSON object; and its length.
///
/// What follows must let it end there.
pub(super) fn read(text: &str, quotes: Quotes, tools: &Tools) -> Option<(Call, usize)> {
    let (call, len) =
        if text.starts_with('{') { object(text, quotes)? } else { pythonic(text, quotes, tools)? };
    literal::ends_call(text[len..].trim_start()).then_some((call, len))
}

/// The same where the end is known.
pub(super) fn read_whole(text: &str, tools: &Tools) -> Option<Call> {
    let read = if text.starts_with('{') {
        object(text, Quotes::Exact)
    } else {
        pythonic(text, Quotes::Exact, tools)
    };
    read.filter(|&(_, len)| len == text.len()).map(|(call, _)| call)
}

/// A call of a known tool of which the end is missing: its arguments are the beginning of a JSON object, of those that are complete.
pub(super) fn begun(text: &str, tools: &Tools) -> Option<Call> {
    let (name, arguments) =
        if text.starts_with('{') { object_begun(text)? } else { pythonic_begun(text, tools)? };
    tools.get(&name).is_some().then_some(Call { name, arguments })
}

fn pythonic_begun(text: &str, tools: &Tools) -> Option<(String, String)> {
    let mut cursor = Cursor::new(text, Quotes::Exact);
    let name = cursor.take_while(is_name);
    if !cursor.take('(') {
        return None;
    }
    let mut read = Vec::new();
    let complete = match arguments(&mut cursor, name, tools, &mut read) {
        Ok(()) => read.len(),
        Err(complete) => complete,
    };
    let mut out = String::new();
    write_object(&read[..complete.min(read.len())], &mut out);
    out.pop();
    Some((name.to_owned(), out))
}

/// As models write it: the name first, then the arguments, which are JSON already.
fn object_begun(text: &str) -> Option<(String, String)> {
    let after = |text: &'_ str, keys: &[&str]| {
        let rest = keys
            .iter()
            .find_map(|key| text.trim_start().strip_prefix('"')?.strip_prefix(key)?.strip_prefix('"'))?;
        rest.trim_start().strip_prefix(':').map(|rest| rest.trim_start().to_owned())
    };
    let rest = after(text.strip_prefix('{')?, &["name"])?;
    let (name, rest) = rest.strip_prefix('"')?.split_once('"')?;
    let arguments =
        rest.trim_start().strip_prefix(',').and_then(|rest| after(rest, &["arguments", "parameters"]));
    Some((name.to_owned(), arguments.unwrap_or_default()))
}

fn pythonic(text: &str, quotes: Quotes, tools: &Tools) -> Option<(Call, usize)> {
    let mut cursor = Cursor::new(text, quotes);
    let name = cursor.take_while(is_name);
    if name.is_empty() || !cursor.take('(') {
        return None;
    }
    let mut read = Vec::new();
    arguments(&mut cursor, name, tools, &mut read).ok()?;
    let mut out = String::new();
    write_object(&read, &mut out);
    Some((Call { name: name.to_owned(), arguments: out }, cursor.at))
}

/// Arguments up to behind the closing parenthesis; where there is none, how many are complete.
fn arguments(
    cursor: &mut Cursor<'_>,
    name: &str,
    tools: &Tools,
    arguments: &mut Vec<Entry>,
) -> Result<(), usize> {
    let (text, mut first, mut complete) = (cursor.text, true, 0);
    while !cursor.take(')') {
        if !first && !cursor.take(',') {
            return Err(complete);
        }
        complete = arguments.len();
        if !first && cursor.take(')') {
            break;
        }
        first = false;
        cursor.skip_space();
        let (key, after) = literal::parameter(cursor.rest()).ok_or(complete)?;
        cursor.at = text.len() - after.len();
        cursor.skip_space();
        let types = tools.types(name, key);
        let start = cursor.at;
        let mut json = String::new();
        let kind = match cursor.value(Inside::Call, 1, &mut json) {
            Some(kind @ (Kind::Number | Kind::Bool)) if types.means_text(kind) => {
                json = literal::quote_json(&text[start..cursor.at]);
                kind
            }
            Some(kind) => kind,
            None if types.is_text() => {
                cursor.at = start;
                json = literal::quote_json(bare(cursor).ok_or(complete)?);
                Kind::String
            }
            None => return Err(complete),
        };
        insert(arguments, Entry { key: key.to_owned(), json, kind });
    }
    Ok(())
}

/// A text that was not quoted, up to the end of the argument.
fn bare<'a>(cursor: &mut Cursor<'a>) -> Option<&'a str> {
    let text =
        cursor.take_while(|c| !matches!(c, ',' | '(' | ')' | '[' | ']' | '{' | '}' | '\'' | '"' | '='));
    let text = text.trim_end();
    (!text.is_empty()).then_some(text)
}

/// An object with `name` and `arguments`, perhaps within `OpenAI`'s wrapper.
fn object(text: &str, quotes: Quotes) -> Option<(Call, usize)> {
    let mut cursor = Cursor::json(text, quotes);
    let mut entries = cursor.entries(1)?;
    if let Some(at) = entries.iter().position(|e| e.key == "function" && e.kind == Kind::Object) {
        entries = Cursor::json(&entries[at].json, Quotes::Exact).entries(1)?;
    }
    let find = |keys: &[&str]| keys.iter().find_map(|key| entries.iter().find(|e| e.key == *key));
    let name = find(&["name", "function"]).filter(|e| e.kind == Kind::String)?;
    let name = literal::unquote(&name.json).filter(|name| !name.is_empty())?;
    let arguments = match find(&["arguments", "parameters"]) {
        None => "{}".to_owned(),
        Some(e) => match e.kind {
            Kind::Object => e.json.clone(),
            Kind::Null => "{}".to_owned(),
            Kind::String => {
                let text = literal::unquote(&e.json)?;
                literal::whole(&text).filter(|(_, kind)| *kind == Kind::Object)?.0
            }
            _ => return None,
        },
    };
    Some((Call { name, arguments }, cursor.at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> Tools {
        Tools::from_json(&[json!({"name": "f", "parameters": {"properties": {
            "s": {"type": "string"}, "n": {"type": "integer"}}}})])
        .unwrap()
    }

    fn exact(text: &str) -> Option<String> {
        read_whole(text, &tools()).map(|call| format!("{} {}", call.name, call.arguments))
    }

    fn guess(text: &str) -> Option<String> {
        let (call, len) = read(text, Quotes::Guess, &tools())?;
        (len == text.len()).then(|| format!("{} {}", call.name, call.arguments))
    }

    #[test]
    fn calls_are_read() {
        for (text, expected) in [
            ("g()", "g {}"),
            ("a.b_c.d ( x = 1 , y='z', )", r#"a.b_c.d {"x":1,"y":"z"}"#),
            ("g(from='a', class=[{'in': None}])", r#"g {"from":"a","class":[{"in":null}]}"#),
            ("g(month=07, day=08)", r#"g {"month":7,"day":8}"#),
            ("f(s=007, n=007)", r#"f {"s":"007","n":7}"#),
            ("f(s=True)", r#"f {"s":"True"}"#),
            ("f(s=None)", r#"f {"s":null}"#),
            ("f(s=New York, n=1)", r#"f {"s":"New York","n":1}"#),
            ("g(a=1, a=2)", r#"g {"a":2}"#),
            ("g(é='ü')", r#"g {"é":"ü"}"#),
            (r#"{"name": "g", "arguments": {"a": [1.50, "\/"]}}"#, r#"g {"a":[1.50,"/"]}"#),
            (
                r#"{"type": "function", "function": {"name": "g", "parameters": "{\"a\": 1}"}}"#,
                r#"g {"a":1}"#,
            ),
            (r#"{"name": "g"}"#, "g {}"),
            ("{'name': 'g', 'arguments': {'a': True}}", r#"g {"a":true}"#),
        ] {
            assert_eq!(exact(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "g(1)",
            "g(a)",
            "g(a=)",
            "g(a==1)",
            "g(a=1",
            "(a=1)",
            "g",
            "g(a=b)",
            "f(n=b)",
            r#"{"name": 1}"#,
            "{}",
        ] {
            assert_eq!(exact(text), None, "{text}");
        }
    }

    #[test]
    fn calls_without_an_end_have_what_is_complete() {
        for (text, expected) in [
            ("f(", "f {"),
            ("f(s='a", "f {"),
            ("f(s='a', n=1", r#"f {"s":"a""#),
            ("f(s='a', n=12, ", r#"f {"s":"a","n":12"#),
            (r#"{"name": "f""#, "f "),
            (r#"{"name": "f", "arguments": {"s": "a"#, r#"f {"s": "a"#),
        ] {
            let call = begun(text, &tools()).unwrap();
            assert_eq!(format!("{} {}", call.name, call.arguments), expected, "{text}");
        }
        for text in ["f", "g(", "f x", r#"{"name": "g"#, r#"{"x": 1"#, "see f(1"] {
            assert_eq!(begun(text, &tools()), None, "{text}");
        }
    }

    #[test]
    fn quotes_that_were_not_escaped_are_guessed() {
        for (text, expected) in [
            (r"g(c='grep 'a b' file', t=5)", r#"g {"c":"grep 'a b' file","t":5}"#),
            (r#"g(c="say "hi" to", d={"k": "a "b" c"})"#, r#"g {"c":"say \"hi\" to","d":{"k":"a \"b\" c"}}"#),
            (r"g(c='It's')", r#"g {"c":"It's"}"#),
            (r"g(c='python -c 'print('a', 'b')'')", r#"g {"c":"python -c 'print('a', 'b')'"}"#),
            (r"g(l=['it's', 'ok'])", r#"g {"l":["it's","ok"]}"#),
            (r#"{"name": "g", "arguments": {"a": "x "y" z"}}"#, r#"g {"a":"x \"y\" z"}"#),
        ] {
            assert_eq!(exact(text), None, "{text}");
            assert_eq!(guess(text).as_deref(), Some(expected), "{text}");
        }
    }
}
