use serde_json::{Map, Value, json};

use super::{Field, MOST, Need, Object, Shape, Tagged};

/// Schemas with names, as they were met.
#[derive(Debug, Default)]
pub(crate) struct Components(Map<String, Value>);

impl Components {
    /// The schemas by their names.
    pub(crate) fn into_schemas(self) -> Map<String, Value> {
        self.0
    }

    /// The place of a schema of that name, which is made when it is met for the first time.
    pub(crate) fn name(&mut self, name: &str, make: impl FnOnce(&mut Self) -> Value) -> Value {
        if !self.0.contains_key(name) {
            // Taken before its parts are met, which may be of its kind again.
            self.0.insert(name.to_owned(), Value::Null);
            let made = make(self);
            self.0.insert(name.to_owned(), made);
        }
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    /// Adds a schema under its name.
    pub(crate) fn add(&mut self, name: &str, schema: Value) {
        self.0.insert(name.to_owned(), schema);
    }
}

impl Shape {
    /// The JSON Schema of this shape.
    pub(crate) fn schema(&self, components: &mut Components) -> Value {
        match self {
            Self::Any => json!({"not": {"type": "null"}}),
            Self::Flag => json!({"type": "boolean"}),
            Self::Is(only) => json!({"type": "boolean", "enum": [only]}),
            Self::Text => json!({"type": "string"}),
            Self::Filled => json!({"type": "string", "minLength": 1}),
            Self::Of(class, ..) => json!({"type": "string", "pattern": format!("^[{class}]+$")}),
            Self::Words(words) => json!({"type": "string", "enum": words}),
            Self::Number(from, to) => json!({"type": "number", "minimum": from, "maximum": to}),
            Self::Integer(from, to) => json!({"type": "integer", "minimum": from, "maximum": to}),
            Self::List(each, least, most, _) => {
                let mut schema = json!({"type": "array", "items": each.schema(components)});
                if *least > 0 {
                    schema["minItems"] = (*least).into();
                }
                if *most < usize::MAX {
                    schema["maxItems"] = (*most).into();
                }
                schema
            }
            Self::Map(key, each, most) => {
                let mut schema = json!({"type": "object"});
                if !matches!(each, Self::Any) {
                    schema["additionalProperties"] = each.schema(components);
                }
                if let Some(key) = key {
                    schema["propertyNames"] = key.schema(components);
                }
                if *most < usize::MAX {
                    schema["maxProperties"] = (*most).into();
                }
                schema
            }
            Self::Object(object) => object.schema(components),
            Self::Tagged(tagged) => tagged.schema(components),
            Self::Either(shapes, _) => {
                let any: Vec<Value> = shapes.iter().map(|shape| shape.schema(components)).collect();
                json!({"anyOf": any})
            }
            Self::Named(name, shape) => components.name(name, |components| shape.schema(components)),
        }
    }
}

impl Field {
    fn schema(&self, components: &mut Components) -> Value {
        let own = match self.need {
            Need::Refused => json!({"type": "null"}),
            Need::Required => self.shape.schema(components),
            Need::Optional => or_null(self.shape.schema(components)),
        };
        if self.about.is_empty() {
            return own;
        }
        let text = match self.need {
            Need::Refused => format!("'{}' {}.", self.name, self.about),
            _ => self.about.to_owned(),
        };
        let mut schema = json!({"description": text});
        match (&mut schema, own) {
            (Value::Object(schema), Value::Object(own)) => schema.extend(own),
            (schema, own) => *schema = own,
        }
        schema
    }
}

/// The same schema for a value that may be null, too.
fn or_null(mut schema: Value) -> Value {
    if schema.get("not").is_some() {
        return json!({});
    }
    if let Some(Value::Array(any)) = schema.get_mut("anyOf") {
        any.push(json!({"type": "null"}));
        return schema;
    }
    let Some(Value::String(kind)) = schema.get("type").cloned() else {
        return json!({"anyOf": [schema, {"type": "null"}]});
    };
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.push(Value::Null);
    }
    schema["type"] = json!([kind, "null"]);
    schema
}

fn properties<'a>(
    fields: impl Iterator<Item = &'a Field>,
    components: &mut Components,
) -> (Map<String, Value>, Vec<&'a str>) {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for field in fields {
        properties.insert(field.name.to_owned(), field.schema(components));
        if field.need == Need::Required {
            required.push(field.name);
        }
    }
    (properties, required)
}

impl Object {
    fn schema(&self, components: &mut Components) -> Value {
        let (properties, required) = properties(self.keys(), components);
        let mut schema = json!({"type": "object", "properties": properties});
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if !self.open {
            schema["additionalProperties"] = false.into();
        }
        schema
    }
}

impl Tagged {
    fn schema(&self, components: &mut Components) -> Value {
        let variant = |(value, fields): &(&'static str, &'static [Field])| {
            let (others, others_required) = properties(fields.iter(), components);
            let is_default = self.default == Some(value);
            let tag = if is_default {
                json!({"enum": [value, null]})
            } else {
                json!({"type": "string", "enum": [value]})
            };
            let mut properties = Map::new();
            properties.insert(self.tag.to_owned(), tag);
            properties.extend(others);
            let mut required = if is_default { Vec::new() } else { vec![self.tag] };
            required.extend(others_required);
            json!({"type": "object", "properties": properties, "required": required})
        };
        let any: Vec<Value> = self.variants.iter().map(variant).collect();
        match <[Value; 1]>::try_from(any) {
            Ok([only]) => only,
            Err(any) => json!({"anyOf": any}),
        }
    }
}

const _: () = assert!(MOST == i64::MAX, "an integer without a limit has one in its schema all the same");
