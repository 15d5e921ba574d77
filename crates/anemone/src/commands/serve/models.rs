use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anemone_bundle::DecisionBundle;
use anemone_checkpoint::{DecisionCheckpoint, Weights, is_hub_id};
use anemone_cpu::{LayaOptions, state_bytes};
use anemone_decide::{Decider, Error, Router, Routes};
use anemone_server::{Language, LanguageModel, LanguageSource, Launch};
use anemone_session::{BatchOptions, Engine as _, GenerateOptions, Together as _};
use anyhow::{Context, Result, bail, ensure};

use super::memory::Needs;
use super::{Args, direct};
use crate::args::{EngineArgs, EngineName, ModelArgs, SpeculationArgs};
use crate::cli::Shell;
use crate::commands::decide::runs::{Packages, Runs};
use crate::model::Loaded;
use crate::prefix::PrefixArgs;
use crate::{demo, generation, model, output};

/// A model that is not loaded yet.
enum Source {
    Native(ModelArgs, Shell),
    /// A bundle's package.
    Packages(DecisionBundle, Packages),
    /// A bundle's weights until Core ML has loaded its package.
    Swap(DecisionBundle, Runs),
}

/// The models of the command line by kind: decision models for one router, and language models.
pub(super) struct Named {
    decisions: Vec<(String, Option<String>)>,
    languages: Vec<(String, Option<String>)>,
}

impl Named {
    /// Finds out what kind each model is; without any, both built-in ones are served.
    pub(super) fn sort(args: &Args, shell: &Shell) -> Result<Self> {
        let mut named = Self { decisions: Vec::new(), languages: Vec::new() };
        if args.model.is_empty() {
            named.decisions.push((demo::decision::NAME.to_owned(), None));
            if args.profile.is_none() && !matches!(args.engine, EngineName::Emulator | EngineName::Coreml) {
                named.languages.push((demo::NAME.to_owned(), None));
            }
            return Ok(named);
        }
        for given in &args.model {
            let (name, place) = split(given)?;
            let label = || format!("--model {name}={}", place.as_deref().unwrap_or(&name));
            Routes::empty().insert(&name, place.as_deref().unwrap_or(&name)).with_context(label)?;
            let known = named.decisions.iter().chain(&named.languages).any(|(other, _)| *other == name);
            ensure!(!known, "--model {given}: there is a model of this name already; give each its own");
            let located = match &place {
                Some(place) => model::locate(&source(place, args), shell)?,
                None => None,
            };
            let path = located.unwrap_or_default();
            let decides = DecisionCheckpoint::is_at(&path) || DecisionBundle::is_at(&path);
            if decides { &mut named.decisions } else { &mut named.languages }.push((name, place));
        }
        Ok(named)
    }

    /// The language models, checked and ready to be loaded, with the memory they may take.
    pub(super) fn languages(&self, args: &Args, shell: &Shell) -> Result<Vec<(LanguageSource, Needs)>> {
        let each = self.languages.iter();
        each.map(|(name, place)| language(name, place.as_deref(), args, shell)).collect()
    }

    /// Names of the language models.
    pub(super) fn language_names(&self) -> Vec<&str> {
        self.languages.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Names of all models.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.decisions.iter().chain(&self.languages).map(|(name, _)| name.as_str())
    }
}

fn source(place: &str, args: &Args) -> ModelArgs {
    ModelArgs { model: Some(PathBuf::from(place)), offline: args.offline, revision: None }
}

/// A language model with all that loading it takes, and the memory it may take.
fn language(name: &str, place: Option<&str>, args: &Args, shell: &Shell) -> Result<(LanguageSource, Needs)> {
    let label =
        place.map_or_else(|| format!("the built-in model {name}"), |place| format!("--model {name}={place}"));
    let empty = ModelArgs { model: None, offline: args.offline, revision: None };
    let source = place.map_or(empty, |place| source(place, args));
    let engine = args.language_engine();
    // What is wrong with it is told now, also when it is loaded later.
    let (weights, stack) = model::open(&source, shell)
        .and_then(|checkpoint| Ok((checkpoint.weight_bytes(), model::stack(&checkpoint)?)))
        .with_context(|| label.clone())?;
    let most = stack.max_position_embeddings;
    if let Some(ctx) = args.ctx.filter(|ctx| *ctx > most) {
        bail!("--ctx {ctx}: the model '{name}' holds at most {most} tokens; lower it, or leave it out");
    }
    let context = engine.context_len(most, 0);
    // Of a bundle's packages there is one sequence.
    let sequences = if engine.engine == EngineName::Cpu { args.max_sequences } else { 1 };
    let all = sequences.saturating_mul(context);
    let tokens = args.max_tokens.map_or(all, |tokens| tokens.min(all));
    // Where all are as long as they can be together, layers that forget take most.
    let each = state_bytes(&stack, &engine.options(context), tokens.div_ceil(sequences));
    let needs = Needs {
        name: name.to_owned(),
        weights,
        caches: each.saturating_mul(sequences as u64),
        tokens,
        prefix: args.prefix_cache_memory,
    };
    let bytes = needs.bytes();
    let loader = Loader {
        name: name.to_owned(),
        label,
        source,
        engine,
        speculation: args.speculation.clone(),
        prefix: args.prefix.clone(),
        prefix_memory: args.prefix_cache_memory,
        sequences: (args.max_sequences, args.max_waiting, args.max_tokens),
        direct: args.direct,
        shell: shell.clone(),
    };
    loader.speculation.speculation()?;
    let load = move |launch: &Launch| loader.load(launch).map_err(|error| format!("{error:#}").into());
    Ok((LanguageSource::new(name, bytes, load), needs))
}

