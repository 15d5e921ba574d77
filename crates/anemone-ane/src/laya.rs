//! Decision models as fixed-length programs: one function for each length, the weights stored once.

use std::collections::BTreeMap;

use anemone_mil::{Arg, DataType, Program, Value, VarId};
use anemone_models::{EncoderLayer, Laya, LayerNorm, MlpActivation};

use crate::graph::{Graph, Role};
use crate::weights::Table;
use crate::{Error, Load, Rules, WeightRecord};

/// Option slots of a function.
pub const OPTION_SLOTS: usize = 32;
/// Most functions of a package, each of which whoever loads it keeps in memory.
const LENGTHS: usize = 32;

/// Epsilon of a normalisation that only applies weight and bias.
const EPSILON: f32 = 1e-5;

/// How layers with a window attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalAttention {
    /// Every query with every key, the window by mask alone.
    #[default]
    Dense,
    /// Tiles of this many queries with the keys any of them may see.
    Tiled(usize),
}

/// What to lower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayaOptions {
    /// Tokens of each function, in order, each once.
    pub lengths: Vec<usize>,
    /// Specification version of the package; 9 is macOS 15.
    pub spec_version: i32,
    /// How layers with a window attend.
    pub local: LocalAttention,
    /// Type of inputs, weights and results: fp16 for the Neural Engine, fp32 to compare with.
    pub precision: DataType,
}

impl LayaOptions {
    /// Name of the function for a length.
    pub fn function(length: usize) -> String {
        format!("L{length}")
    }

    fn check(&self, laya: &Laya) -> Result<(), Error> {
        let bad = |option, problem: String| Err(Error::Option { option, problem });
        let max = laya.encoder.max_position_embeddings;
        if self.lengths.is_empty() || self.lengths.len() > LENGTHS {
            return bad(
                "--length",
                format!("asks for {} functions; give 1 to {LENGTHS} lengths", self.lengths.len()),
            );
        }
        for (i, length) in self.lengths.iter().enumerate() {
            if *length < OPTION_SLOTS || *length > max {
                return bad(
                    "--length",
                    format!("is {length}; it must be from {OPTION_SLOTS} to the model's {max}"),
                );
            }
            if self.lengths[..i].contains(length) {
                return bad("--length", format!("asks for {length} twice"));
            }
        }
        if let LocalAttention::Tiled(tile) = self.local
            && tile == 0
        {
            return bad("--tile", "is 0; a tile holds at least one query".to_owned());
        }
        if self.spec_version < 9 && self.lengths.len() > 1 {
            return bad(
                "--target",
                "before macOS 15 cannot hold several functions; convert one length at a time".to_owned(),
            );
        }
        Ok(())
    }
}

/// Lowers everything between the embedding table and the action head.
///
/// Inputs: `embeddings [1, C, 1, L]`, rows of the table; `full_mask` and `local_mask [1, L, 1, L]`, key by query, additive;
/// `type_vectors [1, C, 1, 1]`; `marker_map [1, L, 1, 32]`, one-hot. Outputs: `logits [1, 1, 1, 32]` and `cls [1, C, 1, 1]`.
/// With the program comes where each of its weights lies in the checkpoint; rotary tables lie nowhere.
pub fn lower_laya(
    laya: &Laya,
    load: Load<'_>,
    options: &LayaOptions,
) -> Result<(Program, Vec<Option<WeightRecord>>), Error> {
    options.check(laya)?;
    let mut table = Table::with_type(load, options.precision);
    let mut functions = BTreeMap::new();
    // A package of one function calls it `main`.
    let alone = options.lengths.len() == 1;
    let name = |length: usize| if alone { "main".to_owned() } else { LayaOptions::function(length) };
    for length in &options.lengths {
        let graph = Graph::new(&name(*length), options.spec_version, *length, Rules::none(), &mut table);
        functions.insert(name(*length), body(graph, laya, options.local)?);
    }
    let program = Program {
        spec_version: options.spec_version,
        functions,
        default_function: name(options.lengths[0]),
        weights: std::mem::take(&mut table.weights),
        metadata: BTreeMap::new(),
    };
    Ok((program, table.records))
}

