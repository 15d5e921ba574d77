//! Repository automation: tidy checks and random checkpoints.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod checkpoint;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Repository automation.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check the repository's own rules; prints `file:line: message` and fails when one is broken.
    Tidy,
    /// Write a random checkpoint with a released model's real dimensions; the same seed gives the same bytes.
    #[command(after_help = "Example: cargo xtask checkpoint --preset tiny --dtype bf16 --out target/tiny")]
    Checkpoint(checkpoint::Args),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Tidy => tidy::run(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")),
        Command::Checkpoint(args) => checkpoint::run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
