use serde_json::{Map, Value};

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

    /// Takes over what a `generation_config.json` says; errors on a value of the wrong type or range.
    ///
    /// Keys that are missing or null change nothing; `do_sample: false` sets the temperature to 0.
    pub fn apply_generation_config(&mut self, config: &Map<String, Value>) -> Result<()> {
        let number = |field: &'static str| match config.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| Error::Sampling {
                field,
                value: value.to_string(),
                allowed: "a number",
            }),
        };
        let set = |field, target: &mut f32| -> Result<()> {
            if let Some(value) = number(field)? {
                *target = value as f32;
            }
            Ok(())
        };
        set("temperature", &mut self.temperature)?;
        set("top_p", &mut self.top_p)?;
        set("min_p", &mut self.min_p)?;
        set("repetition_penalty", &mut self.repetition_penalty)?;
        if let Some(k) = number("top_k")? {
            if k < 0.0 || k.fract() != 0.0 {
                return Err(Error::Sampling {
                    field: "top_k",
                    value: k.to_string(),
                    allowed: "whole, 0 or more",
                });
            }
            self.top_k = k as usize;
        }
        if config.get("do_sample") == Some(&Value::Bool(false)) {
            self.temperature = 0.0;
        }
        self.validate()
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

    #[test]
    fn generation_config_overrides() {
        let config = |json: &str| serde_json::from_str::<Map<String, Value>>(json).unwrap();
        let mut p = SamplingPreset::Lfm2.params();
        p.apply_generation_config(&config(r#"{"temperature": 0.7, "top_k": 20, "min_p": null}"#)).unwrap();
        assert_eq!((p.temperature, p.top_k, p.min_p), (0.7, 20, 0.15));
        p.apply_generation_config(&config(r#"{"do_sample": false}"#)).unwrap();
        assert_eq!(p.temperature, 0.0);
        for bad in [r#"{"top_k": -1}"#, r#"{"top_k": 1.5}"#, r#"{"top_p": "x"}"#, r#"{"temperature": 1e9}"#] {
            assert!(p.clone().apply_generation_config(&config(bad)).is_err(), "{bad}");
        }
    }
}
