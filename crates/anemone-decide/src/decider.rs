//! A decision model at work: states and questions to answers.

use std::sync::Arc;

use anemone_bundle::DecisionBundle;
use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::{LayaEngine, LayaModel, LayaOptions, Parallel, Row, Scores};
use anemone_mil::Executor;
use anemone_models::{Config, Laya};

use crate::answer::Answer;
use crate::calibration::Calibration;
use crate::gate::Gate;
use crate::graph::GraphScorer;
use crate::prompt::{Limits, Prompt, QuestionTokens, StateTokens, Vocabulary};
use crate::question::Question;
use crate::scorer::Scorer;
use crate::swap::{Coming, SwapScorer, Turns};
use crate::value::Value;
use crate::{Error, Result};

/// Name of the family, which results carry.
pub(crate) const MODEL: &str = "laya-rl-agent";

/// How options stand in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OptionLayout {
    /// One after the other.
    Sequential,
    /// Side by side: they share positions and do not see each other.
    Parallel,
}

/// Choices of a call.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Tokens a row may have; the model's own limit when absent.
    pub max_len: Option<usize>,
    /// Tokens instructions and options may have; the model's own limit when absent.
    pub head_max_len: Option<usize>,
    /// Language of the state, for temperatures set by language.
    pub language: Option<String>,
    /// The least confidence an answer should have.
    pub gate: Option<Gate>,
}

/// A decision model with its tokenizer and calibration.
#[derive(Debug)]
pub struct Decider {
    engine: Box<dyn Scorer>,
    vocabulary: Vocabulary,
    calibration: Calibration,
    limits: Limits,
    layout: OptionLayout,
}

/// A question's row and what the model made of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Id of the question.
    pub id: String,
    /// What the model read.
    pub prompt: Prompt,
    /// Its scores, in slot order.
    pub scores: Scores,
    /// The answer.
    pub answer: Answer,
}

/// The decisions about one state, in the order of the questions.
#[derive(Debug, Clone, PartialEq)]
pub struct Decisions(pub Vec<Decision>);

/// The native engine over a snapshot.
fn native(checkpoint: &DecisionCheckpoint, options: LayaOptions) -> Result<Box<dyn Scorer>> {
    let weights = checkpoint.weights();
    let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights)?;
    let model = Arc::new(LayaModel::load(laya, &*weights)?);
    Ok(Box::new(LayaEngine::new(model, options)))
}

impl Decider {
    /// Loads a snapshot for the native engine.
    pub fn load(checkpoint: &DecisionCheckpoint, options: LayaOptions) -> Result<Self> {
        Self::with_engine(checkpoint, |_| native(checkpoint, options))
    }

    /// [`Decider::load`] until another engine has come, which then runs what it can; what becomes of it is told.
    pub fn load_until(
        checkpoint: &DecisionCheckpoint,
        options: LayaOptions,
        coming: Coming,
    ) -> Result<(Self, Turns)> {
        let mut turns = Turns::default();
        let decider = Self::with_engine(checkpoint, |_| {
            let swap = SwapScorer::new(native(checkpoint, options)?, coming);
            turns = swap.turns();
            Ok(Box::new(swap))
        })?;
        Ok((decider, turns))
    }

    /// Opens a converted model to run on `executor`, each row by the shortest function that holds it.
    pub fn open(bundle: DecisionBundle, executor: Box<dyn Executor>) -> Result<Self> {
        let checkpoint = bundle.checkpoint()?;
        Self::with_engine(&checkpoint, |vocabulary| {
            Ok(Box::new(GraphScorer::open(bundle, &checkpoint, executor, vocabulary.pad())?))
        })
    }

