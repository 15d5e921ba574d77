//! A row's scores as the answer to its question.

use crate::calibration::{Calibration, softmax};
use crate::gate::Gate;
use crate::question::{Kind, Question};
use crate::value::{Value, round4};

/// An answer, its fields in the order clients see them.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub(crate) fields: Vec<(String, Value)>,
    /// Probability of each option, in option order, not rounded.
    pub(crate) probabilities: Vec<f64>,
    /// What the answer is worth, not rounded.
    pub(crate) confidence: f64,
    act: f64,
}

impl Answer {
    /// The answer of scores, one for each option in slot order and one for each action.
    ///
    /// Panics when there are not as many scores as options, or no action.
    pub fn new(
        question: &Question,
        logits: &[f32],
        action_logits: &[f32],
        calibration: &Calibration,
        language: Option<&str>,
        gate: Option<&Gate>,
    ) -> Self {
        assert_eq!(logits.len(), question.options.len(), "a score for each option");
        let p = calibration.probabilities(question, logits, language);
        let largest = p.iter().copied().fold(0.0, f64::max);
        let mut fields = vec![("type".to_owned(), Value::text(question.kind.name()))];
        let mut put = |key: &str, value: Value| fields.push((key.to_owned(), value));
        match question.kind {
            Kind::Choice => {
                let best = p.iter().position(|v| *v == largest).unwrap_or(0);
                put("choice", question.labels[best].clone());
                let entry = |(label, p): (&Value, &f64)| (label.as_key(), round4(*p));
                put("probabilities", Value::Map(question.labels.iter().zip(&p).map(entry).collect()));
                put("confidence", round4(certainty(&p)));
            }
            Kind::Score => {
                let score: f64 = p.iter().enumerate().map(|(i, p)| i as f64 * p).sum();
                put("score", round4(score));
                let keyed = |values: Vec<Value>| {
                    Value::Map(values.into_iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect())
                };
                put("legend", keyed(question.labels.clone()));
                put("probabilities", keyed(p.iter().map(|p| round4(*p)).collect()));
                put("confidence", round4(certainty(&p)));
            }
            Kind::Noul => {
                put("noul", round4(p[1]));
                put("confidence", round4(p[1].max(1.0 - p[1])));
            }
        }
        let confidence = calibration.confidence(question, largest, language);
        put("answer_confidence", round4(confidence));
        let action: Vec<f64> = action_logits.iter().map(|z| f64::from(*z)).collect();
        let act = softmax(&action)[0];
        put("action", Value::Map(vec![("act_probability".to_owned(), round4(act))]));
        if let Some(gate) = gate {
            fields.extend(gate.verdict(question, confidence));
        }
        Self { fields, probabilities: p, confidence, act }
    }

    /// The answer as an object.
    pub fn to_value(&self) -> Value {
        Value::Map(self.fields.clone())
    }

    /// Probability of each option, in option order, not rounded.
    pub fn probabilities(&self) -> &[f64] {
        &self.probabilities
    }

    /// Probability of the first action, to act on the answer, not rounded.
    pub fn act_probability(&self) -> f64 {
        self.act
    }

    /// What the answer is worth, not rounded.
    pub fn confidence(&self) -> f64 {
        self.confidence
    }
}

/// One less the entropy as a share of the largest possible; 1 with a single option.
fn certainty(p: &[f64]) -> f64 {
    if p.len() < 2 {
        return 1.0;
    }
    let entropy: f64 = p.iter().map(|p| -p * p.max(1e-12).ln()).sum();
    (1.0 - entropy / (p.len() as f64).ln()).clamp(0.0, 1.0)
}

/// Confidence in the sense of Jev clients, of a choice or score answer's rounded probabilities; none for other answers and for
/// numbers that are no probabilities.
pub fn jev_confidence(answer: &Value) -> Option<Value> {
    let kind = answer.get("type")?.as_str()?;
    let p: Option<Vec<f64>> =
        answer.get("probabilities")?.as_map()?.iter().map(|(_, v)| v.as_f64()).collect();
    let p = p.filter(|p| p.iter().all(|v| v.is_finite() && *v >= 0.0))?;
    let sum: f64 = p.iter().sum();
    if p.is_empty() || sum <= 0.0 {
        return None;
    }
    let p: Vec<f64> = p.iter().map(|v| v / sum).collect();
    let n = p.len() as f64;
    let max = p.iter().copied().fold(0.0, f64::max);
    if p.len() == 1 {
        return Some(round4(1.0));
    }
    match kind {
        "choice" => Some(round4((max - 1.0 / n) / (1.0 - 1.0 / n))),
        "score" => {
            let mode = p.iter().position(|v| *v == max)? as f64;
            let away = |centre: f64| move |i: usize| (i as f64 - centre).abs();
            let spread: f64 = p.iter().enumerate().map(|(i, p)| p * away(mode)(i)).sum();
            let even = (0..p.len()).map(away((n - 1.0) / 2.0)).sum::<f64>() / n;
            Some(round4((1.0 - spread / even).max(0.0)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jev_confidence_of_known_answers() {
        let of = |text: &str| jev_confidence(&Value::parse(text).unwrap());
        let choice = r#"{"type":"choice","probabilities":{"a":0.5,"b":0.25,"c":0.25}}"#;
        assert_eq!(of(choice), Some(Value::Float(0.25)));
        let score = r#"{"type":"score","probabilities":{"0":0.0,"1":1.0,"2":0.0}}"#;
        assert_eq!(of(score), Some(Value::Float(1.0)));
        let flat = r#"{"type":"score","probabilities":{"0":0.5,"1":0.0,"2":0.5}}"#;
        assert_eq!(of(flat), Some(Value::Float(0.0)));
        // Of two modes the first counts: 0.65 levels away from it on average, where an even spread is one away from the middle.
        let two = r#"{"type":"score","probabilities":{"0":0.45,"1":0.45,"2":0.1,"3":0.0}}"#;
        assert_eq!(of(two), Some(Value::Float(0.35)));
        assert_eq!(of(r#"{"type":"score","probabilities":{"0":1.0}}"#), Some(Value::Float(1.0)));
        assert_eq!(of(r#"{"type":"noul","noul":0.3}"#), None);
        assert_eq!(of(r#"{"type":"choice","probabilities":{"a":"x"}}"#), None);
    }

    #[test]
    fn the_first_of_equals_is_chosen() {
        let definition = r#"{"type":"choice","instructions":"x","criteria":["a","b","c"]}"#;
        let question = Question::parse("q", &Value::parse(definition).unwrap()).unwrap();
        let calibration = Calibration::of_config(&serde_json::Map::new()).unwrap();
        let answer = Answer::new(&question, &[0.0, 2.0, 2.0], &[0.0], &calibration, None, None);
        assert_eq!(answer.to_value().get("choice"), Some(&Value::text("b")));
    }

    #[test]
    fn certainty_is_one_less_the_entropy() {
        assert_eq!(certainty(&[1.0]), 1.0);
        assert!(certainty(&[0.25; 4]).abs() < 1e-12);
        assert!((certainty(&[1.0, 0.0]) - 1.0).abs() < 1e-9);
    }
}
