use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anemone_mil::{Array, identifier};

/// Where an executor leaves the streams inside of chunks, which are no outputs of theirs.
///
/// Clones share their content.
#[derive(Debug, Clone, Default)]
pub struct LayerStates(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    recording: bool,
    /// Module paths by the name their result has in a program.
    wanted: BTreeMap<String, String>,
    seen: Vec<(String, Array)>,
}

impl LayerStates {
    /// Keeps an operation's result if it is a layer's stream and someone watches; `shape` is that of `values`.
    pub fn offer(&self, name: &str, shape: &[usize], values: &[f32]) {
        let mut inner = self.lock();
        if !inner.recording || shape.len() != 4 {
            return;
        }
        if let Some(path) = inner.wanted.get(name).cloned() {
            inner.seen.push((path, Array { shape: shape.to_vec(), data: values.to_vec() }));
        }
    }

    pub(super) fn want<'a>(&self, paths: impl Iterator<Item = &'a str>) {
        self.lock().wanted = paths.map(|path| (identifier(path), path.to_owned())).collect();
    }

    pub(super) fn record(&self, on: bool) {
        self.lock().recording = on;
    }

    pub(super) fn take(&self) -> Vec<(String, Array)> {
        std::mem::take(&mut self.lock().seen)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wanted_results_are_kept_and_only_while_recording() {
        let states = LayerStates::default();
        states.want(["model.layers.0"].into_iter());
        states.offer("model_layers_0", &[1, 2, 1, 1], &[1.0, 2.0]);
        assert!(states.take().is_empty());
        states.record(true);
        states.clone().offer("model_layers_0", &[1, 2, 1, 1], &[1.0, 2.0]);
        states.offer("model_layers_0_mixed", &[1, 2, 1, 1], &[3.0, 4.0]);
        let expected = Array { shape: vec![1, 2, 1, 1], data: vec![1.0, 2.0] };
        assert_eq!(states.take(), [("model.layers.0".to_owned(), expected)]);
        assert!(states.take().is_empty());
    }
}
