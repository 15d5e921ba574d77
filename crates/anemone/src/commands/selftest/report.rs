use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

/// A check and how it ended.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) name: String,
    pub(super) passed: bool,
    pub(super) detail: String,
}

/// What was found on a machine.
#[derive(Debug)]
pub(super) struct Report {
    simulated: bool,
    cpu_only: bool,
    pub(super) findings: Vec<Finding>,
    steps: Vec<Value>,
    /// Functions by package and name with their plans.
    placements: Vec<Value>,
}

impl Report {
    pub(super) fn new(simulated: bool, cpu_only: bool) -> Self {
        Self { simulated, cpu_only, findings: Vec::new(), steps: Vec::new(), placements: Vec::new() }
    }

    /// Keeps what a step told; a step that failed is a failed check.
    pub(super) fn keep(&mut self, step: &str, told: Result<Value>) -> Option<Value> {
        match told {
            Ok(value) => {
                self.steps.push(super::told(step, &value));
                Some(value)
            }
            Err(error) => {
                self.check(Finding { name: step.to_owned(), passed: false, detail: format!("{error:#}") });
                None
            }
        }
    }

    pub(super) fn check(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Adds the functions Core ML loaded, each once.
    pub(super) fn placed(&mut self, core_ml: &Value) {
        for function in core_ml["functions"].as_array().into_iter().flatten() {
            let same = |known: &Value| {
                known["package"] == function["package"] && known["function"] == function["function"]
            };
            if self.placements.iter().any(same) {
                continue;
            }
            self.placements.push(function.clone());
            let share = function["plan"]["ane_share"].as_f64();
            let name = format!(
                "{} {}",
                function["package"].as_str().unwrap_or("?"),
                function["function"].as_str().unwrap_or("?")
            );
            let detail = match share {
                Some(share) => format!(
                    "{:.1} % of the estimated cost is on the Neural Engine, {} changes of place",
                    share * 100.0,
                    function["plan"]["transitions"]
                ),
                None => "the system tells no plan".to_owned(),
            };
            // A model as small as this one may be declined; where it runs is told and is no failure.
            self.check(Finding { name, passed: true, detail });
        }
    }

    pub(super) fn passed(&self) -> bool {
        self.findings.iter().all(|finding| finding.passed)
    }

    pub(super) fn json(&self) -> Value {
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|f| json!({"name": f.name, "passed": f.passed, "detail": f.detail}))
            .collect();
        json!({
            "format": "anemone-selftest",
            "version": env!("CARGO_PKG_VERSION"),
            "simulated": self.simulated,
            "cpu_only": self.cpu_only,
            "passed": self.passed(),
            "findings": findings,
            "placements": self.placements,
            "steps": self.steps,
        })
    }

    /// The findings as a page that needs nothing else.
    pub(super) fn html(&self) -> String {
        let mut rows = String::new();
        for finding in &self.findings {
            let (class, word) = if finding.passed { ("ok", "ok") } else { ("fail", "failed") };
            let _ = writeln!(
                rows,
                "<tr class=\"{class}\"><td>{word}</td><td>{}</td><td>{}</td></tr>",
                escaped(&finding.name),
                escaped(&finding.detail)
            );
        }
        let told = serde_json::to_string_pretty(&self.json()).unwrap_or_default();
        let what = if self.simulated { " over a simulated Core ML" } else { "" };
        let verdict = if self.passed() { "passed" } else { "failed" };
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>anemone selftest: {verdict}</title>\n\
             <style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}}\
             table{{border-collapse:collapse;width:100%}}td{{padding:.3rem .6rem;border-top:1px solid #8884;vertical-align:top}}\
             .fail td:first-child{{color:#c22;font-weight:600}}.ok td:first-child{{color:#287}}pre{{overflow:auto;font-size:13px}}</style>\n\
             <h1>anemone {} selftest{what}: {verdict}</h1>\n<table>\n{rows}</table>\n<details><summary>everything that was told</summary>\
             <pre>{}</pre></details>\n</html>\n",
            env!("CARGO_PKG_VERSION"),
            escaped(&told)
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_fails_the_report_and_pages_hold_no_markup_of_others() {
        let mut report = Report::new(true, false);
        assert!(report.keep("doctor", Ok(json!({"os": "<b>"}))).is_some() && report.passed());
        let function =
            json!({"package": "c", "function": "decode", "plan": {"ane_share": 0.5, "transitions": 3}});
        report.placed(&json!({"functions": [function, function]}));
        assert_eq!(report.findings.len(), 1);
        assert!(report.keep("run", Err(anyhow::anyhow!("<script>"))).is_none() && !report.passed());
        let html = report.html();
        assert!(html.contains("&lt;script&gt;") && !html.contains("<script>") && html.contains("50.0 %"));
        assert_eq!(report.json()["passed"], false);
    }
}
