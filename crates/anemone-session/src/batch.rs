//! Several generations at once on one model.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use crate::{
    Constraint, Engine, EngineError, Error, Event, GenerateOptions, Generation, PassCost, Result, Sequence,
    Tokenizer,
};

mod slot;

use slot::Slot;

/// One sequence's share of a pass.
#[derive(Debug)]
pub struct Part<'a, E> {
    /// The sequence's engine.
    pub engine: &'a mut E,
    /// Tokens to append, one or more.
    pub tokens: &'a [u32],
    /// The last so many of them need logits: none, one or all.
    pub rows: usize,
}

/// An engine of which there can be several over one model, and whose passes can be joined.
pub trait Together: Engine + Sized {
    /// Another empty sequence over the same model; `None` where there can be only one.
    fn sibling(&self) -> Option<Self>;

    /// Takes over everything another one holds.
    fn copy_from(&mut self, other: &Self) -> Result<(), EngineError>;

    /// Appends tokens to several sequences; `visit` is shown the logits wanted: the part's index, the token's index in the part, the
    /// values, those of a part in order. A part that fails is empty afterwards or as it was, and disturbs no other.
    fn feed_together(
        parts: &mut [Part<'_, Self>],
        visit: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Vec<Result<(), EngineError>>;
}

/// Limits of a [`Batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchOptions {
    /// Most sequences that run at once.
    pub max_sequences: usize,
    /// Most sequences that wait.
    pub max_waiting: usize,
    /// Most tokens of prompts in one pass beside the sequences that decode, which bounds how long those are held up.
    pub prefill_tokens: usize,
    /// Most tokens all sequences may come to hold together, which bounds the memory of their states.
    pub max_tokens: usize,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self { max_sequences: 16, max_waiting: 64, prefill_tokens: 256, max_tokens: 65_536 }
    }
}

/// Names a sequence of a [`Batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(u64);

/// What happens to a sequence of a [`Batch`].
#[derive(Debug)]
pub enum Progress<'a> {
    /// The generation goes on.
    Event(Event<'a>),
    /// It came to its end.
    Finished(Generation),
    /// It could not go on.
    Failed(Error),
}

/// What [`Batch::step`] tells; breaking off at an [`Progress::Event`] cancels that sequence.
pub type OnProgress<'a> = &'a mut dyn FnMut(SequenceId, Progress<'_>) -> ControlFlow<()>;

/// A generation to run: a prompt, and each of its continuations.
#[derive(Default)]
pub struct Job {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How each continuation is drawn; the prompt is computed once for all of them, unless one tells of its log probabilities.
    pub continuations: Vec<(GenerateOptions, Option<Box<dyn Constraint>>)>,
}

/// Runs generations together, one pass at a time.
///
/// Every pass takes the next token (and drafts) of all sequences that decode, and a bounded piece of the prompts of those that begin,
/// which take turns. What a sequence generates does not depend on its company. Sequences wait in the order they came.
pub struct Batch<'t, E> {
    tokenizer: &'t Tokenizer,
    options: BatchOptions,
    /// The engine others are siblings of, while no sequence has it.
    idle: Option<E>,
    single: bool,
    context_len: usize,
    running: Vec<Slot<'t, E>>,
    waiting: VecDeque<Group<'t>>,
    cost: PassCost,
    next_id: u64,
    turn: usize,
}

/// Sequences with one prompt.
struct Group<'t> {
    sequences: Vec<(SequenceId, Sequence<'t>)>,
    /// Tokens they may come to hold.
    tokens: usize,
}

impl<'t, E: Together> Batch<'t, E> {
    /// A batch over a model, of which `engine` is the first sequence.
    pub fn new(mut engine: E, tokenizer: &'t Tokenizer, options: BatchOptions) -> Self {
        engine.reset();
        Self {
            tokenizer,
            options,
            single: engine.sibling().is_none(),
            context_len: engine.context_len(),
            idle: Some(engine),
            running: Vec::new(),
            waiting: VecDeque::new(),
            cost: PassCost::default(),
            next_id: 0,
            turn: 0,
        }
    }

    /// Sequences that run.
    pub fn running(&self) -> usize {
        self.running.iter().map(|slot| 1 + slot.followers.len()).sum()
    }