    /// Loads a snapshot to run on the scorer that `make` gives for its vocabulary.
    pub fn with_engine(
        checkpoint: &DecisionCheckpoint,
        make: impl FnOnce(&Vocabulary) -> Result<Box<dyn Scorer>>,
    ) -> Result<Self> {
        let agent = checkpoint.agent_config();
        let config = Config::of(agent, "rl_agent_config.json");
        let limits = Limits {
            max_len: config.count("max_len")?.unwrap_or(512),
            head_max_len: config.count("head_max_len")?.unwrap_or(192),
        };
        let layout = match config.text("option_layout")? {
            None | Some("sequential") => OptionLayout::Sequential,
            Some("parallel") => OptionLayout::Parallel,
            Some(other) => {
                let problem = format!("is `{other}`; supported are `sequential` and `parallel`");
                return Err(config.error("option_layout", problem).into());
            }
        };
        let calibration = Calibration::of_config(agent)?;
        let vocabulary = Vocabulary::new(&checkpoint.tokenizer_json()?, checkpoint.tokenizer_config())?;
        let engine = make(&vocabulary)?;
        Ok(Self { engine, vocabulary, calibration, limits, layout })
    }

    /// What runs the rows.
    pub fn engine(&self) -> &dyn Scorer {
        &*self.engine
    }

    pub(crate) fn engine_mut(&mut self) -> &mut dyn Scorer {
        &mut *self.engine
    }

    /// Lets the questions of a call share rows from now on; an error when the engine has no use for it or the bundle no
    /// functions for it. Answers stay what they are.
    pub fn pack(&mut self) -> Result<()> {
        self.engine.pack()
    }

    /// The tokenizer and its special tokens.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The calibration.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// The calibration, to be changed or replaced.
    pub fn calibration_mut(&mut self) -> &mut Calibration {
        &mut self.calibration
    }

    /// The model's own limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Answers every question about a state in one pass.
    pub fn decide(&mut self, state: &Value, questions: &[Question], request: &Request) -> Result<Decisions> {
        let mut all = self.decide_all(&[state], questions, request)?;
        Ok(all.pop().unwrap_or(Decisions(Vec::new())))
    }

    /// Answers the same questions about every state in one pass, in the order of the states.
    pub fn decide_all(
        &mut self,
        states: &[&Value],
        questions: &[Question],
        request: &Request,
    ) -> Result<Vec<Decisions>> {
        let asked: Vec<(&Value, &[Question])> = states.iter().map(|state| (*state, questions)).collect();
        self.decide_each(&asked, request)
    }

    /// Answers each state's own questions in one pass, in the order given.
    pub fn decide_each(
        &mut self,
        asked: &[(&Value, &[Question])],
        request: &Request,
    ) -> Result<Vec<Decisions>> {
        let limits = self.limits_of(request)?;
        let mut prompts = Vec::new();
        // States in a row are mostly asked the same; the questions are then tokenised once.
        let mut last: (&[Question], Vec<QuestionTokens>) = (&[], Vec::new());
        for &(state, questions) in asked {
            let tokens = self.vocabulary.state(state)?;
            if questions != last.0 {
                let read = questions.iter().map(|question| self.vocabulary.question(question, limits));
                last = (questions, read.collect::<Result<_>>()?);
            }
            for (question, read) in questions.iter().zip(&last.1) {
                let prompt = read.about(&tokens, limits)?;
                let admitted = self.engine.admits(prompt.ids.len(), prompt.markers.len());
                admitted.map_err(|problem| Error::question(&question.id, problem))?;
                prompts.push(prompt);
            }
        }
        let questions = asked.iter().flat_map(|(_, questions)| *questions);
        let scores = self.score(prompts.iter().zip(questions.clone().map(|q| q.kind.index())))?;
        let mut rows = prompts.into_iter().zip(scores).zip(questions).map(|((prompt, scores), question)| {
            let answer = Answer::new(
                question,
                &scores.logits,
                &scores.action_logits,
                &self.calibration,
                request.language.as_deref(),
                request.gate.as_ref(),
            );
            Decision { id: question.id.clone(), prompt, scores, answer }
        });
        Ok(asked.iter().map(|(_, q)| Decisions(rows.by_ref().take(q.len()).collect())).collect())
    }

