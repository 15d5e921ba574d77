mod access;
mod direct;
mod log;
mod memory;
mod models;
mod signals;

use std::process::ExitCode;
use std::time::Duration;

use anemone_cpu::LayaOptions;
use anemone_decide::Tournament;
use anemone_emulator::Profile;
use anemone_server::{App, Key, Machine, Options};
use anyhow::{Context, Result, anyhow};
use clap::builder::RangedU64ValueParser;

use self::access::AccessArgs;
use self::log::LogArgs;
use self::memory::MemoryArgs;
use self::models::Named;
use self::signals::Signals;
use crate::args::{EngineArgs, EngineName, LayoutName, SpeculationArgs};
use crate::cli::Shell;
use crate::commands::decide::runs::Runs;
use crate::engine::CoreMlArgs;
use crate::prefix::{self, PrefixArgs};
use crate::{energy, interrupt, machine, output};

/// Threads that talk to clients; models have their own.
const CLIENT_THREADS: usize = 2;

/// Answer over HTTP: chats and completions of language models, typed questions by decision models
///
/// Language models: POST /v1/chat/completions, /v1/completions and /v1/responses as OpenAI's API has them, /v1/messages as Anthropic's,
/// streamed or not, POST `/v1/messages/count_tokens`, /tokenize and /detokenize, GET `/tokenizer_info`. Up to --max-sequences run together, token by token; a
/// client that goes stops its own. GET / is a page to chat and to ask in a browser. Bodies are JSON, plain or compressed with zstd.
///
/// POST /v1/systemone takes {"state", "questions"} as `decide` does and POST /v1/systemone/batch {"states", "questions"}; both answer
/// as laya's own server does, with its limits and messages. GET /health, /ready, /v1/models and /v1/models/{id} say what is
/// loaded and what failed, GET /metrics and /metrics.json what was done, GET /openapi.json what all routes take and give. Errors are
/// {"detail": text}. POST /v1/decisions takes and gives the same in the shape of OpenAI's API (no images; levels count from 0, and
/// `confidence` is the calibrated one). One request is computed at a time, others wait their turn; more than --max-concurrent are told to try again (503).
///
/// With several models, `english` answers English texts and `multilingual` other ones, unless a request names its `model`; the default
/// model answers where a text decides nothing or that model is not here. SIGTERM or Ctrl-C ends the server when requests that have
/// begun are answered, a second one at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone serve\n  \
    anemone serve --model english=./laya --model multilingual=./laya/multilingual --api-key-file key.txt\n  \
    anemone serve --model ./laya.bundle --engine emulator\n  \
    curl http://127.0.0.1:8000/v1/systemone -d \
    '{\"state\": \"where is my parcel\", \"questions\": {\"angry\": {\"type\": \"noul\", \"instructions\": \"Is the sender angry?\"}}}'")]
#[allow(clippy::struct_excessive_bools, reason = "one for each switch of the command")]
pub(crate) struct Args {
    /// A language or decision model: directory, bundle or hub id `org/name[@revision]`, after the name requests know it by; may be repeated
    /// [default: the built-in models laya-demo and stories-lfm2]
    #[arg(long, short = 'm', value_name = "[NAME=]PATH|ID")]
    model: Vec<String>,
    /// Name of the model of texts that decide nothing [default: multilingual if there is one, else the first]
    #[arg(long, value_name = "NAME")]
    default_model: Option<String>,
    /// Use only models that are on this machine (as `HF_HUB_OFFLINE=1` does)
    #[arg(long)]
    offline: bool,
    /// Another name for a model, as `gpt-4o-mini=stories-lfm2`; may be repeated
    #[arg(long, value_name = "ALIAS=NAME")]
    alias: Vec<String>,
    /// Answer lines of stdin by the language model without HTTP, too, to compare with
    #[arg(long, hide = true)]
    direct: bool,
    /// Print what GET /openapi.json says of all routes, and end
    #[arg(long)]
    openapi: bool,
    /// Requests read, waiting and computed at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    max_concurrent: usize,
    /// Seconds a request's body may take to arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = RangedU64ValueParser::<u64>::new().range(1..=3600))]
    body_timeout: u64,
    /// Seconds a request may take in all; then it is broken off (504) [default: as long as its client waits]
    #[arg(long, value_name = "SECONDS", value_parser = RangedU64ValueParser::<u64>::new().range(1..=31_536_000))]
    request_timeout: Option<u64>,
    /// Seconds that requests which have begun may still take when the server is told to end
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = RangedU64ValueParser::<u64>::new().range(0..=86_400))]
    grace: u64,
    /// Answer with the fields of Jev's own service only
    #[arg(long)]
    jev_strict: bool,
    /// Choose among more labels than this (2 to 100) in rounds, and take up to 255 [default: at once, up to 100]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(2..=100))]
    tournament_group: Option<usize>,
    /// Multiply in bf16 where the processor does so natively: faster, and probabilities move by up to a hundredth
    #[arg(long)]
    bf16: bool,
    /// What runs the models: cpu reads a bundle's weights back, the emulator interprets its packages, coreml runs them on a Mac. For
    /// language models auto is cpu, which runs sequences together; for decision bundles on a Mac it is coreml once that has loaded them
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    engine: EngineName,
    /// Arithmetic of the emulator [default: fp16]
    #[arg(long, value_name = "PROFILE", value_parser = crate::args::profile)]
    profile: Option<Profile>,
    #[command(flatten)]
    coreml: CoreMlArgs,
    /// Most tokens a language model holds for one sequence [default: the model's limit, but at most 4096; a bundle's own on the
    /// emulator]
    #[arg(long, short = 'c', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    ctx: Option<usize>,
    /// Sequences a language model runs together
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    max_sequences: usize,
    /// Sequences that may wait for a language model; more are told to try again (503)
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = RangedU64ValueParser::<usize>::new().range(0..=65_536))]
    max_waiting: usize,
    /// Tokens all sequences of a language model may hold together, which bounds their memory
    /// [default: --max-sequences times --ctx]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_tokens: Option<usize>,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    prefix: PrefixArgs,
    /// Memory for beginnings that were computed before, of each language model; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = prefix::size, allow_negative_numbers = true, help_heading = "Prefix cache")]
    prefix_cache_memory: u64,
    /// Threads of the models, 1 to 512 [default: all the system offers]
    #[arg(long, short = 't', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=512), allow_negative_numbers = true)]
    threads: Option<usize>,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

