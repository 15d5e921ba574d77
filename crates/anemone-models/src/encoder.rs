use crate::{Linear, Rope, WeightRef};

/// A bidirectional encoder: embedding, norm, layers, norm.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoder {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest sequence the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Token embedding `[vocab_size, hidden_size]`.
    pub embedding: WeightRef,
    /// Norm of the embedded tokens.
    pub embedding_norm: LayerNorm,
    /// Layers in order.
    pub layers: Vec<EncoderLayer>,
    /// Norm after the last layer.
    pub final_norm: LayerNorm,
}

/// One layer: attention and an MLP, each of a norm of the stream and added to it.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderLayer {
    /// Module path in the checkpoint.
    pub path: String,
    /// Norm before attention; none where the stream comes from a norm.
    pub attention_norm: Option<LayerNorm>,
    /// Attention in both directions.
    pub attention: SelfAttention,
    /// Norm before the MLP.
    pub mlp_norm: LayerNorm,
    /// The part that looks at one token.
    pub mlp: Mlp,
}

/// Attention in both directions with a fused projection.
#[derive(Debug, Clone, PartialEq)]
pub struct SelfAttention {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// `[3 · heads · head_dim, hidden]`: all queries, all keys, all values, each head by head.
    pub qkv: Linear,
    /// `[hidden, heads · head_dim]`.
    pub out: Linear,
    /// Rotary embedding of queries and keys.
    pub rope: Option<Rope>,
    /// A query sees keys at most this far away, on either side; all when absent.
    pub radius: Option<usize>,
}

/// `down(f(up(x)))`.
#[derive(Debug, Clone, PartialEq)]
pub struct Mlp {
    /// `[width, hidden]`, or `[2 · width, hidden]` when gated: first the activated half, then the gate.
    pub up: Linear,
    /// `[hidden, width]`.
    pub down: Linear,
    /// What lies between.
    pub activation: MlpActivation,
}

/// Activation of an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlpActivation {
    /// `gelu(a) · g` of `[a | g]`, by the error function.
    GeluGated,
    /// `max(x, 0)`.
    Relu,
}

/// Norm to mean zero and variance one.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    /// `[width]`.
    pub weight: WeightRef,
    /// `[width]`.
    pub bias: Option<WeightRef>,
    /// Added to the variance.
    pub eps: f32,
}

impl Encoder {
    /// Every weight, in the order a forward pass reads them.
    pub fn weights(&self) -> Vec<&WeightRef> {
        let mut all = vec![&self.embedding];
        self.embedding_norm.weights(&mut all);
        self.layers.iter().for_each(|layer| layer.weights(&mut all));
        self.final_norm.weights(&mut all);
        all
    }
}

impl EncoderLayer {
    pub(crate) fn weights<'a>(&'a self, all: &mut Vec<&'a WeightRef>) {
        self.attention_norm.iter().for_each(|norm| norm.weights(all));
        linear(&self.attention.qkv, all);
        linear(&self.attention.out, all);
        self.mlp_norm.weights(all);
        linear(&self.mlp.up, all);
        linear(&self.mlp.down, all);
    }
}

impl LayerNorm {
    pub(crate) fn weights<'a>(&'a self, all: &mut Vec<&'a WeightRef>) {
        all.push(&self.weight);
        all.extend(&self.bias);
    }
}

pub(crate) fn linear<'a>(linear: &'a Linear, all: &mut Vec<&'a WeightRef>) {
    all.push(&linear.weight);
    all.extend(&linear.bias);
}
