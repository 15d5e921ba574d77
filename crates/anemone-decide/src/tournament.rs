//! Choices among many labels, group by group.

use crate::decider::{Decider, Decisions, Request};
use crate::question::{Kind, Question};
use crate::value::Value;
use crate::{Error, Result};

/// Labels of a group by default.
const GROUP: usize = 16;
/// Labels of a group at most.
const MAX_GROUP: usize = 100;

/// How choices among many labels are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tournament {
    /// The most labels that are asked about at once; 2 to 100.
    pub group_size: usize,
}

impl Default for Tournament {
    fn default() -> Self {
        Self { group_size: GROUP }
    }
}

/// The labels of a question that are left, as places among its options, and the rounds it took.
struct Field {
    left: Vec<usize>,
    rounds: usize,
}

impl Decider {
    /// Answers every question; a choice among more labels than a group holds is made in rounds. The labels are cut into groups of
    /// like size in their order, the groups of all questions are asked in one pass, and the winners meet again until they are one group.
    ///
    /// The answer of such a choice is that of the last group, with the other labels at 0. The result object has `tournament`, by question
    /// the `finalists` and the number of `rounds` before them, where there was one; `input_tokens` counts every pass.
    pub fn decide_tournament(
        &mut self,
        state: &Value,
        questions: &[Question],
        tournament: Tournament,
        request: &Request,
    ) -> Result<Value> {
        let size = tournament.group_size;
        if !(2..=MAX_GROUP).contains(&size) {
            let problem = format!("is {size}, expected 2 to {MAX_GROUP} labels");
            return Err(Error::Argument { name: "group_size", problem });
        }
        let all = |question: &Question| Field { left: question.slots().collect(), rounds: 0 };
        let mut fields: Vec<Field> = questions.iter().map(all).collect();
        let ungated = Request { gate: None, ..request.clone() };
        let large =
            |question: &Question, field: &Field| question.kind == Kind::Choice && field.left.len() > size;
        let mut tokens = 0;
        loop {
            let (mut heats, mut groups) = (Vec::new(), Vec::new());
            for (i, (question, field)) in questions.iter().zip(&fields).enumerate() {
                if large(question, field) {
                    for group in cut(&field.left, size) {
                        heats.push(question.narrowed(group));
                        groups.push((i, group.to_vec()));
                    }
                }
            }
            if heats.is_empty() {
                break;
            }
            for (question, field) in questions.iter().zip(&mut fields) {
                if large(question, field) {
                    field.left.clear();
                    field.rounds += 1;
                }
            }
            let decided = self.decide(state, &heats, &ungated)?;
            tokens += input_tokens(&decided);
            for (decision, (i, group)) in decided.0.iter().zip(groups) {
                let p = decision.answer.probabilities();
                let best = (1..p.len()).fold(0, |best, i| if p[i] > p[best] { i } else { best });
                fields[i].left.push(group[best]);
            }
        }
        let last: Vec<Question> = (questions.iter().zip(&fields))
            .map(|(q, field)| if field.rounds > 0 { q.narrowed(&field.left) } else { q.clone() })
            .collect();
        let decided = self.decide(state, &last, request)?;
        Ok(result(questions, &fields, &decided, tokens))
    }
}

/// As few groups as their size allows, in order, none larger than another by more than one.
fn cut(labels: &[usize], size: usize) -> impl Iterator<Item = &[usize]> {
    let (all, count) = (labels.len(), labels.len().div_ceil(size));
    (0..count).map(move |i| &labels[i * all / count..(i + 1) * all / count])
}

fn input_tokens(decided: &Decisions) -> usize {
    decided.0.iter().map(|d| d.prompt.ids.len()).sum()
}

fn result(questions: &[Question], fields: &[Field], decided: &Decisions, earlier: usize) -> Value {
    let mut value = decided.to_value();
    let mut rounds = Vec::new();
    for (question, field) in questions.iter().zip(fields).filter(|(_, field)| field.rounds > 0) {
        let finalists = field.left.iter().map(|i| question.labels[*i].clone()).collect();
        let entry = Value::Map(vec![
            ("finalists".to_owned(), Value::List(finalists)),
            ("rounds".to_owned(), Value::int(field.rounds as i128)),
        ]);
        rounds.push((question.id.clone(), entry));
        let probabilities = (value.get_mut("answers"))
            .and_then(|answers| answers.get_mut(&question.id))
            .and_then(|answer| answer.get_mut("probabilities"));
        if let Some(probabilities) = probabilities {
            let all = question.labels.iter().map(|label| {
                let key = label.as_key();
                let p = probabilities.get(&key).cloned().unwrap_or(Value::Float(0.0));
                (key, p)
            });
            *probabilities = Value::Map(all.collect());
        }
    }
    if let Some(tokens) = value.get_mut("usage").and_then(|usage| usage.get_mut("input_tokens")) {
        *tokens = Value::int((earlier + input_tokens(decided)) as i128);
    }
    if rounds.is_empty() { value } else { value.with("tournament", Value::Map(rounds)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_few_and_even() {
        let labels: Vec<usize> = (0..22).collect();
        let sizes: Vec<usize> = cut(&labels, 8).map(<[usize]>::len).collect();
        assert_eq!(sizes, [7, 7, 8]);
        assert_eq!(cut(&labels, 8).flatten().copied().collect::<Vec<_>>(), labels);
        assert_eq!(cut(&labels[..9], 8).map(<[usize]>::len).collect::<Vec<_>>(), [4, 5]);
    }
}
