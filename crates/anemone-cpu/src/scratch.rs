use anemone_kernels::{Context, Input, Output, Rounded};
use half::bf16;

/// Buffers of a pass, grown to the largest one seen.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Residual stream `[tokens, hidden]`.
    pub(crate) x: Vec<f32>,
    /// Output of a mixer or feed-forward part `[tokens, hidden]`.
    pub(crate) y: Vec<f32>,
    /// Input of the next product.
    pub(crate) act: Activations,
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) gate: Vec<f32>,
    pub(crate) attended: Vec<f32>,
    pub(crate) scores: Vec<f32>,
    pub(crate) bcx: Vec<f32>,
    pub(crate) z: Vec<f32>,
    pub(crate) up: Vec<f32>,
    pub(crate) cos: Vec<Vec<f32>>,
    pub(crate) sin: Vec<Vec<f32>>,
    /// Logits of a pass over several sequences.
    pub(crate) logits: Vec<f32>,
    pub(crate) observer: Observer,
}

/// What is shown the inputs of linear maps: the names of the weights that meet an input, its tokens, and `[tokens, features]`.
pub type Observe = Box<dyn FnMut(&[&str], usize, &[f32]) + Send>;

/// A place for an [`Observe`], empty as a rule.
#[derive(Default)]
pub(crate) struct Observer(pub(crate) Option<Observe>);

impl Observer {
    pub(crate) fn show(&mut self, names: &[&str], tokens: usize, x: Input<'_>) {
        let Some(observe) = &mut self.0 else { return };
        match x {
            Input::F32(x) | Input::Rounded(x, _) => observe(names, tokens, x),
            Input::Bf16(x) => observe(names, tokens, &x.iter().map(|v| v.to_f32()).collect::<Vec<_>>()),
        }
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observer({})", self.0.is_some())
    }
}

/// Activations in the type products want them: bf16 where those products are native and allowed, f32 elsewhere, with 8 bits beside
/// them for weights in coded blocks.
#[derive(Debug, Default)]
pub(crate) struct Activations {
    pub(crate) reduced: bool,
    /// Whether f32 activations are rounded for coded weights.
    pub(crate) rounds: bool,
    full: Vec<f32>,
    half: Vec<bf16>,
    rounded: Rounded,
}

impl Activations {
    pub(crate) fn new(reduced: bool) -> Self {
        Self { reduced, ..Self::default() }
    }

    /// Empty ones of the same types.
    pub(crate) fn like(other: &Self) -> Self {
        Self { rounds: other.rounds, ..Self::new(other.reduced) }
    }

    pub(crate) fn output(&mut self, len: usize) -> Output<'_> {
        if self.reduced {
            Output::Bf16(sized(&mut self.half, len))
        } else {
            Output::F32(sized(&mut self.full, len))
        }
    }

    /// A part of an output of `len` values.
    pub(crate) fn part(&mut self, len: usize, part: std::ops::Range<usize>) -> Output<'_> {
        match self.output(len) {
            Output::F32(out) => Output::F32(&mut out[part]),
            Output::Bf16(out) => Output::Bf16(&mut out[part]),
        }
    }

    pub(crate) fn input(&self, len: usize) -> Input<'_> {
        if self.reduced { Input::Bf16(&self.half[..len]) } else { Input::F32(&self.full[..len]) }
    }

    /// [`Activations::input`] of `tokens` tokens, rounded where that is wanted and possible.
    pub(crate) fn ready(&mut self, context: &Context, len: usize, tokens: usize) -> Input<'_> {
        if self.rounds && !self.reduced && Rounded::takes(len / tokens.max(1)) {
            self.rounded.fill(context, &self.full[..len], tokens);
            return Input::Rounded(&self.full[..len], &self.rounded);
        }
        self.input(len)
    }

    /// [`gather`] of either buffer.
    pub(crate) fn gather(&mut self, tokens: &[usize], width: usize) {
        if self.reduced {
            gather(&mut self.half, tokens, width);
        } else {
            gather(&mut self.full, tokens, width);
        }
    }

    /// Takes over a buffer of f32.
    pub(crate) fn set(&mut self, values: &[f32]) {
        match self.output(values.len()) {
            Output::F32(out) => out.copy_from_slice(values),
            Output::Bf16(out) => anemone_kernels::round_to_bf16(values, out),
        }
    }
}

/// The first `len` elements of a buffer that is grown when too short; its content is whatever it was.
pub(crate) fn sized<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

/// Leaves the tokens named at the front of a buffer of `width` values a token, in the order given.
pub(crate) fn gather<T: Copy + Default>(x: &mut Vec<T>, tokens: &[usize], width: usize) {
    let kept: Vec<T> = tokens.iter().flat_map(|t| &x[t * width..(t + 1) * width]).copied().collect();
    sized(x, kept.len()).copy_from_slice(&kept);
}
