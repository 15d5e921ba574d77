use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use anemone_checkpoint::hub::Hub;
use anemone_checkpoint::{Checkpoint, Error};
use sha2::{Digest, Sha256};

use crate::support::{CONFIG, weights};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository `org/tiny`, on a local socket. Each request is recorded.
struct Server {
    endpoint: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// Cut the next transfer of this file after so many bytes.
    cut: Option<(String, usize)>,
    /// Answer every request with this status.
    status: Option<u16>,
    /// Send other bytes than announced.
    corrupt: bool,
    requests: Vec<Request>,
}

#[derive(Debug, Clone, PartialEq)]
struct Request {
    method: String,
    path: String,
    range: Option<String>,
    authorization: Option<String>,
}

impl Server {
    fn start() -> Self {
        let files = [
            ("config.json", CONFIG.as_bytes().to_vec()),
            ("generation_config.json", b"{}".to_vec()),
            ("tokenizer.json", br#"{"version": "1.0"}"#.to_vec()),
            ("README.md", b"# not needed".to_vec()),
            ("pytorch_model.bin", vec![0; 1000]),
            ("onnx/model.onnx", vec![0; 1000]),
            ("model-00001-of-00002.safetensors", weights(&[("a", 50_000)])),
            ("model-00002-of-00002.safetensors", weights(&[("b", 3)])),
            (
                "model.safetensors.index.json",
                br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#.to_vec(),
            ),
        ];
        let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &mut shared.lock().unwrap());
            }
        });
        Self { endpoint, state }
    }

    fn hub(&self, cache: &Path) -> Hub {
        Hub { endpoint: Some(self.endpoint.clone()), cache_dir: Some(cache.to_owned()), ..Hub::default() }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// The requests since the last call.
    fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

fn answer(mut stream: TcpStream, state: &mut State) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut request = Request { method, path, range: None, authorization: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.to_owned()),
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    state.requests.push(request.clone());
    let mut send = |status: u16, headers: &str, body: &[u8]| {
        write!(stream, "HTTP/1.1 {status} X\r\nConnection: close\r\n{headers}\r\n")?;
        stream.write_all(body)
    };
    if let Some(status) = state.status {
        return send(status, "Content-Length: 0\r\n", b"");
    }
    if request.path == "/api/models/org/tiny/revision/main" {
        let names: Vec<String> = state.files.keys().map(|f| format!(r#"{{"rfilename": "{f}"}}"#)).collect();
        let body = format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, names.join(","));
        return send(200, &format!("Content-Length: {}\r\n", body.len()), body.as_bytes());
    }
    // Redirects once, on the same host, as the hub does for renamed repositories.
    if let Some(file) = request.path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"))
        && request.method == "HEAD"
    {
        return send(307, &format!("Location: /moved/{file}\r\nContent-Length: 0\r\n"), b"");
    }
    let file = request.path.rsplit('/').next().unwrap_or_default().to_owned();
    let Some(content) = state.files.get(&file) else {
        return send(404, "Content-Length: 0\r\n", b"");
    };
    let digits = Sha256::digest(content).iter().flat_map(|&b| [b >> 4, b & 15]).collect::<Vec<_>>();
    let etag: String = digits.iter().filter_map(|&d| char::from_digit(u32::from(d), 16)).collect();
    let etag = if file.ends_with(".safetensors") { etag } else { etag[..40].to_owned() };
    if request.method == "HEAD" {
        return send(200, &format!("ETag: \"{etag}\"\r\nContent-Length: {}\r\n", content.len()), b"");
    }
    let start = request.range.and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let mut body = content[start.unwrap_or(0)..].to_vec();
    if state.corrupt && file.ends_with(".safetensors") {
        body[0] ^= 1;
    }
    let mut headers = format!("Content-Length: {}\r\n", body.len());
    if let Some(start) = start {
        let end = content.len();
        headers = format!("{headers}Content-Range: bytes {start}-{}/{end}\r\n", end - 1);
    }
    if let Some((_, at)) = state.cut.take_if(|(name, _)| *name == file) {
        body.truncate(at);
    }
    send(if start.is_some() { 206 } else { 200 }, &headers, &body)
}

fn gets(requests: &[Request]) -> Vec<(&str, Option<&str>)> {
    let downloads = requests.iter().filter(|r| r.method == "GET" && !r.path.starts_with("/api"));
    downloads.map(|r| (r.path.rsplit('/').next().unwrap(), r.range.as_deref())).collect()
}

#[test]
fn a_model_is_fetched_once_and_only_what_it_needs() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    let hub = Hub { token: Some("hf_secret".to_owned()), ..server.hub(cache.path()) };
    let mut last = BTreeMap::new();
    let dir = hub
        .resolve("org/tiny", &mut |p| {
            last.insert(p.file.to_owned(), (p.done, p.total));
        })
        .unwrap();
    assert_eq!(dir, cache.path().join("models--org--tiny/snapshots").join(COMMIT));

    let requests = server.requests();
    let mut fetched: Vec<&str> = gets(&requests).iter().map(|g| g.0).collect();
    assert!(fetched.last().unwrap().ends_with(".safetensors"), "weights come last: {fetched:?}");
    fetched.sort_unstable();
    let needed = [
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(fetched, needed);
    assert!(requests.iter().all(|r| r.authorization.as_deref() == Some("Bearer hf_secret")));
    assert_eq!(last.keys().map(String::as_str).collect::<Vec<_>>(), needed);
    assert!(last.values().all(|(done, total)| done == total));
    assert!(!format!("{hub:?}").contains("hf_secret"));

    let checkpoint = Checkpoint::open(&dir).unwrap();
    assert_eq!((checkpoint.name(), checkpoint.weights().names().len()), ("org/tiny", 2));
    let refs = fs::read_to_string(cache.path().join("models--org--tiny/refs/main")).unwrap();
    assert_eq!(refs, COMMIT);

    // A second time by branch, by commit and offline, all without the network.
    for spec in ["org/tiny", "org/tiny@main", &format!("org/tiny@{COMMIT}")] {
        assert_eq!(hub.resolve(spec, &mut |_| panic!("progress")).unwrap(), dir);
    }
    let offline = Hub { offline: true, endpoint: Some("http://127.0.0.1:1".to_owned()), ..hub };
    assert_eq!(offline.resolve("org/tiny", &mut |_| {}).unwrap(), dir);
    assert_eq!(server.requests(), []);

    // A lost shard is noticed, and only it is fetched again.
    let shard = "model-00002-of-00002.safetensors";
    fs::remove_file(fs::canonicalize(dir.join(shard)).unwrap()).unwrap();
    let error = offline.resolve("org/tiny", &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains(&format!("`{shard}` is missing; fetch it once without offline mode")), "{error}");
    server.hub(cache.path()).resolve("org/tiny", &mut |_| {}).unwrap();
    assert_eq!(gets(&server.requests()), [(shard, None)]);
}

#[test]
fn a_cut_transfer_goes_on_where_it_stopped() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    let shard = "model-00001-of-00002.safetensors";
    server.set(|s| s.cut = Some((shard.to_owned(), 70_001)));
    let error = server.hub(cache.path()).resolve("org/tiny", &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::HubNetwork { .. }), "{error}");
    assert!(error.to_string().contains("the download resumes where it stopped"), "{error}");
    let offline = Hub { offline: true, ..server.hub(cache.path()) };
    assert!(offline.resolve("org/tiny", &mut |_| {}).is_err(), "half a model must not look whole");

    server.requests();
    let mut first = None;
    let mut progress = |p: anemone_checkpoint::hub::Progress<'_>| {
        first.get_or_insert(p.done);
    };
    let dir = server.hub(cache.path()).resolve("org/tiny", &mut progress).unwrap();
    assert_eq!(first, Some(70_001));
    assert_eq!(gets(&server.requests())[0], (shard, Some("bytes=70001-")));
    let values = Checkpoint::open(&dir).unwrap().weights().tensor("a").unwrap().to_f32().unwrap();
    assert_eq!(values.last(), Some(&24_999.5));
}

