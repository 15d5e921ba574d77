//! A bundle as an engine: chunks, caches, masks and head slices over any [`Executor`].
//!
//! A pass takes a fixed number of tokens. A prompt is cut into the largest passes that fit; what is left is padded to the
//! smallest pass that holds it, and read at its true end. Rows of a pass enter the host's caches only when the next pass begins or
//! the sequence steps back, so that any prefix of the latest pass can be kept. A state takes them in at once; what is stepped back
//! over stays there unseen, since masks go by position, until other tokens take its place.

mod caches;
mod layers;
mod masks;

use std::collections::{BTreeMap, VecDeque};

use anemone_ane::{ChunkPlan, Pass};
use anemone_bundle::{Bundle, BundleWeights, Role};
use anemone_mil::{Array, Executable, Executor, States};
use anemone_models::{Mixer, Rope, Stack};
use anemone_tensor::Tensor;
use half::f16;

use crate::traced::{EMBEDDING, FINAL_NORM};
use crate::{Engine, EngineError, Tap, Traced};
use caches::{Caches, Saved};
pub use layers::LayerStates;

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
    /// Whether the latest pass ends such a call.
    ends_call: bool,
    /// The one kind of pass to use.
    only: Option<Pass>,
    inside: Option<LayerStates>,
    logits: Vec<f32>,
}

struct Chunk {
    plan: ChunkPlan,
    file: String,
    functions: BTreeMap<Pass, Box<dyn Executable>>,
    states: States,
}

struct Head {
    file: String,
    functions: BTreeMap<usize, Box<dyn Executable>>,
}

/// The latest pass: its new cache rows and how many of them count.
struct Pending {
    tokens: usize,
    rows: Vec<BTreeMap<String, Array>>,
}

