use super::{OnProgress, Progress, SequenceId};
use crate::{Engine, Error, PassCost, Sequence};

/// A sequence that runs.
pub(super) struct Slot<'t, E> {
    pub(super) id: SequenceId,
    pub(super) engine: E,
    pub(super) sequence: Sequence<'t>,
    /// Sequences with the same prompt that wait for it to be computed.
    pub(super) followers: Vec<(SequenceId, Sequence<'t>)>,
    /// Tokens they may come to hold together.
    pub(super) reserved: usize,
    /// What this pass computes for it.
    pub(super) fed: Vec<u32>,
    pub(super) rows: usize,
    /// Whether the next row is of use.
    pub(super) wants: bool,
    /// Whether the pass is past the prompt.
    pub(super) prefilled: bool,
    pub(super) failure: Option<Error>,
}

impl<'t, E: Engine> Slot<'t, E> {
    pub(super) fn new(
        id: SequenceId,
        engine: E,
        sequence: Sequence<'t>,
        followers: Vec<(SequenceId, Sequence<'t>)>,
        reserved: usize,
    ) -> Self {
        Self {
            id,
            engine,
            sequence,
            followers,
            reserved,
            fed: Vec::new(),
            rows: 0,
            wants: false,
            prefilled: false,
            failure: None,
        }
    }

    /// Asks the sequence what to compute.
    pub(super) fn plan(&mut self, room: usize, drafts: usize, others: usize, cost: &mut PassCost) {
        self.prefilled = self.sequence.prefill_left() == 0;
        // With others behind it, the last token of the prompt is each one's own.
        let left = self.sequence.prefill_left();
        let room = if self.followers.is_empty() { room } else { room.min(left - 1) };
        if room == 0 {
            return;
        }
        match self.sequence.step(room, drafts, others, cost) {
            Ok(Some(step)) => {
                self.fed.extend_from_slice(step.tokens);
                self.rows = step.rows;
                self.wants = step.rows > 0;
            }
            Ok(None) => {}
            Err(error) => self.failure = Some(error),
        }
    }

    /// Ends the pass for this sequence.
    pub(super) fn complete(&mut self, on_progress: OnProgress<'_>) {
        if self.fed.is_empty() {
            return;
        }
        let fed = std::mem::take(&mut self.fed);
        if self.failure.is_some() {
            return;
        }
        let id = self.id;
        let kept = self.sequence.complete(&mut |event| on_progress(id, Progress::Event(event)));
        let stepped_back = match kept {
            Ok(kept) if kept < fed.len() => crate::generate::step_back(&mut self.engine, &self.sequence),
            other => other.map(|_| ()),
        };
        self.failure = stepped_back.err();
        if self.failure.is_none() {
            self.sequence.keep_blocks(&self.engine);
        }
    }
}
