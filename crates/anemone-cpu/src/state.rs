use std::collections::VecDeque;

use anemone_kernels::{Cache, CacheElement};

use crate::model::{MixerWeights, Model};
use crate::{Arithmetic, Options};

/// What a sequence leaves behind: keys and values, convolution inputs, and how many tokens.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) position: usize,
    pub(crate) layers: Vec<LayerState>,
    marks: Vec<Mark>,
}

#[derive(Debug, Clone)]
pub(crate) enum LayerState {
    Attention(Cache, Option<usize>),
    ShortConv(History),
}

/// Convolution windows at one position, so that a long step back lands there.
#[derive(Debug, Clone)]
struct Mark {
    position: usize,
    windows: Vec<Vec<f32>>,
}

/// Marks kept; the oldest goes first.
const MARKS: usize = 32;

/// At multiples of this many tokens convolution windows are kept while they are passed, and blocks end that can be
/// exported. A step back or a restart there feeds fewer tokens than this again; half of it would double the windows'
/// share of a block, which is 5 % of the bytes of LFM2-350M and a fifth of LFM3-1.7B's.
pub const BORDER: usize = 128;

/// Windows at borders that are kept; the oldest goes first.
const BORDERS: usize = 32;

/// A copy of an engine's state at one position.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(crate) state: State,
}

impl Snapshot {
    /// Tokens held at the snapshot.
    pub fn position(&self) -> usize {
        self.state.position
    }

    /// Bytes the snapshot occupies.
    pub fn bytes(&self) -> usize {
        self.state.bytes()
    }
}

impl State {
    pub(crate) fn new(model: &Model, options: &Options) -> Self {
        let element = match options.arithmetic {
            Arithmetic::Exact => CacheElement::F32,
            Arithmetic::Fast => CacheElement::F16,
        };
        let layer = |block: &crate::model::Block| match &block.mixer {
            MixerWeights::Attention(a) => {
                let ring = a.window.map(|w| w + options.chunk + options.rewind);
                LayerState::Attention(Cache::new(element, a.shape, ring), a.window)
            }
            MixerWeights::ShortConv(c) => {
                LayerState::ShortConv(History::new(model.stack().hidden_size, c.reach, options.rewind))
            }
        };
        Self { position: 0, layers: model.blocks.iter().map(layer).collect(), marks: Vec::new() }
    }

    pub(crate) fn bytes(&self) -> usize {
        let layer = |l: &LayerState| match l {
            LayerState::Attention(cache, _) => cache.bytes(),
            LayerState::ShortConv(history) => history.bytes(),
        };
        let mark = |m: &Mark| m.windows.iter().map(|w| w.len() * 4).sum::<usize>();
        self.layers.iter().map(layer).sum::<usize>() + self.marks.iter().map(mark).sum::<usize>()
    }

    /// Whether the other state was made for the same layers, element type and sizes.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|pair| match pair {
                (LayerState::Attention(a, wa), LayerState::Attention(b, wb)) => a.is_like(b) && wa == wb,
                (LayerState::ShortConv(a), LayerState::ShortConv(b)) => {
                    (a.width, a.reach, a.capacity) == (b.width, b.reach, b.capacity)
                }
                _ => false,
            })
    }

    /// Remembers the current position, so that a later step back to it is possible however far.
    pub(crate) fn mark(&mut self) {
        let windows = self.layers.iter().filter_map(|l| match l {
            LayerState::ShortConv(history) => Some(history.window(self.position)),
            LayerState::Attention(..) => None,
        });
        let mark = Mark { position: self.position, windows: windows.collect() };
        self.marks.retain(|m| m.position < mark.position);
        if self.marks.len() == MARKS {
            self.marks.remove(0);
        }
        self.marks.push(mark);
    }

    /// The greatest position at or before `position` that [`State::rewind`] can reach.
    pub(crate) fn nearest(&self, position: usize) -> usize {
        let position = position.min(self.position);
        if self.reaches(position) {
            return position;
        }
        let marks = self.marks.iter().rev().map(|m| m.position);
        let marked = marks.filter(|&p| p <= position).find(|&p| self.reaches(p)).unwrap_or(0);
        let borders = (0..=position / BORDER).rev().map(|i| i * BORDER).take(BORDERS);
        borders.take_while(|&p| p > marked).find(|&p| self.reaches(p)).unwrap_or(marked)
    }

    fn reaches(&self, position: usize) -> bool {
        let marked = self.marks.iter().any(|m| m.position == position);
        position == 0
            || self.layers.iter().all(|layer| match layer {
                LayerState::Attention(cache, window) => {
                    // The next query is at `position` and looks `window - 1` keys back.
                    cache.holds(window.map_or(0, |w| (position + 1).saturating_sub(w)), position)
                }
                LayerState::ShortConv(history) => marked || history.knows(position),
            })
    }

    /// Steps back to a position [`State::nearest`] has given.
    pub(crate) fn rewind(&mut self, position: usize) {
        let mark = self.marks.iter().find(|m| m.position == position).cloned();
        let mut windows = mark.into_iter().flat_map(|m| m.windows);
        for layer in &mut self.layers {
            match layer {
                LayerState::Attention(cache, _) => cache.truncate(position),
                LayerState::ShortConv(history) => {
                    let window = windows.next().or_else(|| history.border(position).map(<[f32]>::to_vec));
                    if position == 0 {
                        history.clear();
                    } else if history.holds(position) {
                        history.truncate(position);
                    } else {
                        history.restore(position, &window.expect("the position is held, marked or a border"));
                    }
                }
            }
        }
        self.marks.retain(|m| m.position <= position);
        self.position = position;
    }
}

