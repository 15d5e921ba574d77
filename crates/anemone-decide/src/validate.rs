//! Whether a converted model still decides as the one it was made from.

use crate::decider::{Decision, Decisions};

/// What is compared, and how far apart it may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// Largest error of a calibrated probability and of an action probability.
    pub tolerance: f64,
}

impl Default for Bar {
    fn default() -> Self {
        Self { tolerance: 0.02 }
    }
}

/// Rows compared so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Validation {
    bar: Bar,
    /// Rows that were compared.
    pub validated: usize,
    /// Rows whose best option was the same.
    pub agreed: usize,
    /// Rows whose best option was another where the reference holds the best two closer together than twice the tolerance.
    pub ties: Vec<String>,
    /// Rows that could not be compared, and why.
    pub skipped: Vec<String>,
    /// What does not pass.
    pub failures: Vec<String>,
    /// Largest error of a calibrated probability.
    pub probability_error: f64,
    /// Largest error of an action probability.
    pub action_error: f64,
}

impl Validation {
    /// Nothing compared yet.
    pub fn new(bar: Bar) -> Self {
        Self { bar, ..Self::default() }
    }

    /// Compares repeated answers to one question with the reference's; `name` is the row's in reports.
    pub fn add(&mut self, name: &str, found: &[Decisions], expected: &Decisions) {
        self.validated += 1;
        let first = found.first().and_then(|d| Some((d, d.0.first()?)));
        let (Some((decisions, ours)), Some(theirs)) = (first, expected.0.first()) else {
            return self.fail(name, "has no answer");
        };
        if found.iter().any(|again| again != decisions) {
            self.fail(name, "repeated calls differ");
        }
        if decisions.usage() != expected.usage() {
            self.fail(name, "the usage differs");
        }
        if ours.prompt != theirs.prompt {
            return self.fail(name, "the tokens differ");
        }
        self.compare(name, ours, theirs);
    }

    fn compare(&mut self, name: &str, ours: &Decision, theirs: &Decision) {
        let (p, q) = (ours.answer.probabilities(), theirs.answer.probabilities());
        let act = (ours.answer.act_probability() - theirs.answer.act_probability()).abs();
        let pairs = p.iter().zip(q);
        let largest =
            pairs.fold(0.0f64, |most, (p, q)| if (p - q).abs() <= most { most } else { (p - q).abs() });
        if !largest.is_finite() || !act.is_finite() {
            return self.fail(name, "a probability is not finite");
        }
        let tolerance = self.bar.tolerance;
        for (what, error) in [("a probability", largest), ("the action's probability", act)] {
            if error > tolerance {
                self.fail(name, &format!("{what} is off by {error:.5}, more than {tolerance}"));
            }
        }
        self.probability_error = self.probability_error.max(largest);
        self.action_error = self.action_error.max(act);
        let ((found, _), (expected, margin)) = (best(p), best(q));
        if found == expected {
            self.agreed += 1;
        } else if margin < 2.0 * tolerance {
            self.ties.push(format!(
                "{name}: option {found} instead of {expected}, {margin:.5} apart in the reference"
            ));
        } else {
            self.fail(
                name,
                &format!("option {found} is best instead of {expected}, {margin:.5} apart in the reference"),
            );
        }
    }

    /// Counts a row that could not be compared.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.push(format!("{name}: {reason}"));
    }

    /// Counts a row that ran and gave no answer.
    pub fn fail(&mut self, name: &str, problem: &str) {
        self.failures.push(format!("{name}: {problem}"));
    }

    /// Whether something was compared and all of it passed.
    pub fn passed(&self) -> bool {
        self.validated > 0 && self.failures.is_empty()
    }
}

/// The likeliest option, the first of equals, and how far it leads.
fn best(p: &[f64]) -> (usize, f64) {
    let top = p.iter().copied().fold(0.0, f64::max);
    let at = p.iter().position(|v| *v == top).unwrap_or(0);
    let second = p.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, v)| *v).fold(0.0, f64::max);
    (at, top - second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::Prompt;
    use crate::{Answer, Calibration, Kind, Question};
    use anemone_cpu::Scores;

    fn decided(logits: &[f32], action: [f32; 2]) -> Decisions {
        let criteria = r#"{"q": {"type": "choice", "instructions": "?", "criteria": ["a", "b", "c"]}}"#;
        let question = &Question::parse_all(&crate::Value::parse(criteria).unwrap()).unwrap()[0];
        assert_eq!(question.kind, Kind::Choice);
        let calibration = Calibration::of_config(&serde_json::Map::new()).unwrap();
        let prompt = Prompt {
            ids: vec![0; 8],
            markers: vec![2, 3, 4],
            options_end: 5,
            state_tokens: 2,
            state_tokens_used: 2,
            distinct_options: 3,
            tokens_per_option: None,
        };
        let answer = Answer::new(question, logits, &action, &calibration, None, None);
        let scores = Scores { logits: logits.to_vec(), action_logits: action.to_vec() };
        Decisions(vec![Decision { id: "q".into(), prompt, scores, answer }])
    }

    fn validated(found: &[Decisions], expected: &Decisions) -> Validation {
        let mut validation = Validation::new(Bar::default());
        validation.add("row", found, expected);
        validation
    }

    #[test]
    fn what_is_close_passes_and_what_is_not_fails() {
        let expected = decided(&[2.0, 1.0, 0.0], [1.0, 0.0]);
        assert!(!Validation::new(Bar::default()).passed(), "nothing compared is no pass");
        let near = decided(&[2.02, 1.0, 0.0], [1.0, 0.01]);
        let same = validated(&[near.clone(), near.clone()], &expected);
        assert!(same.passed() && same.agreed == 1 && same.probability_error > 0.0);
        let fails = |found: &[Decisions], what: &str| {
            let validation = validated(found, &expected);
            let named = validation.failures.iter().any(|f| f.contains(what));
            assert!(!validation.passed() && named, "{validation:?}");
        };
        fails(&[near, expected.clone()], "repeated calls differ");
        fails(&[decided(&[2.2, 1.0, 0.0], [1.0, 0.0])], "a probability is off by 0.0");
        fails(&[decided(&[2.0, 1.0, 0.0], [1.0, 0.2])], "the action's probability is off by 0.0");
        fails(&[decided(&[f32::NAN, 1.0, 0.0], [1.0, 0.0])], "not finite");
        fails(&[decided(&[2.0, 1.0, 0.0], [f32::NAN, 0.0])], "not finite");
        let mut longer = expected.clone();
        longer.0[0].prompt.ids.push(0);
        fails(&[longer], "the usage differs");
    }

    #[test]
    fn a_tie_is_a_lead_below_twice_the_tolerance() {
        let close = decided(&[1.02, 1.0, 0.0], [1.0, 0.0]);
        let other = validated(&[decided(&[1.0, 1.02, 0.0], [1.0, 0.0])], &close);
        assert!(other.passed() && other.agreed == 0 && other.ties.len() == 1, "{other:?}");
        let clear = decided(&[1.12, 1.0, 0.0], [1.0, 0.0]);
        let other = validated(&[decided(&[1.0, 1.12, 0.0], [1.0, 0.0])], &clear);
        assert!(other.failures.iter().any(|f| f.contains("option 1 is best instead of 0")), "{other:?}");
    }
}
