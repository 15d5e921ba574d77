use std::fmt::Write as _;

use crate::html::escape;
use crate::report::PassReport;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 110.0;

/// Drift per layer as SVG: one minus the least cosine, logarithmic, a line for each kind of pass; `None` without hidden states.
///
/// Colours are the classes `s0` to `s5` of the page it stands in.
pub(crate) fn drift(passes: &[PassReport]) -> Option<String> {
    let drawn: Vec<&PassReport> = passes.iter().filter(|p| !p.layers.is_empty()).collect();
    let mut paths: Vec<&str> = Vec::new();
    for layer in drawn.iter().flat_map(|p| &p.layers) {
        if !paths.contains(&layer.path.as_str()) {
            paths.push(&layer.path);
        }
    }
    if paths.is_empty() {
        return None;
    }
    let decade = |cosine: f64| (1.0 - cosine).max(1e-9).log10();
    let decades = drawn.iter().flat_map(|p| &p.layers).map(|l| decade(l.cosine));
    let (low, high) = decades.fold((0.0f64, -9.0f64), |(low, high), d| (low.min(d), high.max(d)));
    let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
    let x = |i: usize| LEFT + (WIDTH - LEFT - RIGHT) * (i as f64 + 0.5) / paths.len() as f64;
    let y = |d: f64| TOP + (HEIGHT - TOP - BOTTOM) * (high - d) / (high - low);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Drift of the residual stream per layer\">\n"
    );
    for d in low as i32..=high as i32 {
        let at = y(f64::from(d));
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">1e{d}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
    }
    // As many labels as can be read.
    let every = paths.len().div_ceil(40);
    for (i, path) in paths.iter().enumerate().filter(|(i, _)| i % every == 0) {
        let (at, under) = (x(i), HEIGHT - BOTTOM + 12.0);
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{under}\" transform=\"rotate(-60 {at:.1} {under})\" text-anchor=\"end\">{}</text>",
            escape(path.strip_prefix("model.").unwrap_or(path))
        );
    }
    for (series, pass) in drawn.iter().enumerate() {
        let class = format!("s{}", series % 6);
        let mut points = String::new();
        for layer in &pass.layers {
            let Some(i) = paths.iter().position(|p| *p == layer.path) else { continue };
            let (at, d) = (x(i), y(decade(layer.cosine)));
            let _ = write!(points, "{at:.1},{d:.1} ");
            let _ = writeln!(
                svg,
                "<circle class=\"{class}\" cx=\"{at:.1}\" cy=\"{d:.1}\" r=\"3\"><title>{} {}: cosine {:.8}</title></circle>",
                escape(&pass.name),
                escape(&layer.path),
                layer.cosine
            );
        }
        let _ = writeln!(svg, "<polyline class=\"{class}\" points=\"{}\"/>", points.trim_end());
    }
    svg.push_str("</svg>\n");
    Some(svg)
}
