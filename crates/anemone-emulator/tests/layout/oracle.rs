//! A decision model in f64, token by token, from its description alone: rows of vectors, no layout, no padding, no masks.

use std::collections::HashMap;

use serde_json::{Value, json};

/// How scores become weights of values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Attention {
    /// All scores, their softmax, then the sum.
    Explicit,
    /// Key by key, with a running maximum and sum.
    Fused,
}

/// What a checkpoint's configuration says.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) width: usize,
    /// Whether each layer sees all tokens.
    pub(crate) full: Vec<bool>,
    pub(crate) thetas: [f64; 2],
    pub(crate) local_attention: usize,
    pub(crate) eps: f64,
    /// Biases of norms, of attention, of the MLP.
    pub(crate) biases: [bool; 3],
    pub(crate) head_layers: usize,
}

pub(crate) const HEAD_EPS: f64 = 1e-5;

impl Spec {
    /// `rl_agent_config.json` and `encoder/config.json`.
    pub(crate) fn configs(&self) -> [Value; 2] {
        let kinds: Vec<&str> =
            self.full.iter().map(|full| if *full { "full_attention" } else { "sliding_attention" }).collect();
        let theta = |i: usize| json!({"rope_type": "default", "rope_theta": self.thetas[i]});
        [
            json!({"encoder": "made up", "head_layers": self.head_layers, "act_costs": {"escalate": 0.5}}),
            json!({"hidden_size": self.hidden, "intermediate_size": self.width, "vocab_size": 50,
                "num_hidden_layers": self.full.len(), "num_attention_heads": self.heads, "layer_types": kinds,
                "rope_parameters": {"full_attention": theta(0), "sliding_attention": theta(1)},
                "local_attention": self.local_attention, "norm_eps": self.eps, "max_position_embeddings": 512,
                "norm_bias": self.biases[0], "attention_bias": self.biases[1], "mlp_bias": self.biases[2]}),
        ]
    }
}

/// The weights, by their names in a checkpoint.
pub(crate) type Weights = HashMap<String, Vec<f64>>;

type Rows = Vec<Vec<f64>>;

pub(crate) struct Oracle<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) weights: &'a Weights,
    pub(crate) attention: Attention,
}

