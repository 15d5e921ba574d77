//! Temperatures that make a model's scores probabilities.

use serde_json::{Map, Value as Json};

use crate::question::{Kind, Question};
use crate::{Error, Result};

/// Bounds of a temperature.
const COLDEST: f64 = 0.5;
const HOTTEST: f64 = 5.0;

/// Temperatures by kind of question, overridden by kind and number of options.
#[derive(Debug, Clone, PartialEq)]
pub struct Temperatures {
    kinds: [f64; 3],
    buckets: Vec<(String, f64)>,
}

/// How a model's scores become probabilities, and those a confidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    temperatures: Temperatures,
    /// Temperatures for texts in a language, by its primary subtag in lower case.
    languages: Vec<(String, Temperatures)>,
    /// Observed accuracy by confidence, for some buckets.
    bins: Vec<(String, Vec<f64>)>,
}

impl Temperatures {
    /// Reads `temperature` and `temperature_by_options` of an object; `file` names it in errors.
    pub fn read(map: &Map<String, Json>, file: &str) -> Result<Self> {
        let wrong = |key: &str, problem: String| {
            Err(Error::Config { file: file.to_owned(), key: key.to_owned(), problem })
        };
        let kinds = match map.get("temperature").filter(|v| !v.is_null()) {
            None => [1.0; 3],
            Some(Json::Array(list)) if list.len() == 3 => std::array::from_fn(|i| clamped(&list[i])),
            Some(other) => {
                return wrong("temperature", format!("is {other}, expected 3 numbers: choice, score, noul"));
            }
        };
        let buckets = match map.get("temperature_by_options").filter(|v| !v.is_null()) {
            None => Vec::new(),
            Some(Json::Object(map)) => map.iter().map(|(key, v)| (key.clone(), clamped(v))).collect(),
            Some(other) => {
                let problem = format!("is {other}, expected an object of `kind:options` to a number");
                return wrong("temperature_by_options", problem);
            }
        };
        Ok(Self { kinds, buckets })
    }

    /// Those of choice, score and noul, inside their bounds.
    pub fn kinds(&self) -> [f64; 3] {
        self.kinds
    }

    /// Those by `kind:options`, inside their bounds, in the order of the file.
    pub fn buckets(&self) -> &[(String, f64)] {
        &self.buckets
    }

    fn of(&self, kind: Kind, bucket: &str) -> f64 {
        let own = self.buckets.iter().find(|(key, _)| key == bucket);
        own.map_or(self.kinds[kind.index()], |(_, temperature)| *temperature)
    }
}

/// A temperature inside its bounds; 1 when it is no number.
fn clamped(value: &Json) -> f64 {
    value.as_f64().filter(|v| v.is_finite()).map_or(1.0, |v| v.clamp(COLDEST, HOTTEST))
}

impl Calibration {
    /// The calibration in a checkpoint's `rl_agent_config.json`.
    pub fn of_config(config: &Map<String, Json>) -> Result<Self> {
        let temperatures = Temperatures::read(config, "rl_agent_config.json")?;
        Ok(Self { temperatures, languages: Vec::new(), bins: Vec::new() })
    }

    /// A calibration file, which replaces everything a checkpoint says; `file` names it in errors.
    pub fn of_file(map: &Map<String, Json>, file: &str) -> Result<Self> {
        let wrong = |key: &str, problem: &str| {
            Err(Error::Config { file: file.to_owned(), key: key.to_owned(), problem: problem.to_owned() })
        };
        match map.get("version").map(Json::as_u64) {
            None | Some(Some(1 | 2)) => {}
            _ => return wrong("version", "is not one this program reads; supported are 1 and 2"),
        }
        let temperatures = Temperatures::read(map, file)?;
        let bins = match map.get("binning_map").filter(|v| !v.is_null()) {
            None => Vec::new(),
            Some(Json::Object(map)) => read_bins(map, file)?,
            Some(_) => return wrong("binning_map", "must be an object of `kind:options` to {bins, values}"),
        };
        Ok(Self { temperatures, languages: Vec::new(), bins })
    }

    /// The temperatures of states whose language has none of its own.
    pub fn temperatures(&self) -> &Temperatures {
        &self.temperatures
    }

    /// Uses other temperatures for states in a language, given by any of its codes.
    pub fn set_language(&mut self, code: &str, temperatures: Temperatures) {
        let Some(code) = primary_subtag(code) else { return };
        self.languages.retain(|(known, _)| *known != code);
        self.languages.push((code, temperatures));
    }

    /// Uses observed accuracies: an object of `kind:options` to `{bins, values}`.
    pub fn set_bins(&mut self, map: &Map<String, Json>, file: &str) -> Result<()> {
        self.bins = read_bins(map, file)?;
        Ok(())
    }

    /// Probabilities of a question's options, in option order, of scores in slot order.
    pub(crate) fn probabilities(
        &self,
        question: &Question,
        logits: &[f32],
        language: Option<&str>,
    ) -> Vec<f64> {
        let temperatures = self.language(language).unwrap_or(&self.temperatures);
        let temperature = temperatures.of(question.kind, &question.bucket());
        let scaled: Vec<f64> = logits.iter().map(|z| f64::from(*z) / temperature).collect();
        let mut probabilities = vec![0.0; logits.len()];
        for (option, p) in question.slots().zip(softmax(&scaled)) {
            probabilities[option] = p;
        }
        probabilities
    }

