//! Which of several models answers a request, and why.

use crate::language::Detection;
use crate::question::Question;
use crate::value::{Value, repr};
use crate::{Error, Result};

const ENGLISH: &str = "english";
const MULTILINGUAL: &str = "multilingual";
const TYPED: &str = "typed-decisions";

/// The published models and where they are.
const PUBLISHED: [(&str, &str); 3] = [
    (ENGLISH, "convaiinnovations/laya"),
    (MULTILINGUAL, "convaiinnovations/laya/multilingual"),
    (TYPED, "convaiinnovations/laya/typed-decisions"),
];

/// Other names of the published models.
const ALIASES: [(&str, &str); 10] = [
    ("en", ENGLISH),
    ("laya", ENGLISH),
    ("default", ENGLISH),
    ("multi", MULTILINGUAL),
    ("ml", MULTILINGUAL),
    ("laya-multilingual", MULTILINGUAL),
    ("typed", TYPED),
    ("typed_decisions", TYPED),
    ("laya-typed-decisions", TYPED),
    ("decisions", TYPED),
];

/// Question ids of the workflows that `typed-decisions` was made for.
const WORKFLOWS: [(&str, [&str; 5]); 4] = [
    ("agent_trace_observability", ["action", "needs_review", "outcome", "risk", "urgency"]),
    ("customer_service", ["action", "category", "churn_risk", "needs_human", "urgency"]),
    ("invoice_processing", ["discrepancy_severity", "disposition", "duplicate", "matches_order", "urgency"]),
    ("security_incidents", ["credential_compromise", "disposition", "severity", "true_positive", "urgency"]),
];

/// Language codes that name no language.
const NO_LANGUAGE: [&str; 6] = ["", "c", "posix", "und", "zxx", "mul"];
/// Characters of a line that a reason quotes.
const QUOTED: usize = 60;

/// What a caller knows about where a request belongs; the first that is given decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// Name of the model.
    pub model: Option<String>,
    /// Name of a task, which is that of its model.
    pub task: Option<String>,
    /// Language of the state, as a code or locale.
    pub language: Option<String>,
    /// Language of the state as far as the caller can tell.
    pub guess: Option<String>,
}

/// The model for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Its name.
    pub model: String,
    /// Where it is.
    pub repo: String,
    /// Why it was chosen, for people; clients read it too.
    pub reason: String,
    /// What was found out about the state, where that was needed.
    pub detection: Option<Detection>,
    /// The known workflow the questions are of, whether it counted or not.
    pub workflow: Option<&'static str>,
}

impl Route {
    /// The `routing` object of a result.
    pub fn to_value(&self) -> Value {
        let fields = [
            ("model", Value::text(&self.model)),
            ("repo", Value::text(&self.repo)),
            ("reason", Value::text(&self.reason)),
            ("detection", self.detection.as_ref().map_or(Value::Null, Detection::to_value)),
            ("workflow", self.workflow.map_or(Value::Null, Value::text)),
        ];
        Value::Map(fields.map(|(key, value)| (key.to_owned(), value)).into())
    }
}

/// Models by name, and the rules that choose one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    models: Vec<(String, String)>,
    /// Other names of models, besides those of the published ones.
    aliases: Vec<(String, String)>,
    default: String,
    /// Whether the ids of a known workflow choose its model.
    pub detects_tasks: bool,
    /// Language of states of which nothing else is known.
    pub guess: Option<String>,
}

impl Default for Routes {
    /// The published models at their published places.
    fn default() -> Self {
        let models = PUBLISHED.map(|(name, repo)| (name.to_owned(), repo.to_owned())).into();
        Self {
            models,
            aliases: Vec::new(),
            default: MULTILINGUAL.to_owned(),
            detects_tasks: false,
            guess: None,
        }
    }
}

impl Routes {
    /// No model yet.
    pub fn empty() -> Self {
        Self { models: Vec::new(), ..Self::default() }
    }

    /// Puts a model at a name, in place of one that was there. Names are of `a-z 0-9 . _ -`, begin with a letter or digit, and are not
    /// `auto`; an alias stands for its model.
    pub fn insert(&mut self, name: &str, repo: impl Into<String>) -> Result<()> {
        let wanted = legal(name)?;
        let wanted = alias(&wanted).unwrap_or(&wanted).to_owned();
        match self.models.iter_mut().find(|(name, _)| *name == wanted) {
            Some((_, at)) => *at = repo.into(),
            None => self.models.push((wanted, repo.into())),
        }
        Ok(())
    }

    /// Gives a model another name, which must be one a model could have and that is no model's yet.
    pub fn insert_alias(&mut self, alias: &str, name: &str) -> Result<()> {
        let (wanted, model) = (legal(alias)?, self.find(name)?.0.clone());
        if self.models.iter().any(|(name, _)| *name == wanted) {
            let problem = format!("{} is a model's own name; choose another", repr(alias));
            return Err(Error::Argument { name: "alias", problem });
        }
        self.aliases.retain(|(alias, _)| *alias != wanted);
        self.aliases.push((wanted, model));
        Ok(())
    }

