use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anemone_kernels::{Context, Level};
use anemone_models::{Mixer, Stack};

use crate::blocks::Block;
use crate::forward::{self, Tap};
use crate::model::Model;
use crate::scratch::{Observe, Scratch, sized};
use crate::state::{BORDER, Snapshot, State};
use crate::{Arithmetic, Error, Layout, Options};

/// Rows of logits computed in one product, which bounds the memory of a long evaluation.
pub(crate) const LOGIT_ROWS: usize = 64;

/// Which positions' logits a call wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsOf {
    /// None: the tokens only advance the state.
    None,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

/// A model with one sequence's state.
#[derive(Debug)]
pub struct Engine {
    pub(crate) model: Arc<Model>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: Options,
    context_len: usize,
    pub(crate) state: State,
    logits: Vec<f32>,
}

/// What engines of one model that take turns have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) reduced: bool,
    rounds: bool,
    scratch: Mutex<Scratch>,
}

impl Shared {
    pub(crate) fn scratch(&self) -> MutexGuard<'_, Scratch> {
        // A pass overwrites whatever an interrupted one left.
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Makes an empty sequence over a model.
    pub fn new(model: Arc<Model>, options: Options) -> Result<Self, Error> {
        Self::with_level(model, options, Level::best())
    }

    /// [`Engine::new`] at a given instruction set, which the machine must have.
    pub fn with_level(model: Arc<Model>, options: Options, level: Level) -> Result<Self, Error> {
        let max = model.stack.max_position_embeddings;
        let context_len = options.context_len.unwrap_or(max);
        if context_len > max {
            return Err(Error::ContextTooLong { asked: context_len, max });
        }
        if let Some(asked) = options.context_len {
            check_memory(&model, &options, asked)?;
        }
        let threads = if options.threads == 0 { default_threads() } else { options.threads };
        let options = Options { chunk: options.chunk.max(1), ..options };
        let context = Context::with_level(threads, level);
        let mut scratch = Scratch::default();
        let fast = options.arithmetic == Arithmetic::Fast;
        // Coded weights have products of their own, whose activations are best rounded from all their bits.
        let rounds = fast && model.is_coded();
        let reduced = fast && level.has_bf16_products() && !rounds;
        (scratch.act.reduced, scratch.act.rounds) = (reduced, rounds);
        if model.promotion.layout == Layout::Packed && !model.is_packed() {
            model.pack(may_compact(level, reduced))?;
        }
        let state = State::new(&model, &options);
        let shared = Arc::new(Shared { context, reduced, rounds, scratch: Mutex::new(scratch) });
        Ok(Self { model, shared, options, context_len, state, logits: Vec::new() })
    }

