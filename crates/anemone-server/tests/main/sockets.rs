//! The server on a socket: slow, silent and vanishing clients, a full house, and the end.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anemone_server::{App, Options, serve};
use tokio::sync::oneshot;

use crate::support::{demo, runtime};

const BODY: &str = r#"{"state":"x","questions":{"q":{"type":"noul","instructions":"x"}}}"#;

/// Time requests have to end.
const GRACE: Duration = Duration::from_secs(30);

/// A server that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    pub(crate) fn new(app: App) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            let stopped = async {
                let _ = stopped.await;
            };
            runtime().block_on(serve(listener, &app, GRACE, stopped)).unwrap();
        };
        Self { address, stop: Some(stop), thread: Some(std::thread::spawn(run)) }
    }

    /// A connection that has sent the head of a request and as much of its body.
    fn open(&self, body: &str, length: usize) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let head = format!(
            "POST /v1/systemone HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    pub(crate) fn ask(&self) -> String {
        read(self.open(BODY, BODY.len()))
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn read(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(1), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn slow_bodies_run_out_of_time_and_leave_their_place() {
    let options =
        Options { max_concurrent: 1, body_timeout: Duration::from_millis(300), ..Options::default() };
    let server = Running::new(demo(options));
    // The first answer waits for the model.
    assert!(server.ask().starts_with("HTTP/1.1 200"));
    let (mut busy, mut answer) = (String::new(), String::new());
    // Which of two connections the server sees first is its own affair, so they are made again until it is the slow one.
    until("one is let in at a time", || {
        let slow = server.open("{", 50);
        std::thread::sleep(Duration::from_millis(20));
        busy = server.ask();
        answer = read(slow);
        busy.starts_with("HTTP/1.1 503") && answer.starts_with("HTTP/1.1 408")
    });
    assert!(busy.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{busy}");
    assert!(busy.ends_with(r#"{"detail":"server busy, try again later"}"#), "{busy}");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(server.ask().starts_with("HTTP/1.1 200"));
}

#[test]
fn clients_that_vanish_leave_their_place() {
    let options = Options { max_concurrent: 1, body_timeout: Duration::from_mins(1), ..Options::default() };
    let server = Running::new(demo(options));
    assert!(server.ask().starts_with("HTTP/1.1 200"));
    for sent in ["", "{\"state\"", BODY] {
        drop(server.open(sent, BODY.len()));
        until("the place is free again", || server.ask().starts_with("HTTP/1.1 200"));
    }
    // One after the other there is always room.
    for _ in 0..20 {
        let answer = server.ask();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn what_is_not_http_is_no_harm() {
    let server = Running::new(demo(Options::default()));
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"GET\r\n\r\n",
        &vec![b'a'; 1 << 20],
        b"POST /v1/systemone HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert!(server.ask().starts_with("HTTP/1.1 200"));
}

#[test]
fn many_clients_at_once_are_answered_or_told_to_wait() {
    let server = Running::new(demo(Options { max_concurrent: 4, ..Options::default() }));
    let answers: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..32).map(|_| scope.spawn(|| server.ask())).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let count = |status: &str| answers.iter().filter(|answer| answer.starts_with(status)).count();
    let (answered, waiting) = (count("HTTP/1.1 200"), count("HTTP/1.1 503"));
    assert!(answered >= 4 && answered + waiting == 32, "{answered} {waiting}");
}

#[test]
fn a_stop_lets_requests_that_have_begun_end() {
    let mut server = Running::new(demo(Options::default()));
    let mut begun = server.open(&BODY[..10], BODY.len());
    // An idle connection does not hold the server up.
    let idle = TcpStream::connect(server.address).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(server.stop.take());
    until("no new connections", || TcpStream::connect(server.address).is_err());
    begun.write_all(&BODY.as_bytes()[10..]).unwrap();
    let answer = read(begun);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop();
    drop(idle);
}
