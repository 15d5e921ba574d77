use std::ops::Range;

use half::f16;

use super::AttentionShape;
use crate::Context;
use crate::simd::Shared;

/// Positions of a block of cached keys and values.
pub const BLOCK: usize = 16;

/// Element type of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheElement {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes.
    F16,
}

/// Keys and values of one attention layer, by absolute position: all of them, or a ring of the latest.
#[derive(Debug, Clone)]
pub struct Cache {
    shape: AttentionShape,
    data: Data,
    /// Positions written so far; the latest is `written - 1`.
    written: usize,
    /// Oldest position that can still be there; above zero once a ring has turned.
    oldest: usize,
}

#[derive(Debug, Clone)]
enum Data {
    F32(Store<f32>),
    F16(Store<f16>),
}

/// Blocks `[block][head]`: keys `[dim, BLOCK]`, values `[BLOCK, value_width]`.
#[derive(Debug, Clone)]
pub(super) struct Store<E> {
    k: Vec<E>,
    v: Vec<E>,
    kv_heads: usize,
    dim: usize,
    blocks: usize,
    ring: Option<usize>,
}

impl<E> Store<E> {
    fn new(shape: AttentionShape, ring: Option<usize>) -> Self {
        Self { k: Vec::new(), v: Vec::new(), kv_heads: shape.kv_heads, dim: shape.dim, blocks: 0, ring }
    }

    pub(super) fn value_width(&self) -> usize {
        self.dim.next_multiple_of(16)
    }

    fn slot(&self, block: usize) -> usize {
        self.ring.map_or(block, |n| block % n)
    }

    pub(super) fn keys(&self, block: usize, head: usize) -> &[E] {
        let n = self.dim * BLOCK;
        let at = (self.slot(block) * self.kv_heads + head) * n;
        &self.k[at..at + n]
    }

    pub(super) fn values(&self, block: usize, head: usize) -> &[E] {
        let n = self.value_width() * BLOCK;
        let at = (self.slot(block) * self.kv_heads + head) * n;
        &self.v[at..at + n]
    }
}

impl<E: Copy + Default> Store<E> {
    fn reserve(&mut self, blocks: usize) {
        let blocks = self.ring.map_or(blocks, |n| blocks.min(n));
        if blocks > self.blocks {
            self.k.resize(blocks * self.kv_heads * self.dim * BLOCK, E::default());
            self.v.resize(blocks * self.kv_heads * self.value_width() * BLOCK, E::default());
            self.blocks = blocks;
        }
    }

    fn write(
        &mut self,
        context: &Context,
        start: usize,
        tokens: usize,
        k: &[f32],
        v: &[f32],
        to: fn(f32) -> E,
    ) where
        E: Send + Sync,
    {
        let (heads, dim, wide) = (self.kv_heads, self.dim, self.value_width());
        let slots: Vec<usize> =
            (start / BLOCK..(start + tokens).div_ceil(BLOCK)).map(|b| self.slot(b)).collect();
        let (keys, values) = (Shared::new(&mut self.k), Shared::new(&mut self.v));
        context.pool().run(slots.len(), &|_, i| {
            let base = (start / BLOCK + i) * BLOCK;
            // SAFETY: a slot is one task's alone: a pass is never longer than a ring.
            let (keys, values) = unsafe {
                (
                    keys.slice(slots[i] * heads * dim * BLOCK, heads * dim * BLOCK),
                    values.slice(slots[i] * heads * wide * BLOCK, heads * wide * BLOCK),
                )
            };
            for position in base.max(start)..(base + BLOCK).min(start + tokens) {
                let row = (position - start) * heads * dim;
                let at = position - base;
                for h in 0..heads {
                    let (k, v) =
                        (&k[row + h * dim..row + (h + 1) * dim], &v[row + h * dim..row + (h + 1) * dim]);
                    for (d, k) in k.iter().enumerate() {
                        keys[(h * dim + d) * BLOCK + at] = to(*k);
                    }
                    for (o, v) in values[(h * BLOCK + at) * wide..].iter_mut().zip(v) {
                        *o = to(*v);
                    }
                }
            }
            // A block is begun clean: what a ring or a forgotten sequence left there could be infinite, and zero times
            // that is no number.
            let end = start + tokens - base;
            if base >= start && end < BLOCK {
                values.chunks_exact_mut(BLOCK * wide).for_each(|head| head[end * wide..].fill(E::default()));
            }
        });
    }

    /// Keys, then values, of a block.
    fn block(&self, block: usize) -> [Range<usize>; 2] {
        let slot = self.slot(block);
        [self.dim, self.value_width()].map(|width| {
            let n = self.kv_heads * width * BLOCK;
            slot * n..(slot + 1) * n
        })
    }

    fn export<const N: usize>(&self, blocks: Range<usize>, out: &mut Vec<u8>, to: fn(E) -> [u8; N]) {
        for block in blocks {
            let [k, v] = self.block(block);
            out.extend(self.k[k].iter().chain(&self.v[v]).flat_map(|x| to(*x)));
        }
    }

    fn load<const N: usize>(&mut self, blocks: Range<usize>, bytes: &[u8], from: fn([u8; N]) -> E) {
        self.reserve(blocks.end);
        let mut numbers = bytes.as_chunks::<N>().0.iter();
        for block in blocks {
            let [k, v] = self.block(block);
            for (x, bytes) in self.k[k].iter_mut().chain(&mut self.v[v]).zip(&mut numbers) {
                *x = from(*bytes);
            }
        }
    }

