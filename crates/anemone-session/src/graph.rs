//! A bundle as an engine: chunks, caches, masks and head slices over any [`Executor`].
//!
//! A pass takes a fixed number of tokens. A prompt is cut into the largest passes that fit; what is left is padded to the
//! smallest pass that holds it, and read at its true end. Rows of a pass enter the host's caches only when the next pass begins or
//! the sequence steps back, so that any prefix of the latest pass can be kept. A state takes them in at once; what is stepped back
//! over stays there unseen, since masks go by position, until other tokens take its place.

mod blocks;
mod caches;
mod contract;
mod layers;
mod masks;
mod ports;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use anemone_ane::{CachePlan, Pass};
use anemone_bundle::{Bundle, BundleWeights};
use anemone_mil::{Array, Executable, Executor, Signature, States};
use anemone_models::{Mixer, Rope, Stack};
use anemone_tensor::Tensor;
use half::f16;

use crate::traced::{EMBEDDING, FINAL_NORM};
use crate::{Block, BlockFormat, Engine, EngineError, Tap, Traced};
use blocks::Borders;
use caches::{Caches, Saved};
use contract::{ChunkContract, Contract, HeadContract, changed};
pub use layers::LayerStates;
use ports::Expected;

/// Places to step back to that are kept.
const MARKS: usize = 8;

/// Runs a bundle through an executor.
pub struct GraphEngine {
    stack: Stack,
    ctx: usize,
    bundle: Bundle,
    executor: Box<dyn Executor>,
    embedding: Tensor,
    chunks: Vec<Chunk>,
    heads: Vec<Head>,
    /// The stack's rotations in order of first use, with their frequencies.
    ropes: Vec<(Rope, Vec<f32>)>,
    passes: Vec<Pass>,
    caches: Caches,
    /// Tokens in the caches; the latest pass may hold more.
    committed: usize,
    /// End of the positions that passes have put into states since the start of the sequence.
    written: usize,
    pending: Option<Pending>,
    /// Ends of earlier calls with several tokens.
    marks: VecDeque<(usize, Saved)>,
    /// Parts of blocks that later passes overwrite.
    borders: Borders,
    /// SHA-256 of the manifest.
    bundle_hash: String,
    /// Whether the latest pass ends such a call.
    ends_call: bool,
    /// The one kind of pass to use.
    only: Option<Pass>,
    inside: Option<LayerStates>,
    logits: Vec<f32>,
}

struct Chunk {
    contract: ChunkContract,
    loaded: BTreeMap<Pass, Box<dyn Executable>>,
    states: States,
}

struct Head {
    contract: HeadContract,
    loaded: BTreeMap<usize, Box<dyn Executable>>,
}

/// The latest pass: its new cache rows and how many of them count.
struct Pending {
    tokens: usize,
    rows: Vec<BTreeMap<String, Array>>,
}

impl GraphEngine {
    /// Opens a bundle and checks that its manifest, its packages and the model fit each other; functions are loaded when first
    /// used.
    pub fn new(bundle: Bundle, mut executor: Box<dyn Executor>) -> Result<Self, EngineError> {
        let config = bundle.file("config.json").map_err(EngineError::new)?;
        let config = config
            .ok_or_else(|| EngineError::new("the bundle has no config.json; convert the model again"))?;
        let config = serde_json::from_slice(&config).map_err(EngineError::new)?;
        let weights = BundleWeights::open(&bundle).map_err(EngineError::new)?;
        let stack = anemone_models::load(&config, &weights).map_err(EngineError::new)?;
        let ropes = distinct_ropes(&stack);
        let contract = Contract::check(&bundle, &stack, &ropes, &mut *executor).map_err(EngineError::new)?;
        let chunk = |contract| Chunk { contract, loaded: BTreeMap::new(), states: States::new() };
        let chunks: Vec<Chunk> = contract.chunks.into_iter().map(chunk).collect();
        let head = |contract| Head { contract, loaded: BTreeMap::new() };
        let manifest = serde_json::to_vec(bundle.manifest()).map_err(EngineError::new)?;
        let bundle_hash = anemone_bundle::sha256(&manifest);
        let options = &bundle.manifest().options;
        Ok(Self {
            ropes: ropes.into_iter().map(|rope| (rope, rope.frequencies())).collect(),
            ctx: options.ctx,
            caches: Caches::new(chunks.iter().flat_map(|c| &c.contract.plan.caches), options.cache),
            stack,
            bundle,
            executor,
            embedding: contract.embedding,
            chunks,
            heads: contract.heads.into_iter().map(head).collect(),
            passes: contract.passes,
            committed: 0,
            written: 0,
            pending: None,
            marks: VecDeque::new(),
            borders: Borders::new(),
            bundle_hash,
            ends_call: false,
            only: None,
            inside: None,
            logits: Vec::new(),
        })
    }

