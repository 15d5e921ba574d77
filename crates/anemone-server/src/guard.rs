//! Whose requests are answered: the names the server goes by, and the pages that may talk to it.
//!
//! A browser lets any page send requests to this machine, and a page whose name is made to mean this machine can read the answers as
//! well. Both tell on themselves by a header.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::app::App;
use crate::fallback;

/// Which names and pages are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    /// Names the server goes by besides those of this machine; any without.
    pub hosts: Option<Vec<String>>,
    /// Whether requests to an address, which no page can make its own name mean, are answered whatever the names.
    pub addresses: bool,
    /// Origins of other pages that may use it, as `https://example.org`, or `*` for all.
    pub origins: Vec<String>,
}

/// Lets through what comes from where it should.
pub(crate) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.options().guard.refusal(request.headers()) {
        None => next.run(request).await,
        Some(problem) => {
            fallback::refuse(StatusCode::FORBIDDEN, problem, request.uri().path()).into_response()
        }
    }
}

impl Guard {
    /// Whether pages of all origins may use the server.
    pub(crate) fn is_open(&self) -> bool {
        self.origins.iter().any(|origin| origin == "*")
    }

    /// Why a request is not answered.
    fn refusal(&self, headers: &HeaderMap) -> Option<String> {
        let host = match headers.get(HOST).map(|host| host.to_str().ok().and_then(|h| h.parse().ok())) {
            None => None,
            Some(None) => return Some("the Host header is no name of a server".to_owned()),
            Some(Some(host)) => Some::<Authority>(host),
        };
        if let (Some(hosts), Some(host)) = (&self.hosts, &host) {
            let name = host.host();
            let known = is_this_machine(name)
                || self.addresses && is_address(name)
                || hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
            if !known {
                let shown = name.chars().take(100).collect::<String>();
                return Some(format!(
                    "this server does not go by the name '{shown}'; ask for it by its address, or start it with --allow-host {shown} or \
                     an API key"
                ));
            }
        }
        let origin = headers.get(ORIGIN)?;
        let origin = origin.to_str().unwrap_or_default();
        let own = origin.split_once("://").is_some_and(|(_, rest)| {
            host.as_ref().is_some_and(|host| host.as_str().eq_ignore_ascii_case(rest))
        });
        if own || self.is_open() || self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
            return None;
        }
        let shown = origin.chars().take(100).collect::<String>();
        Some(format!("pages of '{shown}' may not use this server; start it with --cors-origin"))
    }
}

/// Whether a name means this machine wherever it is looked up.
fn is_this_machine(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name.eq_ignore_ascii_case("localhost")
        || name == "[::1]"
        || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

/// Whether it is an address and no name.
fn is_address(name: &str) -> bool {
    let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.map_or_else(|| name.parse::<Ipv4Addr>().is_ok(), |inner| inner.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn names_of_this_machine_and_those_allowed_are_answered() {
        let guard = Guard { hosts: Some(vec!["box.lan".into()]), ..Guard::default() };
        for host in [
            "localhost",
            "LocalHost:8000",
            "127.0.0.1:1",
            "127.8.9.1",
            "[::1]:8000",
            "box.lan:80",
            "localhost.",
        ] {
            assert_eq!(guard.refusal(&headers(&[("host", host)])), None, "{host}");
        }
        assert_eq!(guard.refusal(&HeaderMap::new()), None);
        for host in
            ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "a b"]
        {
            let problem = guard.refusal(&headers(&[("host", host)]));
            assert!(problem.is_some(), "{host}");
        }
        assert_eq!(Guard::default().refusal(&headers(&[("host", "evil.example")])), None);
    }

    #[test]
    fn addresses_are_answered_where_names_could_be_anybodys() {
        let guard = Guard { hosts: Some(Vec::new()), addresses: true, ..Guard::default() };
        for host in ["192.168.1.7:8000", "10.0.0.1", "[fe80::1]:8000", "localhost:8000", "127.0.0.1"] {
            assert_eq!(guard.refusal(&headers(&[("host", host)])), None, "{host}");
        }
        for host in ["evil.example", "10.0.0.1.evil.example:8000", "10.0.0", "[evil]"] {
            assert!(guard.refusal(&headers(&[("host", host)])).is_some(), "{host}");
        }
        let problem = guard.refusal(&headers(&[("host", "box.lan:8000")])).unwrap();
        assert!(problem.contains("--allow-host box.lan") && problem.contains("API key"), "{problem}");
    }

    #[test]
    fn pages_of_others_are_not_answered_unless_allowed() {
        let guard = Guard { origins: vec!["https://app.example".into()], ..Guard::default() };
        let origin = |origin| guard.refusal(&headers(&[("host", "localhost:8000"), ("origin", origin)]));
        assert_eq!(origin("http://localhost:8000"), None);
        assert_eq!(origin("https://app.example"), None);
        for other in ["http://localhost:3000", "https://evil.example", "null", "", "https://app.example.evil"]
        {
            assert!(origin(other).unwrap().contains("--cors-origin"), "{other}");
        }
        let open = Guard { origins: vec!["*".into()], ..Guard::default() };
        assert_eq!(open.refusal(&headers(&[("origin", "https://evil.example")])), None);
    }
}