/// Values the layers of a function share.
struct Shared {
    full_mask: VarId,
    local_mask: VarId,
    /// Rotary tables of each frequency base in use: (theta bits, dim, cos, sin).
    tables: Vec<(u32, usize, VarId, VarId)>,
    /// Parts of the local mask by tile.
    tiles: Vec<Tile>,
    local: LocalAttention,
}

/// Queries of a tile and the keys any of them may see.
struct Tile {
    queries: (usize, usize),
    keys: (usize, usize),
    mask: VarId,
}

fn body(mut g: Graph<'_, '_>, laya: &Laya, local: LocalAttention) -> Result<anemone_mil::Function, Error> {
    let (hidden, length) = (laya.encoder.hidden_size, g.tokens);
    let embeddings = g.input("embeddings", [1, hidden, 1, length])?;
    let full_mask = g.input("full_mask", [1, length, 1, length])?;
    let local_mask = g.input("local_mask", [1, length, 1, length])?;
    let types = g.input("type_vectors", [1, hidden, 1, 1])?;
    let markers = g.input("marker_map", [1, length, 1, OPTION_SLOTS])?;
    let mut shared = Shared { full_mask, local_mask, tables: Vec::new(), tiles: Vec::new(), local };
    let mut x = layer_norm(&mut g, "encoder.embeddings.norm", embeddings, &laya.encoder.embedding_norm)?;
    for l in &laya.encoder.layers {
        x = layer(&mut g, &mut shared, x, l)?;
    }
    x = layer_norm(&mut g, "encoder.final_norm", x, &laya.encoder.final_norm)?;
    x = g.add("typed", x, types)?;
    for l in &laya.head {
        x = layer(&mut g, &mut shared, x, l)?;
    }
    let marked = g.einsum("marked", "bchk,bkhq->bchq", x, markers)?;
    let marked = layer_norm(&mut g, "scorer.0", marked, &laya.scorer.norm)?;
    let dense = g.linear("scorer.1", marked, &laya.scorer.dense, Role::Other)?;
    let active = gelu(&mut g, "scorer.2", dense)?;
    let logits = g.linear("logits", active, &laya.scorer.out, Role::Other)?;
    let cls = g.columns("cls", x, 0, 1)?;
    g.finish(&[logits, cls])
}

fn layer(g: &mut Graph<'_, '_>, shared: &mut Shared, x: VarId, layer: &EncoderLayer) -> Result<VarId, Error> {
    let path = &layer.path;
    let normed = match &layer.attention_norm {
        Some(norm) => layer_norm(g, &format!("{path}.attn_norm"), x, norm)?,
        None => x,
    };
    let attended = attention(g, shared, normed, layer)?;
    let x = g.add(&format!("{path}.mixed"), x, attended)?;
    let normed = layer_norm(g, &format!("{path}.mlp_norm"), x, &layer.mlp_norm)?;
    let up = g.linear(&format!("{path}.mlp.up"), normed, &layer.mlp.up, Role::Other)?;
    let active = match layer.mlp.activation {
        MlpActivation::GeluGated => {
            let halves = g.split(&format!("{path}.mlp.halves"), up, 2, 1)?;
            let active = gelu(g, &format!("{path}.mlp.gelu"), halves[0])?;
            g.mul(&format!("{path}.mlp.gated"), active, halves[1])?
        }
        MlpActivation::Relu => g.op("relu", &format!("{path}.mlp.relu"), &[("x", up.into())])?,
    };
    let down = g.linear(&format!("{path}.mlp.down"), active, &layer.mlp.down, Role::Other)?;
    g.add(path, x, down)
}

