//! Capitals, lines and leaves: where part of a text reads otherwise than the whole.

use std::borrow::Cow;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use super::latin::{FOREIGN_RATE, Verdict, words};
use super::script::{Scripts, is_word, is_word_letter};

/// Letters of a word in capitals from which it speaks for a language.
const SHOUTED_WORD: usize = 5;
/// Letters of a stop word in capitals from which it does.
const SHOUTED_STOP_WORD: usize = 4;
/// Words of a line that is looked at alone.
const LINE_WORDS: usize = 4;

/// The verdict on a Latin text, in which acronyms are not taken for words of a language.
pub(super) fn verdict(text: &str, carries: bool) -> Verdict {
    let verdict = Verdict::of(text);
    if verdict.foreign().is_none() || carries {
        return verdict;
    }
    if !text.contains(char::is_lowercase) {
        let long = words(text).any(|w| w.chars().count() >= SHOUTED_WORD);
        let clear = verdict.rate >= FOREIGN_RATE
            || verdict.stop_words(text).iter().any(|w| w.chars().count() >= SHOUTED_STOP_WORD);
        return if long && clear { verdict } else { verdict.withdrawn() };
    }
    let longest = shouted(text).map(|run| run.chars().count()).max();
    match longest {
        Some(longest) if longest < SHOUTED_WORD => Verdict {
            rate: verdict.rate,
            looks_foreign: verdict.looks_foreign,
            ..Verdict::of(&without_shouted(text))
        },
        _ => verdict,
    }
}

/// Words of two letters or more, in capitals as far as their letters have them.
fn shouted(text: &str) -> impl Iterator<Item = &str> {
    words(text).filter(|word| is_shouted(word))
}

fn is_shouted(word: &str) -> bool {
    let title = |c: char| c.general_category() == GeneralCategory::TitlecaseLetter;
    word.chars().nth(1).is_some()
        && word.contains(char::is_uppercase)
        && !word.contains(|c: char| c.is_lowercase() || title(c))
}

fn without_shouted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_word_letter) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !is_word_letter(c)).unwrap_or(rest.len());
        out.push_str(if is_shouted(&rest[..end]) { " " } else { &rest[..end] });
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// The language other than English a line names, if it is prose of one.
pub(super) fn foreign_line(line: &str) -> Option<&'static str> {
    if is_code(line) {
        return None;
    }
    let mut line: Cow<'_, str> = Cow::Owned(prose(line));
    if line.contains(char::is_lowercase) {
        line = Cow::Owned(without_shouted(&line));
    }
    let verdict = verdict(&line, false);
    let code = verdict.foreign()?;
    (words(&line).nth(LINE_WORDS - 1).is_some() && verdict.stop_words(&line).len() >= 2).then_some(code)
}

fn is_code(line: &str) -> bool {
    let mut before = None;
    for c in line.chars() {
        if "=;{}[]".contains(c) || (c == '(' && before.is_some_and(is_word)) {
            return true;
        }
        before = Some(c);
    }
    false
}

/// A line without paths, addresses and names of code.
fn prose(line: &str) -> String {
    let kept: Vec<&str> = line.split_whitespace().filter(|token| !is_technical(token)).collect();
    kept.join(" ")
}

/// Whether a token has one of `._/\\` between parts of a word.
fn is_technical(token: &str) -> bool {
    let mut chars = token.chars().peekable();
    let mut before = None;
    while let Some(c) = chars.next() {
        if "._/\\".contains(c) && before.is_some_and(is_word) && chars.peek().is_some_and(|c| is_word(*c)) {
            return true;
        }
        before = Some(c);
    }
    false
}

/// A line of a leaf that is not English.
#[derive(Debug)]
pub(super) struct Objection {
    /// Letters of the line.
    pub(super) letters: usize,
    /// Its language, if it names one.
    pub(super) language: Option<&'static str>,
}

/// What a line of a leaf says against English.
pub(super) fn objection(line: &str) -> Option<Objection> {
    if is_code(line) {
        return None;
    }
    let scripts = Scripts::of(line);
    if scripts.script != super::script::LATIN {
        let much = scripts.letters >= 10 && scripts.has_words;
        return much.then_some(Objection { letters: scripts.letters, language: None });
    }
    let verdict = verdict(line, scripts.carries);
    let named = !verdict.is_english() && foreign_line(line).is_some();
    let accented =
        verdict.rate >= FOREIGN_RATE && words(line).nth(LINE_WORDS - 1).is_some() && !verdict.is_english();
    (named || accented).then(|| Objection { letters: scripts.letters, language: verdict.code() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acronyms_name_no_language() {
        let code = |text: &str| verdict(text, false).code();
        assert_eq!(code("MON DES EST LA"), None);
        assert_eq!(code("sag mir das HEUTIGE DATUM"), Some("de"));
        assert_eq!(code("UN x come MIG"), None);
        assert_eq!(code("un x come mig"), Some("it"));
        assert_eq!(without_shouted("API und DB_x 日A日 日本"), "  und  _x   日本");
    }

    #[test]
    fn code_is_no_prose() {
        assert!(is_code("x = 1") && is_code("f(x)") && !is_code("so (it is)"));
        assert_eq!(prose("see a.b/c  and c:\\x, e.g. this."), "see and c:\\x, this.");
        assert_eq!(foreign_line("return das und ist nicht mit;"), None);
        assert_eq!(foreign_line("das und ist nicht mit"), Some("de"));
        assert_eq!(foreign_line("das und ist"), None);
    }
}
