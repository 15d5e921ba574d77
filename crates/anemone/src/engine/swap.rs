use std::sync::Arc;
use std::sync::mpsc::channel;

use anemone_bundle::Bundle;
use anemone_cpu::Model;
use anemone_session::{EngineError, HotSwap, Swap, Swaps};
use anyhow::{Context, Result};

use super::Engine;
use crate::args::EngineArgs;

/// The native engine, and Core ML once it has come.
pub(crate) struct Swapping {
    pub(super) swap: HotSwap,
    pub(super) model: Arc<Model>,
    pub(super) threads: usize,
    swaps: Swaps,
}

impl std::fmt::Debug for Swapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Swapping").field("swaps", &self.swaps).finish_non_exhaustive()
    }
}

impl Swapping {
    pub(super) fn name(&self) -> &'static str {
        if self.swap.is_second() { "coreml" } else { "cpu" }
    }

    /// What happened to the engine so far, in words.
    pub(crate) fn story(&self) -> Vec<String> {
        let tell = |swap| match swap {
            Swap::Moved { at } => format!("Core ML has taken over after {at} tokens"),
            Swap::NotCome { reason } => format!("Core ML is not used: {reason}"),
            Swap::Back { at, reason } => {
                format!("Core ML failed after {at} tokens, the CPU engine went on: {reason}")
            }
            _ => String::new(),
        };
        self.swaps.get().into_iter().map(tell).collect()
    }
}

impl Engine {
    /// A native engine on a bundle's weights that Core ML takes over from when it has loaded the bundle, in the background.
    pub(crate) fn until_core_ml(cpu: anemone_cpu::Engine, bundle: Bundle, args: &EngineArgs) -> Result<Self> {
        let (send, coming) = channel();
        let (model, threads) = (Arc::clone(cpu.model()), cpu.context().pool().threads());
        let args = args.clone();
        let load = move || {
            let loaded = Self::core_ml_over(bundle, &args).and_then(|mut engine| {
                engine.load_now()?;
                Ok(engine)
            });
            let loaded = loaded.map_err(|error| EngineError::new(format!("{error:#}")));
            // Nobody waits for it when the generation is over.
            let _ = send.send(loaded.map(|engine| Box::new(engine) as Box<dyn anemone_session::Engine>));
        };
        let thread = std::thread::Builder::new().name("core-ml-load".to_owned()).spawn(load);
        thread.context("cannot start the thread that loads Core ML")?;
        let swap = HotSwap::new(Box::new(cpu), coming);
        Ok(Self::Swap(Box::new(Swapping { swaps: swap.swaps(), swap, model, threads })))
    }
}
