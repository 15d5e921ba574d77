//! A cache of what sequences left in engines, so that a beginning that was computed once is not computed again.
//!
//! A sequence is kept in blocks of [`BLOCK_TOKENS`] tokens, each under a hash of the model, the engine's format and all tokens up
//! to the block's end. Sequences that begin alike share their blocks. Blocks live in memory under a budget, and in a
//! directory too if there is one, where they outlive the process; in both the ones used longest ago go first.

mod disk;
mod identity;
mod memory;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::{Engine, Error, Result};
use disk::Disk;
pub use identity::ModelId;
use identity::{Key, Keys};
use memory::Memory;

/// Tokens of a block: also the most that are fed again because a beginning ends within one.
pub const BLOCK_TOKENS: usize = anemone_cpu::BORDER;

/// What [`BLOCK_TOKENS`] tokens of a sequence left in an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// As many bytes as the engine's [`BlockFormat`] says.
    pub bytes: Vec<u8>,
    /// Whether a sequence can go on from the block's end, as far as this block is concerned.
    pub complete: bool,
}

/// What an engine's blocks are like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockFormat {
    /// All that decides the bits of a block besides the tokens and, for an engine that does not know it, the model.
    pub text: String,
    /// Bytes of a block.
    pub bytes: usize,
    /// Blocks at the end of a chain that must be complete for a sequence to go on from there, 1 or more.
    pub needed: usize,
}

impl BlockFormat {
    /// How many of the first blocks of a chain a sequence can go on behind.
    pub fn usable(&self, chain: &[Arc<Block>]) -> usize {
        let ends = |n: usize| chain[..n].iter().rev().take(self.needed).all(|b| b.complete);
        (1..=chain.len()).rev().find(|n| ends(*n)).unwrap_or(0)
    }
}

/// Blocks of one model's sequences. Clones, also for other models, share memory, directory and budgets.
#[derive(Clone)]
pub struct PrefixCache {
    model: ModelId,
    store: Arc<Store>,
}

struct Store {
    memory: Mutex<Memory>,
    disk: Option<Disk>,
}

/// What a cache holds in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixCacheUse {
    /// Blocks.
    pub blocks: usize,
    /// Bytes of them, tokens and bookkeeping included.
    pub bytes: usize,
}

impl PrefixCache {
    /// A cache that keeps up to `memory` bytes of blocks.
    pub fn new(model: ModelId, memory: usize) -> Self {
        let store = Store { memory: Mutex::new(Memory::new(memory)), disk: None };
        Self { model, store: Arc::new(store) }
    }

    /// A cache that keeps up to `memory` bytes of blocks, and up to `disk` bytes in a directory that other processes may share.
    ///
    /// The directory is made if it is not there, for this user alone; an error when that fails or it cannot be written to.
    /// What is wrong with a file in it is a warning (`tracing`), and the file is not used.
    pub fn with_dir(model: ModelId, memory: usize, dir: &Path, disk: u64) -> Result<Self> {
        let disk = Disk::open(dir, disk)
            .map_err(|source| Error::PrefixCache { dir: dir.display().to_string(), source })?;
        let store = Store { memory: Mutex::new(Memory::new(memory)), disk: Some(disk) };
        Ok(Self { model, store: Arc::new(store) })
    }

    /// The same cache for the sequences of another model.
    #[must_use]
    pub fn for_model(&self, model: ModelId) -> Self {
        Self { model, store: Arc::clone(&self.store) }
    }

    /// What is held in memory, of all models.
    pub fn in_use(&self) -> PrefixCacheUse {
        self.store.memory().in_use()
    }

    /// Gives the engine the longest beginning of `tokens` that is known and longer than `at_least`, in place of whatever it
    /// holds; the number of tokens it then holds.
    ///
    /// `None` leaves the engine as it was. At least the last token of a prompt must be fed for its logits, so leave it out.
    pub fn restore(&self, engine: &mut dyn Engine, tokens: &[u32], at_least: usize) -> Option<usize> {
        let format = engine.block_format()?;
        let most = tokens.len().min(engine.context_len()) / BLOCK_TOKENS;
        if most * BLOCK_TOKENS <= at_least {
            return None;
        }
        let keys: Vec<(Key, &[u32])> =
            Keys::new(self.model, &format, &tokens[..most * BLOCK_TOKENS]).collect();
        let now = self.store.now(most);
        let mut chain = Vec::new();
        for (index, (key, own)) in keys.iter().enumerate() {
            let Some(block) = self.store.get(key, own, (index, &now), &format) else { break };
            chain.push(block);
        }
        chain.truncate(format.usable(&chain));
        if chain.len() * BLOCK_TOKENS <= at_least {
            return None;
        }
        self.store.touch_files(&keys[..chain.len()], &now);
        if let Err(error) = engine.import(&chain) {
            tracing::warn!("the prefix cache does not fit the engine and is not used: {error}");
            return None;
        }
        Some(chain.len() * BLOCK_TOKENS)
    }

