//! Keys and values in states: read once at the start of a pass, written once at its end.

use anemone_mil::{Arg, Value, VarId};

use crate::attention::{Attended, Past};
use crate::graph::Graph;
use crate::{CachePlan, ChunkPlan, Error, StatePlan};

/// The states of a chunk while one of its functions is built.
pub(crate) struct States {
    open: Vec<Open>,
}

struct Open {
    plan: StatePlan,
    state: VarId,
    before: VarId,
    /// Keys and values of each layer before the pass.
    parts: Vec<VarId>,
    /// The same of the pass.
    new: Vec<VarId>,
}

impl States {
    pub(crate) fn read(g: &mut Graph<'_, '_>, chunk: &ChunkPlan) -> Result<Self, Error> {
        let mut open = Vec::new();
        for plan in &chunk.states {
            let state = g.state(&plan.name, [1, plan.channels, 1, plan.rows])?;
            let before = g.op("read_state", &format!("{}_before", plan.name), &[("input", state.into())])?;
            let width = |layer: &usize| {
                let of = |c: &CachePlan| match c {
                    CachePlan::Attention { layer: l, width, .. } if l == layer => Some(*width),
                    _ => None,
                };
                chunk.caches.iter().find_map(of).unwrap_or_default()
            };
            let sizes: Vec<usize> = plan.layers.iter().flat_map(|l| [width(l); 2]).collect();
            let parts = g.split_sizes(&format!("{}_parts", plan.name), before, &sizes, 1)?;
            open.push(Open { plan: plan.clone(), state, before, parts, new: Vec::new() });
        }
        Ok(Self { open })
    }

    /// Where the past of a layer is.
    pub(crate) fn past(&self, layer: usize) -> Past {
        let place = |o: &Open| {
            let i = o.plan.layers.iter().position(|l| *l == layer)?;
            Some(Past::State { k: o.parts[2 * i], v: o.parts[2 * i + 1] })
        };
        self.open.iter().find_map(place).unwrap_or(Past::Inputs)
    }

    /// Takes the keys and values of a pass in; layers come in order. `false` when the layer has no state.
    pub(crate) fn take(&mut self, layer: usize, attended: &Attended) -> bool {
        let Some(open) = self.open.iter_mut().find(|o| o.plan.layers.contains(&layer)) else { return false };
        open.new.extend([attended.k_new, attended.v_new]);
        true
    }

    /// Writes every state: what is kept of it, plus the tokens of the pass in their rows.
    ///
    /// Rows are chosen by multiplication, since writing at a computed index leaves the engine; with factors of 0 and 1 it is exact.
    pub(crate) fn write(self, g: &mut Graph<'_, '_>) -> Result<(), Error> {
        let mut inputs: Vec<(usize, VarId, VarId)> = Vec::new();
        for Open { plan, state, before, new, .. } in self.open {
            let StatePlan { name, rows, .. } = plan;
            if !inputs.iter().any(|(r, _, _)| *r == rows) {
                let place = g.input(&format!("place_{rows}"), [1, g.tokens, 1, rows])?;
                let keep = g.input(&format!("keep_{rows}"), [1, 1, 1, rows])?;
                inputs.push((rows, place, keep));
            }
            let found = inputs.iter().find(|(r, _, _)| *r == rows);
            let (_, place, keep) = *found.expect("made above");
            let new = g.concat(&format!("{name}_new"), new, 1)?;
            let placed = if g.tokens == 1 {
                g.mul(&format!("{name}_placed"), new, place)?
            } else {
                let inputs = [
                    ("values", Arg::List(vec![new, place])),
                    ("equation", Value::text("bchk,bkhq->bchq").into()),
                ];
                g.op("einsum", &format!("{name}_placed"), &inputs)?
            };
            let kept = g.mul(&format!("{name}_kept"), before, keep)?;
            let after = g.add(&format!("{name}_after"), kept, placed)?;
            g.write_state(&name, state, after)?;
        }
        Ok(())
    }
}
