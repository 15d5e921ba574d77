//! Choices among many labels, narrowed to the likeliest by the model's own encoder.

use crate::decider::{Decider, Request};
use crate::question::{Kind, Question};
use crate::value::{Value, round4};
use crate::{Error, Result};

/// Labels kept by default.
const KEPT: usize = 20;

/// How choices among many labels are narrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortlist {
    /// Labels that are kept.
    pub k: usize,
}

impl Default for Shortlist {
    fn default() -> Self {
        Self { k: KEPT }
    }
}

impl Decider {
    /// Answers every question; a choice among more than `k` labels is made among the `k` whose texts lie nearest to the instructions
    /// and the state, by the cosine of the encoder's mean outputs, the nearest first.
    ///
    /// The result object has `shortlist`, by choice question: the `labels` asked about, their `scores` (null where all were asked),
    /// `k`, the number `n` of labels there were, and `passthrough` where all were asked.
    pub fn decide_shortlist(
        &mut self,
        state: &Value,
        questions: &[Question],
        shortlist: Shortlist,
        request: &Request,
    ) -> Result<Value> {
        if shortlist.k == 0 {
            let problem = "is 0; at least one label must be kept".to_owned();
            return Err(Error::Argument { name: "k", problem });
        }
        if *state == Value::Null {
            return Err(Error::NoState);
        }
        let max_len = self.limits_of(request)?.max_len;
        let (mut asked, mut lists) = (Vec::with_capacity(questions.len()), Vec::new());
        for question in questions {
            let n = question.options.len();
            if question.kind != Kind::Choice {
                asked.push(question.clone());
                continue;
            }
            let passthrough = n <= shortlist.k;
            let (labels, scores) = if passthrough {
                asked.push(question.clone());
                (question.labels.clone(), Value::Null)
            } else {
                let nearest = self.nearest(state, question, max_len, shortlist.k)?;
                let places: Vec<usize> = nearest.iter().map(|(place, _)| *place).collect();
                let narrowed = question.narrowed(&places);
                let labels = narrowed.labels.clone();
                asked.push(narrowed);
                (labels, Value::List(nearest.iter().map(|(_, score)| round4(*score)).collect()))
            };
            let entry = [
                ("labels", Value::List(labels)),
                ("scores", scores),
                ("k", Value::int(shortlist.k as i128)),
                ("n", Value::int(n as i128)),
                ("passthrough", Value::Bool(passthrough)),
            ];
            let entry = entry.map(|(key, value)| (key.to_owned(), value)).into();
            lists.push((question.id.clone(), Value::Map(entry)));
        }
        let result = self.decide(state, &asked, request)?.to_value();
        Ok(if lists.is_empty() { result } else { result.with("shortlist", Value::Map(lists)) })
    }

    /// Places of the options nearest to a question and its state, with their cosines, the nearest first.
    fn nearest(
        &mut self,
        state: &Value,
        question: &Question,
        max_len: usize,
        k: usize,
    ) -> Result<Vec<(usize, f64)>> {
        let query = format!("{}\n{}", question.instructions, state.rendered());
        let texts = std::iter::once(&query).chain(&question.options);
        let rows: Vec<Vec<u32>> =
            texts.map(|text| self.vocabulary().text(text, max_len)).collect::<Result<_>>()?;
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let vectors = self.engine_mut().embed(&rows)?;
        let scores = vectors[1..].iter().map(|option| cosine(&vectors[0], option));
        let mut ranked: Vec<(usize, f64)> = scores.enumerate().collect();
        ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        ranked.truncate(k);
        Ok(ranked)
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths = dot(a, a).sqrt() * dot(b, b).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_have_a_sign() {
        assert_eq!(cosine(&[1.0, 0.0], &[-2.0, 0.0]), -1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 2.0]), 0.0);
    }
}
