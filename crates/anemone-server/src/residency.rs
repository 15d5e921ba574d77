//! Which models are in memory, and which go when room is needed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anemone_decide::Use;

use crate::language::{Ending, Language};

/// A model's place among all, decision models first.
pub(crate) type Index = usize;

/// What every model takes and when it was used last, under a budget.
#[derive(Debug)]
pub(crate) struct Residency {
    budget: Option<u64>,
    places: Mutex<Vec<Place>>,
    /// Requests to decision models that wait or run.
    deciding: AtomicUsize,
}

/// A request to decision models, until it is dropped.
#[derive(Debug)]
pub(crate) struct Deciding(Arc<Residency>);

impl Drop for Deciding {
    fn drop(&mut self) {
        self.0.deciding.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Place {
    name: String,
    bytes: u64,
    kind: Kind,
    /// When it was last asked for, or had answered.
    used: Instant,
    /// Why the last attempt to load it failed.
    failed: Option<String>,
}

#[derive(Debug)]
enum Kind {
    /// A decision model, which the models' thread has; whether it is loaded or about to be.
    Decision(bool),
    Language(Option<Language>),
    /// A language model that is being loaded.
    Loading,
}

/// Models that were told to go.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Language models, whose threads end soon.
    pub(crate) languages: Vec<Ending>,
    /// Names of decision models, which the models' thread must drop.
    pub(crate) decisions: Vec<String>,
}

/// What a model's caller is to do.
#[derive(Debug)]
pub(crate) enum Claim {
    /// It runs.
    Here(Language),
    /// There is room for it once these have gone; it must be loaded, and [`Residency::settle`] be told.
    Room(Leaving),
    /// Those in memory are at work, and it does not fit beside them.
    Full,
}

impl Place {
    fn is_present(&self) -> bool {
        match &self.kind {
            Kind::Decision(present) => *present,
            Kind::Language(language) => language.is_some(),
            Kind::Loading => true,
        }
    }

    /// Whether it can go at once.
    fn is_idle(&self) -> bool {
        match &self.kind {
            Kind::Decision(present) => *present,
            Kind::Language(language) => language.as_ref().is_some_and(Language::is_unused),
            Kind::Loading => false,
        }
    }

    /// When it was used last: requests use a model up to their end.
    fn used(&self) -> Instant {
        match &self.kind {
            Kind::Language(Some(language)) => self.used.max(language.given_back()),
            _ => self.used,
        }
    }

    /// Why it cannot answer.
    fn problem(&self) -> Option<String> {
        let dead = |language: &Language| !language.is_running() && !language.is_restartable();
        match &self.kind {
            Kind::Language(Some(language)) => dead(language).then(|| "its thread has ended".to_owned()),
            _ => self.failed.clone(),
        }
    }

    fn leave(&mut self, leaving: &mut Leaving) {
        self.used = self.used();
        match &mut self.kind {
            Kind::Decision(present) => {
                *present = false;
                leaving.decisions.push(self.name.clone());
            }
            Kind::Language(language) => leaving.languages.extend(language.take().map(Language::end)),
            Kind::Loading => {}
        }
    }
}

impl Residency {
    /// No model yet; those that come may take `budget` bytes together.
    pub(crate) fn new(budget: Option<u64>) -> Self {
        Self { budget, places: Mutex::default(), deciding: AtomicUsize::new(0) }
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, name: &str, bytes: u64, kind: Kind) {
        let place = Place { name: name.to_owned(), bytes, kind, used: Instant::now(), failed: None };
        self.places().push(place);
    }

    pub(crate) fn add_decision(&self, name: &str, bytes: u64, present: bool) {
        self.add(name, bytes, Kind::Decision(present));
    }

    pub(crate) fn add_language(&self, name: &str, bytes: u64, running: Option<Language>) {
        self.add(name, bytes, Kind::Language(running));
    }

    /// Whether a model fits beside those that are in memory now.
    pub(crate) fn has_room(&self, index: Index) -> bool {
        let places = self.places();
        let taken: u64 = places.iter().filter(|place| place.is_present()).map(|place| place.bytes).sum();
        places[index].is_present() || self.budget.is_none_or(|budget| taken + places[index].bytes <= budget)
    }

