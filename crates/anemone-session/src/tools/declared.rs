use serde_json::Value;

use super::literal::{Kind, is_name};
use crate::{Error, Result};

/// A function offered to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The name calls use.
    pub name: String,
    /// The JSON Schema of its arguments, an object; `{}` when none was given.
    pub parameters: Value,
}

/// The functions offered to the model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tools(Vec<Tool>);

impl<'a> IntoIterator for &'a Tools {
    type Item = &'a Tool;
    type IntoIter = std::slice::Iter<'a, Tool>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Tools {
    /// Reads tools in `OpenAI`'s shape or as bare function objects, which may be JSON text.
    ///
    /// Errors name the place; two tools of the same name are an error too.
    pub fn from_json(tools: &[Value]) -> Result<Self> {
        let mut read: Vec<Tool> = Vec::with_capacity(tools.len());
        for (at, tool) in tools.iter().enumerate() {
            let error = |key: &str, problem: &str| Error::Options {
                option: "tools",
                problem: format!("tools[{at}]{key} {problem}"),
            };
            let parsed;
            let tool = match tool.as_str() {
                Some(text) => {
                    parsed = serde_json::from_str::<Value>(text)
                        .map_err(|e| error("", &format!("is text that is not JSON ({e}); give an object")))?;
                    &parsed
                }
                None => tool,
            };
            let function = tool.get("function").unwrap_or(tool);
            let name = match function.get("name") {
                Some(Value::String(name)) if !name.trim().is_empty() => {
                    if let Some(strange) = name.chars().find(|&c| !is_name(c)) {
                        let problem = format!(
                            "{name:?} has {strange:?}, which no call can be written with; use letters, digits and _ - . / :"
                        );
                        return Err(error(".name", &problem));
                    }
                    name.clone()
                }
                Some(_) => {
                    return Err(error(".name", "is not a name; write the function's name as a string"));
                }
                None => return Err(error(".name", "is missing; give each function a name")),
            };
            let parameters = match function.get("parameters") {
                None | Some(Value::Null) => Value::Object(serde_json::Map::new()),
                Some(schema @ Value::Object(_)) => schema.clone(),
                Some(_) => {
                    return Err(error(".parameters", "is not an object; write the arguments' JSON Schema"));
                }
            };
            if let Some(earlier) = read.iter().position(|tool| tool.name == name) {
                let problem = format!("is {name:?} as in tools[{earlier}]; give each function its own name");
                return Err(error(".name", &problem));
            }
            read.push(Tool { name, parameters });
        }
        Ok(Self(read))
    }

    /// Whether nothing is offered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tools, in the order they were given.
    pub fn iter(&self) -> std::slice::Iter<'_, Tool> {
        self.0.iter()
    }

    /// The tool of that name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// The types a parameter may have; all where nothing is declared.
    pub(super) fn types(&self, tool: &str, parameter: &str) -> Types {
        let schema = self.get(tool).and_then(|tool| tool.parameters.get("properties")?.get(parameter));
        schema.map_or(Types::ANY, |schema| Types::of(schema, 8))
    }
}

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const ANY: Self = Self(0x3f);

    fn one(kind: Kind) -> Self {
        Self(1 << kind as u8)
    }

    pub(super) fn has(self, kind: Kind) -> bool {
        self.0 & Self::one(kind).0 != 0
    }

    /// Whether a value that is not a string can only be meant as one.
    pub(super) fn means_text(self, kind: Kind) -> bool {
        self.has(Kind::String) && !self.has(kind)
    }

    pub(super) fn is_text(self) -> bool {
        self == Self::one(Kind::String)
    }

    fn of(schema: &Value, depth: usize) -> Self {
        let mut types = Self::ANY;
        match schema.get("type") {
            Some(Value::String(name)) => types = Self::named(name),
            Some(Value::Array(names)) => {
                types = union(names.iter().map(|n| Self::named(n.as_str().unwrap_or_default())));
            }
            _ => {}
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            types = Self(types.0 & union(values.iter().map(Self::of_value)).0);
        }
        if let Some(value) = schema.get("const") {
            types = Self(types.0 & Self::of_value(value).0);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(schemas)) = schema.get(key).filter(|_| depth > 0) {
                types = Self(types.0 & union(schemas.iter().map(|s| Self::of(s, depth - 1))).0);
            }
        }
        types
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::one(Kind::String),
            "number" | "integer" => Self::one(Kind::Number),
            "boolean" => Self::one(Kind::Bool),
            "null" => Self::one(Kind::Null),
            "array" => Self::one(Kind::Array),
            "object" => Self::one(Kind::Object),
            _ => Self::ANY,
        }
    }

    fn of_value(value: &Value) -> Self {
        Self::one(match value {
            Value::String(_) => Kind::String,
            Value::Number(_) => Kind::Number,
            Value::Bool(_) => Kind::Bool,
            Value::Null => Kind::Null,
            Value::Array(_) => Kind::Array,
            Value::Object(_) => Kind::Object,
        })
    }
}

fn union(sets: impl Iterator<Item = Types>) -> Types {
    Types(sets.fold(0, |all, set| all | set.0))
}

/// Whether a value of the schema may be a string.
pub(crate) fn may_be_text(schema: &Value) -> bool {
    Types::of(schema, 8).has(Kind::String)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_shape_is_read() {
        let tools = Tools::from_json(&[
            json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}),
            json!({"name": "g"}),
            json!("{\"name\": \"h\", \"parameters\": null}"),
        ])
        .unwrap();
        assert_eq!(tools.iter().map(|t| &*t.name).collect::<Vec<_>>(), ["f", "g", "h"]);
        assert!(tools.types("f", "a").is_text() && tools.types("f", "b") == Types::ANY);
        assert_eq!(tools.get("g").unwrap().parameters, json!({}));
    }

    #[test]
    fn errors_name_the_place() {
        for (bad, place) in [
            (json!([{"name": "f"}, {"function": {}}]), "tools: tools[1].name is missing"),
            (json!([{"name": ""}]), "tools: tools[0].name is not a name"),
            (json!([{"name": "a b"}]), "tools: tools[0].name \"a b\" has ' ', which no call"),
            (json!([{"name": "größe"}, {"name": "f(\n"}]), "tools: tools[1].name \"f(\\n\" has '('"),
            (json!([{"name": "f", "parameters": []}]), "tools: tools[0].parameters is not an object"),
            (json!(["{"]), "tools: tools[0] is text that is not JSON"),
            (json!([{"name": "f"}, {"name": "f"}]), "tools: tools[1].name is \"f\" as in tools[0]"),
            (json!([3]), "tools: tools[0].name is missing"),
        ] {
            let e = Tools::from_json(bad.as_array().unwrap()).unwrap_err().to_string();
            assert!(e.starts_with(place), "{e}");
        }
    }

    #[test]
    fn types_are_gathered() {
        let of = |schema| Types::of(&schema, 8);
        assert!(of(json!({"type": "string"})).is_text());
        assert!(of(json!({"enum": ["a", "b"]})).is_text());
        assert!(of(json!({"type": ["string", "null"]})).means_text(Kind::Number));
        assert!(!of(json!({"type": ["string", "integer"]})).means_text(Kind::Number));
        assert!(of(json!({"anyOf": [{"const": "a"}, {"type": "null"}]})).has(Kind::Null));
        assert_eq!(of(json!(true)), Types::ANY);
    }
}
