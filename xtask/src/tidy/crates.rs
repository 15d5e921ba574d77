use super::Finding;

/// The crates from the bottom up, and for each the ones above the floor it may know.
///
/// The order alone would let too much through: a crate that must not know models is not given them.
const MAY_USE: [(&str, &[&str]); 18] = [
    ("tensor", &[]),
    ("kernels", &["tensor"]),
    ("checkpoint", &["tensor"]),
    ("models", &["tensor", "checkpoint"]),
    ("mil", &["tensor"]),
    ("ane", &["tensor", "models", "mil"]),
    ("palettize", &["tensor", "kernels"]),
    ("bundle", &["tensor", "checkpoint", "mil", "ane", "palettize"]),
    ("emulator", &["tensor", "kernels", "mil", "bundle"]),
    ("coreml", &["tensor", "mil", "bundle"]),
    ("cpu", &["tensor", "kernels", "checkpoint", "models", "palettize", "bundle"]),
    ("calibrate", &["tensor", "kernels", "checkpoint", "cpu", "palettize"]),
    ("session", &["tensor", "checkpoint", "models", "mil", "ane", "bundle", "cpu"]),
    ("verify", &["tensor", "checkpoint", "ane", "session"]),
    ("decide", &["tensor", "checkpoint", "models", "mil", "ane", "bundle", "cpu", "session"]),
    ("table", &["decide"]),
    ("server", &["tensor", "session", "decide"]),
    (
        "anemone",
        &[
            "tensor",
            "kernels",
            "checkpoint",
            "models",
            "mil",
            "ane",
            "palettize",
            "bundle",
            "emulator",
            "coreml",
            "cpu",
            "calibrate",
            "session",
            "verify",
            "decide",
            "table",
            "server",
        ],
    ),
];

/// Dependency direction and inherited lints of one crate's manifest.
pub(super) fn manifest(file: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !inherits_lints(text) {
        findings.push(Finding::new(
            file,
            1,
            "the workspace's lints are not inherited; add `[lints] workspace = true`",
        ));
    }
    let Some(name) = file.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml")) else {
        return findings;
    };
    let short = name.strip_prefix("anemone-").unwrap_or(name);
    let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == short) else {
        let message = format!(
            "`{name}` has no place in the order of crates; add it to the table in xtask/src/tidy/crates.rs"
        );
        findings.push(Finding::new(file, 1, message));
        return findings;
    };
    for (line, dependency) in dependencies(text) {
        if !allowed.contains(&dependency.as_str()) {
            findings.push(Finding::new(file, line, format!("`{name}` must not know `anemone-{dependency}`")));
        }
    }
    findings
}

fn inherits_lints(text: &str) -> bool {
    let mut section = "";
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        let compact: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        if (section == "[lints]" && compact.starts_with("workspace=true"))
            || compact.starts_with("lints.workspace=true")
        {
            return true;
        }
    }
    false
}

/// Line and short name of every `anemone-*` dependency that ships: dev-dependencies are free.
fn dependencies(text: &str) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let mut ships = false;
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let dev = section.contains("dev-dependencies");
            ships = !dev && section.ends_with("dependencies");
            // The long form: a table for one dependency.
            if let Some((_, name)) = section.rsplit_once("dependencies.").filter(|_| !dev) {
                out.extend(name.strip_prefix("anemone-").map(|short| (i + 1, short.to_owned())));
            }
        } else if ships && let Some(rest) = line.strip_prefix("anemone-") {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
            out.push((i + 1, rest[..end].to_owned()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    fn messages(name: &str, text: &str) -> Vec<String> {
        manifest(&format!("crates/{name}/Cargo.toml"), text).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn the_table_only_points_down() {
        for (i, (name, allowed)) in MAY_USE.iter().enumerate() {
            for below in *allowed {
                assert!(MAY_USE[..i].iter().any(|(known, _)| known == below), "{name} -> {below}");
            }
        }
    }

    #[test]
    fn forbidden_dependencies_are_found_in_every_form() {
        let text = |dependency: &str| format!("{LINTS}{dependency}");
        for dependency in [
            "[dependencies]\nanemone-models.workspace = true",
            "[dependencies]\nanemone-models = { path = \"x\" }",
            "[target.'cfg(unix)'.dependencies]\nanemone-models = \"1\"",
            "[build-dependencies]\nanemone-models = \"1\"",
            "[dependencies.anemone-models]\nworkspace = true",
        ] {
            let found = messages("anemone-kernels", &text(dependency));
            assert!(
                found.len() == 1 && found[0].contains("`anemone-kernels` must not know `anemone-models`"),
                "{found:?}"
            );
            assert_eq!(messages("anemone-cpu", &text(dependency)), [""; 0], "{dependency}");
        }
        assert!(
            messages("anemone-kernels", &text("[dependencies]\nx = \"1\"\nanemone-cpu = \"1\""))[0]
                .contains("Cargo.toml:5:")
        );
        assert_eq!(messages("anemone-kernels", &text("[dev-dependencies]\nanemone-cpu = \"1\"")), [""; 0]);
        assert_eq!(
            messages("anemone-kernels", &text("[dev-dependencies.anemone-cpu]\nversion = \"1\"")),
            [""; 0]
        );
        assert!(messages("anemone-what", LINTS)[0].contains("no place in the order"));
    }

    #[test]
    fn lints_must_be_inherited() {
        assert!(messages("anemone-tensor", "[package]\n")[0].contains("lints are not inherited"));
        assert!(
            messages("anemone-tensor", "[lints]\nworkspace = false\n")[0].contains("lints are not inherited")
        );
        assert!(
            messages("anemone-tensor", "[features]\nworkspace = true\n")[0]
                .contains("lints are not inherited")
        );
        assert_eq!(messages("anemone-tensor", "lints.workspace = true\n"), [""; 0]);
        assert!(manifest("xtask/Cargo.toml", "[package]\n")[0].message.contains("lints"));
    }
}
