//! Laya decision models: an encoder, a small transformer over it, and two readouts.

use anemone_checkpoint::Weights;
use serde_json::{Map, Value};

use crate::encoder::linear;
use crate::weights::unused;
use crate::{
    Config, Encoder, EncoderLayer, Error, LayerNorm, Linear, Mlp, MlpActivation, SelfAttention, WeightRef,
    modernbert,
};

/// Kinds of questions a model knows, each with its own vector.
pub const QUESTION_KINDS: usize = 3;
/// Channels of the action head's hidden layer.
const ACTION_WIDTH: usize = 256;
/// Numbers about the answer the action head sees beside the first token.
const ACTION_FEATURES: usize = 4;
/// Epsilon of the head and the scorer, whatever the encoder's.
const HEAD_EPS: f32 = 1e-5;

/// A decision model: one score for each option, and scores of the actions.
#[derive(Debug, Clone, PartialEq)]
pub struct Laya {
    /// Reads question, options and state.
    pub encoder: Encoder,
    /// `[QUESTION_KINDS, hidden]`, added to every token after the encoder.
    pub kind_embedding: WeightRef,
    /// Layers after the encoder; they see all tokens and do not rotate.
    pub head: Vec<EncoderLayer>,
    /// Reads an option's score at its marker.
    pub scorer: Scorer,
    /// Reads the actions at the first token.
    pub action: ActionHead,
    /// `[3]`; stored, and not used: the temperatures are in the configuration.
    pub temperature: WeightRef,
}

/// `out(gelu(dense(norm(x))))`.
#[derive(Debug, Clone, PartialEq)]
pub struct Scorer {
    /// Norm of the marker's token.
    pub norm: LayerNorm,
    /// `[hidden, hidden]`.
    pub dense: Linear,
    /// `[1, hidden]`.
    pub out: Linear,
}

/// `out(gelu(dense([x | features])))`.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionHead {
    /// `[256, hidden + 4]`.
    pub dense: Linear,
    /// `[actions, 256]`.
    pub out: Linear,
}

impl Laya {
    /// Describes a checkpoint by its `rl_agent_config.json` and `encoder/config.json`, and checks that its weights are all there,
    /// with the right shapes, and no others.
    pub fn load(
        agent: &Map<String, Value>,
        encoder: &Map<String, Value>,
        weights: &dyn Weights,
    ) -> Result<Self, Error> {
        let laya = Self::describe(agent, encoder)?;
        let extra = unused(&laya.weights(), weights)?;
        if extra.is_empty() { Ok(laya) } else { Err(Error::Extra(extra)) }
    }

    /// Describes a model by its configuration alone.
    pub fn describe(agent: &Map<String, Value>, encoder: &Map<String, Value>) -> Result<Self, Error> {
        let agent = &Config::of(agent, "rl_agent_config.json");
        let encoder = &Config::of(encoder, "encoder/config.json");
        if agent.text("encoder")?.is_none() {
            return Err(agent.error("encoder", "is missing; it names the encoder the model was made from"));
        }
        let layers = agent.require(&["head_layers"])?;
        let actions = 1 + agent.object("act_costs")?.map_or(0, |costs| costs.len());
        let encoder = modernbert::encoder(encoder, "encoder.")?;
        let hidden = encoder.hidden_size;
        let heads = (hidden / 64).max(1);
        if !hidden.is_multiple_of(heads) {
            let problem = format!(
                "asks for a head of {heads} attention heads, which do not divide hidden_size {hidden}"
            );
            return Err(agent.error("encoder", problem));
        }
        Ok(Self {
            kind_embedding: WeightRef::new("type_emb.weight", [QUESTION_KINDS, hidden]),
            head: (0..layers).map(|i| head_layer(i, hidden, heads)).collect(),
            scorer: Scorer {
                norm: norm("scorer.0", hidden),
                dense: dense("scorer.1", hidden, hidden),
                out: dense("scorer.3", 1, hidden),
            },
            action: ActionHead {
                dense: dense("act_head.0", ACTION_WIDTH, hidden + ACTION_FEATURES),
                out: dense("act_head.2", actions, ACTION_WIDTH),
            },
            temperature: WeightRef::new("temperature", [QUESTION_KINDS]),
            encoder,
        })
    }

