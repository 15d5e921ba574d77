//! Powers of two for weights and probabilities, so that products lie inside the range of the engine's sums.

use std::collections::BTreeMap;
use std::path::Path;

use anemone_ane::{CacheKind, Options, Pass, Rules, Scales, plan};
use anemone_bundle::{Bundle, Source, Writer, file_sha256};
use anemone_checkpoint::Checkpoint;
use anemone_emulator::{Emulator, Profile, Range, Ranges};
use anemone_models::Stack;
use anemone_session::{Engine as _, GraphEngine};
use anyhow::{Context, Result, ensure};

use super::super::texts;
use super::jobs;
use crate::cli::Shell;
use crate::{machine, model};

/// Profiles whose limits are kept, all at once.
const PROFILES: [&str; 2] = ["m1", "m4"];
/// Tokens of the text that are run when nothing is said, and of one stretch of it.
const TOKENS: usize = 1024;
const WINDOW: usize = 64;
/// Doublings that products should lie above where they are dropped, by their root mean square: what is dropped is then a
/// millionth of a result's square or less.
const MARGIN: f64 = 10.0;
/// Doublings that stay free below overflow, for other texts.
const SPARE: f64 = 2.0;
/// The most a scale may be: its inverse must be a normal fp16 number.
const MOST: i32 = 14;
/// Largest and smallest power of two of a stored fp16 weight.
const FP16: (f64, i32) = (65504.0, -24);

