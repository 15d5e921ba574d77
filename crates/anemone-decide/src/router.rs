//! Several models, loaded when they are needed.

use std::fmt;

use crate::decider::{Decider, Request};
use crate::question::Question;
use crate::route::{Hints, Route, Routes};
use crate::value::Value;
use crate::{Error, Result};

/// Makes a model of its name and place.
type Load<M> = Box<dyn FnMut(&str, &str) -> Result<M> + Send>;
/// Names the models that must go before one is loaded.
type MakeRoom = Box<dyn FnMut(&str) -> Result<Vec<String>> + Send>;

/// That a model was needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Its name.
    pub model: String,
    /// Why it could not be loaded; `None` when it was there, or came.
    pub problem: Option<String>,
}

/// Models by name; as many as allowed stay in memory, and the one used longest ago goes first.
pub struct Router<M = Decider> {
    routes: Routes,
    load: Load<M>,
    max_loaded: usize,
    make_room: Option<MakeRoom>,
    /// The one used last is the last.
    loaded: Vec<(String, M)>,
    /// One for each model, the latest the last.
    uses: Vec<Use>,
}

impl<M> fmt::Debug for Router<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("routes", &self.routes)
            .field("loaded", &self.loaded())
            .finish_non_exhaustive()
    }
}

impl<M> Router<M> {
    /// Models that stay in memory unless told otherwise.
    pub const MAX_LOADED: usize = 2;

    /// A router over named models; `load` makes one of its name and place. Nothing is loaded yet.
    pub fn new(
        routes: Routes,
        max_loaded: usize,
        load: impl FnMut(&str, &str) -> Result<M> + Send + 'static,
    ) -> Result<Self> {
        if max_loaded == 0 {
            let problem = "is 0; at least one model must stay in memory".to_owned();
            return Err(Error::Argument { name: "max_loaded", problem });
        }
        Ok(Self {
            routes,
            load: Box::new(load),
            max_loaded,
            make_room: None,
            loaded: Vec::new(),
            uses: Vec::new(),
        })
    }

    /// Has `make_room` asked before a model is loaded; those it names go. Its error is that of the call that needed the model.
    pub fn before_load(&mut self, make_room: impl FnMut(&str) -> Result<Vec<String>> + Send + 'static) {
        self.make_room = Some(Box::new(make_room));
    }

    /// Drops a model from memory; whether it was there. It is loaded again when it is needed.
    pub fn unload(&mut self, name: &str) -> bool {
        let before = self.loaded.len();
        self.loaded.retain(|(loaded, _)| loaded != name);
        self.loaded.len() < before
    }

    /// Gives a model another name; see [`Routes::insert_alias`].
    pub fn insert_alias(&mut self, alias: &str, name: &str) -> Result<()> {
        self.routes.insert_alias(alias, name)
    }

    /// The models and rules.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Names of the models in memory, the one used last the last.
    pub fn loaded(&self) -> Vec<&str> {
        self.loaded.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// The models that were needed since this was last asked, the one needed last the last.
    pub fn take_uses(&mut self) -> Vec<Use> {
        std::mem::take(&mut self.uses)
    }

    fn note(&mut self, model: &str, problem: Option<String>) {
        self.uses.retain(|earlier| earlier.model != model);
        self.uses.push(Use { model: model.to_owned(), problem });
    }

    /// A model by name or alias, loaded if it is not yet. Room is made before, so that never more than allowed are in memory.
    pub fn model(&mut self, name: &str) -> Result<&mut M> {
        let (name, repo) = self.routes.find(name)?.clone();
        let entry = if let Some(i) = self.loaded.iter().position(|(loaded, _)| *loaded == name) {
            self.loaded.remove(i)
        } else {
            let spare = (self.loaded.len() + 1).saturating_sub(self.max_loaded);
            self.loaded.drain(..spare);
            if let Some(make_room) = &mut self.make_room {
                for gone in make_room(&name)? {
                    self.unload(&gone);
                }
            }
            match (self.load)(&name, &repo) {
                Ok(model) => (name, model),
                Err(error) => {
                    self.note(&name, Some(error.to_string()));
                    return Err(error);
                }
            }
        };
        self.note(&entry.0, None);
        self.loaded.push(entry);
        let last = self.loaded.len() - 1;
        Ok(&mut self.loaded[last].1)
    }
}

impl Router<Decider> {
    /// Answers every question about a state by the model it belongs to; the result object has `routing` at its end.
    ///
    /// The language in the hints also chooses temperatures, unless the request names one.
    pub fn decide(
        &mut self,
        state: &Value,
        questions: &[Question],
        hints: &Hints,
        request: &Request,
    ) -> Result<Value> {
        let mut all = self.decide_all(&[state], questions, hints, request)?;
        Ok(all.pop().unwrap_or(Value::Null))
    }

