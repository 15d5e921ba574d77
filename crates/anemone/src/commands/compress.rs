//! What `convert --precision` and `palettize` have in common.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anemone_bundle::{
    CalibrationRecord, Compression, Compressor, Encoded, Encoding, Site, SourceBundle, TensorSummary,
};
use anemone_kernels::Context;
use anemone_palettize::{Importance, Method, Scheme, affine, palettize};
use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use serde_json::{Value, json};

use super::calibrate::Subject;
use super::guide::{Guide, Wish};
use super::mixed::Goal;
use crate::cli::Shell;
use crate::machine;

/// Rows that share a table when nothing is said.
const GROUP: usize = 32;
/// Tokens of a calibration when nothing is said.
const TOKENS: usize = 8192;
/// Elements below which a weight stays fp16 when nothing is said.
const THRESHOLD: usize = 2048;

/// How weights are stored.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Weights")]
pub(crate) struct CompressArgs {
    /// Number format of the weights: fp16, codes of so many bits into tables, or integers with a scale for each output channel
    #[arg(long, value_name = "FORMAT", default_value = "fp16")]
    pub(crate) precision: Precision,
    /// Output channels that share a table, or near it where that does not divide them; 0 is one table for a tensor [default: 32]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    group: Option<usize>,
    /// How the entries of tables are chosen [default: fast]
    #[arg(long, value_name = "METHOD")]
    palette: Option<Palette>,
    /// Consecutive output channels that a code stands for [default: 1]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=4), allow_negative_numbers = true)]
    vector: Option<usize>,
    /// Leave weights with fewer elements as they are [default: 2048]
    #[arg(long, value_name = "ELEMENTS", allow_negative_numbers = true)]
    palettize_threshold: Option<usize>,
    /// Compress only tensors whose name this matches (`*` stands for anything); may be given several times
    #[arg(long, value_name = "PATTERN")]
    palettize_only: Vec<String>,
    /// Leave tensors whose name this matches as they are; may be given several times
    #[arg(long, value_name = "PATTERN")]
    palettize_skip: Vec<String>,
    /// Run the model over this, and choose weights by what its maps read: a text or JSONL with a "text" in each line for a language
    /// model, JSONL rows (as `validate --batch`) for a decision model
    #[arg(long, value_name = "TEXT|JSONL", help_heading = "Calibration")]
    pub(crate) calibrate: Option<PathBuf>,
    /// Tokens of the text that are run [default: 8192; 1024 for `convert --scales`]
    #[arg(long, value_name = "N", requires = "calibrate", help_heading = "Calibration", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 24), allow_negative_numbers = true)]
    pub(crate) calibrate_tokens: Option<usize>,
    /// Round each weight by itself, and not so that later columns make up for the errors of those before
    #[arg(long, requires = "calibrate", help_heading = "Calibration")]
    no_feedback: bool,
    /// What --precision mixed may take: bytes of all compressed weights (150M) or bits for each of them (4.5bits)
    #[arg(
        long,
        value_name = "SIZE",
        requires = "calibrate",
        conflicts_with = "min_cos",
        help_heading = "Calibration",
        allow_negative_numbers = true
    )]
    mixed: Option<Goal>,
    /// What --precision mixed must keep to: the mean cosine of logits over the calibration
    #[arg(long, value_name = "C", requires = "calibrate", help_heading = "Calibration", value_parser = cosine, allow_negative_numbers = true)]
    min_cos: Option<f64>,
}