    /// The row of each question about a state, without running the model.
    pub fn prompts(&self, state: &Value, questions: &[Question], request: &Request) -> Result<Vec<Prompt>> {
        let (limits, tokens) = (self.limits_of(request)?, self.vocabulary.state(state)?);
        questions.iter().map(|question| self.vocabulary.prompt(question, &tokens, limits)).collect()
    }

    /// Tokens of each question's instructions and options that its rows leave out, 0 where all fit; results do not tell.
    pub fn cut(&self, questions: &[Question], request: &Request) -> Result<Vec<usize>> {
        let limits = self.limits_of(request)?;
        questions.iter().map(|question| Ok(self.vocabulary.question(question, limits)?.cut)).collect()
    }

    /// The scores of rows made before, one for each question: the model alone, without reading or answering.
    pub fn scores(&mut self, prompts: &[Prompt], questions: &[Question]) -> Result<Vec<Scores>> {
        self.score(prompts.iter().zip(questions.iter().map(|q| q.kind.index())))
    }

    pub(crate) fn limits_of(&self, request: &Request) -> Result<Limits> {
        let longest = self.engine.laya().encoder.max_position_embeddings;
        let checked = |name, asked: Option<usize>, own: usize| match asked {
            None => Ok(own),
            Some(n) if (1..=longest).contains(&n) => Ok(n),
            Some(n) => {
                let problem =
                    format!("is {n}, expected 1 to {longest} (the encoder's max_position_embeddings)");
                Err(Error::Argument { name, problem })
            }
        };
        Ok(Limits {
            max_len: checked("max_len", request.max_len, self.limits.max_len)?,
            head_max_len: checked("head_max_len", request.head_max_len, self.limits.head_max_len)?,
        })
    }

    /// Most state tokens that fit a row of this question.
    pub(crate) fn room(&self, question: &Question, limits: Limits) -> Result<usize> {
        let empty = StateTokens::empty();
        let used = self.vocabulary.prompt(question, &empty, limits)?.ids.len();
        Ok(limits.max_len.saturating_sub(used))
    }

    fn score<'a>(&mut self, prompts: impl Iterator<Item = (&'a Prompt, usize)>) -> Result<Vec<Scores>> {
        let prompts: Vec<(&Prompt, usize)> = prompts.collect();
        let spans: Vec<Option<(Vec<u32>, Vec<u32>)>> = (prompts.iter())
            .map(|(prompt, _)| (self.layout == OptionLayout::Parallel).then(|| side_by_side(prompt)))
            .collect();
        let rows: Vec<Row<'_>> = (prompts.iter().zip(&spans))
            .map(|((prompt, kind), spans)| Row {
                ids: &prompt.ids,
                markers: &prompt.markers,
                kind: *kind,
                parallel: spans.as_ref().map(|(positions, options)| Parallel { positions, options }),
            })
            .collect();
        // Rows of like length together waste least; the order changes no result.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|i| rows[*i].ids.len());
        let sorted: Vec<Row<'_>> = order.iter().map(|i| rows[*i]).collect();
        let mut scores: Vec<(usize, Scores)> = order.into_iter().zip(self.engine.score(&sorted)?).collect();
        scores.sort_by_key(|(i, _)| *i);
        Ok(scores.into_iter().map(|(_, scores)| scores).collect())
    }
}

/// Positions and options of the tokens of a row whose options stand side by side.
fn side_by_side(prompt: &Prompt) -> (Vec<u32>, Vec<u32>) {
    let (first, end) = (prompt.markers.first().copied().unwrap_or(prompt.options_end), prompt.options_end);
    let ends = prompt.markers.iter().skip(1).copied().chain([end]);
    let longest = prompt.markers.iter().zip(ends).map(|(start, end)| end - start).max().unwrap_or(0);
    let place = |i: usize| {
        if i < first {
            return (i as u32, 0);
        }
        if i >= end {
            return ((first + longest + i - end) as u32, 0);
        }
        let option = prompt.markers.partition_point(|marker| *marker <= i);
        ((first + i - prompt.markers[option - 1]) as u32, option as u32)
    };
    (0..prompt.ids.len()).map(place).unzip()
}

