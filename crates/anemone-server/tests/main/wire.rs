//! Bytes that are no proper requests, on every route that takes a body.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anemone_server::Options;

use crate::sockets::Running;
use crate::support::demo;

const ROUTES: [(&str, &str); 3] = [
    ("/v1/systemone", r#"{"state":"x","questions":{"q":{"type":"noul","instructions":"x"}}}"#),
    ("/v1/systemone/batch", r#"{"states":["x"],"questions":{"q":{"type":"noul","instructions":"x"}}}"#),
    ("/v1/decisions", r#"{"model":"m","input":"x","questions":[{"type":"predicate","instructions":"x"}]}"#),
];

/// What the server says to bytes until it closes.
fn say(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // It may stop listening before all is said.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Head lines beside the request line and `host`, a body, and the statuses it may be answered with; none where it may be cut off.
fn cases(body: &str) -> Vec<(&'static str, String, Vec<u8>, &'static [&'static str])> {
    let length = format!("content-length: {}\r\n", body.len());
    let chunked = "transfer-encoding: chunked\r\n".to_owned();
    let chunk = format!("{:x}\r\n{body}\r\n", body.len());
    let whole = format!("{chunk}0\r\n\r\n").into_bytes();
    let plain = body.as_bytes().to_vec();
    let with = |line: &str| format!("{length}{line}\r\n");
    let flood: String = (0..150).map(|i| format!("x-{i}: 1\r\n")).collect::<Vec<_>>().concat();
    vec![
        ("no content type", length.clone(), plain.clone(), &["200"]),
        ("another content type", with("content-type: text/plain"), plain.clone(), &["200"]),
        ("a form", with("content-type: multipart/form-data; boundary=x"), plain.clone(), &["200"]),
        ("another alphabet", with("content-type: application/json; charset=utf-16"), plain.clone(), &["200"]),
        ("compressed, it says", with("content-encoding: gzip"), b"\x1f\x8b\x08".repeat(30), &["415"]),
        ("expecting to go on", with("expect: 100-continue"), plain.clone(), &["100"]),
        ("chunks", chunked.clone(), whole.clone(), &["200"]),
        ("chunks of a byte", chunked.clone(), singly(body), &["200"]),
        (
            "chunks without end",
            chunked.clone(),
            format!("1000\r\n{}\r\n", " ".repeat(4096)).repeat(1000).into(),
            &["413"],
        ),
        ("chunks that stop", chunked.clone(), chunk.clone().into(), &["408"]),
        ("a chunk of no size", chunked.clone(), b"zz\r\nx\r\n0\r\n\r\n".to_vec(), &["400"]),
        ("a chunk of all sizes", chunked.clone(), b"ffffffffffffffffff\r\nx\r\n0\r\n\r\n".to_vec(), &["400"]),
        (
            "a chunk with a novel",
            chunked.clone(),
            format!("1;{}\r\n ", "x".repeat(1 << 20)).into(),
            &["400", "413"],
        ),
        (
            "trailers without end",
            chunked.clone(),
            format!("{chunk}0\r\n{}", "x: y\r\n".repeat(100_000)).into(),
            &["400", "413"],
        ),
        ("both lengths", format!("{length}{chunked}"), whole.clone(), &["200", "400"]),
        ("an unknown coding", "transfer-encoding: gzip\r\n".to_owned(), plain.clone(), &["400"]),
        ("a negative length", "content-length: -1\r\n".to_owned(), plain.clone(), &["400"]),
        (
            "a length beyond all",
            "content-length: 18446744073709551616\r\n".to_owned(),
            plain.clone(),
            &["400"],
        ),
        ("a great length", "content-length: 18446744073709551610\r\n".to_owned(), plain.clone(), &["413"]),
        ("two lengths", format!("{length}content-length: 7\r\n"), plain.clone(), &["400"]),
        ("a length too long", format!("content-length: {}\r\n", body.len() + 9), plain.clone(), &["408"]),
        ("a length too short", format!("content-length: {}\r\n", body.len() - 1), plain.clone(), &["400"]),
        ("no length", String::new(), plain.clone(), &["400"]),
        ("a flood of headers", format!("{length}{flood}"), plain.clone(), &["431"]),
        ("a header of a megabyte", with(&format!("x: {}", "y".repeat(1 << 20))), plain.clone(), &["431"]),
        ("a header of no name", with(": x"), plain.clone(), &["400"]),
        ("a header of no value", with("just words"), plain.clone(), &["400"]),
        ("a zero in a header", with("x: a\0b"), plain.clone(), &["400"]),
        ("bytes in a header", with("authorization: Bearer \u{e9}"), plain.clone(), &["200"]),
    ]
}

fn singly(body: &str) -> Vec<u8> {
    let each: Vec<String> = body.chars().map(|c| format!("1\r\n{c}\r\n")).collect();
    format!("{}0\r\n\r\n", each.concat()).into_bytes()
}

#[test]
fn strange_requests_have_their_status_on_every_route() {
    let options = Options { body_timeout: Duration::from_millis(300), ..Options::default() };
    let server = Running::new(demo(options));
    for (path, body) in ROUTES {
        for (what, lines, sent, statuses) in cases(body) {
            let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}\r\n");
            let answer = say(server.address, &[head.as_bytes(), &sent].concat());
            let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default();
            assert!(statuses.contains(&status), "{path}, {what}: {answer:.300}");
        }
        let address = server.address;
        // The head itself.
        let starts = |bytes: &[u8], status: &str| {
            let answer = say(address, bytes);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path} {status}: {answer:.300}");
        };
        let rest = "host: x\r\nconnection: close\r\n";
        starts(format!("POST {path}?{} HTTP/1.1\r\n{rest}\r\n", "x".repeat(100_000)).as_bytes(), "414");
        starts(format!("POST {path} HTTP/7.3\r\n{rest}\r\n").as_bytes(), "400");
        starts(format!("P\u{f6}ST {path} HTTP/1.1\r\n{rest}\r\n").as_bytes(), "400");
        starts(format!("BREW {path} HTTP/1.1\r\n{rest}\r\n").as_bytes(), "405");
        starts(format!("POST {path}/ HTTP/1.1\r\n{rest}\r\n").as_bytes(), "404");
        // Requests one after the other without waiting: each has its answer, and only the last ends the connection.
        let one = |rest: &str| {
            format!("POST {path} HTTP/1.1\r\n{rest}content-length: {}\r\n\r\n{body}", body.len())
        };
        let all = [one("host: x\r\n").repeat(20), one(rest)].concat();
        let answers = say(address, all.as_bytes());
        assert_eq!(answers.matches("HTTP/1.1 200").count(), 21, "{path}: {answers:.300}");
        assert_eq!(answers.matches("connection: close").count(), 1, "{path}: {answers:.300}");
    }
}

/// A refusal before the body is read reaches a client that goes on sending, and says that the connection ends.
#[test]
fn who_sends_too_much_hears_so() {
    let server = Running::new(demo(Options::default()));
    for (path, _) in ROUTES {
        for size in [3 << 20, 5 << 20] {
            let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n");
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(&[head.as_bytes(), &vec![b' '; size]].concat()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
            assert!(answer.contains("connection: close\r\n"), "{answer}");
        }
    }
}

/// A head that comes a byte at a time holds nobody up.
#[test]
fn slow_heads_wait_alone() {
    let server = Running::new(demo(Options { max_concurrent: 1, ..Options::default() }));
    let mut slow: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for byte in b"POST /v1/systemone HTT" {
        for stream in &mut slow {
            stream.write_all(&[*byte]).unwrap();
        }
    }
    for _ in 0..5 {
        assert!(server.ask().starts_with("HTTP/1.1 200"));
    }
}
