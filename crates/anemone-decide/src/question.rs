//! Definitions of questions, and the options they show the model.

use crate::value::Value;
use crate::{Error, Result};

/// What a question asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One of several labels.
    Choice,
    /// A level of a scale.
    Score,
    /// Whether a statement holds.
    Noul,
}

impl Kind {
    /// All kinds, in the order the model numbers them.
    pub const ALL: [Self; 3] = [Self::Choice, Self::Score, Self::Noul];

    /// Its name in a definition.
    pub fn name(self) -> &'static str {
        match self {
            Self::Choice => "choice",
            Self::Score => "score",
            Self::Noul => "noul",
        }
    }

    /// The number the model knows it by.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A checked question.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Its id, the key of its answer.
    pub id: String,
    /// What it asks for.
    pub kind: Kind,
    /// The instructions as the model reads them.
    pub instructions: String,
    /// What stands for each option in an answer: the label of a choice, the text of a level, the label of a truth value.
    pub labels: Vec<Value>,
    /// Each option as the model reads it.
    pub options: Vec<String>,
    /// The option shown in each slot, when not in order.
    pub order: Option<Vec<usize>>,
}

impl Question {
    /// Checks every definition of an object of id to definition.
    pub fn parse_all(questions: &Value) -> Result<Vec<Self>> {
        let Some(entries) = questions.as_map() else {
            return Err(Error::NotQuestions { found: questions.kind() });
        };
        entries.iter().map(|(id, definition)| Self::parse(id, definition)).collect()
    }

    /// Checks one definition.
    pub fn parse(id: &str, definition: &Value) -> Result<Self> {
        if id.trim().is_empty() {
            return Err(Error::question(id, "an id must not be blank"));
        }
        if definition.as_map().is_none() {
            let problem = format!("its definition is {}, expected an object", definition.kind());
            return Err(Error::question(id, problem));
        }
        let field = |key: &str| definition.get(key).filter(|value| **value != Value::Null);
        let kind = match definition.get("type") {
            None => return Err(Error::question(id, "has no `type`; use choice, score or noul")),
            Some(name) => Kind::ALL.into_iter().find(|kind| name.as_str() == Some(kind.name())),
        };
        let Some(kind) = kind else {
            let found = definition.get("type").map(Value::quoted).unwrap_or_default();
            let problem = format!("unknown type {found}; use one of ['choice', 'noul', 'score']");
            return Err(Error::question(id, problem));
        };
        let instructions = instructions(id, field("instructions"))?;
        if kind != Kind::Noul && field("labels").is_some() {
            return Err(Error::question(id, "`labels` are for questions of type noul"));
        }
        let criteria = field("criteria");
        let (labels, options) = match kind {
            Kind::Choice => choices(id, criteria)?,
            Kind::Score => levels(id, criteria)?,
            Kind::Noul => truths(id, criteria, field("labels"))?,
        };
        let order = field("option_order").map(|order| permutation(id, order, options.len())).transpose()?;
        Ok(Self { id: id.to_owned(), kind, instructions, labels, options, order })
    }

    /// The same question about some of its options only, which are shown in this order.
    #[must_use]
    pub fn narrowed(&self, options: &[usize]) -> Self {
        let pick = |i: &usize| (self.labels[*i].clone(), self.options[*i].clone());
        let (labels, options) = options.iter().map(pick).unzip();
        Self { labels, options, order: None, ..self.clone() }
    }

    /// Options in the order of their slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.options.len()).map(|slot| self.order.as_ref().map_or(slot, |order| order[slot]))
    }

    /// Key of its calibration: the kind and how many options there are.
    pub(crate) fn bucket(&self) -> String {
        let size = match self.options.len() {
            0..=2 => "2",
            3..=5 => "3-5",
            6..=10 => "6-10",
            _ => "11+",
        };
        format!("{}:{size}", self.kind.name())
    }
}

