//! Question sets for common texts.

use crate::value::Value;
use crate::{Error, Result};

static PRESETS: &str = include_str!("../data/presets.json");

/// A set of questions about one kind of text.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    /// The word the instructions call the text by, the key of a state object that holds it.
    pub state_key: String,
    /// Definitions of the questions by id, as [`crate::Question::parse_all`] reads them.
    pub questions: Value,
}

impl Preset {
    /// Names of all sets.
    pub const NAMES: [&str; 5] = ["email", "guard", "moderation", "router", "triage"];

    /// The set of a name.
    pub fn named(name: &str) -> Result<Self> {
        let all = Value::parse(PRESETS)?;
        let part = |key: &str| all.get(name)?.get(key).cloned();
        let (Some(Value::Text(state_key)), Some(questions)) = (part("state_key"), part("questions")) else {
            let problem = format!("`{name}` is none of {}", Self::NAMES.join(", "));
            return Err(Error::Argument { name: "preset", problem });
        };
        Ok(Self { state_key, questions })
    }

    /// A text as the state these questions are about.
    pub fn state(&self, text: impl Into<String>) -> Value {
        Value::Map(vec![(self.state_key.clone(), Value::text(text))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Question;

    #[test]
    fn every_set_is_valid_and_names_its_state() {
        for name in Preset::NAMES {
            let preset = Preset::named(name).unwrap();
            let questions = Question::parse_all(&preset.questions).unwrap();
            assert!(questions.len() >= 4, "{name}");
            let word = format!("`{}`", preset.state_key);
            for question in questions {
                assert!(question.instructions.contains(&word), "{name}: {}", question.instructions);
            }
        }
        assert_eq!(Value::parse(PRESETS).unwrap().as_map().unwrap().len(), Preset::NAMES.len());
        let state = Preset::named("triage").unwrap().state("Hello");
        assert_eq!(state.to_spaced(), r#"{"message": "Hello"}"#);
        assert!(Preset::named("emails").unwrap_err().to_string().contains("none of email, guard"));
    }
}
