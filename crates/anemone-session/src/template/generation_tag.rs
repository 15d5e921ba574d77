use std::borrow::Cow;

/// Turns `{% generation %}` … `{% endgeneration %}` into a block that always renders its body.
///
/// Only the word inside the tag is replaced, so that whitespace control stays as written; comments, raw blocks,
/// expressions and strings are left alone.
pub(super) fn replace(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len() + 16);
    let mut rest = source;
    let mut raw = false;
    while let Some(open) = next_open(rest, raw) {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(len) = tag_len(tag) else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(len);
        rest = after;
        let word = if tag.starts_with("{%") { inner(tag) } else { "" };
        match word {
            "raw" => raw = true,
            "endraw" => raw = false,
            _ => {}
        }
        match word {
            "generation" if !raw => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" if !raw => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Where the next tag begins; in a raw block only its end counts.
fn next_open(text: &str, raw: bool) -> Option<usize> {
    text.match_indices('{').map(|(at, _)| at).find(|&at| {
        let tag = &text[at..];
        if raw {
            let word = tag.strip_prefix("{%").map(|t| t.trim_start_matches(['-', '+']).trim_start());
            return word.is_some_and(|word| word.starts_with("endraw"));
        }
        tag.starts_with("{%") || tag.starts_with("{{") || tag.starts_with("{#")
    })
}

/// Length of the tag `text` begins with, its end included; `None` when it does not end.
fn tag_len(text: &str) -> Option<usize> {
    let close = match text.as_bytes().get(1)? {
        b'#' => return text[2..].find("#}").map(|at| at + 4),
        b'{' => "}}",
        _ => "%}",
    };
    let mut quote = None;
    let mut depth = 0usize;
    let mut chars = text[2..].char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => {
                chars.next();
            }
            (Some(open), _) if open == c => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '{') => depth += 1,
            (None, '}') if depth > 0 => depth -= 1,
            (None, _) if depth == 0 && text[2 + at..].starts_with(close) => return Some(2 + at + 2),
            _ => {}
        }
    }
    None
}

fn inner(tag: &str) -> &str {
    tag[2..tag.len() - 2].trim_matches(['-', '+']).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_replaced_and_keep_their_whitespace_control() {
        let cases = [
            ("{% generation %}x{% endgeneration %}", "{% if true %}x{% endif %}"),
            ("{%- generation -%} x {%- endgeneration +%}", "{%- if true -%} x {%- endif +%}"),
            ("{%generation%}{%+endgeneration%}", "{%if true%}{%+endif%}"),
            ("{%\n generation\t%}{% endgeneration%}", "{%\n if true\t%}{% endif%}"),
        ];
        for (source, expected) in cases {
            assert_eq!(replace(source), expected, "{source}");
        }
    }

    #[test]
    fn other_places_are_left_alone() {
        for source in [
            "no tag, only the word generation",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ '{% generation %}' }}",
            "{{ \"\\\"{% generation %}\" }}",
            "{% if add_generation_prompt %}x{% endif %}",
            "{% set generation = 1 %}{{ generation }}",
            "{{ {'a': {'b': 1}} }} generation",
            "{% generation",
            "{{ 'generation ",
            "{",
        ] {
            assert_eq!(replace(source), source);
        }
        let mixed = "{% raw %}{{ '{% endraw %}{% generation %}{% endgeneration %}";
        assert_eq!(replace(mixed), "{% raw %}{{ '{% endraw %}{% if true %}{% endif %}");
    }
}
