//! Languages written in Latin letters, told by their common words.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::script::{is_word, is_word_letter};
use super::tables;

/// Share of letters English does without from which a text is not taken for English.
pub(super) const FOREIGN_RATE: f64 = 0.02;
/// The same where English words speak for English.
const RESCUED_RATE: f64 = 0.06;
/// Words below which nothing is decided.
const MIN_WORDS: usize = 4;

/// A set of languages, a bit for each in the order of the table.
type Set = u16;
const ENGLISH: usize = 0;

struct Words {
    stop: HashMap<&'static str, Set>,
    short_swedish: Vec<&'static str>,
    nordic: Vec<&'static str>,
    collisions: Vec<&'static str>,
    swedish: usize,
}

static WORDS: LazyLock<Words> = LazyLock::new(|| {
    let mut stop: HashMap<&'static str, Set> = HashMap::new();
    for (i, (_, words)) in tables::STOP_WORDS.iter().enumerate() {
        for word in words.split_ascii_whitespace() {
            *stop.entry(word).or_default() |= 1 << i;
        }
    }
    let list = |words: &'static str| words.split_ascii_whitespace().collect();
    Words {
        stop,
        short_swedish: list(tables::SHORT_SWEDISH),
        nordic: list(tables::NORDIC),
        collisions: list(tables::COLLISIONS),
        swedish: tables::STOP_WORDS.iter().position(|(code, _)| *code == "sv").unwrap_or(usize::MAX),
    }
});

/// What the words of a text say.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    /// Place of the language in the table; none when undecided.
    pub(super) language: Option<usize>,
    /// Letters English does without, as a share of all characters.
    pub(super) rate: f64,
    /// It reads as something else than English.
    pub(super) looks_foreign: bool,
}

impl Verdict {
    pub(super) fn of(text: &str) -> Self {
        let rate = foreign_rate(text);
        let text = lower(&without_identifiers(text));
        let words: Vec<&str> = words(&text).collect();
        let language = language(&words, rate);
        let english_only = words.iter().any(|w| known(w) == 1 << ENGLISH);
        let nordic = words.iter().any(|w| WORDS.nordic.contains(w));
        let looks_foreign = rate >= FOREIGN_RATE || (language.is_none() && nordic && !english_only);
        Self { language, rate, looks_foreign }
    }

    /// Code of the language.
    pub(super) fn code(&self) -> Option<&'static str> {
        self.language.map(|i| tables::STOP_WORDS[i].0)
    }

    /// Code of the language if it is another than English.
    pub(super) fn foreign(&self) -> Option<&'static str> {
        self.code().filter(|_| self.language != Some(ENGLISH))
    }

    pub(super) fn is_english(&self) -> bool {
        self.language == Some(ENGLISH) || (self.language.is_none() && !self.looks_foreign)
    }

    /// The same, undecided.
    pub(super) fn withdrawn(self) -> Self {
        Self { language: None, ..self }
    }

    /// The different stop words of the language in a text, lower-case; identifiers count.
    pub(super) fn stop_words(&self, text: &str) -> Vec<String> {
        let Some(language) = self.language else { return Vec::new() };
        let text = lower(text);
        let mut found: Vec<String> =
            words(&text).filter(|word| known(word) >> language & 1 == 1).map(str::to_owned).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn language(words: &[&str], rate: f64) -> Option<usize> {
    let foreign = rate >= FOREIGN_RATE;
    if (2..MIN_WORDS).contains(&words.len()) && words.iter().any(|w| WORDS.short_swedish.contains(w)) {
        return Some(WORDS.swedish);
    }
    if words.len() < MIN_WORDS {
        return None;
    }
    let count = tables::STOP_WORDS.len();
    let (mut scores, mut own) = (vec![0usize; count], 0 as Set);
    let mut collided: Vec<&str> = Vec::new();
    let mut english_only: Vec<&str> = Vec::new();
    for word in words {
        let set = known(word);
        if set.is_power_of_two() && !WORDS.nordic.contains(word) {
            own |= set;
        }
        if set == 1 << ENGLISH && !english_only.contains(word) && english_only.len() < 2 {
            english_only.push(word);
        }
        if WORDS.collisions.contains(word) {
            if collided.contains(word) {
                continue;
            }
            collided.push(word);
        }
        for (i, score) in scores.iter_mut().enumerate() {
            *score += usize::from(set >> i & 1);
        }
    }
    let english = scores[ENGLISH];
    let mut best = ENGLISH;
    let mut most = 0;
    for i in (ENGLISH + 1..count).filter(|i| own >> i & 1 == 1) {
        if scores[i] > most {
            (best, most) = (i, scores[i]);
        }
    }
    if best != ENGLISH {
        let swedish = best == WORDS.swedish
            && words.contains(&"inte")
            && words.contains(&"kan")
            && matches!(words[0], "kan" | "jag" | "vi")
            && english <= 1;
        if most >= 2.max(english + 2) || swedish || (foreign && most >= 2.max(english)) {
            return Some(best);
        }
    }
    let mut accented = words.iter().filter(|w| w.contains(is_foreign));
    let mut one_accented = || accented.next().is_none_or(|first| accented.all(|word| word == first));
    let mut rescued = || rate < RESCUED_RATE && english_only.len() >= 2 && one_accented();
    (english > 0 && (!foreign || rescued())).then_some(ENGLISH)
}

fn is_foreign(c: char) -> bool {
    !c.is_ascii() && tables::FOREIGN_LETTERS.contains(c)
}

fn foreign_rate(text: &str) -> f64 {
    let lowered = text.to_lowercase();
    let all = lowered.chars().count();
    lowered.chars().filter(|c| is_foreign(*c)).count() as f64 / all.max(1) as f64
}

fn lower(text: &str) -> String {
    text.replace('İ', "i").to_lowercase()
}

/// Languages of a stop word.
fn known(word: &str) -> Set {
    WORDS.stop.get(word).copied().unwrap_or(0)
}

/// Runs of letters.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_word_letter(c)).filter(|word| !word.is_empty())
}

/// The text without addresses, file names and versions: what `.` or `@` joins to a word after it.
fn without_identifiers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let mut end = word;
        while rest[end..].starts_with(['.', '@']) {
            let after = &rest[end + 1..];
            match after.find(|c| !is_word(c)).unwrap_or(after.len()) {
                0 => break,
                next => end += 1 + next,
            }
        }
        out.push_str(if end > word { " " } else { &rest[..word] });
        rest = &rest[end..];
        let Some(c) = rest.chars().next() else { return out };
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_left_out() {
        assert_eq!(without_identifiers("see me@x.org, v1.2.3 or (a).b. End"), "see  ,   or (a) . End");
        assert_eq!(without_identifiers("a.. b@ ..c"), "a.. b@ . ");
    }

    #[test]
    fn words_name_languages() {
        let code = |text: &str| Verdict::of(text).code();
        assert_eq!(code("de der die das und ist nicht mit"), Some("de"));
        assert_eq!(code("glömt lösenord"), Some("sv"));
        assert_eq!(code("vi vi vi x"), None, "Nordic languages share the word");
        assert_eq!(code("I met José at the café and we talked about the invoice"), None);
        assert_eq!(code("I met José at the bar and we talked about the invoice"), Some("en"));
        assert_eq!(code("where is my İstanbul order"), Some("en"));
        assert_eq!(code("my card"), None);
    }
}