    /// Clears the values at and after `position` in its block.
    fn clear_rest(&mut self, position: usize) {
        let (block, from, wide) = (position / BLOCK, position % BLOCK, self.value_width());
        if from == 0 || self.slot(block) >= self.blocks {
            return;
        }
        let n = self.kv_heads * BLOCK * wide;
        let at = self.slot(block) * n;
        let heads = self.v[at..at + n].chunks_exact_mut(BLOCK * wide);
        heads.for_each(|head| head[from * wide..].fill(E::default()));
    }
}

impl Cache {
    /// An empty cache; with `ring_positions`, one that keeps at least that many of the latest positions.
    pub fn new(element: CacheElement, shape: AttentionShape, ring_positions: Option<usize>) -> Self {
        assert!(
            shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads),
            "heads divide into kv heads"
        );
        // One block more, because the ring's first block may be partly overwritten.
        let ring = ring_positions.map(|n| n.div_ceil(BLOCK) + 1);
        let data = match element {
            CacheElement::F32 => Data::F32(Store::new(shape, ring)),
            CacheElement::F16 => Data::F16(Store::new(shape, ring)),
        };
        Self { shape, data, written: 0, oldest: 0 }
    }

    /// Heads and their size.
    pub fn shape(&self) -> AttentionShape {
        self.shape
    }

    /// Element type.
    pub fn element(&self) -> CacheElement {
        match self.data {
            Data::F32(_) => CacheElement::F32,
            Data::F16(_) => CacheElement::F16,
        }
    }

    /// Whether the other cache has the same heads, element type and ring.
    pub fn is_like(&self, other: &Self) -> bool {
        self.shape == other.shape && self.element() == other.element() && self.ring() == other.ring()
    }

    /// Blocks of a ring.
    fn ring(&self) -> Option<usize> {
        match &self.data {
            Data::F32(s) => s.ring,
            Data::F16(s) => s.ring,
        }
    }

    /// Whether all positions of `from..to` are present.
    pub fn holds(&self, from: usize, to: usize) -> bool {
        from >= self.oldest && to <= self.written
    }

    /// Forgets every position at and after `position`.
    pub fn truncate(&mut self, position: usize) {
        if position >= self.written {
            return;
        }
        self.written = position;
        match &mut self.data {
            Data::F32(s) => s.clear_rest(position),
            Data::F16(s) => s.clear_rest(position),
        }
        if self.written == 0 {
            self.oldest = 0;
        }
    }

    /// Bytes the cache occupies.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Data::F32(s) => (s.k.capacity() + s.v.capacity()) * 4,
            Data::F16(s) => (s.k.capacity() + s.v.capacity()) * 2,
        }
    }

    /// Bytes of a block of [`BLOCK`] positions as [`Cache::export`] gives it.
    pub fn block_bytes(&self) -> usize {
        let element = match self.element() {
            CacheElement::F32 => 4,
            CacheElement::F16 => 2,
        };
        self.shape.kv_heads * (self.shape.dim + self.shape.dim.next_multiple_of(16)) * BLOCK * element
    }

    /// Appends the contents of whole blocks, all of whose positions are present, to `out`, little-endian.
    pub fn export(&self, blocks: Range<usize>, out: &mut Vec<u8>) {
        assert!(
            self.holds(blocks.start * BLOCK, blocks.end * BLOCK),
            "blocks {blocks:?} are not in the cache"
        );
        match &self.data {
            Data::F32(s) => s.export(blocks, out, f32::to_le_bytes),
            Data::F16(s) => s.export(blocks, out, f16::to_le_bytes),
        }
    }

    /// Replaces everything by blocks that [`Cache::export`] gave; positions before the first of them are gone.
    pub fn load(&mut self, blocks: Range<usize>, bytes: &[u8]) {
        assert_eq!(bytes.len(), blocks.len() * self.block_bytes(), "bytes of {} blocks", blocks.len());
        assert!(self.ring().is_none_or(|n| blocks.len() <= n), "{} blocks do not fit the ring", blocks.len());
        (self.oldest, self.written) = (blocks.start * BLOCK, blocks.end * BLOCK);
        match &mut self.data {
            Data::F32(s) => s.load(blocks, bytes, f32::from_le_bytes),
            Data::F16(s) => s.load(blocks, bytes, f16::from_le_bytes),
        }
    }

    pub(super) fn f32_store(&self) -> &Store<f32> {
        match &self.data {
            Data::F32(s) => s,
            Data::F16(_) => unreachable!("asked for f32 of an f16 cache"),
        }
    }

    pub(super) fn f16_store(&self) -> &Store<f16> {
        match &self.data {
            Data::F16(s) => s,
            Data::F32(_) => unreachable!("asked for f16 of an f32 cache"),
        }
    }

    pub(super) fn write(&mut self, context: &Context, start: usize, tokens: usize, k: &[f32], v: &[f32]) {
        let row = self.shape.kv_heads * self.shape.dim;
        assert!(k.len() == tokens * row && v.len() == tokens * row, "lengths");
        assert!(start <= self.written, "a gap in the cache: writing at {start}, {} written", self.written);
        let end = start + tokens;
        let blocks = end.div_ceil(BLOCK);
        let ring = match &mut self.data {
            Data::F32(s) => {
                s.reserve(blocks);
                s.write(context, start, tokens, k, v, |x| x);
                s.ring
            }
            Data::F16(s) => {
                s.reserve(blocks);
                s.write(context, start, tokens, k, v, saturate);
                s.ring
            }
        };
        if let Some(ring) = ring {
            assert!(blocks - start / BLOCK <= ring, "a pass of {tokens} tokens does not fit the ring");
            self.oldest = self.oldest.max(blocks.saturating_sub(ring) * BLOCK);
        }
        self.written = end;
    }
}

fn saturate(x: f32) -> f16 {
    f16::from_f32(x.clamp(-65504.0, 65504.0))
}
