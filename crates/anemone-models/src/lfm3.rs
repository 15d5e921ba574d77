//! LFM3 (`model_type` `lfm3`): sandwich norms, gated attention heads, sliding layers, two rotary settings.
//!
//! Published configs say `rope_type: "default"` together with `partial_rotary_factor: 0.5` for the full layers. The trained
//! meaning is "proportional": the first half of the *angles* turns, channel i still pairs with i + dim/2, and the exponent
//! still runs over the whole head. Read literally ("default" as full rotation) the model works on short prompts and drifts
//! with position, so both spellings are read as proportional here.

use crate::parts::{Heads, LayerKind, Names, layer_types, layers, norm_eps, taps};
use crate::{Attention, Block, Config, Error, Ffn, Mixer, Norm, Rope, Stack};

pub(crate) fn stack(config: &Config<'_>, names: &Names<'_>) -> Result<Stack, Error> {
    let hidden = config.require(&["hidden_size"])?;
    let layers = layers(config)?;
    let kinds = layer_types(config, layers, true)?.unwrap_or_else(|| default_kinds(layers));
    let heads = Heads::read(config, hidden, None)?;
    let ropes = Ropes::read(config, heads.head_dim)?;
    let window = config.count("sliding_window")?.unwrap_or(256);
    let width = config.require(&["intermediate_size"])?;
    let eps = norm_eps(config)?;
    let taps = taps(config)?;
    let conv_bias = config.flag("conv_bias")?.unwrap_or(false);
    let attention_bias = config.flag("attention_bias")?.unwrap_or(false);
    let gated = config.flag("use_attention_gate")?.unwrap_or(true);
    let sandwich = config.flag("use_sandwich_norm")?.unwrap_or(true);

    let block = |i: usize, kind: LayerKind| {
        let layer = format!("layers.{i}");
        let norm = |name: &str| names.norm(&format!("{layer}.{name}"), hidden, eps);
        let attention = |rope, window| {
            Mixer::Attention(attention(
                names,
                &layer,
                hidden,
                &heads,
                attention_bias,
                gated,
                eps,
                rope,
                window,
            ))
        };
        Block {
            path: format!("model.{layer}"),
            mixer_norm: norm("operator_norm"),
            mixer: match kind {
                LayerKind::Conv => Mixer::ShortConv(names.short_conv(&layer, hidden, taps, conv_bias)),
                LayerKind::Full => attention(ropes.full, None),
                LayerKind::Sliding => attention(ropes.sliding, Some(window)),
            },
            post_mixer_norm: sandwich.then(|| norm("post_operator_norm")),
            ffn_norm: norm("ffn_norm"),
            ffn: Ffn::Gated(names.gated(&format!("{layer}.feed_forward"), hidden, width)),
            post_ffn_norm: sandwich.then(|| norm("post_ffn_norm")),
        }
    };
    let blocks = kinds.into_iter().enumerate().map(|(i, kind)| block(i, kind)).collect();

    let vocab_size = config.require(&["vocab_size"])?;
    let embedding = names.weight("embed_tokens.weight", [vocab_size, hidden]);
    let mut head = embedding.clone();
    if !config.flag("tie_word_embeddings")?.unwrap_or(true) {
        head.name = names.head().unwrap_or("lm_head.weight").to_string();
    }
    Ok(Stack {
        model_type: "lfm3".into(),
        hidden_size: hidden,
        vocab_size,
        max_position_embeddings: config.count("max_position_embeddings")?.unwrap_or(128_000),
        embedding,
        blocks,
        final_norm: Norm { weight: names.weight("embedding_norm.weight", [hidden]), eps },
        head,
    })
}

