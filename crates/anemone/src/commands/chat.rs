use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anemone_session::{
    Answer, ChatTemplate, Conversation, Engine as _, GenerateOptions, Message, RenderOptions, Tokenizer,
};
use anyhow::{Context, Result, anyhow, bail};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::Value;

use crate::answer::{self, Shown};
use crate::args::{BundleArg, EngineArgs, ModelArgs, SamplingArgs};
use crate::cli::Shell;
use crate::energy::{Phases, Watch};
use crate::generation::{self, Stream};
use crate::model::{self, Loaded};
use crate::prefix::{self, PrefixArgs};
use crate::structure::{Structure, StructureArgs};
use crate::{files, interrupt, output, stats};

/// Longest line that is read.
const LINE_LIMIT: u64 = 16 << 20;

const HELP: &str = "/reset         forget the conversation, keep the system message
/system TEXT   set the system message, or remove it when TEXT is empty
/tool TEXT     give the result of a call the model made
/save FILE     write the messages as JSON
/load FILE     go on from messages written by /save
/help          this list
/quit          leave (also Ctrl-D)
//...           a message that begins with one /
Ctrl-C ends an answer; at the prompt it leaves";

/// Talk to a model, line by line
///
/// Answers go to stdout, a line of statistics per turn to stderr. Each turn computes only the tokens that are new.
/// When stdin is not a terminal, every line of it is a message or a command, which makes chats scriptable.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  anemone chat\n  \
                        printf 'tell me a story about a cat.\\n/save chat.json\\n' | anemone chat --seed 1")]
pub(crate) struct Args {
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Print each answer as one JSON object instead of text
    #[arg(long)]
    json_lines: bool,
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
    /// Memory for beginnings the engine no longer holds, as after /reset; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "256M", help_heading = "Prefix cache", value_parser = prefix::size)]
    prefix_cache_memory: u64,
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    interrupt::install()?;
    let structure = args.structure.read()?;
    let (loaded, tokenizer) =
        Loaded::with_tokenizer(&args.model.or_bundle(&args.bundle)?, &args.engine, 0, shell)?;
    let template = model::template(&loaded.checkpoint, &tokenizer)?;
    let mut options =
        generation::options(&args.sampling, &loaded.checkpoint, &loaded.stack().model_type, &tokenizer)?;
    options.prefix_cache = args.prefix.open(&loaded, args.prefix_cache_memory)?;
    let mut input = Input::new()?;
    if matches!(input, Input::Editor(_)) && !shell.quiet {
        output::note(&format!("{}: type a message, /help for commands", loaded.checkpoint.name()));
    }
    let mut chat = Chat {
        loaded,
        tokenizer,
        template,
        options,
        structure,
        show_reasoning: args.structure.reasoning,
        noted: 0,
        conversation: Conversation::new(),
        messages: args.system.iter().map(|text| Message::system(text.as_str())).collect(),
        json_lines: args.json_lines,
        quiet: shell.quiet,
        watch: Watch::begin(args.energy),
    };
    let mut failed = false;
    while let Some(line) = input.line()? {
        match chat.line(&line) {
            Ok(Next::Line) => {}
            Ok(Next::Quit) => break,
            Err(error) if error.is::<output::StdoutClosed>() => return Err(error),
            Err(error) => {
                output::error(&error);
                failed = true;
            }
        }
    }
    // A person has seen the errors; a script needs to be told.
    let failed = failed && matches!(input, Input::Plain);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

enum Input {
    Editor(Box<DefaultEditor>),
    Plain,
}

impl Input {
    fn new() -> Result<Self> {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            return Ok(Self::Editor(Box::new(DefaultEditor::new().context("cannot use the terminal")?)));
        }
        Ok(Self::Plain)
    }

    /// The next line; `None` at the end.
    fn line(&mut self) -> Result<Option<String>> {
        match self {
            Self::Editor(editor) => match editor.readline("> ") {
                Ok(line) => {
                    // A history that cannot grow is no reason to stop.
                    let _ = editor.add_history_entry(&line);
                    Ok(Some(line))
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(error) => Err(anyhow!(error)
                    .context("cannot read from the terminal; send UTF-8, or pipe the lines into stdin")),
            },
            Self::Plain => {
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().take(LINE_LIMIT).read_until(b'\n', &mut bytes);
                if read.context("stdin: cannot read it")? == 0 {
                    return Ok(None);
                }
                if bytes.len() as u64 == LINE_LIMIT {
                    bail!("stdin: a line is longer than {} MiB; split it", LINE_LIMIT >> 20);
                }
                let line = String::from_utf8(bytes).map_err(|error| {
                    let at = error.utf8_error().valid_up_to();
                    anyhow!("stdin: a line is not UTF-8 at its byte {at}; send UTF-8")
                })?;
                Ok(Some(line))
            }
        }
    }
}

enum Next {
    Line,
    Quit,
}

struct Chat {
    loaded: Loaded,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    options: GenerateOptions,
    structure: Structure,
    show_reasoning: bool,
    /// Notes of the engine that were shown.
    noted: usize,
    conversation: Conversation,
    messages: Vec<Message>,
    json_lines: bool,
    quiet: bool,
    watch: Watch,
}

impl Chat {
    fn line(&mut self, line: &str) -> Result<Next> {
        let line = line.trim();
        if line.is_empty() {
            return Ok(Next::Line);
        }
        let Some(command) = line.strip_prefix('/') else { return self.turn(Message::user(line)) };
        if command.starts_with('/') {
            return self.turn(Message::user(command));
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "quit" | "exit" => return Ok(Next::Quit),
            "help" => output::note(HELP),
            "reset" => {
                self.messages.retain(|m| m.role == "system");
                self.conversation.reset(&mut self.loaded.engine);
                self.say("the conversation is forgotten");
            }
            "system" => {
                self.messages.retain(|m| m.role != "system");
                if !rest.is_empty() {
                    self.messages.insert(0, Message::system(rest));
                }
                self.say(if rest.is_empty() { "no system message" } else { "the system message is set" });
            }
            "tool" => return self.result(rest),
            "save" => {
                self.save(file_name("save", rest)?)?;
                self.say(&format!("{} messages saved in {rest}", self.messages.len()));
            }
            "load" => {
                self.messages = load(file_name("load", rest)?)?;
                self.say(&format!("{} messages loaded", self.messages.len()));
            }
            _ => bail!("/{name}: no such command; /help lists them, and // begins a message with /"),
        }
        Ok(Next::Line)
    }

