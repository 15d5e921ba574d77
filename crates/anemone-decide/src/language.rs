//! The script and language of a state, as far as they say which model can read it.

mod latin;
mod script;
mod segments;
mod tables;

use script::{LATIN, Scripts, UNKNOWN};
use segments::Objection;

use crate::value::{Value, round4};

/// Characters of a state that are read.
const TEXT: usize = 4000;
/// Levels of lists and objects that are entered.
const DEPTH: usize = 6;
/// The least line of a leaf that is looked at alone, in characters.
const LINE: usize = 7;

/// Script and language of a state.
#[derive(Debug, Clone, PartialEq)]
pub struct Detection {
    /// Script that decides; `unknown` without letters.
    pub script: &'static str,
    /// Share of each script among the letters, Latin first.
    pub script_profile: Vec<(&'static str, f64)>,
    /// Code of the language, where the words name one.
    pub language: Option<&'static str>,
    /// Whether a model that knows English alone can read it.
    pub is_english: bool,
    /// Whether no language was named.
    pub language_undecided: bool,
    /// Letters English does without, as a share of all characters.
    pub diacritic_rate: f64,
    /// Share of letters that are not Latin.
    pub non_latin_fraction: f64,
    /// The line that is not English where the whole reads as English.
    pub mixed_segment: Option<String>,
}

impl Detection {
    /// Looks at the texts of a state; keys and numbers do not count. Reads at most 4000 characters of the whole, and each line of each
    /// text once.
    pub fn of(state: &Value) -> Self {
        let mut leaves = Vec::new();
        collect(state, 0, &mut leaves);
        let mut text = String::new();
        let mut room = TEXT;
        for (i, leaf) in leaves.iter().enumerate() {
            if room == 0 {
                break;
            }
            if i > 0 {
                text.push(' ');
                room -= 1;
            }
            let part = head(leaf, room);
            room -= part.chars().count();
            text.push_str(part);
        }
        let mut whole = Self::of_text(&text);
        if !whole.is_english || whole.script != LATIN {
            return whole;
        }
        if let Some((language, line)) = mixed(&leaves) {
            whole.language = Some(language);
            whole.is_english = false;
            whole.language_undecided = false;
            whole.mixed_segment = Some(line.to_owned());
        } else if let Some(objection) = state.as_str().is_none().then(|| objecting(&leaves)).flatten() {
            whole.is_english = false;
            whole.language = objection.language;
            whole.language_undecided = objection.language.is_none();
        }
        whole
    }

    fn of_text(text: &str) -> Self {
        let scripts = Scripts::of(text);
        let mut found = Self {
            script: scripts.script,
            non_latin_fraction: rounded(scripts.foreign()),
            language: None,
            is_english: scripts.script == UNKNOWN,
            language_undecided: true,
            diacritic_rate: 0.0,
            mixed_segment: None,
            script_profile: scripts.profile,
        };
        if scripts.script == LATIN {
            let verdict = segments::verdict(text, scripts.carries);
            found.language = verdict.code();
            found.language_undecided = found.language.is_none();
            found.is_english = verdict.is_english();
            found.diacritic_rate = rounded(verdict.rate);
        }
        found
    }

    /// The detection as an object.
    pub fn to_value(&self) -> Value {
        let text = |text: Option<&str>| text.map_or(Value::Null, Value::text);
        let profile = self.script_profile.iter().map(|(name, p)| ((*name).to_owned(), Value::Float(*p)));
        let fields = [
            ("script", Value::text(self.script)),
            ("script_profile", Value::Map(profile.collect())),
            ("language", text(self.language)),
            ("is_english", Value::Bool(self.is_english)),
            ("language_undecided", Value::Bool(self.language_undecided)),
            ("diacritic_rate", Value::Float(self.diacritic_rate)),
            ("non_latin_fraction", Value::Float(self.non_latin_fraction)),
            ("mixed_segment", text(self.mixed_segment.as_deref())),
        ];
        Value::Map(fields.map(|(key, value)| (key.to_owned(), value)).into())
    }
}

fn rounded(v: f64) -> f64 {
    round4(v).as_f64().unwrap_or(v)
}

/// The first characters of a text.
fn head(text: &str, chars: usize) -> &str {
    text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end])
}

fn collect<'a>(value: &'a Value, depth: usize, leaves: &mut Vec<&'a str>) {
    if depth > DEPTH {
        return;
    }
    match value {
        Value::Text(text) => leaves.push(text),
        Value::List(items) => items.iter().for_each(|item| collect(item, depth + 1, leaves)),
        Value::Map(entries) => entries.iter().for_each(|(_, value)| collect(value, depth + 1, leaves)),
        _ => {}
    }
}

/// The first line that names a language other than English, if there is more than one.
fn mixed<'a>(leaves: &[&'a str]) -> Option<(&'static str, &'a str)> {
    let mut lines = leaves.iter().flat_map(|leaf| leaf.split('\n'));
    lines.clone().nth(1)?;
    let mut room = TEXT;
    lines.find_map(|line| {
        let line = head(line, room);
        room -= line.chars().count();
        let line = line.trim();
        segments::foreign_line(line).map(|language| (language, line))
    })
}

/// Of the longest text that has a line which is not English, the longest such line.
fn objecting(leaves: &[&str]) -> Option<Objection> {
    let mut best: Option<(usize, Objection)> = None;
    for leaf in leaves {
        let lines = leaf.split('\n').filter(|line| line.chars().nth(LINE - 1).is_some());
        let objections = lines.filter_map(|line| segments::objection(head(line, TEXT)));
        let Some(longest) = objections.reduce(|a, b| if b.letters > a.letters { b } else { a }) else {
            continue;
        };
        let letters = head(leaf, TEXT).chars().filter(|c| script::is_letter(*c)).count();
        if best.as_ref().is_none_or(|(most, _)| letters > *most) {
            best = Some((letters, longest));
        }
    }
    best.map(|(_, objection)| objection)
}
