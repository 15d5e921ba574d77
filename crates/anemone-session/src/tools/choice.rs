use std::convert::Infallible;
use std::str::FromStr;

use serde_json::Value;

use crate::{Error, Result};

/// Whether tools may or must be called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// None is called.
    None,
    /// At least one is called.
    Required,
    /// This one is called.
    Named(String),
}

impl ToolChoice {
    /// Reads `OpenAI`'s `tool_choice`: `"auto"`, `"none"`, `"required"` or `{"type": "function", "function": {"name": …}}`.
    pub fn from_json(value: &Value) -> Result<Self> {
        let named = value.get("function").unwrap_or(value).get("name").and_then(Value::as_str);
        match (value, value.as_str(), named) {
            (Value::Null, ..) | (_, Some("auto"), _) => Ok(Self::Auto),
            (_, Some("none"), _) => Ok(Self::None),
            (_, Some("required"), _) => Ok(Self::Required),
            (_, None, Some(name)) => Ok(Self::Named(name.to_owned())),
            _ => {
                let problem = "is neither \"auto\", \"none\", \"required\" nor an object that names a function; \
                               write one of these";
                Err(Error::Options { option: "tool_choice", problem: problem.into() })
            }
        }
    }
}

impl FromStr for ToolChoice {
    type Err = Infallible;

    /// `auto`, `none`, `required`, or a function's name.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "auto" => Self::Auto,
            "none" => Self::None,
            "required" => Self::Required,
            name => Self::Named(name.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn choices_are_read() {
        for (json, expected) in [
            (json!(null), ToolChoice::Auto),
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!("required"), ToolChoice::Required),
            (json!({"type": "function", "function": {"name": "f"}}), ToolChoice::Named("f".into())),
            (json!({"name": "f"}), ToolChoice::Named("f".into())),
        ] {
            assert_eq!(ToolChoice::from_json(&json).unwrap(), expected);
        }
        for bad in [json!("f"), json!(1), json!({}), json!({"function": {}})] {
            let e = ToolChoice::from_json(&bad).unwrap_err().to_string();
            assert!(e.starts_with("tool_choice: is neither"), "{e}");
        }
        assert_eq!("f".parse(), Ok(ToolChoice::Named("f".into())));
    }
}
