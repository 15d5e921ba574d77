use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::support::{Ran, anemone, assets, command, shared};

const BODY: &str = r#"{"state": "where is my parcel", "questions": {"angry": {"type": "noul", "instructions": "Is the sender angry?"}}}"#;

/// The binary at work on a free port; it ends with the test, which may fail before it ends it.
pub(crate) struct Server {
    child: Option<Child>,
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = command(&[&["serve", "--port", "0"], args].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains(" at http://") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended");
        }
        let address = line.trim().rsplit_once("http://").unwrap().1.to_owned();
        Self { child: Some(child), stderr, address }
    }

    /// A figure of its memory in bytes, as `VmRSS`.
    #[cfg(target_os = "linux")]
    pub(crate) fn memory(&self, key: &str) -> u64 {
        let id = self.child.as_ref().unwrap().id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        let kib = line.trim_start_matches(':').trim().trim_end_matches("kB").trim();
        kib.parse::<u64>().unwrap() << 10
    }

    /// Status and body of an answer.
    pub(crate) fn request(&self, method: &str, path: &str, header: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}content-length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn end(mut self, signal: &str) -> Ran {
        let child = self.child.take().unwrap();
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).unwrap();
        let mut ran = Ran::new(child.wait_with_output().unwrap());
        ran.stderr = stderr;
        ran
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_built_in_model_is_served_until_a_signal() {
    let server = Server::start(&[]);
    assert!(server.address.starts_with("127.0.0.1:"));
    let (status, answer) = server.request("POST", "/v1/systemone", "", BODY);
    assert_eq!(status, 200, "{answer}");
    let args = [
        "decide",
        "--json",
        "-s",
        "where is my parcel",
        "-Q",
        r#"{"angry": {"type": "noul", "instructions": "Is the sender angry?"}}"#,
    ];
    let alone = anemone(&args).json();
    assert_eq!((&answer["answers"], &answer["usage"]), (&alone["answers"], &alone["usage"]));
    assert_eq!(answer["routing"]["model"], "laya-demo");
    let (_, health) = server.request("GET", "/health", "", "");
    assert_eq!(health["loaded"], serde_json::json!(["laya-demo"]));
    let ran = server.end("-TERM").ok();
    assert!(ran.stdout.is_empty() && ran.stderr.contains("ending when requests"), "{ran:?}");
    Server::start(&[]).end("-INT").ok();
}

#[test]
fn the_description_is_printed_as_it_is_served() {
    let server = Server::start(&[]);
    let (status, served) = server.request("GET", "/openapi.json", "", "");
    assert_eq!(status, 200);
    assert_eq!(anemone(&["serve", "--openapi"]).json(), served);
    assert!(served["paths"]["/v1/chat/completions"]["post"]["requestBody"].is_object());
    server.end("-TERM").ok();
    let locked = anemone(&["serve", "--openapi", "--api-key", "sesame"]).json();
    assert!(locked["components"]["securitySchemes"]["bearer"].is_object());
}

#[test]
fn a_bundle_is_served_by_either_engine() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("demo.bundle");
    let bundle = bundle.to_str().unwrap();
    anemone(&["convert", "-q", "--decision", "--length", "64", "--length", "96", "--out", bundle]).ok();
    let question = r#"{"angry": {"type": "noul", "instructions": "Is the sender angry?"}}"#;
    let emulated = ["--engine", "emulator", "--profile", "f32"];
    for engine in [&[][..], &emulated] {
        let alone = ["decide", "--json", "-m", bundle, "-s", "where is my parcel", "-Q", question];
        let alone = anemone(&[&alone[..], engine].concat()).json();
        let server = Server::start(&[&["-m", bundle][..], engine].concat());
        let (status, answer) = server.request("POST", "/v1/systemone", "", BODY);
        assert_eq!((status, &answer["answers"]), (200, &alone["answers"]), "{engine:?} {answer}");
        assert_eq!(answer["routing"]["model"], "demo.bundle");
        let ours = r#"{"model": "demo.bundle", "input": "where is my parcel", "questions": [{"type": "predicate", "instructions": "Is the sender angry?"}]}"#;
        let (_, decision) = server.request("POST", "/v1/decisions", "", ours);
        assert_eq!(decision["answers"][0]["probability"], alone["answers"]["angry"]["noul"]);
        // Beyond the longest function the emulator cannot go, and a row is never cut to fit; the next request is answered.
        let long = BODY.replace("where is my parcel", &"where is my parcel ".repeat(60));
        let (status, answer) = server.request("POST", "/v1/systemone", "", &long);
        if engine.is_empty() {
            assert_eq!(status, 200, "{answer}");
        } else {
            let detail = answer["detail"].as_str().unwrap();
            assert!(
                status == 422 && detail.contains("question 'angry'") && detail.contains("holds 96"),
                "{answer}"
            );
        }
        assert_eq!(server.request("POST", "/v1/systemone", "", BODY).0, 200);
        server.end("-TERM").ok();
    }
    // What has changed since it was made is found before it listens.
    let weights = dir.path().join("demo.bundle/body.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let serve = ["serve", "-q", "--port", "0"];
    anemone(&[&serve[..], &["-m", bundle], &emulated].concat()).fails(1, &["body.mlpackage", "hash"]);
    anemone(&[&serve[..], &emulated].concat()).fails(1, &["runs bundles", "convert --decision"]);
    anemone(&[&serve[..], &["--profile", "f32"]].concat()).fails(1, &["--profile", "--engine emulator"]);
    anemone(&[&serve[..], &emulated, &["--bf16"]].concat()).fails(1, &["--bf16", "--engine cpu"]);
}

