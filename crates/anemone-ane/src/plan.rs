use std::ops::Range;

use anemone_models::{Block, Ffn, Linear, Mixer, Stack};
use serde::{Deserialize, Serialize};

use crate::placement::Cost;
use crate::{CacheKind, Error, Options, Pass};

/// Bytes of weights a chunk aims to stay under; well below the 2 GB at which models are known to leave the engine.
const CHUNK_BYTES: usize = 1 << 30;
/// Milliseconds that a chunk which would stay on the CPU counts more: none is made where it can be helped.
const DECLINED: f64 = 1e3;
/// Milliseconds of cost that are no difference.
const ALIKE: f64 = 1e-6;
/// Bytes of weights of a head slice.
const SLICE_BYTES: usize = 128 << 20;
/// The longest axis known to compile for the engine, and so the most rows of a head slice and channels of a state.
const AXIS: usize = 16_384;
/// The last axis of a state must be a multiple of this.
const STATE_WIDTH: usize = 32;

/// How a stack is cut into packages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Runs of layers.
    pub chunks: Vec<ChunkPlan>,
    /// Rows of each slice of the output head.
    pub head: Vec<Range<usize>>,
}

/// One package of layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChunkPlan {
    /// Layers it holds.
    pub layers: Range<usize>,
    /// Caches of its layers, in order.
    pub caches: Vec<CachePlan>,
    /// States that hold the keys and values of its layers; none where the host holds them.
    #[serde(default)]
    pub states: Vec<StatePlan>,
    /// fp16 bytes of its weights.
    pub weight_bytes: usize,
}

/// The cache of one layer, as inputs and outputs of its package.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachePlan {
    /// `k_i [1, rows, 1, width]`, `v_i [1, width, 1, rows]`; outputs `k_i_new`, `v_i_new` hold this pass's rows. In a state they
    /// lie as [`StatePlan`] says.
    Attention {
        /// Layer index.
        layer: usize,
        /// Cached positions: `ctx`, or the window of a ring. In a state they are a multiple of 32, and a ring is longer by
        /// what a verification may have to take back.
        rows: usize,
        /// kv heads × `head_dim`.
        width: usize,
        /// Keys a query sees, itself included, when the layer slides.
        window: Option<usize>,
        /// Whether position p lies in row p mod `rows`.
        ring: bool,
    },
    /// `conv_i [1, hidden, 1, reach]`; output `conv_i_window` is that followed by this pass's rows.
    ShortConv {
        /// Layer index.
        layer: usize,
        /// Channels.
        width: usize,
        /// Earlier tokens the filter needs.
        reach: usize,
    },
}

/// Keys and values of some layers of a chunk as one state, `[1, channels, 1, rows]`: for each layer its keys, then its values.
///
/// Functions take it with `place_r [1, tokens, 1, rows]`, 1 where a token of the pass goes into a row, and `keep_r [1, 1, 1, rows]`,
/// 0 for the rows that are replaced, where r is `rows`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePlan {
    /// Its name, `cache_0`.
    pub name: String,
    /// Layers in order.
    pub layers: Vec<usize>,
    /// Twice the width of each layer.
    pub channels: usize,
    /// Rows of every layer.
    pub rows: usize,
    /// Whether position p lies in row p mod `rows`.
    pub ring: bool,
}

/// Cuts a stack: into the chunks that cost least by Core ML's planner as published, within the size limit, unless options say how many
/// layers each has; and head slices within theirs.
pub fn plan(stack: &Stack, options: &Options) -> Result<Plan, Error> {
    options.check(stack.max_position_embeddings)?;
    let layers = stack.blocks.len();
    if let Some(n) = options.layers_per_chunk.filter(|n| !(1..=layers).contains(n)) {
        let problem = format!("is {n}; it must be from 1 to the model's {layers} layers, or auto");
        return Err(Error::Option { option: "--chunk", problem });
    }
    let maps = stack.blocks.iter().map(maps).collect::<Result<Vec<_>, Error>>()?;
    let layers: Vec<Layer> = maps.iter().map(Layer::of).collect();
    let cuts = match options.layers_per_chunk {
        Some(n) => (0..layers.len()).step_by(n).skip(1).chain([layers.len()]).collect(),
        None => cheapest(&layers),
    };
    let mut chunks: Vec<ChunkPlan> = Vec::new();
    for end in cuts {
        let start = chunks.last().map_or(0, |chunk| chunk.layers.end);
        let weight_bytes = layers[start..end].iter().map(|layer| layer.bytes).sum();
        chunks.push(ChunkPlan { layers: start..end, caches: Vec::new(), states: Vec::new(), weight_bytes });
    }
    for chunk in &mut chunks {
        chunk.caches = chunk.layers.clone().map(|layer| cache(stack, layer, options)).collect();
        if options.cache == CacheKind::State {
            chunk.states = states(&chunk.caches);
        }
    }
    Ok(Plan { chunks, head: head_slices(stack, options)? })
}