fn attention(
    g: &mut Graph<'_, '_>,
    shared: &mut Shared,
    x: VarId,
    layer: &EncoderLayer,
) -> Result<VarId, Error> {
    let (a, m) = (&layer.attention, format!("{}.attn", layer.path));
    let qkv = g.linear(&format!("{m}.qkv"), x, &a.qkv, Role::Other)?;
    let parts = g.split(&format!("{m}.parts"), qkv, 3, 1)?;
    let mut heads = Vec::new();
    for (part, name) in parts.into_iter().zip(["q", "k", "v"]) {
        heads.push(g.split(&format!("{m}.{name}"), part, a.heads, 1)?);
    }
    let table = a.rope.map(|rope| shared.table(g, &rope)).transpose()?;
    let scale = 1.0 / (a.head_dim as f32).sqrt();
    let mut outputs = Vec::with_capacity(a.heads);
    let by_head = heads[0].iter().zip(&heads[1]).zip(&heads[2]).enumerate();
    for (h, ((q, k), v)) in by_head {
        let n = |what: &str| format!("{m}.{what}_{h}");
        let (mut q, mut k, v) = (*q, *k, *v);
        if let Some(table) = table {
            q = g.rotate(&n("q"), q, table)?;
            k = g.rotate(&n("k"), k, table)?;
        }
        let k = g.turn(&n("keys"), k)?;
        let out = match (a.radius, shared.local) {
            (Some(radius), LocalAttention::Tiled(tile)) if tile + 2 * radius < g.tokens => {
                shared.cut(g, tile, radius)?;
                let mut parts = Vec::new();
                for (i, t) in shared.tiles.iter().enumerate() {
                    let n = |what: &str| n(&format!("{what}.{i}"));
                    let q = g.columns(&n("q"), q, t.queries.0, t.queries.1)?;
                    let k = g.part(&n("k"), k, 1, t.keys.0, t.keys.1)?;
                    let v = g.columns(&n("v"), v, t.keys.0, t.keys.1)?;
                    parts.push(attend(g, &n, [q, k, v], t.mask, scale)?);
                }
                g.concat(&n("attended"), parts, 3)?
            }
            (radius, _) => {
                let mask = if radius.is_some() { shared.local_mask } else { shared.full_mask };
                attend(g, &n, [q, k, v], mask, scale)?
            }
        };
        outputs.push(out);
    }
    let joined = g.concat(&format!("{m}.joined"), outputs, 1)?;
    g.linear(&format!("{m}.out"), joined, &a.out, Role::Other)
}

/// One head: queries `[1, D, 1, Q]`, turned keys `[1, K, 1, D]`, values `[1, D, 1, K]`.
fn attend(
    g: &mut Graph<'_, '_>,
    name: &dyn Fn(&str) -> String,
    [q, k, v]: [VarId; 3],
    mask: VarId,
    scale: f32,
) -> Result<VarId, Error> {
    let scores = g.einsum(&name("scores"), "bkhc,bchq->bkhq", k, q)?;
    let scores = g.times(&name("scaled"), scores, scale)?;
    let scores = g.add(&name("masked"), scores, mask)?;
    let p = g.op("softmax", &name("p"), &[("x", scores.into()), ("axis", Value::int(1).into())])?;
    g.einsum(&name("out"), "bchk,bkhq->bchq", v, p)
}

fn gelu(g: &mut Graph<'_, '_>, name: &str, x: VarId) -> Result<VarId, Error> {
    g.op("gelu", name, &[("x", x.into()), ("mode", Value::text("EXACT").into())])
}

/// Mean zero and variance one over channels, then the weight; with a bias, both as a normalisation that is already done.
fn layer_norm(g: &mut Graph<'_, '_>, path: &str, x: VarId, norm: &LayerNorm) -> Result<VarId, Error> {
    let inputs =
        [("x", x.into()), ("axes", Value::ints(&[1]).into()), ("epsilon", g.number(norm.eps).into())];
    let normed = g.op("layer_norm", &format!("{path}.normed"), &inputs)?;
    let Some(bias) = &norm.bias else {
        let weight = g.table().vector(&norm.weight, true, 0)?;
        let weight = g.weight(&format!("{path}.weight"), weight)?;
        return g.mul(path, normed, weight);
    };
    let channels = g.channels(normed);
    let (gamma, beta) = (g.table().vector(&norm.weight, false, 0)?, g.table().vector(bias, false, 0)?);
    // The operation adds its epsilon to the variance; in fp16 the difference to one is nothing.
    let (zeros, ones) = (g.table().filled(0.0, channels), g.table().filled(1.0 - EPSILON, channels));
    let mut inputs: Vec<(&str, Arg)> = vec![("x", normed.into())];
    for (name, value) in [("gamma", gamma), ("beta", beta), ("mean", zeros), ("variance", ones)] {
        inputs.push((name, g.weight(&format!("{path}.{name}"), value)?.into()));
    }
    inputs.push(("epsilon", g.number(EPSILON).into()));
    g.op("batch_norm", path, &inputs)
}

