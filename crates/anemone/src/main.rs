//! The `anemone` command.

mod answer;
mod args;
mod cli;
mod commands;
mod demo;
mod energy;
mod engine;
mod env;
mod files;
mod generation;
mod interrupt;
mod machine;
mod model;
mod output;
mod prefix;
mod stats;
mod structure;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(error) if error.is::<output::StdoutClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}
