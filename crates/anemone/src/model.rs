use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anemone_bundle::{Bundle, BundleWeights, DecisionBundle};
use anemone_checkpoint::hub::Progress;
use anemone_checkpoint::{Checkpoint, DecisionCheckpoint, is_hub_id, scan_non_finite};
use anemone_cpu::Model;
use anemone_models::Stack;
use anemone_session::{ChatTemplate, Engine as _, TemplateTokens, Tokenizer};
use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::args::{BundleArg, Chosen, EngineArgs, ModelArgs};
use crate::cli::Shell;
use crate::engine::Engine;
use crate::{demo, machine, output};

/// A model ready to run.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) engine: Engine,
    /// Seconds from the start of opening to an engine that can be fed.
    pub(crate) load_seconds: f64,
}

impl Loaded {
    /// Opens a model and makes an engine for it; `needed` tokens must fit a default context. `traced` is for
    /// [`anemone_session::Traced`].
    pub(crate) fn new(
        model: &ModelArgs,
        engine: &EngineArgs,
        needed: usize,
        traced: bool,
        shell: &Shell,
    ) -> Result<Self> {
        let chosen = engine.chosen()?;
        let path = model.model.as_deref();
        let graph = || match chosen {
            Chosen::Emulator => Engine::emulator(path, engine, traced).map(Some),
            Chosen::CoreMl => Engine::core_ml(path, engine).map(Some),
            Chosen::Cpu | Chosen::Swap => Ok(None),
        };
        let start = Instant::now();
        if !path.is_some_and(Path::exists) {
            // Nothing is downloaded for an engine that could not run it.
            graph()?;
        }
        let checkpoint = open(model, shell)?;
        let engine = match graph()? {
            Some(engine) => engine,
            None => match path.filter(|path| chosen == Chosen::Swap && Bundle::is_bundle(path)) {
                Some(path) => {
                    Engine::until_core_ml(native(&checkpoint, engine, needed)?, Bundle::open(path)?, engine)?
                }
                None => cpu(&checkpoint, engine, needed)?,
            },
        };
        Ok(Self::since(start, checkpoint, engine))
    }

    /// [`Loaded::new`] with the tokenizer, which is read while the weights' pages come in, for generating.
    pub(crate) fn with_tokenizer(
        model: &ModelArgs,
        engine: &EngineArgs,
        needed: usize,
        shell: &Shell,
    ) -> Result<(Self, Tokenizer)> {
        let start = Instant::now();
        let mut loaded = Self::new(model, engine, needed, false, shell)?;
        loaded.engine.check_decodes()?;
        let tokenizer = std::thread::scope(|scope| {
            if let Engine::Cpu(engine) = &loaded.engine {
                let model = engine.model();
                scope.spawn(|| model.touch());
            }
            tokenizer(&loaded.checkpoint)
        })?;
        if let Some(note) = loaded.engine.prompt_note().filter(|_| !shell.quiet) {
            output::note(note);
        }
        loaded.load_seconds = start.elapsed().as_secs_f64();
        Ok((loaded, tokenizer))
    }

    fn since(start: Instant, checkpoint: Checkpoint, engine: Engine) -> Self {
        let load_seconds = start.elapsed().as_secs_f64();
        tracing::debug!(
            model = checkpoint.name(),
            engine = engine.name(),
            load_seconds,
            level = engine.level().name(),
            "loaded"
        );
        Self { checkpoint, engine, load_seconds }
    }

    pub(crate) fn stack(&self) -> &Stack {
        self.engine.stack()
    }

    /// Whether the context is as long as the model allows.
    pub(crate) fn has_longest_context(&self) -> bool {
        self.engine.context_len() >= self.stack().max_position_embeddings
    }

