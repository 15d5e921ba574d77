/// The proposer llama.cpp calls `ngram-simple`: what followed the most recent earlier occurrence of the last `n` tokens.
///
/// With its limits: nothing unless there are `n + m + 1` tokens; an occurrence at the very beginning is not used; a
/// continuation shorter than `n` is not used either, and the most recent occurrence decides alone.
pub fn ngram_simple(tokens: &[u32], n: usize, m: usize) -> Vec<u32> {
    let len = tokens.len();
    if n == 0 || len < n + m + 1 {
        return Vec::new();
    }
    let pattern = &tokens[len - n..];
    let found = (1..len - n).rev().find(|&at| &tokens[at..at + n] == pattern);
    let Some(at) = found else { return Vec::new() };
    let draft = &tokens[at + n..len.min(at + n + m)];
    if draft.len() < n { Vec::new() } else { draft.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_recent_earlier_occurrence_is_continued() {
        let text = [9, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 1, 2];
        assert_eq!(ngram_simple(&text, 2, 3), [6, 7, 8]);
        assert_eq!(ngram_simple(&text, 2, 9), [6, 7, 8, 1, 2]);
    }

    #[test]
    fn quirks() {
        // Too little history: 2 + 4 + 1 tokens are needed.
        assert!(ngram_simple(&[9, 1, 2, 5, 1, 2], 2, 4).is_empty());
        assert_eq!(ngram_simple(&[9, 1, 2, 5, 6, 1, 2], 2, 4), [5, 6, 1, 2]);
        // At position 0.
        assert!(ngram_simple(&[1, 2, 5, 6, 7, 1, 2], 2, 4).is_empty());
        // The most recent match leaves one token only, so nothing is drafted although an earlier one would do.
        assert!(ngram_simple(&[9, 7, 7, 5, 6, 7, 7, 7], 2, 4).is_empty());
        assert!(ngram_simple(&[], 0, 4).is_empty());
        assert!(ngram_simple(&[1, 2, 3, 4, 5, 6, 7, 8], 2, 3).is_empty());
    }
}
