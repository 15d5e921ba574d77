use crate::{Error, Result};

/// How tokens are drawn. The default draws from the model's own distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the most likely token (the lowest id of a tie); allowed 0 to 100.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most likely tokens up to this probability; 1 keeps all; allowed 0 to 1.
    pub top_p: f32,
    /// Drops tokens below this fraction of the largest probability; allowed 0 to 1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen; 1 is off; allowed above 0, to 100.
    pub repetition_penalty: f32,
    /// Taken off a logit for every time the token was generated; allowed -2 to 2.
    pub frequency_penalty: f32,
    /// Taken off a logit if the token was generated; allowed -2 to 2.
    pub presence_penalty: f32,
    /// Makes the draws repeatable.
    pub seed: Option<u64>,
    /// Added to the logits of tokens; `-inf` forbids one.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: None,
            logit_bias: Vec::new(),
        }
    }
}

/// Parameters recommended for a family of models, which their generation configs do not carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SamplingPreset {
    /// LFM2 of any size: temperature 0.3, `min_p` 0.15, repetition penalty 1.05.
    Lfm2,
    /// LFM2.5 Instruct: temperature 0.1, `top_k` 50, repetition penalty 1.05.
    Lfm25Instruct,
    /// LFM2.5 Thinking: temperature 0.05, `top_k` 50, `top_p` 0.1, repetition penalty 1.05.
    Lfm25Thinking,
    /// LFM3: temperature 0.1, `top_k` 50, repetition penalty 1.1.
    Lfm3,
}

impl SamplingPreset {
    /// The preset of a `model_type`; `name` (a hub id or folder) tells apart those that share one.
    pub fn for_model(model_type: &str, name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        match model_type {
            "lfm3" => Some(Self::Lfm3),
            "lfm2" | "lfm2_moe" if name.contains("lfm2.5") && name.contains("thinking") => {
                Some(Self::Lfm25Thinking)
            }
            "lfm2" | "lfm2_moe" if name.contains("lfm2.5") => Some(Self::Lfm25Instruct),
            "lfm2" | "lfm2_moe" => Some(Self::Lfm2),
            _ => None,
        }
    }

    /// The parameters.
    pub fn params(self) -> SamplingParams {
        let base = SamplingParams { repetition_penalty: 1.05, ..SamplingParams::default() };
        match self {
            Self::Lfm2 => SamplingParams { temperature: 0.3, min_p: 0.15, ..base },
            Self::Lfm25Instruct => SamplingParams { temperature: 0.1, top_k: 50, ..base },
            Self::Lfm25Thinking => SamplingParams { temperature: 0.05, top_k: 50, top_p: 0.1, ..base },
            Self::Lfm3 => SamplingParams { temperature: 0.1, top_k: 50, repetition_penalty: 1.1, ..base },
        }
    }
}

impl SamplingParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks every field against its range.
    pub fn validate(&self) -> Result<()> {
        let fields = [
            ("temperature", self.temperature, (0.0..=100.0).contains(&self.temperature), "0 to 100"),
            ("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p), "0 to 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty <= 100.0,
                "above 0, to 100",
            ),
            ("frequency_penalty", self.frequency_penalty, self.frequency_penalty.abs() <= 2.0, "-2 to 2"),
            ("presence_penalty", self.presence_penalty, self.presence_penalty.abs() <= 2.0, "-2 to 2"),
        ];
        for (field, value, good, allowed) in fields {
            if !good {
                return Err(Error::Sampling { field, value: value.to_string(), allowed });
            }
        }
        for &(id, bias) in &self.logit_bias {
            if bias.is_nan() || bias > 1e4 {
                let value = format!("{bias} for token {id}");
                return Err(Error::Sampling { field: "logit_bias", value, allowed: "-inf to 10000" });
            }
        }
        Ok(())
    }

    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validate_names_the_field() {
        let good = SamplingParams::default();
        assert!(good.validate().is_ok());
        let cases: [(&str, SamplingParams); 8] = [
            ("temperature", SamplingParams { temperature: -0.1, ..good.clone() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..good.clone() }),
            ("top_p", SamplingParams { top_p: 1.1, ..good.clone() }),
            ("min_p", SamplingParams { min_p: -1.0, ..good.clone() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..good.clone() }),
            ("frequency_penalty", SamplingParams { frequency_penalty: 3.0, ..good.clone() }),
            ("presence_penalty", SamplingParams { presence_penalty: f32::INFINITY, ..good.clone() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(3, f32::NAN)], ..good }),
        ];
        for (field, params) in cases {
            let e = params.validate().unwrap_err().to_string();
            assert!(e.starts_with(&format!("{field} is ")) && e.contains("allowed is"), "{e}");
        }
    }

    #[test]
    fn presets_by_model() {
        let of = SamplingPreset::for_model;
        assert_eq!(of("lfm2", "LFM2-350M"), Some(SamplingPreset::Lfm2));
        assert_eq!(of("lfm2", "org/LFM2.5-1.2B-Thinking"), Some(SamplingPreset::Lfm25Thinking));
        assert_eq!(of("lfm2_moe", "LFM2.5-8B-A1B"), Some(SamplingPreset::Lfm25Instruct));
        assert_eq!(of("lfm3", "x"), Some(SamplingPreset::Lfm3));
        assert_eq!(of("llama", "x"), None);
        for preset in [
            SamplingPreset::Lfm2,
            SamplingPreset::Lfm25Instruct,
            SamplingPreset::Lfm25Thinking,
            SamplingPreset::Lfm3,
        ] {
            assert!(preset.params().validate().is_ok());
        }
    }
}
