use serde_json::{Map, Value};

use crate::Error;

/// Typed reading of a configuration file: every failure names the file and the key.
#[derive(Debug, Clone)]
pub struct Config<'a> {
    map: &'a Map<String, Value>,
    file: &'static str,
    /// Dotted path of `map` inside the file, empty at the top.
    path: String,
}

impl<'a> Config<'a> {
    /// Largest count a config may name; keeps a hostile file from asking for absurd memory.
    pub const MAX: usize = 1 << 24;

    /// Reads from the top of a parsed `config.json`.
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self::of(map, "config.json")
    }

    /// Reads from the top of a parsed file of that name.
    pub fn of(map: &'a Map<String, Value>, file: &'static str) -> Self {
        Self { map, file, path: String::new() }
    }

    /// An error about `key`.
    pub fn error(&self, key: &str, problem: impl Into<String>) -> Error {
        Error::Config { file: self.file, key: format!("{}{key}", self.path), problem: problem.into() }
    }

    /// The value of a key that is present and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Whether a key is present and null.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// A nested object.
    pub fn object(&self, key: &str) -> Result<Option<Config<'a>>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let map =
            value.as_object().ok_or_else(|| self.error(key, format!("is {value}, expected an object")))?;
        Ok(Some(Self { map, file: self.file, path: format!("{}{key}.", self.path) }))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// A count from 1 to 2^24.
    pub fn count(&self, key: &str) -> Result<Option<usize>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(n) if (1..=Self::MAX as u64).contains(&n) => Ok(Some(n as usize)),
            _ => Err(self.error(key, format!("is {value}, expected a whole number from 1 to {}", Self::MAX))),
        }
    }

    /// The first of several spellings of a count that is present.
    pub fn count_of(&self, keys: &[&str]) -> Result<Option<usize>, Error> {
        for key in keys {
            if let Some(n) = self.count(key)? {
                return Ok(Some(n));
            }
        }
        Ok(None)
    }

    /// A count that must be present under one of its spellings.
    pub fn require(&self, keys: &[&str]) -> Result<usize, Error> {
        self.count_of(keys)?.ok_or_else(|| self.error(keys[0], "is missing; it must be a whole number"))
    }

    /// A number above zero, also as an f32.
    pub fn positive(&self, key: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(n) if (n as f32).is_normal() && n > 0.0 => Ok(Some(n)),
            _ => Err(self.error(key, format!("is {value}, expected a number above 0 that an f32 can hold"))),
        }
    }

    /// true or false.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.error(key, format!("is {value}, expected true or false")))
    }

    /// A string.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.error(key, format!("is {value}, expected a string")))
    }

    /// A list of strings.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let texts = value.as_array().and_then(|a| a.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        texts.map(Some).ok_or_else(|| self.error(key, "must be a list of strings"))
    }

    /// A list of indices below `limit`.
    pub fn indices(&self, key: &str, limit: usize) -> Result<Option<Vec<usize>>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let index = |v: &Value| v.as_u64().map(|n| n as usize).filter(|n| *n < limit);
        let indices = value.as_array().and_then(|a| a.iter().map(index).collect::<Option<Vec<_>>>());
        indices
            .map(Some)
            .ok_or_else(|| self.error(key, format!("must be a list of layer indices below {limit}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, read: impl Fn(&Config<'_>) -> Result<(), Error>) -> String {
        let value: Value = serde_json::from_str(json).unwrap();
        read(&Config::new(value.as_object().unwrap())).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_key_and_what_is_allowed() {
        assert_eq!(
            check(r#"{"n":0}"#, |c| c.count("n").map(drop)),
            "config.json: `n` is 0, expected a whole number from 1 to 16777216"
        );
        assert!(check(r#"{"n":-3}"#, |c| c.count("n").map(drop)).contains("`n` is -3"));
        assert!(check(r#"{"n":1e99}"#, |c| c.count("n").map(drop)).contains("`n` is 1e+99"));
        assert_eq!(
            check("{}", |c| c.require(&["a", "b"]).map(drop)),
            "config.json: `a` is missing; it must be a whole number"
        );
        for bad in ["\"x\"", "0", "-1", "1e300", "1e-300"] {
            let error = check(&format!(r#"{{"e":{bad}}}"#), |c| c.positive("e").map(drop));
            assert!(error.contains("expected a number above 0"), "{error}");
        }
        assert!(check(r#"{"t":1}"#, |c| c.flag("t").map(drop)).contains("expected true or false"));
        assert!(check(r#"{"l":[1]}"#, |c| c.texts("l").map(drop)).contains("list of strings"));
        assert!(check(r#"{"l":[9]}"#, |c| c.indices("l", 9).map(drop)).contains("below 9"));
        let nested = check(r#"{"a":{"b":false}}"#, |c| c.object("a")?.unwrap().count("b").map(drop));
        assert!(nested.contains("`a.b` is false"));
    }

    #[test]
    fn null_is_absent() {
        let value: Value = serde_json::from_str(r#"{"n":null}"#).unwrap();
        assert_eq!(Config::new(value.as_object().unwrap()).count("n").unwrap(), None);
    }
}