    /// Another empty sequence over the same model with the same options.
    ///
    /// It shares threads and buffers: siblings take turns, or run as one pass with [`feed_together`](crate::feed_together).
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self {
            model: Arc::clone(&self.model),
            shared: Arc::clone(&self.shared),
            options: self.options,
            context_len: self.context_len,
            state: State::new(&self.model, &self.options),
            logits: Vec::new(),
        }
    }

    /// Moves the weights to where a long run would have them, see [`Layout::Auto`]; whether they are in large pages now.
    ///
    /// Without it they are moved bit by bit as tokens are decoded.
    pub fn settle(&self) -> bool {
        self.model.settle(self.may_compact())
    }

    pub(crate) fn may_compact(&self) -> bool {
        may_compact(self.shared.context.level(), self.shared.reduced)
    }

    /// Shows the input of every linear map to `observe` from now on, or stops doing so.
    ///
    /// It is given the names of the weights that meet an input, its tokens, and `[tokens, features]` as products see it, map by map and pass by pass;
    /// for the head only where logits were asked for.
    pub fn observe(&mut self, observe: Option<Observe>) {
        self.shared.scratch().observer.0 = observe;
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The options it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Instruction set and threads in use.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Whether products round their inputs to bf16.
    pub fn has_reduced_products(&self) -> bool {
        self.shared.reduced
    }

    /// Whether products with coded weights round their inputs to 8 bits.
    pub fn has_rounded_products(&self) -> bool {
        self.shared.rounds
    }

    /// Most tokens it can hold.
    pub fn context_len(&self) -> usize {
        self.context_len
    }

    /// Tokens held.
    pub fn position(&self) -> usize {
        self.state.position
    }

    /// Bytes of caches and histories.
    pub fn state_bytes(&self) -> usize {
        self.state.bytes()
    }

    /// Appends tokens; gives the logits asked for, `[tokens or 1 or 0, vocab_size]`.
    ///
    /// A call that is refused changes nothing; when the logits turn out not to be finite, the sequence is emptied.
    pub fn feed(&mut self, tokens: &[u32], want: LogitsOf) -> Result<&[f32], Error> {
        self.run(tokens, want, None)
    }

    /// [`Engine::feed`] with the residual stream shown to `tap`: a module path and `[tokens of this pass, hidden]` values,
    /// pass by pass. Taps are `model.embed_tokens`, each block's path, and `model.embedding_norm` where logits were asked for.
    pub fn feed_tapped(
        &mut self,
        tokens: &[u32],
        want: LogitsOf,
        tap: &mut dyn FnMut(&str, &[f32]),
    ) -> Result<&[f32], Error> {
        self.run(tokens, want, Some(tap))
    }

    /// Feeds tokens and shows the logits after each to `visit` without keeping them all.
    pub fn feed_each(&mut self, tokens: &[u32], visit: &mut dyn FnMut(usize, &[f32])) -> Result<(), Error> {
        self.check(tokens)?;
        let vocab = self.model.stack.vocab_size;
        let mut scratch = self.shared.scratch();
        let mut done = 0;
        for part in tokens.chunks(self.options.chunk) {
            let sequence = &mut [(&mut self.state, part)];
            forward::blocks(&self.shared.context, &self.model, sequence, &mut scratch, None);
            for first in (0..part.len()).step_by(LOGIT_ROWS) {
                let rows = first..part.len().min(first + LOGIT_ROWS);
                let logits = sized(&mut self.logits, rows.len() * vocab);
                forward::head(&self.shared.context, &self.model, &mut scratch, rows.clone(), None, logits);
                for (row, logits) in rows.zip(logits.chunks_exact(vocab)) {
                    visit(done + row, logits);
                }
            }
            done += part.len();
        }
        Ok(())
    }

    pub(crate) fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        let vocab_size = self.model.stack.vocab_size;
        if tokens.is_empty() {
            return Err(Error::NoTokens);
        }
        if let Some(&id) = tokens.iter().find(|&&t| t as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { id, vocab_size });
        }
        let needed = self.state.position + tokens.len();
        if needed > self.context_len {
            return Err(Error::ContextFull { needed, context_len: self.context_len });
        }
        Ok(())
    }

    fn run(&mut self, tokens: &[u32], want: LogitsOf, mut tap: Option<Tap<'_>>) -> Result<&[f32], Error> {
        self.check(tokens)?;
        let vocab = self.model.stack.vocab_size;
        let before = self.state.position;
        let rows = match want {
            LogitsOf::None => 0,
            LogitsOf::Last => 1,
            LogitsOf::All => tokens.len(),
        };
        sized(&mut self.logits, rows * vocab);
        let shared = Arc::clone(&self.shared);
        let mut scratch = shared.scratch();
        let mut done = 0;
        for part in tokens.chunks(self.options.chunk) {
            // Reborrowed by hand: the closure type is invariant in its lifetime.
            let part_tap: Option<Tap<'_>> = match &mut tap {
                Some(tap) => Some(&mut **tap),
                None => None,
            };
            let sequence = &mut [(&mut self.state, part)];
            forward::blocks(&shared.context, &self.model, sequence, &mut scratch, part_tap);
            let end = done + part.len();
            let (first, count, at) = match want {
                LogitsOf::All => (0, part.len(), done),
                LogitsOf::Last if end == tokens.len() => (part.len() - 1, 1, 0),
                _ => (0, 0, 0),
            };
            for offset in (0..count).step_by(LOGIT_ROWS) {
                let n = LOGIT_ROWS.min(count - offset);
                let logits = &mut self.logits[(at + offset) * vocab..(at + offset + n) * vocab];
                let tap: Option<Tap<'_>> = match &mut tap {
                    Some(tap) => Some(&mut **tap),
                    None => None,
                };
                let rows = first + offset..first + offset + n;
                forward::head(&shared.context, &self.model, &mut scratch, rows, tap, logits);
            }
            done = end;
        }
        drop(scratch);
        self.fed(tokens.len());
        let logits = &self.logits[..rows * vocab];
        if let Some(at) = logits.iter().position(|v| !v.is_finite()) {
            let position = before + if rows == 1 { tokens.len() - 1 } else { at / vocab };
            self.state.rewind(0);
            return Err(self.model.find_non_finite().unwrap_or(Error::NonFiniteLogits { position }));
        }
        Ok(&self.logits[..rows * vocab])
    }

    /// What follows a call that appended tokens.
    pub(crate) fn fed(&mut self, tokens: usize) {
        if tokens > 1 {
            self.state.mark();
        } else {
            self.model.count_pass(self.may_compact());
        }
    }

    /// The greatest position at or before `position` that [`Engine::rewind`] can step back to.
    ///
    /// Any of the latest `Options::rewind` positions, multiples of [`BORDER`](crate::BORDER) and the ends of earlier calls with
    /// several tokens while their keys are held (of each the latest 32), and 0.
    pub fn nearest(&self, position: usize) -> usize {
        self.state.nearest(position)
    }

    /// Forgets everything at and after `position`.
    pub fn rewind(&mut self, position: usize) -> Result<(), Error> {
        let nearest = self.state.nearest(position);
        if position > self.state.position || nearest != position {
            return Err(Error::Rewind { from: self.state.position, to: position, nearest });
        }
        self.state.rewind(position);
        Ok(())
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.state.rewind(0);
    }

    /// Copies the state.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { state: self.state.clone() }
    }

    /// Returns to a snapshot of an engine over the same model with the same options.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        if !self.state.is_like(&snapshot.state) || snapshot.position() > self.context_len {
            return Err(Error::ForeignSnapshot);
        }
        self.state = snapshot.state.clone();
        Ok(())
    }

    /// Bytes of a [`Block`].
    pub fn block_bytes(&self) -> usize {
        self.state.block_bytes()
    }

    /// Blocks at the end of a chain that must be complete for [`Engine::import`] to go on from there.
    pub fn blocks_needed(&self) -> usize {
        self.state.blocks_needed()
    }

    /// What decides the bits of a block besides the model's weights and the tokens: arithmetic, instruction set, layers.
    pub fn block_format(&self) -> String {
        let products = match (self.shared.rounds, self.has_reduced_products()) {
            (true, _) => "int8",
            (_, true) => "bf16",
            _ => "f32",
        };
        let (version, level) = (env!("CARGO_PKG_VERSION"), self.context().level().name());
        format!("cpu {version} {level} {products} {BORDER} {}", self.state.describe_layers())
    }

    /// What tokens `index * BORDER..(index + 1) * BORDER` left behind; `None` when they are not held or no longer wholly known.
    pub fn export(&self, index: usize) -> Option<Block> {
        self.state.export(index)
    }

    /// Replaces everything held by the blocks of the first tokens, in order; each is given with whether it is complete.
    ///
    /// Results have the bits they would have after those tokens were fed. Blocks that do not fit change nothing.
    pub fn import(&mut self, blocks: &[(&[u8], bool)]) -> Result<(), Error> {
        let tokens = blocks.len() * BORDER;
        let expected = self.block_bytes();
        if tokens > self.context_len {
            return Err(Error::ContextFull { needed: tokens, context_len: self.context_len });
        }
        if blocks.iter().rev().take(self.blocks_needed()).any(|(_, complete)| !complete) {
            return Err(Error::Block { problem: "the last blocks do not hold all that comes next needs" });
        }
        if blocks.iter().any(|(bytes, _)| bytes.len() != expected) {
            return Err(Error::Block { problem: "a block is of another size" });
        }
        if blocks.iter().any(|(bytes, _)| !self.state.is_finite(bytes)) {
            return Err(Error::Block { problem: "a block holds a value that is not finite" });
        }
        self.state.import(blocks);
        Ok(())
    }
}

