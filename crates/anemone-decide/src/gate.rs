//! The least confidence an answer should have.

use crate::question::Question;
use crate::value::{Value, round4};
use crate::{Error, Result};

const NAME: &str = "min_confidence";
const BUCKETS: [&str; 12] = [
    "choice:2",
    "choice:3-5",
    "choice:6-10",
    "choice:11+",
    "score:2",
    "score:3-5",
    "score:6-10",
    "score:11+",
    "noul:2",
    "noul:3-5",
    "noul:6-10",
    "noul:11+",
];

/// A least confidence for every answer, or one by kind and number of options.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    default: Option<f64>,
    buckets: Vec<(String, f64)>,
}

impl Gate {
    /// One bound for every answer, from 0 to 1.
    pub fn new(bound: f64) -> Result<Self> {
        Self::parse(&Value::Float(bound))
    }

    /// Reads a number, or an object of `kind:options` (and `default`) to a number.
    pub fn parse(value: &Value) -> Result<Self> {
        let wrong = |problem: String| Error::Argument { name: NAME, problem };
        let Some(entries) = value.as_map() else {
            let bound = bound(value)
                .ok_or_else(|| wrong(format!("must be a float in [0.0, 1.0], got {}", value.quoted())))?;
            return Ok(Self { default: Some(bound), buckets: Vec::new() });
        };
        if entries.is_empty() {
            return Err(wrong(
                "is an empty object; name a bucket such as \"choice:3-5\", or \"default\"".to_owned(),
            ));
        }
        let mut gate = Self { default: None, buckets: Vec::new() };
        for (key, value) in entries {
            let bound = bound(value).ok_or_else(|| {
                wrong(format!("of '{key}' must be a float in [0.0, 1.0], got {}", value.quoted()))
            })?;
            if key == "default" {
                gate.default = Some(bound);
            } else if BUCKETS.contains(&key.as_str()) {
                gate.buckets.push((key.clone(), bound));
            } else {
                return Err(wrong(format!("names '{key}'; known are default, {}", BUCKETS.join(", "))));
            }
        }
        Ok(gate)
    }

    /// What it says of an answer with this confidence: fields to append. It is the confidence as answers show it that counts, and kinds
    /// that no entry names are let through.
    pub(crate) fn verdict(&self, question: &Question, confidence: f64) -> Vec<(String, Value)> {
        let bucket = question.bucket();
        let own = self.buckets.iter().find(|(key, _)| *key == bucket).map(|(_, bound)| *bound);
        let bound = own.or(self.default).unwrap_or(0.0);
        let mut fields = Vec::new();
        let low = round4(confidence).as_f64().is_some_and(|shown| shown < bound);
        if low {
            fields.push(("low_confidence".to_owned(), Value::Bool(true)));
        }
        let verdict = if low { "abstained" } else { "passed" };
        fields.push(("abstention".to_owned(), Value::text(verdict)));
        fields.push(("abstention_threshold".to_owned(), Value::Float(bound)));
        fields
    }
}

fn bound(value: &Value) -> Option<f64> {
    value.as_f64().filter(|v| (0.0..=1.0).contains(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_buckets() {
        let parse = |text: &str| Gate::parse(&Value::parse(text).unwrap());
        assert_eq!(parse("0.5").unwrap(), Gate { default: Some(0.5), buckets: Vec::new() });
        assert!(parse(r#"{"choice:2": 0, "default": 1}"#).is_ok());
        for (text, expected) in [
            ("2", "min_confidence must be a float in [0.0, 1.0], got 2"),
            ("true", "got True"),
            ("NaN", "got NaN"),
            ("\"x\"", "got 'x'"),
            ("{}", "empty object"),
            (r#"{"choice:4": 0.1}"#, "names 'choice:4'"),
            (r#"{"default": -1}"#, "of 'default'"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
    #[test]
    fn what_is_shown_is_what_counts() {
        let question = |text: &str| Question::parse("q", &Value::parse(text).unwrap()).unwrap();
        let (choice, noul) = (
            question(r#"{"type":"choice","instructions":"x","criteria":["a","b","c"]}"#),
            question(r#"{"type":"noul","instructions":"x"}"#),
        );
        let verdict = |gate: &str, question: &Question, confidence: f64| {
            let gate = Gate::parse(&Value::parse(gate).unwrap()).unwrap();
            Value::Map(gate.verdict(question, confidence)).to_compact()
        };
        let passed = |bound: &str| format!(r#"{{"abstention":"passed","abstention_threshold":{bound}}}"#);
        let low = |bound: &str| {
            format!(r#"{{"low_confidence":true,"abstention":"abstained","abstention_threshold":{bound}}}"#)
        };
        // Exactly the bound is enough, and so is what is written like it.
        assert_eq!(verdict("0.5", &noul, 0.5), passed("0.5"));
        assert_eq!(verdict("0.5", &noul, 0.49996), passed("0.5"));
        assert_eq!(verdict("0.5", &noul, 0.49994), low("0.5"));
        assert_eq!(verdict("0.50001", &noul, 0.50004), low("0.50001"));
        let map = r#"{"choice:3-5": 0.9, "default": 0.1}"#;
        assert_eq!(verdict(map, &choice, 0.8), low("0.9"));
        assert_eq!(verdict(map, &noul, 0.8), passed("0.1"));
        assert_eq!(verdict(r#"{"choice:3-5": 0.9}"#, &noul, 0.0), passed("0.0"));
    }
}