#[test]
fn models_go_by_their_names_behind_a_key() {
    let Some(dir) = shared("fixtures/laya-tiny") else { return };
    let (english, other) = (dir.join("english"), dir.join("multilingual"));
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "sesame\n").unwrap();
    let server = Server::start(&[
        "-m",
        english.to_str().unwrap(),
        "-m",
        &format!("ml={}", other.to_str().unwrap()),
        "--api-key-file",
        keys.path().to_str().unwrap(),
        "--jev-strict",
    ]);
    assert_eq!(server.request("POST", "/v1/systemone", "", BODY).0, 401);
    let key = "authorization: Bearer sesame\r\n";
    let (status, answer) = server.request("POST", "/v1/systemone", key, BODY);
    assert_eq!((status, answer["answers"]["angry"].as_object().unwrap().len()), (200, 2), "{answer}");
    let (_, models) = server.request("GET", "/v1/models", key, "");
    let models: Vec<_> =
        models["data"].as_array().unwrap().iter().map(|m| (&m["id"], &m["default"])).collect();
    assert_eq!(models, [(&"english".into(), &false.into()), (&"multilingual".into(), &true.into())]);
    server.end("-TERM").ok();
}

#[test]
fn mistakes_are_named() {
    let fails = |args: &[&str], fragments: &[&str]| {
        anemone(&[&["serve", "-q", "--port", "0"], args].concat()).fails(1, fragments);
    };
    fails(&["-m", "english"], &["--model english", "write NAME=PATH", "the path of a model"]);
    fails(&["-m", "x=/no/such"], &["--model /no/such", "no such file"]);
    fails(&["-m", "a b=src"], &["'a b' is not allowed", "use a-z"]);
    fails(&["-m", "x=src"], &["--model x=src", "config.json"]);
    fails(&["--default-model", "x"], &["--default-model x", "unknown model 'x'", "['laya-demo']"]);
    fails(&["--api-key", ""], &["--api-key", "the key is empty"]);
    fails(&["--api-key-file", "/no/such"], &["--api-key-file /no/such", "check the path"]);
    if let Some(dir) = shared("models/laya-demo") {
        let dir = dir.to_str().unwrap();
        fails(&["-m", dir, "-m", dir], &["of this name already"]);
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    anemone(&["serve", "-q", "--port", &port]).fails(1, &[&format!("--port {port}"), "choose another"]);
    for args in [
        ["--host", "nowhere"],
        ["--tournament-group", "1"],
        ["--max-concurrent", "0"],
        ["--body-timeout", "0"],
    ] {
        anemone(&[&["serve"], &args[..]].concat()).fails(2, &[args[0]]);
    }
}

#[test]
fn a_language_model_answers_as_run_does() {
    let place = assets();
    let ran =
        anemone(&["run", "--chat", "--greedy", "-n", "20", "--prompt", "tell me a story.", "--json"]).json();
    let bundle = tempfile::tempdir().unwrap();
    let out = bundle.path().join("stories.bundle");
    anemone(&["convert", "-q", "--ctx", "128", "--prefill", "16", "--out", out.to_str().unwrap()]).ok();
    let chat = r#"{"messages": [{"role": "user", "content": "tell me a story."}], "temperature": 0, "repetition_penalty": 1, "max_tokens": 20}"#;
    let native =
        Server::start(&["-m", &format!("s={}", place.display()), "--spec", "auto", "--max-sequences", "2"]);
    let (status, answer) = native.request("POST", "/v1/chat/completions", "", chat);
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["choices"][0]["message"]["content"], &answer["model"]), (&ran["text"], &"s".into()));
    // No decision model is here to ask.
    let (status, refused) = native.request("POST", "/v1/systemone", "", BODY);
    assert!((400..500).contains(&status), "{status} {refused}");
    native.end("-TERM").ok();
    // A bundle holds one sequence at a time, so that those who come together wait for each other.
    let emulated = Server::start(&["-m", &format!("b={}", out.display()), "--engine", "emulator"]);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = || emulated.request("POST", "/v1/chat/completions", "", chat);
        let asked: Vec<_> = (0..2).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    assert_eq!(answers[0].1["choices"], answers[1].1["choices"]);
    emulated.end("-TERM").ok();
}

