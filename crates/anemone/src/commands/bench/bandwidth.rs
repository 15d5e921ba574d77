use std::hint::black_box;
use std::time::Instant;

use crate::machine;

/// Passes over the buffer; the fastest counts, as others share the memory.
const PASSES: usize = 5;

/// Bytes per second the threads together read from a private buffer of `mib` MiB.
///
/// `None` when the buffer is empty or would take more than half of the free memory.
pub(super) fn probe(mib: usize, threads: usize) -> Option<f64> {
    let words = mib << 17;
    let (_, available) = machine::memory();
    let fits = available.is_none_or(|free| (words as u64) * 16 <= free);
    if words == 0 || !fits {
        return None;
    }
    let mut buffer: Vec<u64> = Vec::new();
    buffer.try_reserve_exact(words).ok()?;
    // Values that are not all alike, so that no two pages can be one.
    buffer.extend(0..words as u64);
    let part = words.div_ceil(threads.max(1));
    let best = (0..PASSES).map(|_| pass(&buffer, part)).fold(f64::INFINITY, f64::min);
    Some((words * 8) as f64 / best)
}

/// Seconds of one pass.
fn pass(buffer: &[u64], part: usize) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for piece in buffer.chunks(part) {
            scope.spawn(move || black_box(sum(piece)));
        }
    });
    start.elapsed().as_secs_f64().max(1e-9)
}

/// Sums in independent lanes, so that reading and not adding sets the pace.
fn sum(words: &[u64]) -> u64 {
    const LANES: usize = 32;
    let mut lanes = [0u64; LANES];
    let (chunks, rest) = words.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_reads_every_word() {
        let words: Vec<u64> = (0..100_001).collect();
        assert_eq!(sum(&words), 100_000 * 100_001 / 2);
    }

    #[test]
    fn a_probe_measures_or_is_skipped() {
        assert!(probe(1, 2).is_some_and(|rate| rate.is_finite() && rate > 0.0));
        assert_eq!(probe(0, 2), None);
    }
}
