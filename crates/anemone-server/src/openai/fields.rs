mod unique;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use self::unique::Unique;
use super::refusal::{ApiError, Checked};
use crate::shape::{Problem, Shape, integer};

/// The fields of a request of a known shape; `null` counts as absent.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// The fields of a body that has the shape.
    pub(crate) fn parse(bytes: &[u8], shape: &Shape) -> Checked<Self> {
        let bad = |message: String| ApiError::new(axum::http::StatusCode::BAD_REQUEST, message);
        let Unique(value) = serde_json::from_slice(bytes)
            .map_err(|error| bad(format!("the request body is not valid JSON: {error}")))?;
        if !value.is_object() {
            return Err(bad("the request body must be an object".into()));
        }
        shape.check(&value)?;
        match value {
            Value::Object(map) => Ok(Self(map)),
            _ => Err(bad("the request body must be an object".into())),
        }
    }

    /// A field of any kind.
    pub(crate) fn value(&mut self, key: &str) -> Option<Value> {
        self.0.get_mut(key).map(Value::take).filter(|value| !value.is_null())
    }

    /// A field of the type its shape promises.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, key: &str) -> Checked<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let parsed = serde_json::from_value(value);
        parsed.map(Some).map_err(|error| ApiError::field(key, &format!("cannot be read: {error}")))
    }

    /// A text.
    pub(crate) fn text(&mut self, key: &str) -> Option<String> {
        match self.value(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn flag(&mut self, key: &str) -> Option<bool> {
        self.value(key)?.as_bool()
    }

    pub(crate) fn number(&mut self, key: &str) -> Option<f32> {
        self.value(key)?.as_f64().map(|number| number as f32)
    }

    pub(crate) fn integer(&mut self, key: &str) -> Option<i64> {
        integer(&self.value(key)?)?.try_into().ok()
    }

    /// An integer that counts something.
    pub(crate) fn count(&mut self, key: &str) -> Option<usize> {
        integer(&self.value(key)?)?.try_into().ok()
    }

    /// A list.
    pub(crate) fn list(&mut self, key: &str) -> Option<Vec<Value>> {
        match self.value(key) {
            Some(Value::Array(list)) => Some(list),
            _ => None,
        }
    }
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        let place = problem.place();
        if place.is_empty() {
            let message = format!("the request body {}", problem.text);
            return Self::new(axum::http::StatusCode::BAD_REQUEST, message);
        }
        Self::field(place, &problem.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Field, MOST, closed};

    const SHAPE: Shape = closed(&[&[
        Field::optional("t", Shape::Number(0.0, 2.0), ""),
        Field::optional("n", Shape::Integer(1, 8), ""),
        Field::optional("m", Shape::Integer(1, MOST), ""),
        Field::optional("d", Shape::Flag, ""),
        Field::optional("s", Shape::Text, ""),
        Field::refused("old", "is not supported; use 's'"),
    ]]);

    #[test]
    fn fields_are_read_once_and_named_when_wrong() {
        let all = r#"{"t": 1.5, "n": 3.0, "m": null, "d": true, "s": "x", "old": null}"#;
        let mut all = Fields::parse(all.as_bytes(), &SHAPE).unwrap();
        assert_eq!((all.number("t"), all.count("n"), all.count("m")), (Some(1.5), Some(3), None));
        assert_eq!((all.flag("d"), all.flag("d"), all.text("s").as_deref()), (Some(true), None, Some("x")));
        let wrong = |text: &str| {
            let error = Fields::parse(text.as_bytes(), &SHAPE).unwrap_err();
            (error.param, error.message)
        };
        for (text, param, message) in [
            (r#"{"n": 0}"#, "n", "'n' must be an integer from 1 to 8"),
            (r#"{"m": 1.5}"#, "m", "'m' must be an integer, 1 or more"),
            (r#"{"m": 1e30}"#, "m", "'m' must be an integer, 1 or more"),
            (r#"{"t": 3}"#, "t", "'t' must be a number from 0 to 2"),
            (r#"{"d": "1"}"#, "d", "'d' must be true or false"),
            (r#"{"old": 1}"#, "old", "'old' is not supported; use 's'"),
            (r#"{"e": null}"#, "e", "'e' is no field of this request; leave it out"),
        ] {
            assert_eq!(wrong(text), (Some(param.to_owned()), message.to_owned()));
        }
        assert!(wrong("[1]").1.contains("object"));
        assert!(wrong(r#"{"n": 1, "s": "x", "n": 2}"#).1.contains("the key 'n' is there twice at line 1"));
        assert!(wrong("{\"a\": NaN}").1.contains("line 1 column 7"));
        let deep = format!("{{\"a\": {}", "[".repeat(10_000));
        assert!(Fields::parse(deep.as_bytes(), &SHAPE).is_err());
    }
}