    /// Other names that were given to a model.
    pub fn aliases(&self, model: &str) -> impl Iterator<Item = &str> {
        self.aliases.iter().filter(move |(_, of)| of == model).map(|(alias, _)| alias.as_str())
    }

    /// Chooses the model of states that decide nothing; `multilingual` before.
    pub fn set_default(&mut self, name: &str) -> Result<()> {
        name.clone_into(&mut self.default);
        self.default = self.find(name)?.0.clone();
        Ok(())
    }

    /// Name of the model of states that decide nothing.
    pub fn default_model(&self) -> &str {
        &self.default
    }

    /// Names and places of the models.
    pub fn models(&self) -> &[(String, String)] {
        &self.models
    }

    /// The model of a name or alias.
    pub fn find(&self, name: &str) -> Result<&(String, String)> {
        let wanted = name.trim().to_lowercase();
        let own = self.aliases.iter().find(|(alias, _)| *alias == wanted).map(|(_, name)| name.as_str());
        let canonical = own.or_else(|| alias(&wanted)).unwrap_or(&wanted);
        self.models.iter().find(|(name, _)| name == canonical).ok_or_else(|| {
            let names = self.models.iter().map(|(name, _)| name.as_str());
            let here = |name: &str| self.models.iter().any(|(here, _)| here == name);
            let mut aliases: Vec<&str> = ALIASES.iter().filter(|(_, of)| here(of)).map(|(a, _)| *a).collect();
            aliases.extend(self.aliases.iter().map(|(alias, _)| alias.as_str()));
            aliases.sort_unstable();
            let choices = if aliases.is_empty() {
                listed(names)
            } else {
                format!("{} (or an alias: {})", listed(names), listed(aliases.into_iter()))
            };
            Error::UnknownModel { model: repr(name), choices }
        })
    }

    /// The model for a request, by the hints, the ids of its questions and the text of its state, in this order. In the place of a model
    /// that is not here and was not named stands the default.
    pub fn route(&self, state: &Value, questions: &[Question], hints: &Hints) -> Result<Route> {
        let workflow = workflow(questions);
        let to = |name: &str, reason: String, detection: Option<Detection>| {
            let (model, repo) = self.find(name)?.clone();
            Ok(Route { model, repo, reason, detection, workflow })
        };
        let or_default = |name: &str, reason: String, detection: Option<Detection>| {
            if self.find(name).is_ok() {
                return to(name, reason, detection);
            }
            let reason = format!("{reason}; {name} is not served, using default ({})", self.default);
            to(&self.default, reason, detection)
        };
        if let Some(model) = &hints.model {
            return to(model, format!("explicit model={}", repr(model)), None);
        }
        if let Some(task) = &hints.task {
            return to(task, format!("explicit task={}", repr(task)), None);
        }
        if let Some(name) = workflow.filter(|_| self.detects_tasks) {
            let reason = format!("question ids match the '{name}' typed-decisions workflow");
            return or_default(TYPED, reason, None);
        }
        let by_language = |english: bool| if english { ENGLISH } else { MULTILINGUAL };
        if let Some((code, english)) = named(hints.language.as_deref()) {
            return or_default(by_language(english), format!("explicit lang={}", repr(code)), None);
        }
        for (guess, source) in [(&hints.guess, "lang_guess"), (&self.guess, "Router(lang_guess=...)")] {
            if let Some((_, english)) = named(guess.as_deref()) {
                let what = if english { "English" } else { "non-English" };
                let reason = format!("{source}: the caller identified this as {what} text");
                return or_default(by_language(english), reason, None);
            }
        }
        let detection = Detection::of(state);
        let (name, reason) = self.judge(&detection);
        or_default(name, reason, Some(detection))
    }

    fn judge(&self, found: &Detection) -> (&str, String) {
        let default = &self.default;
        let cannot = "the English checkpoint cannot read it";
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        match (found.script, found.language) {
            ("unknown", _) => (default, format!("no letters detected in state; using default ({default})")),
            ("latin", Some(language)) if !found.is_english => {
                let reason = match &found.mixed_segment {
                    Some(line) => {
                        let line: String = line.chars().take(QUOTED).collect();
                        let line = repr(&line);
                        format!(
                            "Latin script, mostly English, but a line or field reads as '{language}' ({line}); {cannot}"
                        )
                    }
                    None => format!("Latin script but language looks like '{language}', not English"),
                };
                (MULTILINGUAL, reason)
            }
            ("latin", _) if !found.is_english => {
                let letters = percent(found.diacritic_rate);
                let reason = format!(
                    "Latin script, language not identified but {letters} non-English letters; not safe for the English checkpoint"
                );
                (MULTILINGUAL, reason)
            }
            ("latin", _) if found.language_undecided => (
                default,
                format!(
                    "Latin script, language not identified and no non-English letters; using default ({default})"
                ),
            ),
            ("latin", _) => (ENGLISH, "English Latin text".to_owned()),
            (script, _) => {
                let letters = percent(found.non_latin_fraction);
                (MULTILINGUAL, format!("non-Latin script ({script}, {letters} of letters); {cannot}"))
            }
        }
    }
}

