//! Decision models as fixed-length programs: one function for each length, the weights stored once.

use std::collections::BTreeMap;

use anemone_mil::{Arg, DataType, Program, Value, VarId};
use anemone_models::{EncoderLayer, Laya, LayerNorm, MlpActivation, Rope};

use serde::{Deserialize, Serialize};

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
    /// A second function of each length, for several questions in one row.
    pub pack: bool,
}

/// Functions of a length, by their names in the package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayaFunctions {
    /// Tokens of a row, padding included.
    pub length: usize,
    /// For a row of one question.
    pub name: String,
    /// For a row of several, where the conversion was asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<String>,
}

impl LayaOptions {
    /// The functions of each length, in order; one that is alone is called `main`.
    pub fn functions(&self) -> Vec<LayaFunctions> {
        let alone = self.lengths.len() == 1 && !self.pack;
        let of = |length: &usize| LayaFunctions {
            length: *length,
            name: if alone { "main".to_owned() } else { format!("L{length}") },
            packed: self.pack.then(|| format!("L{length}_packed")),
        };
        self.lengths.iter().map(of).collect()
    }

    fn check(&self, laya: &Laya) -> Result<(), Error> {
        let bad = |option, problem: String| Err(Error::Option { option, problem });
        let max = laya.encoder.max_position_embeddings;
        let (most, each) = if self.pack { (LENGTHS / 2, " with --pack") } else { (LENGTHS, "") };
        if self.lengths.is_empty() || self.lengths.len() > most {
            return bad(
                "--length",
                format!("asks for {} lengths; give 1 to {most}{each}", self.lengths.len()),
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
        if self.spec_version < 9 && (self.lengths.len() > 1 || self.pack) {
            return bad(
                "--target",
                "before macOS 15 cannot hold several functions; convert one length at a time, without --pack"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// The rotations of a model's layers, each once, in the order of the layers that have it first.
///
/// The i-th is that of the inputs `cos_i` and `sin_i` of functions for several questions.
pub fn rotations(laya: &Laya) -> Vec<Rope> {
    let mut found: Vec<Rope> = Vec::new();
    for rope in laya.encoder.layers.iter().filter_map(|l| l.attention.rope) {
        if !found.contains(&rope) {
            found.push(rope);
        }
    }
    found
}

/// Cosines and sines of the positions, each `[1, dim / 2, 1, positions]`.
pub fn rotary_tables(rope: &Rope, positions: &[usize]) -> (Vec<f32>, Vec<f32>) {
    let frequencies = rope.frequencies();
    let angles: Vec<f64> =
        (frequencies.iter()).flat_map(|f| positions.iter().map(move |p| f64::from(*p as f32 * f))).collect();
    let of = |f: fn(f64) -> f64| angles.iter().map(|a| f(*a) as f32).collect();
    (of(f64::cos), of(f64::sin))
}

/// Lowers everything between the embedding table and the action head.
///
/// Inputs: `embeddings [1, C, 1, L]`, rows of the table; `full_mask` and `local_mask [1, L, 1, L]`, key by query, additive;
/// `type_vectors [1, C, 1, 1]`; `marker_map [1, L, 1, 32]`, one-hot. Outputs: `logits [1, 1, 1, 32]` and `cls [1, C, 1, 1]`.
///
/// A function for several questions, one after the other, shares the option slots out among them. `type_vectors` are
/// `[1, C, 1, L]`, and there are more inputs: `cos_i` and `sin_i [1, D / 2, 1, L]` for each of the [`rotations`], and
/// `first_map [1, L, 1, 32]`, one-hot, the first token of each question. `cls` is `[1, C, 1, 32]`, a column for each.
///
/// With the program comes where each of its weights lies in the checkpoint; rotary tables lie nowhere.
pub fn lower_laya(
    laya: &Laya,
    load: Load<'_>,
    options: &LayaOptions,
) -> Result<(Program, Vec<Option<WeightRecord>>), Error> {
    options.check(laya)?;
    let mut table = Table::with_type(load, options.precision);
    let mut functions = BTreeMap::new();
    let names = options.functions();
    for of in &names {
        for (name, packed) in [(Some(&of.name), false), (of.packed.as_ref(), true)] {
            let Some(name) = name else { continue };
            let graph = Graph::new(name, options.spec_version, of.length, Rules::none(), &mut table);
            functions.insert(name.clone(), body(graph, laya, options.local, packed)?);
        }
    }
    let program = Program {
        spec_version: options.spec_version,
        functions,
        default_function: names[0].name.clone(),
        weights: std::mem::take(&mut table.weights),
        metadata: BTreeMap::new(),
    };
    Ok((program, table.records))
}

/// A part of a model that stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayaPart {
    /// What an encoder layer does to one token, its norm and its sum included.
    Mlp(usize),
    /// An encoder layer.
    Layer(usize),
}

/// Lowers a part of the encoder for rows of `options.lengths`' one length.
///
/// Inputs: `hidden [1, C, 1, L]`, and for a layer the mask it uses, `full_mask` or `local_mask [1, L, 1, L]`. Output:
/// `output [1, C, 1, L]`.
pub fn lower_laya_part(
    laya: &Laya,
    load: Load<'_>,
    options: &LayaOptions,
    part: LayaPart,
) -> Result<Program, Error> {
    options.check(laya)?;
    let (LayaPart::Mlp(at) | LayaPart::Layer(at)) = part;
    let layers = laya.encoder.layers.len();
    let Some(of) = laya.encoder.layers.get(at) else {
        let problem = format!("is {at}; the encoder's are 0 to {}", layers.saturating_sub(1));
        return Err(Error::Option { option: "--layer", problem });
    };
    let [length] = options.lengths[..] else {
        let problem = "asks for several lengths; a part has one".to_owned();
        return Err(Error::Option { option: "--length", problem });
    };
    let mut table = Table::with_type(load, options.precision);
    let mut g = Graph::new("main", options.spec_version, length, Rules::none(), &mut table);
    let hidden = g.input("hidden", [1, laya.encoder.hidden_size, 1, length])?;
    // The part's own name would be that of the checkpoint's module; the output has one name in every part.
    let of = EncoderLayer { path: "output".to_owned(), ..of.clone() };
    let out = match part {
        LayaPart::Mlp(_) => mlp(&mut g, hidden, &of)?,
        LayaPart::Layer(_) => {
            let name = if of.attention.radius.is_some() { "local_mask" } else { "full_mask" };
            let mask = g.input(name, [1, length, 1, length])?;
            let (tables, tiles) = (Vec::new(), Vec::new());
            let mut shared =
                Shared { full_mask: mask, local_mask: mask, tables, tiles, local: options.local };
            layer(&mut g, &mut shared, hidden, &of)?
        }
    };
    let function = g.finish(&[out])?;
    Ok(Program {
        spec_version: options.spec_version,
        functions: BTreeMap::from([("main".to_owned(), function)]),
        default_function: "main".to_owned(),
        weights: std::mem::take(&mut table.weights),
        metadata: BTreeMap::new(),
    })
}

/// Values the layers of a function share.
struct Shared {
    full_mask: VarId,
    local_mask: VarId,
    /// Cosines and sines of each rotation in use.
    tables: Vec<(Rope, VarId, VarId)>,
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

fn body(
    mut g: Graph<'_, '_>,
    laya: &Laya,
    local: LocalAttention,
    packed: bool,
) -> Result<anemone_mil::Function, Error> {
    let (hidden, length) = (laya.encoder.hidden_size, g.tokens);
    let embeddings = g.input("embeddings", [1, hidden, 1, length])?;
    let full_mask = g.input("full_mask", [1, length, 1, length])?;
    let local_mask = g.input("local_mask", [1, length, 1, length])?;
    let types = g.input("type_vectors", [1, hidden, 1, if packed { length } else { 1 }])?;
    let markers = g.input("marker_map", [1, length, 1, OPTION_SLOTS])?;
    let mut shared = Shared { full_mask, local_mask, tables: Vec::new(), tiles: Vec::new(), local };
    let mut firsts = None;
    if packed {
        firsts = Some(g.input("first_map", [1, length, 1, OPTION_SLOTS])?);
        for (i, rope) in rotations(laya).into_iter().enumerate() {
            let shape = [1, rope.dim / 2, 1, length];
            let (cos, sin) = (g.input(&format!("cos_{i}"), shape)?, g.input(&format!("sin_{i}"), shape)?);
            shared.tables.push((rope, cos, sin));
        }
    }
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
    let cls = match firsts {
        Some(firsts) => g.einsum("cls", "bchk,bkhq->bchq", x, firsts)?,
        None => g.columns("cls", x, 0, 1)?,
    };
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
    mlp(g, x, layer)
}

fn mlp(g: &mut Graph<'_, '_>, x: VarId, layer: &EncoderLayer) -> Result<VarId, Error> {
    let path = &layer.path;
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
    fn table(&mut self, g: &mut Graph<'_, '_>, rope: &Rope) -> Result<(VarId, VarId), Error> {
        if let Some((_, cos, sin)) = self.tables.iter().find(|(known, ..)| known == rope) {
            return Ok((*cos, *sin));
        }
        let (cos, sin) = rotary_tables(rope, &(0..g.tokens).collect::<Vec<_>>());
        let shape = vec![1, rope.dim / 2, 1, g.tokens];
        let i = self.tables.len();
        let (cos_name, sin_name) = (format!("cos_{i}_{}", g.tokens), format!("sin_{i}_{}", g.tokens));
        let cos = g.table().made(&cos_name, &cos, shape.clone());
        let sin = g.table().made(&sin_name, &sin, shape);
        let (cos, sin) = (g.weight(&format!("cos_{i}"), cos)?, g.weight(&format!("sin_{i}"), sin)?);
        self.tables.push((*rope, cos, sin));
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
