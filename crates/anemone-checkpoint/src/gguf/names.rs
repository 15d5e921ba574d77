//! Names of tensors: those of the file, and those the same tensors have in a Hugging Face snapshot.

use std::collections::BTreeMap;

use super::file::GgufFile;
use crate::Error;

/// The architectures that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Lfm2,
    Lfm2Moe,
    Lfm3,
}

impl Architecture {
    pub(super) fn of(file: &GgufFile) -> Result<Self, Error> {
        const KEY: &str = "general.architecture";
        let metadata = file.metadata();
        match metadata.text(KEY)? {
            Some("lfm2") => Ok(Self::Lfm2),
            Some("lfm2moe") => Ok(Self::Lfm2Moe),
            Some("lfm3") => Ok(Self::Lfm3),
            Some(other) => {
                Err(metadata.wrong(KEY, format!("is `{other}`; supported are lfm2, lfm2moe and lfm3")))
            }
            None => Err(metadata.wrong(KEY, "is missing; convert the model to GGUF again")),
        }
    }

    /// What its keys begin with.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Lfm2 => "lfm2",
            Self::Lfm2Moe => "lfm2moe",
            Self::Lfm3 => "lfm3",
        }
    }
}

/// What a tensor of a snapshot is in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// Name in the file.
    pub(super) tensor: String,
    /// Entry of the outermost axis, for an expert of a tensor that holds all.
    pub(super) expert: Option<usize>,
    /// Shape in a snapshot, outermost first.
    pub(super) shape: Vec<usize>,
}

/// A snapshot's tensors by name.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) architecture: Architecture,
    pub(super) sources: BTreeMap<String, Source>,
}

/// Most experts of a layer.
const MOST_EXPERTS: usize = 1024;
/// Most weights of a model, experts counted one by one.
const MOST_WEIGHTS: usize = 1 << 18;

/// Finds for every tensor of the file its name in a snapshot. A name that no rule knows is kept, for the model to refuse.
pub(super) fn map(file: &GgufFile) -> Result<Names, Error> {
    let architecture = Architecture::of(file)?;
    let mut sources = BTreeMap::new();
    for tensor in file.tensors() {
        let (name, shape) = (tensor.name.as_str(), tensor.shape.clone());
        let whole = |shape| Source { tensor: name.to_owned(), expert: None, shape };
        // Read with the configuration, not as a weight.
        if name == "rope_freqs.weight" {
            continue;
        }
        let Some((layer, rest)) = layer(name) else {
            let full = match name {
                "token_embd.weight" => "model.embed_tokens.weight",
                // Older files name the last norm as the snapshot's misleading name suggests.
                "output_norm.weight" | "token_embd_norm.weight" => "model.embedding_norm.weight",
                "output.weight" => "lm_head.weight",
                other => other,
            };
            if sources.insert(full.to_owned(), whole(shape)).is_some() {
                return Err(Error::GgufTensor {
                    file: file.label().to_owned(),
                    tensor: name.to_owned(),
                    problem: "stands for a weight that another tensor stands for, too; convert the model to GGUF again"
                        .to_owned(),
                });
            }
            continue;
        };
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        if let Some(expert) = expert_part(rest) {
            let (&[count, rows, cols], true) =
                (&shape[..], shape.first().is_some_and(|n| *n <= MOST_EXPERTS))
            else {
                return Err(Error::GgufTensor {
                    file: file.label().to_owned(),
                    tensor: name.to_owned(),
                    problem: format!(
                        "has shape {shape:?}, expected [experts (at most {MOST_EXPERTS}), rows, columns]"
                    ),
                });
            };
            if sources.len() + count > MOST_WEIGHTS {
                return Err(Error::GgufTensor {
                    file: file.label().to_owned(),
                    tensor: name.to_owned(),
                    problem: format!(
                        "makes more than {MOST_WEIGHTS} weights, which no model has; download the file again"
                    ),
                });
            }
            for e in 0..count {
                let source = Source { tensor: name.to_owned(), expert: Some(e), shape: vec![rows, cols] };
                sources.insert(at(&format!("feed_forward.experts.{e}.{expert}.weight")), source);
            }
            continue;
        }
        let Some(part) = part(architecture, rest) else {
            sources.insert(name.to_owned(), whole(shape));
            continue;
        };
        // Filters are stored without the axis of their one input.
        let shape = match (&shape[..], rest) {
            (&[hidden, taps], "shortconv.conv.weight") => vec![hidden, 1, taps],
            _ => shape,
        };
        sources.insert(at(part), whole(shape));
    }
    Ok(Names { architecture, sources })
}

/// `blk.7.ffn_norm.weight` to layer 7 and the rest.
fn layer(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

fn expert_part(rest: &str) -> Option<&'static str> {
    match rest {
        "ffn_gate_exps.weight" => Some("w1"),
        "ffn_up_exps.weight" => Some("w3"),
        "ffn_down_exps.weight" => Some("w2"),
        _ => None,
    }
}

fn part(architecture: Architecture, rest: &str) -> Option<&'static str> {
    let lfm3 = architecture == Architecture::Lfm3;
    let of = |lfm2, new| Some(if lfm3 { new } else { lfm2 });
    match rest {
        "attn_norm.weight" => Some("operator_norm.weight"),
        "ffn_norm.weight" => Some("ffn_norm.weight"),
        "ffn_gate.weight" => Some("feed_forward.w1.weight"),
        "ffn_up.weight" => Some("feed_forward.w3.weight"),
        "ffn_down.weight" => Some("feed_forward.w2.weight"),
        "ffn_gate_inp.weight" => Some("feed_forward.gate.weight"),
        "exp_probs_b.bias" => Some("feed_forward.expert_bias"),
        "shortconv.in_proj.weight" => Some("conv.in_proj.weight"),
        "shortconv.in_proj.bias" => Some("conv.in_proj.bias"),
        "shortconv.conv.weight" => Some("conv.conv.weight"),
        "shortconv.conv.bias" => Some("conv.conv.bias"),
        "shortconv.out_proj.weight" => Some("conv.out_proj.weight"),
        "shortconv.out_proj.bias" => Some("conv.out_proj.bias"),
        "attn_q.weight" => Some("self_attn.q_proj.weight"),
        "attn_k.weight" => Some("self_attn.k_proj.weight"),
        "attn_v.weight" => Some("self_attn.v_proj.weight"),
        "attn_q.bias" => Some("self_attn.q_proj.bias"),
        "attn_k.bias" => Some("self_attn.k_proj.bias"),
        "attn_v.bias" => Some("self_attn.v_proj.bias"),
        "attn_output.weight" => of("self_attn.out_proj.weight", "self_attn.o_proj.weight"),
        "attn_output.bias" => of("self_attn.out_proj.bias", "self_attn.o_proj.bias"),
        "attn_q_norm.weight" => of("self_attn.q_layernorm.weight", "self_attn.q_norm.weight"),
        "attn_k_norm.weight" => of("self_attn.k_layernorm.weight", "self_attn.k_norm.weight"),
        "attn_gate.weight" if lfm3 => Some("self_attn.gate_proj.weight"),
        "attn_post_norm.weight" | "post_attention_norm.weight" if lfm3 => Some("post_operator_norm.weight"),
        "ffn_post_norm.weight" | "post_ffw_norm.weight" if lfm3 => Some("post_ffn_norm.weight"),
        _ => None,
    }
}