#[test]
fn retries_resume_within_one_call() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    let shard = "model-00001-of-00002.safetensors";
    server.set(|s| s.cut = Some((shard.to_owned(), 1000)));
    let hub = Hub { retries: 2, ..server.hub(cache.path()) };
    Checkpoint::open(&hub.resolve("org/tiny", &mut |_| {}).unwrap()).unwrap();
    let requests = server.requests();
    let ranges: Vec<_> = gets(&requests).into_iter().filter(|g| g.0 == shard).map(|g| g.1).collect();
    assert_eq!(ranges, [None, Some("bytes=1000-")]);
}

#[test]
fn damaged_files_are_refused_and_removed() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    server.set(|s| s.corrupt = true);
    let error = server.hub(cache.path()).resolve("org/tiny", &mut |_| {}).unwrap_err().to_string();
    assert!(
        error.contains("arrived damaged (SHA-256 should be") && error.contains("run the command again"),
        "{error}"
    );
    server.set(|s| s.corrupt = false);
    Checkpoint::open(&server.hub(cache.path()).resolve("org/tiny", &mut |_| {}).unwrap()).unwrap();
}

#[test]
fn refusals_say_what_to_do() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    let hub = server.hub(cache.path());
    let error = |hub: &Hub, spec: &str| hub.resolve(spec, &mut |_| {}).unwrap_err().to_string();

    let text = error(&hub, "org/absent");
    assert!(text.contains("`org/absent` at `main` was not found at http://127.0.0.1"), "{text}");
    assert!(text.contains("check the spelling and the revision"), "{text}");
    for status in [401, 403] {
        server.set(|s| s.status = Some(status));
        let text = error(&hub, "org/tiny");
        assert!(text.contains(&format!("access to `org/tiny` was refused (HTTP {status})")), "{text}");
        assert!(text.contains("pass an access token"), "{text}");
    }
    server.set(|s| s.status = Some(503));
    assert!(error(&hub, "org/tiny").contains("HTTP 503"));
    server.requests();

    let offline = Hub { offline: true, ..hub.clone() };
    let text = error(&offline, "org/tiny@v2");
    assert!(text.contains("`org/tiny` at `v2` is not complete in"), "{text}");
    assert!(text.contains("nothing was downloaded yet; fetch it once without offline mode"), "{text}");
    for spec in ["tiny", "a/b/c", "../x", "org/tiny@../../etc", "org/ti ny", ""] {
        assert!(error(&hub, spec).contains("write `org/name` or `org/name@revision`"), "{spec}");
    }
    assert!(error(&Hub::default(), "org/tiny").contains("hub option `cache_dir`: not set"));
    assert_eq!(server.requests(), [], "none of these needs the network");
}

#[test]
fn a_repository_without_usable_weights_costs_nothing() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    server.set(|s| {
        s.files.retain(|name, _| !name.starts_with("model"));
        s.files.insert("m.gguf".to_owned(), vec![0; 10]);
        s.files.remove("pytorch_model.bin");
    });
    let error = server.hub(cache.path()).resolve("org/tiny", &mut |_| {}).unwrap_err().to_string();
    assert!(
        error.contains("org/tiny: no safetensors weights") && error.contains("GGUF files itself"),
        "{error}"
    );
    assert_eq!(gets(&server.requests()), []);
}
