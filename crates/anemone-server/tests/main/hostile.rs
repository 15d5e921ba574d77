//! Requests that are wrong, large or strange: each has its status, and the server goes on.

use anemone_decide::{Tournament, Value};
use anemone_server::{Key, Options};
use axum::body::Body;

use crate::support::{demo, post, runtime, send};

const QUESTION: &str = r#"{"type":"noul","instructions":"x"}"#;

fn labels(n: usize) -> String {
    (0..n).map(|i| format!("\"o{i}\"")).collect::<Vec<_>>().join(",")
}

fn choice(n: usize) -> String {
    format!(r#"{{"type":"choice","instructions":"x","criteria":[{}]}}"#, labels(n))
}

/// Values of `questions` and what they are answered, on every route that takes them.
fn questions() -> Vec<(String, u16, &'static str)> {
    let q = |definition: &str| format!(r#"{{"q":{definition}}}"#);
    let many = |n: usize, each: &str| {
        let each: Vec<String> = (0..n).map(|i| format!("\"q{i}\":{each}")).collect();
        format!("{{{}}}", each.join(","))
    };
    vec![
        ("null".into(), 400, "'questions' must be an object"),
        ("\"x\"".into(), 400, "'questions' must be an object"),
        (q("null"), 422, "its definition is null"),
        (q("{}"), 422, "has no `type`"),
        (q(r#"{"type":7}"#), 422, "unknown type 7"),
        (q(r#"{"type":"noul"}"#), 422, "has no `instructions`"),
        (q(r#"{"type":"choice","instructions":"x","criteria":7}"#), 422, "needs `criteria`"),
        (q(r#"{"type":"choice","instructions":"x","criteria":["a","a"]}"#), 422, "are equal"),
        (q(r#"{"type":"choice","instructions":"x","criteria":[{}]}"#), 422, "expected a string"),
        (q(r#"{"type":"score","instructions":"x","criteria":["a",null]}"#), 422, "null level at index 1"),
        (q(r#"{"type":"noul","instructions":"x","criteria":{"maybe":"x"}}"#), 422, "not `maybe`"),
        (format!(r#"{{" ":{QUESTION}}}"#), 422, "an id must not be blank"),
        (q(&choice(10_000)), 413, "too many choice options for 'q' (10000 > 100)"),
        (
            q(&format!(r#"{{"type":"score","instructions":"x","criteria":[{}]}}"#, labels(10_000))),
            413,
            "(10000 > 32)",
        ),
        (
            q(&format!(r#"{{"type":"none","instructions":"x","criteria":[{}]}}"#, labels(10_000))),
            422,
            "unknown type",
        ),
        (many(10_000, QUESTION), 413, "too many questions (10000 > 64)"),
        (many(6, &choice(99)), 413, "too many answer options across questions (594 > 512)"),
    ]
}

/// Whole bodies and what they are answered, on every route that takes one.
fn bodies() -> Vec<(Vec<u8>, u16, &'static str)> {
    let json = "request body must be valid JSON";
    vec![
        (b"".to_vec(), 400, json),
        (b"\xff\xfe{\x00".to_vec(), 400, json),
        (br#"{"state":"caf"#.iter().copied().chain(*b"\xe9\"}").collect(), 400, json),
        (br#"{"state":1e}"#.to_vec(), 400, json),
        (br#"{"state":"x"} x"#.to_vec(), 400, json),
        (b"[".repeat(1 << 20), 400, json),
        (br#"{"a":"#.repeat(300_000), 400, json),
        (format!("{{\"state\":{}}}", "9".repeat(5000)).into_bytes(), 400, json),
        (br#"{"state":"\udc00"}"#.to_vec(), 400, "unpaired surrogate"),
        (b"null".to_vec(), 400, "must be an object"),
        (b"\"state\"".to_vec(), 400, "must be an object"),
        (vec![b' '; (2 << 20) + 1], 413, "request body too large"),
        (
            b"{\"state\":\"".iter().copied().chain(vec![b'a'; 3 << 20]).collect(),
            413,
            "request body too large",
        ),
    ]
}

/// Fields beside a good state and question, and what they are answered.
const FIELDS: [(&str, u16, &str); 17] = [
    (r#""model":7"#, 422, "model must be a string"),
    (r#""model":"../../etc/passwd""#, 422, "unknown model '../../etc/passwd'"),
    (r#""model":"~root""#, 422, "unknown model"),
    (r#""model":"C:\\x""#, 422, "unknown model"),
    (r#""task":{}"#, 422, "task must be"),
    (r#""task":"nope""#, 422, "unknown model 'nope'"),
    (r#""lang":["de"]"#, 422, "lang must be a language code"),
    (r#""lang_guess":1"#, 422, "lang_guess must be a language code"),
    (r#""max_len":1e3"#, 422, "max_len must be an integer"),
    (r#""max_len":true"#, 422, "max_len must be an integer"),
    (r#""max_len":-1"#, 422, "max_len must be a positive integer"),
    (r#""max_len":99999999999999999999999999"#, 422, "max_len exceeds server limit"),
    (r#""head_max_len":0"#, 422, "head_max_len must be a positive integer"),
    (r#""max_len":3"#, 422, "fit 3 tokens"),
    (r#""min_confidence":NaN"#, 422, "min_confidence must be a float in [0.0, 1.0], got NaN"),
    (r#""min_confidence":{"choice:4":0.5}"#, 422, "names 'choice:4'"),
    (r#""hooks_timeout":1,"hooks":[]"#, 422, "hooks, hooks_timeout run inside the server process"),
];

fn check(what: &str, answer: &crate::support::Answer, status: u16, fragment: &str) {
    assert_eq!(answer.status.as_u16(), status, "{what}: {}", answer.text);
    assert_eq!(answer.header("content-type"), Some("application/json"), "{what}");
    assert!(answer.detail().contains(fragment), "{what}: {}", answer.text);
    assert!(answer.header("server-timing").is_none(), "{what}");
}

#[test]
fn wrong_requests_are_refused_on_both_routes() {
    let routes = [("/v1/systemone", r#""state":"x""#), ("/v1/systemone/batch", r#""states":["x","y"]"#)];
    runtime().block_on(async {
        let app = demo(Options::default());
        for (path, state) in routes {
            let good = format!(r#"{{{state},"questions":{{"q":{QUESTION}}}}}"#);
            for (i, (body, status, fragment)) in bodies().into_iter().enumerate() {
                check(&format!("{path} body {i}"), &post(&app, path, body).await, status, fragment);
            }
            for (questions, status, fragment) in questions() {
                let answer = post(&app, path, format!(r#"{{{state},"questions":{questions}}}"#)).await;
                check(&format!("{path} {questions:.80}"), &answer, status, fragment);
            }
            for (field, status, fragment) in FIELDS {
                let body = format!(r#"{{{state},"questions":{{"q":{QUESTION}}},{field}}}"#);
                check(&format!("{path} {field}"), &post(&app, path, body).await, status, fragment);
            }
            for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
                let answer = send(&app, method, path, &[], Body::empty()).await;
                check(method, &answer, 405, "Method Not Allowed");
                assert_eq!(answer.header("allow"), Some("POST"));
            }
            let announced =
                send(&app, "POST", path, &[("content-length", "99999999999")], Body::empty()).await;
            check(path, &announced, 413, "request body too large");
            assert_eq!(post(&app, path, good).await.status, 200, "the server goes on");
        }
    });
}

#[test]
fn wrong_states_are_refused() {
    let long = format!("\"{}\"", "é".repeat(50_001));
    let (deep, wide) = (format!("{}{}", "[".repeat(150), "]".repeat(150)), format!("[{}]", labels(10_000)));
    let cases: [(&str, String, u16, &str); 10] = [
        ("state", "null".into(), 400, "'state' is required"),
        ("state", long.clone(), 413, "state too large (50001 > 50000 chars)"),
        ("state", wide, 413, "state too large"),
        ("states", "null".into(), 400, "'states' must be a non-empty list"),
        ("states", "{}".into(), 400, "'states' must be a non-empty list"),
        ("states", "\"x\"".into(), 400, "'states' must be a non-empty list"),
        ("states", format!("[{}]", labels(10_000)), 413, "too many states in batch (10000 > 64)"),
        ("states", "[\"x\",null]".into(), 400, "'state' is required"),
        ("states", format!("[\"x\",{long}]"), 413, "state too large"),
        ("states", "[\"x\"],\"sort_by_length\":1".into(), 422, "sort_by_length must be a boolean"),
    ];
    let path = |key: &str| if key == "state" { "/v1/systemone" } else { "/v1/systemone/batch" };
    runtime().block_on(async {
        let app = demo(Options::default());
        for (key, value, status, fragment) in cases {
            let body = format!(r#"{{"questions":{{"q":{QUESTION}}},"{key}":{value}}}"#);
            check(&format!("{key} {value:.40}"), &post(&app, path(key), body).await, status, fragment);
        }
        for strange in [
            deep.as_str(),
            "NaN",
            "-0.0",
            "1e400",
            "123456789012345678901234567890",
            "\"\"",
            "{}",
            "\"\\u0000\"",
        ] {
            let body = format!(r#"{{"questions":{{"q":{QUESTION}}},"state":{strange}}}"#);
            let answer = post(&app, "/v1/systemone", body).await;
            assert_eq!(answer.status, 200, "{strange}: {}", answer.text);
        }
    });
}

#[test]
fn other_paths_tell_nothing() {
    runtime().block_on(async {
        let app = demo(Options { key: Some(Key::new("sesame").unwrap()), ..Options::default() });
        for path in [
            "/v1",
            "/docs",
            "/redoc",
            "/openapi.json",
            "/v1/systemone/",
            "/v1/systemone/../health",
            "/%2e%2e/etc/passwd",
            "/health/x",
        ] {
            check(path, &send(&app, "GET", path, &[], Body::empty()).await, 404, "Not Found");
        }
        for (method, path, allow) in [("POST", "/health", "GET,HEAD"), ("DELETE", "/v1/models", "GET,HEAD")] {
            let answer = send(&app, method, path, &[], Body::empty()).await;
            check(path, &answer, 405, "Method Not Allowed");
            assert_eq!(answer.header("allow"), Some(allow));
        }
        for (method, path) in
            [("GET", "/v1/models"), ("POST", "/v1/systemone"), ("POST", "/v1/systemone/batch")]
        {
            for header in [
                &[][..],
                &[("authorization", "Bearer sesam")],
                &[("authorization", "Basic c2VzYW1l")],
                &[("authorization", "")],
            ] {
                let answer = send(&app, method, path, header, Body::from(vec![b'x'; 3 << 20])).await;
                check(path, &answer, 401, "invalid or missing bearer token");
            }
        }
        let health = send(&app, "GET", "/health", &[("authorization", "Bearer x")], Body::empty()).await;
        assert_eq!(health.text, r#"{"status":"ok"}"#);
        let key = [("authorization", "Bearer sesame")];
        let health = send(&app, "GET", "/health", &key, Body::empty()).await;
        assert_eq!(health.json().get("loaded"), Some(&Value::List(Vec::new())));
        let models = send(&app, "GET", "/v1/models", &key, Body::empty()).await.json();
        let model = &models.get("data").unwrap().as_list().unwrap()[0];
        assert_eq!(model.get("id").unwrap().as_str(), Some("demo"));
        assert_eq!(
            (model.get("loaded"), model.get("default")),
            (Some(&Value::Bool(false)), Some(&Value::Bool(true)))
        );
    });
}

#[test]
fn tournaments_take_more_labels_and_batches_add_up() {
    runtime().block_on(async {
        let app = demo(Options { tournament: Some(Tournament::default()), ..Options::default() });
        let ask = |n| format!(r#"{{"states":["a","b"],"questions":{{"q":{}}},"batch_size":1}}"#, choice(n));
        let large = post(&app, "/v1/systemone/batch", ask(256)).await;
        check("256", &large, 413, "(256 > 255)");
        let answer = post(&app, "/v1/systemone/batch", ask(120)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let result = answer.json();
        let tokens = |value: &Value| value.get("input_tokens").unwrap().as_usize().unwrap();
        let results = result.get("results").unwrap().as_list().unwrap();
        let sum: usize = results.iter().map(|r| tokens(r.get("usage").unwrap())).sum();
        assert_eq!((results.len(), tokens(result.get("total_usage").unwrap())), (2, sum));
        for result in results {
            let answer = result.get("answers").unwrap().get("q").unwrap();
            assert_eq!(answer.get("probabilities").unwrap().as_map().unwrap().len(), 120);
            assert_eq!(answer.get("x_tournament").unwrap().get("rounds"), Some(&Value::int(1)));
            assert!(result.get("tournament").is_none());
        }
    });
}
