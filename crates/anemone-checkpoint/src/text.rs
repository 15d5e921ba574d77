use std::fmt::Write;

const LONGEST: usize = 120;

/// Outside text made fit for a one-line message: quoted, escaped, cut when long.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::from("`");
    for (i, c) in text.chars().enumerate() {
        if i == LONGEST {
            let _ = write!(out, "…` ({} bytes)", text.len());
            return out;
        }
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out.push('`');
    out
}

/// Names joined for a message, the first eight of them.
pub(crate) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() {
        return "nothing".to_owned();
    }
    names.sort_unstable();
    let shown: Vec<String> = names.iter().take(8).map(|name| quote(name)).collect();
    let more = names.len() - shown.len();
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// What a file really is when it is not what its name says: the remains of a failed download or another format.
pub(crate) fn impostor(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const DOWNLOAD: &str = "download the file again, with a token if the model is gated";
    let head = &bytes[..bytes.len().min(512)];
    let start = head.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(0);
    let text = head[start..].to_ascii_lowercase();
    if text.starts_with(b"version https://git-lfs") {
        return Some((
            "a Git LFS pointer, not the file itself",
            "run `git lfs pull` in the checkout, or download it",
        ));
    }
    if text.starts_with(b"<!doctype") || text.starts_with(b"<html") || text.starts_with(b"<?xml") {
        return Some(("a web page saved in place of the file", DOWNLOAD));
    }
    let refusals: [&[u8]; 4] =
        [b"access to model", b"entry not found", b"repository not found", b"invalid credentials"];
    if refusals.iter().any(|refusal| text.starts_with(refusal)) {
        return Some(("a hub's refusal saved in place of the file", DOWNLOAD));
    }
    if head.starts_with(b"GGUF") {
        return Some(("a GGUF file", "pass this file itself as the model"));
    }
    if head.starts_with(b"PK\x03\x04") {
        return Some((
            "a zip archive, probably a PyTorch pickle",
            "convert it to safetensors, or download the safetensors files",
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_keeps_one_line_and_a_bound() {
        assert_eq!(quote("a.b"), "`a.b`");
        assert_eq!(quote("a\nb"), "`a\\nb`");
        assert!(quote(&"x".repeat(1 << 20)).len() < 160);
    }

    #[test]
    fn impostors_are_told_from_files() {
        assert!(impostor(b"version https://git-lfs.github.com/spec/v1\noid").is_some());
        assert!(impostor(b"\n <!DOCTYPE html>").is_some());
        assert!(impostor(b"Access to model x/y is restricted").is_some());
        assert!(impostor(b"GGUF\x03").is_some());
        assert!(impostor(b"{\"a\": 1}").is_none());
        assert!(impostor(b"").is_none());
        assert!(impostor(b"\x10\0\0\0\0\0\0\0{}").is_none());
    }
}
