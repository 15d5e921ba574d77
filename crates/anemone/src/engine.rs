mod coreml;
mod graph;
mod swap;

use std::sync::Arc;

use anemone_ane::Pass;
use anemone_cpu::{Arithmetic, LogitsOf, Snapshot};
use anemone_emulator::Profile;
use anemone_kernels::Level;
use anemone_models::Stack;
use anemone_session::{Block, BlockFormat, Engine as _, EngineError, Part, Tap, Together, Traced};
use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::args::EngineArgs;
pub(crate) use coreml::{CoreMlArgs, compiled_models, fault, notes as core_ml_notes};
pub(crate) use graph::OnGraph;
pub(crate) use swap::Swapping;

/// Tokens whose logits are held at once.
const PART: usize = 256;

/// What runs a model.
#[derive(Debug)]
pub(crate) enum Engine {
    /// The native engine.
    Cpu(Box<anemone_cpu::Engine>),
    /// A bundle's packages.
    Graph(Box<OnGraph>),
    /// The native engine until Core ML has come.
    Swap(Box<Swapping>),
}

/// A state to come back to.
#[derive(Debug)]
pub(crate) enum Start {
    Snapshot(Box<Snapshot>),
    Tokens(Vec<u32>),
}

impl Engine {
    pub(crate) fn stack(&self) -> &Stack {
        match self {
            Self::Cpu(e) => e.model().stack(),
            Self::Graph(e) => e.graph.stack(),
            Self::Swap(e) => e.model.stack(),
        }
    }

