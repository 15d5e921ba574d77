use std::fmt::Write as _;

use anemone_decide::{Question, Value};

/// A line for each answer: what was decided, how probable it is, what it is worth.
pub(super) fn table(result: &Value, questions: &[Question]) -> String {
    let answers = result.get("answers");
    let rows: Vec<[String; 4]> = questions
        .iter()
        .filter_map(|question| {
            let answer = answers?.get(&question.id)?;
            Some([question.id.clone(), question.kind.name().to_owned(), decided(answer), worth(answer)])
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let pad = |text: &str, width: usize| format!("{text}{}", " ".repeat(width - text.chars().count()));
    let line = |row: &[String; 4]| {
        let cells = row[..3].iter().zip(widths).map(|(text, width)| pad(text, width));
        format!("{}  {}\n", cells.collect::<Vec<_>>().join("  "), row[3])
    };
    rows.iter().map(line).collect()
}

fn number(answer: &Value, key: &str) -> f64 {
    answer.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn decided(answer: &Value) -> String {
    match answer.get("type").and_then(Value::as_str) {
        Some("choice") => {
            let label = answer.get("choice").map(|label| label.rendered().into_owned()).unwrap_or_default();
            let label: String = label.split_whitespace().collect::<Vec<_>>().join(" ");
            let all = answer.get("probabilities").and_then(Value::as_map).unwrap_or_default();
            let best = all.iter().filter_map(|(_, p)| p.as_f64()).fold(0.0, f64::max);
            format!("{label} ({best:.3})")
        }
        Some("score") => {
            let levels = answer.get("legend").and_then(Value::as_map).map_or(0, <[_]>::len);
            format!("{:.2} of 0 to {}", number(answer, "score"), levels.saturating_sub(1))
        }
        _ => {
            let p = number(answer, "noul");
            format!("{} ({p:.3})", if p >= 0.5 { "yes" } else { "no" })
        }
    }
}

fn worth(answer: &Value) -> String {
    let mut text = format!("confidence {:.3}", number(answer, "answer_confidence"));
    if answer.get("low_confidence").is_some() {
        text.push_str("  [low confidence]");
    }
    if let Some(window) = answer.get("window") {
        let part = |key: &str| window.get(key).and_then(Value::as_usize).unwrap_or(0);
        let (index, count) = (part("index") + 1, part("count"));
        let _ = write!(
            text,
            "  window {index} of {count} (tokens {} to {})",
            part("token_start"),
            part("token_end")
        );
    }
    text
}
