//! LFM2 and LFM2.5, dense (`model_type` `lfm2`).

use crate::parts::{Heads, LayerKind, Names, layer_types, layers, norm_eps, taps};
use crate::{Attention, Block, Config, Error, Ffn, Mixer, Rope, Stack};

pub(crate) fn stack(config: &Config<'_>, names: &Names<'_>) -> Result<Stack, Error> {
    let trunk = Trunk::read(config)?;
    let width = match names.shape("layers.0.feed_forward.w1.weight").as_deref() {
        // The tensor is the truth: configs in the wild give the width adjusted, unadjusted, or both.
        Some(&[rows, _]) if rows > 0 => rows,
        _ => feed_forward_width(config)?,
    };
    trunk.stack("lfm2", config, names, |layer, _| {
        Ok(Ffn::Gated(names.gated(&format!("{layer}.feed_forward"), trunk.hidden, width)))
    })
}

/// What LFM2 and LFM2-MoE share: everything but the feed-forward part.
pub(crate) struct Trunk {
    pub(crate) hidden: usize,
    kinds: Vec<LayerKind>,
    heads: Heads,
    rope: Rope,
    eps: f32,
    taps: usize,
    conv_bias: bool,
}

impl Trunk {
    pub(crate) fn read(config: &Config<'_>) -> Result<Self, Error> {
        let hidden = config.require(&["hidden_size", "block_dim"])?;
        let layers = layers(config)?;
        let heads = Heads::read(config, hidden, Some(8))?;
        let dim = heads.head_dim;
        Ok(Self {
            hidden,
            kinds: kinds(config, layers)?,
            rope: Rope { theta: rope_theta(config)?, dim, rotated: dim / 2 },
            heads,
            eps: norm_eps(config)?,
            taps: taps(config)?,
            conv_bias: config.flag("conv_bias")?.unwrap_or(false),
        })
    }

    /// Builds the stack, asking `ffn` for each layer's feed-forward part by path and index.
    pub(crate) fn stack(
        &self,
        model_type: &str,
        config: &Config<'_>,
        names: &Names<'_>,
        ffn: impl Fn(&str, usize) -> Result<Ffn, Error>,
    ) -> Result<Stack, Error> {
        let hidden = self.hidden;
        let mut blocks = Vec::new();
        for (i, kind) in self.kinds.iter().enumerate() {
            let layer = format!("layers.{i}");
            let mixer = match kind {
                LayerKind::Conv => {
                    Mixer::ShortConv(names.short_conv(&layer, hidden, self.taps, self.conv_bias))
                }
                _ => Mixer::Attention(self.attention(names, &layer)),
            };
            blocks.push(Block {
                path: format!("model.{layer}"),
                mixer_norm: names.norm(&format!("{layer}.operator_norm"), hidden, self.eps),
                mixer,
                post_mixer_norm: None,
                ffn_norm: names.norm(&format!("{layer}.ffn_norm"), hidden, self.eps),
                ffn: ffn(&layer, i)?,
                post_ffn_norm: None,
            });
        }
        let vocab_size = config.require(&["vocab_size"])?;
        let embedding = names.weight("embed_tokens.weight", [vocab_size, hidden]);
        let tied = match config.flag("tie_embedding")? {
            Some(tied) => tied,
            None => config.flag("tie_word_embeddings")?.unwrap_or(true),
        };
        let mut head = embedding.clone();
        if !tied {
            head.name = names.head().unwrap_or("lm_head.weight").to_string();
        }
        Ok(Stack {
            model_type: model_type.into(),
            hidden_size: hidden,
            vocab_size,
            max_position_embeddings: config.count("max_position_embeddings")?.unwrap_or(128_000),
            embedding,
            blocks,
            // In spite of its name this norm follows the last layer.
            final_norm: names.norm("embedding_norm", hidden, self.eps),
            head,
        })
    }

    fn attention(&self, names: &Names<'_>, layer: &str) -> Attention {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let (hidden, module) = (self.hidden, format!("{layer}.self_attn"));
        let linear = |name: &str, out, inner| names.linear(&format!("{module}.{name}"), out, inner, false);
        Attention {
            heads,
            kv_heads,
            head_dim,
            q: linear("q_proj", heads * head_dim, hidden),
            k: linear("k_proj", kv_heads * head_dim, hidden),
            v: linear("v_proj", kv_heads * head_dim, hidden),
            o: linear("out_proj", hidden, heads * head_dim),
            q_norm: Some(names.norm(&format!("{module}.q_layernorm"), head_dim, self.eps)),
            k_norm: Some(names.norm(&format!("{module}.k_layernorm"), head_dim, self.eps)),
            rope: self.rope,
            window: None,
            gate: None,
        }
    }
}

