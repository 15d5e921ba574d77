use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation, in `OpenAI`'s JSON shape.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`; templates may know others.
    pub role: String,
    /// A string, a list of parts, or nothing.
    #[serde(default)]
    pub content: Option<Value>,
    /// Calls the assistant made; their `function.arguments` may be an object or a string of JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<Value>>,
    /// The assistant's reasoning, without its marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Every other key, kept as it came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message with text content.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Value::String(content.into())), ..Self::default() }
    }

    /// A system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A user message.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// An assistant message.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// A tool's result.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new("tool", content)
    }

    /// The content's text: a string as it is, the text parts of a list joined.
    pub fn text(&self) -> String {
        match &self.content {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => {
                parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<String>()
            }
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openai_shape_round_trips() {
        let json = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}],"name":"bot","refusal":null}"#;
        let message: Message = serde_json::from_str(json).unwrap();
        assert_eq!(message.content, None);
        assert_eq!(message.extra.keys().collect::<Vec<_>>(), ["name", "refusal"]);
        assert_eq!(serde_json::to_string(&message).unwrap(), json);
    }

    #[test]
    fn text_joins_parts() {
        let json = r#"{"role":"user","content":[{"type":"text","text":"a "},{"type":"image"},{"type":"text","text":"b"}]}"#;
        let message: Message = serde_json::from_str(json).unwrap();
        assert_eq!(message.text(), "a b");
        assert_eq!(serde_json::from_str::<Message>(r#"{"role":"user"}"#).unwrap().text(), "");
        assert!(serde_json::from_str::<Message>(r#"{"content":"x"}"#).is_err());
    }
}