    /// Takes the result of a call; with those of all calls the model goes on.
    fn result(&mut self, text: &str) -> Result<Next> {
        let given = self.messages.iter().rev().take_while(|message| message.role == "tool").count();
        let asked =
            self.messages.len().checked_sub(given + 1).and_then(|at| self.messages[at].tool_calls.as_ref());
        let calls = asked.map_or(0, Vec::len);
        if given >= calls {
            bail!("/tool: no call waits for a result");
        }
        if given + 1 < calls {
            self.messages.push(Message::tool(text));
            self.say(&format!("result {} of {calls}", given + 1));
            return Ok(Next::Line);
        }
        self.turn(Message::tool(text))
    }

    fn turn(&mut self, message: Message) -> Result<Next> {
        generation::refuse_hopeless(&self.tokenizer, &message.text(), self.loaded.engine.context_len())?;
        self.messages.push(message);
        let result = self.answer();
        match result {
            Ok(Some(answer)) => self.messages.push(answer::message(answer)),
            // Broken off before there was anything.
            Ok(None) => drop(self.messages.pop()),
            Err(error) => {
                self.messages.pop();
                return Err(match error.downcast_ref() {
                    Some(anemone_session::Error::PromptTooLong { prompt, context }) => anyhow!(
                        "the conversation is {prompt} tokens and the context holds {context}; {}",
                        self.room()
                    ),
                    _ => error,
                });
            }
        }
        Ok(Next::Line)
    }

    /// Generates the answer to the messages; `None` when it was broken off at once.
    fn answer(&mut self) -> Result<Option<Answer>> {
        let render = RenderOptions { tools: self.structure.shown_tools(), ..RenderOptions::default() };
        let prompt = self.template.render(&self.messages, &render)?;
        let ids = self.tokenizer.encode(&prompt, false)?;
        let read = Some((&self.template, &*prompt));
        let constraint = self.structure.constraint(&self.tokenizer, &self.options.stop_ids, read)?;
        let output = self.structure.output(&self.template, &prompt);
        self.options.keep_special = output.kept_special(&self.tokenizer);
        let shown = Shown::new(output, !self.json_lines, self.show_reasoning, self.quiet);
        let mut stream = Stream::new(!self.json_lines, self.quiet).reading(shown);
        let engine = &mut self.loaded.engine;
        let mut phases = Phases::new(&mut self.watch);
        let answer = self.conversation.generate(
            engine,
            &self.tokenizer,
            &ids,
            &self.options,
            constraint,
            &mut |event| {
                phases.on_event(&event);
                stream.on_event(event)
            },
        )?;
        phases.end(&answer);
        let (first_token, read) = stream.end()?;
        let read = read.unwrap_or_default();
        if self.json_lines {
            let mut report = generation::report(&answer, first_token);
            answer::report(&read, &mut report);
            if let Some(energy) = self.watch.report() {
                report.insert("energy".into(), energy);
            }
            output::json(&Value::Object(report))?;
        }
        let (held, context) = (self.loaded.engine.position(), self.loaded.engine.context_len());
        self.say(&stats::line(&answer, held, context));
        self.watch.line().iter().for_each(|line| self.say(line));
        let notes = self.loaded.engine.notes();
        for note in &notes[self.noted.min(notes.len())..] {
            self.say(note);
        }
        self.noted = notes.len();
        if generation::ran_out_of_context(&answer) {
            output::note(&format!(
                "the context of {context} tokens is full and the answer was cut; {}",
                self.room()
            ));
        }
        Ok((!answer::is_nothing(&answer)).then_some(read))
    }

    /// What to do about a full context.
    fn room(&self) -> String {
        if self.loaded.has_longest_context() {
            "/reset starts over".to_owned()
        } else {
            format!("/reset starts over, or leave and {}", self.loaded.longer_context())
        }
    }

    fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.messages)?;
        files::write_whole("/save", path, |file| Ok(writeln!(file, "{text}")?))
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            output::note(text);
        }
    }
}

fn file_name<'a>(command: &str, rest: &'a str) -> Result<&'a Path> {
    if rest.is_empty() {
        bail!("/{command}: no file; write /{command} FILE");
    }
    Ok(Path::new(rest))
}

fn load(path: &Path) -> Result<Vec<Message>> {
    let text = files::read_text("/load", path)?;
    serde_json::from_str(&text).with_context(|| {
        format!("/load {}: not a list of messages; use a file written by /save", path.display())
    })
}
