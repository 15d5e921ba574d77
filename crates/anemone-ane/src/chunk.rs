use std::collections::BTreeMap;

use anemone_mil::{Function, Program, VarId};
use anemone_models::{Attention, Ffn, Gated, Mixer, Rope, Stack};

use crate::attention::{Cached, Shared, attention};
use crate::conv::short_conv;
use crate::graph::{Graph, Role};
use crate::state::States;
use crate::weights::Table;
use crate::{CachePlan, ChunkPlan, Error, Load, Options, Pass, WeightRecord};

/// Lowers one chunk to a program with a function for every pass.
///
/// Inputs: `hidden [1, H, 1, S]`; `cos_r`, `sin_r [1, D/2, 1, S]` for rope r of the chunk in order of first use;
/// `mask_full [1, ctx + S, 1, S]`, `mask_sliding_W [1, rows + S, 1, S]`, additive; each layer's cache as [`CachePlan`] says.
/// In a chunk with states those are written instead, see [`StatePlan`](crate::StatePlan).
/// Outputs: `hidden_out`, then each layer's new cache rows. The last chunk applies no final norm; heads do.
pub fn lower_chunk(
    stack: &Stack,
    load: Load<'_>,
    chunk: &ChunkPlan,
    options: &Options,
) -> Result<(Program, Vec<WeightRecord>), Error> {
    let mut table = Table::new(load).scaled(options.scales.as_ref());
    let mut functions = BTreeMap::new();
    for pass in &options.passes {
        let function = function(stack, chunk, options, *pass, &mut table)?;
        functions.insert(pass.name(), function);
    }
    let program = program(functions, options, &mut table);
    Ok((program, table.records.into_iter().flatten().collect()))
}

/// Wraps functions; one alone is called `main`, as packages of one function must.
pub(crate) fn program(
    mut functions: BTreeMap<String, Function>,
    options: &Options,
    table: &mut Table<'_>,
) -> Program {
    let mut default_function =
        options.passes.iter().map(|p| p.name()).find(|n| functions.contains_key(n)).unwrap_or_default();
    if functions.len() == 1 {
        functions = functions
            .into_values()
            .map(|f| ("main".to_string(), Function { name: "main".into(), ..f }))
            .collect();
        default_function = "main".into();
    }
    Program {
        spec_version: options.spec_version,
        functions,
        default_function,
        weights: std::mem::take(&mut table.weights),
        metadata: BTreeMap::new(),
    }
}

fn function(
    stack: &Stack,
    chunk: &ChunkPlan,
    options: &Options,
    pass: Pass,
    table: &mut Table<'_>,
) -> Result<Function, Error> {
    let tokens = pass.tokens();
    let mut g = Graph::new(&pass.name(), options.spec_version, tokens, options.rules, table);
    let mut x = g.input("hidden", [1, stack.hidden_size, 1, tokens])?;
    let shared = shared_inputs(&mut g, stack, chunk)?;
    let mut states = States::read(&mut g, chunk)?;
    let mut caches = Vec::new();
    for (layer, cache) in chunk.layers.clone().zip(&chunk.caches) {
        let block = &stack.blocks[layer];
        let path = &block.path;
        let normed = g.rms_norm(&format!("{path}.operator_norm"), x, &block.mixer_norm)?;
        let mut y = match (&block.mixer, cache) {
            (Mixer::Attention(a), CachePlan::Attention { rows, .. }) => {
                let cached = Cached { layer, rows: *rows, past: states.past(layer) };
                let attended = attention(&mut g, &shared, path, normed, a, &cached)?;
                if !states.take(layer, &attended) {
                    caches.extend([attended.k_new, attended.v_new]);
                }
                attended.out
            }
            (Mixer::ShortConv(c), _) => {
                let (out, window) = short_conv(&mut g, path, layer, normed, c)?;
                if c.taps > 1 {
                    caches.push(window);
                }
                out
            }
            (Mixer::Attention(_), CachePlan::ShortConv { .. }) => unreachable!("a plan follows its stack"),
        };
        if let Some(norm) = &block.post_mixer_norm {
            y = g.rms_norm(&format!("{path}.post_operator_norm"), y, norm)?;
        }
        x = g.add(&format!("{path}.mixed"), x, y)?;
        let normed = g.rms_norm(&format!("{path}.ffn_norm"), x, &block.ffn_norm)?;
        let Ffn::Gated(ffn) = &block.ffn else { unreachable!("a plan refuses experts") };
        let mut y = gated(&mut g, &format!("{path}.feed_forward"), normed, ffn)?;
        if let Some(norm) = &block.post_ffn_norm {
            y = g.rms_norm(&format!("{path}.post_ffn_norm"), y, norm)?;
        }
        let last = layer + 1 == chunk.layers.end;
        let name = if last { "hidden_out".to_string() } else { path.clone() };
        x = g.add(&name, x, y)?;
    }
    states.write(&mut g)?;
    let mut outputs = vec![x];
    outputs.extend(caches);
    g.finish(&outputs)
}

