use anemone_models::{Ffn, Mixer, Stack};
use anemone_session::Tokenizer;
use serde_json::{Map, Value, json};

/// One object per layer.
pub(super) fn layers(stack: &Stack) -> Value {
    let layer = |(index, block): (usize, &anemone_models::Block)| {
        let mut layer = Map::new();
        layer.insert("index".into(), index.into());
        layer.insert("path".into(), block.path.as_str().into());
        match &block.mixer {
            Mixer::Attention(a) => {
                layer.insert("mixer".into(), "attention".into());
                layer.insert("heads".into(), a.heads.into());
                layer.insert("kv_heads".into(), a.kv_heads.into());
                layer.insert("head_dim".into(), a.head_dim.into());
                layer.insert("window".into(), json!(a.window));
                layer.insert("gated".into(), a.gate.is_some().into());
                layer.insert(
                    "rope".into(),
                    json!({"theta": a.rope.theta, "dim": a.rope.dim, "rotated_angles": a.rope.rotated.min(a.rope.dim / 2)}),
                );
            }
            Mixer::ShortConv(c) => {
                layer.insert("mixer".into(), "short_conv".into());
                layer.insert("taps".into(), c.taps.into());
            }
        }
        match &block.ffn {
            Ffn::Gated(g) => {
                layer.insert("ffn".into(), "gated".into());
                layer.insert("ffn_width".into(), g.gate.out_features().into());
            }
            Ffn::Moe(m) => {
                layer.insert("ffn".into(), "moe".into());
                layer.insert("experts".into(), m.experts.len().into());
                layer.insert("experts_per_token".into(), m.top_k.into());
                layer.insert(
                    "ffn_width".into(),
                    m.experts.first().map_or(0, |g| g.gate.out_features()).into(),
                );
            }
        }
        Value::Object(layer)
    };
    stack.blocks.iter().enumerate().map(layer).collect()
}

/// A layer for people.
pub(super) fn layer_line(layer: &Value) -> String {
    let mixer = if layer["mixer"] == "attention" {
        let window = layer["window"].as_u64().map_or("all".to_owned(), |w| format!("last {w}"));
        format!(
            "attention   {} heads / {} kv of {}, sees {window}, rope {} on {} of {} angles",
            layer["heads"],
            layer["kv_heads"],
            layer["head_dim"],
            layer["rope"]["theta"],
            layer["rope"]["rotated_angles"],
            layer["rope"]["dim"].as_u64().unwrap_or(0) / 2
        )
    } else {
        format!("short conv  {} taps", layer["taps"])
    };
    let ffn = if layer["ffn"] == "moe" {
        format!("{} of {} experts of {}", layer["experts_per_token"], layer["experts"], layer["ffn_width"])
    } else {
        format!("gated {}", layer["ffn_width"])
    };
    format!("{:>3}  {mixer}; ffn {ffn}", layer["index"].to_string())
}

/// What there is to say about a tokenizer.
pub(super) fn tokenizer(tokenizer: &Tokenizer) -> Value {
    let named = |token: Option<&anemone_session::SpecialToken>| {
        token.map_or(Value::Null, |t| json!({"text": t.text, "id": t.id}))
    };
    json!({
        "vocab_size": tokenizer.vocab_size(),
        "special_tokens": tokenizer.special_ids().len(),
        "bos": named(tokenizer.bos()),
        "eos": named(tokenizer.eos()),
        "pad": named(tokenizer.pad()),
    })
}

/// A tokenizer for people.
pub(super) fn tokenizer_line(tokenizer: &Value) -> String {
    if tokenizer.is_null() {
        return "none; only token ids can be given".to_owned();
    }
    let named = |key: &str| match tokenizer[key]["text"].as_str() {
        Some(text) => format!("{key} {text} ({})", tokenizer[key]["id"]),
        None => format!("no {key}"),
    };
    format!(
        "{} entries, {} special, {}, {}, {}",
        tokenizer["vocab_size"],
        tokenizer["special_tokens"],
        named("bos"),
        named("eos"),
        named("pad")
    )
}