/// Runs the text through the plain lowering of the checkpoint on the emulator, in f32, and chooses by what its sums came to.
pub(super) fn choose(
    text: &Path,
    tokens: Option<usize>,
    unfinished: &Path,
    checkpoint: &Checkpoint,
    stack: &Stack,
    options: &Options,
    shell: &Shell,
) -> Result<Scales> {
    let tokenizer = model::tokenizer(checkpoint).context("--calibrate needs the checkpoint's tokenizer")?;
    let label = || format!("--calibrate {}", text.display());
    let whole = texts::read("--calibrate", text)?;
    // In the unfinished bundle, so that a calibration that is broken off leaves nothing else behind.
    let place = tempfile::Builder::new().prefix("calibrate-").tempdir_in(unfinished);
    let place = place.with_context(|| format!("cannot write to {}", unfinished.display()))?;
    let window = WINDOW.min(options.ctx);
    let plain = Options {
        ctx: window,
        passes: vec![if window > 1 { Pass::Prefill(window) } else { Pass::Decode }],
        cache: CacheKind::Io,
        rules: Rules { scale_wide: None, scaled_pv: None, ..options.rules },
        scales: None,
        ..options.clone()
    };
    let tokens = tokens.unwrap_or(TOKENS);
    let windows = texts::windows(&whole, &tokenizer, tokens, window, stack.vocab_size).with_context(label)?;
    let bundle = write(&place.path().join("plain.bundle"), checkpoint, stack, &plain, shell)?;
    let ranges = Ranges::default();
    let emulator = Emulator::new(Profile::f32(), machine::threads()).with_ranges(ranges.clone());
    let mut engine = GraphEngine::new(bundle, Box::new(emulator)).context("the calibration's own bundle")?;
    let bar = indicatif::ProgressBar::new(windows.len() as u64);
    if shell.quiet {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    for window in &windows {
        engine.reset();
        engine.feed(window)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let seen = ranges.get();
    ensure!(
        seen.iter().all(|r| r.reach.is_finite()),
        "--calibrate {}: the model's numbers are not finite on it; check the checkpoint with verify",
        text.display()
    );
    let profiles = PROFILES.map(str::parse::<Profile>).into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Scales {
        log2: scales(&seen, &profiles),
        calibration_sha256: file_sha256(text)?,
        calibration_tokens: windows.iter().map(Vec::len).sum(),
        profiles: PROFILES.map(str::to_owned).into(),
    })
}

/// A line on what was chosen.
pub(super) fn summary(scales: &Scales) -> String {
    let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
    for log2 in scales.log2.values() {
        *counts.entry(*log2).or_default() += 1;
    }
    let each: Vec<String> = counts.iter().map(|(log2, count)| format!("2^{log2} for {count}")).collect();
    format!("{}, from {} tokens", each.join(", "), scales.calibration_tokens)
}

/// The bundle the text is run through.
fn write(
    out: &Path,
    checkpoint: &Checkpoint,
    stack: &Stack,
    options: &Options,
    shell: &Shell,
) -> Result<Bundle> {
    let plan = plan(stack, options).with_context(|| checkpoint.name().to_string())?;
    let mut writer = Writer::create(out, false)?;
    let sha256 = jobs::run(checkpoint, stack, options, &plan, None, &mut writer, shell)?;
    let source = Source { name: checkpoint.name().into(), model_type: stack.model_type.clone(), sha256 };
    let tensors = stack.weights().into_iter().map(|w| (w.name.clone(), w.shape.to_vec())).collect();
    writer.finish(source, options, &plan, tensors, "a calibration")?;
    Ok(Bundle::open(out)?)
}

/// What one scale stands for: all sums that share it.
#[derive(Debug, Default)]
struct Shared {
    /// By part of a contraction, the largest bound over everything else.
    reach: BTreeMap<usize, f64>,
    /// Least distance to where products are dropped.
    margin: Option<f64>,
    largest: f64,
    lowest_bit: Option<i32>,
    weights: bool,
}

/// A power of two for each linear map, and for the probabilities of each attention.
fn scales(seen: &[Range], profiles: &[Profile]) -> BTreeMap<String, i32> {
    let mut shared: BTreeMap<String, Shared> = BTreeMap::new();
    let mut overflow = f64::INFINITY;
    for range in seen {
        let Some((name, part)) = scaled(range) else { continue };
        let limits: Vec<_> = profiles.iter().map(|p| p.limits(range.terms)).collect();
        overflow = limits.iter().filter_map(|l| l.overflow).fold(overflow, |a, b| a.min(f64::from(b)));
        let dropped = limits.iter().filter_map(|l| l.dropped).reduce(f32::max);
        let all = shared.entry(name).or_default();
        let reach = all.reach.entry(part).or_default();
        *reach = reach.max(f64::from(range.reach));
        all.margin = all.margin.into_iter().chain(dropped.and_then(|d| range.margin(d))).reduce(f64::min);
        all.largest = all.largest.max(f64::from(range.largest_weight));
        all.lowest_bit = all.lowest_bit.into_iter().chain(range.lowest_bit).min();
        all.weights |= range.largest_weight > 0.0;
    }
    shared.into_iter().map(|(name, all)| (name, all.scale(overflow))).collect()
}

impl Shared {
    fn scale(&self, overflow: f64) -> i32 {
        // The parts of a contraction are added before the scale is undone.
        let reach: f64 = self.reach.values().sum();
        if reach == 0.0 {
            return 0;
        }
        let room = (overflow / reach).log2() - SPARE;
        let stored = if self.weights { (FP16.0 / self.largest).log2() } else { f64::INFINITY };
        if room < 0.0 {
            // Only weights can be made smaller, and only as long as no bit is lost.
            let least = self.lowest_bit.filter(|_| self.weights).map_or(0, |bit| (FP16.1 - bit).min(0));
            return (room.floor() as i32).max(least).max(-MOST);
        }
        let wanted = self.margin.map_or(0.0, |m| MARGIN - m).ceil();
        (wanted.min(room.floor()).min(stored.floor()) as i32).clamp(0, MOST)
    }
}

/// The name under which the lowering looks the scale of these sums up, and which part of a contraction they are; none for sums
/// that have no scale.
fn scaled(range: &Range) -> Option<(String, usize)> {
    let op = &range.op;
    if range.lowest_bit.is_some() {
        let (name, part) = match op.rsplit_once("_conv_part_") {
            Some((name, part)) => (name, part.parse().ok()?),
            None => (op.as_str(), 0),
        };
        return Some((name.to_owned(), part));
    }
    let (name, head) = op.rsplit_once('_')?;
    (name.ends_with("_attended") && head.parse::<usize>().is_ok()).then(|| (name.to_owned(), 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(op: &str, reach: f32, rms: f64, weights: Option<(f32, i32)>) -> Range {
        Range {
            package: "chunk_0".into(),
            op: op.into(),
            terms: 64,
            sums: 1,
            reach,
            products: 1,
            energy: rms * rms,
            largest_weight: weights.map_or(0.0, |w| w.0),
            lowest_bit: weights.map(|w| w.1),
            ..Range::default()
        }
    }

    #[test]
    fn scales_lift_products_as_far_as_sums_weights_and_fp16_have_room() {
        let profiles = ["m4".parse().unwrap()];
        let weight = Some((1.0, -12));
        let two = |e: i32| f64::powi(2.0, e);
        let of = |ranges: &[Range]| scales(ranges, &profiles);
        let one = |r: Range| of(&[r]).into_values().next().unwrap();
        // Products of 2^-9 are dropped below 2^-15: four doublings more make ten.
        assert_eq!(one(range("a", 1.0, two(-9), weight)), 4);
        assert_eq!(one(range("a", 1.0, two(-5), weight)), 0);
        // Sums of 2^11 have four doublings to 2^15, of which two stay free.
        assert_eq!(one(range("a", 2048.0, two(-9), weight)), 2);
        // Weights of 20000 have one.
        assert_eq!(one(range("a", 1.0, two(-9), Some((20000.0, 4)))), 1);
        assert_eq!(one(range("a", 0.01, two(-40), weight)), MOST);
        // Too large: made smaller as far as the lowest bit, 2^-20, allows, and without a weight not at all.
        assert_eq!(one(range("a", 65536.0, 1.0, weight)), -3);
        assert_eq!(one(range("a", 65536.0 * 1024.0, 1.0, Some((1.0, -20)))), -4);
        assert_eq!(one(range("x_attended_0", 65536.0, 1.0, None)), 0);
        // Parts are added up; heads and slices of one map share the scale, the tightest deciding.
        let parts = [
            range("f_conv_part_0", 1024.0, two(-9), weight),
            range("f_conv_part_1", 1024.0, two(-9), weight),
        ];
        assert_eq!(of(&parts), BTreeMap::from([("f".to_owned(), 2)]));
        let heads =
            [range("x_attended_0", 1.0, two(-11), None), range("x_attended_1", 4096.0, two(-5), None)];
        assert_eq!(of(&heads), BTreeMap::from([("x_attended".to_owned(), 1)]));
        // Scores have no scale.
        assert!(of(&[range("x_scores_0", 1.0, two(-20), None)]).is_empty());
    }
}