    /// A language model for use, or room for it. Of two callers only one may be at this for the same model.
    pub(crate) fn claim_language(&self, index: Index) -> Claim {
        let mut places = self.places();
        let place = &mut places[index];
        place.used = Instant::now();
        if let Kind::Language(running) = &mut place.kind {
            match running {
                Some(language) if language.is_running() || !language.is_restartable() => {
                    return Claim::Here(language.lent());
                }
                _ => *running = None,
            }
        }
        let Some(leaving) = self.make_room(&mut places, index) else { return Claim::Full };
        places[index].kind = Kind::Loading;
        Claim::Room(leaving)
    }

    /// A language model that runs, for use.
    pub(crate) fn running(&self, index: Index) -> Option<Language> {
        let mut places = self.places();
        let Kind::Language(Some(language)) = &places[index].kind else { return None };
        if !language.is_running() {
            return None;
        }
        let language = language.lent();
        places[index].used = Instant::now();
        Some(language)
    }

    /// Says how loading a language model ended, with the reason when it failed.
    pub(crate) fn settle(&self, index: Index, loaded: Result<Language, String>) {
        let mut places = self.places();
        let place = &mut places[index];
        place.failed = loaded.as_ref().err().cloned();
        (place.kind, place.used) = (Kind::Language(loaded.ok()), Instant::now());
    }

    /// Keeps decision models from being unloaded as unused until it is dropped.
    pub(crate) fn decide(self: &Arc<Self>) -> Deciding {
        self.deciding.fetch_add(1, Ordering::Relaxed);
        Deciding(Arc::clone(self))
    }

    /// Room for a decision model the models' thread is about to load; none when it does not fit beside those at work.
    pub(crate) fn claim_decision(&self, name: &str) -> Option<Leaving> {
        let mut places = self.places();
        let Some(index) = places.iter().position(|p| p.name == name && matches!(p.kind, Kind::Decision(_)))
        else {
            return Some(Leaving::default());
        };
        if places[index].is_present() {
            return Some(Leaving::default());
        }
        let leaving = self.make_room(&mut places, index)?;
        places[index].kind = Kind::Decision(true);
        places[index].used = Instant::now();
        Some(leaving)
    }

    /// Says which decision models the models' thread has after a piece of work, and which ones the work needed, in order.
    pub(crate) fn settle_decisions(&self, loaded: &[String], uses: &[Use]) {
        let mut places = self.places();
        for place in places.iter_mut() {
            if let Kind::Decision(present) = &mut place.kind {
                *present = loaded.contains(&place.name);
            }
        }
        for Use { model, problem } in uses {
            let is_it = |place: &&mut Place| place.name == *model && matches!(place.kind, Kind::Decision(_));
            if let Some(place) = places.iter_mut().find(is_it) {
                (place.used, place.failed) = (Instant::now(), problem.clone());
            }
        }
    }

    /// Has those used longest ago go until a model fits; none, and nothing changed, when it cannot.
    fn make_room(&self, places: &mut [Place], index: Index) -> Option<Leaving> {
        let mut leaving = Leaving::default();
        let Some(budget) = self.budget else { return Some(leaving) };
        let taken: u64 = places.iter().filter(|place| place.is_present()).map(|place| place.bytes).sum();
        let mut over = (taken + places[index].bytes).saturating_sub(budget);
        let mut idle: Vec<Index> =
            (0..places.len()).filter(|&i| i != index && places[i].is_idle() && places[i].bytes > 0).collect();
        idle.sort_by_key(|&i| places[i].used());
        let mut chosen = Vec::new();
        for i in idle {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(places[i].bytes);
            chosen.push(i);
        }
        if over > 0 {
            return None;
        }
        for i in chosen {
            places[i].leave(&mut leaving);
        }
        Some(leaving)
    }

    /// Has all models go that were not used for a while.
    pub(crate) fn expire(&self, unused: Duration) -> Leaving {
        let mut leaving = Leaving::default();
        let deciding = self.deciding.load(Ordering::Relaxed) > 0;
        let may_go = |p: &&mut Place| p.is_idle() && !(deciding && matches!(p.kind, Kind::Decision(_)));
        let mut places = self.places();
        for place in places.iter_mut().filter(may_go).filter(|p| p.used().elapsed() >= unused) {
            place.leave(&mut leaving);
        }
        leaving
    }

    /// Whether a model is in memory.
    pub(crate) fn is_present(&self, index: Index) -> bool {
        self.places()[index].is_present()
    }

