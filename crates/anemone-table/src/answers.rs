//! Answers as columns.

use std::sync::Arc;

use anemone_decide::{Kind, Question, Value};
use arrow_array::builder::{Float64Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch, StructArray};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

use crate::{Error, Result};

/// What became of a row.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The result object: `answers` by id, `usage`, `routing` where there are several models.
    Result(Value),
    /// Why it could not be answered.
    Error(String),
}

/// The columns that answers to the same questions make.
///
/// For a question `q`: `q`, the label of a choice, the level of a score on average, the probability that a noul holds;
/// `q.confidence`, `q.answer_confidence` and `q.act_probability`; `q.probabilities` of a choice by label, of a score by level;
/// with a least confidence asked, `q.abstention`. Then `usage.input_tokens`, `usage.state_tokens` and
/// `usage.state_tokens_dropped`; with several models `routing.model`; and `error`, null where the row is answered. Numbers are those
/// of the result object.
#[derive(Debug)]
pub struct Answers {
    schema: SchemaRef,
    columns: Vec<Column>,
}

/// One column: its field, and the place of its value in a result object.
#[derive(Debug)]
struct Column {
    field: Field,
    path: Vec<String>,
}

impl Answers {
    /// The columns for `questions` after those of `input`; `gated` and `routed` add theirs.
    pub fn new(input: &Schema, questions: &[Question], gated: bool, routed: bool) -> Result<Self> {
        let mut columns = Vec::new();
        let mut put = |name: String, kind: DataType, path: &[&str]| {
            let path = path.iter().map(|key| (*key).to_owned()).collect();
            columns.push(Column { field: Field::new(name, kind, true), path });
        };
        for question in questions {
            let id = question.id.as_str();
            let mut own = |name: String, kind: DataType, path: &[&str]| {
                put(name, kind, &[&["answers", id], path].concat());
            };
            let main = if question.kind == Kind::Choice { DataType::Utf8 } else { DataType::Float64 };
            own(id.to_owned(), main, &[question.kind.name()]);
            own(format!("{id}.confidence"), DataType::Float64, &["confidence"]);
            own(format!("{id}.answer_confidence"), DataType::Float64, &["answer_confidence"]);
            own(format!("{id}.act_probability"), DataType::Float64, &["action", "act_probability"]);
            if question.kind != Kind::Noul {
                let kind = DataType::Struct(options(question)?);
                own(format!("{id}.probabilities"), kind, &["probabilities"]);
            }
            if gated {
                own(format!("{id}.abstention"), DataType::Utf8, &["abstention"]);
            }
        }
        for name in ["input_tokens", "state_tokens", "state_tokens_dropped"] {
            put(format!("usage.{name}"), DataType::Int64, &["usage", name]);
        }
        if routed {
            put("routing.model".to_owned(), DataType::Utf8, &["routing", "model"]);
        }
        put("error".to_owned(), DataType::Utf8, &[]);

        let mut fields: Vec<Arc<Field>> = input.fields().iter().cloned().collect();
        let mut names: std::collections::HashSet<&str> =
            input.fields().iter().map(|field| field.name().as_str()).collect();
        for column in &columns {
            if !names.insert(column.field.name()) {
                return Err(Error::Taken(column.field.name().clone()));
            }
            fields.push(Arc::new(column.field.clone()));
        }
        let schema = Schema::new_with_metadata(fields, input.metadata().clone());
        Ok(Self { schema: Arc::new(schema), columns })
    }

    /// Columns of the input, then those of the answers.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows with the outcome of each, in order.
    ///
    /// Panics when there are not as many outcomes as rows.
    pub fn join(&self, batch: &RecordBatch, outcomes: &[Outcome]) -> Result<RecordBatch> {
        assert_eq!(batch.num_rows(), outcomes.len(), "an outcome for each row");
        let mut columns = batch.columns().to_vec();
        columns.extend(self.columns.iter().map(|column| {
            let values: Vec<Option<&Value>> = outcomes.iter().map(|outcome| column.of(outcome)).collect();
            if column.path.is_empty() {
                let error = |outcome: &Outcome| match outcome {
                    Outcome::Result(_) => None,
                    Outcome::Error(error) => Some(error.clone()),
                };
                return text(outcomes.iter().map(error));
            }
            array(column.field.data_type(), &values)
        }));
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|error| Error::Columns(error.to_string()))
    }
}

impl Column {
    fn of<'a>(&self, outcome: &'a Outcome) -> Option<&'a Value> {
        let Outcome::Result(result) = outcome else { return None };
        self.path.iter().try_fold(result, |value, key| value.get(key))
    }
}

/// A field for each option's probability.
fn options(question: &Question) -> Result<Fields> {
    let mut names = std::collections::HashSet::new();
    let name = |(i, label): (usize, &Value)| match question.kind {
        Kind::Choice => label.rendered().into_owned(),
        _ => i.to_string(),
    };
    let mut fields = Vec::new();
    for option in question.labels.iter().enumerate().map(name) {
        if !names.insert(option.clone()) {
            return Err(Error::Options { question: question.id.clone(), option });
        }
        fields.push(Field::new(option, DataType::Float64, true));
    }
    Ok(fields.into())
}

