use super::Finding;

/// README.md and ARCHITECTURE.md, taken together, mention every crate.
pub(super) fn overview(text: Option<&str>, crates: &[String]) -> Vec<Finding> {
    let Some(text) = text else {
        return vec![Finding::new(
            "ARCHITECTURE.md",
            1,
            "there is no README.md and no ARCHITECTURE.md; write them",
        )];
    };
    let mentions = |name: &str| {
        let part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
        text.match_indices(name).any(|(i, _)| {
            let (before, after) = (text[..i].chars().next_back(), text[i + name.len()..].chars().next());
            !before.is_some_and(part) && !after.is_some_and(part)
        })
    };
    let missing = crates.iter().filter(|name| !mentions(name));
    missing
        .map(|name| {
            Finding::new(
                "ARCHITECTURE.md",
                1,
                format!("`{name}` is not mentioned here or in README.md; add it to the map"),
            )
        })
        .collect()
}

/// Relative links point at files that exist. `exists` takes a path relative to the repository.
pub(super) fn links(file: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for target in targets(&without_code(line)) {
            let message = match resolve(file, &target) {
                Some(path) if exists(&path) => continue,
                Some(path) => format!("the link to `{path}` leads nowhere"),
                None => format!("the link `{target}` leaves the repository"),
            };
            findings.push(Finding::new(file, i + 1, message));
        }
    }
    findings
}

fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// The local targets of `[text](target)` and of `[label]: target`.
fn targets(line: &str) -> Vec<String> {
    let inline = line.match_indices("](").map(|(i, _)| &line[i + 2..]).filter_map(|rest| {
        let end = rest.find(')')?;
        rest[..end].split_whitespace().next()
    });
    let label =
        line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
    inline
        .chain(label)
        .map(|target| target.trim_matches(['<', '>']).split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
        .map(str::to_owned)
        .collect()
}

/// The target as seen from the repository's root; `None` when it is above it.
fn resolve(file: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => file.rsplit_once('/').map_or(Vec::new(), |(dir, _)| dir.split('/').collect()),
    };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_is_on_the_map() {
        let crates = ["anemone".to_owned(), "anemone-cpu".to_owned()];
        assert_eq!(overview(Some("`anemone` uses anemone-cpu."), &crates), []);
        let missing = overview(Some("anemone-cpu"), &crates);
        assert!(
            missing.len() == 1 && missing[0].message.contains("`anemone` is not mentioned"),
            "{missing:?}"
        );
        assert!(overview(None, &crates)[0].message.contains("no README.md"));
    }

    #[test]
    fn links_must_lead_somewhere() {
        let exists = |path: &str| ["README.md", "docs/a.md", "crates"].contains(&path);
        let check = |text: &str| links("docs/b.md", text, exists);
        assert_eq!(
            check("[a](a.md#x) [r](../README.md) [c](../crates/ \"t\") [w](https://x.y/z) [h](#h)"),
            []
        );
        assert_eq!(check("`[a](gone.md)`\n```\n[a](gone.md)\n```\n"), []);
        let found = check("text\n[a](a.md) and [b](gone.md)");
        assert_eq!(found, [Finding::new("docs/b.md", 2, "the link to `docs/gone.md` leads nowhere")]);
        assert!(check("[x]: gone.md")[0].message.contains("gone.md"));
        assert!(check("[x](../../etc)")[0].message.contains("leaves the repository"));
    }
}