    /// Shows layers inside of chunks too when it is traced; the executor must offer its results to `states`.
    #[must_use]
    pub fn with_layer_states(self, states: LayerStates) -> Self {
        states.want(self.stack.blocks.iter().map(|b| b.path.as_str()).chain([FINAL_NORM]));
        Self { inside: Some(states), ..self }
    }

    /// The description of the model.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The bundle.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// The functions of the bundle, the shortest first.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    fn run(&mut self, tokens: &[u32], all: bool, mut tap: Option<Tap<'_>>) -> Result<&[f32], EngineError> {
        self.check(tokens)?;
        let (vocab, before) = (self.stack.vocab_size, self.position());
        self.logits.clear();
        let mut rest = tokens;
        while !rest.is_empty() {
            let pass = self.choose(rest.len())?;
            let n = pass.tokens().min(rest.len());
            let (now, later) = rest.split_at(n);
            self.commit(usize::MAX);
            let hidden = self.pass(pass, now, &mut tap)?;
            if all {
                self.head(&hidden, 0, n, &mut tap)?;
            } else if later.is_empty() {
                self.head(&hidden, n - 1, 1, &mut tap)?;
            }
            rest = later;
        }
        self.ends_call = tokens.len() > 1;
        let rows = if all { tokens.len() } else { 1 };
        debug_assert_eq!(self.logits.len(), rows * vocab);
        if let Some(at) = self.logits.iter().position(|v| !v.is_finite()) {
            let position = before + if all { at / vocab } else { tokens.len() - 1 };
            self.reset();
            return Err(EngineError::new(format!(
                "the logits after token {position} are not finite: either weights are damaged, which `anemone inspect \
                 --verify-hash --model {}` tells, or values inside leave the range of fp16: then --profile f32 is finite, and \
                 converting without --no-rule helps",
                self.bundle.dir().display()
            )));
        }
        Ok(&self.logits)
    }

    fn check(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let (vocab, needed) = (self.stack.vocab_size, self.position() + tokens.len());
        if tokens.is_empty() {
            return Err(EngineError::new("no tokens to run; give at least one"));
        }
        if let Some(id) = tokens.iter().find(|t| **t as usize >= vocab) {
            return Err(EngineError::new(format!("token id {id} is outside the vocabulary of {vocab} rows")));
        }
        if needed > self.ctx {
            return Err(EngineError::new(format!(
                "{needed} tokens do not fit the bundle's context of {}; shorten the prompt or convert with a larger --ctx",
                self.ctx
            )));
        }
        Ok(())
    }

    /// The largest pass that `left` tokens fill, or else the smallest that holds them.
    fn choose(&self, left: usize) -> Result<Pass, EngineError> {
        if let Some(only) = self.only {
            return Ok(only);
        }
        let filled = self.passes.iter().rev().find(|p| p.tokens() <= left);
        let padded = self.passes.iter().find(|p| p.tokens() >= left);
        // A single decode step is worth it only for a single token; more are padded.
        let pass = match (filled, padded) {
            (Some(f), Some(p)) if f.tokens() == 1 && left > 1 => p,
            (Some(f), _) => f,
            (None, Some(p)) => p,
            (None, None) => {
                return Err(EngineError::new("the bundle has no functions; convert the model again"));
            }
        };
        Ok(*pass)
    }

    /// Runs the chunks over tokens padded to the pass; gives the last hidden states.
    fn pass(&mut self, pass: Pass, tokens: &[u32], tap: &mut Option<Tap<'_>>) -> Result<Array, EngineError> {
        let (width, start) = (pass.tokens(), self.committed);
        let mut x = self.embed(tokens, width);
        let mut shared: BTreeMap<String, Array> = BTreeMap::new();
        for (i, (rope, frequencies)) in self.ropes.iter().enumerate() {
            let (cos, sin) = masks::rotation(frequencies, rope.dim / 2, start, width);
            shared.insert(format!("cos_{i}"), cos);
            shared.insert(format!("sin_{i}"), sin);
        }
        if start < self.first_shown() {
            return Err(EngineError::new("the states hold other tokens after a failed pass; start over"));
        }
        let written = self.written.max(start);
        for plan in self.cache_plans() {
            if let Some((name, mask)) = masks::mask(plan, start, written, width) {
                shared.entry(name).or_insert(mask);
            }
        }
        for state in self.chunks.iter().flat_map(|c| &c.contract.plan.states) {
            shared.extend(masks::entry(state, start, tokens.len(), width));
            self.written = written.max(start + tokens.len());
        }
        if let Some(tap) = tap {
            tap(EMBEDDING, &rows(&x, tokens.len()));
        }
        let inside = self.inside.as_ref().filter(|_| tap.is_some());
        let mut new_rows = Vec::new();
        for chunk in &mut self.chunks {
            let ChunkContract { file, last, functions, .. } = &chunk.contract;
            let (name, expected) = functions.get(&pass).ok_or_else(|| no_function(&pass.name()))?;
            let function =
                load(&mut *self.executor, &self.bundle, (file, name, expected), &mut chunk.loaded, pass)?;
            let signature = function.signature().clone();
            let mut inputs: Vec<(&str, &Array)> = Vec::new();
            for (name, _) in &signature.inputs {
                let array = match name.as_str() {
                    "hidden" => Some(&x),
                    name => shared.get(name).or_else(|| self.caches.get(name)),
                };
                let array =
                    array.ok_or_else(|| EngineError::new(format!("{file}: unknown input `{name}`")))?;
                inputs.push((name, array));
            }
            inside.inspect(|i| i.record(true));
            let outputs = function.predict(&inputs, &mut chunk.states);
            inside.inspect(|i| i.record(false));
            let outputs = outputs.map_err(EngineError::new)?;
            let mut named = named(file, expected, &signature, outputs)?;
            x = named
                .remove("hidden_out")
                .ok_or_else(|| EngineError::new(format!("{file}: gives no `hidden_out`")))?;
            if let Some(tap) = tap {
                for (path, values) in inside.map(LayerStates::take).unwrap_or_default() {
                    tap(&path, &rows(&values, tokens.len()));
                }
                tap(last, &rows(&x, tokens.len()));
            }
            new_rows.push(named);
        }
        self.pending = Some(Pending { tokens: tokens.len(), rows: new_rows });
        self.pass_borders();
        Ok(x)
    }

    /// Appends the logits of `count` columns of the last hidden states from `first`.
    fn head(
        &mut self,
        hidden: &Array,
        first: usize,
        count: usize,
        tap: &mut Option<Tap<'_>>,
    ) -> Result<(), EngineError> {
        let width = hidden.shape[3];
        let verify = self.passes.contains(&Pass::Verify(width));
        let spans: Vec<(usize, usize)> = if count > 1 && verify {
            vec![(0, width)]
        } else {
            (first..first + count).map(|c| (c, 1)).collect()
        };
        for (start, columns) in spans {
            let input = take_columns(hidden, start, columns);
            let take = columns.min(count);
            let vocab = self.stack.vocab_size;
            let base = self.logits.len();
            self.logits.resize(base + take * vocab, 0.0);
            let inside = self.inside.as_ref().filter(|_| tap.is_some());
            for (i, head) in self.heads.iter_mut().enumerate() {
                // Every slice computes the same final norm.
                let inside = inside.filter(|_| i == 0);
                let HeadContract { file, rows: slice, functions } = &head.contract;
                let (name, expected) =
                    functions.get(&columns).ok_or_else(|| no_function(&format!("verify_{columns}")))?;
                let function = load(
                    &mut *self.executor,
                    &self.bundle,
                    (file, name, expected),
                    &mut head.loaded,
                    columns,
                )?;
                let signature = function.signature().clone();
                inside.inspect(|i| i.record(true));
                let out = function.predict(&[("hidden", &input)], &mut States::new());
                inside.inspect(|i| i.record(false));
                if let (Some(tap), Some(inside)) = (&mut *tap, inside) {
                    for (path, values) in inside.take() {
                        tap(&path, &rows(&values, take));
                    }
                }
                let out = named(file, expected, &signature, out.map_err(EngineError::new)?)?.remove("logits");
                let out = out.ok_or_else(|| EngineError::new(format!("{file}: gives no `logits`")))?;
                // A row of the slice holds its column for each token.
                for (logits, c) in self.logits[base..].chunks_exact_mut(vocab).zip(0..) {
                    let row = logits.iter_mut().skip(slice.start).take(slice.len());
                    row.zip(out.data.iter().skip(c).step_by(columns)).for_each(|(o, v)| *o = *v);
                }
            }
        }
        Ok(())
    }

    fn embed(&self, tokens: &[u32], width: usize) -> Array {
        let hidden = self.stack.hidden_size;
        let mut x = Array::zeros(&[1, hidden, 1, width]);
        for (t, &token) in tokens.iter().enumerate() {
            let at = token as usize * hidden * 2;
            for (c, b) in self.embedding.bytes()[at..at + hidden * 2].chunks_exact(2).enumerate() {
                x.data[c * width + t] = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        x
    }

    fn cache_plans(&self) -> impl Iterator<Item = &CachePlan> {
        self.chunks.iter().flat_map(|c| &c.contract.plan.caches)
    }

    /// The first position whose keys every cache can still show.
    fn first_shown(&self) -> usize {
        let states = self.chunks.iter().filter(|c| !c.contract.plan.states.is_empty());
        states
            .flat_map(|c| &c.contract.plan.caches)
            .map(|plan| masks::first_shown(plan, self.written))
            .max()
            .unwrap_or(0)
    }

    /// Moves up to `most` rows of the latest pass into the caches.
    fn commit(&mut self, most: usize) {
        if let Some(pending) = self.pending.take() {
            let count = pending.tokens.min(most);
            for rows in &pending.rows {
                self.caches.append(rows, self.committed, count);
            }
            self.committed += count;
            if std::mem::take(&mut self.ends_call) && count == pending.tokens {
                if self.marks.len() == MARKS {
                    self.marks.pop_front();
                }
                self.marks.push_back((self.committed, self.caches.save()));
            }
        }
    }

    fn clear(&mut self) {
        self.pending = None;
        self.marks.clear();
        self.borders.clear();
        self.ends_call = false;
        self.committed = 0;
        self.written = 0;
        self.caches.clear();
        self.chunks.iter_mut().for_each(|c| c.states.clear());
    }

    /// The latest mark at or before `position`.
    fn marked(&self, position: usize) -> Option<usize> {
        self.marks.iter().map(|(at, _)| *at).rfind(|at| *at <= position)
    }
}

impl Engine for GraphEngine {
    fn vocab_size(&self) -> usize {
        self.stack.vocab_size
    }

    fn context_len(&self) -> usize {
        self.ctx
    }

    fn position(&self) -> usize {
        self.committed + self.pending.as_ref().map_or(0, |p| p.tokens)
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.run(tokens, false, None)
    }

    fn feed_all(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.run(tokens, true, None)
    }

    fn nearest(&self, position: usize) -> usize {
        let shown = self.first_shown();
        if position >= self.committed.max(shown) {
            return position.min(self.position());
        }
        self.marked(position).filter(|at| *at >= shown).unwrap_or(0)
    }

    fn most_drafts(&self) -> usize {
        // A call that fits one pass can be cut anywhere.
        let verify = self.passes.iter().filter(|p| matches!(p, Pass::Verify(_)));
        verify.map(|p| p.tokens() - 1).max().unwrap_or(0)
    }

    fn rewind(&mut self, position: usize) -> Result<(), EngineError> {
        if position == 0 {
            self.reset();
            return Ok(());
        }
        if (self.committed.max(self.first_shown())..=self.position()).contains(&position) {
            self.borders.retain(|(at, _)| *at <= position);
            self.commit(position - self.committed);
            return Ok(());
        }
        let nearest = self.nearest(position);
        if nearest != position {
            let (from, to) = (self.committed.max(self.first_shown()), self.position());
            return Err(EngineError::new(format!(
                "cannot go back to {position}; the latest pass can be cut from {from} to {to}, and before it {nearest} can be restored"
            )));
        }
        self.marks.retain(|(at, _)| *at <= position);
        self.borders.retain(|(at, _)| *at <= position);
        if let Some((_, saved)) = self.marks.back() {
            self.caches.restore(saved);
        }
        self.pending = None;
        self.committed = position;
        Ok(())
    }

    fn reset(&mut self) {
        self.clear();
    }

    fn block_format(&self) -> Option<BlockFormat> {
        Some(self.format_of_blocks())
    }

    fn export(&self, index: usize) -> Option<Block> {
        self.export_block(index)
    }

    fn import(&mut self, blocks: &[Arc<Block>]) -> Result<(), EngineError> {
        self.import_blocks(blocks)
    }
}

impl Traced for GraphEngine {
    fn feed_traced(&mut self, tokens: &[u32], tap: Tap<'_>) -> Result<&[f32], EngineError> {
        self.run(tokens, true, Some(tap))
    }

    fn passes(&self) -> Vec<Pass> {
        self.passes.clone()
    }

    fn restrict(&mut self, pass: Option<Pass>) -> Result<(), EngineError> {
        if let Some(pass) = pass.filter(|p| !self.passes.contains(p)) {
            return Err(no_function(&pass.name()));
        }
        self.only = pass;
        Ok(())
    }
}

impl std::fmt::Debug for GraphEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GraphEngine({}, {} tokens)", self.bundle.dir().display(), self.position())
    }
}