    /// Keeps the blocks of what the engine holds, which must be `tokens`.
    ///
    /// Cheap where nothing is new. Call it when a multiple of [`BLOCK_TOKENS`] was passed: blocks passed long ago may no
    /// longer be had from the engine.
    pub fn keep(&self, engine: &dyn Engine, tokens: &[u32]) {
        let Some(format) = engine.block_format() else { return };
        let most = tokens.len() / BLOCK_TOKENS;
        let keys: Vec<(Key, &[u32])> =
            Keys::new(self.model, &format, &tokens[..most * BLOCK_TOKENS]).collect();
        let now = self.store.now(most);
        let mut new = false;
        for (index, (key, own)) in keys.iter().enumerate() {
            let held = self.store.complete(key, own, (index, &now), &format);
            if held == Some(true) {
                continue;
            }
            // Without its parents a block is never found, and without room for them it would push them out.
            if !self.store.has_room(index, &format) {
                break;
            }
            let Some(block) = engine.export(index) else { break };
            if block.bytes.len() != format.bytes || (held.is_some() && !block.complete) {
                continue;
            }
            if !new {
                self.store.touch_files(&keys[..index], &now);
                new = true;
            }
            self.store.insert(key, own, (index, &now), Arc::new(block));
        }
    }
}

/// One use of a chain: the time in each store's measure. Blocks further on count as used a little earlier.
struct Use {
    stamp: u64,
    time: SystemTime,
}

impl Use {
    fn stamp(&self, index: usize) -> u64 {
        self.stamp - index as u64
    }

    fn time(&self, index: usize) -> SystemTime {
        // File systems tell such times apart.
        let back = Duration::from_micros(10 * index as u64);
        self.time.checked_sub(back).unwrap_or(self.time)
    }
}

impl Store {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        // A panic elsewhere leaves whole blocks behind, at worst one too many.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self, blocks: usize) -> Use {
        Use { stamp: self.memory().stamp(blocks), time: SystemTime::now() }
    }

    fn has_room(&self, index: usize, format: &BlockFormat) -> bool {
        self.memory().fits(index, format.bytes)
            || self.disk.as_ref().is_some_and(|disk| disk.fits(index, format.bytes))
    }

    fn get(
        &self,
        key: &Key,
        tokens: &[u32],
        (index, now): (usize, &Use),
        format: &BlockFormat,
    ) -> Option<Arc<Block>> {
        let held = self.memory().get(key, tokens, now.stamp(index));
        held.or_else(|| {
            let block = Arc::new(self.disk.as_ref()?.read(key, tokens, format.bytes)?);
            self.memory().insert(*key, tokens, (index, now.stamp(index)), Arc::clone(&block));
            Some(block)
        })
    }

    /// Whether a block is kept, and then whether it is complete.
    fn complete(
        &self,
        key: &Key,
        tokens: &[u32],
        (index, now): (usize, &Use),
        format: &BlockFormat,
    ) -> Option<bool> {
        let held = self.memory().get(key, tokens, now.stamp(index));
        held.map(|block| block.complete).or_else(|| {
            // What only a file holds is taken from the engine once more where memory has room for it.
            let fits = self.memory().fits(index, format.bytes);
            self.disk.as_ref()?.complete(key, format.bytes).filter(|complete| !(*complete && fits))
        })
    }

    fn insert(&self, key: &Key, tokens: &[u32], (index, now): (usize, &Use), block: Arc<Block>) {
        if let Some(disk) = &self.disk {
            disk.write(key, tokens, (index, now.time(index)), &block);
        }
        self.memory().insert(*key, tokens, (index, now.stamp(index)), block);
    }

    fn touch_files(&self, keys: &[(Key, &[u32])], now: &Use) {
        if let Some(disk) = &self.disk {
            keys.iter().enumerate().for_each(|(index, (key, _))| disk.touch(key, now.time(index)));
        }
    }
}

impl fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dir = self.store.disk.as_ref().map(Disk::dir);
        f.debug_struct("PrefixCache")
            .field("in_use", &self.in_use())
            .field("dir", &dir)
            .finish_non_exhaustive()
    }
}
