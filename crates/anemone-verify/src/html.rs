use std::fmt::Write as _;

use crate::plot;
use crate::report::Report;

const STYLE: &str = "
:root { color-scheme: light dark; --back: #fff; --ink: #1b1f24; --soft: #6a737d; --line: #d8dee4; --good: #1a7f37; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --ink: #e6e9ed; --soft: #98a2ad; --line: #343b43; --good: #4ac26b; --bad: #ff8a7a; } }
body { background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
.number { text-align: right; } .soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; } .grid { stroke: var(--line); }
polyline { fill: none; stroke-width: 1.5; }
.s0 { stroke: #2f6fb5; fill: #2f6fb5; } .s1 { stroke: #d9772b; fill: #d9772b; } .s2 { stroke: #3a9a5b; fill: #3a9a5b; }
.s3 { stroke: #a354b8; fill: #a354b8; } .s4 { stroke: #c4475a; fill: #c4475a; } .s5 { stroke: #7d8590; fill: #7d8590; }
polyline.s0, polyline.s1, polyline.s2, polyline.s3, polyline.s4, polyline.s5 { fill: none; }
";

/// A report as one page that needs nothing else; `facts` are shown at its head, as name and value.
pub fn html(report: &Report, facts: &[(&str, String)]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>anemone verify</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    );
    let (class, verdict) = if report.passed() { ("good", "passed") } else { ("bad", "failed") };
    let _ = writeln!(page, "<h1>anemone verify: <span class=\"{class}\">{verdict}</span></h1>");
    for failure in &report.failures {
        let _ = writeln!(page, "<p class=\"bad\">{}</p>", escape(failure));
    }
    page.push_str("<table>\n");
    for (name, value) in facts {
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    page.push_str("</table>\n<h2>Logits</h2>\n<table>\n<tr><th>pass</th>");
    for head in ["positions", "least cosine", "mean cosine", "max abs", "max KL", "same best token"] {
        let _ = write!(page, "<th class=\"number\">{head}</th>");
    }
    page.push_str("</tr>\n");
    for pass in &report.passes {
        let number = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| format!("{v:.7}"));
        let _ = writeln!(
            page,
            "<tr><td><span class=\"legend\">{}</span></td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{:.5}</td><td class=\"number\">{:.3e}</td><td class=\"number\">{} of {}</td></tr>",
            escape(&pass.name),
            pass.positions,
            number(pass.cosine),
            number(pass.cosine_mean),
            pass.max_abs,
            pass.kl,
            pass.agreed,
            pass.judged
        );
    }
    page.push_str("</table>\n");
    if let Some(svg) = plot::drift(&report.passes) {
        page.push_str(
            "<h2>Drift per layer</h2>\n<p class=\"soft\">One minus the least cosine of the residual stream.",
        );
        let drawn = report.passes.iter().filter(|p| !p.layers.is_empty());
        for (series, pass) in drawn.enumerate() {
            let _ = write!(
                page,
                " <svg width=\"12\" height=\"12\" viewBox=\"0 0 12 12\"><circle class=\"s{}\" cx=\"6\" cy=\"6\" r=\"4\"/></svg> {}",
                series % 6,
                escape(&pass.name)
            );
        }
        let _ = writeln!(page, "</p>\n{svg}");
    }
    let _ = writeln!(
        page,
        "<h2>Continuations</h2>\n<p>{} greedy tokens compared, {} differences. Two tokens closer than {:.5}, the largest error of a \
         logit over the prompts, are a tie.</p>",
        report.generated,
        report.divergences.len(),
        report.error
    );
    if !report.divergences.is_empty() {
        page.push_str("<table>\n<tr><th>pass</th><th>prompt</th><th class=\"number\">position</th><th class=\"number\">step</th><th class=\"number\">expected</th>");
        page.push_str("<th class=\"number\">found</th><th class=\"number\">margin</th><th class=\"number\">gap</th><th></th></tr>\n");
    }
    for d in &report.divergences {
        let step = d.step.map_or_else(|| "–".to_owned(), |s| s.to_string());
        let margin = d.margin.map_or_else(|| "–".to_owned(), |m| format!("{m:.5}"));
        let (class, word) = if d.tie { ("soft", "tie") } else { ("bad", "different") };
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{step}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{margin}</td><td class=\"number\">{:.5}</td><td class=\"{class}\">{word}</td></tr>",
            escape(&d.pass),
            escape(&d.prompt),
            d.position,
            d.expected,
            d.found,
            d.gap
        );
    }
    if !report.divergences.is_empty() {
        page.push_str("</table>\n");
    }
    for skipped in &report.skipped {
        let _ = writeln!(
            page,
            "<p class=\"soft\">Not compared: {}: {}</p>",
            escape(&skipped.prompt),
            escape(&skipped.reason)
        );
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// Text for an element or a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{LayerDrift, PassReport};

    #[test]
    fn a_page_holds_its_plot_and_nothing_from_elsewhere() {
        let layer =
            |path: &str, cosine| LayerDrift { path: path.into(), cosine, cosine_last: None, max_abs: 0.5 };
        let pass = PassReport {
            name: "decode<script>".into(),
            positions: 2,
            cosine: Some(0.9),
            cosine_mean: Some(0.95),
            worst: None,
            max_abs: 1.0,
            kl: 0.1,
            kl_mean: Some(0.1),
            judged: 2,
            agreed: 1,
            layers: vec![layer("model.layers.0", 1.0), layer("model.layers.1", 0.99)],
        };
        let report = Report {
            min_cos: 0.999,
            passes: vec![pass],
            error: 1.0,
            generated: 0,
            divergences: Vec::new(),
            skipped: Vec::new(),
            failures: vec!["decode: too far".into()],
        };
        let page = html(&report, &[("bundle", "a & b".into())]);
        assert!(
            page.contains("<polyline class=\"s0\"") && page.contains("layers.1") && page.contains("1e-2")
        );
        assert!(page.contains("failed") && page.contains("a &amp; b") && page.contains("decode: too far"));
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(!page.contains("<script") && !page.contains("http") && !page.contains("url("));
    }
}
