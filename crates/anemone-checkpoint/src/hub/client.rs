use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use ureq::config::RedirectAuthHeaders;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::{Agent, Body, Proxy};

use super::cache::create_parent;
use super::spec::is_commit;
use super::{DEFAULT_ENDPOINT, Hub};
use crate::Error;

const LISTING_LIMIT: u64 = 16 << 20;
const REDIRECT_LIMIT: usize = 5;
const BUFFER: usize = 1 << 18;
const REPORT: u64 = 1 << 20;
const CONNECT: Duration = Duration::from_secs(20);
const STALL: Duration = Duration::from_mins(1);

/// The HTTP side: one repository on one hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    repo: String,
    token: Option<String>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .field("repo", &self.repo)
            .finish_non_exhaustive()
    }
}

/// What the hub says a revision is.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

/// What the hub says a file is.
#[derive(Debug)]
pub(super) struct Meta {
    /// Name of the blob; a SHA-256 for large files.
    pub(super) etag: String,
    pub(super) size: u64,
}

impl Client {
    pub(super) fn new(hub: &Hub, repo: &str) -> Result<Self, Error> {
        let endpoint = hub.endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT).trim_end_matches('/').to_owned();
        let option = |option, problem: String, remedy| Error::HubOption { option, problem, remedy };
        let parsed: Option<Uri> = endpoint.parse().ok();
        if !parsed
            .is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
        {
            let problem = format!("{endpoint:?} is not an address");
            return Err(option("endpoint", problem, "write it as `https://host`"));
        }
        let token = hub.token.as_deref().map(str::trim).filter(|token| !token.is_empty()).map(str::to_owned);
        if token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            let problem = "it has characters that no token has".to_owned();
            return Err(option("token", problem, "copy it again from the hub's settings page"));
        }
        let proxy = match hub.proxy.as_deref() {
            None => None,
            Some(proxy) => Some(Proxy::new(proxy).map_err(|_| {
                option("proxy", "it is not an address".to_owned(), "write it as `http://host:port`")
            })?),
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(proxy)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(STALL))
            .timeout_per_read(Some(STALL))
            .accept_encoding("identity")
            .user_agent(concat!("anemone/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self { agent: config.new_agent(), endpoint, repo: repo.to_owned(), token })
    }

    /// Commit and file names of a revision.
    pub(super) fn list(&self, revision: &str) -> Result<Listing, Error> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let url = format!("{}/api/models/{}/revision/{}", self.endpoint, self.repo, escape(revision));
        let response = self.send(self.agent.get(&url), &url)?;
        self.check(&response, &url, revision)?;
        let mut body = Vec::new();
        let read = response.into_body().into_reader().take(LISTING_LIMIT + 1).read_to_end(&mut body);
        read.map_err(|source| network(&url, source))?;
        if body.len() as u64 > LISTING_LIMIT {
            return Err(strange(&url, format!("the listing is longer than {LISTING_LIMIT} bytes")));
        }
        let info: Info = serde_json::from_slice(&body)
            .map_err(|e| strange(&url, format!("the listing does not parse: {e}")))?;
        if !is_commit(&info.sha) {
            return Err(strange(&url, "the listing has no commit id".to_owned()));
        }
        Ok(Listing { commit: info.sha, files: info.siblings.into_iter().map(|s| s.rfilename).collect() })
    }

    /// Size and blob name of a file.
    pub(super) fn head(&self, commit: &str, file: &str) -> Result<Meta, Error> {
        let mut url = self.url(commit, file);
        let mut redirects = 0;
        let response = loop {
            // The hub's own answer carries the file's identity; the storage it redirects to does not.
            let request =
                self.agent.head(&url).config().max_redirects(0).max_redirects_will_error(false).build();
            let response = self.send(request, &url)?;
            let relative =
                header(response.headers(), "location").filter(|l| l.starts_with('/') && !l.starts_with("//"));
            match relative.filter(|_| response.status().is_redirection()) {
                Some(location) if redirects < REDIRECT_LIMIT => {
                    redirects += 1;
                    url = format!("{}{location}", self.origin());
                }
                _ => break response,
            }
        };
        if !response.status().is_redirection() {
            self.check(&response, &url, commit)?;
        }
        let headers = response.headers();
        let etag = header(headers, "x-linked-etag").or_else(|| header(headers, "etag")).unwrap_or_default();
        let etag = etag.trim_start_matches("W/").trim_matches('"');
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if etag.is_empty() || etag.len() > 128 || !etag.bytes().all(plain) {
            return Err(strange(&url, "the answer has no usable ETag".to_owned()));
        }
        let size = header(headers, "x-linked-size")
            .or_else(|| header(headers, "content-length").filter(|_| !response.status().is_redirection()));
        let size = size.and_then(|size| size.parse().ok());
        let size = size.ok_or_else(|| strange(&url, "the answer does not say the file's size".to_owned()))?;
        Ok(Meta { etag: etag.to_owned(), size })
    }

    /// Downloads a file to `partial`, going on from what is there, and checks it.
    pub(super) fn download(
        &self,
        commit: &str,
        file: &str,
        meta: &Meta,
        partial: &Path,
        retries: u32,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        create_parent(partial)?;
        let mut failures = 0;
        loop {
            let before = size_of(partial);
            match self.transfer(commit, file, meta, partial, report) {
                Ok(()) => return self.verify(file, meta, partial),
                Err(error @ Error::HubNetwork { .. }) => {
                    failures = if size_of(partial) > before { 0 } else { failures + 1 };
                    if failures > retries || retries == 0 {
                        return Err(error);
                    }
                    tracing::warn!(file, %error, "the transfer broke off, trying again");
                    std::thread::sleep(Duration::from_millis(200 << failures.min(5)));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn transfer(
        &self,
        commit: &str,
        file: &str,
        meta: &Meta,
        partial: &Path,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let url = self.url(commit, file);
        let io = |source| Error::Io { action: "write", path: partial.to_owned(), source };
        let mut out = File::options().create(true).append(true).open(partial).map_err(io)?;
        let mut done = out.metadata().map_err(io)?.len();
        if done > meta.size {
            out.set_len(0).map_err(io)?;
            done = 0;
        }
        report(done);
        if done == meta.size {
            return Ok(());
        }
        let mut request = self.agent.get(&url);
        if done > 0 {
            request = request.header("range", format!("bytes={done}-"));
        }
        let response = self.send(request, &url)?;
        self.check(&response, &url, commit)?;
        let resumed = response.status().as_u16() == 206;
        if resumed {
            let range = header(response.headers(), "content-range").unwrap_or_default();
            if !range.starts_with(&format!("bytes {done}-")) {
                return Err(strange(&url, format!("asked for bytes from {done}, was sent {range:?}")));
            }
        } else if done > 0 {
            out.set_len(0).map_err(io)?;
            done = 0;
        }
        let mut reported = done;
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER];
        while done < meta.size {
            let want = buffer.len().min(usize::try_from(meta.size - done).unwrap_or(usize::MAX));
            let read = body.read(&mut buffer[..want]).map_err(|source| network(&url, source))?;
            if read == 0 {
                let cut = format!("the transfer ended at byte {done} of {}", meta.size);
                return Err(network(&url, io::Error::new(io::ErrorKind::UnexpectedEof, cut)));
            }
            out.write_all(&buffer[..read]).map_err(io)?;
            done += read as u64;
            if done - reported >= REPORT || done == meta.size {
                reported = done;
                report(done);
            }
        }
        out.sync_all().map_err(io)
    }

    /// Large files are named by their SHA-256.
    fn verify(&self, file: &str, meta: &Meta, partial: &Path) -> Result<(), Error> {
        if meta.etag.len() != 64 || !meta.etag.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(());
        }
        let io = |source| Error::Io { action: "read", path: partial.to_owned(), source };
        let mut input = File::open(partial).map_err(io)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            match input.read(&mut buffer).map_err(io)? {
                0 => break,
                n => hash.update(&buffer[..n]),
            }
        }
        let found: String = hash.finalize().iter().flat_map(|b| [b >> 4, b & 15]).map(hex_digit).collect();
        if found.eq_ignore_ascii_case(&meta.etag) {
            return Ok(());
        }
        let _ = fs::remove_file(partial);
        let problem = format!("SHA-256 should be {}, is {found}", meta.etag);
        Err(Error::HubDamaged { repo: self.repo.clone(), file: file.to_owned(), problem })
    }

    fn send(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithoutBody>,
        url: &str,
    ) -> Result<Response<Body>, Error> {
        let request = match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        request.call().map_err(|source| network(url, source))
    }

    fn check(&self, response: &Response<Body>, url: &str, revision: &str) -> Result<(), Error> {
        let (repo, endpoint) = (self.repo.clone(), self.endpoint.clone());
        match response.status().as_u16() {
            200..=299 => Ok(()),
            status @ (401 | 403) => Err(Error::HubDenied { repo, status, endpoint }),
            404 => Err(Error::HubNotFound { repo, revision: revision.to_owned(), endpoint }),
            status @ (429 | 500..=599) => {
                Err(network(url, io::Error::other(format!("the hub answered HTTP {status}"))))
            }
            status => Err(strange(url, format!("the hub answered HTTP {status}"))),
        }
    }

    fn url(&self, commit: &str, file: &str) -> String {
        format!(
            "{}/{}/resolve/{}/{}",
            self.endpoint,
            self.repo,
            commit,
            file.split('/').map(escape).collect::<Vec<_>>().join("/")
        )
    }

    /// Scheme and host of the endpoint.
    fn origin(&self) -> &str {
        let host = self.endpoint.find("://").map_or(0, |i| i + 3);
        let end = self.endpoint[host..].find('/').map_or(self.endpoint.len(), |i| host + i);
        &self.endpoint[..end]
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn hex_digit(digit: u8) -> char {
    char::from_digit(u32::from(digit), 16).unwrap_or('0')
}

/// Percent-encodes all but the unreserved characters.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.extend([
                '%',
                hex_digit(byte >> 4).to_ascii_uppercase(),
                hex_digit(byte & 15).to_ascii_uppercase(),
            ]);
        }
    }
    out
}

