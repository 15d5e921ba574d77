use crate::WeightRef;

/// A decoder: embedding, blocks, final norm, head.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// `model_type` of the config.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding and of the head; may exceed the tokenizer.
    pub vocab_size: usize,
    /// Longest context the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Token embedding `[vocab_size, hidden_size]`.
    pub embedding: WeightRef,
    /// Layers in order.
    pub blocks: Vec<Block>,
    /// Norm after the last block.
    pub final_norm: Norm,
    /// Output head `[vocab_size, hidden_size]`; the embedding itself when tied.
    pub head: WeightRef,
}

/// One layer: a mixer and a feed-forward part, each with a norm before and perhaps one after, each added to the stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// HF module path, `model.layers.3`.
    pub path: String,
    /// Norm before the mixer.
    pub mixer_norm: Norm,
    /// The part that looks at other tokens.
    pub mixer: Mixer,
    /// Norm of the mixer's output.
    pub post_mixer_norm: Option<Norm>,
    /// Norm before the feed-forward part.
    pub ffn_norm: Norm,
    /// The part that looks at one token.
    pub ffn: Ffn,
    /// Norm of the feed-forward part's output.
    pub post_ffn_norm: Option<Norm>,
}

/// How a layer mixes tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    /// Softmax attention.
    Attention(Attention),
    /// Gated short convolution.
    ShortConv(ShortConv),
}

/// A linear map `y = x · Wᵀ + b`.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: WeightRef,
    /// `[out]`.
    pub bias: Option<WeightRef>,
}

impl Linear {
    /// Output features.
    pub fn out_features(&self) -> usize {
        self.weight.shape[0]
    }
}

/// Root-mean-square norm.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// `[width]`, a plain factor.
    pub weight: WeightRef,
    /// Added to the mean square.
    pub eps: f32,
}

/// Causal grouped-query attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// `[heads · head_dim, hidden]`.
    pub q: Linear,
    /// `[kv_heads · head_dim, hidden]`.
    pub k: Linear,
    /// `[kv_heads · head_dim, hidden]`.
    pub v: Linear,
    /// `[hidden, heads · head_dim]`.
    pub o: Linear,
    /// Norm of each query head, before rotation.
    pub q_norm: Option<Norm>,
    /// Norm of each key head, before rotation.
    pub k_norm: Option<Norm>,
    /// Rotary embedding.
    pub rope: Rope,
    /// Keys a query sees, itself included; all earlier ones when absent.
    pub window: Option<usize>,
    /// `[heads, hidden]`: each head's output is scaled by the sigmoid of this map of the layer's normed input.
    pub gate: Option<Linear>,
}

/// Rotary embedding with half-split pairing: channel i turns with channel i + dim/2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f32,
    /// Channels of a head; also the denominator of the exponent.
    pub dim: usize,
    /// Leading angles that turn; the others stay at zero ("proportional" rotation when fewer than dim / 2).
    pub rotated: usize,
}

impl Rope {
    /// Frequency of each of the `dim / 2` angles, in radians per position.
    pub fn frequencies(&self) -> Vec<f32> {
        let frequency = |i: usize| {
            if i >= self.rotated {
                return 0.0;
            }
            1.0 / self.theta.powf((2 * i) as f32 / self.dim as f32)
        };
        (0..self.dim / 2).map(frequency).collect()
    }
}

/// Gated short convolution: `out_proj(C · conv(B · X))` of `[B | C | X] = in_proj(x)`.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    /// Tokens the filter spans, the current one included.
    pub taps: usize,
    /// `[3 · hidden, hidden]`.
    pub in_proj: Linear,
    /// `[hidden, 1, taps]`, or `[hidden, taps, 1]` as MLX stores it; the numbers lie in the same order.
    pub kernel: WeightRef,
    /// `[hidden]`.
    pub kernel_bias: Option<WeightRef>,
    /// `[hidden, hidden]`.
    pub out_proj: Linear,
}

