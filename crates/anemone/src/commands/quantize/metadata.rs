//! What a GGUF file says of its model: shape, tokenizer, chat template.

use anemone_checkpoint::Checkpoint;
use anemone_checkpoint::gguf::{GgufValue, TensorType};
use anemone_models::{Ffn, Mixer, Stack};
use anemone_tensor::{BlockFormat, DType};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

type Keys = Vec<(String, GgufValue)>;

/// Everything before the tensors.
pub(super) fn write(checkpoint: &Checkpoint, stack: &Stack, kind: TensorType) -> Result<Keys> {
    let mut keys = Keys::new();
    let arch = match stack.model_type.as_str() {
        "lfm2_moe" => "lfm2moe",
        other => other,
    };
    keys.push(("general.architecture".to_owned(), GgufValue::Text(arch.to_owned())));
    keys.push(("general.name".to_owned(), GgufValue::Text(checkpoint.name().to_owned())));
    keys.push(("general.file_type".to_owned(), GgufValue::U32(file_type(kind))));
    keys.push(("general.quantization_version".to_owned(), GgufValue::U32(2)));
    shape(checkpoint, stack, arch, &mut keys)?;
    tokenizer(checkpoint, stack, &mut keys)?;
    Ok(keys)
}

fn file_type(kind: TensorType) -> u32 {
    match kind {
        TensorType::Plain(DType::F32) => 0,
        TensorType::Plain(DType::BF16) => 32,
        TensorType::Blocks(BlockFormat::Q4_0) => 2,
        TensorType::Blocks(BlockFormat::Q4_1) => 3,
        TensorType::Blocks(BlockFormat::Q8_0) => 7,
        TensorType::Blocks(BlockFormat::Q5_0) => 8,
        TensorType::Blocks(BlockFormat::Q5_1) => 9,
        _ => 1,
    }
}

fn shape(checkpoint: &Checkpoint, stack: &Stack, arch: &str, keys: &mut Keys) -> Result<()> {
    let mut set = |key: &str, value: GgufValue| keys.push((format!("{arch}.{key}"), value));
    let count = |n: usize| GgufValue::U32(n as u32);
    let attentions = || {
        stack.blocks.iter().map(|block| match &block.mixer {
            Mixer::Attention(a) => Some(a),
            Mixer::ShortConv(_) => None,
        })
    };
    let first = attentions().flatten().next();
    set("block_count", count(stack.blocks.len()));
    set("context_length", count(stack.max_position_embeddings));
    set("embedding_length", count(stack.hidden_size));
    set("vocab_size", count(stack.vocab_size));
    set("attention.layer_norm_rms_epsilon", GgufValue::F32(stack.final_norm.eps));
    let heads = first.map_or(1, |a| a.heads);
    set("attention.head_count", count(heads));
    let kv = attentions().map(|a| a.map_or(0, |a| a.kv_heads as i32)).collect();
    set("attention.head_count_kv", GgufValue::Ints(kv));
    if let Some(a) = first {
        set("attention.key_length", count(a.head_dim));
        set("attention.value_length", count(a.head_dim));
    }
    let taps = stack.blocks.iter().find_map(|block| match &block.mixer {
        Mixer::ShortConv(c) => Some(c.taps),
        Mixer::Attention(_) => None,
    });
    set("shortconv.l_cache", count(taps.unwrap_or(3)));
    let dense = stack.blocks.iter().find_map(|block| match &block.ffn {
        Ffn::Gated(g) => Some(g.gate.out_features()),
        Ffn::Moe(_) => None,
    });
    let moe = stack.blocks.iter().find_map(|block| match &block.ffn {
        Ffn::Moe(m) => Some(m),
        Ffn::Gated(_) => None,
    });
    let stated = checkpoint.config().get("intermediate_size").and_then(Value::as_u64).map(|n| n as usize);
    let width = dense
        .or(stated)
        .context("config.json: `intermediate_size` is missing; it is the width of dense layers")?;
    set("feed_forward_length", count(width));
    if let Some(moe) = moe {
        set("expert_count", count(moe.experts.len()));
        set("expert_used_count", count(moe.top_k));
        let width = moe.experts.first().map_or(0, |g| g.gate.out_features());
        set("expert_feed_forward_length", count(width));
        let leading = stack.blocks.iter().take_while(|b| matches!(b.ffn, Ffn::Gated(_))).count();
        set("leading_dense_block_count", count(leading));
        // Sigmoid scores.
        set("expert_gating_func", count(2));
        set("expert_weights_norm", GgufValue::Flag(moe.normalise));
        set("expert_weights_scale", GgufValue::F32(moe.scale));
    }
    rotations(stack, arch, keys)
}

