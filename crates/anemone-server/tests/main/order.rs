//! Which of several faults a request hears of, and limits that hold to the last one they allow.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anemone_decide::{Tournament, Value};
use anemone_server::{Key, Options};
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::Frame;

use crate::support::{demo, post, runtime, send};

/// A body that never comes.
struct Never;

impl HttpBody for Never {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

fn of(kind: &str, options: &[&str]) -> String {
    format!(r#"{{"type":"{kind}","instructions":"x","criteria":[{}]}}"#, options.join(","))
}

/// A question with `n` options.
fn with(kind: &str, n: usize) -> String {
    let options: Vec<String> = (0..n).map(|i| format!("\"o{i}\"")).collect();
    of(kind, &options.iter().map(String::as_str).collect::<Vec<_>>())
}

fn questions(definitions: &[String]) -> String {
    let entries: Vec<String> = definitions.iter().enumerate().map(|(i, d)| format!("\"q{i}\":{d}")).collect();
    format!("{{{}}}", entries.join(","))
}

/// As many questions without options as make `n` of all.
fn filled(mut definitions: Vec<String>, n: usize) -> String {
    definitions.resize(n, r#"{"type":"noul"}"#.to_owned());
    questions(&definitions)
}

fn state(characters: usize) -> String {
    format!("\"{}\"", "é".repeat(characters))
}

/// Parts of a request that are each at fault, the first check's first, and what is said of each. Every part but the last is then replaced
/// by one that is as large as it may be, so what is said next shows that the limit allows that much.
fn faults() -> Vec<(String, String, Vec<&'static str>, u16, &'static str)> {
    let (level, null) = (with("score", 33), of("score", &["\"a\"", "null"]));
    // 500 options in five questions, and the rest up to 64 questions.
    let hundreds = || vec![with("choice", 100); 5];
    let and = |more: &[&String]| {
        hundreds().into_iter().chain(more.iter().map(|d| (*d).clone())).collect::<Vec<_>>()
    };
    let controls = vec![
        r#""hooks_raise":1"#,
        r#""model":7"#,
        r#""max_len":8193"#,
        r#""head_max_len":8193"#,
        r#""task":7"#,
        r#""lang":7"#,
        r#""lang_guess":7"#,
        r#""min_confidence":7"#,
    ];
    let large = || state(50_001);
    let mut all = vec![
        (
            filled(and(&[&with("choice", 101), &level, &null]), 65),
            large(),
            controls.clone(),
            413,
            "too many questions (65 > 64)",
        ),
        (
            filled(and(&[&with("choice", 101), &level, &null]), 64),
            large(),
            controls.clone(),
            413,
            "(101 > 100)",
        ),
        (
            filled(and(&[&with("choice", 100), &level, &null]), 64),
            large(),
            controls.clone(),
            413,
            "(33 > 32)",
        ),
        (
            filled(and(&[&with("score", 32), &null]), 64),
            large(),
            controls.clone(),
            422,
            "null level at index 1",
        ),
        (
            filled(and(&[&with("score", 13)]), 64),
            large(),
            controls.clone(),
            413,
            "too many answer options across questions (513 > 512)",
        ),
        (
            filled(and(&[&with("score", 12)]), 64),
            large(),
            controls.clone(),
            413,
            "state too large (50001 > 50000 chars)",
        ),
    ];
    let expected = [
        "hooks_raise run inside",
        "model must be a string",
        "max_len exceeds server limit (8193 > 8192)",
        "head_max_len exceeds server limit (8193 > 8192)",
        "task must be",
        "lang must be",
        "lang_guess must be",
        "min_confidence must be",
    ];
    let mut allowed = Vec::new();
    for (i, expected) in expected.into_iter().enumerate() {
        let asked = filled(and(&[&with("score", 12)]), 64);
        all.push((asked, state(50_000), [&allowed[..], &controls[i..]].concat(), 422, expected));
        match i {
            2 => allowed.push(r#""max_len":8192"#),
            3 => allowed.push(r#""head_max_len":8192"#),
            _ => {}
        }
    }
    // What only the questions themselves have left.
    all.push((
        filled(and(&[&with("score", 12)]), 64),
        state(50_000),
        Vec::new(),
        422,
        "has no `instructions`",
    ));
    all
}

#[test]
fn the_first_check_that_fails_is_the_one_told() {
    let routes = [("/v1/systemone", "state"), ("/v1/systemone/batch", "states")];
    runtime().block_on(async {
        let app = demo(Options::default());
        for (path, key) in routes {
            let value = |state: &str| if key == "state" { state.to_owned() } else { format!("[{state}]") };
            let missing = post(&app, path, format!(r#"{{"{key}":null}}"#)).await;
            assert!(
                missing.status == 400 && missing.detail().contains("must be an object"),
                "{}",
                missing.text
            );
            let none = post(&app, path, format!(r#"{{"{key}":null,"questions":7}}"#)).await;
            assert!(none.status == 400 && none.detail().contains(&format!("'{key}'")), "{}", none.text);
            let odd =
                post(&app, path, format!(r#"{{"{key}":{},"questions":7,"model":7}}"#, value(&state(50_001))))
                    .await;
            assert!(odd.status == 400 && odd.detail().contains("'questions' must be"), "{}", odd.text);
            for (questions, state, controls, status, expected) in faults() {
                let more = controls.iter().flat_map(|control| [",", control]).collect::<String>();
                let body = format!(r#"{{"{key}":{},"questions":{questions}{more}}}"#, value(&state));
                let answer = post(&app, path, body).await;
                assert_eq!(answer.status, status, "{path}, not `{expected}`: {}", answer.text);
                assert!(answer.detail().contains(expected), "{path}, not `{expected}`: {}", answer.text);
            }
        }
        let batch = |n: usize| format!(r#"{{"states":[{}],"questions":7}}"#, vec!["\"x\""; n].join(","));
        assert!(post(&app, routes[1].0, batch(65)).await.detail().contains("(65 > 64)"));
        assert!(post(&app, routes[1].0, batch(64)).await.detail().contains("'questions' must be"));
        // States one by one, question by question, and what only a batch has around the controls of both.
        let asked = questions(&[of("score", &["null"]), with("choice", 101)]);
        for (states, asked, controls, expected) in [
            (format!("[{},null]", state(50_001)), &*questions(&[]), "", "state too large"),
            ("[null,\"x\"]".to_owned(), "7", "", "'state' is required"),
            ("[\"x\"]".to_owned(), &*asked, "", "null level at index 0"),
            ("[\"x\"]".to_owned(), "{}", r#","diagnostics":{},"hooks":1"#, "hooks run"),
            ("[\"x\"]".to_owned(), "{}", r#","diagnostics":{},"model":7"#, "diagnostics is filled"),
            ("[\"x\"]".to_owned(), "{}", r#","batch_size":0,"min_confidence":7"#, "min_confidence must"),
            (
                "[\"x\"]".to_owned(),
                "{}",
                r#","batch_size":0,"sort_by_length":7"#,
                "batch_size must be a positive",
            ),
            ("[\"x\"]".to_owned(), "{}", r#","batch_size":true"#, "batch_size must be an integer"),
        ] {
            let body = format!(r#"{{"states":{states},"questions":{asked}{controls}}}"#);
            let answer = post(&app, routes[1].0, body).await;
            assert!(answer.detail().contains(expected), "not `{expected}`: {:.300}", answer.text);
        }
        let rounds = demo(Options { tournament: Some(Tournament::default()), ..Options::default() });
        for (n, expected) in [(256, "(256 > 255)"), (255, "model must be a string")] {
            let asked = questions(&[with("choice", n)]);
            let answer =
                post(&rounds, routes[0].0, format!(r#"{{"state":"x","questions":{asked},"model":7}}"#)).await;
            assert!(answer.detail().contains(expected), "{}", answer.text);
        }
    });
}

/// Bodies may have 2 MiB to the last byte.
#[test]
fn bodies_are_read_to_their_limit() {
    runtime().block_on(async {
        let app = demo(Options::default());
        for path in ["/v1/systemone", "/v1/systemone/batch", "/v1/decisions"] {
            for (bytes, status) in [(2 << 20, 400), ((2 << 20) + 1, 413)] {
                assert_eq!(post(&app, path, vec![b' '; bytes]).await.status, status, "{path} {bytes}");
            }
        }
    });
}

/// Key, room and size are looked at in this order, and before the body.
#[test]
fn a_full_house_asks_for_the_key_first_and_for_the_size_last() {
    runtime().block_on(async {
        let key = [("authorization", "Bearer sesame")];
        let app =
            demo(Options { key: Some(Key::new("sesame").unwrap()), max_concurrent: 1, ..Options::default() });
        let path = "/v1/systemone";
        let kept = app.clone();
        let held =
            tokio::spawn(async move { send(&kept, "POST", path, &key, Body::new(Never)).await.status });
        let start = Instant::now();
        while send(&app, "POST", path, &key, Body::from("x")).await.status != 503 {
            assert!(start.elapsed() < Duration::from_secs(8), "the first request takes no room");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let large = ("content-length", "99999999999");
        for (headers, status) in [(&[large][..], 401), (&[key[0], large], 503)] {
            assert_eq!(send(&app, "POST", path, headers, Body::from("x")).await.status, status);
        }
        held.abort();
        let _ = held.await;
        assert_eq!(send(&app, "POST", path, &[key[0], large], Body::from("x")).await.status, 413);
        let bad = send(&app, "POST", path, &key, Body::from("x")).await;
        assert_eq!(
            (bad.status.as_u16(), bad.json().get("detail").and_then(Value::as_str)),
            (400, Some("request body must be valid JSON"))
        );
    });
}

/// The same of `/v1/decisions`, whose limits are others.
#[test]
fn decisions_have_limits_of_their_own() {
    let odd = r#"{"type":"odd","instructions":"x"}"#.to_owned();
    let many = |n: usize| {
        let mut all = vec![r#"{"type":"predicate","instructions":"x"}"#.to_owned(); n - 1];
        all.push(odd.clone());
        all
    };
    let listed = |kind: &str, key: &str, each: &str, n: usize| {
        let options: Vec<String> = (0..n).map(|i| format!(r#"{{"{each}":"o{i}"}}"#)).collect();
        let question = format!(r#"{{"type":"{kind}","instructions":"x","{key}":[{}]}}"#, options.join(","));
        vec![question, odd.clone()]
    };
    let next = "'questions[1].type' is 'odd'";
    let cases = [
        (50_001, many(401), 413, "state too large (50001 > 50000 chars)"),
        (50_000, many(401), 413, "too many questions (401 > 400)"),
        (50_000, many(400), 400, "'questions[399].type' is 'odd'"),
        (1, listed("choice", "choices", "value", 256), 400, "has 256 choices; give 2 to 255"),
        (1, listed("choice", "choices", "value", 255), 400, next),
        (
            1,
            listed("score", "levels", "label", 513),
            413,
            "too many answer options across questions (513 > 512)",
        ),
        (1, listed("score", "levels", "label", 512), 400, next),
    ];
    runtime().block_on(async {
        let app = demo(Options::default());
        for (characters, questions, status, expected) in cases {
            let body = format!(
                r#"{{"model":"m","input":{},"questions":[{}]}}"#,
                state(characters),
                questions.join(",")
            );
            let answer = post(&app, "/v1/decisions", body).await;
            assert_eq!(answer.status, status, "not `{expected}`: {:.300}", answer.text);
            assert!(answer.text.contains(expected), "not `{expected}`: {:.300}", answer.text);
        }
    });
}
