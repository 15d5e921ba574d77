//! Grouped-query attention, keys first: the query heads that share keys ride the token axis together.

use anemone_mil::{Value, VarId};
use anemone_models::{Attention, Norm, Rope};

use crate::Error;
use crate::graph::{Graph, Role};

/// Inputs of a function that its attention layers share.
pub(crate) struct Shared {
    /// Rotary tables by rope, tiled for the number of heads they serve: (rope, heads, cos, sin).
    pub(crate) tables: Vec<(Rope, usize, VarId, VarId)>,
    /// Masks by number of cached rows and window, tiled for the heads of a group: (rows, window, group, mask).
    pub(crate) masks: Vec<(usize, Option<usize>, usize, VarId)>,
}

/// Where the keys and values of earlier tokens come from.
#[derive(Clone, Copy)]
pub(crate) enum Past {
    /// Inputs of the function.
    Inputs,
    /// Parts of a state, each `[1, kv_heads · head_dim, 1, rows]`.
    State { k: VarId, v: VarId },
}

/// The cache of one attention layer.
pub(crate) struct Cached {
    pub(crate) layer: usize,
    pub(crate) rows: usize,
    pub(crate) past: Past,
}

/// The outputs of one attention layer.
pub(crate) struct Attended {
    pub(crate) out: VarId,
    /// After norm and rotation; `[1, tokens, 1, kv_heads · head_dim]` for inputs, laid out as `v_new` for a state.
    pub(crate) k_new: VarId,
    /// `[1, kv_heads · head_dim, 1, tokens]`.
    pub(crate) v_new: VarId,
}

pub(crate) fn attention(
    g: &mut Graph<'_, '_>,
    shared: &Shared,
    path: &str,
    x: VarId,
    a: &Attention,
    cached: &Cached,
) -> Result<Attended, Error> {
    let Cached { layer, rows, past } = *cached;
    let m = format!("{path}.self_attn");
    let group = a.heads / a.kv_heads;

    let q = g.linear(&format!("{m}.q_proj"), x, &a.q, Role::Other)?;
    let q =
        heads_on_tokens(g, &format!("{m}.q"), q, a.heads, a.q_norm.as_ref(), shared.table(a.rope, a.heads))?;
    let q = g.split(&format!("{m}.q.groups"), q, a.kv_heads, 3)?;

    let k = g.linear(&format!("{m}.k_proj"), x, &a.k, Role::Other)?;
    let k = heads_on_tokens(
        g,
        &format!("{m}.k"),
        k,
        a.kv_heads,
        a.k_norm.as_ref(),
        shared.table(a.rope, a.kv_heads),
    )?;
    let new = g.split(&format!("{m}.k.heads"), k, a.kv_heads, 3)?;
    let v_new = g.linear(&format!("v_{layer}_new"), x, &a.v, Role::Other)?;
    let (k_new, k, v) = match past {
        Past::Inputs => keys_first(g, &m, layer, a, rows, new, v_new)?,
        Past::State { k, v } => turned(g, &m, layer, a, [k, v], new, v_new)?,
    };

    let mask = shared.mask(rows, a.window, group);
    let scale = 1.0 / (a.head_dim as f32).sqrt();
    let by_rule = g.rules.scaled_pv.map_or(0, |log2| log2 as i32);
    let log2 = g.table().scale(&format!("{m}.attended")).unwrap_or(by_rule);
    let mut outputs = Vec::new();
    for h in 0..a.kv_heads {
        let n = |what: &str| format!("{m}.{what}_{h}");
        let scores = g.einsum(&n("scores"), "bkhc,bchq->bkhq", k[h], q[h])?;
        let scores = g.times(&n("scaled"), scores, scale)?;
        let scores = g.add(&n("masked"), scores, mask)?;
        let p = g.op("softmax", &n("p"), &[("x", scores.into()), ("axis", Value::int(1).into())])?;
        let o = if log2 == 0 {
            g.einsum(&n("attended"), "bchk,bkhq->bchq", v[h], p)?
        } else {
            let p = g.times(&n("p_scaled"), p, f32::powi(2.0, log2))?;
            let o = g.einsum(&n("attended_scaled"), "bchk,bkhq->bchq", v[h], p)?;
            g.times(&n("attended"), o, f32::powi(2.0, -log2))?
        };
        outputs.extend(g.split(&n("out"), o, group, 3)?);
    }
    if let Some(gate) = &a.gate {
        let gate = g.linear(&format!("{m}.gate_proj"), x, gate, Role::Other)?;
        let gate = g.sigmoid(&format!("{m}.gate"), gate)?;
        let gates = g.split(&format!("{m}.gate.heads"), gate, a.heads, 1)?;
        for (h, (o, gate)) in outputs.iter_mut().zip(gates).enumerate() {
            *o = g.mul(&format!("{m}.gated_{h}"), *o, gate)?;
        }
    }
    let joined = g.concat(&format!("{m}.joined"), outputs, 1)?;
    let out = g.linear(&format!("{m}.out_proj"), joined, &a.o, Role::Other)?;
    Ok(Attended { out, k_new, v_new })
}

