use std::path::PathBuf;

use anemone_bundle::DecisionBundle;
use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::LayaOptions;
use anemone_decide::{
    Calibration, Decider, Decisions, Hints, Question, Request, Router, Routes, Value, Windows,
};
use anyhow::{Context, Result, bail, ensure};

use super::runs::Runs;
use super::{Args, Narrowing};
use crate::args::ModelArgs;
use crate::cli::Shell;
use crate::{files, model, output};

/// The model that is known by a name to all who route.
const DEFAULT: &str = "multilingual";

/// A result, and with one model the decisions it is of.
pub(super) type Answered = (Value, Option<Decisions>);

/// What answers: one model, or several and the rule that chooses.
pub(super) enum Models {
    One(Box<Decider>),
    Several(Box<Router>, Hints),
}

impl Models {
    pub(super) fn load(args: &Args, runs: &Runs, shell: &Shell) -> Result<Self> {
        if args.models.len() < 2 {
            ensure!(
                args.task.is_none() && args.lang_guess.is_none() && !args.explain,
                "--task, --lang-guess and --explain are for several models; give --model NAME=PATH for each"
            );
            return Ok(Self::One(Box::new(decider(args, runs, args.models.first(), shell)?)));
        }
        if args.calibration.is_some() {
            bail!("--calibration is for one model; each of several brings its own");
        }
        let mut paths = Vec::new();
        for (i, given) in args.models.iter().enumerate() {
            let Some((name, place)) = given.split_once('=') else {
                bail!("--model {given}: with several models each needs a name, as in --model english=./laya");
            };
            let named = |other: &String| other.split_once('=').is_some_and(|(known, _)| known == name);
            ensure!(
                !args.models[i + 1..].iter().any(named),
                "--model {given}: there is another model of this name; give each its own"
            );
            let place = ModelArgs { model: Some(PathBuf::from(place)), ..args.hub.to_model() };
            let path = model::decision_path(&place, shell)?.context("--model: no path")?;
            paths.push((name.to_owned(), path));
        }
        let mut routes = Routes::empty();
        for (name, path) in &paths {
            routes
                .insert(name, path.display().to_string())
                .with_context(|| format!("--model {name}={}", path.display()))?;
        }
        let names = || paths.iter().map(|(name, _)| name.as_str());
        if !names().any(|name| name == DEFAULT) {
            routes.set_default(names().next().unwrap_or(DEFAULT))?;
        }
        let options = options(args);
        if let Some(packages) = runs.packages() {
            paths.iter().try_for_each(|(_, path)| packages.bundle(Some(path)).map(drop))?;
        }
        let (pack, runs) = (args.pack, runs.clone());
        let load = move |name: &str, repo: &str| {
            let path = paths.iter().find(|(known, _)| known == name).map(|(_, path)| path.as_path());
            let path = path.unwrap_or(std::path::Path::new(repo));
            let opened = |problem: anyhow::Error| anemone_decide::Error::Load {
                model: name.to_owned(),
                problem: format!("{problem:#}"),
            };
            let mut decider = match (DecisionBundle::is_at(path), runs.packages()) {
                (true, Some(packages)) => {
                    packages.open(DecisionBundle::open(path)?, options.threads).map_err(opened)?
                }
                (true, None) => runs.native(&DecisionBundle::open(path)?, options).map_err(opened)?,
                (false, _) => Decider::load(&DecisionCheckpoint::open(path)?, options)?,
            };
            if pack {
                decider.pack()?;
            }
            Ok(decider)
        };
        let hints = Hints {
            model: None,
            task: args.task.clone(),
            language: args.lang.clone(),
            guess: args.lang_guess.clone(),
        };
        Ok(Self::Several(Box::new(Router::new(routes, Router::<Decider>::MAX_LOADED, load)?), hints))
    }

    /// Which model a state would go to, and why; loads none.
    pub(super) fn explain(&self, state: &Value, questions: &[Question]) -> Result<Value> {
        match self {
            Self::One(_) => bail!("--explain is for several models; give --model NAME=PATH for each"),
            Self::Several(router, hints) => Ok(router.routes().route(state, questions, hints)?.to_value()),
        }
    }

    /// Says what the rows of questions that all states are asked leave out of them; with several models nothing is known yet.
    pub(super) fn tell_cuts(&self, questions: &[Question], request: &Request, shell: &Shell) -> Result<()> {
        if let (Self::One(decider), false) = (self, shell.quiet) {
            cuts(decider, questions, request)?.iter().for_each(|note| output::note(note));
        }
        Ok(())
    }

