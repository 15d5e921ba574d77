/// Rust text taken apart: code with comments and literals blanked, and string literals with everything else blanked.
///
/// Both keep the line structure, so a line number means the same in all of them.
#[derive(Debug)]
pub(super) struct Lexed {
    pub(super) code: Vec<String>,
    pub(super) strings: Vec<String>,
    /// Whether the line belongs to an item under `#[cfg(test)]`.
    pub(super) test: Vec<bool>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Text,
    Other,
}

impl Lexed {
    pub(super) fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let kinds = classify(&chars);
        let view = |kind| {
            let keep = |(&c, &k): (&char, &Kind)| if c == '\n' || k == kind { c } else { ' ' };
            let blanked: String = chars.iter().zip(&kinds).map(keep).collect();
            blanked.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let code = view(Kind::Code);
        let test = test_lines(&code);
        Self { code, strings: view(Kind::Text), test }
    }
}

fn classify(chars: &[char]) -> Vec<Kind> {
    let mut kinds = vec![Kind::Code; chars.len()];
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut i = 0;
    while i < chars.len() {
        let (end, kind) = match at(i) {
            '/' if at(i + 1) == '/' => (until(chars, i, |j| at(j) == '\n'), Kind::Other),
            '/' if at(i + 1) == '*' => (block_comment(chars, i), Kind::Other),
            '"' => (string_end(chars, i), Kind::Text),
            'r' if !is_word(i.checked_sub(1).map_or(' ', at)) || at(i.wrapping_sub(1)) == 'b' => {
                raw(chars, i)
            }
            '\'' => quoted(chars, i),
            _ => (i + 1, Kind::Code),
        };
        kinds[i..end.min(chars.len())].fill(kind);
        i = end.max(i + 1);
    }
    kinds
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn until(chars: &[char], from: usize, stop: impl Fn(usize) -> bool) -> usize {
    (from..chars.len()).find(|&i| stop(i)).unwrap_or(chars.len())
}

fn block_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0usize, start);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// A raw string when there is one at `start`, which holds an `r`.
fn raw(chars: &[char], start: usize) -> (usize, Kind) {
    let open = until(chars, start + 1, |i| chars[i] != '#');
    if chars.get(open) != Some(&'"') {
        return (start + 1, Kind::Code);
    }
    let hashes = open - start - 1;
    let closes = |i: usize| {
        chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    (until(chars, open + 1, closes) + 1 + hashes, Kind::Text)
}

/// A character literal; the quote of a lifetime is code.
fn quoted(chars: &[char], start: usize) -> (usize, Kind) {
    match (chars.get(start + 1), chars.get(start + 2)) {
        (Some('\\'), _) => (until(chars, start + 3, |i| chars[i] == '\'') + 1, Kind::Other),
        (Some(_), Some('\'')) => (start + 3, Kind::Other),
        _ => (start + 1, Kind::Code),
    }
}

/// Lines of every item that follows a `#[cfg(test)]`, up to its closing brace or semicolon.
fn test_lines(code: &[String]) -> Vec<bool> {
    let mut test = vec![false; code.len()];
    let mut line = 0;
    while line < code.len() {
        if !code[line].trim_start().starts_with("#[cfg(test)]") {
            line += 1;
            continue;
        }
        let end = item_end(code, line);
        test[line..=end].fill(true);
        line = end + 1;
    }
    test
}

fn item_end(code: &[String], start: usize) -> usize {
    let mut depth = 0i64;
    for (i, line) in code.iter().enumerate().skip(start) {
        for c in line.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ';' if depth == 0 => return i,
                _ => continue,
            }
            if depth == 0 {
                return i;
            }
        }
    }
    code.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_lifetimes() {
        let text = "let a = \"unsafe // \\\" x\"; // unsafe\nlet b: &'a str = r#\"raw \" unsafe\"#; /* a /* b */ unsafe */ let c = '\"';\nlet d = b\"bytes\"; let r = '\\'';";
        let lexed = Lexed::new(text);
        assert!(
            lexed.code.iter().all(|line| !line.contains("unsafe") && !line.contains("bytes")),
            "{lexed:?}"
        );
        assert!(lexed.strings[0].contains("unsafe // \\\" x"));
        assert!(lexed.strings[1].contains("raw \" unsafe"));
        assert!(lexed.code[1].contains("let c =") && lexed.code[1].contains("&'a str"));
        assert!(lexed.code[2].contains("let r ="));
        assert_eq!(lexed.code.len(), 3);
    }

    #[test]
    fn only_the_test_item_is_a_test() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { let x = \"}\"; }\n}\nfn c() {}\n#[cfg(test)]\nuse x;\nfn d() {}\n";
        assert_eq!(Lexed::new(text).test, [false, true, true, true, true, false, true, true, false]);
    }

    #[test]
    fn unfinished_text_ends() {
        for text in ["\"abc", "r#\"abc", "/* abc", "'", "'\\", "r", "#[cfg(test)]"] {
            assert_eq!(Lexed::new(text).code.len(), 1, "{text}");
        }
    }
}