/// A name in its one spelling, if a model may have it.
fn legal(name: &str) -> Result<String> {
    let wanted = name.trim().to_lowercase();
    let starts = wanted.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    if wanted == "auto" || !starts || !wanted.chars().all(legal) {
        let problem = format!(
            "name {} is not allowed; use a-z, 0-9, '.', '_' and '-', a letter or digit first, and not 'auto'",
            repr(name)
        );
        return Err(Error::Argument { name: "model", problem });
    }
    Ok(wanted)
}

/// Names as Python shows a list of them.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    format!("[{}]", names.map(repr).collect::<Vec<_>>().join(", "))
}

fn alias(name: &str) -> Option<&'static str> {
    ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, name)| *name)
}

/// The workflow whose ids these are exactly.
fn workflow(questions: &[Question]) -> Option<&'static str> {
    let same = |ids: &[&str; 5]| {
        questions.len() == ids.len() && ids.iter().all(|id| questions.iter().any(|q| q.id == *id))
    };
    WORKFLOWS.iter().find(|(_, ids)| same(ids)).map(|(name, _)| *name)
}

/// A code that names a language, and whether that is English.
fn named(code: Option<&str>) -> Option<(&str, bool)> {
    let code = code?;
    let first = code.split('.').next()?.replace('_', "-");
    let first = first.split('-').next()?.trim().to_lowercase();
    if NO_LANGUAGE.contains(&first.as_str()) {
        return None;
    }
    Some((code, matches!(first.as_str(), "en" | "eng" | "english")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases() {
        let mut routes = Routes::default();
        assert_eq!(routes.find(" Laya ").unwrap().0, "english");
        assert!(
            routes
                .find("laya2")
                .unwrap_err()
                .to_string()
                .starts_with("unknown model 'laya2'; choose one of ['english', ")
        );
        routes.insert("Mine", "./mine").unwrap();
        routes.insert("ml", "./ml").unwrap();
        assert_eq!(routes.find("mine").unwrap().1, "./mine");
        assert_eq!(routes.find("multilingual").unwrap().1, "./ml");
        routes.insert_alias("fast", "mine").unwrap();
        assert_eq!(routes.find("FAST").unwrap().1, "./mine");
        assert_eq!(routes.aliases("mine").collect::<Vec<_>>(), ["fast"]);
        assert!(routes.insert_alias("multilingual", "mine").unwrap_err().to_string().contains("own name"));
        assert!(routes.insert_alias("x", "nobody").is_err() && routes.insert_alias("auto", "mine").is_err());
        for name in ["auto", "a b", "_x", "", "é", "../x"] {
            assert!(routes.insert(name, "x").unwrap_err().to_string().contains("is not allowed"), "{name}");
        }
        assert!(routes.set_default("nope").is_err());
        routes.set_default("en").unwrap();
        let route = routes.route(&Value::text("ok"), &[], &Hints::default()).unwrap();
        assert!(route.model == "english" && route.reason.ends_with("using default (english)"));
    }

    #[test]
    fn the_default_stands_in_for_a_model_that_is_not_here() {
        let mut routes = Routes::empty();
        routes.insert("mine", "./mine").unwrap();
        routes.set_default("mine").unwrap();
        let route = |text: &str, hints: &Hints| routes.route(&Value::text(text), &[], hints);
        let german = Hints { language: Some("de".to_owned()), ..Hints::default() };
        let found = route("x", &german).unwrap();
        assert_eq!(
            (found.model.as_str(), found.reason.as_str()),
            ("mine", "explicit lang='de'; multilingual is not served, using default (mine)")
        );
        let found = route("The invoice was billed twice last week", &Hints::default()).unwrap();
        assert_eq!(found.reason, "English Latin text; english is not served, using default (mine)");
        let named = Hints { model: Some("english".to_owned()), ..Hints::default() };
        let error = route("x", &named).unwrap_err();
        assert!(error.is_request());
        assert_eq!(error.to_string(), "unknown model 'english'; choose one of ['mine']");
    }

    #[test]
    fn hints_are_quoted_and_ordered() {
        let mut routes = Routes { guess: Some("fr".to_owned()), ..Routes::default() };
        let state = Value::text("The invoice was billed twice last week");
        let mut hints = Hints { guess: Some("und".to_owned()), ..Hints::default() };
        let reason = |routes: &Routes, hints: &Hints| routes.route(&state, &[], hints).unwrap().reason;
        assert_eq!(
            reason(&routes, &hints),
            "Router(lang_guess=...): the caller identified this as non-English text"
        );
        routes.guess = None;
        assert_eq!(reason(&routes, &hints), "English Latin text");
        hints.language = Some("it's".to_owned());
        assert_eq!(reason(&routes, &hints), "explicit lang=\"it's\"");
        hints.task = Some(" Typed ".to_owned());
        assert_eq!(reason(&routes, &hints), "explicit task=' Typed '");
        hints.model = Some("EN".to_owned());
        assert_eq!(reason(&routes, &hints), "explicit model='EN'");
    }
}
