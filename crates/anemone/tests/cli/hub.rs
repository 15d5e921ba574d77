use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::support::{Ran, assets, command};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Where the first transfer of the weights breaks off.
const CUT: usize = 3_000_000;

/// A hub with the demo model as `org/stories`; what was asked is recorded as `GET model.safetensors bytes=9-`.
fn serve() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &mut log.lock().unwrap());
        }
    });
    (endpoint, asked)
}

fn answer(mut stream: TcpStream, asked: &mut Vec<String>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut range = None;
    for line in lines {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        range = range.or_else(|| line.strip_prefix("range: ").map(str::to_owned));
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let file = path.rsplit('/').next().unwrap_or_default();
    asked.push([method, file, range.as_deref().unwrap_or_default()].join(" ").trim_end().to_owned());
    let mut send = |status: &str, headers: &str, body: &[u8]| {
        write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n")?;
        stream.write_all(body)
    };
    if path == "/api/models/org/stories/revision/main" {
        let names = std::fs::read_dir(assets())?.flatten().map(|e| e.file_name().into_string().unwrap());
        let files: Vec<_> = names.map(|name| serde_json::json!({"rfilename": name})).collect();
        let body = serde_json::json!({"sha": COMMIT, "siblings": files}).to_string();
        return send("200 OK", &format!("Content-Length: {}\r\n", body.len()), body.as_bytes());
    }
    let Ok(content) = std::fs::read(assets().join(file)) else {
        return send("404 Not Found", "Content-Length: 0\r\n", b"");
    };
    let start = range.and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()).unwrap_or(0);
    let rest = &content[start..];
    let end = content.len();
    let headers = format!("ETag: \"{}\"\r\nContent-Length: {}\r\n", file.replace('.', "-"), rest.len());
    match (method, start) {
        ("HEAD", _) => send("200 OK", &headers, b""),
        (_, 0) if file == "model.safetensors" => send("200 OK", &headers, &rest[..CUT]),
        (_, 0) => send("200 OK", &headers, rest),
        _ => send("206 Part", &format!("{headers}Content-Range: bytes {start}-{}/{end}\r\n", end - 1), rest),
    }
}

#[test]
fn a_model_is_downloaded_resumed_and_kept() {
    let (endpoint, asked) = serve();
    let cache = tempfile::tempdir().unwrap();
    let run = |offline: &str| {
        let mut command = command(&["run", "-m", "org/stories", "-p", "once upon", "-n", "3", "--greedy"]);
        command
            .env("HF_ENDPOINT", &endpoint)
            .env("HF_HUB_CACHE", cache.path())
            .env("HF_HUB_OFFLINE", offline);
        Ran::new(command.output().unwrap())
    };
    run("1").fails(1, &["org/stories", "offline"]);
    assert!(asked.lock().unwrap().is_empty(), "offline means no request");

    let first = run("").ok();
    let requests = std::mem::take(&mut *asked.lock().unwrap());
    let weights: Vec<&String> = requests.iter().filter(|r| r.starts_with("GET model.safetensors")).collect();
    assert_eq!(weights, ["GET model.safetensors", &format!("GET model.safetensors bytes={CUT}-")]);
    assert!(!requests.iter().any(|r| r.contains("MODEL_CARD")), "{requests:?}");
    // No bar where there is no terminal, but a line for each file.
    assert!(!first.stderr.contains(['\r', '\u{1b}']), "{:?}", first.stderr);
    assert!(first.stderr.contains("fetching model.safetensors (") && first.stderr.contains("trying again"));

    assert_eq!(run("").ok().stdout, first.stdout);
    assert_eq!(run("1").ok().stdout, first.stdout);
    assert!(asked.lock().unwrap().is_empty(), "a complete model needs no request");
}