#[cfg(unix)]
#[test]
fn a_socket_in_the_file_system_is_listened_on_and_removed() {
    use std::os::unix::net::UnixStream;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("anemone.sock");
    let at = path.to_str().unwrap();
    let mut child = command(&["serve", "--unix-socket", at])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("at unix:") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended");
    }
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /ready HTTP/1.1\r\nhost: any.name\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with(r#"{"status":"ready"}"#), "{text}");
    anemone(&["serve", "--unix-socket", at]).fails(1, &["--unix-socket", "a server answers there already"]);
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert!(child.wait().unwrap().success() && !path.exists());
    std::fs::write(&path, "").unwrap();
    anemone(&["serve", "--unix-socket", at]).fails(1, &["--unix-socket", "it is no socket"]);
}

#[test]
fn the_log_tells_of_requests_and_not_what_they_say() {
    let body = r#"{"model": "small", "prompt": "a secret", "max_tokens": 3}"#;
    let args = ["--log-requests", "json", "--alias", "small=stories-lfm2", "--on-demand"];
    let server = Server::start(&args);
    let (_, before) = server.request("GET", "/v1/models", "", "");
    assert!(before["data"].as_array().unwrap().iter().all(|model| model["loaded"] == false), "{before}");
    let (status, answer) = server.request("POST", "/v1/completions", "x-request-id: mine\r\n", body);
    assert_eq!((status, &answer["model"]), (200, &"stories-lfm2".into()), "{answer}");
    let ran = server.end("-TERM").ok();
    let lines: Vec<Value> =
        ran.stderr.lines().filter(|l| l.starts_with('{')).map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |message: &str| {
        let mut own = lines.iter().filter(|l| l["message"] == message && l["span"]["id"] == "mine");
        own.next().unwrap_or_else(|| panic!("no {message}: {}", ran.stderr))
    };
    assert_eq!((&of("generated")["completion_tokens"], &of("answered")["status"]), (&3.into(), &200.into()));
    assert_eq!(of("answered")["span"]["path"], "/v1/completions");
    assert!(!ran.stderr.contains("secret"), "{}", ran.stderr);
    let server = Server::start(&["--log-requests", "text", "--log-bodies"]);
    server.request("POST", "/v1/completions", "", body);
    let ran = server.end("-TERM").ok();
    assert!(ran.stderr.contains("secret") && ran.stderr.contains("status=404"), "{}", ran.stderr);
}

#[test]
fn only_names_of_this_machine_are_answered_unless_others_are_allowed() {
    let ask = |server: &Server| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(b"GET /ready HTTP/1.1\r\nhost: box.lan\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(ask(&Server::start(&[])), "403");
    assert_eq!(ask(&Server::start(&["--allow-host", "box.lan"])), "200");
    // Others can reach it: a page could have its name mean this machine, unless it needs a key.
    let public = ["--host", "0.0.0.0"];
    assert_eq!(ask(&Server::start(&public)), "403");
    assert_eq!(ask(&Server::start(&[&public[..], &["--allow-host", "box.lan"]].concat())), "200");
    assert_eq!(ask(&Server::start(&[&public[..], &["--api-key", "sesame"]].concat())), "200");
}

#[test]
fn requests_that_do_not_end_in_time_are_broken_off_at_the_end() {
    let server = Server::start(&["--grace", "0"]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let body = r#"{"prompt": "a", "max_tokens": 2000, "ignore_eos": true, "stream": true, "n": 8}"#;
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut some = [0; 512];
    assert!(stream.read(&mut some).unwrap() > 0);
    let ran = server.end("-TERM").ok();
    assert!(ran.stderr.contains("(--grace) were broken off"), "{}", ran.stderr);
}