impl Shared {
    /// Cosines and sines of every position, `[1, D/2, 1, L]`, once for each rotation.
    fn table(&mut self, g: &mut Graph<'_, '_>, rope: &anemone_models::Rope) -> Result<(VarId, VarId), Error> {
        let known =
            self.tables.iter().find(|(theta, dim, ..)| (*theta, *dim) == (rope.theta.to_bits(), rope.dim));
        if let Some((_, _, cos, sin)) = known {
            return Ok((*cos, *sin));
        }
        let frequencies = rope.frequencies();
        let angles: Vec<f64> =
            (frequencies.iter()).flat_map(|f| (0..g.tokens).map(move |p| f64::from(p as f32 * f))).collect();
        let shape = vec![1, frequencies.len(), 1, g.tokens];
        let i = self.tables.len();
        let of = |f: fn(f64) -> f64| -> Vec<f32> { angles.iter().map(|a| f(*a) as f32).collect() };
        let (cos_name, sin_name) = (format!("cos_{i}_{}", g.tokens), format!("sin_{i}_{}", g.tokens));
        let cos = g.table().made(&cos_name, &of(f64::cos), shape.clone());
        let sin = g.table().made(&sin_name, &of(f64::sin), shape);
        let (cos, sin) = (g.weight(&format!("cos_{i}"), cos)?, g.weight(&format!("sin_{i}"), sin)?);
        self.tables.push((rope.theta.to_bits(), rope.dim, cos, sin));
        Ok((cos, sin))
    }

    /// Cuts the local mask into tiles, once.
    fn cut(&mut self, g: &mut Graph<'_, '_>, tile: usize, radius: usize) -> Result<(), Error> {
        if !self.tiles.is_empty() {
            return Ok(());
        }
        for (i, start) in (0..g.tokens).step_by(tile).enumerate() {
            let queries = (start, (start + tile).min(g.tokens));
            let keys = (start.saturating_sub(radius), (queries.1 + radius).min(g.tokens));
            let rows = g.part(&format!("local_mask.keys_{i}"), self.local_mask, 1, keys.0, keys.1)?;
            let mask = g.columns(&format!("local_mask.tile_{i}"), rows, queries.0, queries.1)?;
            self.tiles.push(Tile { queries, keys, mask });
        }
        Ok(())
    }
}

/// Multiply-adds of a function of `length` tokens: of its linear maps, and of its attention.
pub fn multiply_adds(laya: &Laya, length: usize, local: LocalAttention) -> (u64, u64) {
    let hidden = laya.encoder.hidden_size as u64;
    let tokens = length as u64;
    let (mut linear, mut attention) = (0, 0);
    for layer in laya.encoder.layers.iter().chain(&laya.head) {
        let maps = [&layer.attention.qkv, &layer.attention.out, &layer.mlp.up, &layer.mlp.down];
        linear += tokens * maps.iter().map(|l| l.weight.shape.numel() as u64).sum::<u64>();
        let pairs: usize = match (layer.attention.radius, local) {
            (Some(radius), LocalAttention::Tiled(tile)) if tile + 2 * radius < length => {
                let tile_pairs = |start: usize| {
                    let end = (start + tile).min(length);
                    (end - start) * ((end + radius).min(length) - start.saturating_sub(radius))
                };
                (0..length).step_by(tile).map(tile_pairs).sum()
            }
            _ => length * length,
        };
        attention += 2 * hidden * pairs as u64;
    }
    let slots = OPTION_SLOTS as u64;
    linear += slots * (hidden * hidden + hidden) + slots * tokens * hidden;
    (linear, attention)
}
