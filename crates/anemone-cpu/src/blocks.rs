//! Blocks: what [`BORDER`] tokens of a sequence left behind, as bytes that can be put back.
//!
//! A block holds the keys and values of its tokens for every layer that sees all of them, of a layer with a window those that
//! tokens after the block can see, and the convolution windows at its end. A sequence can go on from the end of a chain of
//! blocks, with the bits it would have had.

use anemone_kernels::{BLOCK, Cache, CacheElement};

use crate::state::{BORDER, History, LayerState, State};

/// Blocks of the cache in one of ours.
const CACHE_BLOCKS: usize = BORDER / BLOCK;

/// What [`BORDER`] tokens left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// As many bytes as `Engine::block_bytes` says.
    pub bytes: Vec<u8>,
    /// Whether rows of sliding layers and convolution windows are all there, so that a sequence can go on from the block's
    /// end; otherwise zeros are in their places.
    pub complete: bool,
}

/// Blocks of the cache that a layer puts into a block: the last ones, as far as a query after it can see.
fn rows(window: Option<usize>) -> usize {
    window.map_or(CACHE_BLOCKS, |w| (w - 1).div_ceil(BLOCK).min(CACHE_BLOCKS))
}

/// Bytes of a layer in a block.
fn layer_bytes(layer: &LayerState) -> usize {
    match layer {
        LayerState::Attention(cache, window) => rows(*window) * cache.block_bytes(),
        LayerState::ShortConv(history) => history.window_len() * 4,
    }
}

impl State {
    /// Bytes of a block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.layers.iter().map(layer_bytes).sum()
    }

    /// Blocks at the end of a chain that must be complete for a sequence to go on from there.
    pub(crate) fn blocks_needed(&self) -> usize {
        let needed = self.layers.iter().map(|layer| match layer {
            LayerState::Attention(_, Some(window)) => (window - 1).div_ceil(BORDER),
            _ => 1,
        });
        needed.max().unwrap_or(1).max(1)
    }

    /// Block `index`; `None` when its end is not reached, or keys that later tokens all need are gone.
    pub(crate) fn export(&self, index: usize) -> Option<Block> {
        let end = (index + 1) * BORDER;
        if end > self.position {
            return None;
        }
        let mut block = Block { bytes: Vec::with_capacity(self.block_bytes()), complete: true };
        for layer in &self.layers {
            let length = block.bytes.len() + layer_bytes(layer);
            match layer {
                LayerState::Attention(cache, window) => {
                    let last = end / BLOCK;
                    let first = last - rows(*window);
                    if cache.holds(first * BLOCK, end) {
                        cache.export(first..last, &mut block.bytes);
                    } else if window.is_none() {
                        return None;
                    }
                }
                LayerState::ShortConv(history) => {
                    if let Some(window) = history.known(end) {
                        block.bytes.extend(window.into_iter().flat_map(f32::to_le_bytes));
                    }
                }
            }
            if block.bytes.len() < length {
                block.complete = false;
                block.bytes.resize(length, 0);
            }
        }
        Some(block)
    }

    /// Replaces everything by what a chain of blocks left behind, each given with whether it is complete.
    ///
    /// Each must have [`State::block_bytes`], and the last [`State::blocks_needed`] must be complete.
    pub(crate) fn import(&mut self, blocks: &[(&[u8], bool)]) {
        self.rewind(0);
        let end = blocks.len() * BORDER;
        let mut at = 0;
        let mut bytes = Vec::new();
        for layer in &mut self.layers {
            let length = layer_bytes(layer);
            match layer {
                LayerState::Attention(cache, window) => {
                    let last = end / BLOCK;
                    let seen = window.map_or(last, |w| (w - 1).div_ceil(BLOCK).min(last));
                    // Of each block its last rows, of the chain those that are seen.
                    let parts = blocks.iter().skip((last - seen) / CACHE_BLOCKS);
                    bytes.clear();
                    parts.for_each(|(part, _)| bytes.extend_from_slice(&part[at..at + length]));
                    let unseen = bytes.len() - seen * cache.block_bytes();
                    cache.load(last - seen..last, &bytes[unseen..]);
                }
                LayerState::ShortConv(history) => {
                    let complete = blocks.iter().enumerate().filter(|(_, (_, complete))| *complete);
                    for (i, (block, _)) in complete {
                        let window =
                            block[at..at + length].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
                        history.restore((i + 1) * BORDER, &window.collect::<Vec<f32>>());
                    }
                }
            }
            at += length;
        }
        self.position = end;
    }

    /// Whether all numbers of a block are finite; it must have [`State::block_bytes`].
    pub(crate) fn is_finite(&self, mut block: &[u8]) -> bool {
        self.layers.iter().all(|layer| {
            let (part, rest) = block.split_at(layer_bytes(layer));
            block = rest;
            match layer {
                LayerState::Attention(cache, _) if cache.element() == CacheElement::F16 => {
                    part.as_chunks().0.iter().all(|b| u16::from_le_bytes(*b) & 0x7c00 != 0x7c00)
                }
                _ => part.as_chunks().0.iter().all(|b| f32::from_le_bytes(*b).is_finite()),
            }
        })
    }

    /// The layers as far as the meaning of a block's bytes goes.
    pub(crate) fn describe_layers(&self) -> String {
        let layer = |layer: &LayerState| match layer {
            LayerState::Attention(cache, window) => describe_attention(cache, *window),
            LayerState::ShortConv(history) => describe_conv(history),
        };
        self.layers.iter().map(layer).collect()
    }
}

fn describe_attention(cache: &Cache, window: Option<usize>) -> String {
    let shape = cache.shape();
    format!("a{}x{}x{:?}w{window:?};", shape.kv_heads, shape.dim, cache.element())
}

fn describe_conv(history: &History) -> String {
    format!("c{};", history.window_len())
}
