use std::path::PathBuf;
use std::process::ExitCode;

use anemone_session::{ChatTemplate, Conversation, Engine as _, FinishReason, Message, RenderOptions};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use crate::answer::{self, Shown};
use crate::args::{BundleArg, EngineArgs, ModelArgs, SamplingArgs};
use crate::cli::Shell;
use crate::energy::{Phases, Watch};
use crate::generation::{self, Stream};
use crate::model::{self, Loaded};
use crate::prefix::PrefixArgs;
use crate::structure::{Structure, StructureArgs};
use crate::{demo, files, interrupt, output, stats};

/// Generate text once
///
/// The text goes to stdout as it comes, statistics to stderr. The prompt is continued as it stands, or answered as
/// a chat message with --chat. Ctrl-C ends the generation, a second one the process.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone run --prompt 'once upon a time' --seed 1 -n 100\n  \
                        anemone run --model ./LFM2-350M --chat --prompt 'Name three birds.' --json\n  \
                        anemone run --bundle lfm2.bundle --engine emulator --prompt 'Once' -n 8\n  \
                        anemone run --file long.txt --prefix-cache ~/.cache/anemone-prefix\n  \
                        anemone run --model ./LFM2.5-1.2B --chat --prompt 'A bird, as JSON.' --schema bird.json\n  \
                        anemone run --model ./LFM2.5-1.2B --prompt 'Is it raining in Rome?' --tools tools.json --json")]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Args {
    /// Text to go on from; with the built-in model a story is asked for when there is none
    #[arg(long, short = 'p', value_name = "TEXT", conflicts_with_all = ["stdin", "file"])]
    prompt: Option<String>,
    /// Read the prompt from stdin; one newline at its end is left off
    #[arg(long, conflicts_with = "file")]
    stdin: bool,
    /// Read the prompt from a file; one newline at its end is left off
    #[arg(long, short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// Put the prompt into the model's chat template as a user's message
    #[arg(long)]
    chat: bool,
    /// System message; implies --chat
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Keep special tokens in the text
    #[arg(long)]
    show_special: bool,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    structure: StructureArgs,
    /// Tell the energy that the machine's parts take in each phase, where the system tells it (RAPL on Linux, `IOReport` on a Mac), with and
    /// without what they take at rest, which is watched for half a second first
    #[arg(long)]
    energy: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    bundle: BundleArg,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    prefix: PrefixArgs,
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    interrupt::install()?;
    let (prompt, chat) = prompt(args)?;
    let mut watch = Watch::begin(args.energy);
    let mut structure = args.structure.read()?;
    let (mut loaded, tokenizer) =
        Loaded::with_tokenizer(&args.model.or_bundle(&args.bundle)?, &args.engine, 0, shell)?;
    generation::refuse_hopeless(&tokenizer, &prompt, loaded.engine.context_len())?;
    let template = chat.then(|| model::template(&loaded.checkpoint, &tokenizer)).transpose()?;
    let prompt = match &template {
        Some(template) => render(&prompt, args.system.as_deref(), template, &structure)?,
        None => prompt,
    };
    let ids = tokenizer.encode(&prompt, template.is_none()).context("--prompt")?;
    let mut options =
        generation::options(&args.sampling, &loaded.checkpoint, &loaded.stack().model_type, &tokenizer)?;
    options.skip_special = !args.show_special;
    options.prefix_cache = args.prefix.open(&loaded, 0)?;
    let read = template.as_ref().map(|template| (template, &*prompt));
    let constraint = structure.constraint(&tokenizer, &options.stop_ids, read)?;
    let mut stream = Stream::new(!args.json, shell.quiet);
    if let Some((template, prompt)) = read {
        let output = structure.output(template, prompt);
        options.keep_special = output.kept_special(&tokenizer);
        stream = stream.reading(Shown::new(output, !args.json, args.structure.reasoning, shell.quiet));
    }
    let mut phases = Phases::new(&mut watch);
    let outcome = Conversation::new()
        .generate(&mut loaded.engine, &tokenizer, &ids, &options, constraint, &mut |event| {
            phases.on_event(&event);
            stream.on_event(event)
        })
        .map_err(|error| too_long(error, &loaded))?;
    phases.end(&outcome);
    let (first_token, answer) = stream.end()?;
    if args.json {
        let mut report = generation::report(&outcome, first_token);
        if let Some(Value::Object(timings)) = report.get_mut("timings") {
            timings.insert("load_seconds".into(), loaded.load_seconds.into());
        }
        if let Some(answer) = &answer {
            answer::report(answer, &mut report);
        }
        report.insert("prompt_token_ids".into(), json!(ids));
        report.insert("model".into(), loaded.checkpoint.name().into());
        report.insert("seed".into(), outcome.seed.into());
        report.insert("engine".into(), loaded.engine.name().into());
        report.insert("arithmetic".into(), loaded.engine.arithmetic(&args.engine).into());
        if let Some(core_ml) = loaded.engine.core_ml_report() {
            report.insert("core_ml".into(), core_ml);
        }
        if let Some(energy) = watch.report() {
            report.insert("energy".into(), energy);
        }
        output::json(&Value::Object(report))?;
    }
    if !shell.quiet {
        watch.line().iter().for_each(|line| output::note(line));
        for note in loaded.engine.notes() {
            output::note(&note);
        }
        output::note(&stats::line(&outcome, loaded.engine.position(), loaded.engine.context_len()));
        if generation::ran_out_of_context(&outcome) {
            if loaded.has_longest_context() {
                output::note("the context is full, and the model allows no longer one");
            } else {
                output::note(&format!("the context is full; {} for a longer text", loaded.longer_context()));
            }
        }
    }
    let cancelled = outcome.finish_reason == FinishReason::Cancelled;
    // The process ends here, and the system takes its memory back faster than it could be freed piece by piece.
    std::mem::forget((loaded, tokenizer));
    Ok(if cancelled { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// The prompt and whether it is a chat message.
fn prompt(args: &Args) -> Result<(String, bool)> {
    let chat = args.chat || args.system.is_some() || args.structure.tools.is_some();
    if let Some(text) = &args.prompt {
        return Ok((text.clone(), chat));
    }
    if let Some(path) = &args.file {
        return Ok((without_newline(files::read_text("--file", path)?), chat));
    }
    if args.stdin {
        return Ok((without_newline(files::read_all("--stdin", std::io::stdin().lock())?), chat));
    }
    if args.model.model.is_some() || args.bundle.bundle.is_some() {
        bail!("no prompt; give one with --prompt TEXT, --file FILE or --stdin");
    }
    Ok((demo::PROMPT.to_owned(), true))
}

/// A larger context is no remedy for a prompt beyond the model's limit.
fn too_long(error: anemone_session::Error, loaded: &Loaded) -> anyhow::Error {
    let limit = loaded.stack().max_position_embeddings;
    match error {
        anemone_session::Error::PromptTooLong { prompt, .. } if prompt > limit => {
            anyhow!("the prompt is {prompt} tokens and the model's limit is {limit}; shorten it")
        }
        anemone_session::Error::PromptTooLong { prompt, context }
            if loaded.engine.is_at_converted_limit() =>
        {
            anyhow!(
                "the prompt is {prompt} tokens and the bundle holds {context}; shorten it or convert with --ctx {prompt} or more"
            )
        }
        error => error.into(),
    }
}

/// Tools and editors end a text with a newline, which is no part of a prompt.
fn without_newline(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
    }
    if text.ends_with('\r') {
        text.pop();
    }
    text
}

fn render(
    prompt: &str,
    system: Option<&str>,
    template: &ChatTemplate,
    structure: &Structure,
) -> Result<String> {
    let mut messages: Vec<Message> = system.map(Message::system).into_iter().collect();
    messages.push(Message::user(prompt));
    let options = RenderOptions { tools: structure.shown_tools(), ..RenderOptions::default() };
    Ok(template.render(&messages, &options)?)
}
