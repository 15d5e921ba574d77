use std::path::Path;
use std::sync::Arc;

use anemone_ane::Pass;
use anemone_bundle::Bundle;
use anemone_cpu::{Arithmetic, LogitsOf, Snapshot};
use anemone_emulator::{Emulator, Profile, Ranges};
use anemone_kernels::Level;
use anemone_models::Stack;
use anemone_session::{
    Block, BlockFormat, Engine as _, EngineError, GraphEngine, LayerStates, Part, Tap, Together, Traced,
};
use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::args::EngineArgs;

/// Tokens whose logits are held at once.
const PART: usize = 256;

/// What runs a model.
#[derive(Debug)]
pub(crate) enum Engine {
    /// The native engine.
    Cpu(Box<anemone_cpu::Engine>),
    /// A bundle's packages on the emulator.
    Emulator(Box<Emulated>),
}

#[derive(Debug)]
pub(crate) struct Emulated {
    graph: GraphEngine,
    profile: Profile,
    /// Of sums of products, when traced.
    ranges: Ranges,
    threads: usize,
    context_len: usize,
}

/// A state to come back to.
#[derive(Debug)]
pub(crate) enum Start {
    Snapshot(Box<Snapshot>),
    Tokens(Vec<u32>),
}

impl Engine {
    /// The emulator over the bundle at `path`; `traced` shows the layers inside of packages, which costs time.
    pub(crate) fn emulator(path: Option<&Path>, args: &EngineArgs, traced: bool) -> Result<Self> {
        let needs = "--engine emulator runs bundles";
        let path = path.ok_or_else(|| {
            anyhow!("{needs}, and the built-in model is none; make one with anemone convert --out DIR and name it with --bundle")
        })?;
        ensure!(
            Bundle::is_bundle(path),
            "{needs}, and {} is none; make one with anemone convert --model {} --out DIR and name it with --bundle",
            path.display(),
            path.display()
        );
        Self::over(Bundle::open(path)?, args, traced)
    }

    /// [`Engine::emulator`] over an open bundle.
    pub(crate) fn over(bundle: Bundle, args: &EngineArgs, traced: bool) -> Result<Self> {
        let path = bundle.dir().to_path_buf();
        let held = bundle.manifest().options.ctx;
        let context_len = args.ctx.unwrap_or(held);
        ensure!(
            context_len <= held,
            "--ctx {context_len}: the bundle was converted for {held} tokens; lower it, or convert with --ctx {context_len}"
        );
        let (profile, threads) = (args.profile(), args.threads());
        let mut emulator = Emulator::new(profile.clone(), threads);
        let (states, ranges) = (LayerStates::default(), Ranges::default());
        if traced {
            let states = states.clone();
            let tap = move |o: &anemone_emulator::Observed<'_>| states.offer(o.name, &o.ty.shape, o.values);
            emulator = emulator.with_tap(Arc::new(tap)).with_ranges(ranges.clone());
        }
        let graph = GraphEngine::new(bundle, Box::new(emulator));
        let mut graph = graph.with_context(|| path.display().to_string())?;
        if traced {
            graph = graph.with_layer_states(states);
        }
        Ok(Self::Emulator(Box::new(Emulated { graph, profile, ranges, threads, context_len })))
    }

    pub(crate) fn stack(&self) -> &Stack {
        match self {
            Self::Cpu(e) => e.model().stack(),
            Self::Emulator(e) => e.graph.stack(),
        }
    }

    /// `cpu` or `emulator`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Cpu(_) => "cpu",
            Self::Emulator(_) => "emulator",
        }
    }

    /// `fast` or `exact` on the native engine, else the emulator's profile.
    pub(crate) fn arithmetic(&self, args: &EngineArgs) -> &str {
        match self {
            Self::Cpu(_) if args.arithmetic() == Arithmetic::Exact => "exact",
            Self::Cpu(_) => "fast",
            Self::Emulator(e) => e.profile.name(),
        }
    }

    /// What sums of products came to on the emulator, and its profile; empty unless traced.
    pub(crate) fn ranges(&self) -> Option<(&Profile, Vec<anemone_emulator::Range>)> {
        match self {
            Self::Cpu(_) => None,
            Self::Emulator(e) => Some((&e.profile, e.ranges.get())),
        }
    }

    /// Threads in use.
    pub(crate) fn threads(&self) -> usize {
        match self {
            Self::Cpu(e) => e.context().pool().threads(),
            Self::Emulator(e) => e.threads,
        }
    }

    /// The instruction set in use.
    pub(crate) fn level(&self) -> Level {
        match self {
            Self::Cpu(e) => e.context().level(),
            Self::Emulator(_) => Level::best(),
        }
    }

    /// Bytes of weights that a decoded token reads.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        match self {
            Self::Cpu(e) => e.model().bytes_per_token(),
            Self::Emulator(e) => e.graph.bundle().manifest().packages.iter().map(|p| p.weight_bytes).sum(),
        }
    }

    /// Whether only another conversion gives a longer context.
    pub(crate) fn is_at_converted_limit(&self) -> bool {
        matches!(self, Self::Emulator(e) if e.context_len >= e.graph.context_len())
    }

    /// Moves the weights to large pages now, if a long decode would; whether it did.
    pub(crate) fn settle(&self) -> bool {
        match self {
            Self::Cpu(e) => e.settle(),
            Self::Emulator(_) => false,
        }
    }

    /// Errors when the bundle lacks the function that single tokens need.
    pub(crate) fn check_decodes(&self) -> Result<()> {
        if let Self::Emulator(e) = self
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
        let Self::Emulator(e) = self else { return None };
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
        match self {
            Self::Cpu(e) => {
                if !tokens.is_empty() {
                    e.feed(tokens, LogitsOf::None)?;
                }
                Ok(Start::Snapshot(Box::new(e.snapshot())))
            }
            Self::Emulator(_) => Ok(Start::Tokens(tokens.to_vec())),
        }
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
            (Self::Emulator(_), Start::Snapshot(_)) => {
                bail!("the snapshot is of another engine; start again")
            }
        }
    }

    fn inner(&self) -> &dyn Traced {
        match self {
            Self::Cpu(e) => &**e,
            Self::Emulator(e) => &e.graph,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Traced {
        match self {
            Self::Cpu(e) => &mut **e,
            Self::Emulator(e) => &mut e.graph,
        }
    }
}

impl anemone_session::Engine for Engine {
    fn vocab_size(&self) -> usize {
        self.inner().vocab_size()
    }

    fn context_len(&self) -> usize {
        match self {
            Self::Cpu(e) => e.context_len(),
            Self::Emulator(e) => e.context_len,
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
            Self::Cpu(_) => format,
            Self::Emulator(e) => {
                BlockFormat { text: format!("{} in {:?}", format.text, e.profile), ..format }
            }
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
            Self::Emulator(_) => None,
        }
    }

    fn copy_from(&mut self, other: &Self) -> Result<(), EngineError> {
        match (self, other) {
            (Self::Cpu(e), Self::Cpu(other)) => e.copy_from(other),
            _ => Err(EngineError::new("a bundle on the emulator holds one sequence only")),
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
                    Self::Emulator(_) => None,
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
        self.inner_mut().feed_traced(tokens, tap)
    }

    fn passes(&self) -> Vec<Pass> {
        self.inner().passes()
    }

    fn restrict(&mut self, pass: Option<Pass>) -> Result<(), EngineError> {
        self.inner_mut().restrict(pass)
    }
}
