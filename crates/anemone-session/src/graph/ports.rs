//! What the functions of a bundle take and give, as [`anemone_ane`] lowers them.

use std::collections::BTreeMap;

use anemone_ane::{CachePlan, ChunkPlan};
use anemone_bundle::{FunctionEntry, Port};
use anemone_mil::{Signature, TensorType};

use super::masks;

/// Types by name.
type Ports = BTreeMap<String, TensorType>;

/// Inputs, outputs and states of a function, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Expected {
    inputs: Ports,
    outputs: Ports,
    states: Ports,
}

/// A name and a type as text.
type Found = (String, String);

impl Expected {
    /// Of a chunk for a pass of `tokens`; `ropes` are the index and `dim / 2` of the rotations its layers use.
    ///
    /// `None` when two of its layers need inputs of the same name and other shapes.
    pub(super) fn chunk(
        plan: &ChunkPlan,
        hidden: usize,
        ropes: &[(usize, usize)],
        tokens: usize,
    ) -> Option<Self> {
        let mut expected = Self::default();
        expected.inputs.insert("hidden".into(), TensorType::fp16([1, hidden, 1, tokens]));
        expected.outputs.insert("hidden_out".into(), TensorType::fp16([1, hidden, 1, tokens]));
        for (i, half) in ropes {
            for name in ["cos", "sin"] {
                expected.inputs.insert(format!("{name}_{i}"), TensorType::fp16([1, *half, 1, tokens]));
            }
        }
        for cache in &plan.caches {
            expected.cache(cache, plan.states.is_empty(), tokens)?;
        }
        for state in &plan.states {
            let rows = state.rows;
            let ty = TensorType::fp16([1, state.channels, 1, rows]);
            if expected.states.insert(state.name.clone(), ty).is_some() {
                return None;
            }
            expected.inputs.insert(masks::place_name(rows), TensorType::fp16([1, tokens, 1, rows]));
            expected.inputs.insert(masks::keep_name(rows), TensorType::fp16([1, 1, 1, rows]));
        }
        Some(expected)
    }

    fn cache(&mut self, cache: &CachePlan, by_host: bool, tokens: usize) -> Option<()> {
        match *cache {
            CachePlan::Attention { layer, rows, width, window, .. } => {
                let keys = rows.saturating_add(tokens);
                let mask = TensorType::fp16([1, keys, 1, tokens]);
                if self.inputs.insert(masks::mask_name(window), mask.clone()).is_some_and(|m| m != mask) {
                    return None;
                }
                if by_host {
                    self.inputs.insert(format!("k_{layer}"), TensorType::fp16([1, rows, 1, width]));
                    self.inputs.insert(format!("v_{layer}"), TensorType::fp16([1, width, 1, rows]));
                    self.outputs.insert(format!("k_{layer}_new"), TensorType::fp16([1, tokens, 1, width]));
                    self.outputs.insert(format!("v_{layer}_new"), TensorType::fp16([1, width, 1, tokens]));
                }
            }
            CachePlan::ShortConv { reach: 0, .. } => {}
            CachePlan::ShortConv { layer, width, reach } => {
                let columns = reach.saturating_add(tokens);
                self.inputs.insert(format!("conv_{layer}"), TensorType::fp16([1, width, 1, reach]));
                self.outputs.insert(format!("conv_{layer}_window"), TensorType::fp16([1, width, 1, columns]));
            }
        }
        Some(())
    }

    /// Of a slice of `rows` of the head over `columns` hidden states.
    pub(super) fn head(hidden: usize, rows: usize, columns: usize) -> Self {
        let mut expected = Self::default();
        expected.inputs.insert("hidden".into(), TensorType::fp16([1, hidden, 1, columns]));
        expected.outputs.insert("logits".into(), TensorType::fp16([1, rows, 1, columns]));
        expected
    }

    pub(super) fn output(&self, name: &str) -> Option<&TensorType> {
        self.outputs.get(name)
    }

