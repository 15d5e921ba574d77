//! The page at `/`: chats and decisions in a browser, out of files that are part of the binary. It asks nobody but this server.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::LazyLock;

use anemone_decide::{Preset, Value};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

/// Scripts, styles and requests of the page's own server and nothing else, and no page around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";
const JSON: &str = "application/json";

#[derive(Debug)]
struct File {
    path: &'static str,
    kind: &'static str,
    text: String,
    tag: String,
}

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    let file = |path, kind, text: &str| {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        File { path, kind, text: text.to_owned(), tag: format!("\"{:016x}\"", hasher.finish()) }
    };
    vec![
        file("/", HTML, include_str!("page/index.html")),
        file("/page/style.css", STYLE, include_str!("page/style.css")),
        file("/page/app.js", SCRIPT, include_str!("page/app.js")),
        file("/page/api.js", SCRIPT, include_str!("page/api.js")),
        file("/page/chat.js", SCRIPT, include_str!("page/chat.js")),
        file("/page/decide.js", SCRIPT, include_str!("page/decide.js")),
        file("/page/dom.js", SCRIPT, include_str!("page/dom.js")),
        file("/page/answers.js", SCRIPT, include_str!("page/answers.js")),
        file("/page/markdown.js", SCRIPT, include_str!("page/markdown.js")),
        file("/page/icon.svg", IMAGE, include_str!("page/icon.svg")),
        file("/page/presets.json", JSON, &presets().to_compact()),
    ]
});

/// The ready-made sets of questions by name.
fn presets() -> Value {
    let entry = |name: &&str| {
        let preset = Preset::named(name).ok()?;
        let parts = [("state_key", Value::text(preset.state_key)), ("questions", preset.questions)];
        Some(((*name).to_owned(), Value::Map(parts.map(|(key, value)| (key.to_owned(), value)).into())))
    };
    Value::Map(Preset::NAMES.iter().filter_map(entry).collect())
}

impl File {
    fn respond(&'static self, headers: &HeaderMap) -> Response {
        let fixed = [
            (CACHE_CONTROL, "no-cache"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (CONTENT_TYPE, self.kind),
            (ETAG, &self.tag),
            (REFERRER_POLICY, "no-referrer"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        if self.is_known(headers) {
            return (StatusCode::NOT_MODIFIED, fixed).into_response();
        }
        (fixed, self.text.as_str()).into_response()
    }

    /// Whether the client has this very text.
    fn is_known(&self, headers: &HeaderMap) -> bool {
        let tags = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let mut tags = tags.flat_map(|list| list.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == self.tag)
    }
}

/// The routes of the page's files, which need no key: they hold nothing of the server's.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> axum::Router<S> {
    FILES.iter().fold(axum::Router::new(), |router, file| {
        router.route(file.path, get(move |headers: HeaderMap| async move { file.respond(&headers) }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_only_files_that_are_there() {
        let known: Vec<&str> = FILES.iter().map(|file| file.path).collect();
        let mut named = 0;
        for file in FILES.iter().filter(|file| file.kind != JSON) {
            for (at, _) in file.text.match_indices("/page/") {
                let rest = &file.text[at..];
                let end = rest.find(['"', '\'', '`', ')', ' ']).unwrap_or(rest.len());
                assert!(known.contains(&&rest[..end]), "{}: {}", file.path, &rest[..end]);
                named += 1;
            }
            for (at, _) in file.text.match_indices("from \"./") {
                let name = file.text[at + 8..].split('"').next().unwrap();
                assert!(known.contains(&format!("/page/{name}").as_str()), "{}: {name}", file.path);
                named += 1;
            }
            // Everything that would be text of a page or of another host.
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "https://",
                " style=",
            ] {
                assert!(!file.text.contains(word), "{} has {word}", file.path);
            }
        }
        assert!(named > 8, "{named} names");
    }

    #[test]
    fn presets_are_those_of_the_crate() {
        let presets = presets();
        assert_eq!(presets.as_map().unwrap().len(), Preset::NAMES.len());
        for name in Preset::NAMES {
            let questions = presets.get(name).unwrap().get("questions").unwrap();
            assert_eq!(*questions, Preset::named(name).unwrap().questions);
        }
    }

    #[test]
    fn a_tag_is_known_in_every_form() {
        let file = &FILES[0];
        let known =
            |value: &str| file.is_known(&HeaderMap::from_iter([(IF_NONE_MATCH, value.parse().unwrap())]));
        assert!(known(&file.tag) && known("*") && known(&format!("\"x\", W/{}", file.tag)));
        assert!(!known("\"x\"") && !file.is_known(&HeaderMap::new()));
        let tags: std::collections::BTreeSet<&str> = FILES.iter().map(|file| file.tag.as_str()).collect();
        assert_eq!(tags.len(), FILES.len());
    }
}
