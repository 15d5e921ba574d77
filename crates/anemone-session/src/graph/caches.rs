//! The caches of a bundle's layers that the host owns: all of them, or convolution windows alone where the rest are states.

use std::collections::BTreeMap;

use anemone_ane::{CacheKind, CachePlan};
use anemone_mil::Array;

/// Cache inputs by name, and how new rows enter them.
#[derive(Debug)]
pub(super) struct Caches {
    plans: Vec<CachePlan>,
    arrays: BTreeMap<String, Array>,
}

/// What going back to a position needs: the arrays that later positions overwrite.
pub(super) type Saved = BTreeMap<String, Array>;

impl Caches {
    pub(super) fn new<'a>(plans: impl Iterator<Item = &'a CachePlan>, kind: CacheKind) -> Self {
        let held = |p: &&CachePlan| kind == CacheKind::Io || matches!(p, CachePlan::ShortConv { .. });
        let plans: Vec<CachePlan> = plans.filter(held).cloned().collect();
        let mut arrays = BTreeMap::new();
        for plan in &plans {
            match plan {
                CachePlan::Attention { layer, rows, width, .. } => {
                    arrays.insert(format!("k_{layer}"), Array::zeros(&[1, *rows, 1, *width]));
                    arrays.insert(format!("v_{layer}"), Array::zeros(&[1, *width, 1, *rows]));
                }
                CachePlan::ShortConv { layer, width, reach } => {
                    arrays.insert(format!("conv_{layer}"), Array::zeros(&[1, *width, 1, *reach]));
                }
            }
        }
        Self { plans, arrays }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Array> {
        self.arrays.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Array> {
        self.arrays.get_mut(name)
    }

    pub(super) fn clear(&mut self) {
        self.arrays.values_mut().for_each(|a| a.data.fill(0.0));
    }

    /// Copies histories and rings; rows of a full cache stay as they are, and the mask hides those that come later.
    pub(super) fn save(&self) -> Saved {
        let names = self.plans.iter().flat_map(|plan| match plan {
            CachePlan::Attention { layer, ring: true, .. } => {
                vec![format!("k_{layer}"), format!("v_{layer}")]
            }
            CachePlan::Attention { .. } => Vec::new(),
            CachePlan::ShortConv { layer, .. } => vec![format!("conv_{layer}")],
        });
        names.filter_map(|name| self.arrays.get(&name).cloned().map(|array| (name, array))).collect()
    }

    pub(super) fn restore(&mut self, saved: &Saved) {
        for (name, array) in saved {
            self.arrays.insert(name.clone(), array.clone());
        }
    }

    /// Takes the first `count` rows of a pass's outputs in as positions `start..`.
    pub(super) fn append(&mut self, new: &BTreeMap<String, Array>, start: usize, count: usize) {
        for plan in &self.plans {
            match *plan {
                CachePlan::Attention { layer, rows, width, ring, .. } => {
                    let (Some(k), Some(v)) =
                        (new.get(&format!("k_{layer}_new")), new.get(&format!("v_{layer}_new")))
                    else {
                        continue;
                    };
                    let tokens = v.shape[3];
                    let keys = self.arrays.get_mut(&format!("k_{layer}")).expect("made for every plan");
                    for t in 0..count {
                        let row = if ring { (start + t) % rows } else { start + t };
                        keys.data[row * width..(row + 1) * width]
                            .copy_from_slice(&k.data[t * width..(t + 1) * width]);
                    }
                    let values = self.arrays.get_mut(&format!("v_{layer}")).expect("made for every plan");
                    for t in 0..count {
                        let row = if ring { (start + t) % rows } else { start + t };
                        for c in 0..width {
                            values.data[c * rows + row] = v.data[c * tokens + t];
                        }
                    }
                }
                CachePlan::ShortConv { layer, width, reach } => {
                    let Some(window) = new.get(&format!("conv_{layer}_window")) else { continue };
                    let columns = window.shape[3];
                    let past = self.arrays.get_mut(&format!("conv_{layer}")).expect("made for every plan");
                    for c in 0..width {
                        let from = &window.data[c * columns + count..c * columns + count + reach];
                        past.data[c * reach..(c + 1) * reach].copy_from_slice(from);
                    }
                }
            }
        }
    }
}