/// Loads a language model, again and again.
struct Loader {
    name: String,
    /// What an error of the model itself begins with.
    label: String,
    source: ModelArgs,
    engine: EngineArgs,
    speculation: SpeculationArgs,
    prefix: PrefixArgs,
    prefix_memory: u64,
    /// That run at once, that wait, and tokens of all.
    sequences: (usize, usize, Option<usize>),
    /// Whether lines of stdin are answered as well.
    direct: bool,
    shell: Shell,
}

impl Loader {
    fn load(&self, launch: &Launch) -> Result<Language> {
        let label = || self.label.clone();
        let (loaded, tokenizer) =
            Loaded::with_tokenizer(&self.source, &self.engine, 0, &self.shell).with_context(label)?;
        let template = model::template(&loaded.checkpoint, &tokenizer).with_context(label)?;
        let defaults = generation::served(&loaded.checkpoint, &loaded.stack().model_type, &tokenizer);
        let prefix_cache = self.prefix.open(&loaded, self.prefix_memory)?;
        let defaults =
            GenerateOptions { speculation: self.speculation.speculation()?, prefix_cache, ..defaults };
        let (max_sequences, max_waiting, max_tokens) = self.sequences;
        let all = max_sequences.saturating_mul(loaded.engine.context_len());
        let max_tokens = max_tokens.unwrap_or(all);
        let batch = BatchOptions { max_sequences, max_waiting, max_tokens, ..BatchOptions::default() };
        if self.direct
            && let Some(sibling) = loaded.engine.sibling()
        {
            let tokenizer = model::tokenizer(&loaded.checkpoint)?;
            direct::start(sibling, tokenizer, defaults.clone(), batch)?;
        }
        let most = loaded.stack().max_position_embeddings;
        // What was converted for fewer tokens cannot be started with more.
        let max_context =
            if loaded.engine.is_at_converted_limit() { loaded.engine.context_len() } else { most };
        let (name, Loaded { engine, .. }) = (self.name.clone(), loaded);
        Ok(launch.start(LanguageModel { name, engine, tokenizer, template, defaults, batch, max_context })?)
    }
}

/// Decision models, and the bytes of their weights by name.
type Opened = (Router<Decider>, Vec<(String, u64)>);

/// The decision models, checked and ready to be loaded, with the bytes of their weights.
pub(super) fn open(
    named: &Named,
    args: &Args,
    options: LayaOptions,
    runs: &Runs,
    shell: &Shell,
) -> Result<Opened> {
    let mut routes = Routes::empty();
    let (mut sources, mut sizes): (HashMap<String, Source>, _) = (HashMap::new(), Vec::new());
    for (name, place) in &named.decisions {
        let label = || format!("--model {name}={}", place.as_deref().unwrap_or(name));
        let before = routes.models().len();
        routes.insert(name, place.as_deref().unwrap_or(name)).with_context(label)?;
        ensure!(
            routes.models().len() > before,
            "{}: there is a model of this name already; give each its own",
            label()
        );
        let source =
            ModelArgs { model: place.as_ref().map(PathBuf::from), offline: args.offline, revision: None };
        let canonical = routes.find(name)?.0.clone();
        let own = source.model.as_deref().filter(|path| DecisionBundle::is_at(path));
        let (source, bytes) = if let Some(packages) = runs.packages() {
            let bundle = packages.bundle(source.model.as_deref())?;
            let bytes = package_bytes(&bundle);
            (Source::Packages(bundle, packages.clone()), bytes)
        } else if let (Runs::Swap(..), Some(path)) = (runs, own) {
            let bundle = DecisionBundle::open(path).with_context(label)?;
            // The native engine's weights and those of the package.
            let bytes =
                weight_bytes(&*model::open_decision(&source, shell)?.weights()) + package_bytes(&bundle);
            (Source::Swap(bundle, runs.clone()), bytes)
        } else {
            let bytes = weight_bytes(&*model::open_decision(&source, shell)?.weights());
            (Source::Native(source, shell.clone()), bytes)
        };
        sizes.push((canonical.clone(), bytes));
        sources.insert(canonical, source);
    }
    let names: Vec<String> = routes.models().iter().map(|(name, _)| name.clone()).collect();
    match &args.default_model {
        Some(name) => routes.set_default(name).with_context(|| format!("--default-model {name}"))?,
        None if routes.find("multilingual").is_ok() || names.is_empty() => (),
        None => routes.set_default(&names[0])?,
    }
    let mut noted = shell.quiet;
    let load = move |name: &str, _: &str| {
        let source = sources.get(name).ok_or_else(|| Error::UnknownModel {
            model: name.to_owned(),
            choices: "those of the command line".to_owned(),
        })?;
        let failed =
            |error: anyhow::Error| Error::Load { model: name.to_owned(), problem: format!("{error:#}") };
        let decider = match source {
            Source::Native(source, shell) => {
                Decider::load(&model::open_decision(source, shell).map_err(failed)?, options)?
            }
            Source::Packages(bundle, packages) => {
                packages.open(bundle.clone(), options.threads).map_err(failed)?
            }
            Source::Swap(bundle, runs) => runs.native(bundle, options).map_err(failed)?,
        };
        if options.reduced && !decider.engine().has_reduced_products() && !noted {
            output::note("this processor has no bf16 products; f32 is used");
            noted = true;
        }
        Ok(decider)
    };
    Ok((Router::new(routes, names.len().max(1), load)?, sizes))
}

