//! The repository's own rules, each a function from text to findings.

mod crates;
mod docs;
mod lexer;
mod size;
mod source;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use lexer::Lexed;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    file: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// Checks the repository at `root`; true when no rule is broken.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let root = root.canonicalize().with_context(|| format!("cannot find {}", root.display()))?;
    let mut files = Vec::new();
    walk(&root, &root, &mut files)?;
    let mut findings = Vec::new();
    let mut sizes = Vec::new();
    let mut crate_names = Vec::new();
    let mut overview = None;
    for file in &files {
        let kind = Path::new(file).extension().and_then(|e| e.to_str()).unwrap_or_default();
        let manifest =
            file == "xtask/Cargo.toml" || (file.starts_with("crates/") && file.ends_with("/Cargo.toml"));
        if !matches!(kind, "rs" | "md") && !manifest {
            continue;
        }
        let path = root.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        match kind {
            "rs" => {
                let lexed = Lexed::new(&text);
                let in_tests = is_test_file(file);
                sizes.push(size::Size::of(file, &text, &lexed, in_tests));
                findings.extend(source::check(file, &text, &lexed, in_tests));
            }
            "md" => {
                findings.extend(docs::links(file, &text, |target| root.join(target).exists()));
                if matches!(file.as_str(), "README.md" | "ARCHITECTURE.md") {
                    overview.get_or_insert_with(String::new).push_str(&text);
                }
            }
            _ => {
                findings.extend(crates::manifest(file, &text));
                if let Some(name) = file.strip_prefix("crates/").and_then(|f| f.strip_suffix("/Cargo.toml")) {
                    crate_names.push(name.to_owned());
                }
            }
        }
    }
    findings.extend(docs::overview(overview.as_deref(), &crate_names));
    findings.extend(size::check(&sizes));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {}; {} findings", size::summary(&sizes), findings.len());
    Ok(findings.is_empty())
}

/// Repository-relative paths with `/`, leaving out hidden and build directories.
fn walk(root: &Path, dir: &Path, out: &mut Vec<String>) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            if !matches!(&*name, "target" | "corpus" | "artifacts" | "node_modules") {
                walk(root, &path, out)?;
            }
        } else if let Ok(relative) = path.strip_prefix(root) {
            let parts: Vec<_> =
                relative.components().map(|part| part.as_os_str().to_string_lossy()).collect();
            out.push(parts.join("/"));
        }
    }
    Ok(())
}

fn is_test_file(file: &str) -> bool {
    let dir = |name: &str| file.split('/').any(|part| part == name);
    dir("tests") || dir("benches") || file.ends_with("/tests.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_repository_fails_and_a_sound_one_passes() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("README.md", "[crate](crates/anemone-tensor) anemone-tensor");
        put("crates/anemone-tensor/Cargo.toml", "[lints]\nworkspace = true\n[dependencies]\n");
        put("crates/anemone-tensor/src/lib.rs", "//! Tensors.\n");
        put("target/x.rs", "todo!()");
        assert!(run(dir.path()).unwrap());
        put("crates/anemone-tensor/src/lib.rs", "fn f() { println!(); }\n");
        assert!(!run(dir.path()).unwrap());
    }
}
