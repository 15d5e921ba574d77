use std::path::PathBuf;

use anemone_cpu::{Arithmetic, Layout, Options};
use anemone_emulator::Profile;
use anemone_session::Speculation;
use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

use crate::engine::CoreMlArgs;

/// The context a command makes room for when `--ctx` is absent and the model allows it.
pub(crate) const DEFAULT_CONTEXT: usize = 4096;

/// Help of `--model` where it names a decision model.
pub(crate) const DECISION_MODEL_HELP: &str =
    "Decision model: a directory or a hub id `org/name[@revision]` [default: the built-in model laya-demo]";

/// Which model.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Model directory, its config.json, a safetensors or GGUF file, or a hub id `org/name[@revision]`
    /// [default: the built-in model stories-lfm2]
    #[arg(long, short = 'm', value_name = "PATH|ID")]
    pub(crate) model: Option<PathBuf>,
    /// Use only models that are on this machine (as `HF_HUB_OFFLINE=1` does)
    #[arg(long)]
    pub(crate) offline: bool,
    /// Branch, tag or commit of a hub id that names none [default: main]
    #[arg(long, value_name = "REV")]
    pub(crate) revision: Option<String>,
}

/// Where a hub id is looked for.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct HubArgs {
    /// Use only models that are on this machine (as `HF_HUB_OFFLINE=1` does)
    #[arg(long)]
    pub(crate) offline: bool,
    /// Branch, tag or commit of a hub id that names none [default: main]
    #[arg(long, value_name = "REV")]
    pub(crate) revision: Option<String>,
}

impl HubArgs {
    /// The same without a model.
    pub(crate) fn to_model(&self) -> ModelArgs {
        ModelArgs { model: None, offline: self.offline, revision: self.revision.clone() }
    }
}

/// A converted model.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct BundleArg {
    /// Bundle, as `convert` writes it; the same as --model DIR
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    pub(crate) bundle: Option<PathBuf>,
}

/// A profile by name or path, effects switched; the message of what is wrong with it otherwise.
pub(crate) fn profile(spec: &str) -> Result<Profile, String> {
    spec.parse().map_err(|error: anemone_emulator::Error| {
        let text = error.to_string();
        text.strip_prefix("profile ").map_or(text.clone(), str::to_owned)
    })
}

/// How the model is run.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Threads, 1 to 512 [default: all the system offers]
    #[arg(long, short = 't', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=512), allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,
    /// Most tokens held, prompt and answer together [default: the model's limit, but at most 4096; a bundle's own on the
    /// emulator]
    #[arg(long, short = 'c', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..), allow_negative_numbers = true)]
    pub(crate) ctx: Option<usize>,
    /// Compute in f32 throughout: slower, and the same on every machine up to rounding
    #[arg(long)]
    pub(crate) exact: bool,
    /// Where weights are read from
    #[arg(long, value_name = "LAYOUT", default_value = "auto")]
    pub(crate) layout: LayoutName,
    /// What runs the model
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub(crate) engine: EngineName,
    /// Arithmetic of the emulator: f32, fp16, m1, m4 or a profile's file; `,-EFFECT` and `,+EFFECT` behind it switch what
    /// it has, as in m4,-product-drop or m4,-all,+overflow [default: fp16]
    #[arg(long, value_name = "PROFILE", value_parser = profile)]
    pub(crate) profile: Option<Profile>,
    /// Tokens of a prompt computed in one pass by the native engine [default: 512]
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = RangedU64ValueParser::<usize>::new().range(1..=8192))]
    pub(crate) chunk: Option<usize>,
    #[command(flatten)]
    pub(crate) coreml: CoreMlArgs,
}

/// What of the engines there are is to run a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// The native one.
    Cpu,
    /// The native one, and Core ML for bundles once it has loaded them.
    Swap,
    /// Core ML.
    CoreMl,
    /// The emulator.
    Emulator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutName {
    /// The mapped files first; a long run moves to large pages
    Auto,
    /// The mapped files
    Mapped,
    /// A private copy in large pages, made at load
    Packed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// The native engine; for a bundle on a Mac, Core ML as soon as it has loaded it, where one sequence is run
    Auto,
    /// The native engine
    Cpu,
    /// Core ML, on a Mac and for bundles
    Coreml,
    /// An interpreter of a bundle's packages, in the arithmetic of --profile
    Emulator,
}