    /// Sequences that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.iter().map(|group| group.sequences.len()).sum()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Takes a job; gives a name to each of its continuations.
    ///
    /// Errors when it can never run, or with [`Error::Busy`] when too many wait.
    pub fn submit(&mut self, job: Job) -> Result<Vec<SequenceId>> {
        let count = job.continuations.len();
        let limit = |option, problem| Err(Error::Options { option, problem });
        if count == 0 || count > self.options.max_sequences {
            return limit("n", format!("is {count}; give 1 to {}", self.options.max_sequences));
        }
        let Some(engine) = self.idle.as_ref().or(self.running.first().map(|slot| &slot.engine)) else {
            unreachable!("the engine is idle or runs a sequence")
        };
        // Each that tells of the prompt's tokens computes them itself.
        let apart = self.single || job.continuations.iter().any(|(o, _)| o.prompt_logprobs.is_some());
        let mut tokens = 0;
        let mut sequences = Vec::with_capacity(count);
        for (options, constraint) in job.continuations {
            let new = options.max_new_tokens.unwrap_or(usize::MAX);
            tokens += job.prompt.len().saturating_add(new).min(self.context_len);
            let sequence = Sequence::new(engine, self.tokenizer, &job.prompt, options)?;
            sequences.push(sequence.with_constraint(constraint));
        }
        if tokens > self.options.max_tokens {
            let most = self.options.max_tokens;
            return limit(
                "max_tokens",
                format!("{tokens} tokens could be held where all sequences have {most}; ask for fewer"),
            );
        }
        if self.left_waiting(count) > self.options.max_waiting {
            return Err(Error::Busy { waiting: self.waiting(), limit: self.options.max_waiting });
        }
        let mut named = Vec::with_capacity(count);
        for sequence in sequences {
            named.push((SequenceId(self.next_id), sequence));
            self.next_id += 1;
        }
        let ids = named.iter().map(|(id, _)| *id).collect();
        if apart {
            let share = tokens / count;
            self.waiting.extend(named.into_iter().map(|s| Group { sequences: vec![s], tokens: share }));
        } else {
            self.waiting.push_back(Group { sequences: named, tokens });
        }
        Ok(ids)
    }

    /// How many sequences would wait beyond the next step if `count` more came.
    fn left_waiting(&self, count: usize) -> usize {
        let most = if self.single { 1 } else { self.options.max_sequences };
        let mut free = most.saturating_sub(self.running());
        let mut left = 0;
        for group in self.waiting.iter().map(|group| group.sequences.len()) {
            if left == 0 && group <= free {
                free -= group;
            } else {
                left += group;
            }
        }
        let begin = match left {
            0 if self.single => free.min(count),
            0 if count <= free => count,
            _ => 0,
        };
        left + count - begin
    }

    /// Ends a sequence; it is told of as finished by the next step.
    pub fn cancel(&mut self, id: SequenceId) {
        let waiting = self.waiting.iter_mut().flat_map(|group| &mut group.sequences);
        let followers = self.running.iter_mut().flat_map(|slot| {
            std::iter::once((&slot.id, &mut slot.sequence))
                .chain(slot.followers.iter_mut().map(|(id, s)| (&*id, s)))
        });
        let all = waiting.map(|(id, s)| (&*id, s)).chain(followers);
        if let Some((_, sequence)) = all.into_iter().find(|(known, _)| **known == id) {
            sequence.cancel();
        }
    }

    /// Computes one pass; `false` when there was nothing to do.
    pub fn step(&mut self, on_progress: OnProgress<'_>) -> bool {
        self.admit(on_progress);
        self.sweep(on_progress);
        if self.running.is_empty() {
            return false;
        }
        self.plan();
        let decodes = self.running.iter().all(|slot| slot.prefilled || slot.fed.is_empty());
        let total: usize = self.running.iter().map(|slot| slot.fed.len()).sum();
        if total > 0 {
            let start = Instant::now();
            self.pass(on_progress);
            if decodes {
                self.cost.record(total, start.elapsed().as_secs_f64());
            }
            for slot in &mut self.running {
                slot.complete(on_progress);
            }
        }
        self.fork(on_progress);
        self.sweep(on_progress);
        true
    }

