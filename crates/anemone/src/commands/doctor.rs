mod coreml;

use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anemone_checkpoint::hub::DEFAULT_ENDPOINT;
use anemone_cpu::{Arithmetic, Engine, LogitsOf, Model, Options};
use anemone_kernels::Level;
use anemone_tensor::argmax;
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::args::ModelArgs;
use crate::cli::Shell;
use crate::commands::inspect::Memory;
use crate::machine::bytes as size;
use crate::{demo, machine, model, output};

/// Show what this machine can do, test that it computes right, and size a model for it
///
/// Exits 1 when a check fails. The network is not touched without --network.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone doctor\n  anemone doctor --model ./LFM2-350M --json")]
pub(crate) struct Args {
    /// Try to connect to the hub
    #[arg(long)]
    network: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// A finding: what was looked at, how it stands, and what was found.
#[derive(Debug)]
struct Finding {
    name: &'static str,
    status: Status,
    detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ok,
    Info,
    Warn,
    Fail,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let (total, available) = machine::memory();
    let (cpu, cores) = machine::processor();
    let levels: Vec<&str> = Level::available().iter().map(|l| l.name()).collect();
    let huge_pages = machine::huge_pages();
    let mut findings = vec![
        info("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        info("processor", cpu.clone().unwrap_or_else(|| "not told by the system".into())),
        info("instruction sets", format!("{}; {} is used", levels.join(", "), Level::best().name())),
        info(
            "threads",
            format!(
                "{} usable{}",
                machine::threads(),
                cores.map(|n| format!(", {n} physical cores")).unwrap_or_default()
            ),
        ),
        memory(total, available),
        info("huge pages", huge_pages.clone().unwrap_or_else(|| "not told by the system".into())),
        cache(shell),
        hub(args, shell),
    ];
    if args.network {
        findings.push(network(shell));
    }
    let mac = coreml::Mac::here();
    findings.extend(mac.findings(args.model.model.as_deref()));
    findings.push(outcome(
        "self-test",
        self_test().map(|()| "the built-in model's first tokens are those of the reference".into()),
    ));
    if args.model.model.is_some() {
        findings.push(outcome("model", fit(args, shell, available)));
    }
    let failed = findings.iter().any(|f| f.status == Status::Fail);
    if args.json {
        let rows: Vec<Value> = findings
            .iter()
            .map(|f| json!({"name": f.name, "status": f.status.name(), "detail": f.detail}))
            .collect();
        let mut report = Map::new();
        report.insert("ok".into(), (!failed).into());
        report.insert("os".into(), std::env::consts::OS.into());
        report.insert("arch".into(), std::env::consts::ARCH.into());
        report.insert("cpu".into(), json!(cpu));
        report.insert("levels".into(), json!(levels));
        report.insert("level".into(), Level::best().name().into());
        report.insert("threads".into(), machine::threads().into());
        report.insert("physical_cores".into(), json!(cores));
        report.insert("memory_bytes".into(), json!(total));
        report.insert("memory_available_bytes".into(), json!(available));
        report.insert("huge_pages".into(), json!(huge_pages));
        report.insert("core_ml".into(), mac.json());
        report.insert("checks".into(), Value::Array(rows));
        output::json(&Value::Object(report))?;
    } else {
        let line = |f: &Finding| format!("{:<5} {:<17} {}\n", f.status.name(), f.name, f.detail);
        output::data(&findings.iter().map(line).collect::<String>())?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn info(name: &'static str, detail: String) -> Finding {
    Finding { name, status: Status::Info, detail }
}

fn outcome(name: &'static str, result: Result<String>) -> Finding {
    match result {
        Ok(detail) => Finding { name, status: Status::Ok, detail },
        Err(error) => Finding { name, status: Status::Fail, detail: output::chain(&error) },
    }
}

fn memory(total: Option<u64>, available: Option<u64>) -> Finding {
    let (Some(total), Some(available)) = (total, available) else {
        if let Some(total) = total {
            return info("memory", size(total));
        }
        return info("memory", "not told by the system".into());
    };
    let tight = available < 1 << 30;
    let status = if tight { Status::Warn } else { Status::Ok };
    let advice = if tight { "; close other programs before loading a model" } else { "" };
    Finding { name: "memory", status, detail: format!("{} free of {}{advice}", size(available), size(total)) }
}

fn cache(shell: &Shell) -> Finding {
    let Some(dir) = &shell.env.hub_cache else {
        let detail = "no directory for hub models; set HF_HOME or HOME".to_owned();
        return Finding { name: "hub cache", status: Status::Warn, detail };
    };
    let models = std::fs::read_dir(dir).map(|entries| {
        entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("models--")).count()
    });
    let state = match models {
        Ok(count) => format!("{count} models"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "not there yet".to_owned(),
        Err(error) => {
            let detail = format!("{}: {error}; make it readable or set HF_HOME", dir.display());
            return Finding { name: "hub cache", status: Status::Warn, detail };
        }
    };
    Finding { name: "hub cache", status: Status::Ok, detail: format!("{}, {state}", dir.display()) }
}

fn hub(args: &Args, shell: &Shell) -> Finding {
    let env = &shell.env;
    let mut detail = endpoint(shell).to_owned();
    detail.push_str(if env.has_token() { ", token set" } else { ", no token" });
    if let Some(proxy) = &env.proxy {
        // What stands before the @ may be a password.
        detail.push_str(", proxy ");
        detail.push_str(proxy.rsplit('@').next().unwrap_or(proxy));
    }
    if args.model.offline || env.hf_offline {
        detail.push_str(", offline");
    }
    let known = endpoint(shell).starts_with("https://") || endpoint(shell).starts_with("http://");
    if !known {
        detail.push_str("; HF_ENDPOINT must begin with https:// or http://");
    }
    Finding { name: "hub", status: if known { Status::Info } else { Status::Fail }, detail }
}

fn endpoint(shell: &Shell) -> &str {
    shell.env.hf_endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT)
}

fn network(shell: &Shell) -> Finding {
    let target = shell.env.proxy.as_deref().unwrap_or_else(|| endpoint(shell));
    match connect(target) {
        Ok(()) => Finding {
            name: "network",
            status: Status::Ok,
            detail: "the hub, or the proxy to it, answers".into(),
        },
        Err(error) => Finding {
            name: "network",
            status: Status::Warn,
            detail: format!("{}; use local models or --offline", output::chain(&error)),
        },
    }
}

fn connect(url: &str) -> Result<()> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let authority = rest.split('/').next().unwrap_or(rest);
    let authority = authority.rsplit('@').next().unwrap_or(authority);
    let port = if scheme == "http" { 80 } else { 443 };
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let address = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
    let resolved = address.to_socket_addrs().with_context(|| format!("{address} cannot be resolved"))?.next();
    let resolved = resolved.with_context(|| format!("{address} has no address"))?;
    TcpStream::connect_timeout(&resolved, Duration::from_secs(5))
        .with_context(|| format!("{address} cannot be reached"))?;
    Ok(())
}

/// Runs the built-in model in both arithmetics; the exact one must give the reference's tokens.
fn self_test() -> Result<()> {
    let checkpoint = demo::open()?;
    let stack = model::stack(&checkpoint)?;
    let options = Options {
        arithmetic: Arithmetic::Exact,
        threads: machine::threads(),
        context_len: Some(64),
        ..Options::default()
    };
    let model = Arc::new(Model::load(stack, &*checkpoint.weights(), options.layout)?);
    let mut engine = Engine::new(Arc::clone(&model), options)?;
    let mut ids: Vec<u32> = Vec::new();
    let mut next: Vec<u32> = demo::TEST_PROMPT.to_vec();
    while ids.len() < demo::TEST_ANSWER.len() {
        let best = argmax(engine.feed(&next, LogitsOf::Last)?).context("no logits")?;
        ids.push(u32::try_from(best)?);
        next = vec![u32::try_from(best)?];
    }
    ensure!(
        ids == demo::TEST_ANSWER,
        "this machine computes {ids:?} where the reference has {:?}; report it with the output of doctor --json",
        demo::TEST_ANSWER
    );
    let mut fast = Engine::new(model, Options { arithmetic: Arithmetic::Fast, ..options })?;
    let best = argmax(fast.feed(&demo::TEST_PROMPT, LogitsOf::Last)?).context("no logits")?;
    ensure!(
        best == demo::TEST_ANSWER[0] as usize,
        "the fast arithmetic gives token {best} where the reference has {}; use --exact and report it",
        demo::TEST_ANSWER[0]
    );
    Ok(())
}

/// What `--model` needs against what is free.
fn fit(args: &Args, shell: &Shell, available: Option<u64>) -> Result<String> {
    let checkpoint = model::open(&args.model, shell)?;
    let stack = model::stack(&checkpoint)?;
    let memory = Memory::of(&checkpoint, &stack, None)?;
    let needed = memory.weights + memory.fast_cache;
    if let Some(available) = available {
        ensure!(
            needed <= available,
            "{} needs {} and {} are free; close other programs, or use a smaller model or a smaller --ctx",
            checkpoint.name(),
            size(needed),
            size(available)
        );
    }
    Ok(format!(
        "{} ({}): weights {} + cache {} at a context of {} = {}{}",
        checkpoint.name(),
        stack.model_type,
        size(memory.weights),
        size(memory.fast_cache),
        memory.context,
        size(needed),
        available.map(|free| format!(", {} free", size(free))).unwrap_or_default()
    ))
}
