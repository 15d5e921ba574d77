//! States longer than a row, read window by window.

use crate::decider::{Decider, Decision, Decisions, Request};
use crate::question::{Kind, Question};
use crate::value::Value;
use crate::{Error, Result};

/// The least window by default, in tokens.
const MIN_WINDOW: usize = 64;
/// Tokens of a row that are neither instructions, options nor state, with some to spare.
const FRAME: usize = 8;

/// How a long state is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Windows {
    /// Tokens of a window; what the rows have room for when absent.
    pub window: Option<usize>,
    /// Tokens from the start of one to the next; half a window when absent.
    pub stride: Option<usize>,
}

impl Decider {
    /// Answers every question by the window of the state that speaks most clearly: the likeliest yes of a noul, the most
    /// confident answer of the others. A state that fits a window is answered as by [`Decider::decide`].
    ///
    /// Each answer names its window, and `usage` adds up all of them. The result object comes with a note where a window was asked
    /// that is larger than the rows have room for. A gate is refused: the best of many windows is no fair sample of confidence.
    pub fn decide_long(
        &mut self,
        state: &Value,
        questions: &[Question],
        windows: Windows,
        request: &Request,
    ) -> Result<(Value, Option<String>)> {
        if request.gate.is_some() {
            let problem =
                "cannot be used with windows; decide on the answers' confidences yourself".to_owned();
            return Err(Error::Argument { name: "min_confidence", problem });
        }
        let limits = self.limits_of(request)?;
        let mut room = usize::MAX;
        for question in questions {
            room = room.min(self.room(question, limits)?);
        }
        let default = limits.max_len.saturating_sub(limits.head_max_len + FRAME).max(MIN_WINDOW);
        let window = checked("window", windows.window)?.unwrap_or(default).min(room);
        let note = windows.window.filter(|asked| *asked > room).map(|asked| {
            format!("a window of {asked} tokens does not fit beside the questions; {room} are used")
        });
        let stride = match checked("stride", windows.stride)? {
            Some(stride) if stride > window => {
                let problem =
                    format!("is {stride}, more than the window of {window}: text between would be skipped");
                return Err(Error::Argument { name: "stride", problem });
            }
            Some(stride) => stride,
            None => (window / 2).max(1),
        };
        let ids = self.vocabulary().state(state)?.ids().to_vec();
        if questions.is_empty() || ids.len() <= window {
            return Ok((self.decide(state, questions, request)?.to_value(), note));
        }
        if window == 0 {
            let problem =
                "leaves no room for the state beside the questions; shorten them or raise it".to_owned();
            return Err(Error::Argument { name: "max_len", problem });
        }
        let count = 1 + (ids.len() - window).div_ceil(stride);
        let spans = (0..count).map(|i| (i * stride, (i * stride + window).min(ids.len())));
        let spans: Vec<(usize, usize)> = spans.collect();
        let mut texts = Vec::with_capacity(count);
        for (start, end) in &spans {
            texts.push(Value::Text(self.vocabulary().tokenizer().decode(&ids[*start..*end], false)?));
        }
        let texts: Vec<&Value> = texts.iter().collect();
        let decided = self.decide_all(&texts, questions, request)?;
        Ok((result(questions, &decided, &spans), note))
    }
}

fn checked(name: &'static str, asked: Option<usize>) -> Result<Option<usize>> {
    match asked {
        Some(0) => Err(Error::Argument { name, problem: "is 0, expected at least 1 token".to_owned() }),
        other => Ok(other),
    }
}

fn result(questions: &[Question], decided: &[Decisions], spans: &[(usize, usize)]) -> Value {
    let count = |n: usize| Value::int(n as i128);
    let answers = questions.iter().enumerate().map(|(q, question)| {
        let clarity = |d: &Decision| match question.kind {
            Kind::Noul => d.answer.probabilities()[1],
            _ => d.answer.confidence(),
        };
        let mut best = 0;
        for i in 1..decided.len() {
            if clarity(&decided[i].0[q]) > clarity(&decided[best].0[q]) {
                best = i;
            }
        }
        let mut fields = decided[best].0[q].answer.fields.clone();
        let (start, end) = spans[best];
        let window = [("index", best), ("token_start", start), ("token_end", end), ("count", spans.len())];
        let window = window.map(|(key, n)| (key.to_owned(), count(n)));
        fields.push(("window".to_owned(), Value::Map(window.to_vec())));
        (question.id.clone(), Value::Map(fields))
    });
    let answers = Value::Map(answers.collect());
    let usages: Vec<Value> = decided.iter().map(Decisions::usage).collect();
    let sum = |key: &str| {
        let of = |usage: &Value| match usage.get(key) {
            Some(Value::Bool(b)) => usize::from(*b),
            other => other.and_then(Value::as_usize).unwrap_or(0),
        };
        count(usages.iter().map(of).sum())
    };
    let mut cut: Vec<Value> = Vec::new();
    for id in usages.iter().filter_map(|u| u.get("truncated_questions")?.as_list()).flatten() {
        if !cut.contains(id) {
            cut.push(id.clone());
        }
    }
    let keys = ["input_tokens", "output_tokens", "state_tokens", "state_tokens_dropped", "truncated"];
    let mut usage: Vec<(String, Value)> = keys.map(|key| (key.to_owned(), sum(key))).to_vec();
    usage.push(("truncated_questions".to_owned(), Value::List(cut)));
    if let Some(options) = usages.iter().find_map(|u| u.get("options")) {
        usage.push(("options".to_owned(), options.clone()));
    }
    usage.push(("windows".to_owned(), count(spans.len())));
    Value::Map(vec![
        ("model".to_owned(), Value::text(crate::decider::MODEL)),
        ("answers".to_owned(), answers),
        ("usage".to_owned(), Value::Map(usage)),
    ])
}
