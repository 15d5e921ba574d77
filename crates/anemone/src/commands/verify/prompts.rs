/// Most tokens run at once, which bounds the logits held.
const WINDOW: usize = 256;

/// What is run when no text is given: short ones, and one longer than common prefill lengths.
pub(super) const TEXTS: [&str; 4] = [
    "once upon a time",
    "The harbour was quiet, and the ferry had already left.",
    "Q: Which is heavier, a kilogram of iron or a kilogram of wool?\nA:",
    "On Tuesday the three of them walked to the mill, because Anna wanted to see the wheel turning before the river froze. \
     Her brother carried the bread, and the dog carried nothing, which it thought was fair. At the bridge they met the miller's \
     daughter, who told them that the wheel had stopped in the night. \"It is not the ice,\" she said. \"Something is caught in it, \
     and my father cannot reach it alone.\" So they all went down to the water together, and one after the other they looked into \
     the dark under the wheel, where two round eyes looked back at them.",
];

/// A text as tokens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) name: String,
    pub(super) tokens: Vec<u32>,
    /// Tokens cut off at its end.
    pub(super) left_out: usize,
}

/// A prompt of at most `room` tokens, and no more than a window.
pub(super) fn cut(name: String, mut tokens: Vec<u32>, room: usize) -> Prompt {
    let left_out = tokens.len().saturating_sub(room.min(WINDOW));
    tokens.truncate(room.min(WINDOW));
    Prompt { name, tokens, left_out }
}

/// All of the tokens, in windows that fit `room`.
pub(super) fn windows(tokens: &[u32], room: usize) -> impl Iterator<Item = Prompt> {
    let windows = tokens.chunks(room.clamp(1, WINDOW)).enumerate();
    windows.map(|(i, w)| Prompt { name: format!("window {}", i + 1), tokens: w.to_vec(), left_out: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_in_silence() {
        let tokens: Vec<u32> = (0..600).collect();
        let prompt = cut("p".into(), tokens.clone(), 1000);
        assert_eq!((prompt.tokens.len(), prompt.left_out), (256, 344));
        assert_eq!(cut("p".into(), tokens.clone(), 10).left_out, 590);
        let all: Vec<u32> = windows(&tokens, 100).flat_map(|w| w.tokens).collect();
        assert_eq!(all, tokens);
        assert_eq!(windows(&tokens, 1000).map(|w| w.tokens.len()).collect::<Vec<_>>(), [256, 256, 88]);
    }
}
