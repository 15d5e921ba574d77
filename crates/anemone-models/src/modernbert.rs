//! `ModernBERT` encoders, in the spellings transformers 4 and 5 write.

use anemone_tensor::Shape;

use crate::{
    Config, Encoder, EncoderLayer, Error, LayerNorm, Linear, Mlp, MlpActivation, Rope, SelfAttention,
    WeightRef,
};

/// Describes the encoder of a config whose tensors are named `{prefix}layers.0.…`.
pub(crate) fn encoder(config: &Config<'_>, prefix: &str) -> Result<Encoder, Error> {
    if let Some(found) = config.text("model_type")?.filter(|found| *found != "modernbert") {
        return Err(config.error("model_type", format!("is `{found}`; the encoder must be `modernbert`")));
    }
    if let Some(found) = config.text("hidden_activation")?.filter(|found| *found != "gelu") {
        return Err(config.error("hidden_activation", format!("is `{found}`; supported is `gelu`")));
    }
    let hidden = config.require(&["hidden_size"])?;
    let width = config.require(&["intermediate_size"])?;
    let count = config.require(&["num_hidden_layers"])?;
    let vocab_size = config.require(&["vocab_size"])?;
    let heads = config.require(&["num_attention_heads"])?;
    if !hidden.is_multiple_of(heads) || !(hidden / heads).is_multiple_of(2) {
        let problem =
            format!("is {heads}; {hidden} channels (`hidden_size`) must split into heads of an even size");
        return Err(config.error("num_attention_heads", problem));
    }
    let eps = config.positive("norm_eps")?.unwrap_or(1e-5) as f32;
    let flag = |key| Ok::<_, Error>(config.flag(key)?.unwrap_or(false));
    let (norm_bias, attention_bias, mlp_bias) =
        (flag("norm_bias")?, flag("attention_bias")?, flag("mlp_bias")?);
    let kinds = layer_kinds(config, count)?;
    let ropes = Ropes::read(config, hidden / heads)?;
    let radius = config.count("local_attention")?.unwrap_or(128) / 2;

    let weight = |name: &str, shape: Shape| WeightRef::new(format!("{prefix}{name}"), shape);
    let norm = |name: &str| LayerNorm {
        weight: weight(&format!("{name}.weight"), [hidden].into()),
        bias: norm_bias.then(|| weight(&format!("{name}.bias"), [hidden].into())),
        eps,
    };
    let linear = |name: &str, out: usize, inner: usize, bias: bool| Linear {
        weight: weight(&format!("{name}.weight"), [out, inner].into()),
        bias: bias.then(|| weight(&format!("{name}.bias"), [out].into())),
    };
    let layer = |i: usize, kind: Kind| {
        let path = format!("layers.{i}");
        let name = |module: &str| format!("{path}.{module}");
        EncoderLayer {
            path: format!("{prefix}{path}"),
            // The first layer reads the embedding's norm as it is.
            attention_norm: (i > 0).then(|| norm(&name("attn_norm"))),
            attention: SelfAttention {
                heads,
                head_dim: hidden / heads,
                qkv: linear(&name("attn.Wqkv"), 3 * hidden, hidden, attention_bias),
                out: linear(&name("attn.Wo"), hidden, hidden, attention_bias),
                rope: Some(if kind == Kind::Full { ropes.full } else { ropes.sliding }),
                radius: (kind == Kind::Sliding).then_some(radius),
            },
            mlp_norm: norm(&name("mlp_norm")),
            mlp: Mlp {
                up: linear(&name("mlp.Wi"), 2 * width, hidden, mlp_bias),
                down: linear(&name("mlp.Wo"), hidden, width, mlp_bias),
                activation: MlpActivation::GeluGated,
            },
        }
    };
    Ok(Encoder {
        hidden_size: hidden,
        vocab_size,
        max_position_embeddings: config.count("max_position_embeddings")?.unwrap_or(8192),
        embedding: weight("embeddings.tok_embeddings.weight", [vocab_size, hidden].into()),
        embedding_norm: norm("embeddings.norm"),
        layers: kinds.into_iter().enumerate().map(|(i, kind)| layer(i, kind)).collect(),
        final_norm: norm("final_norm"),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Full,
    Sliding,
}

/// `layer_types`, or every n-th layer full from the first.
fn layer_kinds(config: &Config<'_>, count: usize) -> Result<Vec<Kind>, Error> {
    let Some(names) = config.texts("layer_types")? else {
        let every = config.count("global_attn_every_n_layers")?.unwrap_or(3);
        let kind = |i: usize| if i.is_multiple_of(every) { Kind::Full } else { Kind::Sliding };
        return Ok((0..count).map(kind).collect());
    };
    if names.len() != count {
        let problem = format!("has {} entries for {count} layers (`num_hidden_layers`)", names.len());
        return Err(config.error("layer_types", problem));
    }
    let kind = |name: &&str| match *name {
        "full_attention" => Ok(Kind::Full),
        "sliding_attention" => Ok(Kind::Sliding),
        other => Err(config.error(
            "layer_types",
            format!("names `{other}`; supported are `full_attention` and `sliding_attention`"),
        )),
    };
    names.iter().map(kind).collect()
}

struct Ropes {
    full: Rope,
    sliding: Rope,
}

impl Ropes {
    /// Nested `rope_parameters`, flat ones for both kinds, or the two thetas of transformers 4.
    fn read(config: &Config<'_>, dim: usize) -> Result<Self, Error> {
        let rope = |theta: f64| Rope { theta: theta as f32, dim, rotated: dim / 2 };
        let (full, sliding) = (160_000.0, 10_000.0);
        let Some(parameters) = config.object("rope_parameters")? else {
            let full = config.positive("global_rope_theta")?.unwrap_or(full);
            // A null local theta means the same one everywhere.
            let same = config.is_null("local_rope_theta");
            let sliding = config.positive("local_rope_theta")?.unwrap_or(if same { full } else { sliding });
            return Ok(Self { full: rope(full), sliding: rope(sliding) });
        };
        let theta = |config: &Config<'_>, default: Option<f64>| {
            if let Some(kind) = config.text("rope_type")?.filter(|kind| *kind != "default") {
                return Err(config.error("rope_type", format!("is `{kind}`; supported is `default`")));
            }
            match (config.positive("rope_theta")?, default) {
                (Some(theta), _) | (None, Some(theta)) => Ok(theta),
                (None, None) => Err(config.error("rope_theta", "is missing; it must be a number above 0")),
            }
        };
        let nested = (parameters.object("full_attention")?, parameters.object("sliding_attention")?);
        if let (None, None) = nested {
            let both = theta(&parameters, None)?;
            return Ok(Self { full: rope(both), sliding: rope(both) });
        }
        let of = |own: Option<Config<'_>>, default| own.map_or(Ok(default), |own| theta(&own, Some(default)));
        Ok(Self { full: rope(of(nested.0, full)?), sliding: rope(of(nested.1, sliding)?) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(extra: &Value) -> Result<Encoder, Error> {
        let mut value = json!({"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 4,
            "vocab_size": 300, "num_attention_heads": 4});
        value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        encoder(&Config::of(value.as_object().unwrap(), "encoder/config.json"), "encoder.")
    }

    fn thetas(extra: &Value) -> (f32, f32) {
        let encoder = read(extra).unwrap();
        let theta = |i: usize| encoder.layers[i].attention.rope.unwrap().theta;
        (theta(0), theta(1))
    }

    fn radii(extra: &Value) -> Vec<Option<usize>> {
        read(extra).unwrap().layers.iter().map(|l| l.attention.radius).collect()
    }

    #[test]
    fn both_spellings_of_rotation_and_layers() {
        assert_eq!(thetas(&json!({})), (160_000.0, 10_000.0));
        assert_eq!(thetas(&json!({"global_rope_theta": 5.0, "local_rope_theta": 6.0})), (5.0, 6.0));
        assert_eq!(thetas(&json!({"local_rope_theta": null})), (160_000.0, 160_000.0));
        assert_eq!(thetas(&json!({"rope_parameters": {"rope_theta": 7.0}})), (7.0, 7.0));
        let nested = json!({"rope_parameters": {"full_attention": {"rope_theta": 8.0},
            "sliding_attention": {"rope_theta": 9.0, "rope_type": "default"}}, "global_rope_theta": 1.0});
        assert_eq!(thetas(&nested), (8.0, 9.0));
        assert_eq!(radii(&json!({})), [None, Some(64), Some(64), None]);
        assert_eq!(
            radii(&json!({"global_attn_every_n_layers": 2, "local_attention": 9})),
            [None, Some(4), None, Some(4)]
        );
        let types = json!({"layer_types": ["sliding_attention", "full_attention", "full_attention",
            "sliding_attention"]});
        assert_eq!(radii(&types), [Some(64), None, None, Some(64)]);
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (extra, expected) in [
            (json!({"model_type": "bert"}), "`model_type` is `bert`"),
            (json!({"hidden_activation": "relu"}), "`hidden_activation` is `relu`"),
            (json!({"num_attention_heads": 3}), "`num_attention_heads` is 3"),
            (json!({"layer_types": ["conv", "conv", "conv", "conv"]}), "names `conv`"),
            (json!({"layer_types": ["full_attention"]}), "has 1 entries for 4 layers"),
            (
                json!({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}),
                "encoder/config.json: `rope_parameters.full_attention.rope_type` is `yarn`",
            ),
            (json!({"rope_parameters": {}}), "`rope_parameters.rope_theta` is missing"),
            (json!({"vocab_size": 0}), "`vocab_size` is 0"),
        ] {
            let error = read(&extra).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
