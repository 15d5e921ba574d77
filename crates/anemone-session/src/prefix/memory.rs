use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{BLOCK_TOKENS, Block, Key, PrefixCacheUse};

/// Bookkeeping of a block besides its bytes and tokens, about.
const OVERHEAD: usize = 256;

/// Blocks in memory under a budget; the one used longest ago goes first.
///
/// A block is never used without those before it, and within one use these count as later ([`Use`](super::Use)), so that a
/// block always goes before the ones it needs.
#[derive(Debug)]
pub(super) struct Memory {
    budget: usize,
    bytes: usize,
    clock: u64,
    entries: HashMap<Key, Entry>,
    by_use: BTreeSet<(u64, Key)>,
}

#[derive(Debug)]
struct Entry {
    block: Arc<Block>,
    tokens: Box<[u32]>,
    used: u64,
}

fn cost(bytes: usize) -> usize {
    bytes + 4 * BLOCK_TOKENS + OVERHEAD
}

impl Memory {
    pub(super) fn new(budget: usize) -> Self {
        Self { budget, bytes: 0, clock: 0, entries: HashMap::new(), by_use: BTreeSet::new() }
    }

    pub(super) fn in_use(&self) -> PrefixCacheUse {
        PrefixCacheUse { blocks: self.entries.len(), bytes: self.bytes }
    }

    /// The stamp of the first block in a use of a chain of `blocks`; the others' count down from it.
    pub(super) fn stamp(&mut self, blocks: usize) -> u64 {
        self.clock += blocks as u64 + 1;
        self.clock
    }

    /// Whether there is room for a chain up to the block `index`.
    pub(super) fn fits(&self, index: usize, bytes: usize) -> bool {
        (index + 1).saturating_mul(cost(bytes)) <= self.budget
    }

    pub(super) fn get(&mut self, key: &Key, tokens: &[u32], stamp: u64) -> Option<Arc<Block>> {
        let entry = self.entries.get_mut(key).filter(|e| *e.tokens == *tokens)?;
        if entry.used < stamp {
            self.by_use.remove(&(entry.used, *key));
            self.by_use.insert((stamp, *key));
            entry.used = stamp;
        }
        Some(Arc::clone(&entry.block))
    }

    /// Takes a block in, in the place of one with its key; false when there is no room for its chain.
    pub(super) fn insert(
        &mut self,
        key: Key,
        tokens: &[u32],
        (index, stamp): (usize, u64),
        block: Arc<Block>,
    ) -> bool {
        if !self.fits(index, block.bytes.len()) {
            return false;
        }
        self.remove(&key);
        self.bytes += cost(block.bytes.len());
        self.by_use.insert((stamp, key));
        self.entries.insert(key, Entry { block, tokens: tokens.into(), used: stamp });
        while self.bytes > self.budget
            && let Some((_, oldest)) = self.by_use.first().copied()
        {
            self.remove(&oldest);
        }
        true
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.by_use.remove(&(entry.used, *key));
            self.bytes -= cost(entry.block.bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 100;

    fn key(chain: u8, index: usize) -> Key {
        let mut key = [0; 32];
        (key[0], key[1]) = (chain, index as u8);
        Key(key)
    }

    /// Uses a chain to a depth, making what is missing; how much of it was there.
    fn walk(memory: &mut Memory, chain: u8, depth: usize) -> usize {
        let stamp = memory.stamp(depth);
        let mut found = 0;
        for index in 0..depth {
            let at = stamp - index as u64;
            if memory.get(&key(chain, index), &[7], at).is_some() {
                assert_eq!(found, index, "a block was kept longer than one it needs");
                found += 1;
            } else {
                let block = Block { bytes: vec![chain; SIZE], complete: true };
                memory.insert(key(chain, index), &[7], (index, at), Arc::new(block));
            }
        }
        found
    }

    #[test]
    fn the_chain_used_longest_ago_goes_from_its_end() {
        let mut memory = Memory::new(6 * cost(SIZE));
        walk(&mut memory, 1, 3);
        walk(&mut memory, 2, 3);
        assert_eq!(memory.in_use(), PrefixCacheUse { blocks: 6, bytes: 6 * cost(SIZE) });
        assert_eq!(walk(&mut memory, 1, 2), 2);
        // The end of chain 1 was used longest ago, then chain 2 from its end.
        assert_eq!(walk(&mut memory, 3, 2), 0);
        let there = |memory: &Memory, chain, index| memory.entries.contains_key(&key(chain, index));
        assert!(!there(&memory, 1, 2) && !there(&memory, 2, 2));
        assert!(there(&memory, 1, 1) && there(&memory, 2, 1) && there(&memory, 3, 1));
    }

    #[test]
    fn a_chain_longer_than_the_budget_keeps_its_beginning() {
        let mut memory = Memory::new(4 * cost(SIZE) + 5);
        assert_eq!(walk(&mut memory, 1, 9), 0);
        assert_eq!(walk(&mut memory, 1, 9), 4);
        assert_eq!(walk(&mut Memory::new(cost(SIZE) - 1), 1, 2), 0);
        assert_eq!(memory.in_use().blocks, 4);
    }

    #[test]
    fn blocks_of_other_tokens_are_not_taken() {
        let mut memory = Memory::new(cost(SIZE));
        walk(&mut memory, 1, 1);
        assert!(memory.get(&key(1, 0), &[7], 9).is_some() && memory.get(&key(1, 0), &[8], 9).is_none());
    }

    #[test]
    fn whatever_happens_parents_outlive_children_and_the_budget_holds() {
        let mut memory = Memory::new(10 * cost(SIZE) + 50);
        let mut random = 5u64;
        for _ in 0..4000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            walk(&mut memory, (random >> 33) as u8 % 5, (random >> 50) as usize % 7);
            assert!(memory.bytes <= memory.budget && memory.by_use.len() == memory.entries.len());
            for chain in 0..5 {
                let there = (0..7).map(|i| memory.entries.contains_key(&key(chain, i)));
                assert!(there.collect::<Vec<_>>().is_sorted_by(|a, b| a >= b), "chain {chain} has a hole");
            }
        }
    }
}
