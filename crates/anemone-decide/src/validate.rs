//! Whether a converted model still decides as the one it was made from.

use crate::answer::Answer;
use crate::decider::{Decision, Decisions};
use crate::value::Value;

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

/// What must hold of every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The likeliest option is the reference's, but for ties.
    BestOption,
    /// No calibrated probability is off by more than the tolerance.
    Probability,
    /// No probability of the action is.
    Action,
    /// Every number is finite.
    Finite,
    /// The tokens and markers are the reference's.
    Tokens,
    /// The usage is.
    Usage,
    /// Repeated calls give the same, to the bit.
    Repeats,
    /// The reference's answers are those its scores give with the model's calibration.
    Calibration,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::BestOption,
        Self::Probability,
        Self::Action,
        Self::Finite,
        Self::Tokens,
        Self::Usage,
        Self::Repeats,
        Self::Calibration,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::BestOption => "best_option",
            Self::Probability => "probability",
            Self::Action => "action",
            Self::Finite => "finite",
            Self::Tokens => "tokens",
            Self::Usage => "usage",
            Self::Repeats => "repeats",
            Self::Calibration => "calibration",
        }
    }
}

/// A rule that a row breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The rule.
    pub rule: Rule,
    /// The row and what is wrong with it.
    pub line: String,
}

/// What the reference says of a question.
#[derive(Debug, Clone)]
pub struct Expected<'a> {
    /// Token ids of the row.
    pub ids: &'a [u32],
    /// Places of the markers.
    pub markers: &'a [usize],
    /// What was read, when it is known.
    pub usage: Option<Value>,
    /// The answer.
    pub answer: &'a Answer,
}

impl<'a> Expected<'a> {
    /// An answer that was just given.
    pub fn of(decision: &'a Decision) -> Self {
        Self {
            ids: &decision.prompt.ids,
            markers: &decision.prompt.markers,
            usage: Some(Decisions(vec![decision.clone()]).usage()),
            answer: &decision.answer,
        }
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
    /// Rows whose best option was another where the reference holds the best two closer together than [`Validation::tie_margin`].
    pub ties: Vec<String>,
    /// Rows that could not be compared, and why.
    pub skipped: Vec<String>,
    /// What does not pass.
    pub failures: Vec<Failure>,
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

    /// How far apart the reference must hold the best two options for another best one to be a failure: both may be off by the
    /// tolerance.
    pub fn tie_margin(&self) -> f64 {
        2.0 * self.bar.tolerance
    }

    /// Compares repeated answers to one question with the reference's; `name` is the row's in reports.
    pub fn add(&mut self, name: &str, found: &[Decision], expected: &Expected<'_>) {
        self.validated += 1;
        let Some(ours) = found.first() else {
            return self.fail(Rule::Repeats, name, "has no answer");
        };
        // Not by `==`, which a NaN would break.
        let scores = |d: &Decision| -> Vec<u32> {
            d.scores.logits.iter().chain(&d.scores.action_logits).map(|v| v.to_bits()).collect()
        };
        let same = |again: &Decision| again.prompt == ours.prompt && scores(again) == scores(ours);
        if !found.iter().all(same) {
            self.fail(Rule::Repeats, name, "repeated calls differ");
        }
        let usage = Decisions(vec![ours.clone()]).usage();
        if expected.usage.as_ref().is_some_and(|expected| *expected != usage) {
            self.fail(Rule::Usage, name, "the usage differs");
        }
        if ours.prompt.ids != expected.ids || ours.prompt.markers != expected.markers {
            return self.fail(Rule::Tokens, name, "the tokens differ");
        }
        self.compare(name, &ours.answer, expected.answer);
    }

    fn compare(&mut self, name: &str, ours: &Answer, theirs: &Answer) {
        let (p, q) = (ours.probabilities(), theirs.probabilities());
        let act = (ours.act_probability() - theirs.act_probability()).abs();
        let pairs = p.iter().zip(q);
        let largest =
            pairs.fold(0.0f64, |most, (p, q)| if (p - q).abs() <= most { most } else { (p - q).abs() });
        if !largest.is_finite() || !act.is_finite() {
            return self.fail(Rule::Finite, name, "a probability is not finite");
        }
        let tolerance = self.bar.tolerance;
        for (rule, what, error) in
            [(Rule::Probability, "a probability", largest), (Rule::Action, "the action's probability", act)]
        {
            if error > tolerance {
                self.fail(rule, name, &format!("{what} is off by {error:.5}, more than {tolerance}"));
            }
        }
        self.probability_error = self.probability_error.max(largest);
        self.action_error = self.action_error.max(act);
        let ((found, _), (expected, margin)) = (best(p), best(q));
        if found == expected {
            self.agreed += 1;
            return;
        }
        let problem =
            format!("option {found} is best instead of {expected}, {margin:.5} apart in the reference");
        if margin < self.tie_margin() {
            self.ties.push(format!("{name}: {problem}"));
        } else {
            self.fail(Rule::BestOption, name, &problem);
        }
    }

    /// Counts a row that could not be compared.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.push(format!("{name}: {reason}"));
    }