/// A layer as the planner of Core ML sees it when it decodes a token.
struct Layer {
    bytes: usize,
    cost: Cost,
}

impl Layer {
    fn of(maps: &Maps) -> Self {
        let cost = maps
            .linear
            .iter()
            .fold(Cost::NONE, |sum, (inputs, outputs)| sum.plus(Cost::of_map(*inputs, *outputs, 1)));
        let weights: usize = maps.linear.iter().map(|(inputs, outputs)| inputs * outputs).sum();
        Self { bytes: 2 * (weights + maps.other), cost }
    }
}

/// Weights of a layer: inputs and outputs of its linear maps, and elements of others.
struct Maps {
    linear: Vec<(usize, usize)>,
    other: usize,
}

fn maps(block: &Block) -> Result<Maps, Error> {
    let size = |linear: &Linear| match linear.weight.shape[..] {
        [outputs, inputs] => (inputs, outputs),
        _ => (1, linear.weight.shape.numel()),
    };
    let mut linear: Vec<(usize, usize)> = match &block.ffn {
        Ffn::Gated(g) => [&g.gate, &g.up, &g.down].map(size).to_vec(),
        Ffn::Moe(_) => {
            return Err(Error::Unsupported {
                path: format!("{}.feed_forward", block.path),
                what: "a mixture of experts",
                remedy: "run it with the CPU engine",
            });
        }
    };
    let other = match &block.mixer {
        Mixer::Attention(a) => {
            linear.extend([&a.q, &a.k, &a.v, &a.o].into_iter().chain(&a.gate).map(size));
            0
        }
        Mixer::ShortConv(c) => {
            linear.extend([&c.in_proj, &c.out_proj].map(size));
            c.kernel.shape.numel()
        }
    };
    Ok(Maps { linear, other })
}

/// Whether Core ML's planner is reckoned to place a chunk's layers on the Neural Engine when they decode a token, by what published
/// plans cost; nothing here was measured.
pub fn is_placed(stack: &Stack, chunk: &ChunkPlan) -> Result<bool, Error> {
    let layers = stack.blocks[chunk.layers.clone()].iter();
    let cost = layers
        .map(|block| Ok(Layer::of(&maps(block)?).cost))
        .try_fold(Cost::NONE, |sum, cost: Result<Cost, Error>| Ok::<_, Error>(sum.plus(cost?)))?;
    Ok(cost.is_placed_alone())
}

/// Ends of the chunks, within the size limit, of which fewest would stay on the CPU and whose decoding costs least by the planner's
/// reckoning; of those that cost as much, the ones that are most alike in size. A layer beyond the limit is a chunk of its own.
fn cheapest(layers: &[Layer]) -> Vec<usize> {
    // Of the first layers: cost, sum of squares of sizes, and where the last chunk begins.
    let mut best: Vec<(f64, f64, usize)> = vec![(0.0, 0.0, 0)];
    for end in 1..=layers.len() {
        let (mut bytes, mut cost) = (0, Cost::NONE);
        let mut found: Option<(f64, f64, usize)> = None;
        for start in (0..end).rev() {
            bytes += layers[start].bytes;
            cost = cost.plus(layers[start].cost);
            if bytes > CHUNK_BYTES && start + 1 < end {
                break;
            }
            let declined = if cost.is_placed_alone() { 0.0 } else { DECLINED };
            let mebibytes = bytes as f64 / f64::from(1 << 20);
            let way = (
                best[start].0 + declined + cost.alone().neural_engine,
                best[start].1 + mebibytes * mebibytes,
                start,
            );
            let is_better = found
                .is_none_or(|found| way.0 < found.0 - ALIKE || way.0 <= found.0 + ALIKE && way.1 < found.1);
            if is_better {
                found = Some(way);
            }
        }
        best.extend(found);
    }
    let mut ends = Vec::new();
    let mut end = layers.len();
    while end > 0 {
        ends.push(end);
        end = best[end].2;
    }
    ends.reverse();
    ends
}

fn cache(stack: &Stack, layer: usize, options: &Options) -> CachePlan {
    match &stack.blocks[layer].mixer {
        Mixer::Attention(a) => {
            let (rows, ring) = rows(a.window, options);
            CachePlan::Attention { layer, rows, width: a.kv_heads * a.head_dim, window: a.window, ring }
        }
        Mixer::ShortConv(c) => CachePlan::ShortConv { layer, width: stack.hidden_size, reach: c.taps - 1 },
    }
}

