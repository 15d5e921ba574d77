//! The log of requests.

use std::io::stderr;

use clap::ValueEnum;
use tracing::Subscriber;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

/// Lines that wait for a stderr that is not read; later ones are dropped, so that no request waits for its log.
const LINES: usize = 4096;

/// How lines of the log are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// An object of JSON a line
    Json,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Write a line on stderr for every request and generation: id, route, status, times and token counts, no texts [default: none]
    #[arg(long, value_name = "FORMAT", conflicts_with = "quiet")]
    log_requests: Option<LogFormat>,
    /// Write the bodies of requests as well, with all that was said
    #[arg(long, requires = "log_requests")]
    log_bodies: bool,
}

impl LogArgs {
    pub(super) fn has_bodies(&self) -> bool {
        self.log_bodies
    }

    /// What writes the log, in place of what writes warnings; `None` where no log is asked for. Lines are written until the guard is
    /// dropped.
    pub(crate) fn layer<S>(
        &self,
        level: LevelFilter,
    ) -> Option<(Box<dyn Layer<S> + Send + Sync>, WorkerGuard)>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let format = self.log_requests?;
        let (writer, guard) =
            NonBlockingBuilder::default().buffered_lines_limit(LINES).lossy(true).finish(stderr());
        let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
        let shown =
            Targets::new().with_default(level).with_target("anemone_server", level.max(LevelFilter::INFO));
        Some(match format {
            LogFormat::Text => (layer.with_filter(shown).boxed(), guard),
            LogFormat::Json => {
                let layer = layer.json().flatten_event(true).with_span_list(false);
                (layer.with_filter(shown).boxed(), guard)
            }
        })
    }
}
