mod models;
mod signals;

use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anemone_cpu::LayaOptions;
use anemone_decide::Tournament;
use anemone_emulator::Profile;
use anemone_server::{App, Key, Language, Options};
use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;

use self::models::Named;
use self::signals::Signals;
use crate::args::{EngineArgs, EngineName, LayoutName, SpeculationArgs};
use crate::cli::Shell;
use crate::commands::decide::emulated;
use crate::prefix::{self, PrefixArgs};
use crate::{files, interrupt, machine, output};

/// Threads that talk to clients; models have their own.
const CLIENT_THREADS: usize = 2;

/// Answer over HTTP: chats and completions of language models, typed questions by decision models
///
/// Language models: POST /v1/chat/completions, /v1/completions and /v1/responses as OpenAI's API has them, /v1/messages as Anthropic's,
/// streamed or not, POST /tokenize and /detokenize, GET /metrics. Up to --max-sequences run together, token by token; a client that goes
/// stops its own.
///
/// POST /v1/systemone takes {"state", "questions"} as `decide` does and POST /v1/systemone/batch {"states", "questions"}; both answer
/// as laya's own server does, with its limits and messages. GET /health and GET /v1/models say what is loaded. Errors are
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
    /// Address to listen on; any but this machine's own lets others in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8000)]
    port: u16,
    /// Key that requests must show as `Authorization: Bearer KEY`; other users of this machine can see it here
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,
    /// A file with the key
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Requests read, waiting and computed at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    max_concurrent: usize,
    /// Seconds a request's body may take to arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = RangedU64ValueParser::<u64>::new().range(1..=3600))]
    body_timeout: u64,
    /// Answer with the fields of Jev's own service only
    #[arg(long)]
    jev_strict: bool,
    /// Choose among more labels than this (2 to 100) in rounds, and take up to 255 [default: at once, up to 100]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(2..=100))]
    tournament_group: Option<usize>,
    /// Multiply in bf16 where the processor does so natively: faster, and probabilities move by up to a hundredth
    #[arg(long)]
    bf16: bool,
    /// What runs the models: auto and cpu read a bundle's weights back, the emulator interprets its package
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    engine: EngineName,
    /// Arithmetic of the emulator [default: fp16]
    #[arg(long, value_name = "PROFILE", value_parser = crate::args::profile)]
    profile: Option<Profile>,
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
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = prefix::size, help_heading = "Prefix cache")]
    prefix_cache_memory: u64,
    /// Threads of the models, 1 to 512 [default: all the system offers]
    #[arg(long, short = 't', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=512), allow_negative_numbers = true)]
    threads: Option<usize>,
}

impl Args {
    /// The flags of language models' engines.
    fn language_engine(&self) -> EngineArgs {
        EngineArgs {
            threads: self.threads,
            ctx: self.ctx,
            exact: false,
            layout: LayoutName::Auto,
            engine: self.engine,
            profile: self.profile.clone(),
            chunk: None,
        }
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let options = Options {
        key: key(args)?,
        max_concurrent: args.max_concurrent,
        body_timeout: Duration::from_secs(args.body_timeout),
        jev_strict: args.jev_strict,
        tournament: args.tournament_group.map(|group_size| Tournament { group_size }),
        resident: Some(|| machine::rss().total),
    };
    let profile = emulated::chosen(args.engine, args.profile.as_ref(), args.bf16)?;
    let open = options.key.is_none() && !args.host.is_loopback();
    // Before models are loaded, which may take a while.
    let listener = TcpListener::bind((args.host, args.port)).with_context(|| {
        format!(
            "--host {} --port {}: cannot listen there; choose another address or port",
            args.host, args.port
        )
    })?;
    let address = listener.local_addr().context("cannot read the address that is listened on")?;
    let threads = args.threads.unwrap_or_else(crate::machine::threads);
    let named = Named::sort(args, shell)?;
    let laya = LayaOptions { threads, reduced: args.bf16 };
    let decisions = models::open(&named, args, laya, profile.as_ref(), shell)?;
    let languages = named.languages(args, shell)?;
    let names = decisions.routes().models().iter().map(|(name, _)| name.as_str());
    let names: Vec<String> = names.chain(languages.iter().map(Language::name)).map(str::to_owned).collect();
    let app = App::new(decisions, languages, options)?;
    let runtime = (tokio::runtime::Builder::new_multi_thread().worker_threads(CLIENT_THREADS))
        .enable_all()
        .build()
        .context("cannot start the threads of the server")?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let stopped = async {
            let _ = stopped.await;
        };
        if !shell.quiet {
            if open {
                output::note("no --api-key: everyone who can reach this address is answered");
            }
            output::note(&format!("{} at http://{address}", names.join(", ")));
        }
        let signalled = async {
            signals.next().await;
            if !shell.quiet {
                output::note("ending when requests that have begun are answered");
            }
            let _ = stop.send(());
            signals.next().await;
        };
        tokio::select! {
            served = anemone_server::serve(listener, &app, stopped) => {
                served?;
                Ok(ExitCode::SUCCESS)
            }
            () = signalled => Ok(ExitCode::from(interrupt::EXIT_CODE)),
        }
    })
}

fn key(args: &Args) -> Result<Option<Key>> {
    if let Some(path) = &args.api_key_file {
        let text = files::read_text("--api-key-file", path)?;
        let key = Key::new(text.trim()).with_context(|| format!("--api-key-file {}", path.display()))?;
        return Ok(Some(key));
    }
    args.api_key.as_deref().map(Key::new).transpose().context("--api-key")
}
