//! Languages and routes against those laya recorded.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::LayaOptions;
use anemone_decide::{
    Decider, Detection, Hints, Question, Request, Router, Routes, Shortlist, Tournament, Value,
    jev_confidence,
};

fn tiny(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/laya-tiny").join(path)
}

fn recorded(file: &str) -> Option<Value> {
    let Ok(text) = std::fs::read_to_string(tiny(file)) else {
        // Not `eprintln!`, which the test runner swallows.
        let _ = writeln!(std::io::stderr(), "skipped: shared/fixtures/laya-tiny is not present");
        return None;
    };
    Some(Value::parse(&text).unwrap())
}

#[test]
fn languages() {
    let Some(recorded) = recorded("routing.json") else { return };
    let cases = recorded.get("detection").unwrap().as_list().unwrap();
    assert_eq!(cases.len(), 48);
    for case in cases {
        let state = case.get("state").unwrap();
        let ours = Detection::of(state).to_value().to_spaced();
        assert_eq!(ours, case.get("analyse").unwrap().to_spaced(), "{}", state.to_spaced());
    }
}

#[test]
fn large_states_are_read_in_linear_time() {
    const SIZE: usize = 2 << 20;
    let fill = |unit: &str| unit.repeat(SIZE / unit.len());
    let wide = |unit: &str| Value::List(vec![Value::text(unit); SIZE / unit.len()]);
    let texts =
        ["a", "\n", "the way\n", "DE LA x b\n", "ich bin da\n", ".a@b", "ab CD. a.b@ É ", "日本語 日本語\n"];
    let texts = texts.map(|unit| Value::List(vec![Value::Text(fill(unit)), Value::text("x")]));
    for (i, state) in texts.into_iter().chain([wide("a"), wide("a b c d e"), wide("\n")]).enumerate() {
        let start = Instant::now();
        let detection = Detection::of(&state);
        // A tenth of it on a quiet machine; this one may be busy.
        assert!(start.elapsed() < Duration::from_secs(5), "state {i}: {:?}", start.elapsed());
        assert!(!detection.script.is_empty());
    }
}

