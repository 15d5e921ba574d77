/// A set of token ids, one bit for each id of a vocabulary.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    len: usize,
}

impl TokenMask {
    /// The empty set over ids below `len`.
    pub fn none(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(32)], len }
    }

    /// Ids the set is over: 0 to this, exclusive.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no id is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Whether an id is in the set; false for every id at or beyond [`TokenMask::len`].
    pub fn allows(&self, id: u32) -> bool {
        let word = self.words.get(id as usize / 32).copied().unwrap_or(0);
        word >> (id % 32) & 1 == 1
    }

    /// Puts an id into the set; ids beyond it are left out.
    pub fn insert(&mut self, id: u32) {
        if (id as usize) < self.len {
            self.words[id as usize / 32] |= 1 << (id % 32);
        }
    }

    /// Takes an id out of the set.
    pub fn remove(&mut self, id: u32) {
        if (id as usize) < self.len {
            self.words[id as usize / 32] &= !(1 << (id % 32));
        }
    }

    /// Puts every id into the set.
    pub fn fill(&mut self) {
        self.words.fill(u32::MAX);
        self.cut();
    }

    /// Bit `i % 32` of word `i / 32` is set if id `i` is in the set; bits beyond the last id are 0.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// How many ids are in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The ids in the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let next = |&rest: &u32| Some(rest & rest.wrapping_sub(1)).filter(|&rest| rest != 0);
            let rests = std::iter::successors(Some(word).filter(|&word| word != 0), next);
            rests.map(move |rest| at as u32 * 32 + rest.trailing_zeros())
        })
    }

    /// Makes the set that of another one's words; words missing there are empty, further ones are dropped.
    pub fn set_words(&mut self, words: &[u32]) {
        let same = words.len().min(self.words.len());
        self.words[..same].copy_from_slice(&words[..same]);
        self.words[same..].fill(0);
        self.cut();
    }

    /// Empties the bits beyond the last id.
    fn cut(&mut self) {
        if let Some(last) = self.words.last_mut().filter(|_| !self.len.is_multiple_of(32)) {
            *last &= (1 << (self.len % 32)) - 1;
        }
    }
}

impl std::fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenMask({} of {})", self.count(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_ids() {
        let mut mask = TokenMask::none(70);
        assert!(mask.is_empty() && mask.iter().next().is_none());
        for id in [0, 31, 32, 69, 70, u32::MAX] {
            mask.insert(id);
        }
        assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 31, 32, 69]);
        assert_eq!((mask.count(), mask.words().len(), mask.len()), (4, 3, 70));
        let allowed: Vec<u32> = (0..200).filter(|&id| mask.allows(id)).collect();
        assert_eq!(allowed, [0, 31, 32, 69]);
        assert!(!mask.allows(u32::MAX));
    }

    #[test]
    fn words_of_any_length_are_taken() {
        let mut mask = TokenMask::none(40);
        mask.set_words(&[1, u32::MAX, u32::MAX]);
        assert_eq!((mask.count(), mask.words()), (9, &[1, 0xff][..]));
        mask.set_words(&[2]);
        assert_eq!(mask.iter().collect::<Vec<_>>(), [1]);
        let mut whole = TokenMask::none(32);
        whole.set_words(&[u32::MAX]);
        assert_eq!(whole.count(), 32);
        mask.fill();
        mask.remove(39);
        mask.remove(40);
        assert_eq!(mask.count(), 39);
    }
}