fn no_function(name: &str) -> EngineError {
    let problem = format!("the bundle has no function `{name}`");
    EngineError::new(match name.split_once('_') {
        Some(("prefill", n)) => format!("{problem}; convert with --prefill {n}"),
        Some((_, n)) => format!("{problem}; convert with --spec-drafts one below {n}"),
        None => format!("{problem}; convert without --prefill-only"),
    })
}

/// The function of a package, loaded and checked again when it is used first.
fn load<'a, K: Ord>(
    executor: &mut dyn Executor,
    bundle: &Bundle,
    (file, name, expected): (&str, &str, &Expected),
    loaded: &'a mut BTreeMap<K, Box<dyn Executable>>,
    key: K,
) -> Result<&'a mut Box<dyn Executable>, EngineError> {
    match loaded.entry(key) {
        std::collections::btree_map::Entry::Occupied(e) => Ok(e.into_mut()),
        std::collections::btree_map::Entry::Vacant(e) => {
            let function = executor.load(&bundle.path(file), name).map_err(EngineError::new)?;
            match changed(bundle, file, name, expected, function.signature()) {
                None => Ok(e.insert(function)),
                Some(error) => Err(EngineError::new(error)),
            }
        }
    }
}

/// Outputs by name, each of the shape it was declared with.
fn named(
    file: &str,
    expected: &Expected,
    signature: &Signature,
    outputs: Vec<Array>,
) -> Result<BTreeMap<String, Array>, EngineError> {
    let mut named = BTreeMap::new();
    for ((name, _), array) in signature.outputs.iter().zip(outputs) {
        let whole =
            expected.output(name).is_some_and(|t| t.shape == array.shape && t.numel() == array.data.len());
        if !whole {
            return Err(EngineError::new(format!(
                "{file}: the executor gave `{name}` as {:?} with {} elements; this is a fault of the executor, report it",
                array.shape,
                array.data.len()
            )));
        }
        named.insert(name.clone(), array);
    }
    Ok(named)
}

fn take_columns(x: &Array, start: usize, count: usize) -> Array {
    let width = x.shape[3];
    if (start, count) == (0, width) {
        return x.clone();
    }
    let rows = x.data.chunks_exact(width).flat_map(|r| &r[start..start + count]);
    Array { shape: vec![1, x.shape[1], 1, count], data: rows.copied().collect() }
}

/// `[1, hidden, 1, width]` to the first `count` tokens' `[count, hidden]`.
fn rows(x: &Array, count: usize) -> Vec<f32> {
    let width = x.shape[3];
    (0..count).flat_map(|t| x.data.iter().skip(t).step_by(width).copied()).collect()
}

/// The stack's rotations in order of first use.
fn distinct_ropes(stack: &Stack) -> Vec<Rope> {
    let mut ropes: Vec<Rope> = Vec::new();
    for block in &stack.blocks {
        if let Mixer::Attention(a) = &block.mixer
            && !ropes.contains(&a.rope)
        {
            ropes.push(a.rope);
        }
    }
    ropes
}