    /// Every weight, in the order a forward pass reads them, and the one it does not.
    pub fn weights(&self) -> Vec<&WeightRef> {
        let mut all = self.encoder.weights();
        all.push(&self.kind_embedding);
        self.head.iter().for_each(|layer| layer.weights(&mut all));
        self.scorer.norm.weights(&mut all);
        for l in [&self.scorer.dense, &self.scorer.out, &self.action.dense, &self.action.out] {
            linear(l, &mut all);
        }
        all.push(&self.temperature);
        all
    }

    /// The weights that a converted model's host reads, each with a name for its file: those before and after the body, and
    /// the one that is not used.
    pub fn host_weights(&self) -> Vec<(&'static str, &WeightRef)> {
        let mut all = vec![
            ("embedding", &self.encoder.embedding),
            ("type_vectors", &self.kind_embedding),
            ("action_dense", &self.action.dense.weight),
            ("action_out", &self.action.out.weight),
            ("temperature", &self.temperature),
        ];
        let biases = [("action_dense_bias", &self.action.dense), ("action_out_bias", &self.action.out)];
        all.extend(biases.into_iter().filter_map(|(name, l)| l.bias.as_ref().map(|bias| (name, bias))));
        all
    }

    /// Actions the model weighs.
    pub fn actions(&self) -> usize {
        self.action.out.out_features()
    }

    /// Parameters of the model; the stored temperatures are none.
    pub fn parameters(&self) -> usize {
        let all: usize = self.weights().iter().map(|w| w.shape.numel()).sum();
        all - self.temperature.shape.numel()
    }
}

fn head_layer(i: usize, hidden: usize, heads: usize) -> EncoderLayer {
    let path = format!("head.layers.{i}");
    EncoderLayer {
        attention_norm: Some(norm(&format!("{path}.norm1"), hidden)),
        attention: SelfAttention {
            heads,
            head_dim: hidden / heads,
            qkv: Linear {
                weight: WeightRef::new(format!("{path}.self_attn.in_proj_weight"), [3 * hidden, hidden]),
                bias: Some(WeightRef::new(format!("{path}.self_attn.in_proj_bias"), [3 * hidden])),
            },
            out: dense(&format!("{path}.self_attn.out_proj"), hidden, hidden),
            rope: None,
            radius: None,
        },
        mlp_norm: norm(&format!("{path}.norm2"), hidden),
        mlp: Mlp {
            up: dense(&format!("{path}.linear1"), 4 * hidden, hidden),
            down: dense(&format!("{path}.linear2"), hidden, 4 * hidden),
            activation: MlpActivation::Relu,
        },
        path,
    }
}

fn norm(name: &str, width: usize) -> LayerNorm {
    LayerNorm {
        weight: WeightRef::new(format!("{name}.weight"), [width]),
        bias: Some(WeightRef::new(format!("{name}.bias"), [width])),
        eps: HEAD_EPS,
    }
}

fn dense(name: &str, out: usize, inner: usize) -> Linear {
    Linear {
        weight: WeightRef::new(format!("{name}.weight"), [out, inner]),
        bias: Some(WeightRef::new(format!("{name}.bias"), [out])),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_published_shapes_have_their_parameters() {
        let agent = json!({"encoder": "e", "head_layers": 2, "act_costs": {"escalate": 0.5}});
        let encoder = json!({"hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
            "num_attention_heads": 12, "vocab_size": 256_000});
        let laya = Laya::describe(agent.as_object().unwrap(), encoder.as_object().unwrap()).unwrap();
        // Both figures are those of the published multilingual checkpoint.
        assert_eq!(laya.weights().len(), 170);
        assert_eq!(laya.parameters(), 321_908_995);
        assert_eq!((laya.head[0].attention.heads, laya.actions()), (12, 2));
    }
}
