//! What the LFM models share: names with their prefix, norms, linears, short convolutions, gated MLPs.

use anemone_checkpoint::Weights;
use anemone_tensor::Shape;

use crate::{Config, Error, Gated, Linear, Norm, ShortConv, WeightRef};

/// Kind of a layer's mixer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKind {
    Conv,
    Full,
    Sliding,
}

/// Reads `layer_types`, refusing kinds the model does not have.
pub(crate) fn layer_types(
    config: &Config<'_>,
    layers: usize,
    sliding: bool,
) -> Result<Option<Vec<LayerKind>>, Error> {
    let Some(names) = config.texts("layer_types")? else { return Ok(None) };
    if names.len() != layers {
        let problem = format!("has {} entries for {layers} layers (`num_hidden_layers`)", names.len());
        return Err(config.error("layer_types", problem));
    }
    let kind = |name: &&str| match *name {
        "conv" => Ok(LayerKind::Conv),
        "full_attention" => Ok(LayerKind::Full),
        "sliding_attention" if sliding => Ok(LayerKind::Sliding),
        other => Err(config.error("layer_types", format!("names `{other}`, which this model does not have"))),
    };
    names.iter().map(kind).collect::<Result<_, _>>().map(Some)
}

/// Heads and their size, checked against each other.
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Heads {
    /// `kv_heads` is what the reference takes when the config does not say, if it has such a default.
    pub(crate) fn read(config: &Config<'_>, hidden: usize, kv_heads: Option<usize>) -> Result<Self, Error> {
        let heads = config.require(&["num_attention_heads", "num_heads"])?;
        let kv_heads = match (config.count("num_key_value_heads")?, kv_heads) {
            (Some(count), _) | (None, Some(count)) => count,
            (None, None) => config.require(&["num_key_value_heads"])?,
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(config.error(
                "num_key_value_heads",
                format!("is {kv_heads}, which does not divide {heads} heads"),
            ));
        }
        let head_dim = match config.count("head_dim")? {
            Some(dim) => dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let problem =
                    format!("is {heads}, which does not divide hidden_size {hidden}; give `head_dim`");
                return Err(config.error("num_attention_heads", problem));
            }
        };
        if !head_dim.is_multiple_of(2) {
            return Err(
                config.error("head_dim", format!("is {head_dim}; rotary embedding needs an even number"))
            );
        }
        Ok(Self { heads, kv_heads, head_dim })
    }
}

/// Tensor names of one checkpoint: the standard ones behind the prefix its embedding has.
pub(crate) struct Names<'a> {
    weights: &'a dyn Weights,
    prefix: String,
    head: Option<String>,
}

const EMBEDDING: &str = "embed_tokens.weight";

impl<'a> Names<'a> {
    pub(crate) fn find(weights: &'a dyn Weights) -> Result<Self, Error> {
        let names = weights.names();
        let mut found: Vec<String> = names.iter().filter(|n| n.ends_with(EMBEDDING)).cloned().collect();
        let embedding = match found.len() {
            0 => return Err(Error::NoEmbedding),
            1 => found.remove(0),
            _ => return Err(Error::AmbiguousEmbedding(found)),
        };
        let prefix = embedding[..embedding.len() - EMBEDDING.len()].to_string();
        let head = names.into_iter().find(|n| n.ends_with("lm_head.weight"));
        Ok(Self { weights, prefix, head })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Name of the head when it is stored.
    pub(crate) fn head(&self) -> Option<&str> {
        self.head.as_deref()
    }

    /// The name behind the prefix: `layers.3.ffn_norm.weight` to `model.layers.3.ffn_norm.weight`.
    pub(crate) fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(crate) fn shape(&self, name: &str) -> Option<Shape> {
        self.weights.entry(&self.full(name)).map(|e| e.shape)
    }

    pub(crate) fn weight(&self, name: &str, shape: impl Into<Shape>) -> WeightRef {
        WeightRef::new(self.full(name), shape)
    }

    pub(crate) fn norm(&self, module: &str, width: usize, eps: f32) -> Norm {
        Norm { weight: self.weight(&format!("{module}.weight"), [width]), eps }
    }

    pub(crate) fn linear(&self, module: &str, out: usize, inner: usize, bias: bool) -> Linear {
        Linear {
            weight: self.weight(&format!("{module}.weight"), [out, inner]),
            bias: bias.then(|| self.weight(&format!("{module}.bias"), [out])),
        }
    }

    /// The short convolution of a layer; accepts the kernel as `[hidden, 1, taps]` and, as MLX stores it, `[hidden, taps, 1]`.
    pub(crate) fn short_conv(&self, layer: &str, hidden: usize, taps: usize, bias: bool) -> ShortConv {
        let module = format!("{layer}.conv");
        let kernel = format!("{module}.conv.weight");
        let stored = self.shape(&kernel);
        let transposed = stored.as_deref() == Some(&[hidden, taps, 1]);
        let shape = if transposed { [hidden, taps, 1] } else { [hidden, 1, taps] };
        ShortConv {
            taps,
            in_proj: self.linear(&format!("{module}.in_proj"), 3 * hidden, hidden, bias),
            kernel: self.weight(&kernel, shape),
            kernel_bias: bias.then(|| self.weight(&format!("{module}.conv.bias"), [hidden])),
            out_proj: self.linear(&format!("{module}.out_proj"), hidden, hidden, bias),
        }
    }

    pub(crate) fn gated(&self, module: &str, hidden: usize, width: usize) -> Gated {
        Gated {
            gate: self.linear(&format!("{module}.w1"), width, hidden, false),
            up: self.linear(&format!("{module}.w3"), width, hidden, false),
            down: self.linear(&format!("{module}.w2"), hidden, width, false),
        }
    }
}

/// `conv_L_cache`, the span of the short convolution.
pub(crate) fn taps(config: &Config<'_>) -> Result<usize, Error> {
    const MAX: usize = 256;
    let taps = config.count("conv_L_cache")?.unwrap_or(3);
    if taps > MAX {
        return Err(config.error("conv_L_cache", format!("is {taps}, more than {MAX}")));
    }
    Ok(taps)
}

/// `num_hidden_layers`, bounded so that a hostile file cannot ask for absurd work.
pub(crate) fn layers(config: &Config<'_>) -> Result<usize, Error> {
    const MAX: usize = 1024;
    let layers = config.require(&["num_hidden_layers"])?;
    if layers > MAX {
        return Err(config.error("num_hidden_layers", format!("is {layers}, more than {MAX}")));
    }
    Ok(layers)
}

/// `norm_eps` under its spellings.
pub(crate) fn norm_eps(config: &Config<'_>) -> Result<f32, Error> {
    for key in ["norm_eps", "block_norm_eps", "rms_norm_eps"] {
        if let Some(eps) = config.positive(key)? {
            return Ok(eps as f32);
        }
    }
    Ok(1e-5)
}