fn size_of(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}

fn network(url: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::HubNetwork { url: url.to_owned(), source: source.into() }
}

fn strange(url: &str, problem: String) -> Error {
    Error::HubResponse { url: url.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_escaped() {
        assert_eq!(escape("refs/pr/1"), "refs%2Fpr%2F1");
        let hub = Hub { endpoint: Some("http://h:1/base/".to_owned()), ..Hub::default() };
        let client = Client::new(&hub, "a/b").unwrap();
        assert_eq!(client.url("c", "dir/x y.json"), "http://h:1/base/a/b/resolve/c/dir/x%20y.json");
        assert_eq!(client.origin(), "http://h:1");
    }

    #[test]
    fn bad_options_are_named() {
        for (hub, option) in [
            (Hub { endpoint: Some("ftp://x".to_owned()), ..Hub::default() }, "`endpoint`"),
            (Hub { endpoint: Some(String::new()), ..Hub::default() }, "`endpoint`"),
            (Hub { token: Some("a\nb".to_owned()), ..Hub::default() }, "`token`"),
            (Hub { proxy: Some("::".to_owned()), ..Hub::default() }, "`proxy`"),
        ] {
            let error = Client::new(&hub, "a/b").unwrap_err().to_string();
            assert!(error.contains(option) && !error.contains('\n'), "{error}");
        }
    }
}