    /// Answers the same questions about every state, those of one model together. Results are in the order of the states.
    pub fn decide_all(
        &mut self,
        states: &[&Value],
        questions: &[Question],
        hints: &Hints,
        request: &Request,
    ) -> Result<Vec<Value>> {
        let route = |state: &&Value| self.routes.route(state, questions, hints);
        let routes: Vec<Route> = states.iter().map(route).collect::<Result<_>>()?;
        let mut names: Vec<&str> = Vec::new();
        for route in &routes {
            if !names.contains(&route.model.as_str()) {
                names.push(&route.model);
            }
        }
        let mut request = request.clone();
        request.language = request.language.or_else(|| hints.language.clone());
        let mut results: Vec<(usize, Value)> = Vec::with_capacity(states.len());
        for name in names {
            let own = || (0..states.len()).filter(|i| routes[*i].model == name);
            let group: Vec<&Value> = own().map(|i| states[i]).collect();
            let decided = self.model(name)?.decide_all(&group, questions, &request)?;
            results.extend(
                own()
                    .zip(decided)
                    .map(|(i, decisions)| (i, decisions.to_value().with("routing", routes[i].to_value()))),
            );
        }
        results.sort_by_key(|(i, _)| *i);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_used_longest_ago_goes_first() {
        let mut loads = 0;
        let load = move |name: &str, _: &str| {
            loads += 1;
            Ok(format!("{name} {loads}"))
        };
        let mut router = Router::new(Routes::default(), 2, load).unwrap();
        assert_eq!(router.model("en").unwrap(), "english 1");
        assert_eq!(router.model("ml").unwrap(), "multilingual 2");
        assert_eq!(router.model("english").unwrap(), "english 1");
        assert_eq!(router.model("typed").unwrap(), "typed-decisions 3");
        assert_eq!(router.loaded(), ["english", "typed-decisions"]);
        assert_eq!(router.model("ml").unwrap(), "multilingual 4");
        assert_eq!(router.loaded(), ["typed-decisions", "multilingual"]);
        assert!(router.model("none").is_err());
        let uses = router.take_uses();
        let used: Vec<&str> = uses.iter().map(|each| each.model.as_str()).collect();
        assert_eq!(
            used,
            ["english", "typed-decisions", "multilingual"],
            "each once, in the order of the last"
        );
        assert!(uses.iter().all(|each| each.problem.is_none()) && router.take_uses().is_empty());
    }

    #[test]
    fn others_go_where_room_must_be_made() {
        let mut router =
            Router::new(Routes::default(), 3, |name: &str, _: &str| Ok(name.to_owned())).unwrap();
        router.before_load(|name| match name {
            "typed-decisions" => Err(Error::NoRoom { model: name.to_owned() }),
            "multilingual" => Ok(vec!["english".to_owned()]),
            _ => Ok(Vec::new()),
        });
        router.model("en").unwrap();
        router.model("ml").unwrap();
        assert_eq!(router.loaded(), ["multilingual"]);
        let error = router.model("typed").unwrap_err().to_string();
        assert!(error.contains("typed-decisions") && error.contains("try again"), "{error}");
        assert!(router.unload("multilingual") && !router.unload("multilingual"));
        assert!(router.loaded().is_empty());
    }

    #[test]
    fn a_model_that_does_not_load_is_not_kept() {
        let fail = |_: &str, _: &str| -> Result<()> { Err(Error::NoState) };
        let mut router = Router::new(Routes::default(), 1, fail).unwrap();
        assert!(router.model("en").is_err() && router.loaded().is_empty());
        let told = Use { model: "english".to_owned(), problem: Some(Error::NoState.to_string()) };
        assert_eq!(router.take_uses(), [told]);
        assert!(Router::new(Routes::default(), 0, fail).is_err());
    }
}