    /// Something of a language model, if it is in memory; that counts as no use.
    pub(crate) fn peek<T>(&self, index: Index, look: impl FnOnce(&Language) -> Option<T>) -> Option<T> {
        match &self.places()[index].kind {
            Kind::Language(Some(language)) => look(language),
            _ => None,
        }
    }

    /// Since when no model was used.
    pub(crate) fn idle(&self) -> Duration {
        self.places().iter().map(|place| place.used().elapsed()).min().unwrap_or_default()
    }

    /// The models that cannot answer, with the reason: those that could not be loaded when they were last asked for, and those whose
    /// thread has ended and that cannot be loaded again.
    pub(crate) fn broken(&self) -> Vec<(String, String)> {
        let broken = |place: &Place| Some((place.name.clone(), place.problem()?));
        self.places().iter().filter_map(broken).collect()
    }

    /// Whether there is a model that can answer, as far as is known.
    pub(crate) fn has_whole(&self) -> bool {
        self.places().iter().any(|place| place.problem().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(names: &[&str]) -> Vec<Use> {
        names.iter().map(|name| Use { model: (*name).to_owned(), problem: None }).collect()
    }

    fn three() -> Residency {
        let residency = Residency::new(Some(100));
        for (name, bytes) in [("a", 40), ("b", 50), ("c", 70)] {
            residency.add_decision(name, bytes, false);
        }
        residency
    }

    #[test]
    fn those_used_longest_ago_go_first_and_only_as_many_as_needed() {
        let residency = three();
        assert!(residency.claim_decision("a").unwrap().decisions.is_empty());
        assert!(residency.claim_decision("b").unwrap().decisions.is_empty());
        residency.settle_decisions(&["b".into(), "a".into()], &used(&["b", "a"]));
        assert!(!residency.has_room(2) && residency.has_room(0));
        // 90 are taken; 70 more need 60, which takes both.
        assert_eq!(residency.claim_decision("c").unwrap().decisions, ["b", "a"]);
        assert_eq!(residency.claim_decision("b").unwrap().decisions, ["c"]);
        assert!(residency.claim_decision("unknown").unwrap().decisions.is_empty());
        residency.settle_decisions(&["b".into()], &used(&["b"]));
        assert!(residency.is_present(1) && !residency.is_present(2));
        let residency = Arc::new(residency);
        let deciding = residency.decide();
        assert!(residency.expire(Duration::ZERO).decisions.is_empty(), "a request is at it");
        drop(deciding);
        assert_eq!(residency.expire(Duration::ZERO).decisions, ["b"]);
        assert!(!residency.is_present(1) && residency.expire(Duration::ZERO).decisions.is_empty());
    }

    #[test]
    fn every_model_a_request_needed_counts_as_used() {
        let residency = Residency::new(Some(160));
        for (name, bytes) in [("a", 40), ("b", 50), ("c", 70), ("d", 70)] {
            residency.add_decision(name, bytes, name != "d");
        }
        let all: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        residency.settle_decisions(&all, &used(&["c"]));
        residency.settle_decisions(&all, &used(&["a", "b"]));
        assert_eq!(residency.claim_decision("d").unwrap().decisions, ["c"], "both others were used after it");
        residency.settle_decisions(&all, &[Use { model: "a".into(), problem: Some("no file".into()) }]);
        assert_eq!(residency.broken(), [("a".to_owned(), "no file".to_owned())]);
        residency.settle_decisions(&all, &used(&["a"]));
        assert!(residency.broken().is_empty());
    }

    #[test]
    fn what_is_being_loaded_does_not_go() {
        let residency = three();
        residency.add_language("chat", 60, None);
        let Claim::Room(leaving) = residency.claim_language(3) else { panic!("there is room") };
        assert!(leaving.languages.is_empty() && leaving.decisions.is_empty());
        assert!(residency.claim_decision("c").is_none(), "70 and 60 are more than 100");
        assert!(residency.expire(Duration::ZERO).languages.is_empty());
        residency.settle(3, Err("no file".into()));
        assert_eq!(residency.broken(), [("chat".to_owned(), "no file".to_owned())]);
        assert!(residency.has_whole());
        assert!(residency.claim_decision("c").is_some());
        assert!(matches!(residency.claim_language(3), Claim::Room(leaving) if leaving.decisions == ["c"]));
    }
}
