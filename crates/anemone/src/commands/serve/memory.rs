//! Which models are in memory, and when they go.

use std::time::Duration;

use anemone_server::Memory;
use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;

use crate::{machine, prefix};

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemoryArgs {
    /// Load models when they are first asked for, and not before the server listens
    #[arg(long)]
    pub(super) on_demand: bool,
    /// Most memory loaded models may take together, as in 500M or 4G: weights, and of language models the caches of --max-tokens tokens
    /// and --prefix-cache-memory; where another model is needed, those used longest ago are unloaded [default: all models stay]
    #[arg(long, value_name = "SIZE", value_parser = prefix::size, allow_negative_numbers = true)]
    max_memory: Option<u64>,
    /// Unload models that nobody used for so many seconds; they are loaded again when they are asked for [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = RangedU64ValueParser::<u64>::new().range(1..=31_536_000))]
    idle_unload: Option<u64>,
}

/// What a language model may come to take, in bytes.
#[derive(Debug, Clone)]
pub(super) struct Needs {
    pub(super) name: String,
    pub(super) weights: u64,
    /// Caches and histories of all sequences together, and their tokens.
    pub(super) caches: u64,
    pub(super) tokens: usize,
    /// Beginnings that are kept.
    pub(super) prefix: u64,
}

impl Needs {
    /// All together.
    pub(super) fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.caches).saturating_add(self.prefix)
    }
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
    pub(super) fn fits(&self, decisions: &[(String, u64)], languages: &[Needs]) -> Result<()> {
        let Some(budget) = self.max_memory else { return Ok(()) };
        for (name, bytes) in decisions {
            ensure!(
                *bytes <= budget,
                "--max-memory {}: the model '{name}' alone takes {}; raise it, or leave the model out",
                machine::bytes(budget),
                machine::bytes(*bytes)
            );
        }
        for needs in languages {
            ensure!(
                needs.bytes() <= budget,
                "--max-memory {}: the model '{}' alone may take {} (weights {}, caches of {} tokens {}, prefix cache {}); raise it, \
                 lower --max-tokens, --ctx or --prefix-cache-memory, or leave the model out",
                machine::bytes(budget),
                needs.name,
                machine::bytes(needs.bytes()),
                machine::bytes(needs.weights),
                needs.tokens,
                machine::bytes(needs.caches),
                machine::bytes(needs.prefix)
            );
        }
        Ok(())
    }
}