    /// What the largest probability is worth, by observation where there is any.
    pub(crate) fn confidence(&self, question: &Question, largest: f64, language: Option<&str>) -> f64 {
        let bucket = question.bucket();
        let bins = self.bins.iter().find(|(key, _)| *key == bucket);
        match bins.filter(|_| self.language(language).is_none()) {
            Some((_, values)) => {
                let bin = (largest * values.len() as f64).floor().max(0.0) as usize;
                values[bin.min(values.len() - 1)]
            }
            None => largest,
        }
    }

    fn language(&self, code: Option<&str>) -> Option<&Temperatures> {
        let code = code.and_then(primary_subtag)?;
        self.languages.iter().find(|(known, _)| *known == code).map(|(_, temperatures)| temperatures)
    }
}

fn read_bins(map: &Map<String, Json>, file: &str) -> Result<Vec<(String, Vec<f64>)>> {
    let read = |(key, entry): (&String, &Json)| {
        let values = entry.get("values").and_then(Json::as_array);
        let values: Option<Vec<f64>> = values.and_then(|list| list.iter().map(Json::as_f64).collect());
        let count = entry.get("bins").and_then(Json::as_u64).filter(|n| *n >= 1);
        let sound = |values: &Vec<f64>| {
            Some(values.len() as u64) == count && values.iter().all(|v| (0.0..=1.0).contains(v))
        };
        let values = values.filter(sound).ok_or_else(|| Error::Config {
            file: file.to_owned(),
            key: format!("binning_map.{key}"),
            problem: "must hold `bins`, a count, and as many `values` from 0 to 1".to_owned(),
        })?;
        Ok((key.clone(), values))
    };
    map.iter().map(read).collect()
}

/// The part of a language code that names the language, in lower case; none when it names none.
pub fn primary_subtag(code: &str) -> Option<String> {
    let code = code.split('.').next().unwrap_or_default().replace('_', "-");
    let subtag = code.split('-').next().unwrap_or_default().trim().to_lowercase();
    let names_none = ["", "c", "posix", "und", "zxx", "mul"].contains(&subtag.as_str());
    (!names_none).then_some(subtag)
}

/// Probabilities of scores.
pub(crate) fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let terms: Vec<f64> = scores.iter().map(|z| (z - max).exp()).collect();
    let sum: f64 = terms.iter().sum();
    terms.into_iter().map(|t| t / sum).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Value;

    fn question(options: usize) -> Question {
        let labels: Vec<String> = (0..options).map(|i| format!("\"o{i}\"")).collect();
        let text = format!(r#"{{"type":"choice","instructions":"x","criteria":[{}]}}"#, labels.join(","));
        Question::parse("q", &Value::parse(&text).unwrap()).unwrap()
    }

    fn calibration(value: &Json) -> Calibration {
        Calibration::of_file(value.as_object().unwrap(), "f").unwrap()
    }

    #[test]
    fn temperatures_are_clamped_and_looked_up_by_size() {
        let calibration = calibration(&json!({"temperature": [0.1, "x", 9],
            "temperature_by_options": {"choice:11+": 0.1, "choice:3-5": 2.0, "choice:2": true}}));
        let of = |kind, n: usize| calibration.temperatures.of(kind, &question(n).bucket());
        assert_eq!([of(Kind::Choice, 1), of(Kind::Choice, 2), of(Kind::Choice, 3)], [1.0, 1.0, 2.0]);
        assert_eq!([of(Kind::Choice, 6), of(Kind::Choice, 11)], [0.5, 0.5]);
        assert_eq!(
            (calibration.temperatures.of(Kind::Score, "score:2"), calibration.temperatures.kinds[2]),
            (1.0, 5.0)
        );
    }

    #[test]
    fn order_and_languages() {
        let mut calibration = calibration(&json!({}));
        let mut q = question(2);
        q.order = Some(vec![1, 0]);
        let p = calibration.probabilities(&q, &[3f32.ln(), 0.0], None);
        assert!((p[0] - 0.25).abs() < 1e-7 && (p[1] - 0.75).abs() < 1e-7);
        let hot = Temperatures { kinds: [5.0; 3], buckets: Vec::new() };
        calibration.set_language("de_DE.UTF-8", hot);
        let p = calibration.probabilities(&q, &[3f32.ln(), 0.0], Some("DE-at"));
        assert!((p[1] / p[0] - 3f64.powf(0.2)).abs() < 1e-6);
        assert_eq!(primary_subtag("C.UTF-8"), None);
    }

    #[test]
    fn bins_and_what_is_refused() {
        let calibration =
            calibration(&json!({"binning_map": {"choice:2": {"bins": 2, "values": [0.1, 0.9]}}}));
        let of = |p| calibration.confidence(&question(2), p, None);
        assert_eq!([of(0.0), of(0.49), of(0.5), of(1.0)], [0.1, 0.1, 0.9, 0.9]);
        assert_eq!(calibration.confidence(&question(3), 0.4, None), 0.4);
        // They were observed at the model's own temperatures.
        let mut calibration = calibration;
        calibration.set_language("de", Temperatures { kinds: [2.0; 3], buckets: Vec::new() });
        let of = |language| calibration.confidence(&question(2), 0.4, Some(language));
        assert_eq!([of("de-AT"), of("fr")], [0.4, 0.1]);
        for (value, key) in [
            (json!({"temperature": [1, 2]}), "`temperature`"),
            (json!({"temperature_by_options": []}), "`temperature_by_options`"),
            (json!({"version": 3}), "`version`"),
            (json!({"binning_map": {"a": {"bins": 2, "values": [0.5]}}}), "`binning_map.a`"),
            (json!({"binning_map": {"a": {"bins": 1, "values": [1.5]}}}), "`binning_map.a`"),
        ] {
            let error = Calibration::of_file(value.as_object().unwrap(), "f").unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
