//! The tensors of a model in the order a pass reads them, by the names they have in GGUF.

use anemone_models::{Ffn, Gated, Linear, Mixer, Stack, WeightRef};

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A norm, filter, router or bias.
    Small,
    /// Rows that are looked up, or the head.
    Embedding,
    /// Any other matrix.
    Matrix,
}

/// A tensor to write.
pub(super) struct Stored<'a> {
    pub(super) name: String,
    pub(super) role: Role,
    /// Outermost first.
    pub(super) shape: Vec<usize>,
    /// What it is made of, one after the other: several for the experts of a layer.
    pub(super) weights: Vec<&'a WeightRef>,
}

struct List<'a>(Vec<Stored<'a>>);

impl<'a> List<'a> {
    fn one(&mut self, name: String, role: Role, weight: &'a WeightRef) {
        self.0.push(Stored { name, role, shape: weight.shape.to_vec(), weights: vec![weight] });
    }

    fn linear(&mut self, name: &str, role: Role, linear: &'a Linear) {
        self.one(format!("{name}.weight"), role, &linear.weight);
        if let Some(bias) = &linear.bias {
            self.one(format!("{name}.bias"), Role::Small, bias);
        }
    }
}

pub(super) fn list(stack: &Stack) -> Vec<Stored<'_>> {
    let mut list = List(Vec::new());
    list.one("token_embd.weight".to_owned(), Role::Embedding, &stack.embedding);
    for (i, block) in stack.blocks.iter().enumerate() {
        let at = |part: &str| format!("blk.{i}.{part}");
        let norms = [
            ("attn_norm", Some(&block.mixer_norm)),
            ("attn_post_norm", block.post_mixer_norm.as_ref()),
            ("ffn_norm", Some(&block.ffn_norm)),
            ("ffn_post_norm", block.post_ffn_norm.as_ref()),
        ];
        for (name, norm) in norms {
            if let Some(norm) = norm {
                list.one(at(&format!("{name}.weight")), Role::Small, &norm.weight);
            }
        }
        match &block.mixer {
            Mixer::Attention(a) => {
                for (name, linear) in
                    [("attn_q", &a.q), ("attn_k", &a.k), ("attn_v", &a.v), ("attn_output", &a.o)]
                {
                    list.linear(&at(name), Role::Matrix, linear);
                }
                if let Some(gate) = &a.gate {
                    list.linear(&at("attn_gate"), Role::Matrix, gate);
                }
                for (name, norm) in [("attn_q_norm", &a.q_norm), ("attn_k_norm", &a.k_norm)] {
                    if let Some(norm) = norm {
                        list.one(at(&format!("{name}.weight")), Role::Small, &norm.weight);
                    }
                }
            }
            Mixer::ShortConv(c) => {
                list.linear(&at("shortconv.in_proj"), Role::Matrix, &c.in_proj);
                list.one(at("shortconv.conv.weight"), Role::Small, &c.kernel);
                if let (Some(filter), hidden) = (list.0.last_mut(), c.kernel.shape[0]) {
                    filter.shape = vec![hidden, c.taps];
                }
                if let Some(bias) = &c.kernel_bias {
                    list.one(at("shortconv.conv.bias"), Role::Small, bias);
                }
                list.linear(&at("shortconv.out_proj"), Role::Matrix, &c.out_proj);
            }
        }
        match &block.ffn {
            Ffn::Gated(g) => {
                for (name, linear) in [("ffn_gate", &g.gate), ("ffn_up", &g.up), ("ffn_down", &g.down)] {
                    list.linear(&at(name), Role::Matrix, linear);
                }
            }
            Ffn::Moe(m) => {
                list.linear(&at("ffn_gate_inp"), Role::Small, &m.router);
                if let Some(bias) = &m.expert_bias {
                    list.one(at("exp_probs_b.bias"), Role::Small, bias);
                }
                let all = |part: for<'a> fn(&'a Gated) -> &'a Linear| -> Vec<&WeightRef> {
                    m.experts.iter().map(|g| &part(g).weight).collect()
                };
                for (name, weights) in [
                    ("ffn_gate_exps", all(|g| &g.gate)),
                    ("ffn_up_exps", all(|g| &g.up)),
                    ("ffn_down_exps", all(|g| &g.down)),
                ] {
                    let one = weights[0].shape.to_vec();
                    let shape = [&[weights.len()], &one[..]].concat();
                    list.0.push(Stored {
                        name: at(&format!("{name}.weight")),
                        role: Role::Matrix,
                        shape,
                        weights,
                    });
                }
            }
        }
    }
    // Readers of the older models look for their last norm under the name of an embedding's.
    let last = if stack.model_type == "lfm3" { "output_norm.weight" } else { "token_embd_norm.weight" };
    list.one(last.to_owned(), Role::Small, &stack.final_norm.weight);
    if !stack.is_tied() {
        list.one("output.weight".to_owned(), Role::Embedding, &stack.head);
    }
    list.0
}