    /// The result about one state, and a note where something was not as asked.
    pub(super) fn decide(
        &mut self,
        args: &Args,
        state: &Value,
        questions: &[Question],
        request: &Request,
    ) -> Result<(Value, Option<String>)> {
        let (decider, routing) = match self {
            Self::One(decider) => (&mut **decider, None),
            Self::Several(router, hints) => {
                let route = router.routes().route(state, questions, hints)?;
                (router.model(&route.model)?, Some(route.to_value()))
            }
        };
        let mut notes =
            if args.narrowing().is_none() { cuts(decider, questions, request)? } else { Vec::new() };
        let mut result = match args.narrowing() {
            Some(Narrowing::Tournament(t)) => decider.decide_tournament(state, questions, t, request)?,
            Some(Narrowing::Shortlist(s)) => decider.decide_shortlist(state, questions, s, request)?,
            None if args.long => {
                let windows = Windows { window: args.window, stride: args.stride };
                let (result, said) = decider.decide_long(state, questions, windows, request)?;
                notes.extend(said);
                result
            }
            None => {
                let decisions = decider.decide(state, questions, request)?;
                with_rows(args, decisions.to_value(), &decisions)
            }
        };
        if let (Value::Map(fields), Some(routing)) = (&mut result, routing) {
            fields.push(("routing".to_owned(), routing));
        }
        Ok((result, (!notes.is_empty()).then(|| notes.join("\n"))))
    }

    /// The result of each state with its own questions, in order; an error of the machine ends it, one of a state is that state's.
    pub(super) fn decide_each(
        &mut self,
        args: &Args,
        asked: &[(&Value, &[Question])],
        request: &Request,
    ) -> Result<Vec<Result<Answered>>> {
        let Self::One(decider) = self else {
            let one = |(state, questions): &(&Value, &[Question])| {
                self.decide(args, state, questions, request).map(|(result, _)| (result, None))
            };
            return Ok(asked.iter().map(one).collect());
        };
        let whole =
            |decisions: Decisions| (with_rows(args, decisions.to_value(), &decisions), Some(decisions));
        match decider.decide_each(asked, request) {
            Ok(decided) => Ok(decided.into_iter().map(|d| Ok(whole(d))).collect()),
            Err(error) if !error.is_request() => Err(error.into()),
            // One of them is at fault; alone, the others are answered.
            Err(_) => {
                let one = |(state, questions): &(&Value, &[Question])| {
                    Ok(whole(decider.decide(state, questions, request)?))
                };
                Ok(asked.iter().map(one).collect())
            }
        }
    }
}

/// A note for each question that does not fit a row as it stands.
fn cuts(decider: &Decider, questions: &[Question], request: &Request) -> Result<Vec<String>> {
    let cut = decider.cut(questions, request)?;
    let note = |(question, cut): (&Question, usize)| {
        format!(
            "question '{}': {cut} tokens of its instructions and options do not fit and are not read; shorten them, or raise --head-max-len",
            question.id
        )
    };
    Ok(questions.iter().zip(cut).filter(|(_, cut)| *cut > 0).map(note).collect())
}

/// The result with each row's tokens and scores, where they were asked for.
pub(super) fn with_rows(args: &Args, mut result: Value, decisions: &Decisions) -> Value {
    if let (true, Value::Map(fields)) = (args.raw, &mut result) {
        fields.push(("rows".to_owned(), decisions.rows()));
    }
    result
}

fn options(args: &Args) -> LayaOptions {
    LayaOptions { threads: args.threads.unwrap_or_else(crate::machine::threads), reduced: args.bf16 }
}

fn decider(args: &Args, runs: &Runs, place: Option<&String>, shell: &Shell) -> Result<Decider> {
    let place = ModelArgs { model: place.map(PathBuf::from), ..args.hub.to_model() };
    let own = place.model.as_deref().filter(|path| DecisionBundle::is_at(path));
    let mut decider = if let Some(packages) = runs.packages() {
        packages.open(packages.bundle(place.model.as_deref())?, options(args).threads)?
    } else if let (Runs::Swap(..), Some(path)) = (runs, own) {
        let label = || format!("--model {}", path.display());
        runs.native(&DecisionBundle::open(path).with_context(label)?, options(args)).with_context(label)?
    } else {
        let checkpoint = model::open_decision(&place, shell)?;
        Decider::load(&checkpoint, options(args)).with_context(|| checkpoint.name().to_owned())?
    };
    if args.pack {
        decider.pack()?;
    }
    if args.bf16 && !decider.engine().has_reduced_products() && !shell.quiet {
        output::note("this processor has no bf16 products; f32 is used");
    }
    if let Some(path) = &args.calibration {
        let label = format!("--calibration {}", path.display());
        let text = files::read_text("--calibration", path)?;
        let map = serde_json::from_str(&text).with_context(|| format!("{label}: not a JSON object"))?;
        *decider.calibration_mut() = Calibration::of_file(&map, &label)?;
    }
    Ok(decider)
}
