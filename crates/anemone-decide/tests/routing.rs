//! Languages and routes against those laya recorded.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anemone_decide::{Detection, Value};

fn recorded() -> Option<Value> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/laya-tiny/routing.json");
    let Ok(text) = std::fs::read_to_string(path) else {
        // Not `eprintln!`, which the test runner swallows.
        let _ = writeln!(std::io::stderr(), "skipped: shared/fixtures/laya-tiny is not present");
        return None;
    };
    Some(Value::parse(&text).unwrap())
}

#[test]
fn languages() {
    let Some(recorded) = recorded() else { return };
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