impl Model {
    /// Bytes of caches and histories when `context_len` tokens are held.
    pub fn state_bytes(&self, options: &Options, context_len: usize) -> u64 {
        state_bytes(&self.stack, options, context_len)
    }
}

/// Bytes of the caches and histories of a sequence of a model when it holds `context_len` tokens.
pub fn state_bytes(stack: &Stack, options: &Options, context_len: usize) -> u64 {
    let element = if options.arithmetic == Arithmetic::Exact { 4 } else { 2 };
    let hidden = stack.hidden_size as u64;
    let layer = |block: &anemone_models::Block| match &block.mixer {
        Mixer::Attention(a) => {
            let rows = a.window.map_or(context_len, |w| context_len.min(w + options.chunk + options.rewind));
            let width = a.head_dim + a.head_dim.next_multiple_of(16);
            rows as u64 * (a.kv_heads * width) as u64 * element
        }
        Mixer::ShortConv(c) => (c.taps - 1 + options.rewind) as u64 * hidden * 4,
    };
    stack.blocks.iter().map(layer).sum()
}

/// Whether weights may be moved in their compact form: where products round to bf16 anyway, and expanding is fast.
fn may_compact(level: Level, reduced: bool) -> bool {
    level == Level::Avx512Bf16 && reduced
}

fn check_memory(model: &Model, options: &Options, context_len: usize) -> Result<(), Error> {
    let needed = model.state_bytes(options, context_len) >> 20;
    match available_mib() {
        Some(available) if needed > available => Err(Error::ContextMemory { context_len, needed, available }),
        _ => Ok(()),
    }
}

/// Memory the system could give, in MiB, where it says.
pub(crate) fn available_mib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib >> 10)
}

pub(crate) fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