fn instructions(id: &str, value: Option<&Value>) -> Result<String> {
    let blank = match value {
        None => true,
        Some(Value::Text(text)) => text.trim().is_empty(),
        Some(Value::List(items)) => items.is_empty(),
        Some(Value::Map(entries)) => entries.is_empty(),
        Some(_) => false,
    };
    match value {
        Some(value) if !blank => Ok(value.rendered().into_owned()),
        _ => Err(Error::question(id, "has no `instructions`; say what is asked")),
    }
}

type Options = (Vec<Value>, Vec<String>);

fn choices(id: &str, criteria: Option<&Value>) -> Result<Options> {
    let problem = |text: &str| Err(Error::question(id, text));
    match criteria {
        Some(Value::Map(entries)) if !entries.is_empty() => {
            let option = |(label, description): &(String, Value)| {
                let text = match description {
                    Value::Null => label.clone(),
                    Value::Text(text) if text.is_empty() => label.clone(),
                    other => format!("{label}: {}", other.rendered()),
                };
                (Value::text(label), text)
            };
            Ok(entries.iter().map(option).unzip())
        }
        Some(Value::List(labels)) if !labels.is_empty() => {
            for (i, label) in labels.iter().enumerate() {
                if matches!(label, Value::Null | Value::List(_) | Value::Map(_)) {
                    let text = format!(
                        "label {i} of `criteria` is {}, expected a string, number or boolean",
                        label.kind()
                    );
                    return problem(&text);
                }
                if let Some(j) = labels[..i].iter().position(|other| other.python_eq(label)) {
                    return problem(&format!("labels {j} and {i} of `criteria` are equal; give each once"));
                }
            }
            Ok((labels.clone(), labels.iter().map(Value::python_str).collect()))
        }
        _ => problem(
            "a choice needs `criteria`: an object of label to description, or a list of labels, not empty",
        ),
    }
}

fn levels(id: &str, criteria: Option<&Value>) -> Result<Options> {
    let Some(levels) = criteria.and_then(Value::as_list).filter(|levels| !levels.is_empty()) else {
        return Err(Error::question(
            id,
            "a score needs `criteria`: a list of levels, the lowest first, not empty",
        ));
    };
    if let Some(index) = levels.iter().position(|level| *level == Value::Null) {
        return Err(Error::NullLevel { id: id.to_owned(), index });
    }
    let text = |level: &Value| level.rendered().into_owned();
    let options = levels.iter().enumerate().map(|(i, level)| format!("level {i}: {}", text(level)));
    Ok((levels.iter().map(|level| Value::Text(text(level))).collect(), options.collect()))
}

fn truths(id: &str, criteria: Option<&Value>, labels: Option<&Value>) -> Result<Options> {
    let mut texts = ["no, the statement does not hold".to_owned(), "yes, the statement holds".to_owned()];
    if let Some(criteria) = criteria {
        let Some(entries) = criteria.as_map() else {
            let problem = format!("`criteria` of a noul are {}, expected an object", criteria.kind());
            return Err(Error::question(id, problem));
        };
        for (key, value) in entries {
            let Some(i) = ["false", "true"].iter().position(|name| key.to_lowercase() == *name) else {
                let problem = format!("`criteria` of a noul have the keys true and false, not `{key}`");
                return Err(Error::question(id, problem));
            };
            if !matches!(value, Value::Null) && value.as_str() != Some("") {
                texts[i] = value.rendered().into_owned();
            }
        }
    }
    let names =
        labels.map_or_else(|| Ok(["false".to_owned(), "true".to_owned()]), |l| truth_labels(id, l))?;
    let options = names.iter().zip(&texts).map(|(name, text)| format!("{name}: {text}")).collect();
    Ok((names.map(Value::Text).to_vec(), options))
}