/// The latest rows of a convolution's input, by absolute position.
#[derive(Debug, Clone)]
pub(crate) struct History {
    rows: Vec<f32>,
    width: usize,
    reach: usize,
    capacity: usize,
    /// Positions written: rows of `oldest..written` are present; before position 0 all rows are zero.
    written: usize,
    oldest: usize,
    /// Windows at the latest borders passed.
    borders: VecDeque<(usize, Vec<f32>)>,
}

impl History {
    fn new(width: usize, reach: usize, rewind: usize) -> Self {
        let capacity = reach + rewind;
        let rows = vec![0.0; capacity * width];
        Self { rows, width, reach, capacity, written: 0, oldest: 0, borders: VecDeque::new() }
    }

    fn bytes(&self) -> usize {
        (self.rows.len() + self.borders.len() * self.window_len()) * 4
    }

    /// Numbers of a window.
    pub(crate) fn window_len(&self) -> usize {
        self.reach * self.width
    }

    /// Whether the window at `position` can be had.
    fn knows(&self, position: usize) -> bool {
        self.holds(position) || self.border(position).is_some()
    }

    /// The window kept at a border.
    fn border(&self, position: usize) -> Option<&[f32]> {
        self.borders.iter().rfind(|(at, _)| *at == position).map(|(_, window)| window.as_slice())
    }

    fn set_border(&mut self, position: usize, fill: impl FnOnce(&Self, &mut [f32])) {
        self.borders.retain(|(at, _)| *at < position);
        let oldest = (self.borders.len() == BORDERS).then(|| self.borders.pop_front()).flatten();
        let mut window = oldest.map_or_else(|| vec![0.0; self.window_len()], |(_, window)| window);
        fill(self, &mut window);
        self.borders.push_back((position, window));
    }

    /// Whether the rows before `position` that a filter needs are present.
    fn holds(&self, position: usize) -> bool {
        position <= self.written && position.saturating_sub(self.reach) >= self.oldest
    }

    /// The window at `position`, where it is still known.
    pub(crate) fn known(&self, position: usize) -> Option<Vec<f32>> {
        if self.holds(position) {
            return Some(self.window(position));
        }
        self.border(position).map(<[f32]>::to_vec)
    }

    fn window(&self, position: usize) -> Vec<f32> {
        let mut window = vec![0.0; self.reach * self.width];
        self.read(position, &mut window);
        window
    }

    /// Copies the `reach` rows before `position`, oldest first, or as many as there is room for; rows before the start are zero.
    pub(crate) fn read(&self, position: usize, window: &mut [f32]) {
        for (i, out) in window.chunks_exact_mut(self.width).enumerate() {
            match (position + i).checked_sub(self.reach) {
                Some(p) => {
                    let at = p % self.capacity * self.width;
                    out.copy_from_slice(&self.rows[at..at + self.width]);
                }
                None => out.fill(0.0),
            }
        }
    }