    /// `cpu`, `emulator`, `coreml`, or the one at work of those that take turns.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Cpu(_) => "cpu",
            Self::Graph(e) => e.runner.name(),
            Self::Swap(e) => e.name(),
        }
    }

    /// What a user should know of where the model ran, in the order it came about.
    pub(crate) fn notes(&self) -> Vec<String> {
        match self {
            Self::Cpu(_) => Vec::new(),
            Self::Graph(e) => e.notes(),
            Self::Swap(e) => e.story(),
        }
    }

    /// What Core ML loaded, and how engines took turns; `None` where it was not asked for.
    pub(crate) fn core_ml_report(&self) -> Option<Value> {
        match self {
            Self::Cpu(_) => None,
            Self::Graph(e) => e.report(),
            Self::Swap(e) => Some(json!({"turns": e.story()})),
        }
    }

    /// `fast` or `exact` on the native engine, else the emulator's profile.
    pub(crate) fn arithmetic(&self, args: &EngineArgs) -> &str {
        match self {
            Self::Graph(e) => e.runner.arithmetic(),
            _ if args.arithmetic() == Arithmetic::Exact => "exact",
            _ => "fast",
        }
    }

    /// What sums of products came to on the emulator, and its profile; empty unless traced.
    pub(crate) fn ranges(&self) -> Option<(&Profile, Vec<anemone_emulator::Range>)> {
        match self {
            Self::Graph(e) => e.runner.ranges(),
            _ => None,
        }
    }

    /// Threads in use.
    pub(crate) fn threads(&self) -> usize {
        match self {
            Self::Cpu(e) => e.context().pool().threads(),
            Self::Graph(e) => e.threads,
            Self::Swap(e) => e.threads,
        }
    }

    /// The instruction set in use.
    pub(crate) fn level(&self) -> Level {
        match self {
            Self::Cpu(e) => e.context().level(),
            _ => Level::best(),
        }
    }

    /// Bytes of weights that a decoded token reads.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        match self {
            Self::Cpu(e) => e.model().bytes_per_token(),
            Self::Swap(e) => e.model.bytes_per_token(),
            Self::Graph(e) => e.graph.bundle().manifest().packages.iter().map(|p| p.weight_bytes).sum(),
        }
    }

    /// Whether only another conversion gives a longer context.
    pub(crate) fn is_at_converted_limit(&self) -> bool {
        matches!(self, Self::Graph(e) if e.context_len >= e.graph.context_len())
    }

    /// Moves the weights to large pages now, if a long decode would; whether it did.
    pub(crate) fn settle(&self) -> bool {
        match self {
            Self::Cpu(e) => e.settle(),
            _ => false,
        }
    }

    /// Errors when the bundle lacks the function that single tokens need.
    pub(crate) fn check_decodes(&self) -> Result<()> {
        if let Self::Graph(e) = self
            && !e.graph.passes().contains(&Pass::Decode)
        {
            let has: Vec<String> = e.graph.passes().iter().map(|p| p.name()).collect();
            bail!(
                "the bundle has no function `decode`, which generating needs (it has {}); convert without --prefill-only",
                has.join(", ")
            );
        }
        Ok(())
    }

    /// What a user should know about how prompts are read; `None` when there is nothing to say.
    pub(crate) fn prompt_note(&self) -> Option<&'static str> {
        let Self::Graph(e) = self else { return None };
        (e.graph.passes() == [Pass::Decode]).then_some(
            "the bundle has no function `prefill_N`, so the prompt is read token by token; convert without --decode-only",
        )
    }

    /// Feeds tokens and shows the logits after each to `visit`.
    pub(crate) fn feed_each(&mut self, tokens: &[u32], visit: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        if let Self::Cpu(e) = self {
            return Ok(e.feed_each(tokens, visit)?);
        }
        let vocab = self.stack().vocab_size;
        for (part, tokens) in tokens.chunks(PART).enumerate() {
            for (i, row) in self.feed_all(tokens)?.chunks_exact(vocab).enumerate() {
                visit(part * PART + i, row);
            }
        }
        Ok(())
    }

    /// Feeds `tokens` to an empty engine and remembers the state.
    pub(crate) fn start(&mut self, tokens: &[u32]) -> Result<Start> {
        self.reset();
        let Self::Cpu(e) = self else { return Ok(Start::Tokens(tokens.to_vec())) };
        if !tokens.is_empty() {
            e.feed(tokens, LogitsOf::None)?;
        }
        Ok(Start::Snapshot(Box::new(e.snapshot())))
    }

    /// Goes back to where [`Engine::start`] ended.
    pub(crate) fn restart(&mut self, start: &Start) -> Result<()> {
        match (self, start) {
            (Self::Cpu(e), Start::Snapshot(snapshot)) => Ok(e.restore(snapshot)?),
            (engine, Start::Tokens(tokens)) => {
                let depth = tokens.len();
                if depth > 0 && engine.position() >= depth && engine.nearest(depth) == depth {
                    return Ok(engine.rewind(depth)?);
                }
                engine.reset();
                if depth > 0 {
                    engine.feed(tokens)?;
                }
                Ok(())
            }
            (_, Start::Snapshot(_)) => {
                bail!("the snapshot is of another engine; start again")
            }
        }
    }

    fn inner(&self) -> &dyn anemone_session::Engine {
        match self {
            Self::Cpu(e) => &**e,
            Self::Graph(e) => &e.graph,
            Self::Swap(e) => &e.swap,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn anemone_session::Engine {
        match self {
            Self::Cpu(e) => &mut **e,
            Self::Graph(e) => &mut e.graph,
            Self::Swap(e) => &mut e.swap,
        }
    }

    fn traced_mut(&mut self) -> Result<&mut dyn Traced, EngineError> {
        match self {
            Self::Cpu(e) => Ok(&mut **e),
            Self::Graph(e) => Ok(&mut e.graph),
            Self::Swap(_) => Err(EngineError::new(
                "engines that take turns show no layers; name one with --engine cpu or --engine coreml",
            )),
        }
    }
}

impl anemone_session::Engine for Engine {
    fn vocab_size(&self) -> usize {
        self.inner().vocab_size()
    }

    fn context_len(&self) -> usize {
        match self {
            Self::Graph(e) => e.context_len,
            _ => self.inner().context_len(),
        }
    }

    fn position(&self) -> usize {
        self.inner().position()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.inner_mut().feed(tokens)
    }

    fn feed_all(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.inner_mut().feed_all(tokens)
    }

    fn nearest(&self, position: usize) -> usize {
        self.inner().nearest(position)
    }

    fn most_drafts(&self) -> usize {
        self.inner().most_drafts()
    }

    fn rewind(&mut self, position: usize) -> Result<(), EngineError> {
        self.inner_mut().rewind(position)
    }

    fn reset(&mut self) {
        self.inner_mut().reset();
    }

    fn block_format(&self) -> Option<BlockFormat> {
        let format = self.inner().block_format()?;
        Some(match self {
            Self::Graph(e) => BlockFormat { text: format!("{} {}", format.text, e.runner.id()), ..format },
            _ => format,
        })
    }

    fn export(&self, index: usize) -> Option<Block> {
        self.inner().export(index)
    }

    fn import(&mut self, blocks: &[Arc<Block>]) -> Result<(), EngineError> {
        self.inner_mut().import(blocks)
    }
}

impl Together for Engine {
    fn sibling(&self) -> Option<Self> {
        match self {
            Self::Cpu(e) => Some(Self::Cpu(Box::new(e.sibling()))),
            _ => None,
        }
    }

    fn copy_from(&mut self, other: &Self) -> Result<(), EngineError> {
        match (self, other) {
            (Self::Cpu(e), Self::Cpu(other)) => e.copy_from(other),
            _ => Err(EngineError::new("packages hold one sequence only")),
        }
    }

    fn feed_together(
        parts: &mut [Part<'_, Self>],
        visit: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Vec<Result<(), EngineError>> {
        let all_native = parts.iter().all(|part| matches!(part.engine, Self::Cpu(_)));
        if all_native {
            let mut native: Vec<Part<'_, anemone_cpu::Engine>> = parts
                .iter_mut()
                .filter_map(|Part { engine, tokens, rows }| match engine {
                    Self::Cpu(engine) => Some(Part { engine: &mut **engine, tokens, rows: *rows }),
                    _ => None,
                })
                .collect();
            return anemone_cpu::Engine::feed_together(&mut native, visit);
        }
        let feed = |(index, part): (usize, &mut Part<'_, Self>)| {
            let vocab = part.engine.vocab_size();
            let first = part.tokens.len() - part.rows.max(1);
            let logits = if part.rows > 1 {
                part.engine.feed_all(part.tokens)
            } else {
                part.engine.feed(part.tokens)
            }?;
            for (token, row) in logits.chunks_exact(vocab).enumerate().take(part.rows) {
                visit(index, first + token, row);
            }
            Ok(())
        };
        parts.iter_mut().enumerate().map(feed).collect()
    }
}

impl Traced for Engine {
    fn feed_traced(&mut self, tokens: &[u32], tap: Tap<'_>) -> Result<&[f32], EngineError> {
        self.traced_mut()?.feed_traced(tokens, tap)
    }

    fn passes(&self) -> Vec<Pass> {
        match self {
            Self::Cpu(e) => Traced::passes(&**e),
            Self::Graph(e) => Traced::passes(&e.graph),
            Self::Swap(_) => Vec::new(),
        }
    }

    fn restrict(&mut self, pass: Option<Pass>) -> Result<(), EngineError> {
        self.traced_mut()?.restrict(pass)
    }
}