#[expect(clippy::too_many_arguments, reason = "the options of one layer, read once at the top")]
fn attention(
    names: &Names<'_>,
    layer: &str,
    hidden: usize,
    heads: &Heads,
    bias: bool,
    gated: bool,
    eps: f32,
    rope: Rope,
    window: Option<usize>,
) -> Attention {
    let Heads { heads, kv_heads, head_dim } = *heads;
    let module = format!("{layer}.self_attn");
    let linear = |name: &str, out, inner, bias| names.linear(&format!("{module}.{name}"), out, inner, bias);
    // Released files say gate_proj; transformers calls the module g_proj.
    let gate = if names.shape(&format!("{module}.g_proj.weight")).is_some() { "g_proj" } else { "gate_proj" };
    Attention {
        heads,
        kv_heads,
        head_dim,
        q: linear("q_proj", heads * head_dim, hidden, bias),
        k: linear("k_proj", kv_heads * head_dim, hidden, bias),
        v: linear("v_proj", kv_heads * head_dim, hidden, bias),
        o: linear("o_proj", hidden, heads * head_dim, bias),
        q_norm: Some(names.norm(&format!("{module}.q_norm"), head_dim, eps)),
        k_norm: Some(names.norm(&format!("{module}.k_norm"), head_dim, eps)),
        rope,
        window,
        gate: gated.then(|| linear(gate, heads, hidden, false)),
    }
}

fn default_kinds(layers: usize) -> Vec<LayerKind> {
    let kind = |i: usize| match i % 4 {
        2 => LayerKind::Full,
        0 if i > 0 => LayerKind::Sliding,
        _ => LayerKind::Conv,
    };
    (0..layers).map(kind).collect()
}

struct Ropes {
    full: Rope,
    sliding: Rope,
}

impl Ropes {
    fn read(config: &Config<'_>, dim: usize) -> Result<Self, Error> {
        let Some(parameters) = config.object("rope_parameters")? else {
            let flat = ["rope_theta", "rope_scaling", "partial_rotary_factor"];
            if let Some(key) = flat.into_iter().find(|key| config.get(key).is_some()) {
                let problem = "is set without `rope_parameters`; LFM3 sets each attention kind apart there";
                return Err(config.error(key, problem));
            }
            let full = Rope { theta: 1e6, dim, rotated: dim / 4 };
            return Ok(Self { full, sliding: Rope { theta: 1e4, dim, rotated: dim / 2 } });
        };
        let of = |kind: &str, theta: f64| match parameters.object(kind)? {
            Some(own) => rope(&own, dim, theta),
            None => Err(parameters.error(kind, "is missing; LFM3 sets each attention kind apart")),
        };
        Ok(Self { full: of("full_attention", 1e6)?, sliding: of("sliding_attention", 1e4)? })
    }
}

/// One kind's rotation; a partial factor means proportional rotation under either spelling.
fn rope(config: &Config<'_>, dim: usize, theta: f64) -> Result<Rope, Error> {
    if let Some(kind) = config.text("rope_type")?
        && !matches!(kind, "default" | "proportional")
    {
        return Err(
            config.error("rope_type", format!("is `{kind}`; supported are `default` and `proportional`"))
        );
    }
    let partial = config.positive("partial_rotary_factor")?.unwrap_or(1.0);
    if partial > 1.0 {
        return Err(config.error("partial_rotary_factor", format!("is {partial}, expected at most 1")));
    }
    let theta = config.positive("rope_theta")?.unwrap_or(theta) as f32;
    Ok(Rope { theta, dim, rotated: (partial * dim as f64 / 2.0).floor() as usize })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_published_spelling_is_read_as_proportional() {
        for kind in ["default", "proportional"] {
            let value = json!({"rope_parameters": {
                "full_attention": {"rope_type": kind, "rope_theta": 1e6, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}});
            let ropes = Ropes::read(&Config::new(value.as_object().unwrap()), 128).unwrap();
            assert_eq!(ropes.full, Rope { theta: 1e6, dim: 128, rotated: 32 });
            assert_eq!(ropes.sliding, Rope { theta: 1e4, dim: 128, rotated: 64 });
        }
        let absent = json!({});
        let ropes = Ropes::read(&Config::new(absent.as_object().unwrap()), 128).unwrap();
        assert_eq!((ropes.full.rotated, ropes.sliding.rotated), (32, 64));
        let flat = json!({"rope_theta": 5e5});
        let error = Ropes::read(&Config::new(flat.as_object().unwrap()), 128).err().unwrap().to_string();
        assert!(error.contains("`rope_theta` is set without `rope_parameters`"), "{error}");
    }

    #[test]
    fn layer_kinds_by_default() {
        let kinds = default_kinds(24);
        let of = |k| (0..24).filter(|i| kinds[*i] == k).collect::<Vec<_>>();
        assert_eq!(of(LayerKind::Full), [2, 6, 10, 14, 18, 22]);
        assert_eq!(of(LayerKind::Sliding), [4, 8, 12, 16, 20]);
    }
}