impl Args {
    fn options(&self, key: Option<Key>, sizes: Vec<(String, u64)>) -> Options {
        Options {
            key,
            max_concurrent: self.max_concurrent,
            body_timeout: Duration::from_secs(self.body_timeout),
            jev_strict: self.jev_strict,
            tournament: self.tournament_group.map(|group_size| Tournament { group_size }),
            request_timeout: self.request_timeout.map(Duration::from_secs),
            idle_unload: self.memory.idle_unload(),
            memory: self.memory.memory(sizes),
            guard: self.access.guard(),
            machine: Machine { resident: Some(|| machine::rss().total), energy: Some(energy::joules) },
            log_bodies: self.log.has_bodies(),
        }
    }

    /// The flags of language models' engines.
    fn language_engine(&self) -> EngineArgs {
        EngineArgs {
            threads: self.threads,
            ctx: self.ctx,
            exact: false,
            layout: LayoutName::Auto,
            // Core ML runs one sequence at a time, and the CPU engine many together.
            engine: if self.engine == EngineName::Auto { EngineName::Cpu } else { self.engine },
            profile: self.profile.clone(),
            chunk: None,
            coreml: self.coreml.clone(),
        }
    }
}

/// Loads what fits; an error is that of the model, which names itself, or of the flag that is wrong.
fn preload(app: &App) -> Result<Vec<String>> {
    app.preload().map_err(|error| match error {
        anemone_server::Error::Load { source, .. } => anyhow!("{source}"),
        other => other.into(),
    })
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let runs = Runs::chosen(args.engine, args.profile.as_ref(), args.bf16, &args.coreml)?;
    let key = args.access.key()?;
    if args.openapi {
        let (named, has_tournaments) = (Named::sort(args, shell)?, args.tournament_group.is_some());
        let languages = &named.language_names()[..];
        let facts = anemone_server::Facts { has_key: key.is_some(), has_tournaments, languages };
        output::json(&anemone_server::description(facts))?;
        return Ok(ExitCode::SUCCESS);
    }
    let open = key.is_none() && args.access.is_public();
    // Before models are loaded, which may take a while.
    let bound = args.access.bind()?;
    let threads = args.threads.unwrap_or_else(machine::threads);
    let named = Named::sort(args, shell)?;
    let laya = LayaOptions { threads, reduced: args.bf16 };
    let (mut decisions, sizes) = models::open(&named, args, laya, &runs, shell)?;
    let (mut languages, needs): (Vec<_>, Vec<_>) = named.languages(args, shell)?.into_iter().unzip();
    models::alias(&args.alias, &named, &mut decisions, &mut languages)?;
    args.memory.fits(&sizes, &needs)?;
    let app = App::new(decisions, languages, args.options(key, sizes))?;
    let left = if args.memory.on_demand { Vec::new() } else { preload(&app)? };
    let runtime = (tokio::runtime::Builder::new_multi_thread().worker_threads(CLIENT_THREADS))
        .enable_all()
        .build()
        .context("cannot start the threads of the server")?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let stopped = async {
            let _ = stopped.await;
        };
        if !shell.quiet {
            if open {
                output::note("no --api-key: everyone who can reach this address is answered");
            }
            if !left.is_empty() {
                output::note(&format!("loaded when asked for (--max-memory): {}", left.join(", ")));
            }
            output::note(&format!("{} at {}", named.names().collect::<Vec<_>>().join(", "), bound.shown));
        }
        let signalled = async {
            signals.next().await;
            if !shell.quiet {
                output::note("ending when requests that have begun are answered");
            }
            let _ = stop.send(());
            signals.next().await;
        };
        let grace = Duration::from_secs(args.grace);
        tokio::select! {
            served = anemone_server::serve(bound.listener, &app, grace, stopped) => {
                if !served? && !shell.quiet {
                    output::note(&format!("requests that did not end in {} s (--grace) were broken off", args.grace));
                }
                Ok(ExitCode::SUCCESS)
            }
            () = signalled => Ok(ExitCode::from(interrupt::EXIT_CODE)),
        }
    });
    // A request that is being read or computed does not hold the end up.
    runtime.shutdown_timeout(Duration::from_millis(500));
    ended
}
