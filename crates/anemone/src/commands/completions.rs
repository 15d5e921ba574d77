use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell as ShellName;

use crate::cli::Cli;
use crate::output;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  anemone completions bash > ~/.local/share/bash-completion/completions/anemone"
)]
pub(crate) struct Args {
    /// The shell
    shell: ShellName,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "anemone", &mut script);
    output::bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