fn array(kind: &DataType, values: &[Option<&Value>]) -> ArrayRef {
    match kind {
        DataType::Float64 => {
            let mut column = Float64Builder::with_capacity(values.len());
            for value in values {
                column.append_option(value.and_then(Value::as_f64));
            }
            Arc::new(column.finish())
        }
        DataType::Int64 => {
            let mut column = Int64Builder::with_capacity(values.len());
            let whole = |value: &Value| value.as_usize().map(|n| n as i64);
            for value in values {
                column.append_option(value.and_then(whole));
            }
            Arc::new(column.finish())
        }
        DataType::Struct(fields) => {
            let inner = |field: &Arc<Field>| {
                let cells: Vec<Option<&Value>> =
                    values.iter().map(|value| value.and_then(|value| value.get(field.name()))).collect();
                array(field.data_type(), &cells)
            };
            let columns = fields.iter().map(inner).collect();
            let present: NullBuffer = values.iter().map(Option::is_some).collect::<Vec<_>>().into();
            Arc::new(StructArray::new(fields.clone(), columns, Some(present)))
        }
        _ => text(values.iter().map(|value| {
            value.filter(|value| **value != Value::Null).map(|value| value.rendered().into_owned())
        })),
    }
}

fn text(values: impl Iterator<Item = Option<String>>) -> ArrayRef {
    let mut column = StringBuilder::new();
    for value in values {
        column.append_option(value);
    }
    Arc::new(column.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn questions(text: &str) -> Vec<Question> {
        Question::parse_all(&Value::parse(text).unwrap()).unwrap()
    }

    const TEAM: &str = r#"{"team": {"type": "choice", "instructions": "?", "criteria": ["a", 1]},
        "mood": {"type": "score", "instructions": "?", "criteria": ["low", "high"]},
        "angry": {"type": "noul", "instructions": "?"}}"#;

    #[test]
    fn columns_are_named_and_typed() {
        let input = Schema::new(vec![Field::new("body", DataType::Utf8, true)]);
        let answers = Answers::new(&input, &questions(TEAM), false, false).unwrap();
        let names: Vec<&str> = answers.schema().fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(
            names,
            [
                "body",
                "team",
                "team.confidence",
                "team.answer_confidence",
                "team.act_probability",
                "team.probabilities",
                "mood",
                "mood.confidence",
                "mood.answer_confidence",
                "mood.act_probability",
                "mood.probabilities",
                "angry",
                "angry.confidence",
                "angry.answer_confidence",
                "angry.act_probability",
                "usage.input_tokens",
                "usage.state_tokens",
                "usage.state_tokens_dropped",
                "error"
            ]
        );
        let gated = Answers::new(&input, &questions(TEAM), true, true).unwrap();
        assert!(gated.schema().index_of("angry.abstention").is_ok());
        assert!(gated.schema().index_of("routing.model").is_ok());
    }

    #[test]
    fn names_that_are_taken_are_refused() {
        let clash = |name: &str, asked: &str| {
            let input = Schema::new(vec![Field::new(name, DataType::Utf8, true)]);
            Answers::new(&input, &questions(asked), false, false).unwrap_err().to_string()
        };
        assert!(clash("team", TEAM).contains("`team`"));
        assert!(clash("mood.probabilities", TEAM).contains("rename"));
        assert!(clash("error", TEAM).contains("`error`"));
        let two = r#"{"q": {"type": "noul", "instructions": "?"}, "q.confidence": {"type": "noul", "instructions": "?"}}"#;
        assert!(clash("x", two).contains("`q.confidence`"));
        let same = r#"{"q": {"type": "choice", "instructions": "?", "criteria": ["1", 1]}}"#;
        assert!(clash("x", same).contains("two options written `1`"));
    }

    #[test]
    fn outcomes_fill_their_columns() {
        let input = Arc::new(Schema::new(vec![Field::new("body", DataType::Utf8, true)]));
        let answers = Answers::new(&input, &questions(TEAM), true, false).unwrap();
        let body = text(["x", "y"].map(|text| Some(text.to_owned())).into_iter());
        let batch = RecordBatch::try_new(input, vec![body]).unwrap();
        let result = r#"{"answers": {"team": {"type": "choice", "choice": 1, "probabilities": {"a": 0.25, "1": 0.75},
            "confidence": 0.1, "answer_confidence": 0.75, "action": {"act_probability": 1.0}, "abstention": "passed"}},
            "usage": {"input_tokens": 7}}"#;
        let outcomes = [Outcome::Result(Value::parse(result).unwrap()), Outcome::Error("no".to_owned())];
        let joined = answers.join(&batch, &outcomes).unwrap();
        let row = |i: usize| {
            let fields = joined.schema().fields().clone();
            let cells = fields.iter().zip(joined.columns());
            let cells = cells.map(|(f, c)| (f.name().clone(), crate::cell::cell(c, f, i).unwrap()));
            Value::Map(cells.filter(|(_, value)| *value != Value::Null).collect()).to_compact()
        };
        assert_eq!(
            row(0),
            r#"{"body":"x","team":"1","team.confidence":0.1,"team.answer_confidence":0.75,"team.act_probability":1.0,"team.probabilities":{"a":0.25,"1":0.75},"team.abstention":"passed","usage.input_tokens":7}"#
        );
        assert_eq!(row(1), r#"{"body":"y","error":"no"}"#);
    }
}
