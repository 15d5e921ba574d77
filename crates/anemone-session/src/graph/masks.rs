//! What the host computes for a pass: rotary tables and masks, from absolute positions.

use anemone_ane::{CachePlan, MASKED};
use anemone_mil::Array;

/// Cosines and sines of positions `start..start + tokens`, each `[1, half, 1, tokens]`.
pub(super) fn rotation(frequencies: &[f32], half: usize, start: usize, tokens: usize) -> (Array, Array) {
    let (mut cos, mut sin) = (Array::zeros(&[1, half, 1, tokens]), Array::zeros(&[1, half, 1, tokens]));
    for (i, f) in frequencies.iter().enumerate() {
        for t in 0..tokens {
            let (s, c) = f64::from((start + t) as f32 * f).sin_cos();
            (cos.data[i * tokens + t], sin.data[i * tokens + t]) = (c as f32, s as f32);
        }
    }
    (cos, sin)
}

/// The mask of an attention cache for a pass of `tokens` from position `start`: its input's name and
/// `[1, rows + tokens, 1, tokens]`, 0 where a key is seen.
///
/// Cached rows count by the position they hold, which in a ring is the latest one that fell on the row; this pass's own columns
/// follow the cached rows.
pub(super) fn mask(plan: &CachePlan, start: usize, tokens: usize) -> Option<(String, Array)> {
    let CachePlan::Attention { rows, window, ring, .. } = *plan else { return None };
    let name = window.map_or("mask_full".to_string(), |w| format!("mask_sliding_{w}"));
    let mut mask =
        Array { shape: vec![1, rows + tokens, 1, tokens], data: vec![MASKED; (rows + tokens) * tokens] };
    for row in 0..rows + tokens {
        let position = if row >= rows { Some(start + row - rows) } else { held(row, rows, ring, start) };
        let Some(position) = position else { continue };
        for t in 0..tokens {
            let query = start + t;
            if position <= query && window.is_none_or(|w| position + w > query) {
                mask.data[row * tokens + t] = 0.0;
            }
        }
    }
    Some((name, mask))
}

/// The position a cached row holds when `start` tokens are in the cache.
fn held(row: usize, rows: usize, ring: bool, start: usize) -> Option<usize> {
    if !ring {
        return (row < start).then_some(row);
    }
    let last = start.checked_sub(1)?;
    let back = (last % rows + rows - row) % rows;
    last.checked_sub(back)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(mask: &Array, t: usize) -> Vec<usize> {
        let tokens = mask.shape[3];
        (0..mask.shape[1]).filter(|r| mask.data[r * tokens + t] == 0.0).collect()
    }

    #[test]
    fn a_full_cache_is_causal() {
        let plan = CachePlan::Attention { layer: 0, rows: 8, width: 4, window: None, ring: false };
        let (name, mask) = mask(&plan, 3, 2).unwrap();
        assert_eq!(name, "mask_full");
        assert_eq!(mask.shape, [1, 10, 1, 2]);
        assert_eq!(seen(&mask, 0), [0, 1, 2, 8]);
        assert_eq!(seen(&mask, 1), [0, 1, 2, 8, 9]);
    }

    #[test]
    fn a_ring_counts_by_position() {
        let plan = CachePlan::Attention { layer: 0, rows: 4, width: 4, window: Some(4), ring: true };
        // Positions 6..=9 are held: row 0 has 8, row 1 has 9, row 2 has 6, row 3 has 7.
        let (name, mask) = mask(&plan, 10, 2).unwrap();
        assert_eq!(name, "mask_sliding_4");
        assert_eq!(seen(&mask, 0), [0, 1, 3, 4], "position 10 sees 7, 8, 9 and itself");
        assert_eq!(seen(&mask, 1), [0, 1, 4, 5], "position 11 sees 8, 9, 10 and itself");
    }

    #[test]
    fn an_empty_ring_holds_nothing() {
        let plan = CachePlan::Attention { layer: 0, rows: 4, width: 4, window: Some(4), ring: true };
        let (_, early) = mask(&plan, 0, 1).unwrap();
        assert_eq!(seen(&early, 0), [4]);
        let (_, later) = mask(&plan, 2, 1).unwrap();
        assert_eq!(seen(&later, 0), [0, 1, 4]);
    }
}
