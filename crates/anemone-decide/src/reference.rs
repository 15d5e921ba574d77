//! Recorded rows and answers of a decision model, for a converted one to be compared with.

use std::collections::BTreeMap;

use crate::answer::Answer;
use crate::decider::{Decision, Decisions};
use crate::question::Question;
use crate::value::Value;
use crate::{Error, Result};

/// The file a checkpoint in one file keeps its weights in.
const WEIGHTS: &str = "model.safetensors";

/// What a model answered, and which one it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// Its name.
    pub model: String,
    /// SHA-256 of the files it was read from, by name; the weights' at least.
    pub sha256: BTreeMap<String, String>,
    /// Tokens a row was allowed, when not the model's own limit.
    pub max_len: Option<usize>,
    /// What was asked.
    pub cases: Vec<RecordedCase>,
}

/// A state, questions about it and their rows.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedCase {
    /// Its name.
    pub name: String,
    /// The state.
    pub state: Value,
    /// The questions, in order.
    pub questions: Vec<Question>,
    /// The row of each.
    pub rows: Vec<RecordedRow>,
}

/// A question's row and its scores.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRow {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Place of each option's marker.
    pub markers: Vec<usize>,
    /// A score for each option, in slot order.
    pub logits: Vec<f32>,
    /// A score for each action.
    pub action_logits: Vec<f32>,
    /// What was read, where it was recorded.
    pub usage: Option<Value>,
    /// The answer, where it was recorded.
    pub answer: Option<Value>,
}

impl Reference {
    /// Reads a reference: `source_weights_sha256` or `source_files_sha256`, and `cases` of `state`, `questions`, `items` (`ids`,
    /// `markers`, `qtype`), `logits` and `action_logits` in the questions' order; `answers` and an item's `usage` may be absent.
    pub fn parse(text: &str) -> Result<Self> {
        let value = Value::parse(text)?;
        let at = At(String::new());
        let mut sha256 = BTreeMap::new();
        if let Some(files) = value.get("source_files_sha256") {
            let entries = files.as_map().ok_or_else(|| at.wrong("source_files_sha256", "an object"))?;
            for (name, hash) in entries {
                sha256.insert(name.clone(), at.key("source_files_sha256").text(hash, name)?.to_owned());
            }
        }
        if let Some(hash) = value.get("source_weights_sha256") {
            sha256.insert(WEIGHTS.to_owned(), at.text(hash, "source_weights_sha256")?.to_owned());
        }
        if sha256.is_empty() {
            return Err(at.wrong("source_weights_sha256", "the SHA-256 of the weights it was recorded from"));
        }
        let max_len = match value.get("max_len") {
            None | Some(Value::Null) => None,
            Some(n) => Some(n.as_usize().ok_or_else(|| at.wrong("max_len", "a number of tokens"))?),
        };
        let cases = at.list(&value, "cases")?;
        let cases =
            cases.iter().enumerate().map(|(i, case)| RecordedCase::read(case, &At(format!("cases[{i}]."))));
        let cases = cases.collect::<Result<Vec<_>>>()?;
        if cases.iter().all(|case| case.rows.is_empty()) {
            return Err(at.wrong("cases", "at least one question"));
        }
        let model = value.get("model").and_then(Value::as_str).unwrap_or("no name").to_owned();
        Ok(Self { model, sha256, max_len, cases })
    }

