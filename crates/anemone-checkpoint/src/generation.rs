use serde_json::{Map, Value};

use crate::Error;

/// Token ids and sampling defaults of `generation_config.json`; what the file does not say is `None`.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct GenerationConfig {
    /// Id that opens every sequence.
    pub bos_token_id: Option<u32>,
    /// Ids that end generation; the file may hold one id or a list.
    pub eos_token_ids: Option<Vec<u32>>,
    /// Padding id.
    pub pad_token_id: Option<u32>,
    /// Whether to sample; otherwise take the best token.
    pub do_sample: Option<bool>,
    /// Divisor of the logits, at least 0.
    pub temperature: Option<f32>,
    /// Candidates kept by rank; 0 keeps all.
    pub top_k: Option<u32>,
    /// Candidates kept by cumulated probability, in [0, 1].
    pub top_p: Option<f32>,
    /// Candidates kept by probability relative to the best, in [0, 1].
    pub min_p: Option<f32>,
    /// Penalty on tokens already seen, above 0; 1 is none.
    pub repetition_penalty: Option<f32>,
    /// Most tokens to generate.
    pub max_new_tokens: Option<u32>,
}

impl GenerationConfig {
    /// Reads the keys of a JSON object; a value of the wrong kind is an error that names `file` and the key.
    pub(crate) fn read(file: &str, map: &Map<String, Value>) -> Result<Self, Error> {
        let keys = Keys { file, map };
        Ok(Self {
            bos_token_id: keys.id("bos_token_id")?,
            eos_token_ids: keys.ids("eos_token_id")?,
            pad_token_id: keys.id("pad_token_id")?,
            do_sample: keys.get("do_sample", "true or false", Value::as_bool)?,
            temperature: keys.number("temperature", "a number of at least 0", |v| v >= 0.0)?,
            top_k: keys.id("top_k")?,
            top_p: keys.number("top_p", "a number in [0, 1]", |v| (0.0..=1.0).contains(&v))?,
            min_p: keys.number("min_p", "a number in [0, 1]", |v| (0.0..=1.0).contains(&v))?,
            repetition_penalty: keys.number("repetition_penalty", "a number above 0", |v| v > 0.0)?,
            max_new_tokens: keys.id("max_new_tokens")?,
        })
    }
}

/// The end-of-sequence ids of a config object; empty when it has none.
pub(crate) fn eos_ids(file: &str, map: &Map<String, Value>) -> Result<Vec<u32>, Error> {
    Ok(Keys { file, map }.ids("eos_token_id")?.unwrap_or_default())
}

struct Keys<'a> {
    file: &'a str,
    map: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn get<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match read(value) {
                Some(read) => Ok(Some(read)),
                None => Err(Error::Key {
                    file: self.file.to_owned(),
                    key: key.to_owned(),
                    expected,
                    found: value.to_string(),
                }),
            },
        }
    }

    fn id(&self, key: &str) -> Result<Option<u32>, Error> {
        self.get(key, "an integer from 0 to 4294967295", as_id)
    }

    fn ids(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.get(key, "a token id or a list of token ids", |value| match value {
            Value::Array(ids) => ids.iter().map(as_id).collect(),
            one => as_id(one).map(|id| vec![id]),
        })
    }

    fn number(
        &self,
        key: &str,
        expected: &'static str,
        valid: impl Fn(f32) -> bool,
    ) -> Result<Option<f32>, Error> {
        self.get(key, expected, |v| v.as_f64().map(|v| v as f32).filter(|&v| v.is_finite() && valid(v)))
    }
}

fn as_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<GenerationConfig, Error> {
        GenerationConfig::read("g.json", serde_json::from_str::<Value>(json).unwrap().as_object().unwrap())
    }

    #[test]
    fn one_id_or_a_list() {
        assert_eq!(read(r#"{"eos_token_id": 7}"#).unwrap().eos_token_ids, Some(vec![7]));
        assert_eq!(read(r#"{"eos_token_id": [7, 2]}"#).unwrap().eos_token_ids, Some(vec![7, 2]));
        let config =
            read(r#"{"eos_token_id": null, "temperature": 0.3, "top_k": 50, "do_sample": true}"#).unwrap();
        assert_eq!(config.eos_token_ids, None);
        assert_eq!((config.temperature, config.top_k, config.do_sample), (Some(0.3), Some(50), Some(true)));
    }

    #[test]
    fn wrong_values_name_the_key() {
        for (json, key) in [
            (r#"{"eos_token_id": "7"}"#, "eos_token_id"),
            (r#"{"eos_token_id": [7, -1]}"#, "eos_token_id"),
            (r#"{"bos_token_id": 4294967296}"#, "bos_token_id"),
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"top_p": 1.5}"#, "top_p"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
            (r#"{"temperature": 1e300}"#, "temperature"),
            (r#"{"do_sample": 1}"#, "do_sample"),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains(&format!("g.json: key `{key}` is")), "{error}");
        }
    }
}
