use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::refusal::{ApiError, Checked};

/// The fields of a request that are still to be read; `null` counts as absent.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// The fields of a body.
    pub(crate) fn parse(bytes: &[u8]) -> Checked<Self> {
        let bad = |message: String| ApiError::new(axum::http::StatusCode::BAD_REQUEST, message);
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| bad(format!("the request body is not valid JSON: {error}")))?;
        let Value::Object(mut map) = value else {
            return Err(bad("the request body must be an object".into()));
        };
        map.retain(|_, value| !value.is_null());
        Ok(Self(map))
    }

    /// A field of any kind.
    pub(crate) fn value(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key)
    }

    /// A field of a type, which `expected` tells in words.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, key: &str, expected: &str) -> Checked<Option<T>> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        let parsed = serde_json::from_value(value);
        parsed.map(Some).map_err(|_| ApiError::field(key, &format!("must be {expected}")))
    }

    pub(crate) fn flag(&mut self, key: &str) -> Checked<bool> {
        Ok(self.take(key, "true or false")?.unwrap_or(false))
    }

    /// A number within a range.
    pub(crate) fn number(&mut self, key: &str, range: RangeInclusive<f32>) -> Checked<Option<f32>> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        let value: Option<f32> = self.take(key, &expected)?;
        match value.filter(|v| !range.contains(v)) {
            Some(_) => Err(ApiError::field(key, &format!("must be {expected}"))),
            None => Ok(value),
        }
    }

    /// An integer within a range.
    pub(crate) fn count(&mut self, key: &str, range: RangeInclusive<usize>) -> Checked<Option<usize>> {
        let expected = if *range.end() == usize::MAX {
            format!("an integer, {} or more", range.start())
        } else {
            format!("an integer from {} to {}", range.start(), range.end())
        };
        let value: Option<usize> = self.take(key, &expected)?;
        match value.filter(|v| !range.contains(v)) {
            Some(_) => Err(ApiError::field(key, &format!("must be {expected}"))),
            None => Ok(value),
        }
    }

    /// Fields that change nothing here, nor would it be noticed.
    pub(crate) fn ignore(&mut self, keys: &[&str]) {
        for key in keys {
            self.0.remove(*key);
        }
    }

    /// Refuses a field that is not supported.
    pub(crate) fn refuse(&mut self, key: &str, why: &str) -> Checked<()> {
        if self.0.remove(key).is_some() { Err(ApiError::field(key, why)) } else { Ok(()) }
    }

    /// Errors when a field is left that nobody knows.
    pub(crate) fn finish(self) -> Checked<()> {
        match self.0.keys().next() {
            Some(key) => Err(ApiError::field(key.as_str(), "is no field of this request; leave it out")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn fields_are_read_once_and_named_when_wrong() {
        let mut all = fields(r#"{"a": 1.5, "b": 3, "c": null, "d": true, "e": "x"}"#);
        assert_eq!(all.number("a", 0.0..=2.0).unwrap(), Some(1.5));
        assert_eq!(all.count("b", 1..=5).unwrap(), Some(3));
        assert_eq!(all.count("c", 1..=5).unwrap(), None);
        assert!(all.flag("d").unwrap() && !all.flag("d").unwrap());
        let left = all.finish().unwrap_err();
        assert_eq!(
            (left.param.as_deref(), left.message.as_str()),
            (Some("e"), "'e' is no field of this request; leave it out")
        );
        let wrong = |text, read: fn(&mut Fields) -> ApiError| read(&mut fields(text)).message;
        assert_eq!(
            wrong(r#"{"n": 0}"#, |f| f.count("n", 1..=8).unwrap_err()),
            "'n' must be an integer from 1 to 8"
        );
        assert_eq!(
            wrong(r#"{"n": 1.5}"#, |f| f.count("n", 1..=usize::MAX).unwrap_err()),
            "'n' must be an integer, 1 or more"
        );
        assert_eq!(
            wrong(r#"{"t": 3}"#, |f| f.number("t", 0.0..=2.0).unwrap_err()),
            "'t' must be a number from 0 to 2"
        );
        assert_eq!(wrong(r#"{"t": "1"}"#, |f| f.flag("t").unwrap_err()), "'t' must be true or false");
        assert!(Fields::parse(b"[1]").unwrap_err().message.contains("object"));
        assert!(Fields::parse(b"{\"a\": NaN}").unwrap_err().message.contains("line 1 column 7"));
        let deep = format!("{{\"a\": {}", "[".repeat(10_000));
        assert!(Fields::parse(deep.as_bytes()).is_err());
    }
}