    /// The object [`Reference::parse`] reads, of answers that were given: for each case its name, its state, the questions'
    /// definitions and the decisions.
    pub fn record(
        model: &str,
        recorded_with: &str,
        sha256: &BTreeMap<String, String>,
        max_len: Option<usize>,
        cases: &[(String, Value, Value, Decisions)],
    ) -> Value {
        let entry = |key: &str, value: Value| (key.to_owned(), value);
        let hashes = sha256.iter().map(|(name, hash)| (name.clone(), Value::text(hash))).collect();
        let mut fields =
            vec![entry("model", Value::text(model)), entry("reference", Value::text(recorded_with))];
        if let Some(hash) = sha256.get(WEIGHTS) {
            fields.push(entry("source_weights_sha256", Value::text(hash)));
        }
        fields.push(entry("source_files_sha256", Value::Map(hashes)));
        fields.extend(max_len.map(|n| entry("max_len", Value::int(n as i128))));
        let case = |(name, state, questions, decisions): &(String, Value, Value, Decisions)| {
            let floats =
                |list: &[f32]| Value::List(list.iter().map(|v| Value::Float(f64::from(*v))).collect());
            let each = |of: &dyn Fn(&Decision) -> Value| Value::List(decisions.0.iter().map(of).collect());
            let kinds = Question::parse_all(questions).unwrap_or_default();
            let kind = |id: &str| kinds.iter().find(|q| q.id == id).map_or(0, |q| q.kind.index());
            let item = |d: &Decision| {
                let ids = d.prompt.ids.iter().map(|id| Value::int(*id)).collect();
                let markers = d.prompt.markers.iter().map(|m| Value::int(*m as i128)).collect();
                Value::Map(vec![
                    entry("ids", Value::List(ids)),
                    entry("markers", Value::List(markers)),
                    entry("qtype", Value::int(kind(&d.id) as i128)),
                    entry("usage", Decisions(vec![d.clone()]).usage()),
                ])
            };
            let answers = decisions.0.iter().map(|d| (d.id.clone(), d.answer.to_value())).collect();
            Value::Map(vec![
                entry("name", Value::text(name)),
                entry("state", state.clone()),
                entry("questions", questions.clone()),
                entry("items", each(&item)),
                entry("logits", each(&|d| floats(&d.scores.logits))),
                entry("action_logits", each(&|d| floats(&d.scores.action_logits))),
                entry("answers", Value::Map(answers)),
            ])
        };
        fields.push(entry("cases", Value::List(cases.iter().map(case).collect())));
        Value::Map(fields)
    }
}

impl RecordedCase {
    fn read(case: &Value, at: &At) -> Result<Self> {
        let name = case.get("name").and_then(Value::as_str).unwrap_or(at.0.trim_end_matches('.')).to_owned();
        let state = case.get("state").ok_or_else(|| at.wrong("state", "the state that was read"))?.clone();
        let questions = case.get("questions").ok_or_else(|| at.wrong("questions", "the questions asked"))?;
        let questions = Question::parse_all(questions).map_err(|error| Error::Reference {
            at: format!("{}questions", at.0),
            problem: error.to_string(),
        })?;
        let lists = ["items", "logits", "action_logits"].map(|key| at.list(case, key));
        let [items, logits, actions] = lists;
        let (items, logits, actions) = (items?, logits?, actions?);
        for (key, list) in [("items", items), ("logits", logits), ("action_logits", actions)] {
            if list.len() != questions.len() {
                return Err(at.wrong(key, &format!("{} entries, one for each question", questions.len())));
            }
        }
        let row = |(i, question): (usize, &Question)| {
            let item = At(format!("{}items[{i}].", at.0));
            let ids = item.list(&items[i], "ids")?.iter().map(|id| u32::try_from(id.as_usize()?).ok());
            let ids: Option<Vec<u32>> = ids.collect();
            let ids = ids.filter(|ids| !ids.is_empty()).ok_or_else(|| item.wrong("ids", "token ids"))?;
            let markers = item.list(&items[i], "markers")?.iter().map(Value::as_usize);
            let markers: Option<Vec<usize>> = markers.collect();
            let inside =
                |m: &Vec<usize>| m.len() == question.options.len() && m.iter().all(|m| *m < ids.len());
            let markers = markers.filter(inside).ok_or_else(|| {
                item.wrong(
                    "markers",
                    &format!("{} places of ids, one for each option", question.options.len()),
                )
            })?;
            if items[i].get("qtype").and_then(Value::as_usize) != Some(question.kind.index()) {
                return Err(
                    item.wrong("qtype", &format!("{}, as the question's `type`", question.kind.index()))
                );
            }
            let floats = |key: &str, list: &[Value], least: usize, most: usize| {
                let numbers: Option<Vec<f32>> =
                    list[i].as_list().and_then(|l| l.iter().map(|v| v.as_f64().map(|v| v as f32)).collect());
                let right =
                    |v: &Vec<f32>| (least..=most).contains(&v.len()) && v.iter().all(|v| v.is_finite());
                let asked = if least == most {
                    format!("{least} finite numbers")
                } else {
                    "finite numbers".to_owned()
                };
                numbers.filter(right).ok_or_else(|| at.wrong(&format!("{key}[{i}]"), &asked))
            };
            let options = question.options.len();
            Ok(RecordedRow {
                logits: floats("logits", logits, options, options)?,
                action_logits: floats("action_logits", actions, 1, usize::MAX)?,
                usage: items[i].get("usage").cloned(),
                answer: case.get("answers").and_then(|answers| answers.get(&question.id)).cloned(),
                ids,
                markers,
            })
        };
        let rows = questions.iter().enumerate().map(row).collect::<Result<_>>()?;
        Ok(Self { name, state, questions, rows })
    }
}

