use crate::Error;

/// A repository and revision that are safe to put into addresses and paths.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) repo: String,
    pub(super) revision: String,
}

impl Spec {
    /// Parses `org/name[@revision]`; a revision in the spec wins over `default`, which wins over `main`.
    pub(super) fn parse(spec: &str, default: Option<&str>) -> Result<Self, Error> {
        let bad = |problem| Error::HubSpec { spec: spec.to_owned(), problem };
        let (repo, revision) = match spec.split_once('@') {
            Some((repo, revision)) => (repo, revision),
            None => (spec, default.unwrap_or("main")),
        };
        let (org, name) = repo.split_once('/').ok_or_else(|| bad("it has no `/`"))?;
        if name.contains('/') {
            return Err(bad("it has more than one `/`"));
        }
        for part in [org, name] {
            if part.is_empty() || part.len() > 96 {
                return Err(bad("each part must have 1 to 96 characters"));
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if !part.chars().all(plain) || part.starts_with(['.', '-']) || part.ends_with('.') {
                return Err(bad("a part has a character that no hub name has"));
            }
            if part.contains("..") || part.contains("--") {
                return Err(bad("`..` and `--` cannot occur in a hub name"));
            }
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+');
        let segments =
            || revision.split('/').all(|s| !s.is_empty() && !s.starts_with('.') && !s.contains(".."));
        if revision.is_empty() || revision.len() > 200 || !revision.chars().all(plain) || !segments() {
            return Err(bad("the revision is not a branch, tag or commit"));
        }
        Ok(Self { repo: repo.to_owned(), revision: revision.to_owned() })
    }
}

/// Whether a revision is a full commit id.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_specs() {
        let spec = |repo: &str, revision: &str| Spec { repo: repo.into(), revision: revision.into() };
        assert_eq!(Spec::parse("a/b", None).unwrap(), spec("a/b", "main"));
        assert_eq!(Spec::parse("a/b", Some("v1")).unwrap(), spec("a/b", "v1"));
        assert_eq!(
            Spec::parse("a/LFM2.5-230M@refs/pr/3", Some("v1")).unwrap(),
            spec("a/LFM2.5-230M", "refs/pr/3")
        );
    }

    #[test]
    fn bad_specs_say_why() {
        for (text, problem) in [
            ("", "no `/`"),
            ("model", "no `/`"),
            ("a/b/c", "more than one"),
            ("/b", "1 to 96"),
            ("a/", "1 to 96"),
            ("../b", "no hub name has"),
            ("a/b c", "no hub name has"),
            ("a/b?x", "no hub name has"),
            ("a/x..y", "cannot occur"),
            ("a--b/c", "cannot occur"),
            ("a/b@", "revision"),
            ("a/b@../../x", "revision"),
            ("a/b@/x", "revision"),
            ("a/b@a%2f", "revision"),
        ] {
            let error = Spec::parse(text, None).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("write `org/name`"), "{text}: {error}");
        }
    }
}
