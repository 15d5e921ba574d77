//! Letters and the scripts they belong to.

use unicode_normalization::char::canonical_combining_class;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

use super::tables;

/// Name of the Latin script.
pub(super) const LATIN: &str = "latin";
/// Name of what belongs to no script known here.
pub(super) const OTHER: &str = "other";
/// Name of the script of a text without letters.
pub(super) const UNKNOWN: &str = "unknown";

/// Share of letters from which scripts other than Latin are more than a name in passing.
const CARRYING: f64 = 0.2;
/// The same where there are many such letters.
const CARRYING_MANY: f64 = 0.1;
/// What counts as many.
const MANY: usize = 10;

/// Scripts of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scripts {
    /// The one that decides.
    pub(super) script: &'static str,
    /// Share of each, Latin first.
    pub(super) profile: Vec<(&'static str, f64)>,
    /// Letters in all.
    pub(super) letters: usize,
    /// Letters of other scripts than Latin.
    pub(super) non_latin: usize,
    /// There are words of other scripts than Latin.
    pub(super) has_words: bool,
    /// Letters of other scripts say something.
    pub(super) carries: bool,
}

impl Scripts {
    pub(super) fn of(text: &str) -> Self {
        let mut counts: Vec<(&'static str, usize)> = vec![(LATIN, 0)];
        let mut letters = 0;
        for c in text.chars().filter(|c| is_letter(*c)) {
            letters += 1;
            let script = script(c);
            match counts.iter_mut().find(|(name, _)| *name == script) {
                Some((_, n)) => *n += 1,
                None => counts.push((script, 1)),
            }
        }
        let latin = counts[0].1;
        let non_latin = letters - latin;
        counts.retain(|(_, n)| *n > 0);
        let share = |n: usize| n as f64 / letters.max(1) as f64;
        let profile = counts.iter().map(|(name, n)| (*name, share(*n))).collect();
        let largest = |counts: &mut dyn Iterator<Item = &(&'static str, usize)>| {
            counts.fold(None, |best: Option<(&'static str, usize)>, next| match best {
                Some(best) if best.1 >= next.1 => Some(best),
                _ => Some(*next),
            })
        };
        let foreign = largest(&mut counts.iter().filter(|(name, _)| *name != LATIN));
        let has_words = has_foreign_word(text);
        let carries =
            share(non_latin) >= CARRYING || (share(non_latin) >= CARRYING_MANY && non_latin >= MANY);
        let script = match foreign {
            None if latin == 0 => UNKNOWN,
            Some((name, n)) if n >= latin || (has_words && carries) => name,
            _ => LATIN,
        };
        Self { script, profile, letters, non_latin, has_words, carries }
    }

    /// Share of letters that are not Latin.
    pub(super) fn foreign(&self) -> f64 {
        if self.letters == 0 {
            return 0.0;
        }
        1.0 - (self.letters - self.non_latin) as f64 / self.letters as f64
    }
}

/// Whether a character is a letter.
pub(super) fn is_letter(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    c.general_category_group() == GeneralCategoryGroup::Letter
}

/// Whether a character may stand in a word of letters: also numerals that are no decimal digits, such as fractions.
pub(super) fn is_word_letter(c: char) -> bool {
    is_word(c) && c != '_' && c.general_category() != GeneralCategory::DecimalNumber
}

/// Whether a character is part of a word in the widest sense: letters, numerals and the underscore.
pub(super) fn is_word(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || c == '_';
    }
    matches!(c.general_category_group(), GeneralCategoryGroup::Letter | GeneralCategoryGroup::Number)
}

fn within(c: char, ranges: &[(u32, u32)]) -> bool {
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&(c as u32)))
}

fn named(c: char) -> Option<&'static str> {
    tables::SCRIPTS.iter().find(|(_, ranges)| within(c, ranges)).map(|(name, _)| *name)
}

fn script(c: char) -> &'static str {
    match c {
        ..'\u{2B0}' | '\u{1E00}'..='\u{1EFF}' | '\u{FF21}'..='\u{FF3A}' | '\u{FF41}'..='\u{FF5A}' => LATIN,
        _ => named(c).unwrap_or(OTHER),
    }
}

/// Whether a text has two characters of one named script in a row, the first of which is no capital. Accents between
/// them do not count; vowel signs and the script's own punctuation do.
fn has_foreign_word(text: &str) -> bool {
    // Script of the run, and whether it began with a capital.
    let mut run: Option<(&'static str, bool)> = None;
    for c in text.chars() {
        if canonical_combining_class(c) != 0 {
            continue;
        }
        let script = named(c);
        run = match (run, script) {
            (Some((before, capital)), Some(script)) if before == script => {
                if !capital {
                    return true;
                }
                run
            }
            (_, Some(script)) => Some((script, c.is_uppercase())),
            (_, None) => None,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_by_script() {
        let scripts = Scripts::of("Set α to 0.05, ｏｋ ½ Ⅷ");
        assert_eq!(scripts.script, LATIN);
        assert_eq!(scripts.profile, [(LATIN, 7.0 / 8.0), ("greek", 1.0 / 8.0)]);
        assert!(!scripts.has_words && !scripts.carries);
        assert_eq!(Scripts::of("12 !?").script, UNKNOWN);
        assert_eq!(Scripts::of("ﾊﾛｰ").script, OTHER);
        // Half and half: what English cannot read decides.
        assert_eq!(Scripts::of("ab мы").script, "cyrillic");
    }

    #[test]
    fn names_are_no_words() {
        assert!(!has_foreign_word("Ян к.к") && !has_foreign_word("ɐɑ"));
        assert!(has_foreign_word("к\u{301}к") && has_foreign_word("हि") && has_foreign_word("Ян да"));
        assert_eq!(Scripts::of("to Дмитрий").script, "cyrillic", "most letters");
        assert_eq!(Scripts::of("he wrote it to Дмитрий").script, LATIN);
        assert_eq!(Scripts::of("he wrote it to дмитрий").script, "cyrillic");
    }
}