/// How a layer transforms a token.
#[derive(Debug, Clone, PartialEq)]
pub enum Ffn {
    /// One gated MLP.
    Gated(Gated),
    /// A few of many gated MLPs.
    Moe(Moe),
}

/// `down(silu(gate(x)) · up(x))`.
#[derive(Debug, Clone, PartialEq)]
pub struct Gated {
    /// `[width, hidden]`.
    pub gate: Linear,
    /// `[width, hidden]`.
    pub up: Linear,
    /// `[hidden, width]`.
    pub down: Linear,
}

/// Mixture of experts with a sigmoid router.
#[derive(Debug, Clone, PartialEq)]
pub struct Moe {
    /// `[experts, hidden]`; scores are its sigmoid.
    pub router: Linear,
    /// `[experts]`, added to the scores for choosing only.
    pub expert_bias: Option<WeightRef>,
    /// The experts.
    pub experts: Vec<Gated>,
    /// Experts a token uses.
    pub top_k: usize,
    /// Whether the chosen scores are divided by their sum (plus 1e-6).
    pub normalise: bool,
    /// Factor on the chosen scores.
    pub scale: f32,
}

impl Stack {
    /// Whether the head is the embedding.
    pub fn is_tied(&self) -> bool {
        self.head == self.embedding
    }

    /// Every weight the stack uses, in the order a forward pass reads them; a tied head is not repeated.
    pub fn weights(&self) -> Vec<&WeightRef> {
        let mut all = vec![&self.embedding];
        for block in &self.blocks {
            all.push(&block.mixer_norm.weight);
            match &block.mixer {
                Mixer::Attention(a) => {
                    for linear in [Some(&a.q), Some(&a.k), Some(&a.v), a.gate.as_ref(), Some(&a.o)]
                        .into_iter()
                        .flatten()
                    {
                        linear_weights(linear, &mut all);
                    }
                    all.extend([&a.q_norm, &a.k_norm].into_iter().flatten().map(|n| &n.weight));
                }
                Mixer::ShortConv(c) => {
                    linear_weights(&c.in_proj, &mut all);
                    all.push(&c.kernel);
                    all.extend(&c.kernel_bias);
                    linear_weights(&c.out_proj, &mut all);
                }
            }
            all.extend(block.post_mixer_norm.iter().map(|n| &n.weight));
            all.push(&block.ffn_norm.weight);
            match &block.ffn {
                Ffn::Gated(g) => gated_weights(g, &mut all),
                Ffn::Moe(m) => {
                    linear_weights(&m.router, &mut all);
                    all.extend(&m.expert_bias);
                    m.experts.iter().for_each(|g| gated_weights(g, &mut all));
                }
            }
            all.extend(block.post_ffn_norm.iter().map(|n| &n.weight));
        }
        all.push(&self.final_norm.weight);
        if !self.is_tied() {
            all.push(&self.head);
        }
        all
    }

    /// Parameters of the model.
    pub fn parameters(&self) -> usize {
        self.weights().iter().map(|w| w.shape.numel()).sum()
    }
}

fn linear_weights<'a>(linear: &'a Linear, all: &mut Vec<&'a WeightRef>) {
    all.push(&linear.weight);
    all.extend(&linear.bias);
}

fn gated_weights<'a>(gated: &'a Gated, all: &mut Vec<&'a WeightRef>) {
    for linear in [&gated.gate, &gated.up, &gated.down] {
        linear_weights(linear, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proportional_rotation_keeps_the_exponent_over_the_whole_head() {
        let f = Rope { theta: 1e6, dim: 128, rotated: 32 }.frequencies();
        assert_eq!(f.len(), 64);
        assert_eq!(f[0], 1.0);
        assert!((f64::from(f[16]) - 1e6f64.powf(-32.0 / 128.0)).abs() < 1e-8);
        assert!(f[31] > 0.0 && f[32..].iter().all(|v| *v == 0.0));
    }
}
