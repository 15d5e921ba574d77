//! Texts that a model is run through.

use std::path::Path;

use anemone_session::Tokenizer;
use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use crate::files;

/// The texts of the file that `flag` names: itself, or the `text` of each line when its name ends in `.jsonl`.
pub(crate) fn read(flag: &str, path: &Path) -> Result<Vec<String>> {
    let whole = files::read_text(flag, path)?;
    let texts = if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("jsonl")) {
        lines(&format!("{flag} {}", path.display()), &whole)?
    } else {
        vec![whole]
    };
    ensure!(
        texts.iter().any(|text| !text.trim().is_empty()),
        "{flag} {}: there is no text in it; give some",
        path.display()
    );
    Ok(texts)
}

fn lines(label: &str, whole: &str) -> Result<Vec<String>> {
    let whole = whole.strip_prefix('\u{FEFF}').unwrap_or(whole);
    let lines = whole.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            let place = || format!("{label}, line {}", i + 1);
            let value: Value = serde_json::from_str(line).map_err(|error| {
                let at = error.column();
                anyhow!("{}: not JSON at column {at}; give an object with a \"text\" in each line", place())
            })?;
            let text = value.get("text").and_then(Value::as_str);
            let text =
                text.with_context(|| format!("{}: has no \"text\" that is a string; add it", place()))?;
            Ok(text.to_owned())
        })
        .collect()
}

/// The first `most` tokens of the texts, cut into stretches of at most `length`.
pub(crate) fn windows(
    texts: &[String],
    tokenizer: &Tokenizer,
    most: usize,
    length: usize,
    vocab: usize,
) -> Result<Vec<Vec<u32>>> {
    let mut windows: Vec<Vec<u32>> = Vec::new();
    let mut left = most;
    for text in texts {
        if left == 0 {
            break;
        }
        let tokens = tokenizer.encode(text, true)?;
        if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
            anyhow::bail!(
                "token id {id} is outside the model's {vocab} rows; the tokenizer is of another model"
            );
        }
        let used = tokens.len().min(left);
        windows.extend(tokens[..used].chunks(length).map(<[u32]>::to_vec));
        left -= used;
    }
    ensure!(!windows.is_empty(), "there is no token in it; give a text");
    Ok(windows)
}
