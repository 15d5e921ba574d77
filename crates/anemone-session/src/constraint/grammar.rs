use llguidance::Matcher;
use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use serde_json::{Map, Value, json};

use super::vocabulary::ConstraintVocabulary;
use crate::{Error, Result};

const LONGEST_REGEX: usize = 64 << 10;
const LONGEST_GRAMMAR: usize = 1 << 20;
/// How many parts of a schema are tried to find the one that cannot be used.
const MOST_TRIED: usize = 200;
/// Longest message that is passed on.
const LONGEST_MESSAGE: usize = 400;

/// What a text must be.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid under a JSON Schema. Written in one line, with a space behind commas and colons, unless the
    /// schema says otherwise with llguidance's `x-guidance`.
    JsonSchema(Value),
    /// A whole match of a regular expression, in the syntax of the crate `regex` without look-around.
    Regex(String),
    /// A grammar in llguidance's variant of Lark, beginning with the rule `start`.
    Lark(String),
}

impl Grammar {
    fn what(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema(_) => "schema",
            Self::Regex(_) => "regex",
            Self::Lark(_) => "grammar",
        }
    }

    pub(super) fn named(&self, name: &str) -> Result<GrammarWithLexer> {
        let error = |problem: String| Error::Grammar { what: self.what(), problem };
        let long = |len: usize, most: usize| {
            let problem = format!("is {len} bytes and at most {most} are allowed; shorten it");
            if len > most { Err(error(problem)) } else { Ok(()) }
        };
        let mut grammar = match self {
            Self::JsonObject => GrammarWithLexer::from_json_schema(in_one_line(json!({"type": "object"}))),
            Self::JsonSchema(Value::Bool(true)) => GrammarWithLexer::from_json_schema(in_one_line(json!({}))),
            Self::JsonSchema(schema @ Value::Object(_)) => {
                long(schema.to_string().len(), LONGEST_GRAMMAR)?;
                GrammarWithLexer::from_json_schema(in_one_line(schema.clone()))
            }
            Self::JsonSchema(Value::Bool(false)) => {
                return Err(error("false allows nothing; give a schema something is valid under".into()));
            }
            Self::JsonSchema(_) => return Err(error("is not an object; give a JSON Schema".into())),
            Self::Regex(regex) => {
                long(regex.len(), LONGEST_REGEX)?;
                GrammarWithLexer::from_regex(regex)
            }
            Self::Lark(text) => {
                long(text.len(), LONGEST_GRAMMAR)?;
                if text.trim().is_empty() {
                    return Err(error("is empty; write a rule named start".into()));
                }
                GrammarWithLexer::from_lark(text.clone())
            }
        };
        grammar.name = Some(name.to_owned());
        Ok(grammar)
    }
}

/// Bounds on time and memory: some tens of milliseconds and some hundred megabytes at the worst.
pub(super) fn limit(limits: &mut ParserLimits) {
    limits.max_lexer_states = 50_000;
    limits.initial_lexer_fuel = 2_000_000;
    limits.verbose_errors = false;
}

/// The schema with JSON's layout fixed, unless it says how.
pub(super) fn in_one_line(mut schema: Value) -> Value {
    if let Value::Object(map) = &mut schema
        && !map.contains_key("x-guidance")
    {
        let layout = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
        map.insert("x-guidance".into(), layout);
    }
    schema
}

/// A matcher of the first grammar, which may refer to the others by name.
pub(super) fn compile(
    vocabulary: &ConstraintVocabulary,
    grammars: Vec<GrammarWithLexer>,
    blame: Option<&Grammar>,
) -> Result<Matcher> {
    match try_compile(vocabulary, grammars) {
        Ok(matcher) => Ok(matcher),
        Err(problem) => {
            let what = blame.map_or("tools", Grammar::what);
            let place = match blame {
                Some(Grammar::JsonSchema(schema)) => place(vocabulary, schema),
                _ => None,
            };
            let (problem, place) = place.map_or((problem, String::new()), |(at, problem)| (problem, at));
            let colon = if place.is_empty() { "" } else { ": " };
            Err(Error::Grammar { what, problem: format!("{place}{colon}{problem}; repair it") })
        }
    }
}

