use super::reply::{Event, Numbered, OutputItem, OutputPart, Status};
use crate::openai::stream::Piece;
use crate::openai::unique;

/// Events that are still to be sent.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Events made.
    made: u64,
    pieces: Vec<Piece>,
}

impl Events {
    pub(super) fn push(&mut self, event: Event<'_>) {
        let piece = self.piece(event);
        self.pieces.push(piece);
        self.made += 1;
    }

    /// An event that comes next, if it is sent.
    pub(super) fn piece(&self, event: Event<'_>) -> Piece {
        Piece::typed(&Numbered { event, sequence_number: self.made })
    }

    pub(super) fn take(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }
}

/// An item of a response's output.
#[derive(Debug)]
pub(super) struct Item {
    id: String,
    kind: Kind,
    text: String,
    status: Status,
}

#[derive(Debug)]
enum Kind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl Item {
    fn new(prefix: &str, kind: Kind) -> Self {
        Self { id: unique(prefix), kind, text: String::new(), status: Status::InProgress }
    }

    pub(super) fn reasoning() -> Self {
        Self::new("rs_", Kind::Reasoning)
    }

    pub(super) fn message() -> Self {
        Self::new("msg_", Kind::Message)
    }

    pub(super) fn call(id: String, name: String) -> Self {
        Self::new("fc_", Kind::Call { id, name })
    }

    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.kind, Kind::Reasoning)
    }

    pub(super) fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Message)
    }

    pub(super) fn is_call(&self) -> bool {
        matches!(self.kind, Kind::Call { .. })
    }

    pub(super) fn is_done(&self) -> bool {
        self.status != Status::InProgress
    }

    /// Its text as a part of its content.
    fn part(&self) -> OutputPart<'_> {
        match self.kind {
            Kind::Reasoning => OutputPart::ReasoningText { text: &self.text },
            _ => OutputPart::OutputText { text: &self.text, annotations: [], logprobs: [] },
        }
    }

    pub(super) fn reply(&self) -> OutputItem<'_> {
        let (id, status) = (self.id.as_str(), self.status);
        let content = if self.text.is_empty() { Vec::new() } else { vec![self.part()] };
        match &self.kind {
            Kind::Reasoning => OutputItem::Reasoning { id, summary: [], content, status },
            Kind::Message => OutputItem::Message { id, role: "assistant", content, status },
            Kind::Call { id: call_id, name } => {
                OutputItem::FunctionCall { id, call_id, name, arguments: &self.text, status }
            }
        }
    }

    /// Tells of its beginning as item `output_index` of the output.
    pub(super) fn open(&self, output_index: usize, events: &mut Events) {
        events.push(Event::ItemAdded { output_index, item: self.reply() });
        if !self.is_call() {
            let (item_id, part) = (self.id.as_str(), self.part());
            events.push(Event::PartAdded { item_id, output_index, content_index: 0, part });
        }
    }

    /// Adds text and tells so.
    pub(super) fn add(&mut self, output_index: usize, delta: &str, events: &mut Events) {
        self.text.push_str(delta);
        let (item_id, content_index) = (self.id.as_str(), 0);
        events.push(match self.kind {
            Kind::Reasoning => Event::ReasoningDelta { item_id, output_index, content_index, delta },
            Kind::Message => Event::TextDelta { item_id, output_index, content_index, delta, logprobs: [] },
            Kind::Call { .. } => Event::ArgumentsDelta { item_id, output_index, delta },
        });
    }

    /// Ends it, whole or cut off, and tells so.
    pub(super) fn finish(&mut self, output_index: usize, cut: bool, events: &mut Events) {
        self.status = if cut { Status::Incomplete } else { Status::Completed };
        let (item_id, text, content_index) = (self.id.as_str(), self.text.as_str(), 0);
        events.push(match &self.kind {
            Kind::Reasoning => Event::ReasoningDone { item_id, output_index, content_index, text },
            Kind::Message => Event::TextDone { item_id, output_index, content_index, text, logprobs: [] },
            Kind::Call { name, .. } => Event::ArgumentsDone { item_id, output_index, arguments: text, name },
        });
        if !self.is_call() {
            events.push(Event::PartDone { item_id, output_index, content_index, part: self.part() });
        }
        events.push(Event::ItemDone { output_index, item: self.reply() });
    }
}
