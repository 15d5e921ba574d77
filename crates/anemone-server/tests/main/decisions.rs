//! Decisions in the shape of OpenAI's API.

use anemone_decide::Value;
use anemone_server::{Key, Options};
use axum::body::Body;

use crate::support::{demo, post, runtime, send};

const PATH: &str = "/v1/decisions";

fn ask(input: &str, questions: &str) -> String {
    format!(r#"{{"model":"any-model","input":{input},"questions":{questions}}}"#)
}

#[test]
fn answers_are_those_of_the_other_route() {
    let questions = r#"[{"type":"predicate","name":"angry","instructions":"Is the sender angry?"},
        {"type":"choice","instructions":"What?","choices":[{"value":"refund","description":"money back"},{"value":true},{"value":"true"}]},
        {"type":"score","instructions":[{"type":"input_text","text":"How urgent?"}],"levels":[{"label":"low"},{"label":"high"}]}]"#;
    let same = r#"{"angry":{"type":"noul","instructions":"Is the sender angry?"},
        "b":{"type":"choice","instructions":"What?","criteria":{"refund":"money back","True":"","true":""}},
        "c":{"type":"score","instructions":"How urgent?","criteria":["low","high"]}}"#;
    runtime().block_on(async {
        let app = demo(Options::default());
        let message = r#"[{"role":"user","content":[{"type":"input_text","text":"where is my parcel"}]}]"#;
        let ours = post(&app, PATH, ask(message, questions)).await;
        assert_eq!(ours.status, 200, "{}", ours.text);
        assert!(ours.header("server-timing").is_some());
        let plain = post(&app, PATH, ask("\"where is my parcel\"", questions)).await;
        assert_eq!(ours.text, plain.text, "one user message is its content");
        let theirs =
            post(&app, "/v1/systemone", format!(r#"{{"state":"where is my parcel","questions":{same}}}"#))
                .await;
        let (ours, theirs) = (ours.json(), theirs.json());
        let answers = ours.get("answers").unwrap().as_list().unwrap();
        let their = |id: &str, key: &str| theirs.get("answers").unwrap().get(id).unwrap().get(key).cloned();
        assert_eq!(ours.get("model"), Some(&Value::text("demo")));
        assert_eq!(answers[0].get("name"), Some(&Value::text("angry")));
        assert_eq!(answers[0].get("probability").cloned(), their("angry", "noul"));
        assert_eq!(answers[1].get("name"), Some(&Value::Null));
        assert_eq!(answers[1].get("confidence").cloned(), their("b", "answer_confidence"));
        let choices = answers[1].get("probabilities").unwrap().as_list().unwrap();
        let values: Vec<&Value> = choices.iter().map(|c| c.get("value").unwrap()).collect();
        assert_eq!(values, [&Value::text("refund"), &Value::Bool(true), &Value::text("true")]);
        assert_eq!(answers[2].get("score").cloned(), their("c", "score"));
        let levels = answers[2].get("probabilities").unwrap().as_list().unwrap();
        assert_eq!(
            (levels[1].get("value"), levels[1].get("label")),
            (Some(&Value::int(1)), Some(&Value::text("high")))
        );
        let tokens = |value: &Value, key: &str| value.get("usage").unwrap().get(key).cloned();
        assert_eq!(tokens(&ours, "total_tokens"), tokens(&theirs, "input_tokens"));
    });
}

const GOOD: &str = r#"[{"type":"predicate","instructions":"x"}]"#;

type Case = (Vec<u8>, u16, &'static str);

/// Bodies and inputs, and what they are answered.
fn inputs() -> Vec<Case> {
    let good = GOOD;
    vec![
        (b"{".to_vec(), 400, "valid JSON"),
        (b"\xff".to_vec(), 400, "valid JSON"),
        (b"[".repeat(1 << 20), 400, "valid JSON"),
        (vec![b' '; 3 << 20], 413, "too large"),
        (b"[]".to_vec(), 400, "must be an object"),
        (br#"{"input":"x"}"#.to_vec(), 400, "'model' must be a string"),
        (br#"{"model":"x"}"#.to_vec(), 400, "'input' must be"),
        (ask("[]", good).into(), 400, "'input' must be"),
        (ask("[{}]", good).into(), 400, "'input[0].type' must be a string"),
        (ask(r#"[{"role":"boss","content":"x"}]"#, good).into(), 400, "'boss'"),
        (
            ask(r#"[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]"#, good).into(),
            400,
            "an image",
        ),
        (
            ask(r#"[{"type":"function_call_output","call_id":"a","output":"x"}]"#, good).into(),
            400,
            "no call before it",
        ),
        (ask(&format!("\"{}\"", "a".repeat(50_001)), good).into(), 413, "state too large"),
        (ask("7", good).into(), 400, "'input' must be"),
        (ask("7,\"temperature\":1", good).into(), 400, "'temperature' is no field of this request"),
        (ask("\"x\",\"prompt_cache_key\":1", good).into(), 400, "'prompt_cache_key' must be a string"),
        (ask("[7]", good).into(), 400, "'input[0].type' must be a string"),
        (ask(r#"[{"role":"user"}]"#, good).into(), 400, "'input[0].content' must be"),
        (ask(r#"[{"role":"user","content":[7]}]"#, good).into(), 400, "'input[0].content[0].type'"),
        (
            ask(r#"[{"role":"user","content":[{"type":"input_json","data":7}]}]"#, good).into(),
            400,
            "data' must be",
        ),
        (
            ask(r#"[{"role":"system","content":[{"type":"input_json","data":{}}]}]"#, good).into(),
            400,
            "use input_text",
        ),
        (
            ask(r#"[{"type":"function_call","call_id":7}]"#, good).into(),
            400,
            "'input[0].call_id' must be a string",
        ),
        (ask(r#"[{"type":"computer_call"}]"#, good).into(), 400, "which is not supported"),
        (
            ask(
                &format!("[{}]", r#"{"role":"user","content":"x"},"#.repeat(3000).trim_end_matches(',')),
                good,
            )
            .into(),
            413,
            "state too large",
        ),
        (ask("\"\\ud800\"", good).into(), 400, "unpaired surrogate"),
    ]
}

/// Questions, and what they are answered.
fn questions() -> Vec<Case> {
    let one = |question: &str| ask("\"x\"", &format!("[{question}]"));
    let labels = |n: usize| (0..n).map(|i| format!("{{\"value\":\"o{i}\"}}")).collect::<Vec<_>>().join(",");
    let levels = |n: usize| labels(n).replace("value", "label");
    let choice = |n| one(&format!(r#"{{"type":"choice","instructions":"x","choices":[{}]}}"#, labels(n)));
    let many = format!("[{}]", [r#"{"type":"predicate","instructions":"x"}"#].repeat(401).join(","));
    vec![
        (one(r#"{"type":"predicate","instructions":"x","name":7}"#).into(), 400, "'questions[0].name'"),
        (one(r#"{"type":"predicate","instructions":[]}"#).into(), 400, "'questions[0].instructions'"),
        (
            one(r#"{"type":"choice","instructions":"x","choices":[{"value":7},{"value":"a"}]}"#).into(),
            400,
            "a string or a boolean",
        ),
        (
            one(r#"{"type":"choice","instructions":"x","choices":{"a":1}}"#).into(),
            400,
            "'questions[0].choices' must be a list",
        ),
        (
            one(r#"{"type":"score","instructions":"x","levels":[{"label":"a","description":7}]}"#).into(),
            400,
            "description' must be a string",
        ),
        (
            one(&format!(r#"{{"type":"score","instructions":"x","levels":[{}]}}"#, levels(10_000))).into(),
            413,
            "too many answer options across questions",
        ),
        (ask("\"x\"", "[]").into(), 400, "'questions' must be a list"),
        (ask("\"x\"", "{}").into(), 400, "'questions' must be a list"),
        (ask("\"x\"", &many).into(), 413, "(401 > 400)"),
        (one("7").into(), 400, "'questions[0].instructions'"),
        (one(r#"{"type":"noul","instructions":"x"}"#).into(), 400, "use predicate, choice or score"),
        (one(r#"{"type":"score","instructions":"x","levels":[1]}"#).into(), 400, "levels[0].label"),
        (choice(1).into(), 400, "give 2 to 255"),
        (choice(10_000).into(), 413, "too many answer options across questions"),
        (
            one(r#"{"type":"choice","instructions":"x","choices":[{"value":"a"},{"value":"a"}]}"#).into(),
            400,
            "are equal",
        ),
    ]
}

#[test]
fn wrong_requests_are_refused() {
    runtime().block_on(async {
        let app = demo(Options::default());
        for (i, (body, status, fragment)) in inputs().into_iter().chain(questions()).enumerate() {
            let answer = post(&app, PATH, body).await;
            let error = answer.json().get("error").unwrap().clone();
            assert_eq!(answer.status.as_u16(), status, "{i}: {}", answer.text);
            assert!(
                error.get("message").unwrap().as_str().unwrap().contains(fragment),
                "{i}: {}",
                answer.text
            );
            assert_eq!(error.get("type"), Some(&Value::text("invalid_request_error")));
            // Whatever is wrong with a field, its name is told, and it stands in the message.
            let about = error.get("param").unwrap().as_str();
            let whole = ["JSON", "request body", "unpaired surrogate"]
                .iter()
                .any(|words| answer.text.contains(words));
            assert_eq!(about.is_none(), whole, "{i}: {}", answer.text);
        }
        for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let answer = send(&app, method, PATH, &[], Body::empty()).await;
            assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, Some("POST")), "{method}");
        }
        let announced = send(&app, "POST", PATH, &[("content-length", "99999999999")], Body::empty()).await;
        assert_eq!(announced.status, 413, "{}", announced.text);
        assert_eq!(post(&app, PATH, ask("\"x\"", GOOD)).await.status, 200, "the server goes on");
        let app = demo(Options { key: Some(Key::new("sesame").unwrap()), ..Options::default() });
        let answer = post(&app, PATH, ask("\"x\"", GOOD)).await;
        assert!(answer.status == 401 && answer.text.contains("invalid_api_key"), "{}", answer.text);
    });
}
