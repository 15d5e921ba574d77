//! What a bundle's functions take and give.

use anemone_ane::{OPTION_SLOTS, rotations};
use anemone_mil::{Signature, TensorType};
use anemone_models::Laya;

/// Inputs and outputs of a function by name and shape.
pub(super) struct Contract {
    inputs: Vec<(String, [usize; 4])>,
    outputs: [(&'static str, [usize; 4]); 2],
}

impl Contract {
    /// Of the function for rows of `length` tokens, of one question or of several.
    pub(super) fn new(laya: &Laya, length: usize, packed: bool) -> Self {
        let hidden = laya.encoder.hidden_size;
        let mut inputs = vec![
            ("embeddings".to_owned(), [1, hidden, 1, length]),
            ("full_mask".to_owned(), [1, length, 1, length]),
            ("local_mask".to_owned(), [1, length, 1, length]),
            ("type_vectors".to_owned(), [1, hidden, 1, if packed { length } else { 1 }]),
            ("marker_map".to_owned(), [1, length, 1, OPTION_SLOTS]),
        ];
        if packed {
            inputs.push(("first_map".to_owned(), [1, length, 1, OPTION_SLOTS]));
            for (i, rope) in rotations(laya).iter().enumerate() {
                inputs
                    .extend(["cos", "sin"].map(|name| (format!("{name}_{i}"), [1, rope.dim / 2, 1, length])));
            }
        }
        let firsts = if packed { OPTION_SLOTS } else { 1 };
        let outputs = [("logits", [1, 1, 1, OPTION_SLOTS]), ("cls", [1, hidden, 1, firsts])];
        Self { inputs, outputs }
    }

    /// How a function is not the one expected; `None` when it is.
    pub(super) fn difference(&self, found: &Signature) -> Option<String> {
        let states = || (!found.states.is_empty()).then(|| "has states, expected none".to_owned());
        let inputs = self.inputs.iter().map(|(name, shape)| (name.as_str(), *shape)).collect::<Vec<_>>();
        side("input", &inputs, &found.inputs)
            .or_else(|| side("output", &self.outputs, &found.outputs))
            .or_else(states)
    }
}

fn side(side: &str, expected: &[(&str, [usize; 4])], found: &[(String, TensorType)]) -> Option<String> {
    for (name, shape) in expected {
        match found.iter().find(|(found, _)| found == name) {
            None => return Some(format!("has no {side} `{name}`")),
            Some((_, ty)) if ty.shape != shape => {
                return Some(format!("has {side} `{name}` of {:?}, expected {shape:?}", ty.shape));
            }
            Some(_) => {}
        }
    }
    let (has, asked) = (found.len(), expected.len());
    (has > asked).then(|| format!("has {has} {side}s, expected {asked}"))
}
