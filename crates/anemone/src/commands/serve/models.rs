use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anemone_bundle::DecisionBundle;
use anemone_checkpoint::{DecisionCheckpoint, is_hub_id};
use anemone_cpu::LayaOptions;
use anemone_decide::{Decider, Error, Router, Routes};
use anemone_emulator::{Emulator, Profile};
use anemone_server::{Language, LanguageModel};
use anemone_session::{BatchOptions, Engine as _, GenerateOptions};
use anyhow::{Context, Result, ensure};

use super::Args;
use crate::args::{EngineName, ModelArgs};
use crate::cli::Shell;
use crate::commands::decide::emulated;
use crate::model::Loaded;
use crate::{demo, generation, model, output};

/// A model that is not loaded yet.
enum Source {
    Native(DecisionCheckpoint),
    Emulated(DecisionBundle, Profile),
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
            if args.profile.is_none() && args.engine != EngineName::Emulator {
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

    /// The language models, loaded and running, with their names.
    pub(super) fn languages(&self, args: &Args, shell: &Shell) -> Result<Vec<Language>> {
        self.languages.iter().map(|(name, place)| language(name, place.as_deref(), args, shell)).collect()
    }
}

fn source(place: &str, args: &Args) -> ModelArgs {
    ModelArgs { model: Some(PathBuf::from(place)), offline: args.offline, revision: None }
}

fn language(name: &str, place: Option<&str>, args: &Args, shell: &Shell) -> Result<Language> {
    let label = || format!("--model {name}={}", place.unwrap_or(name));
    let empty = ModelArgs { model: None, offline: args.offline, revision: None };
    let source = place.map_or(empty, |place| source(place, args));
    let (loaded, tokenizer) =
        Loaded::with_tokenizer(&source, &args.language_engine(), 0, shell).with_context(label)?;
    let template = model::template(&loaded.checkpoint, &tokenizer).with_context(label)?;
    let defaults = generation::served(&loaded.checkpoint, &loaded.stack().model_type, &tokenizer);
    let prefix_cache = args.prefix.open(&loaded, args.prefix_cache_memory).with_context(label)?;
    let defaults = GenerateOptions { speculation: args.speculation.speculation()?, prefix_cache, ..defaults };
    let batch = BatchOptions {
        max_sequences: args.max_sequences,
        max_waiting: args.max_waiting,
        max_tokens: args.max_tokens.unwrap_or(args.max_sequences.saturating_mul(loaded.engine.context_len())),
        ..BatchOptions::default()
    };
    let Loaded { engine, .. } = loaded;
    Ok(Language::start(LanguageModel {
        name: name.to_owned(),
        engine,
        tokenizer,
        template,
        defaults,
        batch,
    })?)
}

/// The decision models, loaded, so that a fault in one is seen now and not by a client.
pub(super) fn open(
    named: &Named,
    args: &Args,
    options: LayaOptions,
    profile: Option<&Profile>,
    shell: &Shell,
) -> Result<Router<Decider>> {
    let mut routes = Routes::empty();
    let mut sources: HashMap<String, Source> = HashMap::new();
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
        let source = match profile {
            Some(profile) => Source::Emulated(emulated::bundle(source.model.as_deref())?, profile.clone()),
            None => Source::Native(model::open_decision(&source, shell)?),
        };
        sources.insert(canonical, source);
    }
    let names: Vec<String> = routes.models().iter().map(|(name, _)| name.clone()).collect();
    match &args.default_model {
        Some(name) => routes.set_default(name).with_context(|| format!("--default-model {name}"))?,
        None if routes.find("multilingual").is_ok() || names.is_empty() => (),
        None => routes.set_default(&names[0])?,
    }
    let load = move |name: &str, _: &str| {
        let source = sources.get(name).ok_or_else(|| Error::UnknownModel {
            model: name.to_owned(),
            choices: "those of the command line".to_owned(),
        })?;
        match source {
            Source::Native(checkpoint) => Decider::load(checkpoint, options),
            Source::Emulated(bundle, profile) => {
                Decider::open(bundle.clone(), Box::new(Emulator::new(profile.clone(), options.threads)))
            }
        }
    };
    let mut models = Router::new(routes, names.len().max(1), load)?;
    for name in &names {
        let decider = models.model(name).with_context(|| format!("--model {name}"))?;
        if options.reduced && !decider.engine().has_reduced_products() && !shell.quiet {
            output::note("this processor has no bf16 products; f32 is used");
        }
    }
    Ok(models)
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
        "--model {given}: no such file or directory; write NAME=PATH with the path of a decision model, or NAME=org/name for one on the hub"
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