impl Oracle<'_> {
    /// Logits at the markers, and the first token after the head.
    pub(crate) fn run(&self, tokens: &Rows, kind: usize, markers: &[usize]) -> (Vec<f64>, Vec<f64>) {
        let (spec, d) = (self.spec, self.spec.hidden);
        let mut x = self.norm(tokens, "encoder.embeddings.norm", spec.eps);
        for i in 0..spec.full.len() {
            x = self.layer(&x, i);
        }
        x = self.norm(&x, "encoder.final_norm", spec.eps);
        let types = &self.weights["type_emb.weight"][kind * d..(kind + 1) * d];
        for row in &mut x {
            row.iter_mut().zip(types).for_each(|(v, t)| *v += t);
        }
        for j in 0..spec.head_layers {
            let at = |name: &str| format!("head.layers.{j}.{name}");
            let y = self.norm(&x, &at("norm1"), HEAD_EPS);
            let qkv = self.linear(&y, &at("self_attn.in_proj_weight"), &at("self_attn.in_proj_bias"));
            let mixed = self.attend(&qkv, (d / 64).max(1), None, usize::MAX);
            add(
                &mut x,
                &self.linear(&mixed, &at("self_attn.out_proj.weight"), &at("self_attn.out_proj.bias")),
            );
            let z = self.norm(&x, &at("norm2"), HEAD_EPS);
            let mut up = self.linear(&z, &at("linear1.weight"), &at("linear1.bias"));
            up.iter_mut().flatten().for_each(|v| *v = v.max(0.0));
            add(&mut x, &self.linear(&up, &at("linear2.weight"), &at("linear2.bias")));
        }
        let marked: Rows = markers.iter().map(|at| x[*at].clone()).collect();
        let marked = self.norm(&marked, "scorer.0", HEAD_EPS);
        let mut dense = self.linear(&marked, "scorer.1.weight", "scorer.1.bias");
        dense.iter_mut().flatten().for_each(|v| *v = gelu(*v));
        let logits = self.linear(&dense, "scorer.3.weight", "scorer.3.bias");
        (logits.into_iter().map(|row| row[0]).collect(), x.swap_remove(0))
    }

    /// An encoder layer.
    pub(crate) fn layer(&self, x: &Rows, i: usize) -> Rows {
        let (spec, at) = (self.spec, |name: &str| format!("encoder.layers.{i}.{name}"));
        let y = if i == 0 { x.clone() } else { self.norm(x, &at("attn_norm"), spec.eps) };
        let (theta, radius) = if spec.full[i] {
            (spec.thetas[0], usize::MAX)
        } else {
            (spec.thetas[1], spec.local_attention / 2)
        };
        let qkv = self.linear(&y, &at("attn.Wqkv.weight"), &at("attn.Wqkv.bias"));
        let mixed = self.attend(&qkv, spec.heads, Some(theta), radius);
        let mut x = x.clone();
        add(&mut x, &self.linear(&mixed, &at("attn.Wo.weight"), &at("attn.Wo.bias")));
        self.mlp(&x, i)
    }

    /// The part of an encoder layer that looks at one token.
    pub(crate) fn mlp(&self, x: &Rows, i: usize) -> Rows {
        let (spec, at) = (self.spec, |name: &str| format!("encoder.layers.{i}.{name}"));
        let z = self.norm(x, &at("mlp_norm"), spec.eps);
        let both = self.linear(&z, &at("mlp.Wi.weight"), &at("mlp.Wi.bias"));
        let gated: Rows = (both.iter())
            .map(|row| (0..spec.width).map(|c| gelu(row[c]) * row[spec.width + c]).collect())
            .collect();
        let mut x = x.clone();
        add(&mut x, &self.linear(&gated, &at("mlp.Wo.weight"), &at("mlp.Wo.bias")));
        x
    }

    fn norm(&self, x: &Rows, name: &str, eps: f64) -> Rows {
        let weight = &self.weights[&format!("{name}.weight")];
        let bias = self.weights.get(&format!("{name}.bias"));
        let one = |row: &Vec<f64>| {
            let n = row.len() as f64;
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (variance + eps).sqrt();
            let value = |c: usize| (row[c] - mean) * scale * weight[c] + bias.map_or(0.0, |b| b[c]);
            (0..row.len()).map(value).collect()
        };
        x.iter().map(one).collect()
    }

    fn linear(&self, x: &Rows, weight: &str, bias: &str) -> Rows {
        let (weight, bias) = (&self.weights[weight], self.weights.get(bias));
        let one = |row: &Vec<f64>| {
            let rows = weight.chunks(row.len()).enumerate();
            rows.map(|(o, w)| w.iter().zip(row).map(|(a, b)| a * b).sum::<f64>() + bias.map_or(0.0, |b| b[o]))
                .collect()
        };
        x.iter().map(one).collect()
    }

    /// Heads of the tokens' queries, keys and values, `[q | k | v]` in each row, joined again.
    fn attend(&self, qkv: &Rows, heads: usize, theta: Option<f64>, radius: usize) -> Rows {
        let (d, size) = (self.spec.hidden, self.spec.hidden / heads);
        let mut out = vec![vec![0.0; d]; qkv.len()];
        for h in 0..heads {
            let part = |p: usize, which: usize| {
                let own = &qkv[p][which * d + h * size..which * d + (h + 1) * size];
                if which < 2 { turned(own, p, theta) } else { own.to_vec() }
            };
            let parts: Vec<[Vec<f64>; 3]> =
                (0..qkv.len()).map(|p| [part(p, 0), part(p, 1), part(p, 2)]).collect();
            for i in 0..qkv.len() {
                let keys = (0..qkv.len()).filter(|j| i.abs_diff(*j) <= radius);
                let score = |j: usize| dot(&parts[i][0], &parts[j][1]) / (size as f64).sqrt();
                let scored = keys.map(|j| (score(j), parts[j][2].as_slice()));
                let mixed = match self.attention {
                    Attention::Explicit => explicit(&scored.collect::<Vec<_>>(), size),
                    Attention::Fused => fused(scored, size),
                };
                out[i][h * size..(h + 1) * size].copy_from_slice(&mixed);
            }
        }
        out
    }
}

fn explicit(scored: &[(f64, &[f64])], size: usize) -> Vec<f64> {
    let top = scored.iter().map(|(s, _)| *s).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scored.iter().map(|(s, _)| (s - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..size).map(|c| weights.iter().zip(scored).map(|(w, (_, v))| w / total * v[c]).sum()).collect()
}

fn fused<'a>(scored: impl Iterator<Item = (f64, &'a [f64])>, size: usize) -> Vec<f64> {
    let (mut top, mut total, mut sum) = (f64::NEG_INFINITY, 0.0, vec![0.0; size]);
    for (score, value) in scored {
        let higher = f64::max(top, score);
        let (kept, weight) = ((top - higher).exp(), (score - higher).exp());
        total = total * kept + weight;
        sum.iter_mut().zip(value).for_each(|(s, v)| *s = *s * kept + weight * v);
        top = higher;
    }
    sum.iter().map(|s| s / total).collect()
}

/// A head's vector turned by its position: channel m with channel m + size / 2.
fn turned(x: &[f64], position: usize, theta: Option<f64>) -> Vec<f64> {
    let Some(theta) = theta else { return x.to_vec() };
    let half = x.len() / 2;
    let mut y = x.to_vec();
    for m in 0..half {
        let angle = position as f64 * theta.powf(-2.0 * m as f64 / x.len() as f64);
        let (a, b) = (x[m], x[m + half]);
        (y[m], y[m + half]) = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin());
    }
    y
}

fn gelu(t: f64) -> f64 {
    t * (1.0 + libm::erf(t / std::f64::consts::SQRT_2)) / 2.0
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut Rows, y: &Rows) {
    x.iter_mut().zip(y).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(x, y)| *x += y));
}
