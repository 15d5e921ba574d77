use std::collections::HashMap;

/// States of the chain of suffixes whose latest occurrence is kept up to date with every token.
const REFRESHED: usize = 16;
const ROOT: u32 = 0;

/// Finds the longest end of a text that occurred before, in constant time a token (a suffix automaton).
///
/// Memory: at most two states a token, of some 60 bytes.
#[derive(Debug)]
pub struct SuffixIndex {
    tokens: Vec<u32>,
    /// `false` only keeps the tokens.
    indexed: bool,
    states: Vec<State>,
    /// Successors of the root, which may be as many as the vocabulary.
    first: HashMap<u32, u32>,
    last: u32,
}

#[derive(Debug, Clone)]
struct State {
    /// Length of its longest string.
    len: u32,
    link: u32,
    /// Where an occurrence ends, which is where its continuation begins.
    end: u32,
    /// Successors, by token.
    next: Vec<(u32, u32)>,
}

impl SuffixIndex {
    /// An empty text; not `indexed`, it has no continuations.
    pub fn new(indexed: bool) -> Self {
        let root = State { len: 0, link: ROOT, end: 0, next: Vec::new() };
        Self { tokens: Vec::new(), indexed, states: vec![root], first: HashMap::new(), last: ROOT }
    }

    /// The text.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Appends a token.
    pub fn push(&mut self, token: u32) {
        let at = self.tokens.len() as u32;
        self.tokens.push(token);
        if !self.indexed {
            return;
        }
        // From now on, the ends of the text so far are earlier occurrences.
        let mut suffix = self.states[self.last as usize].link;
        for _ in 0..REFRESHED {
            if suffix == ROOT {
                break;
            }
            self.states[suffix as usize].end = at;
            suffix = self.states[suffix as usize].link;
        }
        self.extend(token, at);
    }

    /// The longest end of the text that occurred before, by its length, and up to `most` tokens that followed it there.
    ///
    /// Where that occurrence reaches into the end of the text, the text is supposed to go on repeating itself.
    pub fn continuation(&self, most: usize) -> (usize, Vec<u32>) {
        let found = &self.states[self.states[self.last as usize].link as usize];
        if found.len == 0 {
            return (0, Vec::new());
        }
        let (end, len) = (found.end as usize, self.tokens.len());
        let mut guess = Vec::with_capacity(most);
        for at in end..end + most {
            let token = if at < len { self.tokens[at] } else { guess[at - len] };
            guess.push(token);
        }
        (found.len as usize, guess)
    }

    fn extend(&mut self, token: u32, at: u32) {
        let current = self.states.len() as u32;
        let len = self.states[self.last as usize].len + 1;
        self.states.push(State { len, link: ROOT, end: at + 1, next: Vec::new() });
        let mut p = Some(self.last);
        while let Some(state) = p.filter(|&s| self.next(s, token).is_none()) {
            self.set(state, token, current);
            p = (state != ROOT).then(|| self.states[state as usize].link);
        }
        if let Some(p) = p {
            let q = self.next(p, token).unwrap_or(ROOT);
            let link = if self.states[q as usize].len == self.states[p as usize].len + 1 {
                q
            } else {
                self.split(p, q, token)
            };
            self.states[current as usize].link = link;
        }
        self.last = current;
    }

    /// Divides `q` so that the strings reached from `p` have a state of their own.
    fn split(&mut self, p: u32, q: u32, token: u32) -> u32 {
        let clone = self.states.len() as u32;
        let mut state = self.states[q as usize].clone();
        state.len = self.states[p as usize].len + 1;
        self.states.push(state);
        self.states[q as usize].link = clone;
        let mut p = Some(p);
        while let Some(state) = p.filter(|&s| self.next(s, token) == Some(q)) {
            self.set(state, token, clone);
            p = (state != ROOT).then(|| self.states[state as usize].link);
        }
        clone
    }

    fn next(&self, state: u32, token: u32) -> Option<u32> {
        if state == ROOT {
            return self.first.get(&token).copied();
        }
        let next = &self.states[state as usize].next;
        next.binary_search_by_key(&token, |n| n.0).ok().map(|at| next[at].1)
    }

    fn set(&mut self, state: u32, token: u32, to: u32) {
        if state == ROOT {
            self.first.insert(token, to);
            return;
        }
        let next = &mut self.states[state as usize].next;
        match next.binary_search_by_key(&token, |n| n.0) {
            Ok(at) => next[at].1 = to,
            Err(at) => next.insert(at, (token, to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(state: &mut u64, n: u64) -> u32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 33) % n) as u32
    }

    /// The length of the longest proper end that occurred before.
    fn longest(tokens: &[u32]) -> usize {
        let n = tokens.len();
        (1..n)
            .rev()
            .find(|&len| (0..n - len).any(|at| tokens[at..at + len] == tokens[n - len..]))
            .unwrap_or(0)
    }

    #[test]
    fn the_longest_repeated_end_is_found_and_continued_as_it_was() {
        let mut random = 5;
        for (alphabet, len) in [(2, 120), (3, 200), (40, 200), (1, 40)] {
            let mut index = SuffixIndex::new(true);
            let mut tokens = Vec::new();
            for step in 0..len {
                let copy = tokens.len() > 30 && step % 50 > 25;
                let token = if copy { tokens[tokens.len() - 20] } else { below(&mut random, alphabet) };
                tokens.push(token);
                index.push(token);
                let (matched, guess) = index.continuation(5);
                assert_eq!(matched, longest(&tokens), "{tokens:?}");
                if matched == 0 {
                    continue;
                }
                // Some earlier place has this end and goes on with the guess.
                let n = tokens.len();
                let mut whole = tokens.clone();
                whole.extend(&guess);
                let place = (0..n - matched).any(|at| {
                    whole[at..at + matched] == tokens[n - matched..]
                        && whole[at + matched..at + matched + 5] == guess[..]
                });
                assert!(place, "{tokens:?} {guess:?}");
            }
            assert!(index.states.len() <= 2 * len);
        }
    }

    #[test]
    fn the_latest_occurrence_is_preferred() {
        let mut index = SuffixIndex::new(true);
        for token in [1, 2, 3, 9, 1, 2, 4, 8, 1, 2] {
            index.push(token);
        }
        assert_eq!(index.continuation(2), (2, vec![4, 8]));
    }
}