fn rotations(stack: &Stack, arch: &str, keys: &mut Keys) -> Result<()> {
    let (mut full, mut sliding) = (None, None);
    let mut pattern = Vec::new();
    for block in &stack.blocks {
        let Mixer::Attention(a) = &block.mixer else {
            pattern.push(false);
            continue;
        };
        pattern.push(a.window.is_some());
        let place = if a.window.is_some() { &mut sliding } else { &mut full };
        let found = (a.rope, a.window);
        ensure!(
            place.replace(found).is_none_or(|before| before == found),
            "layers of one kind turn by different angles, which GGUF has no keys for"
        );
    }
    let mut set = |key: &str, value: GgufValue| keys.push((format!("{arch}.{key}"), value));
    if let Some((rope, _)) = full {
        set("rope.freq_base", GgufValue::F32(rope.theta));
    }
    if let Some((rope, window)) = sliding {
        ensure!(rope.rotated == rope.dim / 2, "sliding layers that turn in part have no key in GGUF");
        set("rope.freq_base_swa", GgufValue::F32(rope.theta));
        set("attention.sliding_window", GgufValue::U32(window.unwrap_or(0) as u32));
        set("attention.sliding_window_pattern", GgufValue::Flags(pattern));
    }
    Ok(())
}

fn tokenizer(checkpoint: &Checkpoint, stack: &Stack, keys: &mut Keys) -> Result<()> {
    let json = checkpoint.tokenizer_json()?;
    let file: Value = serde_json::from_slice(&json).context("tokenizer.json")?;
    let wrong = |what: &str| format!("tokenizer.json: {what}");
    let model = &file["model"];
    if model["type"] != "BPE" || !splits_like_lfm2(&file["pre_tokenizer"]) {
        bail!(wrong(
            "it is no byte-level BPE that cuts text as LFM2's does; GGUF has no name for another here"
        ));
    }
    let vocab = model["vocab"].as_object().with_context(|| wrong("`model.vocab` is no object"))?;
    let none = Vec::new();
    let added = file["added_tokens"].as_array().unwrap_or(&none);
    // Types: 1 of text, 3 of control, 4 written as such by users, 5 unused.
    let mut tokens: Vec<String> = (0..stack.vocab_size).map(|id| format!("<|unused_{id}|>")).collect();
    let mut types = vec![5; stack.vocab_size];
    let named = vocab.iter().map(|(token, id)| (token.as_str(), id.as_u64(), 1));
    let extra = added.iter().map(|entry| {
        let special = entry["special"] == true;
        (entry["content"].as_str().unwrap_or_default(), entry["id"].as_u64(), if special { 3 } else { 4 })
    });
    for (token, id, kind) in named.chain(extra) {
        let id = id.map(|id| id as usize).filter(|id| *id < stack.vocab_size);
        let id = id.with_context(|| wrong(&format!("token `{token}` has no row of the embedding")))?;
        (tokens[id], types[id]) = (token.to_owned(), kind);
    }
    let merges = model["merges"].as_array().with_context(|| wrong("`model.merges` is no list"))?;
    let merge = |m: &Value| match m {
        Value::String(text) => Some(text.clone()),
        Value::Array(pair) => Some(format!("{} {}", pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
        _ => None,
    };
    let merges = merges.iter().map(merge).collect::<Option<Vec<_>>>();
    let merges = merges.with_context(|| wrong("`model.merges` holds what is no pair"))?;
    let id_of = |token: &str| tokens.iter().position(|t| t == token).map(|id| id as u32);
    let settings = checkpoint.tokenizer_config();
    let special = |key: &str| {
        let value = settings.and_then(|s| s.get(key))?;
        id_of(value.as_str().or_else(|| value["content"].as_str())?)
    };
    let mut ids = Vec::new();
    for (key, stored) in [("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding")] {
        ids.extend(special(key).map(|id| (stored, id)));
    }
    let adds_bos = settings.and_then(|s| s.get("add_bos_token")).and_then(Value::as_bool);
    let adds_bos = adds_bos.unwrap_or_else(|| !file["post_processor"].is_null());
    let mut set = |key: &str, value: GgufValue| keys.push((format!("tokenizer.{key}"), value));
    set("ggml.model", GgufValue::Text("gpt2".to_owned()));
    set("ggml.pre", GgufValue::Text("lfm2".to_owned()));
    set("ggml.tokens", GgufValue::Texts(tokens));
    set("ggml.token_type", GgufValue::Ints(types));
    set("ggml.merges", GgufValue::Texts(merges));
    for (name, id) in ids {
        set(&format!("ggml.{name}_token_id"), GgufValue::U32(id));
    }
    set("ggml.add_bos_token", GgufValue::Flag(adds_bos));
    if let Some(template) = checkpoint.chat_template() {
        set("chat_template", GgufValue::Text(template.to_owned()));
    }
    Ok(())
}

/// Whether text is cut as LFM2 cuts it, in one of the spellings there are.
fn splits_like_lfm2(pre: &Value) -> bool {
    const REST: &str =
        r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const CONTRACTIONS: [&str; 4] = [
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        "'(?i:[sdmt]|ll|ve|re)",
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
        "'(?i:[stmd]|re|ve|ll)",
    ];
    let parts = pre["pretokenizers"].as_array();
    let pattern = parts.and_then(|parts| parts.iter().find_map(|part| part["pattern"]["Regex"].as_str()));
    pattern.and_then(|p| p.strip_suffix(REST)).is_some_and(|start| CONTRACTIONS.contains(&start))
}
