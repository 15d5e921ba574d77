//! Configs of unknown origin against a checkpoint: an answer or an error that names its cause, and never a panic.

use std::collections::BTreeMap;

use anemone_checkpoint::{Entry, Error, Weights};
use anemone_tensor::{DType, Shape, Tensor};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Shapes without data; an element type that is not carried is only a name.
#[derive(Debug, Default)]
struct Shapes(BTreeMap<String, (Option<DType>, Shape)>);

impl Weights for Shapes {
    fn entry(&self, name: &str) -> Option<Entry> {
        let (dtype, shape) = self.0.get(name)?;
        Some(Entry { dtype: (*dtype)?, shape: shape.clone() })
    }

    fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        Err(Error::NoTensor { name: name.into(), checkpoint: "shapes".into() })
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn stored_dtype(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|(dtype, _)| dtype.map_or("F8_E4M3", DType::name).to_owned())
    }
}

fn shapes(list: &[(&str, &[usize])]) -> Shapes {
    let entry =
        |(name, shape): &(&str, &[usize])| ((*name).to_owned(), (Some(DType::BF16), Shape::from(*shape)));
    Shapes(list.iter().map(entry).collect())
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().expect("an object")
}

fn configs() -> [Value; 3] {
    [
        json!({"architectures": ["Lfm2ForCausalLM"], "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 4,
            "num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": null, "full_attn_idxs": [1],
            "block_ff_dim": 12, "intermediate_size": 12, "block_auto_adjust_ff_dim": true,
            "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 4, "conv_L_cache": 3, "conv_bias": false,
            "norm_eps": 1e-5, "rope_theta": 1e6, "theta": null, "rope_parameters": null, "rope_scaling": null,
            "tie_embedding": true, "tie_word_embeddings": null, "max_position_embeddings": 64, "head_dim": null}),
        json!({"architectures": ["Lfm2MoeForCausalLM"], "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 4,
            "num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": ["conv", "full_attention"],
            "intermediate_size": 12, "moe_intermediate_size": 4, "num_experts": 2, "num_local_experts": null,
            "num_experts_per_tok": 1, "num_dense_layers": 1, "use_expert_bias": true, "norm_topk_prob": true,
            "routed_scaling_factor": 1.0, "conv_L_cache": 3, "norm_eps": 1e-5, "rope_theta": 1e6}),
        json!({"architectures": ["Lfm3ForCausalLM"], "hidden_size": 8, "num_hidden_layers": 3, "vocab_size": 4,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 12,
            "layer_types": null, "sliding_window": 4, "conv_L_cache": 7, "conv_bias": false, "attention_bias": false,
            "use_attention_gate": true, "use_sandwich_norm": true, "tie_word_embeddings": true, "norm_eps": 1e-5,
            "rope_parameters": {"full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_theta": 1e4}}, "rope_theta": null}),
    ]
}

fn values() -> Vec<Value> {
    let mut values =
        vec![json!(null), json!(true), json!("x"), json!([]), json!([0]), json!(["conv"]), json!({})];
    values.extend([
        json!(-1),
        json!(0),
        json!(1),
        json!(3),
        json!(255),
        json!(1025),
        json!(1 << 24),
        json!(u64::MAX),
    ]);
    values.extend([json!(0.5), json!(1e-300), json!(1e38), json!(1e300), json!({"rope_type": "yarn"})]);
    values.push(
        json!({"full_attention": {"rope_theta": 0}, "sliding_attention": {"partial_rotary_factor": 1e30}}),
    );
    values
}

/// Loads a config that belongs to no complete checkpoint.
fn refused(config: &Map<String, Value>) -> String {
    let weights = shapes(&[
        ("model.embed_tokens.weight", &[4, 8]),
        ("model.layers.1.feed_forward.gate.weight", &[2, 8]),
    ]);
    let error = anemone_models::load(config, &weights).expect_err("most tensors are missing").to_string();
    assert!(!error.contains('\n') && error.len() < 1000, "{error}");
    error
}

