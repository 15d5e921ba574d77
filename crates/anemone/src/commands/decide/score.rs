use std::fmt::Write as _;

use anemone_decide::{Decisions, Question, Value};
use anyhow::{Context, Result, ensure};

/// Right answers by the `set` of each line.
#[derive(Debug, Default)]
pub(super) struct Scores {
    sets: Vec<(String, Tally)>,
    /// Answers with a `reference_answer`, those equal to it, and those that differ by one in the fourth decimal at most.
    compared: usize,
    equal: usize,
    close: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    right: usize,
    asked: usize,
}

impl Scores {
    /// Counts a line: `label` is the option that is right, by its place, or an object of id to place.
    pub(super) fn add(&mut self, line: &Value, questions: &[Question], decisions: &Decisions) -> Result<()> {
        let set = line.get("set").and_then(Value::as_str).unwrap_or("all");
        // `choice/topics fr` counts under `choice/topics`, too.
        let group = set.split_whitespace().next().unwrap_or(set);
        for (question, decision) in questions.iter().zip(&decisions.0) {
            let label = line.get("label").context("has no `label`, the place of the right option")?;
            let label = if label.as_map().is_some() { label.get(&question.id) } else { Some(label) };
            let label = label.and_then(Value::as_usize).filter(|label| *label < question.options.len());
            let label = label.with_context(|| {
                format!(
                    "`label` of question '{}' must be a place from 0 to {}",
                    question.id,
                    question.options.len() - 1
                )
            })?;
            let right = best(decision.answer.probabilities()) == label;
            self.count(group, right);
            if let Some(reference) = line.get("reference_answer") {
                ensure!(questions.len() == 1, "`reference_answer` is for lines of one question");
                self.compared += 1;
                let ours = decision.answer.to_value();
                if ours == *reference {
                    self.equal += 1;
                } else if is_close(&ours, reference) {
                    self.close += 1;
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, set: &str, right: bool) {
        let place = self.sets.iter().position(|(name, _)| name == set).unwrap_or_else(|| {
            self.sets.push((set.to_owned(), Tally::default()));
            self.sets.len() - 1
        });
        let tally = &mut self.sets[place].1;
        tally.asked += 1;
        tally.right += usize::from(right);
    }

    pub(super) fn report(&self, json: bool) -> Result<String> {
        ensure!(!self.sets.is_empty(), "no line had a question to score");
        if json {
            let sets = self.sets.iter().map(|(name, tally)| {
                let fields = [
                    ("questions", Value::int(tally.asked as i128)),
                    ("right", Value::int(tally.right as i128)),
                ];
                let mut fields: Vec<_> = fields.map(|(key, value)| (key.to_owned(), value)).to_vec();
                fields.push(("accuracy".to_owned(), Value::Float(tally.accuracy())));
                (name.clone(), Value::Map(fields))
            });
            let mut fields = vec![("sets".to_owned(), Value::Map(sets.collect()))];
            if self.compared > 0 {
                fields.push(("compared".to_owned(), Value::int(self.compared as i128)));
                fields.push(("equal".to_owned(), Value::int(self.equal as i128)));
                fields.push(("within_one_digit".to_owned(), Value::int(self.close as i128)));
            }
            return Ok(format!("{}\n", Value::Map(fields).to_compact()));
        }
        let width = self.sets.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for (name, tally) in &self.sets {
            let _ = writeln!(
                out,
                "{name:width$}  {:5.1} %  {} of {}",
                tally.accuracy() * 100.0,
                tally.right,
                tally.asked
            );
        }
        if self.compared > 0 {
            let _ = write!(out, "{} of {} answers equal their reference", self.equal, self.compared);
            if self.close > 0 {
                let _ = write!(out, ", {} more but for one in the fourth decimal", self.close);
            }
            out.push('\n');
        }
        Ok(out)
    }
}

impl Tally {
    fn accuracy(self) -> f64 {
        self.right as f64 / self.asked as f64
    }
}

/// Whether values are equal but for one in the fourth decimal of some numbers.
fn is_close(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k == l && is_close(a, b))
        }
        (Value::Float(a), Value::Float(b)) => (a - b).abs() < 1.5e-4,
        _ => a == b,
    }
}

/// The likeliest option, the first of equals.
fn best(probabilities: &[f64]) -> usize {
    let largest = probabilities.iter().copied().fold(0.0, f64::max);
    probabilities.iter().position(|p| *p == largest).unwrap_or(0)
}
