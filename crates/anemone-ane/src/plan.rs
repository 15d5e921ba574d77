use std::ops::Range;

use anemone_models::{Ffn, Gated, Linear, Mixer, Stack};
use serde::{Deserialize, Serialize};

use crate::{CacheKind, Error, Options, Pass};

/// Bytes of weights a chunk aims to stay under; well below the 2 GB at which models are known to leave the engine.
const CHUNK_BYTES: usize = 1 << 30;
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

/// Cuts a stack: as few chunks as the size limit and options allow, and head slices within theirs.
pub fn plan(stack: &Stack, options: &Options) -> Result<Plan, Error> {
    options.check(stack.max_position_embeddings)?;
    let layers = stack.blocks.len();
    if let Some(n) = options.layers_per_chunk.filter(|n| !(1..=layers).contains(n)) {
        let problem = format!("is {n}; it must be from 1 to the model's {layers} layers, or auto");
        return Err(Error::Option { option: "--chunk", problem });
    }
    let mut sizes = Vec::new();
    for block in &stack.blocks {
        let ffn = match &block.ffn {
            Ffn::Gated(g) => gated_params(g),
            Ffn::Moe(_) => {
                return Err(Error::Unsupported {
                    path: format!("{}.feed_forward", block.path),
                    what: "a mixture of experts",
                    remedy: "run it with the CPU engine",
                });
            }
        };
        let mixer = match &block.mixer {
            Mixer::Attention(a) => {
                [&a.q, &a.k, &a.v, &a.o].into_iter().chain(&a.gate).map(params).sum::<usize>()
            }
            Mixer::ShortConv(c) => params(&c.in_proj) + params(&c.out_proj) + c.kernel.shape.numel(),
        };
        sizes.push(2 * (ffn + mixer));
    }
    let mut chunks: Vec<ChunkPlan> = Vec::new();
    for (layer, size) in sizes.iter().enumerate() {
        let fits = |c: &ChunkPlan| match options.layers_per_chunk {
            Some(n) => c.layers.len() < n,
            None => c.weight_bytes + size <= CHUNK_BYTES,
        };
        match chunks.last_mut().filter(|c| fits(c)) {
            Some(chunk) => {
                chunk.layers.end = layer + 1;
                chunk.weight_bytes += size;
            }
            None => {
                chunks.push(ChunkPlan {
                    layers: layer..layer + 1,
                    caches: Vec::new(),
                    states: Vec::new(),
                    weight_bytes: *size,
                });
            }
        }
    }
    for chunk in &mut chunks {
        chunk.caches = chunk.layers.clone().map(|layer| cache(stack, layer, options)).collect();
        if options.cache == CacheKind::State {
            chunk.states = states(&chunk.caches);
        }
    }
    Ok(Plan { chunks, head: head_slices(stack, options)? })
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

fn params(linear: &Linear) -> usize {
    linear.weight.shape.numel()
}

fn gated_params(g: &Gated) -> usize {
    params(&g.gate) + params(&g.up) + params(&g.down)
}
