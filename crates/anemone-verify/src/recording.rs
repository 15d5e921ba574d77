use anemone_session::{EngineError, Traced};
use anemone_tensor::argmax;

/// Vectors at some positions, in order of position.
pub type Rows = Vec<(usize, Vec<f32>)>;

/// What a reference says about a sequence of tokens. What is absent is not compared.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recording {
    /// Its name in reports.
    pub name: String,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Logits, `[vocab]` each.
    pub logits: Rows,
    /// Best token after every position.
    pub argmax: Option<Vec<u32>>,
    /// Residual stream by module path, `[hidden]` each.
    pub layers: Vec<(String, Rows)>,
    /// How it goes on, always with the best token.
    pub greedy: Vec<Choice>,
    /// Least lead of a token of `greedy` over the next best.
    pub min_margin: Option<f64>,
}

/// A token of a continuation.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The token.
    pub id: u32,
    /// The logits it was chosen by, `[vocab]`.
    pub logits: Option<Vec<f32>>,
}

impl Recording {
    /// Records everything an engine computes for `tokens` and `steps` greedy tokens after them; the engine is reset before.
    pub fn of(
        engine: &mut dyn Traced,
        name: &str,
        tokens: &[u32],
        steps: usize,
    ) -> Result<Self, EngineError> {
        engine.reset();
        let vocab = engine.vocab_size();
        let mut streams = Streams::default();
        let all = engine.feed_traced(tokens, &mut |path, values| streams.push(path, values))?;
        let logits: Rows = all.chunks_exact(vocab).map(<[f32]>::to_vec).enumerate().collect();
        let mut greedy = Vec::with_capacity(steps);
        let mut next = logits.last().map(|(_, row)| row.clone()).unwrap_or_default();
        while greedy.len() < steps {
            let Some(id) = argmax(&next).and_then(|id| u32::try_from(id).ok()) else { break };
            let last = greedy.len() + 1 == steps;
            let following = if last { Vec::new() } else { engine.feed(&[id])?.to_vec() };
            greedy.push(Choice { id, logits: Some(std::mem::replace(&mut next, following)) });
        }
        let layers = streams.rows(tokens.len());
        let (name, tokens) = (name.to_owned(), tokens.to_vec());
        Ok(Self { name, tokens, logits, argmax: None, layers, greedy, min_margin: None })
    }
}

/// Streams as a tap shows them.
#[derive(Debug, Default)]
pub(crate) struct Streams(Vec<(String, Vec<f32>)>);

impl Streams {
    pub(crate) fn push(&mut self, path: &str, values: &[f32]) {
        match self.0.iter_mut().find(|(p, _)| p == path) {
            Some((_, all)) => all.extend_from_slice(values),
            None => self.0.push((path.to_owned(), values.to_vec())),
        }
    }

    /// The rows of `tokens` tokens.
    pub(crate) fn rows(&self, tokens: usize) -> Vec<(String, Rows)> {
        let rows = |values: &[f32]| -> Rows {
            let hidden = (values.len() / tokens.max(1)).max(1);
            values.chunks_exact(hidden).map(<[f32]>::to_vec).enumerate().collect()
        };
        self.0.iter().map(|(path, values)| (path.clone(), rows(values))).collect()
    }

    /// Takes over the first `kept` of `tokens` rows of each stream.
    pub(crate) fn append(&mut self, other: &Self, kept: usize, tokens: usize) {
        for (path, values) in &other.0 {
            self.push(path, &values[..values.len() / tokens.max(1) * kept]);
        }
    }
}