impl EngineArgs {
    /// The native engine's options for a context of `context_len`.
    pub(crate) fn options(&self, context_len: usize) -> Options {
        Options {
            threads: self.threads(),
            arithmetic: self.arithmetic(),
            layout: self.layout(),
            context_len: Some(context_len),
            chunk: self.chunk.unwrap_or(Options::default().chunk),
            ..Options::default()
        }
    }

    /// What runs the model; errors for options of another engine.
    pub(crate) fn chosen(&self) -> Result<Chosen> {
        if self.engine != EngineName::Emulator && !self.coreml.is_simulated() && self.profile.is_some() {
            bail!("--profile is the emulator's arithmetic; add --engine emulator, or leave it out");
        }
        if matches!(self.engine, EngineName::Cpu | EngineName::Emulator)
            && let Some(flag) = self.coreml.given()
        {
            bail!("{flag} is of Core ML; use --engine coreml, or leave it out");
        }
        match self.engine {
            EngineName::Cpu => return Ok(Chosen::Cpu),
            EngineName::Auto if self.coreml.is_here() => {
                if self.coreml.demands() {
                    bail!(
                        "--require: --engine auto lets the CPU engine answer, too; use --engine coreml, or leave it out"
                    );
                }
                return Ok(Chosen::Swap);
            }
            EngineName::Auto => {
                if let Some(flag) = self.coreml.given() {
                    bail!("{flag}: Core ML is on Macs only; leave it out");
                }
                return Ok(Chosen::Cpu);
            }
            EngineName::Coreml | EngineName::Emulator => {}
        }
        if let Some(profile) = self.profile.as_ref().filter(|p| self.exact && p.name() != "f32") {
            bail!("--exact asks for f32 and --profile for {profile}; leave one out");
        }
        if self.layout == LayoutName::Packed {
            bail!("--layout packed is of the native engine; leave it out, or use --engine cpu");
        }
        if self.chunk.is_some() {
            bail!("--chunk is of the native engine; the bundle's functions set the passes, so leave it out");
        }
        Ok(if self.engine == EngineName::Coreml { Chosen::CoreMl } else { Chosen::Emulator })
    }

    /// Whether the emulator runs the model.
    pub(crate) fn emulated(&self) -> Result<bool> {
        Ok(self.chosen()? == Chosen::Emulator)
    }

    /// The emulator's arithmetic.
    pub(crate) fn profile(&self) -> Profile {
        let default = || if self.exact { Profile::f32() } else { Profile::fp16() };
        self.profile.clone().unwrap_or_else(default)
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(crate::machine::threads)
    }

    pub(crate) fn arithmetic(&self) -> Arithmetic {
        if self.exact { Arithmetic::Exact } else { Arithmetic::Fast }
    }

    pub(crate) fn layout(&self) -> Layout {
        match self.layout {
            LayoutName::Auto => Layout::Auto,
            LayoutName::Mapped => Layout::Mapped,
            LayoutName::Packed => Layout::Packed,
        }
    }

    /// The context: `--ctx`, else enough for `needed` and at least the default, within the model's limit.
    pub(crate) fn context_len(&self, model_max: usize, needed: usize) -> usize {
        self.ctx.unwrap_or_else(|| model_max.min(DEFAULT_CONTEXT.max(needed)))
    }
}