impl Decisions {
    /// The result object: `model`, `answers` by id, `usage`.
    pub fn to_value(&self) -> Value {
        let answers = self.0.iter().map(|d| (d.id.clone(), d.answer.to_value())).collect();
        Value::Map(vec![
            ("model".to_owned(), Value::text(MODEL)),
            ("answers".to_owned(), Value::Map(answers)),
            ("usage".to_owned(), self.usage()),
        ])
    }

    /// Each row for inspection: `id`, `ids`, `markers`, `logits`, `action_logits`.
    pub fn rows(&self) -> Value {
        let whole = |list: &[usize]| Value::List(list.iter().map(|n| Value::int(*n as i128)).collect());
        let floats = |list: &[f32]| Value::List(list.iter().map(|v| Value::Float(f64::from(*v))).collect());
        let row = |d: &Decision| {
            let ids = Value::List(d.prompt.ids.iter().map(|id| Value::int(*id)).collect());
            Value::Map(vec![
                ("id".to_owned(), Value::text(&d.id)),
                ("ids".to_owned(), ids),
                ("markers".to_owned(), whole(&d.prompt.markers)),
                ("logits".to_owned(), floats(&d.scores.logits)),
                ("action_logits".to_owned(), floats(&d.scores.action_logits)),
            ])
        };
        Value::List(self.0.iter().map(row).collect())
    }

    /// What was read: token counts, and what was cut.
    pub fn usage(&self) -> Value {
        let count = |n: usize| Value::int(n as i128);
        let tokens: usize = self.0.iter().map(|d| d.prompt.ids.len()).sum();
        let mut usage =
            vec![("input_tokens".to_owned(), count(tokens)), ("output_tokens".to_owned(), count(0))];
        let Some(first) = self.0.first() else { return Value::Map(usage) };
        let dropped = |d: &Decision| d.prompt.state_tokens - d.prompt.state_tokens_used;
        let worst = self.0.iter().map(dropped).max().unwrap_or(0);
        let cut = self.0.iter().filter(|d| dropped(d) > 0).map(|d| Value::text(&d.id)).collect();
        usage.push(("state_tokens".to_owned(), count(first.prompt.state_tokens)));
        usage.push(("state_tokens_dropped".to_owned(), count(worst)));
        usage.push(("truncated".to_owned(), Value::Bool(worst > 0)));
        usage.push(("truncated_questions".to_owned(), Value::List(cut)));
        let collapsed: Vec<(String, Value)> = (self.0.iter())
            .filter(|d| d.prompt.distinct_options < d.prompt.markers.len())
            .map(|d| {
                let per = d.prompt.tokens_per_option.map_or(Value::Null, count);
                let entry = vec![
                    ("total".to_owned(), count(d.prompt.markers.len())),
                    ("distinct".to_owned(), count(d.prompt.distinct_options)),
                    ("tokens_per_option".to_owned(), per),
                ];
                (d.id.clone(), Value::Map(entry))
            })
            .collect();
        if !collapsed.is_empty() {
            usage.push(("options".to_owned(), Value::Map(collapsed)));
        }
        Value::Map(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_side_by_side_share_positions() {
        let prompt = Prompt {
            ids: vec![0; 12],
            markers: vec![3, 5, 8],
            options_end: 9,
            state_tokens: 0,
            state_tokens_used: 0,
            distinct_options: 3,
            tokens_per_option: None,
        };
        let (positions, options) = side_by_side(&prompt);
        assert_eq!(positions, [0, 1, 2, 3, 4, 3, 4, 5, 3, 6, 7, 8]);
        assert_eq!(options, [0, 0, 0, 1, 1, 2, 2, 2, 3, 0, 0, 0]);
    }
}