fn noul(ids: &[Value]) -> Vec<Question> {
    let definition = Value::parse(r#"{"type": "noul", "instructions": "Is it so?"}"#).unwrap();
    ids.iter().map(|id| Question::parse(id.as_str().unwrap(), &definition).unwrap()).collect()
}

#[test]
fn routes() {
    let Some(recorded) = recorded("routing.json") else { return };
    let mut count = 0;
    for case in ["detection", "hints"].iter().flat_map(|key| recorded.get(key).unwrap().as_list().unwrap()) {
        let hint = |key: &str| case.get("kwargs")?.get(key)?.as_str().map(str::to_owned);
        let hints = Hints {
            model: hint("model"),
            task: hint("task"),
            language: hint("lang"),
            guess: hint("lang_guess"),
        };
        let questions = noul(case.get("questions").and_then(Value::as_list).unwrap_or_default());
        let mut routes = Routes::default();
        routes.detects_tasks = case.get("auto_task_detection") == Some(&Value::Bool(true));
        let ours = routes.route(case.get("state").unwrap(), &questions, &hints).unwrap().to_value();
        assert_eq!(ours.to_spaced(), case.get("route").unwrap().to_spaced(), "{}", case.to_spaced());
        count += 1;
    }
    assert_eq!(count, 48 + 15);
}

fn router() -> Router {
    let mut routes = Routes::empty();
    for (name, repo) in [("english", "./english"), ("multilingual", "./multilingual")] {
        routes.insert(name, repo).unwrap();
    }
    let load = |_: &str, repo: &str| {
        Decider::load(
            &DecisionCheckpoint::open(&tiny(repo)).unwrap(),
            LayaOptions { threads: 2, reduced: false },
        )
    };
    Router::new(routes, Router::<Decider>::MAX_LOADED, load).unwrap()
}

/// The exchange of a name: state, questions and recorded response.
fn exchange(cases: &Value, name: &str) -> (Value, Vec<Question>, Value) {
    let cases = cases.get("cases").unwrap().as_list().unwrap();
    let case = cases.iter().find(|case| case.get("name").unwrap().as_str() == Some(name)).unwrap();
    let body = case.get("body").unwrap();
    let state = body.get("state").or_else(|| body.get("states")).unwrap().clone();
    let questions = Question::parse_all(body.get("questions").unwrap()).unwrap();
    (state, questions, case.get("response").unwrap().clone())
}

#[test]
fn results_say_which_model_answered() {
    let Some(cases) = recorded("http.json") else { return };
    let mut router = router();
    let (none, any) = (Hints::default(), Request::default());
    let (state, questions, recorded) = exchange(&cases, "systemone-german");
    assert_eq!(router.decide(&state, &questions, &none, &any).unwrap().to_spaced(), recorded.to_spaced());
    let (states, questions, recorded) = exchange(&cases, "batch");
    let states: Vec<&Value> = states.as_list().unwrap().iter().collect();
    let expected = recorded.get("results").unwrap();
    // Twice, so that the states of a model are not neighbours.
    let twice: Vec<&Value> = states.iter().chain(&states).copied().collect();
    let ours = router.decide_all(&twice, &questions, &none, &any).unwrap();
    let expected: Vec<&Value> =
        expected.as_list().unwrap().iter().chain(expected.as_list().unwrap()).collect();
    for (ours, expected) in ours.iter().zip(&expected) {
        assert_eq!(ours.to_spaced(), expected.to_spaced());
    }
    assert_eq!((ours.len(), expected.len()), (4, 4));
    let typed = Hints { task: Some("typed".to_owned()), ..none };
    let error = router.decide(states[0], &questions, &typed, &any).unwrap_err();
    assert!(
        error.is_request() && error.to_string().contains("choose one of ['english', 'multilingual'] (or")
    );
}

#[test]
fn a_tournament_ends_as_recorded() {
    let Some(cases) = recorded("http.json") else { return };
    let (state, questions, recorded) = exchange(&cases, "tournament");
    let mut router = router();
    let decider = router.model("english").unwrap();
    let ours = decider
        .decide_tournament(&state, &questions, Tournament { group_size: 8 }, &Request::default())
        .unwrap();
    let theirs = recorded.get("answers").unwrap().get("q").unwrap();
    let answer = ours.get("answers").unwrap().get("q").unwrap();
    for (key, value) in answer.as_map().unwrap() {
        assert_eq!(value.to_spaced(), theirs.get(key).unwrap().to_spaced(), "{key}");
    }
    assert_eq!(ours.get("tournament").unwrap().get("q"), theirs.get("x_tournament"));
    assert_eq!(ours.get("usage"), recorded.get("usage"));
    // Over all labels, as served: the eliminated count as options.
    assert_eq!(jev_confidence(answer).as_ref(), theirs.get("x_jev_confidence"));
    let few =
        decider.decide_tournament(&state, &questions, Tournament { group_size: 100 }, &Request::default());
    assert!(few.unwrap().get("tournament").is_none());
    let error =
        decider.decide_tournament(&state, &questions, Tournament { group_size: 1 }, &Request::default());
    assert!(error.unwrap_err().to_string().contains("expected 2 to 100"));
}

#[test]
fn a_shortlist_keeps_the_nearest_labels() {
    let Some(cases) = recorded("http.json") else { return };
    let (state, questions, _) = exchange(&cases, "tournament");
    let mut router = router();
    let decider = router.model("english").unwrap();
    let any = Request::default();
    let ours = decider.decide_shortlist(&state, &questions, Shortlist { k: 5 }, &any).unwrap();
    let list = ours.get("shortlist").unwrap().get("q").unwrap();
    let scores = list.get("scores").unwrap().as_list().unwrap();
    let scores: Vec<f64> = scores.iter().map(|s| s.as_f64().unwrap()).collect();
    assert!(scores.len() == 5 && scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|s| s.abs() <= 1.0));
    let answer = ours.get("answers").unwrap().get("q").unwrap();
    let asked = answer.get("probabilities").unwrap().as_map().unwrap();
    let asked: Vec<Value> = asked.iter().map(|(label, _)| Value::text(label)).collect();
    assert_eq!(list.get("labels").unwrap().as_list().unwrap(), asked);
    assert_eq!((list.get("k"), list.get("n")), (Some(&Value::int(5)), Some(&Value::int(22))));
    // A state that is the query itself but for the instructions finds the label it repeats.
    let word = &questions[0].narrowed(&[2]);
    let same = Question { instructions: word.options[0].clone(), ..questions[0].clone() };
    let found =
        decider.decide_shortlist(&Value::text(&word.options[0]), &[same], Shortlist { k: 1 }, &any).unwrap();
    let found = found.get("shortlist").unwrap().get("q").unwrap().get("labels").unwrap().to_spaced();
    assert_eq!(found, format!("[{}]", word.labels[0].to_spaced()));
    let all = decider.decide_shortlist(&state, &questions, Shortlist { k: 22 }, &any).unwrap();
    assert_eq!(all.get("shortlist").unwrap().get("q").unwrap().get("passthrough"), Some(&Value::Bool(true)));
    let plain = decider.decide(&state, &questions, &any).unwrap().to_value();
    assert_eq!(all.get("answers"), plain.get("answers"));
    assert!(decider.decide_shortlist(&state, &questions, Shortlist { k: 0 }, &any).is_err());
}
