//! What the host computes for a pass: rotary tables and masks, from absolute positions.

use anemone_ane::{CachePlan, MASKED, StatePlan};
use anemone_mil::Array;

/// Name of the mask input of attention layers with a window, or without one.
pub(super) fn mask_name(window: Option<usize>) -> String {
    window.map_or("mask_full".to_string(), |w| format!("mask_sliding_{w}"))
}

/// Name of the input that puts tokens into a state of `rows`.
pub(super) fn place_name(rows: usize) -> String {
    format!("place_{rows}")
}

/// Name of the input that says which rows of a state of `rows` stay.
pub(super) fn keep_name(rows: usize) -> String {
    format!("keep_{rows}")
}

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
/// Cached rows count by the position they hold, which in a ring is the latest below `written` that fell on the row; those from
/// `start` on were taken back. This pass's own columns follow the cached rows.
pub(super) fn mask(plan: &CachePlan, start: usize, written: usize, tokens: usize) -> Option<(String, Array)> {
    let CachePlan::Attention { rows, window, ring, .. } = *plan else { return None };
    let mut mask =
        Array { shape: vec![1, rows + tokens, 1, tokens], data: vec![MASKED; (rows + tokens) * tokens] };
    for row in 0..rows + tokens {
        let position = if row >= rows {
            Some(start + row - rows)
        } else {
            held(row, rows, ring, written).filter(|p| *p < start)
        };
        let Some(position) = position else { continue };
        for t in 0..tokens {
            let query = start + t;
            if position <= query && window.is_none_or(|w| position + w > query) {
                mask.data[row * tokens + t] = 0.0;
            }
        }
    }
    Some((mask_name(window), mask))
}

/// The position a cached row holds when those below `written` have been put in the cache.
fn held(row: usize, rows: usize, ring: bool, written: usize) -> Option<usize> {
    if !ring {
        return (row < written).then_some(row);
    }
    let last = written.checked_sub(1)?;
    let back = (last % rows + rows - row) % rows;
    last.checked_sub(back)
}

/// The first position whose keys a cache can still show when those below `written` have been put in it.
pub(super) fn first_shown(plan: &CachePlan, written: usize) -> usize {
    match *plan {
        CachePlan::Attention { rows, window: Some(window), ring: true, .. } => {
            (written + window).saturating_sub(rows + 1)
        }
        _ => 0,
    }
}

/// How `count` tokens from position `start` enter a state, in a pass of `tokens`: `place [1, tokens, 1, rows]` and
/// `keep [1, 1, 1, rows]` with their names. Of tokens that fall on the same row of a ring the last one enters.
pub(super) fn entry(state: &StatePlan, start: usize, count: usize, tokens: usize) -> [(String, Array); 2] {
    let rows = state.rows;
    let mut place = Array::zeros(&[1, tokens, 1, rows]);
    let mut keep = Array { shape: vec![1, 1, 1, rows], data: vec![1.0; rows] };
    for t in count.saturating_sub(rows)..count {
        let row = if state.ring { (start + t) % rows } else { start + t };
        place.data[t * rows + row] = 1.0;
        keep.data[row] = 0.0;
    }
    [(place_name(rows), place), (keep_name(rows), keep)]
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
        let (name, mask) = mask(&plan, 3, 3, 2).unwrap();
        assert_eq!(name, "mask_full");
        assert_eq!(mask.shape, [1, 10, 1, 2]);
        assert_eq!(seen(&mask, 0), [0, 1, 2, 8]);
        assert_eq!(seen(&mask, 1), [0, 1, 2, 8, 9]);
    }

    #[test]
    fn a_ring_counts_by_position() {
        let plan = CachePlan::Attention { layer: 0, rows: 4, width: 4, window: Some(4), ring: true };
        // Positions 6..=9 are held: row 0 has 8, row 1 has 9, row 2 has 6, row 3 has 7.
        let (name, mask) = mask(&plan, 10, 10, 2).unwrap();
        assert_eq!(name, "mask_sliding_4");
        assert_eq!(seen(&mask, 0), [0, 1, 3, 4], "position 10 sees 7, 8, 9 and itself");
        assert_eq!(seen(&mask, 1), [0, 1, 4, 5], "position 11 sees 8, 9, 10 and itself");
    }

    #[test]
    fn an_empty_ring_holds_nothing() {
        let plan = CachePlan::Attention { layer: 0, rows: 4, width: 4, window: Some(4), ring: true };
        let (_, early) = mask(&plan, 0, 0, 1).unwrap();
        assert_eq!(seen(&early, 0), [4]);
        let (_, later) = mask(&plan, 2, 2, 1).unwrap();
        assert_eq!(seen(&later, 0), [0, 1, 4]);
    }
    #[test]
    fn rows_that_were_taken_back_are_not_seen() {
        let plan = CachePlan::Attention { layer: 0, rows: 6, width: 4, window: Some(3), ring: true };
        // Positions 6..12 were written, of which 10 and 11 are taken back; rows hold 6, 7, 8, 9, 10, 11.
        let (_, mask) = mask(&plan, 10, 12, 2).unwrap();
        assert_eq!(seen(&mask, 0), [2, 3, 6], "position 10 sees 8, 9 and itself");
        assert_eq!(seen(&mask, 1), [3, 6, 7], "position 11 sees 9, 10 and itself");
        assert_eq!(first_shown(&plan, 12), 8, "which needs 6 and 7");
        let full = CachePlan::Attention { layer: 0, rows: 6, width: 4, window: None, ring: false };
        assert_eq!(first_shown(&full, 6), 0);
    }

    #[test]
    fn tokens_enter_a_state_where_they_belong() {
        let state = StatePlan { name: "cache_0".into(), layers: vec![0], channels: 8, rows: 4, ring: true };
        let [(_, place), (_, keep)] = entry(&state, 6, 2, 3);
        assert_eq!(place.data, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(keep.data, [1.0, 1.0, 0.0, 0.0]);
        // Of six tokens the first two are overwritten within the pass.
        let [(_, place), (_, keep)] = entry(&state, 0, 6, 6);
        let placed: Vec<usize> = (0..24).filter(|i| place.data[*i] == 1.0).collect();
        assert_eq!(placed, [2 * 4 + 2, 3 * 4 + 3, 4 * 4, 5 * 4 + 1]);
        assert_eq!(keep.data, [0.0; 4]);
    }
}