    /// How to get a longer context, where the model allows it.
    pub(crate) fn longer_context(&self) -> &'static str {
        if self.engine.is_at_converted_limit() { "convert with a larger --ctx" } else { "raise --ctx" }
    }

    /// The error of logits that are not finite: names the tensor to blame where there is one.
    pub(crate) fn non_finite(&self, position: usize) -> anyhow::Error {
        let weights = self.checkpoint.weights();
        for name in self.stack().weights().into_iter().map(|w| &w.name) {
            let bad = weights.tensor(name).ok().and_then(|tensor| scan_non_finite(&tensor));
            if let Some(index) = bad {
                return anemone_cpu::Error::NonFiniteWeight { name: name.clone(), index }.into();
            }
        }
        anemone_cpu::Error::NonFiniteLogits { position }.into()
    }
}

/// The native engine on a checkpoint or a bundle's weights.
pub(crate) fn cpu(checkpoint: &Checkpoint, engine: &EngineArgs, needed: usize) -> Result<Engine> {
    Ok(Engine::Cpu(Box::new(native(checkpoint, engine, needed)?)))
}

fn native(checkpoint: &Checkpoint, engine: &EngineArgs, needed: usize) -> Result<anemone_cpu::Engine> {
    let stack = stack(checkpoint)?;
    let options = engine.options(engine.context_len(stack.max_position_embeddings, needed));
    let model = Model::load(stack, &*checkpoint.weights(), options.layout)?;
    Ok(anemone_cpu::Engine::new(Arc::new(model), options)?)
}

impl ModelArgs {
    /// The model with `--bundle` in the place of `--model`; errors when what it names is no bundle.
    pub(crate) fn or_bundle(&self, arg: &BundleArg) -> Result<Self> {
        let Some(path) = &arg.bundle else { return Ok(self.clone()) };
        open_bundle(path)?;
        Ok(Self { model: Some(path.clone()), ..self.clone() })
    }
}

/// The bundle that `--bundle` names.
pub(crate) fn open_bundle(path: &Path) -> Result<Bundle> {
    let flag = || format!("--bundle {}", path.display());
    let is_checkpoint = path.is_file() || path.join("config.json").is_file();
    if path.exists() && !Bundle::is_bundle(path) && is_checkpoint {
        bail!(
            "{}: this is a checkpoint and no bundle (it has no manifest.json); name it with --model, or make a bundle of it \
             with anemone convert --model {} --out DIR",
            flag(),
            path.display()
        );
    }
    Bundle::open(path).with_context(flag)
}

/// Opens the checkpoint that `--model` names, downloading it if it is a hub id.
pub(crate) fn open(args: &ModelArgs, shell: &Shell) -> Result<Checkpoint> {
    let Some(path) = locate(args, shell)? else { return Ok(demo::open()?) };
    if Bundle::is_bundle(&path) {
        let bundle = Bundle::open(&path)?;
        let weights = BundleWeights::open(&bundle)?;
        return Ok(Checkpoint::with_weights(&path, Arc::new(weights))?);
    }
    refuse_package(&path)?;
    let opened = Checkpoint::open(&path);
    match &args.model {
        Some(id) if *id != path => opened.with_context(|| format!("--model {}", id.display())),
        _ => Ok(opened?),
    }
}

/// Opens the decision model that `--model` names, downloading it if it is a hub id.
pub(crate) fn open_decision(args: &ModelArgs, shell: &Shell) -> Result<DecisionCheckpoint> {
    let Some(path) = decision_path(args, shell)? else { return Ok(demo::decision::open()?) };
    let label = || format!("--model {}", args.model.as_deref().unwrap_or(&path).display());
    if DecisionBundle::is_at(&path) {
        return DecisionBundle::open(&path)
            .and_then(|bundle| bundle.verified_checkpoint())
            .with_context(label);
    }
    DecisionCheckpoint::open(&path).with_context(label)
}

