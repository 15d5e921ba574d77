//! Every exchange recorded from the reference server.

use anemone_decide::{Tournament, Value};
use anemone_server::{App, Key, Options};
use axum::body::Body;

use crate::support::{Answer, beside, models, runtime, send, skipped};

const TINY: &str = "../../../shared/fixtures/laya-tiny";

/// Exchanges that differ, and why.
const DEPARTURES: [(&str, &str); 1] = [("unknown-path", "the server has a list of models at this path")];

fn app(env: &[(String, Value)]) -> App {
    let value =
        |name: &str| env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str().unwrap());
    let options = Options {
        key: value("LAYA_API_KEY").map(|key| Key::new(key).unwrap()),
        jev_strict: value("LAYA_JEV_STRICT").is_some(),
        tournament: value("LAYA_TOURNAMENT_GROUP").map(|n| Tournament { group_size: n.parse().unwrap() }),
        ..Options::default()
    };
    let named =
        [("english", "./english"), ("multilingual", "./multilingual"), ("typed-decisions", "./english")];
    App::new(models(beside(TINY), &named), Vec::new(), options).unwrap()
}

/// Bodies too large to be recorded, made as the recording made them.
fn body(name: &str, case: &Value, noul: &Value) -> Vec<u8> {
    let made = match name {
        "65-questions" => {
            let questions = (0..65).map(|i| (format!("q{i}"), noul.clone())).collect();
            object(&[("state", Value::text("x")), ("questions", Value::Map(questions))])
        }
        "state-too-long" => {
            let questions = Value::Map(vec![("refund".to_owned(), noul.clone())]);
            object(&[("state", Value::text("a".repeat(50_001))), ("questions", questions)])
        }
        "body-too-large" => return vec![b' '; case.get("raw_body_bytes").unwrap().as_usize().unwrap()],
        _ => match (case.get("raw_body"), case.get("body")) {
            (Some(raw), _) => return raw.as_str().unwrap().into(),
            (None, Some(Value::Null)) => return Vec::new(),
            (None, body) => body.unwrap().clone(),
        },
    };
    made.to_spaced().into_bytes()
}

fn object(entries: &[(&str, Value)]) -> Value {
    Value::Map(entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
}

/// How an answer differs from the recorded one.
fn difference(case: &Value, answer: &Answer) -> Option<String> {
    let status = case.get("status").unwrap().as_usize().unwrap();
    if usize::from(answer.status.as_u16()) != status {
        return Some(format!("status {} instead of {status}: {}", answer.status, answer.text));
    }
    for (name, expected) in case.get("response_headers").unwrap().as_map().unwrap() {
        let (name, same) = match (name.strip_prefix("has_"), expected) {
            (Some(name), expected) => {
                let name = name.replace('_', "-");
                let same = Value::Bool(answer.header(&name).is_some()) == *expected;
                (name, same)
            }
            (None, expected) => (name.clone(), answer.header(name) == expected.as_str()),
        };
        if !same {
            return Some(format!(
                "header {name} is {:?}, not {}",
                answer.header(&name),
                expected.to_compact()
            ));
        }
    }
    let expected = case.get("response").unwrap().to_compact();
    (answer.text != expected).then(|| format!("{}\n  instead of\n{expected}", answer.text))
}

#[test]
fn answers_are_the_recorded_ones_to_the_byte() {
    let Ok(text) = std::fs::read_to_string(beside(TINY).join("http.json")) else {
        return skipped("shared/fixtures/laya-tiny");
    };
    let recorded = Value::parse(&text).unwrap();
    let cases = recorded.get("cases").unwrap().as_list().unwrap();
    let named =
        |name: &str| cases.iter().find(|case| case.get("name").unwrap().as_str() == Some(name)).unwrap();
    let noul = named("task").get("body").unwrap().get("questions").unwrap().get("refund").unwrap();
    let (mut server, mut differences, mut equal) = (None::<(Value, App)>, Vec::new(), 0);
    runtime().block_on(async {
        for case in cases {
            let name = case.get("name").unwrap().as_str().unwrap();
            let env = case.get("env").unwrap();
            // One server for each environment, as when they were recorded: it remembers what it loaded.
            if server.as_ref().is_none_or(|(last, _)| last != env) {
                server = Some((env.clone(), app(env.as_map().unwrap())));
            }
            let field = |key: &str| case.get(key).unwrap().as_str().unwrap();
            let headers = case.get("headers").unwrap().as_map().unwrap();
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
            let body = Body::from(body(name, case, noul));
            let answer =
                send(&server.as_ref().unwrap().1, field("method"), field("path"), &headers, body).await;
            match difference(case, &answer) {
                None => equal += 1,
                Some(difference) => differences.push((name, difference)),
            }
        }
    });
    let expected: Vec<&str> = DEPARTURES.iter().map(|(name, _)| *name).collect();
    let found: Vec<&str> = differences.iter().map(|(name, _)| *name).collect();
    assert_eq!(found, expected, "{differences:#?}");
    assert_eq!((cases.len(), equal), (48, 48 - DEPARTURES.len()));
}
