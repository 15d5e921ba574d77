use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::measure::{Kind, Test};

const WIDTH: i32 = 720;
const ROW: i32 = 44;
const TOP: i32 = 56;
const LEFT: i32 = 110;
const RIGHT: i32 = 170;

/// A bar per test as long as its mean rate, with a whisker from the slowest to the fastest measurement.
///
/// Prefill and decode are drawn to scales of their own.
pub(super) fn draw(title: &str, tests: &[Test]) -> Result<String> {
    let mut svg = String::new();
    {
        let height = TOP + ROW * tests.len() as i32 + 16;
        let area = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        paint(&area, title, tests).map_err(|error| anyhow!("--svg: the plot could not be drawn: {error}"))?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawResult = std::result::Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn paint(area: &Area<'_>, title: &str, tests: &[Test]) -> DrawResult {
    area.fill(&WHITE)?;
    let text =
        |size: i32, h: HPos| ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(h, VPos::Center));
    area.draw(&Text::new(title.to_owned(), (16, 24), text(17, HPos::Left)))?;
    for (row, test) in tests.iter().enumerate() {
        let y = TOP + ROW * row as i32 + ROW / 2;
        let scale =
            tests.iter().filter(|t| t.kind == test.kind).map(Test::max).fold(f64::MIN_POSITIVE, f64::max);
        let x = |rate: f64| LEFT + (f64::from(WIDTH - LEFT - RIGHT) * rate / scale).round() as i32;
        let colour = if test.kind == Kind::Prefill { RGBColor(45, 110, 180) } else { RGBColor(220, 120, 50) };
        area.draw(&Text::new(test.name(), (LEFT - 12, y), text(14, HPos::Right)))?;
        area.draw(&Rectangle::new([(LEFT, y - 12), (x(test.mean()), y + 12)], colour.filled()))?;
        let (low, high) = (x(test.min()), x(test.max()));
        for line in [[(low, y), (high, y)], [(low, y - 6), (low, y + 6)], [(high, y - 6), (high, y + 6)]] {
            area.draw(&PathElement::new(line.to_vec(), BLACK.stroke_width(2)))?;
        }
        let rate = format!("{:.1} ± {:.1} tok/s", test.mean(), test.sd());
        area.draw(&Text::new(rate, (high + 10, y), text(14, HPos::Left)))?;
    }
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_rates() {
        let test =
            |kind, tokens, samples: &[f64]| Test { samples: samples.to_vec(), ..Test::new(kind, tokens) };
        let tests = [
            test(Kind::Prefill, 512, &[900.0, 1000.0]),
            test(Kind::Decode, 16, &[50.0]),
            test(Kind::Decode, 64, &[100.0]),
        ];
        let svg = draw("a & b", &tests).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(
            svg.contains("pp512") && svg.contains("950.0 ± 70.7 tok/s") && svg.contains("a &amp; b"),
            "{svg}"
        );
        let width = WIDTH - LEFT - RIGHT;
        let bar = |w: i32| svg.contains(&format!("width=\"{w}\" height=\"24\""));
        assert!(bar((f64::from(width) * 0.95) as i32) && bar(width / 2) && bar(width), "{svg}");
    }
}