/// Where the decision model lies that `--model` names; none for the built-in one.
pub(crate) fn decision_path(args: &ModelArgs, shell: &Shell) -> Result<Option<PathBuf>> {
    let Some(path) = locate(args, shell)? else { return Ok(None) };
    if Bundle::is_bundle(&path) {
        DecisionBundle::open(&path).with_context(|| format!("--model {}", path.display()))?;
    }
    ensure!(
        DecisionCheckpoint::is_at(&path) || !path.join("config.json").is_file(),
        "--model {}: this is a language model, which has no decisions to make; use it with `run`, or pass a decision model (it has \
         rl_agent_config.json)",
        args.model.as_deref().unwrap_or(&path).display()
    );
    Ok(Some(path))
}

/// The path that `--model` names, where a hub id was downloaded to; none for the built-in model.
pub(crate) fn locate(args: &ModelArgs, shell: &Shell) -> Result<Option<PathBuf>> {
    let versioned = |what: &str| {
        let Some(revision) = &args.revision else { return Ok(()) };
        bail!("--revision {revision}: {what}; leave it out, or name a hub id with --model org/name")
    };
    let Some(path) = &args.model else {
        versioned("the built-in model has no other version")?;
        return Ok(None);
    };
    if !path.exists() {
        if path.to_str().is_some_and(|id| id.contains('@')) {
            versioned("--model names a revision already")?;
        }
        if let Some(id) = path.to_str().filter(|id| is_hub_id(id)) {
            return download(id, args, shell).map(Some);
        }
        bail!(
            "--model {}: no such file or directory; pass a model directory, its config.json, a safetensors or GGUF file, \
             or a hub id `org/name[@revision]`",
            path.display()
        );
    }
    versioned("the model is a path on this machine")?;
    Ok(Some(path.clone()))
}

/// Describes the model and checks its tensors' names and shapes.
pub(crate) fn stack(checkpoint: &Checkpoint) -> Result<Stack> {
    anemone_models::load(checkpoint.config(), &*checkpoint.weights()).with_context(|| {
        checkpoint.path().map_or_else(|| checkpoint.name().to_owned(), |d| d.display().to_string())
    })
}

/// The checkpoint's tokenizer.
pub(crate) fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    Ok(Tokenizer::from_bytes(&checkpoint.tokenizer_json()?, checkpoint.tokenizer_config())?)
}

/// The checkpoint's chat template, or the built-in one.
pub(crate) fn template(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let tokens = TemplateTokens::from(tokenizer);
    let template = checkpoint.chat_template().map(|source| ChatTemplate::new(source, tokens.clone()));
    Ok(template.unwrap_or_else(|| ChatTemplate::fallback(tokens))?)
}

fn refuse_package(path: &Path) -> Result<()> {
    if path.extension().is_some_and(|e| e == "mlpackage" || e == "mlmodelc") {
        bail!(
            "--model {}: this is one Core ML package; pass the bundle it belongs to, or the checkpoint it was made from",
            path.display()
        );
    }
    Ok(())
}

fn download(id: &str, args: &ModelArgs, shell: &Shell) -> Result<PathBuf> {
    let hub = shell.env.hub(args.offline, args.revision.as_deref());
    if hub.cache_dir.is_none() {
        return Err(anyhow!(
            "--model {id}: no directory to keep hub models in; set HF_HOME or HOME, or pass a local directory"
        ));
    }
    let bar = (!shell.quiet).then(indicatif::ProgressBar::no_length);
    let style =
        indicatif::ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
    if let (Some(bar), Ok(style)) = (&bar, style) {
        bar.set_style(style);
    }
    let mut last = 0;
    let dir = hub.resolve(id, &mut |p: Progress<'_>| {
        let Some(bar) = &bar else { return };
        let label = format!("{} ({} of {})", p.file, p.number, p.count);
        if bar.is_hidden() && last != p.number {
            output::note(&format!("fetching {label}, {}", machine::bytes(p.total)));
        }
        last = p.number;
        bar.set_message(label);
        bar.set_length(p.total);
        bar.set_position(p.done);
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    dir.with_context(|| format!("--model {id}"))
}