fn cosine(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 1.0 => Ok(value),
        _ => Err("give a number above 0 and below 1".into()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    Fp16,
    Lut1,
    Lut2,
    Lut3,
    Lut4,
    Lut6,
    Lut8,
    /// Tables of 2 to 8 bits, each weight with what it is worth
    Mixed,
    Int4,
    Int8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Palette {
    /// k-means, its squared error within 1.01 of the least there is
    Fast,
    /// k-means, the least squared error there is
    Exact,
    /// Evenly spaced from the least to the largest weight
    Uniform,
}

impl CompressArgs {
    /// How weights are to be stored; none for fp16. Flags that mean nothing then are refused.
    pub(crate) fn encoding(&self) -> Result<Option<Encoding>> {
        let goals = [("--mixed", self.mixed.is_some()), ("--min-cos", self.min_cos.is_some())];
        match (self.precision, goals.into_iter().find(|(_, given)| *given)) {
            (Precision::Mixed, None) => bail!(
                "--precision mixed needs --calibrate and what to keep to: --mixed 4.5bits, --mixed 150M or --min-cos 0.999"
            ),
            (Precision::Mixed, _) | (_, None) => {}
            (_, Some((flag, _))) => {
                bail!("{flag} is for --precision mixed, and it is {}; leave it out", self.name())
            }
        }
        if let (Precision::Mixed, Some(vector)) = (self.precision, self.vector.filter(|v| *v > 1)) {
            bail!("--vector {vector} has no mixed form; leave it out, or give --precision lut4");
        }
        let lut = |bits| {
            let method = match self.palette.unwrap_or(Palette::Fast) {
                Palette::Fast => Method::Fast,
                Palette::Exact => Method::Exact,
                Palette::Uniform => Method::Uniform,
            };
            let group = Some(self.group.unwrap_or(GROUP)).filter(|g| *g > 0);
            Scheme { vector: self.vector.unwrap_or(1), ..Scheme::new(bits, group, method) }
        };
        let encoding = match self.precision {
            Precision::Fp16 => None,
            Precision::Lut1 => Some(Encoding::Palette(lut(1))),
            Precision::Lut2 => Some(Encoding::Palette(lut(2))),
            Precision::Lut3 => Some(Encoding::Palette(lut(3))),
            Precision::Lut4 => Some(Encoding::Palette(lut(4))),
            Precision::Lut6 => Some(Encoding::Palette(lut(6))),
            // The bits of those that the calibration does not meet.
            Precision::Lut8 | Precision::Mixed => Some(Encoding::Palette(lut(8))),
            Precision::Int4 => Some(Encoding::Affine(4)),
            Precision::Int8 => Some(Encoding::Affine(8)),
        };
        let of_tables = [
            ("--group", self.group.is_some()),
            ("--palette", self.palette.is_some()),
            ("--vector", self.vector.is_some()),
            ("--no-feedback", self.no_feedback),
        ];
        let of_any = [
            ("--palettize-threshold", self.palettize_threshold.is_some()),
            ("--palettize-only", !self.palettize_only.is_empty()),
            ("--palettize-skip", !self.palettize_skip.is_empty()),
        ];
        let idle = match encoding {
            Some(Encoding::Palette(scheme)) => {
                if let Err(error) = scheme.check() {
                    bail!("--vector {}: {error}", scheme.vector);
                }
                return Ok(encoding);
            }
            Some(Encoding::Affine(_)) => &of_tables[..],
            None => &[&of_tables[..], &of_any].concat(),
        };
        if let Some((flag, _)) = idle.iter().find(|(_, given)| *given) {
            bail!(
                "{flag} is for tables, and --precision is {}; leave it out, or give --precision lut8",
                self.name()
            );
        }
        Ok(encoding)
    }

    /// `--precision` as it is spelt.
    pub(crate) fn name(&self) -> String {
        self.precision.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Runs the model that `subject` opens over the text of --calibrate, if there is one.
    pub(crate) fn guide(
        &self,
        encoding: Encoding,
        threads: usize,
        subject: impl FnOnce(&Path, usize) -> Result<Subject>,
        shell: &Shell,
    ) -> Result<Option<Guide>> {
        let Some(path) = &self.calibrate else { return Ok(None) };
        let subject = subject(path, self.calibrate_tokens.unwrap_or(TOKENS))?;
        ensure!(
            subject.is_language() || self.calibrate_tokens.is_none(),
            "--calibrate-tokens is for language models, and a decision model runs every row; leave it out"
        );
        let goal = self.mixed.or(self.min_cos.map(Goal::Cosine));
        let wish = Wish { feedback: !self.no_feedback, goal };
        let scheme = match encoding {
            Encoding::Palette(scheme) => Some(scheme),
            Encoding::Affine(_) => None,
        };
        let kernels = Context::new(threads);
        Guide::new(path, &subject, wish, scheme.as_ref(), &self.chosen(), &kernels, shell).map(Some)
    }

    /// Which weights are compressed.
    fn chosen(&self) -> impl Fn(&Site) -> bool + Send + Sync + use<> {
        let (only, skip) = (self.palettize_only.clone(), self.palettize_skip.clone());
        let threshold = self.palettize_threshold.unwrap_or(THRESHOLD);
        move |site: &Site| {
            let named = |patterns: &[String]| {
                site.records.iter().any(|r| patterns.iter().any(|p| matches(p, &r.tensor)))
            };
            let large = site.rows() * site.columns() >= threshold;
            large && (only.is_empty() || named(&only)) && !named(&skip)
        }
    }

    /// Errors for a pattern that is the name of none of these tensors.
    pub(crate) fn check_names(&self, tensors: &[&str]) -> Result<()> {
        for (flag, patterns) in
            [("--palettize-only", &self.palettize_only), ("--palettize-skip", &self.palettize_skip)]
        {
            for pattern in patterns {
                ensure!(
                    tensors.iter().any(|name| matches(pattern, name)),
                    "{flag} {pattern}: no tensor has such a name; `anemone inspect --tensors` lists them"
                );
            }
        }
        Ok(())
    }

    /// What does the work; `progress` is told the number of weights that are done.
    pub(crate) fn compressor(
        &self,
        encoding: Encoding,
        kernels: Context,
        guide: Option<Guide>,
        progress: impl Fn(usize) + Send + Sync + 'static,
    ) -> Compressor {
        let (chosen, guide) = (self.chosen(), guide.map(Arc::new));
        let planned = guide.clone();
        let choose = move |site: &Site| {
            let encoding = match (encoding, &planned) {
                (Encoding::Palette(scheme), Some(guide)) => Encoding::Palette(guide.scheme(site, scheme)),
                _ => encoding,
            };
            chosen(site).then_some(encoding)
        };
        let encode = move |site: &Site, encoding: Encoding, matrix: anemone_palettize::Matrix<'_>| {
            let columns = site.records.first().map_or(0..site.columns(), |r| r.columns.clone());
            let (tensor, pool) = (site.tensor(), kernels.pool());
            Ok(match (encoding, &guide) {
                (Encoding::Palette(scheme), None) => {
                    Encoded::Palette(palettize(matrix, &scheme, Importance::Equal, pool, &progress)?)
                }
                (Encoding::Palette(scheme), Some(guide)) => Encoded::Palette(guide.palettize(
                    matrix,
                    &scheme,
                    (tensor, columns),
                    &kernels,
                    &progress,
                )?),
                (Encoding::Affine(bits), guide) => {
                    let importance =
                        guide.as_ref().map(|g| g.importance(tensor, columns)).transpose()?.flatten();
                    let importance = importance.as_deref().map_or(Importance::Equal, Importance::Columns);
                    Encoded::Affine(affine(matrix, bits, importance, pool, &progress)?)
                }
            })
        };
        Compressor { choose: Arc::new(choose), encode: Arc::new(encode) }
    }

    /// What a manifest says of it.
    pub(crate) fn record(
        &self,
        encoding: Encoding,
        source_bundle: Option<SourceBundle>,
        guide: Option<&Guide>,
    ) -> Compression {
        let (method, group, vector) = match encoding {
            Encoding::Affine(_) => (None, Some(1), 1),
            Encoding::Palette(scheme) => {
                let method = match scheme.method {
                    Method::Exact => "k-means, exact",
                    Method::Fast => "k-means, fast",
                    Method::Uniform => "uniform",
                };
                (Some(method.to_owned()), scheme.group, scheme.vector)
            }
        };
        Compression {
            source_bundle,
            precision: self.name(),
            method,
            group,
            vector,
            threshold: self.palettize_threshold.unwrap_or(THRESHOLD),
            only: self.palettize_only.clone(),
            skip: self.palettize_skip.clone(),
            calibration: guide.map(|guide| guide.record.clone()),
            gate: None,
            tensors: Vec::new(),
        }
    }
}

/// Errors when nothing was compressed.
pub(crate) fn check_some(compression: &Compression) -> Result<()> {
    ensure!(
        !compression.tensors.is_empty(),
        "--precision {}: no weight is compressed, since each is left out by --palettize-only or --palettize-skip or has fewer \
         elements than --palettize-threshold {}; change those",
        compression.precision,
        compression.threshold
    );
    Ok(())
}

/// The whole of a compression, without its tensors: counts, bytes and relative errors.
pub(crate) fn summary(compression: &Compression) -> Value {
    let total = Total::of(compression);
    json!({
        "precision": compression.precision,
        "method": compression.method,
        "group": compression.group,
        "vector": compression.vector,
        "calibration": compression.calibration,
        "weights": compression.tensors.len(),
        "elements": total.elements,
        "bytes": total.bytes,
        "mean_rel_rmse": total.mean,
        "max_rel_rmse": total.worst.map(|t| t.rel_rmse),
        "worst": total.worst.map(|t| t.tensor.as_str()),
    })
}

/// [`summary`] as a line of a report.
pub(crate) fn line(compression: &Compression) -> String {
    let total = Total::of(compression);
    let calibrated = match &compression.calibration {
        Some(CalibrationRecord { feedback: true, .. }) => Some("calibrated, with feedback"),
        Some(_) => Some("calibrated"),
        None => None,
    };
    let how: Vec<&str> = compression.method.as_deref().into_iter().chain(calibrated).collect();
    let method = if how.is_empty() { String::new() } else { format!(" ({})", how.join(", ")) };
    let worst = total.worst.map_or_else(String::new, |t| format!(", {:.5} at {}", t.rel_rmse, t.tensor));
    format!(
        "weights    {}{method}: {} of {:.1} M numbers in {}, relative error {:.5} on average{worst}",
        compression.precision,
        compression.tensors.len(),
        total.elements as f64 / 1e6,
        machine::bytes(total.bytes),
        total.mean
    )
}

struct Total<'a> {
    elements: usize,
    bytes: u64,
    /// Mean relative error, each weight by its size.
    mean: f64,
    worst: Option<&'a TensorSummary>,
}

impl<'a> Total<'a> {
    fn of(compression: &'a Compression) -> Self {
        let size = |t: &TensorSummary| t.shape.iter().product::<usize>();
        let tensors = &compression.tensors;
        let elements: usize = tensors.iter().map(size).sum();
        let sum: f64 = tensors.iter().map(|t| t.rel_rmse * size(t) as f64).sum();
        Self {
            elements,
            bytes: tensors.iter().map(|t| t.bytes).sum(),
            mean: sum / elements.max(1) as f64,
            worst: tensors.iter().max_by(|a, b| a.rel_rmse.total_cmp(&b.rel_rmse)),
        }
    }
}

/// Whether a name is what the pattern says, `*` standing for any run of characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = pattern.rsplit('*').next().filter(|_| pattern.contains('*')) else {
        return rest.is_empty();
    };
    let mut between: Vec<&str> = parts.collect();
    between.pop();
    for part in between {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Runs `perform` for each of `count` jobs, on as many threads as there are cores or, `ordered`, one after the other; the first
/// error ends what has not begun.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    ordered: bool,
    perform: &(dyn Fn(usize) -> Result<T> + Sync),
) -> Result<Vec<T>> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<T>>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if ordered { 1 } else { cores }.min(count);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < count) {
                    let result = perform(i);
                    if result.is_err() {
                        next.store(count, Ordering::Relaxed);
                    }
                    *results[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                }
            });
        }
    });
    let mut done = Vec::with_capacity(count);
    for result in results {
        done.extend(result.into_inner().unwrap_or_else(PoisonError::into_inner).transpose()?);
    }
    ensure!(done.len() == count, "the work ended early; please report this");
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.b.c", false),
            ("a.*", "a.b.c", true),
            ("*.weight", "a.weight", true),
            ("*.weight", "a.weight.x", false),
            ("a.*.w*", "a.3.w1.weight", true),
            ("a.*.w", "a.w", false),
            ("*", "", true),
            ("**b*", "ab", true),
            ("ab*ba", "aba", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn an_error_ends_what_has_not_begun() {
        let squares = in_parallel(20, false, &|i| Ok(i * i)).unwrap();
        assert_eq!(squares, (0..20).map(|i| i * i).collect::<Vec<_>>());
        let error = in_parallel(20, false, &|i| if i == 3 { bail!("three") } else { Ok(()) }).unwrap_err();
        assert_eq!(error.to_string(), "three");
        assert!(in_parallel(0, true, &|_| Ok(())).unwrap().is_empty());
    }
}