fn gated(g: &mut Graph<'_, '_>, path: &str, x: VarId, ffn: &Gated) -> Result<VarId, Error> {
    let gate = g.linear(&format!("{path}.w1"), x, &ffn.gate, Role::FeedForward)?;
    let up = g.linear(&format!("{path}.w3"), x, &ffn.up, Role::FeedForward)?;
    let gate = g.silu(&format!("{path}.silu"), gate)?;
    let product = g.mul(&format!("{path}.product"), gate, up)?;
    g.linear(&format!("{path}.w2"), product, &ffn.down, Role::FeedForward)
}

/// Rotary tables and masks of the chunk's attention layers, tiled once for the head counts that use them.
fn shared_inputs(g: &mut Graph<'_, '_>, stack: &Stack, chunk: &ChunkPlan) -> Result<Shared, Error> {
    let mut shared = Shared { tables: Vec::new(), masks: Vec::new() };
    let mut ropes: Vec<(Rope, VarId, VarId)> = Vec::new();
    let mut masks: Vec<(usize, Option<usize>, VarId)> = Vec::new();
    for (layer, cache) in chunk.layers.clone().zip(&chunk.caches) {
        let (Mixer::Attention(a), CachePlan::Attention { rows, .. }) = (&stack.blocks[layer].mixer, cache)
        else {
            continue;
        };
        if !ropes.iter().any(|(r, _, _)| *r == a.rope) {
            let (i, shape) = (rope_index(stack, a.rope), [1, a.rope.dim / 2, 1, g.tokens]);
            ropes.push((a.rope, g.input(&format!("cos_{i}"), shape)?, g.input(&format!("sin_{i}"), shape)?));
        }
        if !masks.iter().any(|(r, w, _)| (*r, *w) == (*rows, a.window)) {
            let name = mask_name(a);
            masks.push((*rows, a.window, g.input(&name, [1, rows + g.tokens, 1, g.tokens])?));
        }
        for heads in [a.heads, a.kv_heads] {
            if !shared.tables.iter().any(|(r, h, _, _)| *r == a.rope && *h == heads) {
                let (_, cos, sin) =
                    ropes.iter().find(|(r, _, _)| *r == a.rope).copied().expect("pushed above");
                let i = rope_index(stack, a.rope);
                let cos = g.concat(&format!("cos_{i}_for_{heads}"), vec![cos; heads], 3)?;
                let sin = g.concat(&format!("sin_{i}_for_{heads}"), vec![sin; heads], 3)?;
                shared.tables.push((a.rope, heads, cos, sin));
            }
        }
        let group = a.heads / a.kv_heads;
        if !shared.masks.iter().any(|(r, w, h, _)| (*r, *w, *h) == (*rows, a.window, group)) {
            let (_, _, mask) =
                masks.iter().find(|(r, w, _)| (*r, *w) == (*rows, a.window)).copied().expect("pushed above");
            let tiled = g.concat(&format!("{}_for_{group}", mask_name(a)), vec![mask; group], 3)?;
            shared.masks.push((*rows, a.window, group, tiled));
        }
    }
    Ok(shared)
}

/// Position of a rope among the stack's distinct ones, in order of first use.
pub(crate) fn rope_index(stack: &Stack, rope: Rope) -> usize {
    let mut seen: Vec<Rope> = Vec::new();
    for block in &stack.blocks {
        if let Mixer::Attention(a) = &block.mixer
            && !seen.contains(&a.rope)
        {
            seen.push(a.rope);
        }
    }
    seen.iter().position(|r| *r == rope).unwrap_or(0)
}

fn mask_name(a: &Attention) -> String {
    a.window.map_or("mask_full".to_string(), |w| format!("mask_sliding_{w}"))
}