    /// Counts a rule that a row breaks.
    pub fn fail(&mut self, rule: Rule, name: &str, problem: &str) {
        self.failures.push(Failure { rule, line: format!("{name}: {problem}") });
    }

    /// Whether every row that was compared keeps a rule.
    pub fn keeps(&self, rule: Rule) -> bool {
        self.failures.iter().all(|failure| failure.rule != rule)
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
    use crate::{Calibration, Kind, Question};
    use anemone_cpu::Scores;

    fn decided(logits: &[f32], action: [f32; 2]) -> Decision {
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
        Decision { id: "q".into(), prompt, scores, answer }
    }

    fn validated(found: &[Decision], expected: &Decision) -> Validation {
        let mut validation = Validation::new(Bar::default());
        validation.add("row", found, &Expected::of(expected));
        validation
    }

    #[test]
    fn what_is_close_passes_and_what_is_not_fails() {
        let expected = decided(&[2.0, 1.0, 0.0], [1.0, 0.0]);
        assert!(!Validation::new(Bar::default()).passed(), "nothing compared is no pass");
        let near = decided(&[2.02, 1.0, 0.0], [1.0, 0.01]);
        let same = validated(&[near.clone(), near.clone()], &expected);
        assert!(same.passed() && same.agreed == 1 && same.probability_error > 0.0);
        let fails = |found: &[Decision], rule: Rule, what: &str| {
            let validation = validated(found, &expected);
            let named = validation.failures.iter().any(|f| f.line.contains(what));
            assert!(!validation.passed() && named && !validation.keeps(rule), "{validation:?}");
        };
        fails(&[near, expected.clone()], Rule::Repeats, "repeated calls differ");
        fails(&[decided(&[2.2, 1.0, 0.0], [1.0, 0.0])], Rule::Probability, "a probability is off by 0.0");
        fails(
            &[decided(&[2.0, 1.0, 0.0], [1.0, 0.2])],
            Rule::Action,
            "the action's probability is off by 0.0",
        );
        fails(&[decided(&[f32::NAN, 1.0, 0.0], [1.0, 0.0])], Rule::Finite, "not finite");
        fails(&[decided(&[2.0, 1.0, 0.0], [f32::NAN, 0.0])], Rule::Finite, "not finite");
        let mut longer = expected.clone();
        longer.prompt.ids.push(0);
        fails(&[longer.clone()], Rule::Usage, "the usage differs");
        fails(&[longer], Rule::Tokens, "the tokens differ");
    }

    #[test]
    fn a_tie_is_a_lead_below_twice_the_tolerance() {
        let close = decided(&[1.02, 1.0, 0.0], [1.0, 0.0]);
        let other = validated(&[decided(&[1.0, 1.02, 0.0], [1.0, 0.0])], &close);
        assert!(other.passed() && other.agreed == 0 && other.ties.len() == 1, "{other:?}");
        let clear = decided(&[1.12, 1.0, 0.0], [1.0, 0.0]);
        let other = validated(&[decided(&[1.0, 1.12, 0.0], [1.0, 0.0])], &clear);
        assert!(other.failures.iter().any(|f| f.line.contains("option 1 is best instead of 0")), "{other:?}");
    }
}
