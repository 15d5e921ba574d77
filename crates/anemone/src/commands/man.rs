use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::{files, output};

/// Print the manual page, or write one page per command
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone man --out ./man1   then: man ./man1/anemone-run.1")]
pub(crate) struct Args {
    /// Directory to write all pages to; it is created if need be
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Without the instruction set, so that pages are the same wherever they are made.
    let mut top = Cli::command().disable_help_subcommand(true).version(VERSION);
    top.build();
    let Some(dir) = &args.out else {
        output::bytes(&page(top)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(dir)
        .with_context(|| format!("--out {}: cannot create the directory; check the path", dir.display()))?;
    let commands: Vec<clap::Command> = top.get_subcommands().cloned().collect();
    let mut written = 0;
    for (name, command) in std::iter::once(("anemone".to_owned(), top))
        .chain(commands.into_iter().map(|c| (format!("anemone-{}", c.get_name()), c)))
    {
        let command = command.name(name.clone()).version(VERSION);
        files::write_whole("--out", &dir.join(format!("{name}.1")), |file| {
            Ok(file.write_all(&page(command)?)?)
        })?;
        written += 1;
    }
    output::data(&format!("{written} pages in {}\n", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn page(command: clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
