//! Recorded inputs whose outputs are known: run when a function is loaded, and now and then again.

use anemone_mil::{Array, Call, Signature};

/// Least cosine between what a function gives and what it must: far above what fp16 on any engine costs a sound function (0.9999), far
/// below what a wrong one reaches.
pub const LEAST_COSINE: f64 = 0.99;
/// Most that the length of the outputs may differ, as a share.
pub const MOST_LENGTH: f64 = 0.1;

/// How far an output is from what it must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distance {
    /// Cosine of the two; 1 when both are zero.
    pub cosine: f64,
    /// Length of the one over that of the other, less 1.
    pub length: f64,
}

impl Distance {
    /// That of `got` from `expected`, which have as many elements.
    pub fn between(got: &[f32], expected: &[f32]) -> Self {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let (got_sq, expected_sq) = (dot(got, got), dot(expected, expected));
        if got_sq == 0.0 || expected_sq == 0.0 {
            let same = got_sq == expected_sq;
            return Self {
                cosine: f64::from(u8::from(same)),
                length: if same { 0.0 } else { f64::INFINITY },
            };
        }
        let cosine = dot(got, expected) / (got_sq.sqrt() * expected_sq.sqrt());
        Self { cosine, length: (got_sq / expected_sq).sqrt() - 1.0 }
    }

    /// Whether it is within the bounds.
    pub fn is_near(self) -> bool {
        self.cosine >= LEAST_COSINE && self.length.abs() <= MOST_LENGTH
    }
}

/// What is wrong with a recorded call of a function; none when it has every output, and nothing that is of another function.
pub(crate) fn unfit(canary: &Call, signature: &Signature) -> Option<String> {
    let shape = |array: &Array| array.data.len() == array.shape.iter().product::<usize>();
    for (name, ty) in &signature.outputs {
        let Some(array) = canary.outputs.get(name) else {
            return Some(format!("has no output '{name}'"));
        };
        if array.shape != ty.shape || !shape(array) {
            return Some(format!(
                "has an output '{name}' of the shape {:?}, expected {:?}",
                array.shape, ty.shape
            ));
        }
    }
    for (name, array) in &canary.inputs {
        let Some((_, ty)) = signature.inputs.iter().find(|(own, _)| own == name) else {
            return Some(format!("has an input '{name}', which the function has not"));
        };
        if array.shape != ty.shape || !shape(array) {
            return Some(format!(
                "has an input '{name}' of the shape {:?}, expected {:?}",
                array.shape, ty.shape
            ));
        }
    }
    None
}

/// What is wrong with the outputs of two runs of a canary; none when nothing is.
pub(crate) fn judge(canary: &Call, names: &[String], first: &[Array], second: &[Array]) -> Option<String> {
    for ((name, first), second) in names.iter().zip(first).zip(second) {
        if let Some(problem) = not_finite(name, first) {
            return Some(problem);
        }
        let differs = first.data.iter().zip(&second.data).position(|(a, b)| a.to_bits() != b.to_bits());
        if let Some(at) = differs {
            return Some(format!(
                "output '{name}' is {} and then {} at {at} for the same inputs",
                first.data[at], second.data[at]
            ));
        }
        let Some(expected) = canary.outputs.get(name) else {
            return Some(format!("nothing is recorded of output '{name}'"));
        };
        if expected.data.len() != first.data.len() {
            return Some(format!(
                "output '{name}' has {} elements and must have {}",
                first.data.len(),
                expected.data.len()
            ));
        }
        let distance = Distance::between(&first.data, &expected.data);
        if !distance.is_near() {
            return Some(format!(
                "output '{name}' has a cosine of {:.4} with what it must be (bar {LEAST_COSINE}) and a length off by {:.1} % (bar {:.0} %)",
                distance.cosine,
                distance.length * 100.0,
                MOST_LENGTH * 100.0
            ));
        }
    }
    None
}

/// Says where an output has no number.
pub(crate) fn not_finite(name: &str, array: &Array) -> Option<String> {
    let at = array.data.iter().position(|v| !v.is_finite())?;
    Some(format!("output '{name}' is {} at {at} of {}", array.data[at], array.data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(data: &[f32]) -> Array {
        Array { shape: vec![data.len()], data: data.to_vec() }
    }

    #[test]
    fn a_call_must_have_what_the_function_has() {
        let half = |n: usize| anemone_mil::TensorType::new(anemone_mil::DataType::Float16, vec![n]);
        let signature = Signature {
            inputs: vec![("x".to_owned(), half(2))],
            outputs: vec![("y".to_owned(), half(2))],
            states: Vec::new(),
        };
        let call = |x: &str, inputs: &[f32], y: &str, outputs: &[f32]| Call {
            inputs: [(x.to_owned(), array(inputs))].into(),
            outputs: [(y.to_owned(), array(outputs))].into(),
        };
        let unfit = |call: &Call| unfit(call, &signature).unwrap_or_default();
        assert_eq!(unfit(&call("x", &[1.0, 2.0], "y", &[3.0, 4.0])), "");
        assert!(unfit(&call("x", &[1.0, 2.0], "z", &[3.0, 4.0])).contains("no output 'y'"));
        assert!(unfit(&call("x", &[1.0, 2.0], "y", &[3.0])).contains("output 'y' of the shape [1]"));
        assert!(unfit(&call("w", &[1.0, 2.0], "y", &[3.0, 4.0])).contains("input 'w'"));
        assert!(unfit(&call("x", &[1.0], "y", &[3.0, 4.0])).contains("input 'x' of the shape [1]"));
    }

    #[test]
    fn outputs_must_be_finite_repeatable_and_near() {
        let canary = Call { outputs: [("y".to_owned(), array(&[3.0, 4.0]))].into(), ..Call::default() };
        let judged = |first: &[f32], second: &[f32]| {
            judge(&canary, &["y".to_owned()], &[array(first)], &[array(second)])
        };
        assert_eq!(judged(&[3.01, 3.99], &[3.01, 3.99]), None);
        assert!(judged(&[3.0, f32::NAN], &[3.0, f32::NAN]).unwrap().contains("NaN at 1 of 2"));
        assert!(judged(&[3.0, 4.0], &[3.0, 4.001]).unwrap().contains("for the same inputs"));
        assert!(judged(&[4.0, 3.0], &[4.0, 3.0]).unwrap().contains("0.9600"));
        assert!(judged(&[6.0, 8.0], &[6.0, 8.0]).unwrap().contains("off by 100.0 %"));
        assert!(judged(&[0.0, 0.0], &[0.0, 0.0]).is_some());
        assert!(judged(&[3.0], &[3.0]).unwrap().contains("1 elements"));
    }
}
