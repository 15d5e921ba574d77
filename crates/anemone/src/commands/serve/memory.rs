//! Which models are in memory, and when they go.

use std::time::Duration;

use anemone_server::{LanguageSource, Memory};
use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;

use crate::{machine, prefix};

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemoryArgs {
    /// Load models when they are first asked for, and not before the server listens
    #[arg(long)]
    pub(super) on_demand: bool,
    /// Most memory the weights of loaded models may take together, as in 500M or 4G; where another model is needed, those used longest
    /// ago are unloaded [default: all models stay]
    #[arg(long, value_name = "SIZE", value_parser = prefix::size)]
    max_memory: Option<u64>,
    /// Unload models that nobody used for so many seconds; they are loaded again when they are asked for [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = RangedU64ValueParser::<u64>::new().range(1..=31_536_000))]
    idle_unload: Option<u64>,
}

impl MemoryArgs {
    pub(super) fn idle_unload(&self) -> Option<Duration> {
        self.idle_unload.map(Duration::from_secs)
    }

    /// The budget, where there is one, with what decision models take.
    pub(super) fn memory(&self, decisions: Vec<(String, u64)>) -> Option<Memory> {
        self.max_memory.map(|budget| Memory { budget, decisions })
    }

    /// Errors when a model alone is larger than all may be.
    pub(super) fn fits(&self, decisions: &[(String, u64)], languages: &[LanguageSource]) -> Result<()> {
        let Some(budget) = self.max_memory else { return Ok(()) };
        let decisions = decisions.iter().map(|(name, bytes)| (name.as_str(), *bytes));
        let languages = languages.iter().map(|language| (language.name(), language.bytes()));
        for (name, bytes) in decisions.chain(languages) {
            ensure!(
                bytes <= budget,
                "--max-memory {}: the model '{name}' alone takes {}; raise it, or leave the model out",
                machine::bytes(budget),
                machine::bytes(bytes)
            );
        }
        Ok(())
    }
}
