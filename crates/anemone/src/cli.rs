use std::ffi::OsString;
use std::process::ExitCode;

use anemone_kernels::Level;
use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

use crate::commands::{
    bench, cache, chat, completions, convert, decide, doctor, forward, inspect, man, palettize, perplexity,
    probe, quantize, run, selftest, serve, validate, verify,
};
use crate::env::Environment;
use crate::output;

/// Small language and decision models on any machine: one binary, no Python.
#[derive(Debug, Parser)]
#[command(
    name = "anemone",
    version = version(),
    about,
    after_help = "Example:\n  anemone run                       a story by the built-in model\n  \
                  anemone chat --model ./LFM2-350M  talk to a checkpoint on disk"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Args)]
struct GlobalArgs {
    /// Say more on stderr; twice for everything
    #[arg(long, short = 'v', global = true, action = clap::ArgAction::Count, conflicts_with = "quiet", display_order = 900)]
    verbose: u8,
    /// Say nothing on stderr but errors
    #[arg(long, short = 'q', global = true, display_order = 901)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Chat(Box<chat::Args>),
    Decide(Box<decide::Args>),
    Serve(Box<serve::Args>),
    Forward(forward::Args),
    Inspect(inspect::Args),
    Bench(Box<bench::Args>),
    Perplexity(perplexity::Args),
    Convert(Box<convert::Args>),
    Palettize(Box<palettize::Args>),
    Quantize(quantize::Args),
    Verify(Box<verify::Args>),
    Validate(Box<validate::Args>),
    Probe(probe::Args),
    Doctor(doctor::Args),
    Cache(cache::Args),
    Selftest(selftest::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// What every command is given besides its own arguments.
#[derive(Debug, Clone)]
pub(crate) struct Shell {
    /// Keep stderr to errors.
    pub(crate) quiet: bool,
    /// The environment variables that count.
    pub(crate) env: Environment,
}

/// Parses the command line and runs the command it names.
pub(crate) fn run() -> Result<ExitCode> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    // Alone, the command shows what it does.
    if words.len() <= 1 {
        words = vec!["anemone".into(), "run".into()];
        output::note("anemone run: a story by the built-in model; anemone --help lists all commands\n");
    }
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    let level = match cli.global.verbose {
        _ if cli.global.quiet => LevelFilter::ERROR,
        0 => LevelFilter::WARN,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let log = match &cli.command {
        Command::Serve(args) => args.log.layer(level),
        _ => None,
    };
    let (layer, _lines_until_the_end) = match log {
        Some((layer, guard)) => (layer, Some(guard)),
        None => (diagnostics(level), None),
    };
    tracing_subscriber::registry().with(layer).init();
    let shell = Shell { quiet: cli.global.quiet, env: Environment::read()? };
    match cli.command {
        Command::Run(args) => run::run(&args, &shell),
        Command::Chat(args) => chat::run(&args, &shell),
        Command::Decide(args) => decide::run(&args, &shell),
        Command::Serve(args) => serve::run(&args, &shell),
        Command::Forward(args) => forward::run(&args, &shell),
        Command::Inspect(args) => inspect::run(&args, &shell),
        Command::Bench(args) => bench::run(&args, &shell),
        Command::Perplexity(args) => perplexity::run(&args, &shell),
        Command::Convert(args) => convert::run(&args, &shell),
        Command::Palettize(args) => palettize::run(&args, &shell),
        Command::Quantize(args) => quantize::run(&args, &shell),
        Command::Verify(args) => verify::run(&args, &shell),
        Command::Validate(args) => validate::run(&args, &shell),
        Command::Probe(args) => probe::run(&args, &shell),
        Command::Doctor(args) => doctor::run(&args, &shell),
        Command::Cache(args) => cache::run(&args),
        Command::Selftest(args) => selftest::run(&args, &shell),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// What is wrong, or with `-v` more, for people on stderr.
fn diagnostics(level: LevelFilter) -> Box<dyn Layer<Registry> + Send + Sync> {
    tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(output::stderr_has_colour())
        .without_time()
        // A closed stderr is no reason to stop.
        .log_internal_errors(false)
        .with_filter(level)
        .boxed()
}

/// Help and version go to stdout; a usage error is one line and exit code 2.
fn explain(error: &clap::Error) -> Result<ExitCode> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            error.print().map_err(output::stdout_error)?;
            Ok(ExitCode::SUCCESS)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::error_line("a command is missing behind this one; --help lists those there are");
            Ok(ExitCode::from(2))
        }
        _ => {
            output::error_line(&one_line(&error.render().to_string()));
            Ok(ExitCode::from(2))
        }
    }
}

/// What clap says, without the usage and as one line.
fn one_line(text: &str) -> String {
    let said = text.split("\nUsage:").next().unwrap_or(text);
    let said = said.split("\nFor more information").next().unwrap_or(said);
    let words: Vec<&str> = said.trim_start_matches("error: ").split_whitespace().collect();
    let said = (words.join(" "))
        .replace("invalid digit found in string", "give a whole number, 0 or more")
        .replace("number too large to fit in target type", "the number is too large")
        .replace(&format!("..{}", u64::MAX), "..");
    format!("{said} (see --help)")
}

fn version() -> String {
    format!("{} ({})", env!("CARGO_PKG_VERSION"), Level::best().name())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example:\n  anemone "), "{}", command.get_name());
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
        let error = Cli::try_parse_from(["anemone", "perplexity"]).unwrap_err();
        assert_eq!(
            one_line(&error.render().to_string()),
            "the following required arguments were not provided: --file <TEXT> (see --help)"
        );
    }
}