fn try_compile(
    vocabulary: &ConstraintVocabulary,
    grammars: Vec<GrammarWithLexer>,
) -> Result<Matcher, String> {
    let grammar = TopLevelGrammar { grammars, max_tokens: None };
    let parser = vocabulary.factory.create_parser(grammar).map_err(|e| message(&format!("{e:#}")))?;
    let mut matcher = Matcher::new(Ok(parser));
    if let Some(problem) = matcher.get_error() {
        return Err(message(&problem));
    }
    // What can never begin, or is too large for the first token already, is a fault of the grammar and not of the generation.
    match matcher.compute_mask_or_eos() {
        Ok(_) => Ok(matcher),
        Err(error) => Err(message(&error.to_string())),
    }
}

/// The library's message on one line; of a panic it caught, without the backtrace.
pub(super) fn message(text: &str) -> String {
    if text.contains("NoExtensionBias") {
        return "no text can be written under it; give a rule or reference that needs itself a way to end"
            .to_owned();
    }
    let text = text.split("<non-verbose").next().unwrap_or(text);
    let text = text.split("<backtrace>").next().unwrap_or(text);
    let text = &text.replacen("panic: ", "cannot be compiled: ", 1);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((cut, _)) = line.char_indices().nth(LONGEST_MESSAGE) {
        line.truncate(cut);
        line.push('…');
    }
    line
}

/// The deepest part of a schema that cannot be used by itself, as a JSON pointer, and what is wrong with it.
fn place(vocabulary: &ConstraintVocabulary, schema: &Value) -> Option<(String, String)> {
    let definitions: Map<String, Value> = ["$defs", "definitions"]
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), schema.get(key)?.clone())))
        .collect();
    let mut tried = 0;
    let mut at = (String::new(), schema);
    let mut found = None;
    'deeper: loop {
        for (pointer, part) in parts(at.1) {
            tried += 1;
            if tried > MOST_TRIED {
                return found;
            }
            let mut alone = part.clone();
            if let Value::Object(map) = &mut alone {
                for (key, value) in &definitions {
                    map.entry(key.clone()).or_insert_with(|| value.clone());
                }
                // A broken definition would be blamed on every part that does not use it.
                if !uses_references(part) {
                    map.retain(|key, _| !definitions.contains_key(key));
                }
            }
            let grammar = Grammar::JsonSchema(alone).named("part").map(|grammar| vec![grammar]);
            let problem = match grammar {
                Ok(grammars) => try_compile(vocabulary, grammars).err(),
                Err(_) if part.is_object() || part == &Value::Bool(false) => None,
                Err(_) => Some("is not a schema; write an object or a boolean".to_owned()),
            };
            if let Some(problem) = problem {
                at = (format!("{}{pointer}", at.0), part);
                found = Some((format!("#{}", at.0), problem));
                continue 'deeper;
            }
        }
        return found;
    }
}

fn uses_references(schema: &Value) -> bool {
    schema.to_string().contains("\"$ref\"")
}

/// The schemas directly inside a schema.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let mut parts = Vec::new();
    let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
    for key in ["properties", "patternProperties", "$defs", "definitions"] {
        for (name, part) in schema.get(key).and_then(Value::as_object).into_iter().flatten() {
            parts.push((format!("/{key}/{}", escape(name)), part));
        }
    }
    for key in ["anyOf", "oneOf", "allOf", "prefixItems", "items"] {
        for (index, part) in schema.get(key).and_then(Value::as_array).into_iter().flatten().enumerate() {
            parts.push((format!("/{key}/{index}"), part));
        }
    }
    for key in ["items", "additionalProperties", "additionalItems"] {
        parts.extend(schema.get(key).filter(|part| !part.is_array()).map(|part| (format!("/{key}"), part)));
    }
    parts
}
