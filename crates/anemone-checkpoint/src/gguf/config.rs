//! The metadata of a file as the `config.json` of the snapshot it was made from.

use serde_json::{Map, Value, json};

use super::file::{GgufFile, TensorType};
use super::metadata::Metadata;
use super::names::{Architecture, Names};
use crate::Error;

/// The configuration of a file's model.
pub(super) fn read(file: &GgufFile, names: &Names) -> Result<Map<String, Value>, Error> {
    let keys = Keys { metadata: file.metadata(), prefix: names.architecture.prefix() };
    let layers = keys.require("block_count")?;
    let kinds = kinds(&keys, names, layers)?;
    let mut config = Map::new();
    let mut set = |key: &str, value: Value| {
        config.insert(key.to_owned(), value);
    };
    let (class, kind) = match names.architecture {
        Architecture::Lfm2 => ("Lfm2ForCausalLM", "lfm2"),
        Architecture::Lfm2Moe => ("Lfm2MoeForCausalLM", "lfm2_moe"),
        Architecture::Lfm3 => ("Lfm3ForCausalLM", "lfm3"),
    };
    set("architectures", json!([class]));
    set("model_type", json!(kind));
    set("hidden_size", json!(keys.require("embedding_length")?));
    set("num_hidden_layers", json!(layers));
    set("num_attention_heads", json!(keys.require("attention.head_count")?));
    set("num_key_value_heads", json!(kv_heads(&keys)?));
    if let Some(dim) = keys.count("attention.key_length")? {
        set("head_dim", json!(dim));
    }
    set("layer_types", json!(kinds));
    set("intermediate_size", json!(keys.require("feed_forward_length")?));
    set("block_auto_adjust_ff_dim", json!(false));
    set("norm_eps", json!(keys.number("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5)));
    set("conv_L_cache", json!(keys.require("shortconv.l_cache")?));
    set("conv_bias", json!(names.sources.keys().any(|n| n.ends_with("conv.conv.bias"))));
    set("max_position_embeddings", json!(keys.require("context_length")?));
    let vocab = names.sources.get("model.embed_tokens.weight").and_then(|s| s.shape.first().copied());
    if let Some(vocab) = vocab {
        set("vocab_size", json!(vocab));
    }
    let tied = !names.sources.contains_key("lm_head.weight");
    set("tie_word_embeddings", json!(tied));
    set("tie_embedding", json!(tied));
    if let Some(scaling) = keys.text("rope.scaling.type")?
        && scaling != "none"
    {
        let problem = format!("is `{scaling}`; scaled rotary embeddings are not supported");
        return Err(keys.wrong("rope.scaling.type", problem));
    }
    match names.architecture {
        Architecture::Lfm2 => set("rope_theta", json!(keys.theta("rope.freq_base", 1e6)?)),
        Architecture::Lfm2Moe => {
            set("rope_theta", json!(keys.theta("rope.freq_base", 1e6)?));
            experts(&keys, names, &mut set)?;
        }
        Architecture::Lfm3 => lfm3(file, &keys, names, &mut set)?,
    }
    for (key, stored) in [("bos_token_id", "bos"), ("pad_token_id", "padding")] {
        if let Some(id) = keys.metadata.count(&format!("tokenizer.ggml.{stored}_token_id"))? {
            set(key, json!(id));
        }
    }
    let mut ends = Vec::new();
    for stored in ["eos", "eot"] {
        ends.extend(keys.metadata.count(&format!("tokenizer.ggml.{stored}_token_id"))?);
    }
    ends.dedup();
    if !ends.is_empty() {
        set("eos_token_id", json!(ends));
    }
    Ok(config)
}

/// The keys of one architecture.
struct Keys {
    metadata: Metadata,
    prefix: &'static str,
}

impl Keys {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn count(&self, key: &str) -> Result<Option<usize>, Error> {
        self.metadata.count(&self.full(key))
    }

    fn require(&self, key: &str) -> Result<usize, Error> {
        self.metadata.require(&self.full(key))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        self.metadata.number(&self.full(key))
    }

    fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        self.metadata.text(&self.full(key))
    }

    fn wrong(&self, key: &str, problem: impl Into<String>) -> Error {
        self.metadata.wrong(&self.full(key), problem)
    }

    /// Base of a rotation.
    fn theta(&self, key: &str, default: f64) -> Result<f64, Error> {
        let theta = self.number(key)?.unwrap_or(default);
        if theta > 0.0 {
            Ok(theta)
        } else {
            Err(self.wrong(key, format!("is {theta}, expected more than 0")))
        }
    }
}

/// Key-value heads of the layers that attend; layers that do not have 0.
fn kv_heads(keys: &Keys) -> Result<usize, Error> {
    const KEY: &str = "attention.head_count_kv";
    let counts = keys.metadata.ints(&keys.full(KEY))?;
    let counts = counts.ok_or_else(|| keys.wrong(KEY, "is missing; convert the model to GGUF again"))?;
    let mut attending = counts.iter().filter(|n| **n != 0);
    let first = attending.next().copied().unwrap_or(1);
    if let Some(other) = attending.find(|n| **n != first) {
        return Err(keys.wrong(KEY, format!("gives layers {first} and {other} heads; all must have as many")));
    }
    usize::try_from(first).map_err(|_| keys.wrong(KEY, format!("holds {first}, expected a count")))
}

/// Kinds of the layers, by the tensors they have.
fn kinds(keys: &Keys, names: &Names, layers: usize) -> Result<Vec<&'static str>, Error> {
    const MOST: usize = 4096;
    if layers == 0 || layers > MOST {
        return Err(keys.wrong("block_count", format!("is {layers}, expected 1 to {MOST}")));
    }
    let sliding = sliding(keys, layers)?;
    let kind = |i: usize| {
        let has = |part: &str| names.sources.contains_key(&format!("model.layers.{i}.{part}.weight"));
        match (has("self_attn.q_proj"), sliding.as_ref().is_some_and(|s| s[i])) {
            (true, true) => Ok("sliding_attention"),
            (true, false) => Ok("full_attention"),
            (false, _) if has("conv.in_proj") => Ok("conv"),
            (false, _) => {
                let problem = format!(
                    "is {layers}, and of layer {i} neither `attn_q` nor `shortconv.in_proj` is there"
                );
                Err(keys.wrong("block_count", problem))
            }
        }
    };
    (0..layers).map(kind).collect()
}

/// Which layers look back no further than the window; `None` for models that have no such layers.
fn sliding(keys: &Keys, layers: usize) -> Result<Option<Vec<bool>>, Error> {
    const KEY: &str = "attention.sliding_window_pattern";
    let Some(pattern) = keys.metadata.ints(&keys.full(KEY))? else { return Ok(None) };
    if pattern.len() != layers {
        let problem = format!("has {} entries, expected one for each of {layers} layers", pattern.len());
        return Err(keys.wrong(KEY, problem));
    }
    Ok(Some(pattern.into_iter().map(|n| n != 0).collect()))
}

fn experts(keys: &Keys, names: &Names, set: &mut impl FnMut(&str, Value)) -> Result<(), Error> {
    const SIGMOID: usize = 2;
    if let Some(gate) = keys.count("expert_gating_func")?
        && gate != SIGMOID
    {
        let problem = format!("is {gate}; only sigmoid scores ({SIGMOID}) exist for this model");
        return Err(keys.wrong("expert_gating_func", problem));
    }
    set("num_experts", json!(keys.require("expert_count")?));
    set("num_experts_per_tok", json!(keys.require("expert_used_count")?));
    set("moe_intermediate_size", json!(keys.require("expert_feed_forward_length")?));
    set("num_dense_layers", json!(keys.count("leading_dense_block_count")?.unwrap_or(0)));
    set("use_expert_bias", json!(names.sources.keys().any(|n| n.ends_with("expert_bias"))));
    if let Some(normalise) = keys.metadata.flag(&keys.full("expert_weights_norm"))? {
        set("norm_topk_prob", json!(normalise));
    }
    if let Some(scale) = keys.number("expert_weights_scale")?.filter(|scale| *scale != 0.0) {
        set("routed_scaling_factor", json!(scale));
    }
    Ok(())
}

fn lfm3(file: &GgufFile, keys: &Keys, names: &Names, set: &mut impl FnMut(&str, Value)) -> Result<(), Error> {
    let has = |suffix: &str| names.sources.keys().any(|n| n.ends_with(suffix));
    set("attention_bias", json!(has("q_proj.bias")));
    set("use_attention_gate", json!(has("gate_proj.weight")));
    set("use_sandwich_norm", json!(has("post_ffn_norm.weight")));
    if let Some(window) = keys.count("attention.sliding_window")? {
        set("sliding_window", json!(window));
    }
    let full = keys.theta("rope.freq_base", 1e6)?;
    let sliding = keys.theta("rope.freq_base_swa", 1e4)?;
    let mut rotations = json!({
        "full_attention": {"rope_type": "default", "rope_theta": full},
        "sliding_attention": {"rope_type": "default", "rope_theta": sliding},
    });
    if let Some(share) = turning(file)? {
        rotations["full_attention"] =
            json!({"rope_type": "proportional", "rope_theta": full, "partial_rotary_factor": share});
    }
    set("rope_parameters", rotations);
    Ok(())
}

/// The share of angles that turn, by the factors that frequencies are divided by: 1 for those, then one so large that nothing turns.
fn turning(file: &GgufFile) -> Result<Option<f64>, Error> {
    const STILL: f32 = 1e9;
    let Some(tensor) = file.tensor("rope_freqs.weight") else { return Ok(None) };
    let wrong = |problem: &str| Error::GgufTensor {
        file: file.label().to_owned(),
        tensor: tensor.name.clone(),
        problem: problem.to_owned(),
    };
    if tensor.kind != TensorType::Plain(anemone_tensor::DType::F32) {
        return Err(wrong("is not of F32; convert the model to GGUF again"));
    }
    let factors: Vec<f32> = tensor.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let turn = factors.iter().take_while(|f| **f == 1.0).count();
    if factors[turn..].iter().any(|f| *f < STILL || f.is_nan()) {
        return Err(wrong(
            "scales frequencies; only factors of 1, then ones that stop the rest, are supported",
        ));
    }
    Ok(Some(turn as f64 / factors.len() as f64))
}