fn package_bytes(bundle: &DecisionBundle) -> u64 {
    let weights = bundle.package().join("Data/com.apple.CoreML/weights/weight.bin");
    std::fs::metadata(weights).map_or(0, |file| file.len())
}

fn weight_bytes(weights: &dyn Weights) -> u64 {
    let entries = weights.names().into_iter().filter_map(|name| weights.entry(&name));
    entries.map(|entry| (entry.shape.numel() * entry.dtype.size()) as u64).sum()
}

/// Gives models their other names.
pub(super) fn alias(
    aliases: &[String],
    named: &Named,
    routes: &mut Router<Decider>,
    languages: &mut [LanguageSource],
) -> Result<()> {
    let mut known: Vec<&str> = named.names().collect();
    for given in aliases {
        let flag = || format!("--alias {given}");
        let (alias, name) = given
            .split_once('=')
            .filter(|(alias, name)| !alias.is_empty() && !name.is_empty())
            .with_context(|| format!("{}: write ALIAS=NAME with the name of a model", flag()))?;
        ensure!(
            !known.contains(&alias),
            "{}: there is a model or alias of this name already; choose another",
            flag()
        );
        if let Some((name, _)) = named.decisions.iter().find(|(known, _)| known == name) {
            routes.insert_alias(alias, name).with_context(flag)?;
        } else {
            let language = languages.iter_mut().find(|language| language.name() == name);
            let language = language.with_context(|| {
                format!(
                    "{}: no model is called {name}; there are {}",
                    flag(),
                    named.names().collect::<Vec<_>>().join(", ")
                )
            })?;
            language.add_alias(alias);
        }
        known.push(alias);
    }
    Ok(())
}

/// Name and place of a model. Without a name it has that of its directory or repository.
fn split(given: &str) -> Result<(String, Option<String>)> {
    if let Some((name, place)) =
        given.split_once('=').filter(|(name, _)| !Path::new(given).exists() && !name.contains(['/', '\\']))
    {
        ensure!(!place.is_empty(), "--model {given}: names no place; write NAME=PATH or NAME=org/name");
        return Ok((name.to_owned(), Some(place.to_owned())));
    }
    let path = Path::new(given);
    ensure!(
        path.exists() || is_hub_id(given),
        "--model {given}: no such file or directory; write NAME=PATH with the path of a model, or NAME=org/name for one on the hub"
    );
    let own = if path.exists() { path.canonicalize().ok() } else { None };
    let repository = given.split('@').next().unwrap_or(given);
    let name = own.as_deref().unwrap_or(Path::new(repository)).file_name();
    let name = name.and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
    Ok((name, Some(given.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_given_or_taken_from_the_place() {
        let split = |given: &str| split(given).map(|(name, place)| (name, place.unwrap()));
        assert_eq!(split("english=./x").unwrap(), ("english".to_owned(), "./x".to_owned()));
        assert_eq!(split("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert_eq!(split("org/Laya@v1").unwrap(), ("laya".to_owned(), "org/Laya@v1".to_owned()));
        assert_eq!(split("src").unwrap(), ("src".to_owned(), "src".to_owned()));
        for (given, expected) in
            [("english", "write NAME=PATH"), ("./no/such=x", "no such file"), ("x=", "names no place")]
        {
            let error = split(given).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