fn kinds(config: &Config<'_>, layers: usize) -> Result<Vec<LayerKind>, Error> {
    if let Some(kinds) = layer_types(config, layers, false)? {
        return Ok(kinds);
    }
    // The mid-2025 spelling lists the attention layers; without either, every layer attends.
    let Some(full) = config.indices("full_attn_idxs", layers)? else {
        return Ok(vec![LayerKind::Full; layers]);
    };
    let kind = |i| if full.contains(&i) { LayerKind::Full } else { LayerKind::Conv };
    Ok((0..layers).map(kind).collect())
}

/// RoPE base: 2026 files nest it, older ones do not.
fn rope_theta(config: &Config<'_>) -> Result<f32, Error> {
    if let Some(rope) = config.object("rope_parameters")? {
        if let Some(kind) = rope.text("rope_type")?
            && kind != "default"
        {
            return Err(rope.error("rope_type", format!("is `{kind}`; only `default` exists for this model")));
        }
        if let Some(theta) = rope.positive("rope_theta")? {
            return Ok(theta as f32);
        }
    }
    if config.get("rope_scaling").is_some() {
        return Err(
            config.error("rope_scaling", "is set; scaled rotary embeddings are not supported for this model")
        );
    }
    for key in ["rope_theta", "theta"] {
        if let Some(theta) = config.positive(key)? {
            return Ok(theta as f32);
        }
    }
    Ok(1e6)
}

/// Width of the gated MLP after the config's adjustment: two thirds, times the multiplier, rounded up to a multiple.
fn feed_forward_width(config: &Config<'_>) -> Result<usize, Error> {
    let raw = config.count_of(&["block_ff_dim", "intermediate_size"])?.unwrap_or(12_288);
    if !config.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(raw);
    }
    let mut width = 2 * raw / 3;
    // An explicit null also switches the rounding off, as the reference has it.
    if !config.is_null("block_ffn_dim_multiplier") {
        let multiplier = config.positive("block_ffn_dim_multiplier")?.unwrap_or(1.0);
        let multiple = config.count("block_multiple_of")?.unwrap_or(256);
        // Saturates, so that the rounding up cannot overflow.
        width = ((multiplier * width as f64) as u32 as usize).next_multiple_of(multiple);
    }
    if !(1..=Config::MAX).contains(&width) {
        let problem = format!("gives a feed-forward width of {width}, expected 1 to {}", Config::MAX);
        return Err(config.error("block_ff_dim", problem));
    }
    Ok(width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn released_widths() {
        for (raw, adjust, expected) in
            [(6656, true, 4608), (10240, true, 6912), (12288, true, 8192), (10752, false, 10752)]
        {
            let value = json!({"block_ff_dim": raw, "intermediate_size": 1, "block_auto_adjust_ff_dim": adjust,
                "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0});
            assert_eq!(feed_forward_width(&Config::new(value.as_object().unwrap())).unwrap(), expected);
        }
        let null = json!({"block_ff_dim": 100, "block_ffn_dim_multiplier": null});
        assert_eq!(feed_forward_width(&Config::new(null.as_object().unwrap())).unwrap(), 66);
        for absurd in [
            json!({"block_ff_dim": 1, "block_ffn_dim_multiplier": null}),
            json!({"block_ff_dim": 1}),
            json!({"block_ff_dim": 16777216, "block_ffn_dim_multiplier": 1e38}),
        ] {
            let error = feed_forward_width(&Config::new(absurd.as_object().unwrap())).unwrap_err();
            assert!(error.to_string().contains("`block_ff_dim` gives"), "{error}");
        }
    }

    #[test]
    fn every_spelling_of_the_rope_base() {
        for (value, expected) in [
            (json!({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}, "rope_theta": 7.0}), 5.0),
            (json!({"rope_theta": 7.0, "theta": 9.0}), 7.0),
            (json!({"theta": 9.0}), 9.0),
            (json!({}), 1e6),
        ] {
            assert_eq!(rope_theta(&Config::new(value.as_object().unwrap())).unwrap(), expected);
        }
        let yarn = json!({"rope_parameters": {"rope_type": "yarn"}});
        let error = rope_theta(&Config::new(yarn.as_object().unwrap())).unwrap_err().to_string();
        assert!(error.contains("`rope_parameters.rope_type` is `yarn`"), "{error}");
    }
}