impl GraphEngine {
    /// Opens a bundle; functions are loaded when first used.
    pub fn new(bundle: Bundle, executor: Box<dyn Executor>) -> Result<Self, EngineError> {
        let config = bundle.file("config.json").map_err(EngineError::new)?;
        let config = config
            .ok_or_else(|| EngineError::new("the bundle has no config.json; convert the model again"))?;
        let config = serde_json::from_slice(&config).map_err(EngineError::new)?;
        let weights = BundleWeights::open(&bundle).map_err(EngineError::new)?;
        let stack = anemone_models::load(&config, &weights).map_err(EngineError::new)?;
        let manifest = bundle.manifest().clone();
        let files = |role| manifest.packages.iter().filter(move |p| p.role == role).map(|p| p.file.clone());
        let chunks: Vec<Chunk> = files(Role::Chunk)
            .zip(manifest.plan.chunks.clone())
            .map(|(file, plan)| Chunk { plan, file, functions: BTreeMap::new(), states: States::new() })
            .collect();
        let heads: Vec<Head> =
            files(Role::Head).map(|file| Head { file, functions: BTreeMap::new() }).collect();
        if chunks.len() != manifest.plan.chunks.len() || heads.len() != manifest.plan.head.len() {
            return Err(EngineError::new(
                "the bundle's packages do not follow its plan; convert the model again",
            ));
        }
        let mut passes = manifest.options.passes.clone();
        passes.sort_by_key(|p| p.tokens());
        let embedding = bundle.host_tensor("embedding").map_err(EngineError::new)?;
        let caches = Caches::new(chunks.iter().flat_map(|c| &c.plan.caches), manifest.options.cache);
        Ok(Self {
            ropes: distinct_ropes(&stack),
            ctx: manifest.options.ctx,
            stack,
            bundle,
            executor,
            embedding,
            chunks,
            heads,
            passes,
            caches,
            committed: 0,
            written: 0,
            pending: None,
            marks: VecDeque::new(),
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
                "the logits after token {position} are not finite: values inside leave the range of fp16; run the bundle \
                 with --profile f32 to see whether the arithmetic is to blame, and convert without --no-rule"
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
        let (width, start, hidden) = (pass.tokens(), self.committed, self.stack.hidden_size);
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
        for plan in self.chunks.iter().flat_map(|c| &c.plan.caches) {
            if let Some((name, mask)) = masks::mask(plan, start, written, width) {
                shared.entry(name).or_insert(mask);
            }
        }
        for state in self.chunks.iter().flat_map(|c| &c.plan.states) {
            shared.extend(masks::entry(state, start, tokens.len(), width));
            self.written = written.max(start + tokens.len());
        }
        if let Some(tap) = tap {
            tap(EMBEDDING, &rows(&x, tokens.len()));
        }
        let inside = self.inside.as_ref().filter(|_| tap.is_some());
        let mut new_rows = Vec::new();
        for chunk in &mut self.chunks {
            let name = if self.passes.len() == 1 { "main".into() } else { pass.name() };
            let function =
                load(&mut *self.executor, &self.bundle, &chunk.file, &name, &mut chunk.functions, pass)?;
            let signature = function.signature().clone();
            let mut inputs: Vec<(&str, &Array)> = Vec::new();
            for (name, _) in &signature.inputs {
                let array = match name.as_str() {
                    "hidden" => Some(&x),
                    name => shared.get(name).or_else(|| self.caches.get(name)),
                };
                let array = array
                    .ok_or_else(|| EngineError::new(format!("{}: unknown input `{name}`", chunk.file)))?;
                inputs.push((name, array));
            }
            inside.inspect(|i| i.record(true));
            let outputs = function.predict(&inputs, &mut chunk.states);
            inside.inspect(|i| i.record(false));
            let outputs = outputs.map_err(EngineError::new)?;
            let mut named: BTreeMap<String, Array> =
                signature.outputs.iter().map(|(name, _)| name.clone()).zip(outputs).collect();
            x = named
                .remove("hidden_out")
                .filter(|a| a.shape == [1, hidden, 1, width])
                .ok_or_else(|| EngineError::new(format!("{}: gives no `hidden_out`", chunk.file)))?;
            if let Some(tap) = tap {
                for (path, values) in inside.map(LayerStates::take).unwrap_or_default() {
                    tap(&path, &rows(&values, tokens.len()));
                }
                tap(&self.stack.blocks[chunk.plan.layers.end - 1].path, &rows(&x, tokens.len()));
            }
            new_rows.push(named);
        }
        self.pending = Some(Pending { tokens: tokens.len(), rows: new_rows });
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
        let several = self.passes.iter().any(|p| matches!(p, Pass::Verify(_)));
        for (start, columns) in spans {
            let input = take_columns(hidden, start, columns);
            let take = columns.min(count);
            let base = self.logits.len();
            self.logits.resize(base + take * self.stack.vocab_size, 0.0);
            let mut row = 0;
            let inside = self.inside.as_ref().filter(|_| tap.is_some());
            for (i, head) in self.heads.iter_mut().enumerate() {
                // Every slice computes the same final norm.
                let inside = inside.filter(|_| i == 0);
                let pass = if columns == 1 { Pass::Decode } else { Pass::Verify(columns) };
                let name = if several { pass.name() } else { "main".into() };
                let function =
                    load(&mut *self.executor, &self.bundle, &head.file, &name, &mut head.functions, columns)?;
                inside.inspect(|i| i.record(true));
                let out = function.predict(&[("hidden", &input)], &mut States::new());
                inside.inspect(|i| i.record(false));
                if let (Some(tap), Some(inside)) = (&mut *tap, inside) {
                    for (path, values) in inside.take() {
                        tap(&path, &rows(&values, take));
                    }
                }
                let out = out.map_err(EngineError::new)?;
                let out = out.first().filter(|a| a.shape.len() == 4 && a.shape[3] == columns);
                let out = out.ok_or_else(|| EngineError::new(format!("{}: gives no logits", head.file)))?;
                let slice = out.shape[1];
                for r in 0..slice {
                    for c in 0..take {
                        self.logits[base + c * self.stack.vocab_size + row + r] = out.data[r * columns + c];
                    }
                }
                row += slice;
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

    /// The first position whose keys every cache can still show.
    fn first_shown(&self) -> usize {
        let states = self.chunks.iter().filter(|c| !c.plan.states.is_empty());
        states
            .flat_map(|c| &c.plan.caches)
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

    fn rewind(&mut self, position: usize) -> Result<(), EngineError> {
        if position == 0 {
            self.reset();
            return Ok(());
        }
        if (self.committed.max(self.first_shown())..=self.position()).contains(&position) {
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
        if let Some((_, saved)) = self.marks.back() {
            self.caches.restore(saved);
        }
        self.pending = None;
        self.committed = position;
        Ok(())
    }

    fn reset(&mut self) {
        self.pending = None;
        self.marks.clear();
        self.ends_call = false;
        self.committed = 0;
        self.written = 0;
        self.caches.clear();
        self.chunks.iter_mut().for_each(|c| c.states.clear());
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
            return Err(EngineError::new(format!("the bundle has no function `{}`", pass.name())));
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

fn load<'a, K: Ord>(
    executor: &mut dyn Executor,
    bundle: &Bundle,
    file: &str,
    name: &str,
    loaded: &'a mut BTreeMap<K, Box<dyn Executable>>,
    key: K,
) -> Result<&'a mut Box<dyn Executable>, EngineError> {
    match loaded.entry(key) {
        std::collections::btree_map::Entry::Occupied(e) => Ok(e.into_mut()),
        std::collections::btree_map::Entry::Vacant(e) => {
            Ok(e.insert(executor.load(&bundle.path(file), name).map_err(EngineError::new)?))
        }
    }
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

/// The stack's rotations in order of first use, with their frequencies.
fn distinct_ropes(stack: &Stack) -> Vec<(Rope, Vec<f32>)> {
    let mut ropes: Vec<(Rope, Vec<f32>)> = Vec::new();
    for block in &stack.blocks {
        if let Mixer::Attention(a) = &block.mixer
            && !ropes.iter().any(|(r, _)| *r == a.rope)
        {
            ropes.push((a.rope, a.rope.frequencies()));
        }
    }
    ropes
}