impl RecordedRow {
    /// Whether the recorded answer, if there is one, is the one given, to the fourth decimal.
    pub fn agrees(&self, answer: &Answer) -> bool {
        let Some(recorded) = &self.answer else { return true };
        let ours = answer.to_value();
        ["noul", "score", "probabilities", "action"].into_iter().all(|key| {
            match (recorded.get(key), ours.get(key)) {
                (None, _) => true,
                (Some(a), Some(b)) => near(a, b),
                (Some(_), None) => false,
            }
        })
    }
}

/// Equal but for one in the fourth decimal of a number.
fn near(a: &Value, b: &Value) -> bool {
    match (a.as_map(), b.as_map()) {
        (Some(a), Some(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k == l && near(a, b))
        }
        _ => a.as_f64().zip(b.as_f64()).map_or(a == b, |(a, b)| (a - b).abs() < 1.5e-4),
    }
}

/// Where in the file something is.
struct At(String);

impl At {
    fn key(&self, key: &str) -> Self {
        Self(format!("{}{key}.", self.0))
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        let problem = format!("is not {expected}; record the reference again with validate --record");
        Error::Reference { at: format!("{}{key}", self.0), problem }
    }

    fn text<'v>(&self, value: &'v Value, key: &str) -> Result<&'v str> {
        value.as_str().ok_or_else(|| self.wrong(key, "a string"))
    }

    fn list<'v>(&self, value: &'v Value, key: &str) -> Result<&'v [Value]> {
        value.get(key).and_then(Value::as_list).ok_or_else(|| self.wrong(key, "a list"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"model": "m", "source_weights_sha256": "abc", "cases": [{"name": "one", "state": "s",
        "questions": {"q": {"type": "noul", "instructions": "?"}}, "items": [{"ids": [1, 2, 3], "markers": [1, 2], "qtype": 2}],
        "logits": [[0.5, 1]], "action_logits": [[2, -1.5]]}]}"#;

    #[test]
    fn what_is_wrong_is_named() {
        let reference = Reference::parse(TEXT).unwrap();
        assert_eq!(reference.sha256["model.safetensors"], "abc");
        let row = &reference.cases[0].rows[0];
        assert_eq!(
            (&row.ids[..], &row.markers[..], &row.logits[..]),
            (&[1, 2, 3][..], &[1, 2][..], &[0.5, 1.0][..])
        );
        for (from, to, expected) in [
            (r#""source_weights_sha256": "abc", "#, "", "source_weights_sha256 is not the SHA-256"),
            (r#""abc""#, "3", "source_weights_sha256 is not a string"),
            (r#""state": "s","#, "", "cases[0].state is not the state"),
            (r#""noul""#, r#""what""#, "cases[0].questions"),
            ("[1, 2, 3]", "[1, -2, 3]", "cases[0].items[0].ids is not token ids"),
            ("[1, 2, 3]", "[]", "cases[0].items[0].ids is not token ids"),
            ("[1, 2]", "[1, 3]", "cases[0].items[0].markers is not 2 places"),
            ("[1, 2]", "[1]", "cases[0].items[0].markers is not 2 places"),
            (r#""qtype": 2"#, r#""qtype": 0"#, "cases[0].items[0].qtype is not 2"),
            ("[[0.5, 1]]", "[[0.5]]", "cases[0].logits[0] is not 2 finite numbers"),
            ("[[0.5, 1]]", "[[0.5, NaN]]", "cases[0].logits[0] is not 2 finite numbers"),
            ("[[0.5, 1]]", "[]", "cases[0].logits is not 1 entries"),
            ("[[2, -1.5]]", "[[]]", "cases[0].action_logits[0] is not finite numbers"),
            (r#""cases": ["#, r#""cases": [], "x": ["#, "cases is not at least one question"),
            (r#""model""#, r#""max_len": "x", "model""#, "max_len is not a number"),
            ("{", "", "not JSON"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = Reference::parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}, expected {expected}");
        }
    }
}
