use std::io;
use std::path::Path;

use anemone_decide::{Preset, Question, Value};
use anyhow::{Context, Result, bail};

use crate::files;

/// Questions, and the name the state goes under.
#[derive(Debug, Clone, Default)]
pub(in crate::commands) struct Asked {
    pub(in crate::commands) questions: Vec<Question>,
    /// The questions as they were given.
    pub(in crate::commands) definitions: Option<Value>,
    state_key: Option<String>,
}

impl Asked {
    pub(in crate::commands) fn parse(value: &Value) -> Result<Self> {
        // A question may be called `questions`; its definition has a type.
        let wrapped =
            value.get("questions").filter(|inner| inner.as_map().is_some() && inner.get("type").is_none());
        let state_key = match value.get("state_key").filter(|_| wrapped.is_some()) {
            None | Some(Value::Null) => None,
            Some(Value::Text(key)) => Some(key.clone()),
            Some(other) => bail!("`state_key` is {}, expected a string", other.kind()),
        };
        let definitions = wrapped.unwrap_or(value);
        let questions = Question::parse_all(definitions)?;
        Ok(Self { questions, definitions: Some(definitions.clone()), state_key })
    }

    /// A ready-made set.
    pub(super) fn preset(name: &str) -> Result<Self> {
        let preset = Preset::named(name)?;
        let questions = Question::parse_all(&preset.questions)?;
        Ok(Self { questions, definitions: Some(preset.questions), state_key: Some(preset.state_key) })
    }

    /// The state under the name the questions call it by; an object has its names.
    pub(in crate::commands) fn place(&self, state: Value) -> Value {
        match &self.state_key {
            Some(key) if state.as_map().is_none() => Value::Map(vec![(key.clone(), state)]),
            _ => state,
        }
    }
}

/// Questions given as JSON or as the name of a file.
pub(in crate::commands) fn questions(given: &str) -> Result<Asked> {
    let inline = given.trim_start().starts_with(['{', '[']);
    let label = if inline { "--questions".to_owned() } else { format!("--questions {given}") };
    let text = if inline { given.to_owned() } else { files::read_text("--questions", Path::new(given))? };
    let value = Value::parse(&text).with_context(|| format!("{label}: not JSON"))?;
    let asked = Asked::parse(&value).with_context(|| label.clone())?;
    super::ensure_one(asked.questions.len(), &label)?;
    Ok(asked)
}

/// A state given as text, as `@FILE` or as `-`; an object or list of JSON unless it is to be text.
pub(in crate::commands) fn state(given: &str, text: bool) -> Result<Value> {
    let content = match given.strip_prefix('@') {
        Some(path) => files::read_text("--state", Path::new(path))?,
        None if given == "-" => files::read_all("--state -", io::stdin())?,
        None => given.to_owned(),
    };
    // A text that merely begins with a bracket is no mistake.
    let json = (!text && content.trim_start().starts_with(['{', '['])).then(|| Value::parse(content.trim()));
    Ok(json.and_then(Result::ok).unwrap_or(Value::Text(content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_json_or_text() {
        assert_eq!(state(r#" {"a": 1}"#, false).unwrap().to_compact(), r#"{"a":1}"#);
        assert_eq!(state(r#"{"a": 1}"#, true).unwrap(), Value::text(r#"{"a": 1}"#));
        assert_eq!(state("[sic] 3", false).unwrap(), Value::text("[sic] 3"));
        assert_eq!(state("3", false).unwrap(), Value::text("3"));
    }

    #[test]
    fn questions_may_name_the_states_key() {
        let inner = r#"{"q": {"type": "noul", "instructions": "Is `body` angry?"}}"#;
        let asked = questions(&format!(r#"{{"questions": {inner}, "state_key": "body"}}"#)).unwrap();
        assert_eq!(asked.place(Value::text("x")).to_compact(), r#"{"body":"x"}"#);
        assert_eq!(questions(inner).unwrap().place(Value::text("x")), Value::text("x"));
        let named = r#"{"questions": {"type": "noul", "instructions": "x"}}"#;
        assert_eq!(questions(named).unwrap().questions[0].id, "questions");
        assert!(questions("{}").unwrap_err().to_string().contains("ask at least one"));
        assert!(format!("{:#}", questions("{nope").unwrap_err()).contains("at byte 1"));
    }
}