    /// Starts those who wait, in order, as far as there is room.
    fn admit(&mut self, on_progress: OnProgress<'_>) {
        while let Some(mut group) = self.waiting.pop_front() {
            let cancelled = |(_, s): &(SequenceId, Sequence<'t>)| s.is_finished();
            for (id, sequence) in group.sequences.extract_if(.., |s| cancelled(s)) {
                report(id, sequence, on_progress);
            }
            if group.sequences.is_empty() {
                continue;
            }
            let held: usize = self.running.iter().map(|slot| slot.reserved).sum();
            let fits = self.running() + group.sequences.len() <= self.options.max_sequences
                && held + group.tokens <= self.options.max_tokens;
            let engine = if fits { self.engine() } else { None };
            let Some(mut engine) = engine else {
                self.waiting.push_front(group);
                return;
            };
            let (id, mut sequence) = group.sequences.remove(0);
            sequence.begin_cached(&mut engine, 0);
            self.running.push(Slot::new(id, engine, sequence, group.sequences, group.tokens));
        }
    }

    fn engine(&mut self) -> Option<E> {
        self.idle.take().or_else(|| self.running.first().and_then(|slot| slot.engine.sibling()))
    }

    /// Asks every sequence what it wants of the next pass.
    fn plan(&mut self) {
        let decoding = self.running.iter().filter(|slot| slot.sequence.prefill_left() == 0).count();
        for slot in self.running.iter_mut().filter(|slot| slot.sequence.prefill_left() == 0) {
            let most = slot.engine.most_drafts();
            slot.plan(usize::MAX, most, decoding - 1, &mut self.cost);
        }
        // Prompts take turns, so that a long one holds up no other; alone in a pass, one may be as long as it likes.
        let beginning: Vec<usize> =
            (0..self.running.len()).filter(|&i| self.running[i].sequence.prefill_left() > 0).collect();
        let alone = decoding == 0;
        let mut room = if alone { usize::MAX } else { self.options.prefill_tokens.max(1) };
        for turn in 0..beginning.len() {
            let slot = &mut self.running[beginning[(self.turn + turn) % beginning.len()]];
            slot.plan(room, 0, 0, &mut self.cost);
            room = if alone && !slot.fed.is_empty() { 0 } else { room - slot.fed.len().min(room) };
            if room == 0 {
                break;
            }
        }
        self.turn = self.turn.wrapping_add(1);
    }

    fn pass(&mut self, on_progress: OnProgress<'_>) {
        let mut parts = Vec::new();
        let mut others = Vec::new();
        for slot in self.running.iter_mut().filter(|slot| !slot.fed.is_empty()) {
            let Slot { id, engine, sequence, fed, rows, wants, failure, .. } = slot;
            parts.push(Part { engine, tokens: fed, rows: *rows });
            others.push((*id, sequence, wants, failure));
        }
        let results = E::feed_together(&mut parts, &mut |part, _, logits| {
            let (id, sequence, wants, failure) = &mut others[part];
            if !**wants {
                return;
            }
            match sequence.row(logits, &mut |event| on_progress(*id, Progress::Event(event))) {
                Ok(more) => **wants = more,
                Err(error) => {
                    **wants = false;
                    **failure = Some(error);
                }
            }
        });
        for (result, (_, _, _, failure)) in results.into_iter().zip(others) {
            if let Err(error) = result {
                *failure = Some(Error::Engine(error));
            }
        }
    }

    /// Gives every continuation of a prompt that is computed but for its last token an engine of its own.
    fn fork(&mut self, on_progress: OnProgress<'_>) {
        for at in 0..self.running.len() {
            let slot = &mut self.running[at];
            if slot.followers.is_empty() || slot.failure.is_some() || slot.sequence.prefill_left() > 1 {
                continue;
            }
            let share = slot.reserved / (1 + slot.followers.len());
            let held = slot.sequence.held();
            let mut forked = Vec::new();
            for (id, mut sequence) in std::mem::take(&mut slot.followers) {
                let engine =
                    slot.engine.sibling().ok_or_else(|| EngineError::new("the engine has no siblings"));
                match engine.and_then(|mut e| e.copy_from(&slot.engine).map(|()| e)) {
                    Ok(engine) => {
                        sequence.begin_behind(held);
                        forked.push(Slot::new(id, engine, sequence, Vec::new(), share));
                    }
                    Err(error) => {
                        let _ = on_progress(id, Progress::Failed(Error::Engine(error)));
                    }
                }
            }
            slot.reserved = share;
            self.running.extend(forked);
        }
    }

    /// Takes out the sequences that ended.
    fn sweep(&mut self, on_progress: OnProgress<'_>) {
        let mut at = 0;
        while at < self.running.len() {
            if self.running[at].sequence.is_finished() || self.running[at].failure.is_some() {
                let slot = self.running.remove(at);
                self.retire(slot, on_progress);
            } else {
                at += 1;
            }
        }
    }

    fn retire(&mut self, slot: Slot<'t, E>, on_progress: OnProgress<'_>) {
        let Slot { id, mut engine, sequence, mut followers, failure, reserved, .. } = slot;
        match failure {
            Some(error) => {
                let _ = on_progress(id, Progress::Failed(error));
            }
            None => report(id, sequence, on_progress),
        }
        engine.reset();
        if !followers.is_empty() {
            // The first continuation ended before the prompt was computed; another takes its place.
            let (id, mut sequence) = followers.remove(0);
            sequence.begin_cached(&mut engine, 0);
            self.running.push(Slot::new(id, engine, sequence, followers, reserved));
        } else if self.running.is_empty() {
            self.idle = Some(engine);
        }
    }
}

/// Tells of a sequence that ended.
fn report(id: SequenceId, sequence: Sequence<'_>, on_progress: OnProgress<'_>) {
    if let Some(generation) = sequence.into_generation() {
        let _ = on_progress(id, Progress::Finished(generation));
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("prompt", &self.prompt.len())
            .field("continuations", &self.continuations.len())
            .finish()
    }
}

impl<E> std::fmt::Debug for Batch<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("options", &self.options)
            .field("running", &self.running.len())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
