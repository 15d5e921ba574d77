use serde_json::{Map, Value};

use crate::Error;
use crate::source::{Source, kind};

const CONFIG: &str = "tokenizer_config.json";
const SPECIALS: &str = "special_tokens_map.json";
const TEMPLATE: &str = "chat_template.jinja";

/// `tokenizer_config.json` with the special tokens that only `special_tokens_map.json` names.
pub(crate) fn config(source: &Source) -> Result<Option<Map<String, Value>>, Error> {
    let config = source.object(CONFIG)?;
    let Some(specials) = source.object(SPECIALS)? else { return Ok(config) };
    let mut config = config.unwrap_or_default();
    for key in ["bos_token", "eos_token", "pad_token", "unk_token"] {
        let absent = config.get(key).is_none_or(Value::is_null);
        if let (true, Some(value)) = (absent, specials.get(key)) {
            config.insert(key.to_owned(), value.clone());
        }
    }
    Ok(Some(config))
}

/// The chat template: `chat_template.jinja`, else `chat_template` of the tokenizer config, alone or named `default`.
pub(crate) fn chat_template(
    source: &Source,
    config: Option<&Map<String, Value>>,
) -> Result<Option<String>, Error> {
    if let Some(template) = source.text(TEMPLATE)? {
        return Ok(Some(template));
    }
    let wrong = |found: String| Error::Key {
        file: source.file_label(CONFIG),
        key: "chat_template".to_owned(),
        expected: "a string or a list of {name, template}",
        found,
    };
    match config.and_then(|config| config.get("chat_template")) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        Some(Value::Array(templates)) => {
            let mut named = Vec::new();
            for entry in templates {
                let text = |key: &str| entry.get(key).and_then(Value::as_str);
                match (text("name"), text("template")) {
                    (Some(name), Some(template)) => named.push((name, template)),
                    _ => return Err(wrong(entry.to_string())),
                }
            }
            let default = named.iter().find(|(name, _)| *name == "default");
            let chosen = default.or(if named.len() == 1 { named.first() } else { None });
            match chosen {
                Some((_, template)) => Ok(Some((*template).to_owned())),
                None if named.is_empty() => Ok(None),
                None => Err(wrong("a list without an entry named `default`".to_owned())),
            }
        }
        Some(other) => Err(wrong(kind(other).to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use anemone_tensor::Bytes;

    use super::*;

    fn source(files: &[(&str, &str)]) -> Source {
        let files =
            files.iter().map(|(n, t)| ((*n).to_owned(), Bytes::from(t.as_bytes().to_vec()))).collect();
        Source::Memory { name: "m".to_owned(), files }
    }

    fn template(files: &[(&str, &str)]) -> Result<Option<String>, Error> {
        let source = source(files);
        let config = config(&source)?;
        chat_template(&source, config.as_ref())
    }

    #[test]
    fn the_file_wins_over_the_key() {
        let key = (CONFIG, r#"{"chat_template": "key"}"#);
        assert_eq!(template(&[key]).unwrap().as_deref(), Some("key"));
        assert_eq!(template(&[key, (TEMPLATE, "file")]).unwrap().as_deref(), Some("file"));
        assert_eq!(template(&[]).unwrap(), None);
    }

    #[test]
    fn a_list_gives_its_default() {
        let list = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        assert_eq!(template(&[(CONFIG, list)]).unwrap().as_deref(), Some("d"));
        let none = r#"{"chat_template": [{"name": "a", "template": "t"}, {"name": "b", "template": "d"}]}"#;
        assert!(template(&[(CONFIG, none)]).unwrap_err().to_string().contains("key `chat_template`"));
        assert!(template(&[(CONFIG, r#"{"chat_template": 3}"#)]).is_err());
        assert!(template(&[(CONFIG, r#"{"chat_template": [{"name": "a"}]}"#)]).is_err());
    }

    #[test]
    fn specials_fill_only_what_is_absent() {
        let files = [
            (CONFIG, r#"{"bos_token": "<s>", "eos_token": null}"#),
            (SPECIALS, r#"{"bos_token": "<x>", "eos_token": "</s>", "pad_token": {"content": "<p>"}}"#),
        ];
        let config = config(&source(&files)).unwrap().unwrap();
        assert_eq!(config["bos_token"], "<s>");
        assert_eq!(config["eos_token"], "</s>");
        assert_eq!(config["pad_token"]["content"], "<p>");
    }
}