/// How tokens are drawn and when to stop.
#[derive(Debug, Clone, clap::Args)]
#[command(
    next_help_heading = "Sampling (defaults: the model's generation_config.json, else those its makers recommend)"
)]
pub(crate) struct SamplingArgs {
    /// Divides the logits; 0 takes the most likely token
    #[arg(long, value_name = "T", value_parser = within(0.0, 100.0), allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub(crate) top_k: Option<usize>,
    /// Keep the most likely tokens up to this probability
    #[arg(long, value_name = "P", value_parser = within(0.0, 1.0), allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens below this share of the best one's probability
    #[arg(long, value_name = "P", value_parser = within(0.0, 1.0), allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Make tokens seen less likely; 1 is off
    #[arg(long, value_name = "X", value_parser = within(0.001, 100.0), allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Taken off a token's logit each time it was generated
    #[arg(long, value_name = "X", value_parser = within(-2.0, 2.0), allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Taken off a token's logit if it was generated
    #[arg(long, value_name = "X", value_parser = within(-2.0, 2.0), allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Makes the draws repeatable [default: random, shown in the statistics]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Always take the most likely token, with no penalty that is not given here
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub(crate) greedy: bool,
    /// Most tokens to generate [default: the model's own, else 512]
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true)]
    pub(crate) max_new_tokens: Option<usize>,
    /// End before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after end-of-text tokens, for measurements
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Do not draw an end-of-text token before N tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) min_new_tokens: usize,
    /// Add X to a token's logit, as ID:X; may be repeated
    #[arg(long, value_name = "ID:X", value_parser = bias, allow_negative_numbers = true)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
}

/// How the next tokens are guessed.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Speculation (faster where text repeats; the tokens stay the same)")]
pub(crate) struct SpeculationArgs {
    /// Guess what followed the longest end of the text that occurred before, and verify as many guesses at once as pay
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Spec::Off)]
    pub(crate) spec: Spec,
    /// Guess what followed the latest occurrence of the last --spec-n tokens, as llama.cpp's ngram-simple does
    #[arg(long, conflicts_with = "spec")]
    pub(crate) spec_ngram: bool,
    /// Tokens to find again, with --spec-ngram [default: 12]
    #[arg(long, value_name = "N")]
    pub(crate) spec_n: Option<usize>,
    /// Most tokens to guess [default: 16, 32 with --spec auto]
    #[arg(long, value_name = "M")]
    pub(crate) spec_m: Option<usize>,
}

/// What `--spec` chooses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Spec {
    /// Token by token
    Off,
    /// From the text so far
    Auto,
}

impl SpeculationArgs {
    pub(crate) fn speculation(&self) -> Result<Speculation> {
        if self.spec_n.is_some() && !self.spec_ngram {
            bail!("--spec-n: no tokens are found again; give --spec-ngram with it, or leave it out");
        }
        let speculation = if self.spec_ngram {
            Speculation::Ngram { n: self.spec_n.unwrap_or(12), m: self.spec_m.unwrap_or(16) }
        } else if self.spec == Spec::Auto {
            Speculation::Auto { most: self.spec_m.unwrap_or(32) }
        } else if self.spec_m.is_some() {
            bail!("--spec-m: nothing is guessed; give --spec auto or --spec-ngram with it");
        } else {
            Speculation::Off
        };
        speculation.validate().map_err(|error| {
            anyhow!("--{}", error.to_string().replacen("spec_m", "spec-m", 1).replace("spec_n", "spec-n"))
        })?;
        Ok(speculation)
    }
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || "write it as ID:X, e.g. 42:-100, with X from -100 to 100".to_owned();
    let (id, value) = text.split_once(':').ok_or_else(wrong)?;
    let value: f32 = value.parse().map_err(|_| wrong())?;
    if !(-100.0..=100.0).contains(&value) {
        return Err(wrong());
    }
    Ok((id.parse().map_err(|_| wrong())?, value))
}

/// A parser of numbers from `low` to `high`.
fn within(low: f32, high: f32) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse::<f32>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("give a number from {low} to {high}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_the_range_are_refused() {
        let parse = within(0.0, 1.0);
        assert_eq!(parse("0.5"), Ok(0.5));
        for bad in ["-0.1", "1.01", "NaN", "inf", "", "x"] {
            assert_eq!(parse(bad), Err("give a number from 0 to 1".into()), "{bad}");
        }
    }
}
