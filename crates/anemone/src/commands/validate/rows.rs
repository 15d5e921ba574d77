use std::path::Path;

use anemone_decide::Value;
use anyhow::{Context, Result, ensure};

use super::Case;
use crate::commands::decide::input::{self, Asked};
use crate::files;

/// States of several lengths and languages.
const STATES: [&str; 8] = [
    "ok",
    "where is my parcel",
    "please send a new card, mine was stolen yesterday",
    "Wo bleibt meine Bestellung? Sie sollte am Montag da sein.",
    "El tren lleva dos horas de retraso y nadie nos dice nada.",
    "La facture est correcte, merci beaucoup pour votre aide.",
    r#"{"subject": "refund", "amount": 19.9, "paid": true, "items": ["lamp", "cable"]}"#,
    "The heating in room 12 has been off since Friday. I called twice, and both times I was told that somebody would come \
     the same day. Nobody came.",
];

/// One question of each kind, and a choice among many.
const QUESTIONS: &str = r#"{
    "intent": {"type": "choice", "instructions": "What does the sender want?",
        "criteria": ["a refund", "a new card", "news of a delivery", "a repair", "nothing"]},
    "language": {"type": "choice", "instructions": "Which language is it?", "criteria": ["English", "another"]},
    "anger": {"type": "score", "instructions": "How angry is the sender?", "criteria": ["calm", "annoyed", "furious"]},
    "urgent": {"type": "noul", "instructions": "It cannot wait until tomorrow."}}"#;

/// The rows that are compared when none are given.
pub(super) fn own() -> Result<Vec<Case>> {
    let asked = input::questions(QUESTIONS)?;
    let mut cases = Vec::new();
    for (i, state) in STATES.into_iter().enumerate() {
        let json = state.starts_with('{').then(|| Value::parse(state)).transpose()?;
        cases.push(Case::new(format!("state {}", i + 1), json.unwrap_or(Value::text(state)), &asked));
    }
    Ok(cases)
}

/// The rows of a JSONL file.
pub(super) fn read(flag: &str, path: &Path, questions: Option<&str>) -> Result<Vec<Case>> {
    let shared = questions.map(input::questions).transpose()?;
    let text = files::read_text(flag, path)?;
    let mut cases: Vec<Case> = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let name = format!("line {}", i + 1);
        let label = || format!("{flag} {}, {name}", path.display());
        let line = Value::parse(line.trim()).with_context(label)?;
        let state = line.get("state").with_context(|| format!("{}: has no `state`", label()))?;
        let asked = match (line.get("questions"), line.get("question"), &shared) {
            (Some(questions), ..) => Asked::parse(questions).with_context(label)?,
            (None, Some(question), _) => {
                let one = Value::Map(vec![("question".to_owned(), question.clone())]);
                Asked::parse(&one).with_context(label)?
            }
            (None, None, Some(shared)) => shared.clone(),
            (None, None, None) => {
                anyhow::bail!(
                    "{}: has no `questions`; add them{}",
                    label(),
                    if flag == "--batch" { ", or give --questions" } else { "" }
                )
            }
        };
        cases.push(Case::new(name, asked.place(state.clone()), &asked));
    }
    ensure!(
        cases.iter().any(|case| !case.questions.is_empty()),
        "{flag} {}: no questions; give one JSON object a line",
        path.display()
    );
    Ok(cases)
}