/// Keys of cached rows and new tokens by head, `[1, keys, 1, dim]`, and values, `[1, dim, 1, keys]`.
type ByHead = (VarId, Vec<VarId>, Vec<VarId>);

/// Caches that are inputs: the host keeps keys as the scores take them, so that only new ones are turned.
fn keys_first(
    g: &mut Graph<'_, '_>,
    m: &str,
    layer: usize,
    a: &Attention,
    rows: usize,
    new: Vec<VarId>,
    v_new: VarId,
) -> Result<ByHead, Error> {
    let width = a.kv_heads * a.head_dim;
    let name = |h| named(a.kv_heads, &format!("k_{layer}_new"), h);
    let new =
        new.into_iter().enumerate().map(|(h, head)| g.turn(&name(h), head)).collect::<Result<_, _>>()?;
    let k_new = g.concat(&format!("k_{layer}_new"), new, 3)?;
    let k_past = g.input(&format!("k_{layer}"), [1, rows, 1, width])?;
    let v_past = g.input(&format!("v_{layer}"), [1, width, 1, rows])?;
    let k = g.concat(&format!("{m}.keys"), vec![k_past, k_new], 1)?;
    let v = g.concat(&format!("{m}.values"), vec![v_past, v_new], 3)?;
    let k = g.split(&format!("{m}.keys.heads"), k, a.kv_heads, 3)?;
    let v = g.split(&format!("{m}.values.heads"), v, a.kv_heads, 1)?;
    Ok((k_new, k, v))
}

/// Caches in a state, where keys lie as values do and all of them are turned.
fn turned(
    g: &mut Graph<'_, '_>,
    m: &str,
    layer: usize,
    a: &Attention,
    [k_past, v_past]: [VarId; 2],
    new: Vec<VarId>,
    v_new: VarId,
) -> Result<ByHead, Error> {
    let k_new = g.concat(&format!("k_{layer}_new"), new, 1)?;
    let k = g.concat(&format!("{m}.keys"), vec![k_past, k_new], 3)?;
    let v = g.concat(&format!("{m}.values"), vec![v_past, v_new], 3)?;
    let k = g.split(&format!("{m}.keys.heads"), k, a.kv_heads, 1)?;
    let name = |h| format!("{m}.keys.turned_{h}");
    let k = k.into_iter().enumerate().map(|(h, head)| g.turn(&name(h), head)).collect::<Result<_, _>>()?;
    let v = g.split(&format!("{m}.values.heads"), v, a.kv_heads, 1)?;
    Ok((k_new, k, v))
}

/// A name for one of several, or the plain name when it is the only one.
fn named(count: usize, name: &str, i: usize) -> String {
    if count == 1 { name.to_string() } else { format!("{name}.{i}") }
}

/// Moves heads from channels to the token axis, `[1, dim, 1, heads · tokens]`, then norms and rotates all at once.
fn heads_on_tokens(
    g: &mut Graph<'_, '_>,
    path: &str,
    x: VarId,
    heads: usize,
    norm: Option<&Norm>,
    tables: (VarId, VarId),
) -> Result<VarId, Error> {
    let parts = g.split(&format!("{path}.split"), x, heads, 1)?;
    let mut x = g.concat(&format!("{path}.on_tokens"), parts, 3)?;
    if let Some(norm) = norm {
        x = g.rms_norm(&format!("{path}_norm"), x, norm)?;
    }
    g.rotate(path, x, tables)
}

impl Shared {
    fn table(&self, rope: Rope, heads: usize) -> (VarId, VarId) {
        let found = self.tables.iter().find(|(r, h, _, _)| *r == rope && *h == heads);
        found.map(|(_, _, cos, sin)| (*cos, *sin)).expect("tables are made for every layer of the chunk")
    }

    fn mask(&self, rows: usize, window: Option<usize>, group: usize) -> VarId {
        let found = self.masks.iter().find(|(r, w, g, _)| *r == rows && *w == window && *g == group);
        found.map(|(_, _, _, mask)| *mask).expect("masks are made for every layer of the chunk")
    }
}