    /// Appends the rows of positions `start..`, keeping the latest and the windows at the borders they pass.
    pub(crate) fn append(&mut self, start: usize, rows: &[f32]) {
        let count = rows.len() / self.width;
        for border in (start / BORDER + 1)..=((start + count) / BORDER) {
            let border = border * BORDER;
            self.set_border(border, |history, window| {
                // What lies before `start` is still in the ring.
                let new = (border - start).min(history.reach) * history.width;
                let (before, after) = window.split_at_mut(history.window_len() - new);
                let first = (border - start) * history.width - new;
                after.copy_from_slice(&rows[first..first + new]);
                history.read(border, before);
            });
        }
        let skip = count.saturating_sub(self.capacity);
        for (i, row) in rows.chunks_exact(self.width).enumerate().skip(skip) {
            let at = (start + i) % self.capacity * self.width;
            self.rows[at..at + self.width].copy_from_slice(row);
        }
        self.written = start + count;
        self.oldest = self.oldest.max(self.written.saturating_sub(self.capacity));
    }

    fn truncate(&mut self, position: usize) {
        self.written = position;
        self.borders.retain(|(at, _)| *at <= position);
    }

    fn clear(&mut self) {
        (self.written, self.oldest) = (0, 0);
        self.borders.clear();
    }

    /// Goes to `position`, whose window is given.
    pub(crate) fn restore(&mut self, position: usize, window: &[f32]) {
        self.borders.retain(|(at, _)| *at <= position);
        let start = position.saturating_sub(self.reach);
        let rows = &window[(self.reach - (position - start)) * self.width..];
        self.oldest = start;
        self.append(start, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(p: usize) -> [f32; 2] {
        [p as f32 + 1.0, -(p as f32)]
    }

    fn rows(from: usize, to: usize) -> Vec<f32> {
        (from..to).flat_map(row).collect()
    }

    #[test]
    fn history_keeps_the_latest_and_steps_back() {
        let mut history = History::new(2, 2, 3);
        history.append(0, &rows(0, 1));
        assert_eq!(history.window(1), [0.0, 0.0, 1.0, 0.0]);
        history.append(1, &rows(1, 9));
        assert_eq!(history.window(9), rows(7, 9));
        assert!(history.holds(6) && !history.holds(5));
        history.truncate(6);
        assert_eq!(history.window(6), rows(4, 6));
        history.append(6, &rows(6, 7));
        assert_eq!(history.window(7), rows(5, 7));
        // Rows dropped before the step back are gone for good.
        assert!(!history.holds(5));
    }

    #[test]
    fn windows_at_borders_are_kept_while_they_are_passed() {
        let mut history = History::new(2, 3, 1);
        let (near, far) = (BORDER + 1, 3 * BORDER + 2);
        history.append(0, &rows(0, BORDER - 1));
        history.append(BORDER - 1, &rows(BORDER - 1, near));
        history.append(near, &rows(near, far));
        for border in [BORDER, 2 * BORDER, 3 * BORDER] {
            assert_eq!(history.known(border).unwrap(), rows(border - 3, border), "{border}");
        }
        assert!(history.known(BORDER + 1).is_none());
        history.restore(2 * BORDER, &rows(2 * BORDER - 3, 2 * BORDER));
        assert!(history.known(3 * BORDER).is_none(), "it was stepped back over");
        assert_eq!(history.known(BORDER).unwrap(), rows(BORDER - 3, BORDER));
        history.clear();
        assert!(history.known(BORDER).is_none());
        for at in 0..BORDERS + 3 {
            history.append(at * BORDER, &rows(at * BORDER, (at + 1) * BORDER));
        }
        assert!(history.known(3 * BORDER).is_none() && history.known(4 * BORDER).is_some());
        assert_eq!(history.borders.len(), BORDERS);
    }

    #[test]
    fn history_restores_a_window() {
        let mut history = History::new(2, 2, 3);
        history.append(0, &rows(0, 3));
        let window = history.window(3);
        history.append(3, &rows(3, 20));
        assert!(!history.holds(3));
        history.restore(3, &window);
        assert!(history.holds(3) && !history.holds(2));
        assert_eq!(history.window(3), rows(1, 3));
        let mut short = History::new(2, 3, 1);
        short.append(0, &rows(0, 1));
        let window = short.window(1);
        short.append(1, &rows(1, 30));
        short.restore(1, &window);
        assert_eq!(short.window(1), [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        assert!(short.holds(1));
    }
}
