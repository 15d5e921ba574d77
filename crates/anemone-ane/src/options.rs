use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Error;

/// What a masked score is given; finite, so that no softmax column is ever empty of numbers, and exact in fp16.
pub const MASKED: f32 = -1e4;

/// One function of a bundle: how many tokens a pass takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// One token, with logits.
    Decode,
    /// A piece of a prompt.
    Prefill(usize),
    /// A pending token and its drafts, with logits after each.
    Verify(usize),
}

impl Pass {
    /// Tokens of the pass.
    pub fn tokens(self) -> usize {
        match self {
            Self::Decode => 1,
            Self::Prefill(n) | Self::Verify(n) => n,
        }
    }

    /// Name of its function.
    pub fn name(self) -> String {
        match self {
            Self::Decode => "decode".into(),
            Self::Prefill(n) => format!("prefill_{n}"),
            Self::Verify(n) => format!("verify_{n}"),
        }
    }
}

/// The form of `x · sigmoid(x)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Silu {
    /// `x / (1 + exp(−x))`.
    Exact,
    /// `x/2 · (1 + tanh(x/2))`.
    Tanh,
    /// Core ML's own operation.
    Fused,
}

/// How a bundle keeps keys and values between passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// The host holds them; they are inputs, and new rows are outputs.
    #[default]
    Io,
    /// Core ML states, written by the pass itself. Convolution windows stay inputs and outputs.
    State,
}

/// Forms chosen for the engine's fp16 arithmetic; recorded in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// Contractions of feed-forward parts longer than this are cut in equal parts and summed.
    pub split_wide: Option<usize>,
    /// The same for the output head.
    pub split_head: Option<usize>,
    /// Contractions longer than `.0` use weights times 2^`.1` and undo it on the result.
    pub scale_wide: Option<(usize, u32)>,
    /// Attention multiplies values by probabilities times 2^this and undoes it on the result: products of small probabilities
    /// would be dropped.
    #[serde(default)]
    pub scaled_pv: Option<u32>,
    /// Form of the feed-forward gate and of the attention gate's sigmoid.
    pub silu: Silu,
}

/// Powers of two chosen for a model from a text, in place of `scale_wide` and `scaled_pv`; recorded in the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scales {
    /// By the MIL name of a linear map, or of attention's product with the values: weights, or probabilities, are multiplied
    /// by 2^n and the result by 2^−n. Below 0 only where no bit of a weight is lost.
    pub log2: BTreeMap<String, i32>,
    /// SHA-256 of the text.
    pub calibration_sha256: String,
    /// Tokens of it that were run.
    pub calibration_tokens: usize,
    /// Profiles whose limits were kept.
    pub profiles: Vec<String>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            split_wide: Some(4096),
            split_head: Some(1024),
            scale_wide: Some((1024, 4)),
            scaled_pv: Some(6),
            silu: Silu::Exact,
        }
    }
}

impl Rules {
    /// Every rule switched off.
    pub fn none() -> Self {
        Self { split_wide: None, split_head: None, scale_wide: None, scaled_pv: None, silu: Silu::Fused }
    }
}

/// What to lower.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Most tokens a sequence may hold.
    pub ctx: usize,
    /// The functions of every chunk, in order, each once.
    pub passes: Vec<Pass>,
    /// Sliding layers keep a ring of their window instead of `ctx` rows.
    pub ring: bool,
    /// Where keys and values are kept.
    #[serde(default)]
    pub cache: CacheKind,
    /// Specification version of the packages; 9 is macOS 15.
    pub spec_version: i32,
    /// Arithmetic rules.
    pub rules: Rules,
    /// Scales chosen by calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<Scales>,
    /// Layers of a chunk; as many as the size limit allows when absent.
    pub layers_per_chunk: Option<usize>,
    /// Slices of the output head; by size when absent.
    pub head_slices: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ctx: 2048,
            passes: vec![Pass::Decode, Pass::Prefill(64)],
            ring: true,
            cache: CacheKind::Io,
            spec_version: 9,
            rules: Rules::default(),
            scales: None,
            layers_per_chunk: None,
            head_slices: None,
        }
    }
}

/// Most functions of a package, each of which whoever loads it keeps in memory.
const PASSES: usize = 32;

impl Options {
    pub(crate) fn check(&self, max_context: usize) -> Result<(), Error> {
        let bad = |option, problem: String| Err(Error::Option { option, problem });
        if self.ctx == 0 || self.ctx > max_context {
            return bad("--ctx", format!("is {}; it must be from 1 to the model's {max_context}", self.ctx));
        }
        if self.passes.is_empty() {
            return bad(
                "--prefill",
                "leaves no function to convert; drop --decode-only or --prefill-only".into(),
            );
        }
        if self.passes.len() > PASSES {
            let problem = format!(
                "and the other functions are {}; a bundle has at most {PASSES}: give fewer lengths",
                self.passes.len()
            );
            return bad("--prefill", problem);
        }
        let mut names: Vec<String> = self.passes.iter().map(|p| p.name()).collect();
        names.sort();
        if let Some([twice, _]) = names.windows(2).find(|w| w[0] == w[1]) {
            return bad("--prefill", format!("asks for `{twice}` twice"));
        }
        if let Some(pass) = self.passes.iter().find(|p| p.tokens() == 0 || p.tokens() > self.ctx) {
            let (tokens, ctx) = (pass.tokens(), self.ctx);
            return match pass {
                Pass::Verify(_) => bad(
                    "--spec-drafts",
                    format!(
                        "is {}; with the token before them drafts must fit --ctx {ctx}",
                        tokens.saturating_sub(1)
                    ),
                ),
                _ => bad(
                    "--prefill",
                    format!("asks for {tokens} tokens in a pass; it must be from 1 to --ctx {ctx}"),
                ),
            };
        }
        if self.spec_version < 9 && self.cache == CacheKind::State {
            return bad("--cache", "state needs --target macos15 or later; use io".into());
        }
        if self.spec_version < 9 && self.passes.len() > 1 {
            return bad(
                "--target",
                "before macOS 15 cannot hold several functions; convert one at a time".into(),
            );
        }
        Ok(())
    }
}
