use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anemone_coreml::{CompiledModel, CompiledModels};
use anyhow::Result;
use clap::Subcommand;
use serde_json::json;

use crate::engine::compiled_models;
use crate::{machine, output};

const DAY: u64 = 24 * 60 * 60;

/// Models that Core ML compiled: what they take, and removing them
///
/// A package is compiled when it is first run by Core ML, and found again by its content. That and the first load take from seconds to
/// minutes; others report 8 s for a model of 230 M on an M1, 273 s for one of 0.3 B, and 80 minutes for one of 4 B on an M6. Models that
/// are in use are not removed. What Core ML itself keeps of a model for the
/// Neural Engine hangs on the compiled model's path and is not seen here.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone cache list\n  anemone cache gc --unused 7")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// Where they are kept [default: anemone/coreml in the user's cache directory]
    #[arg(long, value_name = "DIR", global = true)]
    compiled_models: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// All of them, those unused longest first
    List,
    /// Remove those whose package is gone, what failed compiles left, and those not loaded for a while
    Gc {
        /// Days after which one goes that was not loaded
        #[arg(long, value_name = "DAYS", default_value_t = 30, conflicts_with = "all")]
        unused: u64,
        /// Remove all
        #[arg(long)]
        all: bool,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let models = compiled_models(args.compiled_models.as_ref(), false)?;
    let mut places = vec![models.clone()];
    if args.compiled_models.is_none() {
        places.push(compiled_models(None, true)?);
    }
    let each = |of: &dyn Fn(&CompiledModels) -> anemone_coreml::Result<Vec<CompiledModel>>| {
        places.iter().map(of).collect::<Result<Vec<_>, _>>().map(|found| found.concat())
    };
    let (shown, what) = match args.command {
        Command::List => (each(&CompiledModels::list)?, "compiled models"),
        Command::Gc { unused, all } => {
            let least = if all { Duration::ZERO } else { Duration::from_secs(unused.saturating_mul(DAY)) };
            (each(&|place| place.remove_unused(least))?, "removed")
        }
    };
    let bytes: u64 = shown.iter().map(|model| model.bytes).sum();
    if args.json {
        let entry = |model: &CompiledModel| {
            json!({
                "path": model.path,
                "package": model.package,
                "bytes": model.bytes,
                "unused_seconds": model.unused.as_secs(),
            })
        };
        let entries: Vec<_> = shown.iter().map(entry).collect();
        output::json(&json!({"directory": models.dir(), what.replace(' ', "_"): entries, "bytes": bytes}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for model in &shown {
        let days = model.unused.as_secs() / DAY;
        let package = if model.package.is_empty() { "never completed" } else { &model.package };
        output::data(&format!("{:>10}  {days:>4} days  {package}\n", machine::bytes(model.bytes)))?;
    }
    output::data(&format!(
        "{} {what}, {} in {}\n",
        shown.len(),
        machine::bytes(bytes),
        models.dir().display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
