use std::fmt;
use std::io::{self, IsTerminal, Write};

use anyhow::{Error, Result};
use serde_json::Value;

use crate::env;

/// The reader of stdout has gone, which ends a command quietly.
#[derive(Debug)]
pub(crate) struct StdoutClosed;

impl fmt::Display for StdoutClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stdout was closed")
    }
}

impl std::error::Error for StdoutClosed {}

/// Writes data to stdout and flushes it, so that a full disk is an error and not a loss.
pub(crate) fn data(text: &str) -> Result<()> {
    bytes(text.as_bytes())
}

/// [`data`] for bytes.
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(stdout_error)
}

/// Writes one JSON value as one line to stdout.
pub(crate) fn json(value: &Value) -> Result<()> {
    data(&format!("{value}\n"))
}

/// What a failed write to stdout means.
pub(crate) fn stdout_error(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => StdoutClosed.into(),
        _ => Error::new(error).context("cannot write to stdout; make room there or choose another output"),
    }
}

/// Writes a line to stderr; a closed stderr is no reason to stop.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes an error and its causes as one line to stderr.
pub(crate) fn error(error: &Error) {
    error_line(&chain(error));
}

/// Writes one line that begins with `error: ` to stderr.
pub(crate) fn error_line(text: &str) {
    let label = if stderr_has_colour() { "\x1b[1;31merror\x1b[0m" } else { "error" };
    note(&format!("{label}: {text}"));
}

/// Whether stdout is a terminal that may be given colours.
pub(crate) fn stdout_has_colour() -> bool {
    io::stdout().is_terminal() && !env::no_color()
}

/// Whether stderr is a terminal that may be given colours.
pub(crate) fn stderr_has_colour() -> bool {
    io::stderr().is_terminal() && !env::no_color()
}

/// An error and its causes on one line; a cause the message already quotes is not repeated.
pub(crate) fn chain(error: &Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = printable(&cause.to_string());
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line
}

/// The text on one line, without control characters that could move the cursor.
fn printable(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_chain_is_one_line_without_repeats() {
        let quoted = Err::<(), _>(io::Error::other("disk\nfull")).context("a.txt: disk full; make room");
        assert_eq!(chain(&quoted.unwrap_err()), "a.txt: disk full; make room");
        let plain = Err::<(), _>(io::Error::other("disk \x1b[2J")).context("a.txt");
        assert_eq!(chain(&plain.unwrap_err()), "a.txt: disk [2J");
    }

    #[test]
    fn only_a_broken_pipe_is_quiet() {
        assert!(stdout_error(io::ErrorKind::BrokenPipe.into()).is::<StdoutClosed>());
        assert!(!stdout_error(io::ErrorKind::StorageFull.into()).is::<StdoutClosed>());
    }
}