/// Rows of a layer's cache, and whether they are a ring.
fn rows(window: Option<usize>, options: &Options) -> (usize, bool) {
    let window = window.filter(|w| options.ring && *w < options.ctx);
    let Some(window) = window else {
        return match options.cache {
            CacheKind::Io => (options.ctx, false),
            CacheKind::State => (options.ctx.next_multiple_of(STATE_WIDTH), false),
        };
    };
    if options.cache == CacheKind::Io {
        return (window, true);
    }
    // A pass writes its rows before it is known how many of them are kept, so the window must survive them all.
    let verify = options.passes.iter().filter(|p| matches!(p, Pass::Verify(_))).map(|p| p.tokens());
    let rows = (window - 1 + verify.max().unwrap_or(1)).next_multiple_of(STATE_WIDTH);
    let full = options.ctx.next_multiple_of(STATE_WIDTH);
    if rows < full { (rows, true) } else { (full, false) }
}

/// Layers with as many rows share a state, as far as the longest axis allows: the engine is known to refuse many states.
fn states(caches: &[CachePlan]) -> Vec<StatePlan> {
    let mut states: Vec<StatePlan> = Vec::new();
    for cache in caches {
        let CachePlan::Attention { layer, rows, width, ring, .. } = *cache else { continue };
        let fits = |s: &&mut StatePlan| s.rows == rows && s.ring == ring && s.channels + 2 * width <= AXIS;
        if let Some(state) = states.iter_mut().find(fits) {
            state.layers.push(layer);
            state.channels += 2 * width;
        } else {
            let name = format!("cache_{}", states.len());
            states.push(StatePlan { name, layers: vec![layer], channels: 2 * width, rows, ring });
        }
    }
    states
}

fn head_slices(stack: &Stack, options: &Options) -> Result<Vec<Range<usize>>, Error> {
    let (rows, hidden) = (stack.vocab_size, stack.hidden_size);
    let by_size = (SLICE_BYTES / (2 * hidden)).clamp(1, AXIS);
    let count = options.head_slices.unwrap_or_else(|| rows.div_ceil(by_size));
    if count == 0 || count > rows {
        let problem = format!("is {count}; it must be from 1 to the {rows} rows of the head");
        return Err(Error::Option { option: "--head-chunks", problem });
    }
    // Whole multiples of 64 rows where the vocabulary allows.
    let each = rows.div_ceil(count);
    let each = if each > 64 { each.next_multiple_of(64) } else { each };
    if each > AXIS {
        let problem =
            format!("is {count}, which makes slices of {each} rows; the engine takes {AXIS} at most");
        return Err(Error::Option { option: "--head-chunks", problem });
    }
    Ok((0..rows).step_by(each).map(|start| start..(start + each).min(rows)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(mebibytes: &[usize]) -> Vec<Layer> {
        let layer = |size: &usize| {
            let channels = ((size << 20) / 2 / 1024).max(1);
            Layer { bytes: size << 20, cost: Cost::of_map(1024, channels, 1) }
        };
        mebibytes.iter().map(layer).collect()
    }

    #[test]
    fn layers_are_cut_where_it_costs_least() {
        // A model of 350 M is one package.
        assert_eq!(cheapest(&layers(&[34; 16])), [16]);
        // One of 2.2 GiB needs three, and none is left over that would be declined.
        let ends = cheapest(&layers(&[80; 28]));
        assert!(ends.len() == 3 && (ends[0] == 9 || ends[0] == 10) && ends[2] == 28, "{ends:?}");
        assert!((18..=19).contains(&ends[1]), "{ends:?}");
        // 17 layers of 64 MiB are beyond one package by one; two halves, not sixteen and one.
        let halves = cheapest(&layers(&[64; 17]));
        assert!(halves == [8, 17] || halves == [9, 17], "{halves:?}");
        // A layer that is too large stands alone.
        assert_eq!(cheapest(&layers(&[10, 1500, 10])), [1, 2, 3]);
        assert_eq!(cheapest(&layers(&[])), Vec::<usize>::new());
        for sizes in [vec![300; 10], vec![1023, 2, 1023, 2], vec![512; 7]] {
            let (all, mut start) = (layers(&sizes), 0);
            for end in cheapest(&all) {
                let bytes: usize = all[start..end].iter().map(|layer| layer.bytes).sum();
                assert!(bytes <= CHUNK_BYTES || end - start == 1, "{sizes:?}");
                start = end;
            }
            assert_eq!(start, all.len());
        }
    }
}