#[test]
fn every_key_with_every_kind_of_value() {
    for config in configs() {
        for key in object(&config).keys() {
            for value in values() {
                let mut changed = object(&config).clone();
                changed.insert(key.clone(), value);
                refused(&changed);
                changed.remove(key);
                refused(&changed);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn several_keys_at_once(
        model in 0..3usize,
        edits in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(values())), 2..6),
    ) {
        let mut config = object(&configs()[model]).clone();
        let keys: Vec<String> = config.keys().cloned().collect();
        for (at, value) in edits {
            config.insert(keys[at.index(keys.len())].clone(), value);
        }
        refused(&config);
    }
}

#[test]
fn errors_name_the_key_and_the_way_out() {
    let with = |model: usize, key: &str, value: Value| {
        let mut config = object(&configs()[model]).clone();
        config.insert(key.into(), value);
        refused(&config)
    };
    for (model, key, value, fragments) in [
        (0, "num_key_value_heads", json!(3), &["`num_key_value_heads` is 3", "does not divide 2"][..]),
        (0, "hidden_size", json!(9), &["`num_attention_heads`", "give `head_dim`"]),
        (0, "head_dim", json!(3), &["`head_dim` is 3", "even"]),
        (0, "conv_L_cache", json!(1 << 20), &["`conv_L_cache`", "more than 256"]),
        (0, "block_ffn_dim_multiplier", json!(1e38), &["`block_ff_dim` gives", "16777216"]),
        (0, "full_attn_idxs", json!([2]), &["`full_attn_idxs`", "below 2"]),
        (0, "layer_types", json!(["conv", "sliding_attention"]), &["`sliding_attention`", "does not have"]),
        (0, "rope_scaling", json!({"factor": 8}), &["`rope_scaling` is set", "not supported"]),
        (1, "num_experts", json!(1 << 24), &["`num_experts` is 16777216", "more than 1024"]),
        (1, "num_experts_per_tok", json!(3), &["`num_experts_per_tok` is 3", "the 2 experts"]),
        (2, "sliding_window", json!(0), &["`sliding_window` is 0", "from 1"]),
        (2, "num_key_value_heads", json!(null), &["`num_key_value_heads` is missing"]),
        (2, "layer_types", json!(["conv"]), &["`layer_types` has 1 entries for 3"]),
        (
            2,
            "architectures",
            json!(["Lfm2BidirectionalModel"]),
            &["Lfm2BidirectionalModel", "supported are lfm2"],
        ),
    ] {
        let error = with(model, key, value);
        assert!(fragments.iter().all(|f| error.contains(f)), "{key}: {error}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let configs = configs();
    let load = |list: &[(&str, &[usize])]| {
        anemone_models::load(object(&configs[0]), &shapes(list)).expect_err("incomplete").to_string()
    };
    assert!(load(&[("x", &[1])]).contains("no tensor ends in `embed_tokens.weight`"));
    let two = load(&[("a.embed_tokens.weight", &[4, 8]), ("b.embed_tokens.weight", &[4, 8])]);
    assert!(two.contains("several tensors could be the token embedding"), "{two}");
    let shape = load(&[("model.embed_tokens.weight", &[5, 8])]);
    assert!(
        shape.contains("has shape [5, 8], expected [4, 8]") && shape.contains("same download"),
        "{shape}"
    );
    let missing = load(&[("model.embed_tokens.weight", &[4, 8])]);
    assert!(
        missing.contains("lacks `model.layers.0.operator_norm.weight`") && missing.contains("more"),
        "{missing}"
    );

    // Quantised weights are there; what is missing is support for their type.
    let mut quantised = shapes(&[("model.embed_tokens.weight", &[4, 8])]);
    quantised.0.insert("model.layers.0.conv.in_proj.weight".into(), (None, Shape::from([24, 8])));
    let error = anemone_models::load(object(&configs[0]), &quantised).expect_err("F8").to_string();
    assert!(error.contains("`model.layers.0.conv.in_proj.weight` is F8_E4M3; supported are F32"), "{error}");
}
