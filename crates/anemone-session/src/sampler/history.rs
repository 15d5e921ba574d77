use std::collections::HashMap;

/// The tokens penalties look at: those of the prompt and those generated since.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Distinct ids in order of first appearance, with how often each was generated.
    tokens: Vec<(u32, u32)>,
    index: HashMap<u32, usize>,
}

impl History {
    /// A history that begins with a prompt.
    pub fn new(prompt: &[u32]) -> Self {
        let mut history = Self::default();
        for &id in prompt {
            history.entry(id);
        }
        history
    }

    /// Adds a generated token.
    pub fn push(&mut self, id: u32) {
        let at = self.entry(id);
        self.tokens[at].1 += 1;
    }

    /// Distinct ids, and how often each was generated (0: in the prompt only).
    pub fn tokens(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.tokens.iter().copied()
    }

    fn entry(&mut self, id: u32) -> usize {
        *self.index.entry(id).or_insert_with(|| {
            self.tokens.push((id, 0));
            self.tokens.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_and_output_are_told_apart() {
        let mut history = History::new(&[3, 1, 3]);
        history.push(1);
        history.push(7);
        history.push(7);
        assert_eq!(history.tokens().collect::<Vec<_>>(), [(3, 0), (1, 1), (7, 2)]);
    }
}