fn truth_labels(id: &str, labels: &Value) -> Result<[String; 2]> {
    let text = |key: &str| labels.get(key).and_then(Value::as_str).map(|t| t.trim().to_owned());
    let only = labels.as_map().is_some_and(|entries| entries.len() == 2);
    match (text("false"), text("true")) {
        (Some(no), Some(yes)) if only && !no.is_empty() && !yes.is_empty() && no != yes => Ok([no, yes]),
        _ => Err(Error::question(
            id,
            "`labels` must be an object of exactly `false` and `true`, two different texts that are not blank",
        )),
    }
}

fn permutation(id: &str, order: &Value, len: usize) -> Result<Vec<usize>> {
    let mut seen = vec![false; len];
    let places = order.as_list().filter(|list| list.len() == len);
    let places: Option<Vec<usize>> = places.and_then(|list| list.iter().map(Value::as_usize).collect());
    let places = places.filter(|places| {
        places.iter().all(|place| seen.get_mut(*place).is_some_and(|seen| !std::mem::replace(seen, true)))
    });
    let problem = || format!("`option_order` must hold each of 0 to {} once", len.saturating_sub(1));
    places.ok_or_else(|| Error::question(id, problem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(definition: &str) -> Result<Question> {
        Question::parse("q", &Value::parse(definition).unwrap())
    }

    fn options(definition: &str) -> Vec<String> {
        parse(definition).unwrap().options
    }

    #[test]
    fn options_read_as_the_model_was_taught() {
        assert_eq!(
            options(
                r#"{"type":"choice","instructions":"x","criteria":{"a":null,"b":"","c":"d","e":0,"f":[1,"ü"]}}"#
            ),
            ["a", "b", "c: d", "e: 0", r#"f: [1, "ü"]"#]
        );
        assert_eq!(
            options(r#"{"type":"choice","instructions":"x","criteria":["a",2,1.5,true,""]}"#),
            ["a", "2", "1.5", "True", ""]
        );
        assert_eq!(
            options(r#"{"type":"score","instructions":"x","criteria":["low",{"a":1}]}"#),
            ["level 0: low", r#"level 1: {"a": 1}"#]
        );
        assert_eq!(
            options(r#"{"type":"noul","instructions":"x","criteria":{"TRUE":"so","False":""}}"#),
            ["false: no, the statement does not hold", "true: so"]
        );
        assert_eq!(
            options(r#"{"type":"noul","instructions":"x","labels":{"true":" B ","false":"A"}}"#),
            ["A: no, the statement does not hold", "B: yes, the statement holds"]
        );
        assert_eq!(parse(r#"{"type":"noul","instructions":{"a":1}}"#).unwrap().instructions, r#"{"a": 1}"#);
    }

    #[test]
    fn what_is_refused_says_why() {
        for (definition, expected) in [
            (
                r#"{"type":"bool","instructions":"x"}"#,
                "unknown type 'bool'; use one of ['choice', 'noul', 'score']",
            ),
            (r#"{"type":"noul","instructions":" "}"#, "has no `instructions`"),
            (
                r#"{"type":"choice","instructions":"x","criteria":[1,1.0]}"#,
                "labels 0 and 1 of `criteria` are equal",
            ),
            (
                r#"{"type":"choice","instructions":"x","criteria":["a",null]}"#,
                "label 1 of `criteria` is null",
            ),
            (r#"{"type":"score","instructions":"x","criteria":["a",null]}"#, "null level at index 1"),
            (r#"{"type":"noul","instructions":"x","criteria":{"yes":"a"}}"#, "not `yes`"),
            (r#"{"type":"noul","instructions":"x","labels":{"true":"a"}}"#, "`labels` must be"),
            (
                r#"{"type":"choice","instructions":"x","criteria":["a"],"labels":{}}"#,
                "for questions of type noul",
            ),
            (
                r#"{"type":"choice","instructions":"x","criteria":["a","b"],"option_order":[0,0]}"#,
                "each of 0 to 1 once",
            ),
            (r#""noul""#, "its definition is a string"),
        ] {
            let error = parse(definition).unwrap_err().to_string();
            assert!(error.contains("question 'q'") && error.contains(expected), "{error}");
        }
    }
}