    /// How the manifest's word about a function differs; the part of the entry and the difference.
    pub(super) fn differs_from_entry(&self, entry: &FunctionEntry) -> Option<(&'static str, String)> {
        let text = |ports: &[Port]| ports.iter().map(port).collect::<Vec<Found>>();
        differs("input", &self.inputs, &text(&entry.inputs))
            .map(|d| ("inputs", d))
            .or_else(|| differs("output", &self.outputs, &text(&entry.outputs)).map(|d| ("outputs", d)))
            .or_else(|| differs("state", &self.states, &text(&entry.states)).map(|d| ("states", d)))
    }

    /// How a function differs.
    pub(super) fn differs_from(&self, signature: &Signature) -> Option<String> {
        let text = |ports: &[(String, TensorType)]| {
            ports.iter().map(|(name, ty)| (name.clone(), ty.to_string())).collect::<Vec<Found>>()
        };
        differs("input", &self.inputs, &text(&signature.inputs))
            .or_else(|| differs("output", &self.outputs, &text(&signature.outputs)))
            .or_else(|| differs("state", &self.states, &text(&signature.states)))
    }
}

/// A port as [`TensorType`] shows its types.
fn port(port: &Port) -> Found {
    let dims = port.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    (port.name.clone(), format!("tensor<{}, [{dims}]>", port.dtype))
}

fn differs(kind: &str, expected: &Ports, found: &[Found]) -> Option<String> {
    for (name, ty) in expected {
        let mut same = found.iter().filter(|(n, _)| n == name);
        match (same.next(), same.next()) {
            (None, _) => return Some(format!("has no {kind} `{name}`, expected {ty}")),
            (Some((_, found)), None) if *found == ty.to_string() => {}
            (Some((_, found)), None) => {
                return Some(format!("has {kind} `{name}` as {found}, expected {ty}"));
            }
            (Some(_), Some(_)) => return Some(format!("has {kind} `{name}` twice")),
        }
    }
    let unknown = found.iter().find(|(name, _)| !expected.contains_key(name));
    unknown.map(|(name, ty)| format!("has {kind} `{name}` ({ty}), which the model has no use for"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let expected = Expected::head(8, 64, 1);
        let fp16 = |shape: [usize; 4]| TensorType::fp16(shape);
        let sound = Signature {
            inputs: vec![("hidden".into(), fp16([1, 8, 1, 1]))],
            outputs: vec![("logits".into(), fp16([1, 64, 1, 1]))],
            states: Vec::new(),
        };
        assert_eq!(expected.differs_from(&sound), None);
        let hidden = &sound.inputs[0];
        let logits = |ty| Signature { outputs: vec![("logits".into(), ty)], ..sound.clone() };
        let cases = [
            (
                Signature { inputs: Vec::new(), ..sound.clone() },
                "has no input `hidden`, expected tensor<fp16",
            ),
            (Signature { inputs: vec![hidden.clone(); 2], ..sound.clone() }, "has input `hidden` twice"),
            (logits(fp16([1, 63, 1, 1])), "has output `logits` as tensor<fp16, [1, 63, 1, 1]>, expected"),
            (logits(TensorType::new(anemone_mil::DataType::Float32, [1, 64, 1, 1])), "as tensor<fp32"),
            (Signature { states: vec![hidden.clone()], ..sound.clone() }, "no use for"),
        ];
        for (signature, problem) in cases {
            let found = expected.differs_from(&signature).unwrap();
            assert!(found.contains(problem), "{found}");
        }
    }

    #[test]
    fn layers_that_need_one_name_in_two_shapes_are_refused() {
        let cache = |layer, rows| CachePlan::Attention { layer, rows, width: 4, window: None, ring: false };
        let plan = |second| ChunkPlan {
            layers: 0..2,
            caches: vec![cache(0, 8), cache(1, second)],
            states: Vec::new(),
            weight_bytes: 0,
        };
        assert!(Expected::chunk(&plan(8), 4, &[(0, 2)], 1).is_some());
        assert!(Expected::chunk(&plan(9), 4, &[(0, 2)], 1).is_none());
    }
}
